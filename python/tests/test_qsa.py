# SPDX-License-Identifier: Apache-2.0
"""QSA against the oracle, in every array library."""

from __future__ import annotations

from typing import Any

import kvsieve
import numpy as np
import pytest
from support import calls, oracle
from support.libraries import BF16, F16, FP8, Library


def _oracle(call: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    call = {name: value for name, value in call.items() if name not in ("qo_indptr", "seq_len_q")}
    return oracle.qsa(**call, **options)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize(("q_dtype", "kv_dtype"), [(BF16, BF16), (F16, F16), (BF16, FP8)], ids=["bf16", "f16", "fp8kv"])
def test_packed(library: Library, rng: np.random.Generator, q_dtype: Any, kv_dtype: Any, shared: bool) -> None:
    call = calls.qsa(rng, q_dtype=q_dtype, kv_dtype=kv_dtype, shared=shared)
    want = _oracle(call)
    out, lse = kvsieve.qsa_attention(**calls.put(call, library), return_lse=True)
    assert isinstance(out, library.kind)
    oracle.assert_close(library.get(out), want[0])
    oracle.assert_lse_close(library.get(lse), want[1])


def _fixed(rng: np.random.Generator) -> dict[str, Any]:
    """Two requests with two groups of two rows each."""
    call = calls.qsa(rng, positions=((60, 61, 62, 63), (10, 11, 12, 13)))
    call["q"] = call["q"].reshape(2, 2, 2, 8, 64)
    del call["qo_indptr"], call["seq_len_q"]
    return call


def test_plan_and_run_of_the_fixed_layout(library: Library, rng: np.random.Generator) -> None:
    call = _fixed(rng)
    want = _oracle(call)
    attention = kvsieve.QsaAttention().plan(4, 2, 8, 2, 64, 4, 16, 6, 80, device=library.device)
    moved = calls.put(call, library)
    del moved["kv_block_size"]
    workspace = library.put(np.zeros(max(attention.workspace_size, 1), np.uint8))
    out, lse = attention.run(**moved, return_lse=True, workspace=workspace)
    assert tuple(out.shape) == (2, 2, 2, 8, 64)
    oracle.assert_close(library.get(out), want[0])
    oracle.assert_lse_close(library.get(lse), want[1])
    again = attention.run(**moved)
    assert np.array_equal(library.get(again).view(np.uint16), library.get(out).view(np.uint16))


def test_fp8_throughout(library: Library, rng: np.random.Generator) -> None:
    call = calls.qsa(rng, q_dtype=FP8)
    want, _ = _oracle(call, v_scale=0.5)
    out = kvsieve.qsa_attention(**calls.put(call, library), v_scale=0.5, o_data_type="float16")
    assert library.get(out).dtype == F16
    oracle.assert_close(library.get(out), want)


def test_gate_and_scales_in_memory(library: Library, rng: np.random.Generator) -> None:
    call = calls.qsa(rng)
    gate = rng.standard_normal(call["q"].shape, np.float32).astype(BF16)
    want, _ = _oracle(call, sm_scale=0.3, v_scale=2.0, output_gate=gate)
    out = kvsieve.qsa_attention(
        **calls.put(call, library),
        sm_scale=library.put(np.array([0.3], np.float32)),
        v_scale=library.put(np.array([2.0], np.float32)),
        output_gate=library.put(gate),
    )
    oracle.assert_close(library.get(out), want)


def test_int32_positions(library: Library, rng: np.random.Generator) -> None:
    call = calls.qsa(rng)
    call["query_positions"] = call["query_positions"].astype(np.int32)
    want, _ = _oracle(call)
    oracle.assert_close(library.get(kvsieve.qsa_attention(**calls.put(call, library))), want)


def test_run_without_plan() -> None:
    with pytest.raises(RuntimeError, match="plan"):
        kvsieve.QsaAttention().run(*[None] * 6)


def test_suggest_group_size() -> None:
    assert kvsieve.suggest_group_size(1, 4096, 24, 2, 132) == 10
    assert kvsieve.suggest_group_size(1, 1, 24, 2, 132) == 1
    with pytest.raises(kvsieve.ArgumentError, match="num_kv_heads"):
        kvsieve.suggest_group_size(1, 1, 24, 0, 132)
