# SPDX-License-Identifier: Apache-2.0
"""QSA attention (Qwen3.8-Flash-Next): a plan that fixes capacity, and runs on live data."""

from __future__ import annotations

from typing import Any

from . import _core, _hooks
from ._arrays import device_name, dtype_name
from ._functions import Array, _results


class QsaAttention:
    """QSA attention: `plan` once, then `run` at every step.

    A row at position p has done = (p + 1) // kv_block_size completed blocks. It attends to the first
    min(block_topk, done) of its ids, which name distinct completed blocks, and to the tail: the tokens
    done * kv_block_size to p. Ids after those are ignored.

    A plan holds no memory, so it may be shared by threads, and by CUDA graphs that each have their own workspace.

    Example:
        attention = kvsieve.QsaAttention().plan(
            batch_size=8, seq_len_q=1, num_qo_heads=24, num_kv_heads=2, head_dim=256, kv_block_size=4, page_size=64,
            block_topk=512, max_seq_len_kv=262144, device="cuda",
        )
        out = attention.run(q, (k_cache, v_cache), block_table, ids, token_to_request, positions)
    """

    def __init__(self) -> None:
        """Makes an attention without a plan."""
        self._plan: _core.QsaPlan | None = None

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
        use_packed_q: bool = False,
        share_pattern_across_kv_heads: bool = True,
        q_data_type: Any = "bfloat16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        device: Any = "cpu",
        num_threads: int = 0,
    ) -> QsaAttention:
        """Fixes capacity and shape.

        Args:
            batch_size: Groups of query rows: B * Nq in the fixed layout, len(qo_indptr) - 1 at most in the packed one.
            seq_len_q: Rows per group (G): exactly in the fixed layout, at most in the packed one. G * Hq / Hkv is at
                most 128.
            num_qo_heads: Hq, 1 to 16 times num_kv_heads.
            num_kv_heads: Hkv.
            head_dim: 64, 128 or 256.
            kv_block_size: Keys per block: 4, 8, 16, 32, 64 or 128.
            page_size: Tokens per page of the KV cache, a multiple of kv_block_size.
            block_topk: Ids per row of indexer_block_ids.
            max_seq_len_kv: Longest KV length that a row may see. A row at or past it has no keys.
            use_packed_q: Packed q [total_q, Hq, D] with qo_indptr, or fixed [B, Nq, G, Hq, D].
            share_pattern_across_kv_heads: One list of ids per row, or one per row and KV head.
            q_data_type: bfloat16, float16, or float8_e4m3fn with a cache of the same.
            kv_data_type: q's or float8_e4m3fn; default q's.
            o_data_type: q's; bfloat16 or float16 when q is float8_e4m3fn. Default q's, or bfloat16.
            device: "cpu", "cuda:0", or a torch device.
            num_threads: CPU threads, 0 for all cores.

        Returns:
            self, planned.

        Raises:
            kvsieve.ArgumentError: The configuration is not one that the contract allows.
            kvsieve.UnsupportedError: No path takes calls of this capacity on the device.
        """
        q_dtype = dtype_name(q_data_type, "q_data_type")
        kv_dtype = q_dtype if kv_data_type is None else dtype_name(kv_data_type, "kv_data_type")
        if o_data_type is not None:
            out_dtype = dtype_name(o_data_type, "o_data_type")
        else:
            out_dtype = "bf16" if q_dtype == "f8_e4m3" else q_dtype
        # fmt: off
        self._plan = _core.qsa_plan(
            batch_size, seq_len_q, num_qo_heads, num_kv_heads, head_dim, kv_block_size, page_size, block_topk,
            max_seq_len_kv, use_packed_q, share_pattern_across_kv_heads, q_dtype, kv_dtype, out_dtype,
            device_name(device), num_threads,
        )
        # fmt: on
        self._kv_block_size = kv_block_size
        self._seq_len_q = seq_len_q
        self._batch_size = batch_size
        self._max_seq_len_kv = max_seq_len_kv
        self._out_dtype = out_dtype
        self._num_threads = num_threads
        return self

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that run() needs at most."""
        return self._planned().workspace_size

    def run(
        self,
        q: Array,
        paged_kv_cache: tuple[Array, Array],
        block_table: Array,
        indexer_block_ids: Array,
        token_to_request: Array,
        query_positions: Array,
        *,
        qo_indptr: Array | None = None,
        sm_scale: float | Array | None = None,
        v_scale: float | Array | None = None,
        output_gate: Array | None = None,
        out: Array | None = None,
        lse: Array | None = None,
        return_lse: bool = False,
        workspace: Array | None = None,
        stream: Any = None,
        path: str | None = None,
        unchecked: bool = False,
        check_indices: bool = False,
    ) -> Any:
        """Computes live data within the planned capacity: groups and rows may be fewer, all else is as planned.

        Args:
            q: Packed [total_q, Hq, D] or fixed [B, Nq, G, Hq, D].
            paged_kv_cache: (k_cache, v_cache), each [num_pages, Hkv, page_size, D]; last dimension contiguous.
            block_table: [requests, max_pages] int32: token j of request b is in page block_table[b, j // page_size].
            indexer_block_ids: [total_q, block_topk] int32, or [total_q, Hkv, block_topk].
            token_to_request: [total_q] int32.
            query_positions: [total_q] int32 or int64, zero-based; negative for a padded row.
            qo_indptr: [groups + 1] int32, packed layout only: cuts the rows into groups, each within one request.
            sm_scale: Multiplies the logits; a number, or one float32 element on q's device that is read when the call
                executes. Default D**-0.5.
            v_scale: Multiplies the output; likewise. Default 1.
            output_gate: q's shape: the output is multiplied by its sigmoid.
            out: q's shape; allocated by q's array library when not given. Every row is written.
            lse: q's shape without D, float32.
            return_lse: Allocate and return lse.
            workspace: workspace_size bytes or more, of any dtype. Default: memory of the calling thread on the CPU, of
                q's array library on CUDA.
            stream: CUDA stream of the call. Default: the current one of q's array library.
            path: Forces a path, for tests.
            unchecked: Skips the checks of the arguments.
            check_indices: Debug: raises `kvsieve.IndexError` for index entries out of range, after the call.

        Returns:
            out, or (out, lse) when lse is given or asked for.

        Raises:
            kvsieve.ArgumentError: An argument is wrong; the message names it.
            kvsieve.UnsupportedError: No path of this build takes the call.
        """
        plan = self._planned()
        k_cache, v_cache = paged_kv_cache
        wanted_lse = return_lse if lse is None else lse
        wanted_out = True if out is None else out
        inputs = (q, k_cache, v_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr)
        scales = (sm_scale, v_scale, output_gate)
        if _hooks.is_compiling():
            from . import torch_ops

            sizes = (self._kv_block_size, self._seq_len_q, self._max_seq_len_kv, self._out_dtype)
            return _results(*torch_ops.qsa(inputs, sizes, scales, wanted_out, wanted_lse, self._num_threads))
        arguments = (*inputs, *scales, wanted_out, wanted_lse, workspace, stream, path, unchecked, check_indices)
        if _hooks.recorder is not None:
            sizes = (self._kv_block_size, self._seq_len_q, self._max_seq_len_kv, self._out_dtype)
            return _results(*_hooks.recorder.qsa(inputs, sizes, scales, lambda: plan.run(arguments), self._batch_size))
        return _results(*plan.run(arguments))

    def _planned(self) -> _core.QsaPlan:
        if self._plan is None:
            raise RuntimeError("QsaAttention: plan() comes before run()")
        return self._plan


def qsa_attention(
    q: Array,
    paged_kv_cache: tuple[Array, Array],
    block_table: Array,
    indexer_block_ids: Array,
    token_to_request: Array,
    query_positions: Array,
    *,
    kv_block_size: int,
    qo_indptr: Array | None = None,
    seq_len_q: int = 1,
    max_seq_len_kv: int | None = None,
    o_data_type: Any = None,
    sm_scale: float | Array | None = None,
    v_scale: float | Array | None = None,
    output_gate: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    workspace: Array | None = None,
    stream: Any = None,
    path: str | None = None,
    num_threads: int = 0,
    unchecked: bool = False,
    check_indices: bool = False,
) -> Any:
    """QSA attention in one call: the plan follows from the arguments. See `QsaAttention` for what they mean.

    Args:
        q: Packed [total_q, Hq, D] or fixed [B, Nq, G, Hq, D].
        paged_kv_cache: (k_cache, v_cache).
        block_table: [requests, max_pages] int32.
        indexer_block_ids: [total_q, block_topk] or [total_q, Hkv, block_topk] int32.
        token_to_request: [total_q] int32.
        query_positions: [total_q] int32 or int64.
        kv_block_size: Keys per block: 4, 8, 16, 32, 64 or 128.
        qo_indptr: [groups + 1] int32, packed layout only.
        seq_len_q: Rows per group of a packed q at most; read off a fixed q.
        max_seq_len_kv: Longest KV length that a row may see; default max_pages * page_size.
        o_data_type: dtype of the output, where q is float8_e4m3fn; default bfloat16.
        sm_scale: A number or one float32 element; default D**-0.5.
        v_scale: A number or one float32 element; default 1.
        output_gate: q's shape.
        out: q's shape.
        lse: q's shape without D, float32.
        return_lse: Allocate and return lse.
        workspace: Scratch memory.
        stream: CUDA stream of the call.
        path: Forces a path.
        num_threads: CPU threads, 0 for all cores.
        unchecked: Skips the checks of the arguments.
        check_indices: Debug: raises `kvsieve.IndexError` for index entries out of range.

    Returns:
        out, or (out, lse) when lse is given or asked for.
    """
    k_cache, v_cache = paged_kv_cache
    out_dtype = None if o_data_type is None else dtype_name(o_data_type, "o_data_type")
    wanted_lse = return_lse if lse is None else lse
    wanted_out = True if out is None else out
    inputs = (q, k_cache, v_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr)
    sizes = (kv_block_size, seq_len_q, max_seq_len_kv, out_dtype)
    scales = (sm_scale, v_scale, output_gate)
    if _hooks.is_compiling():
        from . import torch_ops

        return _results(*torch_ops.qsa(inputs, sizes, scales, wanted_out, wanted_lse, num_threads))
    # fmt: off
    arguments = (
        *inputs, *sizes, *scales, wanted_out, wanted_lse, workspace, stream, path, num_threads, unchecked,
        check_indices,
    )
    # fmt: on
    if _hooks.recorder is not None:
        return _results(*_hooks.recorder.qsa(inputs, sizes, scales, lambda: _core.qsa(arguments)))
    return _results(*_core.qsa(arguments))


def suggest_group_size(
    batch_size: int, rows_per_request: int, num_qo_heads: int, num_kv_heads: int, num_processors: int
) -> int:
    """Proposes the rows per group (G, 1 to 16) of a QSA plan.

    As many neighbouring rows as share a tile of 128 (row, head) pairs, but no more than leave every processor a group
    to work on.

    Args:
        batch_size: Requests.
        rows_per_request: Neighbouring query rows of a request.
        num_qo_heads: Hq.
        num_kv_heads: Hkv.
        num_processors: Streaming multiprocessors of the GPU, or CPU cores.

    Returns:
        G.
    """
    return _core.suggest_group_size(batch_size, rows_per_request, num_qo_heads, num_kv_heads, num_processors)
