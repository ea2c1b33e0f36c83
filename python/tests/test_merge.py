# SPDX-License-Identifier: Apache-2.0
"""merge_states, alone and against attention over the whole cache."""

from __future__ import annotations

from typing import Any

import kvsieve
import numpy as np
import pytest
from support import calls, oracle
from support.libraries import BF16, F16, Library


@pytest.mark.parametrize("dtype", [BF16, F16, np.dtype(np.float32)], ids=str)
def test_merge(library: Library, rng: np.random.Generator, dtype: Any) -> None:
    outs = rng.standard_normal((3, 7, 4, 64), np.float32).astype(dtype)
    lses = (3 * rng.standard_normal((3, 7, 4), np.float32)).astype(np.float32)
    lses[0, 1] = -np.inf
    lses[:, 2] = -np.inf
    outs[0, 1] = np.nan  # an empty state is not read
    want = oracle.merge(outs, lses)
    out, lse = kvsieve.merge_states(library.put(outs), library.put(lses))
    assert isinstance(out, library.kind)
    assert library.get(out).dtype == dtype
    oracle.assert_close(library.get(out), want[0])
    oracle.assert_lse_close(library.get(lse), want[1])


def test_out_dtype_and_given_outputs(library: Library, rng: np.random.Generator) -> None:
    outs = library.put(rng.standard_normal((2, 3, 4, 64), np.float32))
    lses = library.put(rng.standard_normal((2, 3, 4), np.float32))
    out = kvsieve.merge_states(outs, lses, return_lse=False, out_dtype="bfloat16")
    assert library.get(out).dtype == BF16
    lse = library.put(np.zeros((3, 4), np.float32))
    assert kvsieve.merge_states(outs, lses, out=out, lse=lse)[1] is lse


def test_shards_merge_into_the_whole(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa_decode(rng, lengths=(512, 512), topk=4)
    want, want_lse, _ = oracle.msa(**call)
    states = []
    for rank in range(2):  # each holds two of a request's four blocks
        ids = call["q2k_indices"] - 2 * rank
        shard = call | {
            "q2k_indices": np.where((ids >= 0) & (ids < 2), ids, -1).astype(np.int32),
            "page_table": np.ascontiguousarray(call["page_table"][:, 2 * rank : 2 * rank + 2]),
            "seqused_k": np.array([256, 256], np.int32),
            "q_offset": np.array([511 - 256 * rank] * 2, np.int32),
        }
        out, lse = kvsieve.msa_sparse_decode_attention(**calls.put(shard, library), return_lse=True)
        states.append((library.get(out), library.get(lse)))
    outs, lses = (library.put(np.stack(part)) for part in zip(*states, strict=True))
    out, lse = kvsieve.merge_states(outs, lses)
    oracle.assert_close(library.get(out), want)
    oracle.assert_lse_close(library.get(lse), want_lse)
