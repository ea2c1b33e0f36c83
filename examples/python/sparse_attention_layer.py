# SPDX-License-Identifier: Apache-2.0
"""A small attention layer with a paged KV cache: prefill, then decode, over the blocks that a simple indexer selects.

    python examples/python/sparse_attention_layer.py

The check at the end compares it with dense attention, which it equals when every block is selected.
"""

from __future__ import annotations

import kvsieve
import torch
from torch import nn

BLOCK = 128


class SparseAttention(nn.Module):
    """Attention over the `topk` blocks whose mean key fits a query best, and always the newest one."""

    def __init__(self, width: int, heads: int, kv_heads: int, topk: int, pages: int, dim: int = 64) -> None:
        """Makes the projections, and a cache of `pages` pages of 128 tokens."""
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.topk = heads, kv_heads, dim, topk
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * dim, bias=False)
        self.project = nn.Linear(heads * dim, width, bias=False)
        # K and V of a token are one row of 2 * dim.
        self.register_buffer("cache", torch.zeros(pages, kv_heads, BLOCK, 2 * dim, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor, page_table: torch.Tensor, seen: int) -> torch.Tensor:
        """The next tokens x [rows, width] of one request, `seen` tokens of which are in the cache."""
        rows = len(x)
        q, k, v = self.qkv(x).split([h * self.dim for h in (self.heads, self.kv_heads, self.kv_heads)], dim=-1)
        q = q.view(rows, self.heads, self.dim)
        at = torch.arange(seen, seen + rows)
        kv = torch.cat([k.view(rows, self.kv_heads, self.dim), v.view(rows, self.kv_heads, self.dim)], dim=-1)
        self.cache[page_table[at // BLOCK].long(), :, at % BLOCK] = kv.to(self.cache.dtype)

        keys, values = self.cache[..., : self.dim], self.cache[..., self.dim :]
        out = kvsieve.msa_sparse_attention(
            q.to(self.cache.dtype),
            keys,
            values,
            self.select(q, keys, page_table, at),
            cu_seqlens_q=torch.tensor([0, rows], dtype=torch.int32),
            page_table=page_table.unsqueeze(0),
            seqused_k=torch.tensor([seen + rows], dtype=torch.int32),
        )
        return self.project(out.flatten(1).to(x.dtype))

    def select(self, q: torch.Tensor, keys: torch.Tensor, page_table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """[kv_heads, rows, topk] block ids, -1 where a row has fewer blocks."""
        newest = at // BLOCK
        blocks = int(newest[-1]) + 1
        means = keys[page_table[:blocks].long()].float().mean(dim=2)  # [blocks, kv_heads, dim]
        grouped = q.float().view(len(at), self.kv_heads, -1, self.dim).sum(dim=2)
        scores = torch.einsum("rhd,bhd->hrb", grouped, means)
        block = torch.arange(blocks)
        scores = scores.masked_fill(block > newest[:, None], -torch.inf)
        scores = scores.masked_fill(block == newest[:, None], torch.inf)
        best = scores.topk(min(self.topk, blocks), dim=-1)
        return best.indices.masked_fill(best.values == -torch.inf, -1).int()


def dense(layer: SparseAttention, x: torch.Tensor) -> torch.Tensor:
    """The layer over a whole request at once, with every key."""
    q, k, v = layer.qkv(x).split([h * layer.dim for h in (layer.heads, layer.kv_heads, layer.kv_heads)], dim=-1)
    q, k, v = (t.view(len(x), -1, layer.dim).transpose(0, 1).bfloat16().float() for t in (q, k, v))
    out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return layer.project(out.transpose(0, 1).flatten(1))


@torch.no_grad()
def main() -> None:
    """Prefill of 700 tokens, then 5 decode steps."""
    torch.manual_seed(0)
    x = torch.randn(705, 256)
    for topk in (6, 2):
        layer = SparseAttention(width=256, heads=8, kv_heads=2, topk=topk, pages=6)
        page_table = torch.randperm(6, dtype=torch.int32)
        parts = [layer(x[:700], page_table, 0)]
        parts += [layer(x[t : t + 1], page_table, t) for t in range(700, 705)]
        error = float((torch.cat(parts) - dense(layer, x)).norm() / dense(layer, x).norm())
        print(f"{topk} of 6 blocks: differs from dense attention by {error:.1e}")
        assert topk < 6 or error < 0.01


if __name__ == "__main__":
    main()
