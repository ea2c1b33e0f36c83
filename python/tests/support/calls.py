# SPDX-License-Identifier: Apache-2.0
"""Random calls as NumPy arrays, with NaN in every key that no row may see."""

from __future__ import annotations

from typing import Any

import numpy as np

from .libraries import BF16, FP8


def _cache(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    scale = 0.5 if dtype == FP8 else 1.0
    return (scale * rng.standard_normal(shape, np.float32)).astype(dtype)


def _poison_past_the_end(cache: Any, table: Any, lengths: Any) -> None:
    used = np.zeros((cache.shape[0], cache.shape[2]), bool)
    for b, length in enumerate(lengths):
        for j in range(length):
            used[table[b, j // cache.shape[2]], j % cache.shape[2]] = True
    for page, token in zip(*np.nonzero(~used), strict=True):
        cache[page, :, token] = np.nan


def msa(
    rng: np.random.Generator,
    *,
    rows: tuple[int, ...] = (5, 0, 3),
    lengths: tuple[int, ...] = (300, 0, 131),
    heads: int = 8,
    kv_heads: int = 2,
    dim: int = 64,
    topk: int = 2,
    q_dtype: Any = BF16,
    kv_dtype: Any = None,
    paged: bool = True,
) -> dict[str, Any]:
    """Arguments of msa_sparse_attention."""
    total, requests = sum(rows), len(rows)
    kv_dtype = q_dtype if kv_dtype is None else kv_dtype
    ids = np.full((kv_heads, total, topk), -1, np.int32)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    for head in range(kv_heads):
        for b in range(requests):
            for row in range(starts[b], starts[b + 1]):
                blocks = -(-lengths[b] // 128)
                chosen = rng.permutation(blocks)[:topk]
                ids[head, row, : len(chosen)] = chosen
    call = {
        "q": rng.standard_normal((total, heads, dim), np.float32).astype(q_dtype),
        "q2k_indices": ids,
        "cu_seqlens_q": starts,
    }
    if not paged:
        shape = (sum(lengths), kv_heads, dim)
        return call | {
            "k": _cache(rng, shape, kv_dtype),
            "v": _cache(rng, shape, kv_dtype),
            "cu_seqlens_k": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        }
    most = max(-(-length // 128) for length in lengths)
    pages = requests * most + 1
    table = rng.permutation(pages)[: requests * most].reshape(requests, most).astype(np.int32)
    k, v = (_cache(rng, (pages, kv_heads, 128, dim), kv_dtype) for _ in range(2))
    for cache in (k, v):
        _poison_past_the_end(cache, table, lengths)
    return call | {"k": k, "v": v, "page_table": table, "seqused_k": np.array(lengths, np.int32)}


def msa_decode(rng: np.random.Generator, *, seqlen_q: int = 1, **options: Any) -> dict[str, Any]:
    """Arguments of msa_sparse_decode_attention."""
    lengths = options.pop("lengths", (300, 0, 131))
    call = msa(rng, rows=(seqlen_q,) * len(lengths), lengths=lengths, **options)
    del call["cu_seqlens_q"]
    return call | {"seqlen_q": seqlen_q}


def qsa(
    rng: np.random.Generator,
    *,
    positions: tuple[tuple[int, ...], ...] = ((96, 97, 98), (40,), (-1,)),
    heads: int = 8,
    kv_heads: int = 2,
    dim: int = 64,
    block: int = 4,
    page: int = 16,
    topk: int = 6,
    q_dtype: Any = BF16,
    kv_dtype: Any = None,
    shared: bool = True,
    group: int = 2,
) -> dict[str, Any]:
    """Arguments of qsa_attention in the packed layout."""
    requests = len(positions)
    flat = [p for row in positions for p in row]
    lengths = [max(row) + 1 for row in positions]
    most = max(-(-length // page) for length in lengths)
    pages = requests * most + 1
    table = rng.permutation(pages)[: requests * most].reshape(requests, most).astype(np.int32)
    kv_dtype = q_dtype if kv_dtype is None else kv_dtype
    k, v = (_cache(rng, (pages, kv_heads, page, dim), kv_dtype) for _ in range(2))
    for cache in (k, v):
        _poison_past_the_end(cache, table, lengths)
    ids = rng.integers(-5, 10_000, (len(flat), kv_heads, topk)).astype(np.int32)  # garbage past the prefix
    for row, position in enumerate(flat):
        done = (position + 1) // block
        for head in range(kv_heads):
            chosen = rng.permutation(done)[:topk]
            ids[row, head, : len(chosen)] = chosen
    cuts = [0]
    for row in positions:
        while cuts[-1] < len(flat) and len(row) > 0:
            step = min(group, len(row))
            cuts.append(cuts[-1] + step)
            row = row[step:]
    return {
        "q": rng.standard_normal((len(flat), heads, dim), np.float32).astype(q_dtype),
        "paged_kv_cache": (k, v),
        "block_table": table,
        "indexer_block_ids": np.ascontiguousarray(ids[:, 0]) if shared else ids,
        "token_to_request": np.repeat(np.arange(requests), [len(row) for row in positions]).astype(np.int32),
        "query_positions": np.array(flat, np.int64),
        "qo_indptr": np.array(cuts, np.int32),
        "kv_block_size": block,
        "seq_len_q": group,
    }


def put(call: dict[str, Any], library: Any) -> dict[str, Any]:
    """The same call with the tensors of a library."""

    def one(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(one(part) for part in value)
        return library.put(value) if isinstance(value, np.ndarray) else value

    return {name: one(value) for name, value in call.items()}
