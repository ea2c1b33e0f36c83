# SPDX-License-Identifier: Apache-2.0
"""Decode with the KV cache of each request sharded over ranks, and with the heads sharded over ranks.

    torchrun --nproc-per-node 2 examples/python/context_parallel_decode.py            # gloo, CPU
    torchrun --nproc-per-node 2 examples/python/context_parallel_decode.py --cuda     # NCCL, one GPU a rank

Both are checked against the result of a single device.
"""

from __future__ import annotations

import argparse

import kvsieve
import torch
import torch.distributed as dist

BLOCK = 128  # keys per block, and tokens per page


def _all_gather(tensor: torch.Tensor) -> torch.Tensor:
    """[ranks, *tensor.shape]."""
    world = dist.get_world_size()
    gathered = tensor.new_empty((world * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(gathered, tensor)
    return gathered.view(world, *tensor.shape)


def context_parallel_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q2k_indices: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    blocks_per_rank: int,
    seqlen_q: int = 1,
) -> torch.Tensor:
    """MSA decode where rank r holds blocks r * blocks_per_rank and following of every request.

    Args:
        q: [B * seqlen_q, Hq, D], the same on every rank.
        k: [num_pages, Hkv, 128, D], this rank's pages.
        v: As k.
        q2k_indices: [Hkv, B * seqlen_q, topk] int32, the ids of the whole request.
        page_table: [B, blocks_per_rank] int32: this rank's page of each of its blocks.
        lengths: [B] int32, KV lengths of the whole requests.
        blocks_per_rank: Blocks of a request that a rank has room for.
        seqlen_q: Query rows per request.

    Returns:
        [B * seqlen_q, Hq, D], the attention over all shards, on every rank.
    """
    first_block = dist.get_rank() * blocks_per_rank
    first_token = first_block * BLOCK
    # Everything shifts by the shard's beginning: ids, lengths, and the rows' positions, which causality compares with
    # keys. Ids of other shards become -1, which is skipped.
    ids = q2k_indices - first_block
    ids = torch.where((ids >= 0) & (ids < blocks_per_rank), ids, -1)
    out, lse = kvsieve.msa_sparse_decode_attention(
        q,
        k,
        v,
        ids,
        page_table=page_table,
        seqused_k=(lengths - first_token).clamp(0, blocks_per_rank * BLOCK),
        q_offset=lengths - seqlen_q - first_token,
        seqlen_q=seqlen_q,
        return_lse=True,
    )
    # One all-gather: the bytes of a row's output and of its lse, side by side. merge_states reads them where they are.
    state = torch.cat([out.view(torch.uint8), lse.unsqueeze(-1).view(torch.uint8)], dim=-1)
    states = _all_gather(state)
    out_bytes = out.shape[-1] * out.element_size()
    outs = states[..., :out_bytes].view(out.dtype)
    lses = states[..., out_bytes:].view(torch.float32).squeeze(-1)
    merged: torch.Tensor = kvsieve.merge_states(outs, lses, return_lse=False)
    return merged


def tensor_parallel_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q2k_indices: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """MSA decode where each rank computes its KV heads and their query heads, given the tensors of all heads.

    Returns:
        [B, Hq, D] on every rank. (A model keeps the heads apart, and sums after its output projection instead.)
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    kv_heads = slice(k.shape[1] * rank // world, k.shape[1] * (rank + 1) // world)
    heads = slice(q.shape[1] * rank // world, q.shape[1] * (rank + 1) // world)
    out = kvsieve.msa_sparse_decode_attention(
        q[:, heads], k[:, kv_heads], v[:, kv_heads], q2k_indices[kv_heads], page_table=page_table, seqused_k=lengths
    )
    return _all_gather(out).transpose(0, 1).reshape(q.shape)


def random_step(device: torch.device, seqlen_q: int) -> dict[str, torch.Tensor]:
    """A decode step of three requests of other lengths, the last without keys in the second shard."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.tensor([8 * BLOCK, 5 * BLOCK + 77, 2 * BLOCK + 1], dtype=torch.int32)
    batch, blocks, topk, heads, kv_heads, dim = 3, 8, 4, 16, 2, 128
    rows = batch * seqlen_q
    ids = torch.full((kv_heads, rows, topk), -1, dtype=torch.int32)
    for head in range(kv_heads):
        for row in range(rows):
            visible = -(-int(lengths[row // seqlen_q]) // BLOCK)
            chosen = torch.randperm(visible, generator=generator)[:topk]
            ids[head, row, : len(chosen)] = chosen.int()
    cache = torch.randn((batch * blocks, kv_heads, BLOCK, 2 * dim), generator=generator).bfloat16()
    step = {
        "q": torch.randn((rows, heads, dim), generator=generator).bfloat16(),
        "k": cache[..., :dim],
        "v": cache[..., dim:],
        "q2k_indices": ids,
        "page_table": torch.randperm(batch * blocks, generator=generator).int().view(batch, blocks),
        "lengths": lengths,
    }
    return {name: tensor.to(device) for name, tensor in step.items()}


def largest_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative to the largest element."""
    return float((got.float() - want.float()).abs().max() / want.float().abs().max())


def main() -> None:
    """Runs both, and compares with one device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("nccl" if arguments.cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if arguments.cuda else torch.device("cpu")
    if arguments.cuda:
        torch.cuda.set_device(device)

    for seqlen_q in (1, 3):
        step = random_step(device, seqlen_q)
        lengths = step.pop("lengths")
        table = step.pop("page_table")
        want = kvsieve.msa_sparse_decode_attention(**step, page_table=table, seqused_k=lengths, seqlen_q=seqlen_q)

        blocks_per_rank = -(-table.shape[1] // world)
        mine = table[:, rank * blocks_per_rank : (rank + 1) * blocks_per_rank]
        # This rank's cache has its own pages alone, in the order of its own page table.
        shard = {name: step[name][mine.flatten().long()] for name in ("k", "v")}
        own_table = torch.arange(mine.numel(), dtype=torch.int32, device=device).view(mine.shape)
        got = context_parallel_decode(
            step["q"],
            shard["k"],
            shard["v"],
            step["q2k_indices"],
            own_table,
            lengths,
            blocks_per_rank,
            seqlen_q,
        )
        error = largest_error(got, want)
        assert error < 0.01, error
        if rank == 0:
            print(f"context parallel, {world} ranks, {seqlen_q} rows a request: largest error {error:.1e}")

    step = random_step(device, 1)
    lengths, table = step.pop("lengths"), step.pop("page_table")
    want = kvsieve.msa_sparse_decode_attention(**step, page_table=table, seqused_k=lengths)
    error = largest_error(tensor_parallel_decode(**step, page_table=table, lengths=lengths), want)
    assert error < 0.01, error
    if rank == 0:
        print(f"tensor parallel, {world} ranks: largest error {error:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
