# SPDX-License-Identifier: Apache-2.0
"""The calls. Symbols: B requests, total_q query rows of all requests, Hq query heads, Hkv KV heads, D head dim."""

from __future__ import annotations

from typing import Any

from . import _core, _hooks
from ._arrays import device_name, dtype_name

# A tensor: torch, NumPy (with ml_dtypes for bfloat16 and float8_e4m3fn), or anything that speaks DLPack.
Array = Any


def _results(out: Array, lse: Array, lse_t: Array = None) -> Any:
    """`out`, or a tuple of what was asked for."""
    if lse is None:
        return out if lse_t is None else (out, lse_t)
    return (out, lse) if lse_t is None else (out, lse, lse_t)


def msa_sparse_attention(
    q: Array,
    k: Array,
    v: Array,
    q2k_indices: Array,
    cu_seqlens_q: Array,
    *,
    cu_seqlens_k: Array | None = None,
    page_table: Array | None = None,
    seqused_k: Array | None = None,
    q_offset: Array | None = None,
    causal: bool = True,
    softmax_scale: float | None = None,
    k_global_scale: float | Array = 1.0,
    v_global_scale: float | Array = 1.0,
    valid_prefix: bool = False,
    block_size: int = 128,
    out: Array | None = None,
    lse: Array | None = None,
    lse_t: Array | None = None,
    return_lse: bool = False,
    return_lse_t: bool = False,
    lse_temperature_scale: float = 1.0,
    workspace: Array | None = None,
    stream: Any = None,
    path: str | None = None,
    num_threads: int = 0,
    unchecked: bool = False,
    check_indices: bool = False,
) -> Any:
    """MSA attention (MiniMax-M3) for prefill and chunked prefill: every request has its own number of query rows.

    Row r of request b at position p attends to key j of that request if j < len_k(b), and (not causal or j <= p), and
    block j // block_size is among the row's selected ids for the KV head. A row without keys gives 0, and lse -inf.

    Args:
        q: [total_q, Hq, D] bfloat16 or float16; D 64, 128 or 256; Hq 1 to 16 times Hkv. The last dimension of every
            tensor is contiguous, the strides of the others are free.
        k: Keys: flat [total_k, Hkv, D], or paged [num_pages, Hkv, page_size, D] with page_size a multiple of
            block_size. q's dtype or float8_e4m3fn.
        v: Values; shape and dtype of k, strides of its own.
        q2k_indices: [Hkv, total_q, topk] int32, the selected block ids. -1 and other ids that are out of range are
            skipped wherever they stand.
        cu_seqlens_q: [B+1] int32: request b owns rows cu_seqlens_q[b] to cu_seqlens_q[b+1].
        cu_seqlens_k: [B+1] int32, flat k and v only.
        page_table: [B, max_pages] int32, paged only: token j of request b is in page page_table[b, j // page_size].
        seqused_k: [B] int32, paged only: KV length of each request.
        q_offset: [B] int32: row t of request b is at position q_offset[b] + t. Default: len_k - len_q.
        causal: Whether keys after a row's position are masked.
        softmax_scale: Multiplies the logits. Default D**-0.5.
        k_global_scale: Dequantisation of K, multiplies the logits: a number, or one float32 element on q's device that
            is read when the call executes.
        v_global_scale: Dequantisation of V, multiplies the output; likewise.
        valid_prefix: Only the first min(topk, number of visible blocks) ids of a row count, the rest is garbage.
        block_size: Keys per block: a power of two from 4 to 128.
        out: [total_q, Hq, D], q's dtype. Allocated by q's array library when not given. Every row is written.
        lse: [total_q, Hq] float32: natural-log log-sum-exp of the scaled logits.
        lse_t: [total_q, Hq] float32: log(sum_j exp(lse_temperature_scale * s_j)) over the scaled logits s_j.
        return_lse: Allocate and return lse.
        return_lse_t: Allocate and return lse_t.
        lse_temperature_scale: Finite and greater than 0.
        workspace: Scratch memory of msa_workspace_size(...) bytes or more, of any dtype. Default: memory of the
            calling thread on the CPU, of q's array library on CUDA.
        stream: CUDA stream of the call. Default: the current one of q's array library.
        path: Forces a path, for tests: "reference", "cpu", "cuda_portable", "cuda_sm90".
        num_threads: CPU threads, 0 for all cores.
        unchecked: Skips the checks of the arguments. With wrong arguments the behaviour is then undefined.
        check_indices: Debug: raises `kvsieve.IndexError` when index entries are out of range, after the call.

    Returns:
        out; (out, lse), (out, lse_t) or (out, lse, lse_t) when these are given or asked for.

    Raises:
        kvsieve.ArgumentError: An argument is wrong; the message names it. A ValueError.
        kvsieve.UnsupportedError: No path of this build takes the call. A NotImplementedError.
    """
    lse = return_lse if lse is None else lse
    lse_t = return_lse_t if lse_t is None else lse_t
    # fmt: off
    arguments = (
        False, q, k, v, q2k_indices, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, q_offset, 1, causal,
        softmax_scale, k_global_scale, v_global_scale, valid_prefix, block_size, out if out is not None else True, lse,
        lse_t, lse_temperature_scale, workspace, stream, path, num_threads, unchecked, check_indices,
    )
    # fmt: on
    return _results(*_msa(arguments))


def msa_sparse_decode_attention(
    q: Array,
    k: Array,
    v: Array,
    q2k_indices: Array,
    *,
    page_table: Array | None = None,
    seqused_k: Array | None = None,
    cu_seqlens_k: Array | None = None,
    q_offset: Array | None = None,
    seqlen_q: int = 1,
    causal: bool = True,
    softmax_scale: float | None = None,
    k_global_scale: float | Array = 1.0,
    v_global_scale: float | Array = 1.0,
    valid_prefix: bool = False,
    block_size: int = 128,
    out: Array | None = None,
    lse: Array | None = None,
    lse_t: Array | None = None,
    return_lse: bool = False,
    return_lse_t: bool = False,
    lse_temperature_scale: float = 1.0,
    workspace: Array | None = None,
    stream: Any = None,
    path: str | None = None,
    num_threads: int = 0,
    unchecked: bool = False,
    check_indices: bool = False,
) -> Any:
    """MSA attention (MiniMax-M3) for decode: every request has `seqlen_q` query rows, total_q = B * seqlen_q.

    Padded requests, with length 0 and so rows at negative positions, are legal. The arguments, results and errors are
    those of `msa_sparse_attention`, without cu_seqlens_q.

    Args:
        q: [B * seqlen_q, Hq, D] bfloat16 or float16.
        k: Keys, flat or paged.
        v: Values.
        q2k_indices: [Hkv, B * seqlen_q, topk] int32.
        page_table: [B, max_pages] int32, paged only.
        seqused_k: [B] int32, paged only.
        cu_seqlens_k: [B+1] int32, flat only.
        q_offset: [B] int32; default len_k - seqlen_q.
        seqlen_q: Query rows per request: 1, or more with speculative decoding.
        causal: See `msa_sparse_attention`, as for all that follow.
        softmax_scale: Default D**-0.5.
        k_global_scale: A number or one float32 element.
        v_global_scale: A number or one float32 element.
        valid_prefix: Only the first min(topk, number of visible blocks) ids of a row count.
        block_size: Keys per block.
        out: [B * seqlen_q, Hq, D].
        lse: [B * seqlen_q, Hq] float32.
        lse_t: [B * seqlen_q, Hq] float32.
        return_lse: Allocate and return lse.
        return_lse_t: Allocate and return lse_t.
        lse_temperature_scale: Finite and greater than 0.
        workspace: Scratch memory.
        stream: CUDA stream of the call.
        path: Forces a path.
        num_threads: CPU threads, 0 for all cores.
        unchecked: Skips the checks of the arguments.
        check_indices: Debug: raises `kvsieve.IndexError` for index entries out of range.

    Returns:
        out, or a tuple of what is given or asked for, as `msa_sparse_attention`.
    """
    lse = return_lse if lse is None else lse
    lse_t = return_lse_t if lse_t is None else lse_t
    # fmt: off
    arguments = (
        True, q, k, v, q2k_indices, None, cu_seqlens_k, page_table, seqused_k, q_offset, seqlen_q, causal,
        softmax_scale, k_global_scale, v_global_scale, valid_prefix, block_size, out if out is not None else True, lse,
        lse_t, lse_temperature_scale, workspace, stream, path, num_threads, unchecked, check_indices,
    )
    # fmt: on
    return _results(*_msa(arguments))


def _msa(arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    if _hooks.is_compiling():
        from . import torch_ops

        return torch_ops.msa(arguments)
    if _hooks.recorder is not None:
        return _hooks.recorder.msa(arguments)
    return _core.msa(arguments)


def msa_workspace_size(
    total_q: int,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int = 128,
    topk: int = 16,
    *,
    block_size: int = 128,
    q_data_type: Any = "bfloat16",
    kv_data_type: Any = None,
    device: Any = "cpu",
    num_threads: int = 0,
) -> int:
    """Bytes of workspace of an MSA call, from shapes alone. A call needs no more than a larger one.

    Args:
        total_q: Query rows of all requests.
        num_qo_heads: Hq.
        num_kv_heads: Hkv.
        head_dim: D.
        topk: Ids per row.
        block_size: Keys per block.
        q_data_type: dtype of q, as a string or an object of torch, NumPy or ml_dtypes.
        kv_data_type: dtype of k and v; default that of q.
        device: "cpu", "cuda:0", or a torch device.
        num_threads: As in the call.

    Returns:
        The number of bytes.
    """
    q_dtype = dtype_name(q_data_type, "q_data_type")
    kv_dtype = q_dtype if kv_data_type is None else dtype_name(kv_data_type, "kv_data_type")
    # fmt: off
    return _core.msa_workspace_size(
        total_q, num_qo_heads, num_kv_heads, head_dim, topk, block_size, q_dtype, kv_dtype, device_name(device),
        num_threads,
    )
    # fmt: on


def merge_states(
    outs: Array,
    lses: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = True,
    out_dtype: Any = None,
    stream: Any = None,
    path: str | None = None,
    num_threads: int = 0,
    unchecked: bool = False,
) -> Any:
    """Merges attention states over disjoint sets of keys into the state over their union.

    Engines that shard the KV cache compute one state per shard. With the states s in order,
    lse = log(sum_s exp(lses[s])) and out = sum_s exp(lses[s] - lse) * outs[s]. A state with lse = -inf is empty, and
    its entry of outs is not read.

    Args:
        outs: [num_states, total_q, Hq, D] float32, bfloat16 or float16; last dimension contiguous.
        lses: [num_states, total_q, Hq] float32, natural log.
        out: [total_q, Hq, D] of any of these dtypes; allocated when not given.
        lse: [total_q, Hq] float32; allocated when not given and return_lse.
        return_lse: Whether to return lse.
        out_dtype: dtype of a new out; default that of outs.
        stream: CUDA stream of the call; default the current one of outs' array library.
        path: Forces a path.
        num_threads: CPU threads, 0 for all cores.
        unchecked: Skips the checks of the arguments.

    Returns:
        (out, lse), or out when return_lse is False and no lse is given.
    """
    wanted_lse = return_lse if lse is None else lse
    dtype = None if out_dtype is None else dtype_name(out_dtype, "out_dtype")
    wanted_out = True if out is None else out
    if _hooks.is_compiling():
        from . import torch_ops

        return _results(*torch_ops.merge(outs, lses, wanted_out, wanted_lse, dtype))
    return _results(*_core.merge((outs, lses, wanted_out, wanted_lse, dtype, stream, path, num_threads, unchecked)))
