# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's signatures for MSA and for its QToken-KvBlock sparse attention, which is QSA.

    from kvsieve.compat import flashinfer
    out = flashinfer.msa_sparse_attention(q, k, v, q2k_indices, cu_seqlens_q, ...)

Arguments and returns are FlashInfer's. Where it allows more than kvsieve does, NotImplementedError says so; where
kvsieve allows more (strides, page sizes, float16, CPU tensors, shapes), so do these functions.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from .. import _functions, _qsa
from .._arrays import dtype_name

__all__ = [
    "QTokenKvBlockSparsePagedTSWrapper",
    "get_q_token_kv_block_sparse_workspace_size",
    "msa_sparse_attention",
    "msa_sparse_decode_attention",
    "q_token_kv_block_sparse_attention_with_paged_kv_cache",
    "suggest_q_token_kv_block_sparse_group_size",
]


def _refuse_nvfp4(k: torch.Tensor, v: torch.Tensor, k_scale: Any, v_scale: Any) -> None:
    if k.dtype == torch.uint8 or v.dtype == torch.uint8:
        raise NotImplementedError(
            "k, v: packed NVFP4 (uint8) is not supported yet; use bfloat16, float16, float8_e4m3fn"
        )
    if k_scale is not None or v_scale is not None:
        raise NotImplementedError(
            "k_scale, v_scale: block scales belong to packed NVFP4, which is not supported yet; the scale of a whole "
            "tensor is k_global_scale or v_global_scale"
        )


def _refuse_fp8_query(q: torch.Tensor) -> None:
    if q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError("q: float8_e4m3fn queries are not supported by MSA yet; use bfloat16 or float16")


def _offsets(q_offset: int | torch.Tensor | None, batch_size: int, device: torch.device) -> torch.Tensor | None:
    """FlashInfer takes one number for all requests, too."""
    if isinstance(q_offset, int):
        return torch.full((batch_size,), q_offset, dtype=torch.int32, device=device)
    return q_offset


def _or_one(scale: float | torch.Tensor | None) -> float | torch.Tensor:
    return 1.0 if scale is None else scale


def msa_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q2k_indices: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    page_table: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_global_scale: float | torch.Tensor | None = None,
    v_global_scale: float | torch.Tensor | None = None,
    q_offset: int | torch.Tensor | None = None,
    return_temperature_lse: bool = False,
    lse_temperature_scale: float = 1.0,
) -> Any:
    """FlashInfer's `msa_sparse_attention`; see `kvsieve.msa_sparse_attention`.

    Args:
        q: [total_q, Hq, D].
        k: [total_k, Hkv, D] or [num_pages, Hkv, page_size, D].
        v: As k.
        q2k_indices: [Hkv, total_q, topk] int32.
        cu_seqlens_q: [B+1] int32.
        cu_seqlens_k: [B+1] int32; not used with a page table.
        causal: Whether to mask; not by default, unlike `kvsieve.msa_sparse_attention`.
        softmax_scale: Default D**-0.5.
        page_table: [B, max_pages] int32.
        seqused_k: [B] int32.
        return_softmax_lse: Also return lse.
        k_scale: NVFP4 only: NotImplementedError.
        v_scale: NVFP4 only: NotImplementedError.
        k_global_scale: A number, or a float32 tensor of one element.
        v_global_scale: Likewise.
        q_offset: A number, or [B] int32.
        return_temperature_lse: Return (out, lse, lse_t).
        lse_temperature_scale: Multiplies the exponents of lse_t.

    Returns:
        out, (out, lse) or (out, lse, lse_t).
    """
    _refuse_nvfp4(k, v, k_scale, v_scale)
    _refuse_fp8_query(q)
    return _functions.msa_sparse_attention(
        q,
        k,
        v,
        q2k_indices,
        cu_seqlens_q,
        cu_seqlens_k=None if page_table is not None else cu_seqlens_k,
        page_table=page_table,
        seqused_k=None if page_table is None else seqused_k,
        q_offset=_offsets(q_offset, cu_seqlens_q.shape[0] - 1, q.device),
        causal=causal,
        softmax_scale=softmax_scale,
        k_global_scale=_or_one(k_global_scale),
        v_global_scale=_or_one(v_global_scale),
        return_lse=return_softmax_lse or return_temperature_lse,
        return_lse_t=return_temperature_lse,
        lse_temperature_scale=lse_temperature_scale,
    )


def msa_sparse_decode_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q2k_indices: torch.Tensor,
    *,
    page_table: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqlen_q: int = 1,
    causal: bool = True,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_global_scale: float | torch.Tensor | None = None,
    v_global_scale: float | torch.Tensor | None = None,
    q_offset: int | torch.Tensor | None = None,
    partial_dtype: torch.dtype | None = None,
    force_fused: bool | None = None,
) -> Any:
    """FlashInfer's `msa_sparse_decode_attention`; see `kvsieve.msa_sparse_decode_attention`.

    Args:
        q: [B * seqlen_q, Hq, D].
        k: [total_k, Hkv, D] or [num_pages, Hkv, page_size, D].
        v: As k.
        q2k_indices: [Hkv, B * seqlen_q, topk] int32.
        page_table: [B, max_pages] int32.
        seqused_k: [B] int32.
        cu_seqlens_k: [B+1] int32; not used with a page table.
        seqlen_q: Query rows per request.
        causal: Whether to mask.
        softmax_scale: Default D**-0.5.
        return_softmax_lse: Also return lse.
        k_scale: NVFP4 only: NotImplementedError.
        v_scale: NVFP4 only: NotImplementedError.
        k_global_scale: A number, or a float32 tensor of one element.
        v_global_scale: Likewise.
        q_offset: A number, or [B] int32.
        partial_dtype: Partial results are float32 here whatever it says: a hint, as on FlashInfer's other backends.
        force_fused: Whether to split is decided here whatever it says: results are the same but for rounding.

    Returns:
        out, or (out, lse).
    """
    del partial_dtype, force_fused
    _refuse_nvfp4(k, v, k_scale, v_scale)
    _refuse_fp8_query(q)
    return _functions.msa_sparse_decode_attention(
        q,
        k,
        v,
        q2k_indices,
        page_table=page_table,
        seqused_k=None if page_table is None else seqused_k,
        cu_seqlens_k=None if page_table is not None else cu_seqlens_k,
        q_offset=_offsets(q_offset, q.shape[0] // seqlen_q, q.device),
        seqlen_q=seqlen_q,
        causal=causal,
        softmax_scale=softmax_scale,
        k_global_scale=_or_one(k_global_scale),
        v_global_scale=_or_one(v_global_scale),
        return_lse=return_softmax_lse,
    )


class QTokenKvBlockSparsePagedTSWrapper:
    """FlashInfer's wrapper of that name, over `kvsieve.QsaAttention`."""

    def __init__(self) -> None:
        """Makes a wrapper without a plan."""
        self._attention = _qsa.QsaAttention()
        self._workspace: torch.Tensor | None = None

    def plan(
        self,
        batch_size: int,
        seq_len_q: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_block_size: int,
        page_size: int,
        block_topk: int,
        max_seq_len_kv: int,
        *,
        device: torch.device | str,
        workspace_buffer: torch.Tensor,
        use_packed_q: bool = False,
        mask_type: Literal["causal"] = "causal",
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype | None = None,
        o_data_type: torch.dtype | None = None,
        split_kv: bool = True,
        share_pattern_across_kv_heads: bool = True,
    ) -> None:
        """Fixes capacity; see `kvsieve.QsaAttention.plan`.

        Args:
            batch_size: Groups.
            seq_len_q: Rows per group.
            num_qo_heads: Hq.
            num_kv_heads: Hkv.
            head_dim: D.
            kv_block_size: Keys per block.
            page_size: Tokens per page.
            block_topk: Ids per row.
            max_seq_len_kv: Longest KV length.
            device: Of the tensors.
            workspace_buffer: Bytes as `get_q_token_kv_block_sparse_workspace_size` says; kept, and used by run.
            use_packed_q: Packed q, or fixed.
            mask_type: "causal".
            q_data_type: dtype of q.
            kv_data_type: dtype of the cache; default that of q.
            o_data_type: dtype of the output; default that of q.
            split_kv: Whether to split is decided here whatever it says: results are the same but for rounding.
            share_pattern_across_kv_heads: One list of ids per row, or one per KV head.
        """
        del split_kv
        if mask_type != "causal":
            raise NotImplementedError(f'mask_type: "{mask_type}" is not supported, only "causal"')
        # fmt: off
        self._attention.plan(
            batch_size, seq_len_q, num_qo_heads, num_kv_heads, head_dim, kv_block_size, page_size, block_topk,
            max_seq_len_kv, use_packed_q=use_packed_q, share_pattern_across_kv_heads=share_pattern_across_kv_heads,
            q_data_type=q_data_type, kv_data_type=kv_data_type, o_data_type=o_data_type, device=torch.device(device),
        )
        # fmt: on
        self._workspace = workspace_buffer

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        block_table: torch.Tensor,
        indexer_block_ids: torch.Tensor,
        token_to_request: torch.Tensor,
        query_positions: torch.Tensor,
        *,
        qo_indptr: torch.Tensor | None = None,
        sm_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes live data; see `kvsieve.QsaAttention.run`.

        Args:
            q: [total_q, Hq, D] or [B, Nq, G, Hq, D].
            paged_kv_cache: (k, v), each [num_pages, Hkv, page_size, D].
            block_table: [requests, max_pages] int32.
            indexer_block_ids: [total_q, block_topk] or [total_q, Hkv, block_topk] int32.
            token_to_request: [total_q] int32.
            query_positions: [total_q] int32 or int64.
            qo_indptr: [groups + 1] int32, packed only.
            sm_scale: Default D**-0.5.
            v_scale: Default 1.
            out: q's shape. A new tensor when not given, where FlashInfer would reuse one.

        Returns:
            The output.
        """
        # fmt: off
        result: torch.Tensor = self._attention.run(
            q, paged_kv_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr=qo_indptr,
            sm_scale=sm_scale, v_scale=v_scale, out=out, workspace=self._workspace,
        )
        # fmt: on
        return result


def get_q_token_kv_block_sparse_workspace_size(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    *,
    block_topk: int,
    max_seq_len_kv: int,
    o_data_type: torch.dtype | None = None,
    qo_indptr: torch.Tensor | None = None,
    seq_len_q: int | None = None,
    kv_block_size: int = 4,
) -> int:
    """Bytes of the workspace buffer for calls of this shape. Enough for shared patterns and for patterns per KV head.

    Args:
        q: [total_q, Hq, D] or [B, Nq, G, Hq, D].
        k_cache: [num_pages, Hkv, page_size, D].
        block_table: [requests, max_pages]; its size does not matter here.
        block_topk: Ids per row.
        max_seq_len_kv: Longest KV length.
        o_data_type: dtype of the output.
        qo_indptr: [groups + 1], packed only.
        seq_len_q: Rows per group of a packed q.
        kv_block_size: Keys per block.

    Returns:
        The number of bytes.
    """
    del block_table
    batch_size, group = _groups(q, qo_indptr, seq_len_q)
    sizes = []
    for shared in (True, False):
        # fmt: off
        plan = _qsa.QsaAttention().plan(
            batch_size, group, q.shape[-2], k_cache.shape[1], q.shape[-1], kv_block_size, k_cache.shape[2], block_topk,
            max_seq_len_kv, use_packed_q=qo_indptr is not None, share_pattern_across_kv_heads=shared,
            q_data_type=q.dtype, kv_data_type=k_cache.dtype, o_data_type=o_data_type, device=q.device,
        )
        # fmt: on
        sizes.append(plan.workspace_size)
    return max(sizes)


def _groups(q: torch.Tensor, qo_indptr: torch.Tensor | None, seq_len_q: int | None) -> tuple[int, int]:
    """(groups, rows per group)."""
    if qo_indptr is None:
        if q.ndim != 5:
            raise ValueError("q: a packed q needs qo_indptr, a fixed one is [B, Nq, G, Hq, D]")
        if seq_len_q is not None and seq_len_q != q.shape[2]:
            raise ValueError(f"seq_len_q: got {seq_len_q}, want {q.shape[2]}, the third dimension of q")
        return q.shape[0] * q.shape[1], q.shape[2]
    if seq_len_q is None:
        raise ValueError("seq_len_q: needed with qo_indptr")
    groups = qo_indptr.shape[0] - 1
    return max(groups, -(-q.shape[0] // max(seq_len_q, 1))), seq_len_q


def q_token_kv_block_sparse_attention_with_paged_kv_cache(
    q: torch.Tensor,
    paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_table: torch.Tensor,
    indexer_block_ids: torch.Tensor,
    token_to_request: torch.Tensor,
    query_positions: torch.Tensor,
    workspace_buffer: torch.Tensor,
    *,
    max_seq_len_kv: int,
    seq_len_q: int | None = None,
    kv_block_size: int = 4,
    mask_type: Literal["causal"] = "causal",
    sm_scale: float | torch.Tensor | None = None,
    v_scale: float | torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    o_data_type: torch.dtype | None = None,
    qo_indptr: torch.Tensor | None = None,
    split_kv: bool = True,
    share_pattern_across_kv_heads: bool = True,
) -> torch.Tensor:
    """Plans and runs one call; see `QTokenKvBlockSparsePagedTSWrapper`. Unlike FlashInfer's it may be captured.

    Args:
        q: [total_q, Hq, D] or [B, Nq, G, Hq, D].
        paged_kv_cache: (k, v), each [num_pages, Hkv, page_size, D].
        block_table: [requests, max_pages] int32.
        indexer_block_ids: [total_q, block_topk] or [total_q, Hkv, block_topk] int32.
        token_to_request: [total_q] int32.
        query_positions: [total_q] int32 or int64.
        workspace_buffer: Bytes as `get_q_token_kv_block_sparse_workspace_size` says.
        max_seq_len_kv: Longest KV length.
        seq_len_q: Rows per group of a packed q.
        kv_block_size: Keys per block.
        mask_type: "causal".
        sm_scale: Default D**-0.5.
        v_scale: Default 1.
        out: q's shape.
        o_data_type: dtype of the output; default that of out or q.
        qo_indptr: [groups + 1] int32, packed only.
        split_kv: See the wrapper.
        share_pattern_across_kv_heads: One list of ids per row, or one per KV head.

    Returns:
        The output.
    """
    batch_size, group = _groups(q, qo_indptr, seq_len_q)
    k_cache = paged_kv_cache[0]
    if o_data_type is None and out is not None:
        o_data_type = out.dtype
    wrapper = QTokenKvBlockSparsePagedTSWrapper()
    # fmt: off
    wrapper.plan(
        batch_size, group, q.shape[-2], k_cache.shape[1], q.shape[-1], kv_block_size, k_cache.shape[2],
        indexer_block_ids.shape[-1], max_seq_len_kv, device=q.device, workspace_buffer=workspace_buffer,
        use_packed_q=qo_indptr is not None, mask_type=mask_type, q_data_type=q.dtype, kv_data_type=k_cache.dtype,
        o_data_type=o_data_type, split_kv=split_kv, share_pattern_across_kv_heads=share_pattern_across_kv_heads,
    )
    return wrapper.run(
        q, paged_kv_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr=qo_indptr,
        sm_scale=sm_scale, v_scale=v_scale, out=out,
    )
    # fmt: on


def suggest_q_token_kv_block_sparse_group_size(
    batch_size: int,
    seq_len_q: int,
    selected_seq_len_kv: int,
    num_qo_heads: int,
    num_kv_heads: int,
    multi_processor_count: int,
    *,
    head_dim: int | None = None,
    q_data_type: torch.dtype | None = None,
    split_kv: bool = True,
    kv_block_size: int = 4,
) -> int:
    """Proposes the rows per group; see `kvsieve.suggest_group_size`.

    Args:
        batch_size: Requests.
        seq_len_q: Query rows per request.
        selected_seq_len_kv: Keys that a row selects; does not matter here, as what follows.
        num_qo_heads: Hq.
        num_kv_heads: Hkv.
        multi_processor_count: Streaming multiprocessors.
        head_dim: D.
        q_data_type: dtype of q.
        split_kv: Whether the call may be split.
        kv_block_size: Keys per block.

    Returns:
        G, 1 to 16.
    """
    del selected_seq_len_kv, head_dim, split_kv, kv_block_size
    if q_data_type is not None:
        dtype_name(q_data_type, "q_data_type")
    return _qsa.suggest_group_size(batch_size, seq_len_q, num_qo_heads, num_kv_heads, multi_processor_count)
