# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's signatures: their parameters, their returns, and that the results are right."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kvsieve
from kvsieve.compat import flashinfer
from support import calls, libraries, oracle
from support.libraries import FP8, Library


@pytest.fixture(params=[lib for lib in libraries.available() if lib.name != "numpy"], ids=lambda lib: lib.name)
def library(request: pytest.FixtureRequest) -> Library:
    """torch, on each device."""
    return request.param


SIGNATURES = {
    "msa_sparse_attention": "q, k, v, q2k_indices, cu_seqlens_q, cu_seqlens_k=None, causal=False, softmax_scale=None, "
    "page_table=None, seqused_k=None, return_softmax_lse=False, k_scale=None, v_scale=None, k_global_scale=None, "
    "v_global_scale=None, q_offset=None, return_temperature_lse=False, lse_temperature_scale=1.0",
    "msa_sparse_decode_attention": "q, k, v, q2k_indices, *, page_table=None, seqused_k=None, cu_seqlens_k=None, "
    "seqlen_q=1, causal=True, softmax_scale=None, return_softmax_lse=False, k_scale=None, v_scale=None, "
    "k_global_scale=None, v_global_scale=None, q_offset=None, partial_dtype=None, force_fused=None",
    "QTokenKvBlockSparsePagedTSWrapper.plan": "self, batch_size, seq_len_q, num_qo_heads, num_kv_heads, head_dim, "
    "kv_block_size, page_size, block_topk, max_seq_len_kv, *, device, workspace_buffer, use_packed_q=False, "
    "mask_type='causal', q_data_type, kv_data_type=None, o_data_type=None, split_kv=True, "
    "share_pattern_across_kv_heads=True",
    "QTokenKvBlockSparsePagedTSWrapper.run": "self, q, paged_kv_cache, block_table, indexer_block_ids, "
    "token_to_request, query_positions, *, qo_indptr=None, sm_scale=None, v_scale=None, out=None",
    "get_q_token_kv_block_sparse_workspace_size": "q, k_cache, block_table, *, block_topk, max_seq_len_kv, "
    "o_data_type=None, qo_indptr=None, seq_len_q=None, kv_block_size=4",
    "q_token_kv_block_sparse_attention_with_paged_kv_cache": "q, paged_kv_cache, block_table, indexer_block_ids, "
    "token_to_request, query_positions, workspace_buffer, *, max_seq_len_kv, seq_len_q=None, kv_block_size=4, "
    "mask_type='causal', sm_scale=None, v_scale=None, out=None, o_data_type=None, qo_indptr=None, split_kv=True, "
    "share_pattern_across_kv_heads=True",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    function: Any = flashinfer
    for part in name.split("."):
        function = getattr(function, part)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(function).parameters.values()]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


def test_msa_prefill(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, kv_dtype=FP8)
    moved = calls.put(call, library)
    for causal in (False, True):
        out, lse, lse_t = oracle.msa(**call, causal=causal, k_global_scale=0.5, lse_temperature_scale=0.25)
        got = flashinfer.msa_sparse_attention(**moved, causal=causal, k_global_scale=0.5)
        oracle.assert_close(library.get(got), out)
    options = {"causal": True, "k_global_scale": 0.5, "lse_temperature_scale": 0.25}
    pair = flashinfer.msa_sparse_attention(**moved, **options, return_softmax_lse=True)
    triple = flashinfer.msa_sparse_attention(**moved, **options, return_temperature_lse=True)
    assert len(pair) == 2
    assert len(triple) == 3
    oracle.assert_lse_close(library.get(pair[1]), lse)
    oracle.assert_lse_close(library.get(triple[1]), lse)
    oracle.assert_lse_close(library.get(triple[2]), lse_t)


def test_msa_prefill_with_a_number_as_offset_and_both_lengths(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, rows=(4, 4), lengths=(300, 200))
    out, _, _ = oracle.msa(**call, q_offset=np.array([120, 120], np.int32))
    lengths = library.put(np.array([0, 300, 500], np.int32))
    moved = calls.put(call, library)
    got = flashinfer.msa_sparse_attention(**moved, q_offset=120, cu_seqlens_k=lengths, causal=True)
    oracle.assert_close(library.get(got), out)


def test_msa_decode(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa_decode(rng, seqlen_q=2)
    out, lse, _ = oracle.msa(**call)
    got = flashinfer.msa_sparse_decode_attention(
        **calls.put(call, library), return_softmax_lse=True, force_fused=True, partial_dtype=torch.bfloat16
    )
    oracle.assert_close(library.get(got[0]), out)
    oracle.assert_lse_close(library.get(got[1]), lse)


def test_what_is_not_supported_says_so(rng: np.random.Generator) -> None:
    call = calls.put(calls.msa(rng), libraries.available()[1])
    packed = torch.zeros((4, 2, 128, 32), dtype=torch.uint8)
    scale = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(NotImplementedError, match="NVFP4"):
        flashinfer.msa_sparse_attention(**call | {"k": packed, "v": packed, "k_scale": scale, "v_scale": scale})
    with pytest.raises(NotImplementedError, match="NVFP4"):
        flashinfer.msa_sparse_attention(**call, k_scale=scale)
    with pytest.raises(NotImplementedError, match="^q: float8"):
        flashinfer.msa_sparse_attention(**call | {"q": call["q"].to(torch.float8_e4m3fn)})
    with pytest.raises(NotImplementedError, match="mask_type"):
        flashinfer.QTokenKvBlockSparsePagedTSWrapper().plan(
            1,
            1,
            8,
            2,
            64,
            4,
            16,
            6,
            99,
            device="cpu",
            workspace_buffer=scale,
            mask_type="none",
            q_data_type=torch.bfloat16,
        )


@pytest.mark.parametrize("shared", [True, False])
def test_qsa(library: Library, rng: np.random.Generator, shared: bool) -> None:
    call = calls.qsa(rng, shared=shared)
    want, _ = oracle.qsa(**{n: v for n, v in call.items() if n not in ("qo_indptr", "seq_len_q")})
    moved = calls.put(call, library)
    block, group = moved.pop("kv_block_size"), moved.pop("seq_len_q")
    q, (k_cache, v_cache) = moved.pop("q"), moved.pop("paged_kv_cache")
    size = flashinfer.get_q_token_kv_block_sparse_workspace_size(
        q,
        k_cache,
        moved["block_table"],
        block_topk=6,
        max_seq_len_kv=112,
        qo_indptr=moved["qo_indptr"],
        seq_len_q=group,
        kv_block_size=block,
    )
    workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
    out = flashinfer.q_token_kv_block_sparse_attention_with_paged_kv_cache(
        q,
        (k_cache, v_cache),
        workspace_buffer=workspace,
        max_seq_len_kv=112,
        seq_len_q=group,
        kv_block_size=block,
        share_pattern_across_kv_heads=shared,
        **moved,
    )
    oracle.assert_close(library.get(out), want)

    wrapper = flashinfer.QTokenKvBlockSparsePagedTSWrapper()
    wrapper.plan(
        moved["qo_indptr"].shape[0] - 1,
        group,
        8,
        2,
        64,
        block,
        16,
        6,
        112,
        device=q.device,
        workspace_buffer=workspace,
        use_packed_q=True,
        q_data_type=q.dtype,
        share_pattern_across_kv_heads=shared,
    )
    given = torch.full_like(q, float("nan"))
    assert wrapper.run(q, (k_cache, v_cache), out=given, **moved) is given
    assert torch.equal(given.view(torch.int16), out.view(torch.int16))


def test_group_size() -> None:
    suggest = flashinfer.suggest_q_token_kv_block_sparse_group_size
    assert suggest(1, 4096, 2051, 24, 2, 132, head_dim=256, q_data_type=torch.bfloat16, split_kv=False) == 10
    assert suggest(
        batch_size=2, seq_len_q=4, selected_seq_len_kv=2051, num_qo_heads=24, num_kv_heads=2, multi_processor_count=4
    ) == kvsieve.suggest_group_size(2, 4, 24, 2, 4)
