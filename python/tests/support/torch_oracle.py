# SPDX-License-Identifier: Apache-2.0
"""What the calls mean, in PyTorch float32: dense attention under a mask. Large enough shapes for the models' own."""

from __future__ import annotations

from typing import Any

import torch


def _dense(q: Any, keys: Any, values: Any, mask: Any, scale: float) -> tuple[Any, Any]:
    """Of q [rows, Hq, D], keys and values [L, Hkv, D] and mask [Hkv, rows, L]: (out, lse)."""
    rows, heads, dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.float().view(rows, kv_heads, heads // kv_heads, dim)
    logits = scale * torch.einsum("rhgd,lhd->hgrl", grouped, keys.float())
    logits = logits.masked_fill(~mask[:, None], -torch.inf)
    lse = torch.logsumexp(logits, dim=-1)
    weights = torch.softmax(logits, dim=-1).nan_to_num(0.0)  # a row without keys
    out = torch.einsum("hgrl,lhd->rhgd", weights, values.float().masked_fill(~mask.any(1).T[..., None], 0.0))
    return out.reshape(q.shape), lse.permute(2, 0, 1).reshape(rows, heads)


def _mask_of_blocks(ids: Any, length: int, block: int) -> Any:
    """[..., blocks] ids, those out of range ignored, as [..., length] of keys."""
    blocks = -(-length // block)
    known = (ids >= 0) & (ids < blocks)
    chosen = torch.zeros((*ids.shape[:-1], blocks + 1), dtype=torch.bool, device=ids.device)
    chosen.scatter_(-1, torch.where(known, ids, blocks).long(), True)
    return chosen[..., :blocks].repeat_interleave(block, dim=-1)[..., :length]


def _tokens(cache: Any, pages: Any, length: int) -> Any:
    """[length, Hkv, D] of the pages of a request."""
    return cache[pages.long()].transpose(1, 2).flatten(0, 1)[:length]


def msa(
    q: Any, k: Any, v: Any, q2k_indices: Any, cu_seqlens_q: Any, page_table: Any, seqused_k: Any
) -> tuple[Any, Any]:
    """(out, lse) of a causal call with a paged cache."""
    out, lse = torch.zeros_like(q, dtype=torch.float32), torch.full(q.shape[:2], -torch.inf, device=q.device)
    starts = cu_seqlens_q.tolist()
    for request, length in enumerate(seqused_k.tolist()):
        rows = slice(starts[request], starts[request + 1])
        count = rows.stop - rows.start
        if length == 0 or count == 0:
            continue
        at = torch.arange(length - count, length, device=q.device)
        causal = torch.arange(length, device=q.device) <= at[:, None]
        mask = _mask_of_blocks(q2k_indices[:, rows], length, 128) & causal
        pages = page_table[request, : -(-length // k.shape[2])]
        keys, values = (_tokens(cache, pages, length) for cache in (k, v))
        out[rows], lse[rows] = _dense(q[rows], keys, values, mask, q.shape[-1] ** -0.5)
    return out, lse


def qsa(
    q: Any,
    paged_kv_cache: tuple[Any, Any],
    block_table: Any,
    indexer_block_ids: Any,
    token_to_request: Any,
    query_positions: Any,
    kv_block_size: int,
) -> tuple[Any, Any]:
    """(out, lse) of a packed call with shared patterns, whose rows are in the order of their requests."""
    k, v = paged_kv_cache
    out, lse = torch.zeros_like(q, dtype=torch.float32), torch.full(q.shape[:2], -torch.inf, device=q.device)
    for request in range(len(block_table)):
        rows = (token_to_request == request).nonzero().flatten()
        positions = query_positions[rows].long()
        length = int(positions.max()) + 1
        done = (positions + 1) // kv_block_size
        ids = indexer_block_ids[rows]
        counted = torch.arange(ids.shape[1], device=q.device) < done[:, None]
        key = torch.arange(length, device=q.device)
        tail = (key >= done[:, None] * kv_block_size) & (key <= positions[:, None])
        mask = _mask_of_blocks(torch.where(counted, ids, -1), length, kv_block_size) | tail
        pages = block_table[request, : -(-length // k.shape[2])]
        keys, values = (_tokens(cache, pages, length) for cache in (k, v))
        mask = mask.expand(k.shape[1], *mask.shape)
        out[rows], lse[rows] = _dense(q[rows], keys, values, mask, q.shape[-1] ** -0.5)
    return out, lse
