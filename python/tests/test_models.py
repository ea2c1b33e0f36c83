# SPDX-License-Identifier: Apache-2.0
"""The models' own shapes against the PyTorch oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kvsieve
from support import calls, libraries, oracle, torch_oracle
from support.libraries import BF16, FP8, Library


@pytest.fixture(params=[lib for lib in libraries.available() if lib.name != "numpy"], ids=lambda lib: lib.name)
def library(request: pytest.FixtureRequest) -> Library:
    """torch, on each device."""
    return request.param


@pytest.mark.parametrize("kv_dtype", [BF16, FP8], ids=str)
def test_minimax_m3(library: Library, rng: np.random.Generator, kv_dtype: Any) -> None:
    call = calls.put(
        calls.msa(
            rng,
            rows=(40, 1, 0, 9),
            lengths=(3000, 2500, 0, 9),
            heads=64,
            kv_heads=4,
            dim=128,
            topk=16,
            kv_dtype=kv_dtype,
        ),
        library,
    )
    want, want_lse = torch_oracle.msa(**call)
    out, lse = kvsieve.msa_sparse_attention(**call, return_lse=True)
    oracle.assert_close(library.get(out), library.get(want))
    oracle.assert_lse_close(library.get(lse), library.get(want_lse))


@pytest.mark.parametrize(("heads", "kv_heads"), [(24, 2), (12, 1)])
@pytest.mark.parametrize("kv_dtype", [BF16, FP8], ids=str)
def test_qwen(library: Library, rng: np.random.Generator, kv_dtype: Any, heads: int, kv_heads: int) -> None:
    made = calls.qsa(
        rng,
        positions=(tuple(range(2980, 3000)), (4094,), tuple(range(6))),
        heads=heads,
        kv_heads=kv_heads,
        dim=256,
        page=64,
        topk=512,
        kv_dtype=kv_dtype,
        group=5,
    )
    call = calls.put(made, library)
    out, lse = kvsieve.qsa_attention(**call, return_lse=True)
    del call["qo_indptr"], call["seq_len_q"]
    want, want_lse = torch_oracle.qsa(**call)
    oracle.assert_close(library.get(out), library.get(want))
    oracle.assert_lse_close(library.get(lse), library.get(want_lse))
