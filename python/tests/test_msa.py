# SPDX-License-Identifier: Apache-2.0
"""MSA against the oracle, in every array library."""

from __future__ import annotations

from typing import Any

import kvsieve
import numpy as np
import pytest
from support import calls, oracle
from support.libraries import BF16, F16, FP8, Library


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "flat"])
@pytest.mark.parametrize(("q_dtype", "kv_dtype"), [(BF16, BF16), (F16, F16), (BF16, FP8)], ids=["bf16", "f16", "fp8kv"])
def test_prefill(library: Library, rng: np.random.Generator, q_dtype: Any, kv_dtype: Any, paged: bool) -> None:
    call = calls.msa(rng, q_dtype=q_dtype, kv_dtype=kv_dtype, paged=paged)
    out, lse, lse_t = oracle.msa(**call, lse_temperature_scale=0.5)
    got = kvsieve.msa_sparse_attention(
        **calls.put(call, library), return_lse=True, return_lse_t=True, lse_temperature_scale=0.5
    )
    assert all(isinstance(array, library.kind) for array in got)
    oracle.assert_close(library.get(got[0]), out)
    oracle.assert_lse_close(library.get(got[1]), lse)
    oracle.assert_lse_close(library.get(got[2]), lse_t)


@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_decode(library: Library, rng: np.random.Generator, seqlen_q: int) -> None:
    call = calls.msa_decode(rng, seqlen_q=seqlen_q, dim=128, heads=16, kv_heads=1)
    out, lse, _ = oracle.msa(**call)
    got_out, got_lse = kvsieve.msa_sparse_decode_attention(**calls.put(call, library), return_lse=True)
    oracle.assert_close(library.get(got_out), out)
    oracle.assert_lse_close(library.get(got_lse), lse)


def test_not_causal_with_offsets_and_scales(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    options = {"q_offset": np.array([10, 0, 200], np.int32), "softmax_scale": 0.2, "k_global_scale": 0.5}
    for causal in (True, False):
        out, _, _ = oracle.msa(**call, **options, v_global_scale=2.0, causal=causal)
        got = kvsieve.msa_sparse_attention(
            **calls.put(call, library), **calls.put(options, library), v_global_scale=2.0, causal=causal
        )
        oracle.assert_close(library.get(got), out)


def test_scales_in_memory(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, kv_dtype=FP8)
    scales = {"k_global_scale": np.array([0.7], np.float32), "v_global_scale": np.array(1.3, np.float32)}
    out, _, _ = oracle.msa(**call, **scales)
    got = kvsieve.msa_sparse_attention(**calls.put(call, library), **calls.put(scales, library))
    oracle.assert_close(library.get(got), out)


def test_garbage_after_the_valid_prefix(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, topk=4)
    call["q2k_indices"][call["q2k_indices"] < 0] = 1  # a repetition of what may be selected already
    out, _, _ = oracle.msa(**call, valid_prefix=True)
    got = kvsieve.msa_sparse_attention(**calls.put(call, library), valid_prefix=True)
    oracle.assert_close(library.get(got), out)


def test_packed_cache_and_strided_q(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, dim=64)
    packed = np.concatenate([call["k"], call["v"]], axis=-1)
    wide_q = np.concatenate([call["q"], call["q"]], axis=1)
    out, _, _ = oracle.msa(**call)
    moved = calls.put(call, library)
    cache, q = library.put(packed), library.put(wide_q)
    moved |= {"k": cache[..., :64], "v": cache[..., 64:], "q": q[:, :8]}
    oracle.assert_close(library.get(kvsieve.msa_sparse_attention(**moved)), out)


def test_given_outputs_and_workspace(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    want = kvsieve.msa_sparse_attention(**calls.put(call, library), return_lse=True)
    total, heads, dim = call["q"].shape
    size = kvsieve.msa_workspace_size(total, heads, 2, dim, 2, q_data_type=call["q"].dtype, device=library.device)
    out = library.put(np.full_like(call["q"], np.nan))
    lse = library.put(np.full((total, heads), np.nan, np.float32))
    workspace = library.put(np.zeros(size, np.uint8))
    got = kvsieve.msa_sparse_attention(**calls.put(call, library), out=out, lse=lse, workspace=workspace)
    assert got[0] is out
    assert got[1] is lse
    assert np.array_equal(library.get(out).view(np.uint16), library.get(want[0]).view(np.uint16))
    assert np.array_equal(library.get(lse), library.get(want[1]))


def test_no_rows(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, rows=(0, 0), lengths=(130, 0))
    out, lse = kvsieve.msa_sparse_attention(**calls.put(call, library), return_lse=True)
    assert tuple(out.shape) == (0, 8, 64)
    assert tuple(lse.shape) == (0, 8)


def test_reference_path(rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    out, _, _ = oracle.msa(**call)
    oracle.assert_close(kvsieve.msa_sparse_attention(**call, path="reference"), out)


def test_equal_calls_give_equal_bits(library: Library, rng: np.random.Generator) -> None:
    call = calls.put(calls.msa(rng), library)
    bits = [library.get(kvsieve.msa_sparse_attention(**call)).view(np.uint16) for _ in range(3)]
    assert np.array_equal(bits[0], bits[1])
    assert np.array_equal(bits[0], bits[2])
