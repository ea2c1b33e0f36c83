# SPDX-License-Identifier: Apache-2.0
"""What the calls mean, in NumPy, one row and head at a time. Written from the contract, not from the library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def _attend(
    q: Any, keys: Any, values: Any, scale: float, v_scale: float, temperature: float
) -> tuple[Any, float, float]:
    if len(keys) == 0:
        return np.zeros(q.shape, np.float32), -math.inf, -math.inf
    logits = scale * (keys @ q)
    top = logits.max()
    weights = np.exp(logits - top)
    total = weights.sum()
    lse_t = math.log(np.exp(temperature * (logits - top)).sum()) + temperature * top
    return v_scale * (weights / total) @ values, float(top + math.log(total)), float(lse_t)


def msa(
    q: Any,
    k: Any,
    v: Any,
    q2k_indices: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    q_offset: Any = None,
    seqlen_q: int = 1,
    causal: bool = True,
    softmax_scale: float | None = None,
    k_global_scale: float = 1.0,
    v_global_scale: float = 1.0,
    valid_prefix: bool = False,
    block_size: int = 128,
    lse_temperature_scale: float = 1.0,
) -> tuple[Any, Any, Any]:
    """(out, lse, lse_t) in float32."""
    total_q, heads, dim = q.shape
    kv_heads = k.shape[1]
    q32, k32, v32 = (np.asarray(t, np.float32) for t in (q, k, v))
    scale = (dim**-0.5 if softmax_scale is None else softmax_scale) * float(np.asarray(k_global_scale).item())
    v_scale = float(np.asarray(v_global_scale).item())
    out = np.zeros(q.shape, np.float32)
    lse = np.full((total_q, heads), -np.inf, np.float32)
    lse_t = lse.copy()
    requests = len(page_table) if page_table is not None else len(cu_seqlens_k) - 1
    if cu_seqlens_q is None:
        cu_seqlens_q = np.arange(requests + 1) * seqlen_q
    for b in range(requests):
        first, last = int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1])
        if page_table is not None:
            length, page = int(seqused_k[b]), k.shape[2]
            tokens = np.arange(length)
            where = (page_table[b][tokens // page], tokens % page)
        else:
            length = int(cu_seqlens_k[b + 1] - cu_seqlens_k[b])
            where = np.arange(length) + int(cu_seqlens_k[b])
        offset = length - (last - first) if q_offset is None else int(q_offset[b])
        for head in range(kv_heads):
            kh, vh = ((t[where[0], head, where[1]] if page_table is not None else t[where, head]) for t in (k32, v32))
            for row in range(first, last):
                position = offset + row - first
                limit = min(length, position + 1) if causal else length
                ids = [int(i) for i in q2k_indices[head, row]]
                if valid_prefix:
                    ids = ids[: max(0, -(-limit // block_size))]
                chosen = sorted({i for i in ids if 0 <= i * block_size < length})
                keys = [j for i in chosen for j in range(i * block_size, min((i + 1) * block_size, limit))]
                for h in range(head * heads // kv_heads, (head + 1) * heads // kv_heads):
                    result = _attend(q32[row, h], kh[keys], vh[keys], scale, v_scale, lse_temperature_scale)
                    out[row, h], lse[row, h], lse_t[row, h] = result
    return out, lse, lse_t


def qsa(
    q: Any,
    paged_kv_cache: tuple[Any, Any],
    block_table: Any,
    indexer_block_ids: Any,
    token_to_request: Any,
    query_positions: Any,
    *,
    kv_block_size: int,
    sm_scale: float | None = None,
    v_scale: float = 1.0,
    output_gate: Any = None,
) -> tuple[Any, Any]:
    """(out, lse) in float32; every row belongs to a group."""
    k32, v32 = (np.asarray(t, np.float32) for t in paged_kv_cache)
    shape = q.shape
    heads, dim = shape[-2:]
    rows = np.asarray(q, np.float32).reshape(-1, heads, dim)
    kv_heads, page = k32.shape[1], k32.shape[2]
    scale = dim**-0.5 if sm_scale is None else sm_scale
    out = np.zeros(rows.shape, np.float32)
    lse = np.full(rows.shape[:2], -np.inf, np.float32)
    for row in range(len(rows)):
        position, request = int(query_positions[row]), int(token_to_request[row])
        if position < 0:
            continue
        done = (position + 1) // kv_block_size
        for head in range(kv_heads):
            ids = indexer_block_ids[row] if indexer_block_ids.ndim == 2 else indexer_block_ids[row, head]
            tokens = [j for i in ids[:done] for j in range(int(i) * kv_block_size, (int(i) + 1) * kv_block_size)]
            tokens = np.array(tokens + list(range(done * kv_block_size, position + 1)), int)
            pages = block_table[request][tokens // page]
            keys, values = (t[pages, head, tokens % page] for t in (k32, v32))
            for h in range(head * heads // kv_heads, (head + 1) * heads // kv_heads):
                out[row, h], lse[row, h], _ = _attend(rows[row, h], keys, values, scale, v_scale, 1.0)
    out, lse = out.reshape(shape), lse.reshape(shape[:-1])
    if output_gate is not None:
        out = out / (1 + np.exp(-np.asarray(output_gate, np.float32)))
    return out, lse


def merge(outs: Any, lses: Any) -> tuple[Any, Any]:
    """(out, lse) in float64."""
    lse = np.logaddexp.reduce(np.asarray(lses, np.float64), axis=0)
    weights = np.exp(np.asarray(lses, np.float64) - np.where(np.isinf(lse), 0, lse))
    out = (weights[..., None] * np.where(weights[..., None] > 0, np.asarray(outs, np.float64), 0)).sum(0)
    return out, lse


def assert_close(got: Any, want: Any) -> None:
    """The bounds of docs/contracts.md on an output."""
    bound = 4e-3 if got.dtype.name == "bfloat16" else 1e-3
    got = np.asarray(got, np.float32)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    size = np.linalg.norm(want)
    assert np.linalg.norm(got - want) <= bound * size
    assert np.abs(got - want).max(initial=0) <= 0.01 * np.abs(want).max(initial=0)


def assert_lse_close(got: Any, want: Any) -> None:
    """The bounds of docs/contracts.md on a log-sum-exp."""
    assert np.array_equal(np.isneginf(got), np.isneginf(want))
    seen = ~np.isneginf(want)
    assert np.abs(got[seen] - want[seen]).max(initial=0) <= 2e-3
