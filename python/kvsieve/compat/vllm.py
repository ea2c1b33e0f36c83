# SPDX-License-Identifier: Apache-2.0
"""What vLLM's MiniMax-M3 layer calls, with kvsieve underneath.

    from kvsieve.compat import vllm
    vllm.install()      # before the model is loaded

The functions write into `output`, read nothing back from the device, and may be captured in CUDA graphs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .._functions import msa_sparse_attention, msa_sparse_decode_attention

__all__ = ["install", "minimax_m3_sparse_attn", "minimax_m3_sparse_attn_decode", "uninstall"]

_BLOCK = 128


def _split(kv_cache: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of [num_blocks, Hkv, 128, 2 D], as views."""
    dim = q.shape[-1]
    if kv_cache.ndim != 4 or kv_cache.shape[2] != _BLOCK or kv_cache.shape[3] != 2 * dim:
        raise ValueError(f"kv_cache: got {tuple(kv_cache.shape)}, want [num_blocks, Hkv, {_BLOCK}, {2 * dim}]")
    if kv_cache.dtype == torch.uint8:  # how vLLM keeps FP8 caches
        kv_cache = kv_cache.view(torch.float8_e4m3fn)
    return kv_cache[..., :dim], kv_cache[..., dim:]


def _check_heads(kv_cache: torch.Tensor, num_kv_heads: int) -> None:
    if kv_cache.shape[1] != num_kv_heads:
        raise ValueError(
            f"num_kv_heads: got {num_kv_heads}, want {kv_cache.shape[1]}, the second dimension of kv_cache"
        )


def _scale(scale: torch.Tensor | float | None) -> torch.Tensor | float:
    """A one-element tensor is read on the device when the call executes."""
    if scale is None:
        return 1.0
    if isinstance(scale, torch.Tensor) and scale.dtype != torch.float32:
        return scale.float()
    return scale


def minimax_m3_sparse_attn(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    topk_idx: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    prefix_lens: torch.Tensor,
    max_query_len: int,
    num_kv_heads: int,
    sm_scale: float,
    output: torch.Tensor,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
) -> None:
    """Sparse attention of prefill rows.

    Args:
        q: [total_q, Hq, D].
        kv_cache: [num_blocks, Hkv, 128, 2 D]: K, then V, in the last dimension. bfloat16, float16, float8_e4m3fn, or
            uint8 that holds float8_e4m3fn.
        topk_idx: [Hkv, total_q, topk] int32; only the first min(topk, visible blocks) entries of a row have meaning.
        block_table: [B, max_blocks] int32.
        cu_seqlens_q: [B+1] int32.
        seq_lens: [B] int32: KV lengths.
        prefix_lens: [B] int32: position of a request's first row.
        max_query_len: Not needed here.
        num_kv_heads: Hkv.
        sm_scale: Multiplies the logits.
        output: [total_q, Hq, D], written.
        k_scale: Dequantisation of K: a tensor of one element, read on the device, or a number.
        v_scale: Dequantisation of V; likewise.
    """
    del max_query_len
    k, v = _split(kv_cache, q)
    _check_heads(kv_cache, num_kv_heads)
    msa_sparse_attention(
        q,
        k,
        v,
        topk_idx[:, : q.shape[0]],
        cu_seqlens_q,
        page_table=block_table,
        seqused_k=seq_lens,
        q_offset=prefix_lens,
        softmax_scale=sm_scale,
        k_global_scale=_scale(k_scale),
        v_global_scale=_scale(v_scale),
        valid_prefix=True,
        out=output,
    )


def minimax_m3_sparse_attn_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    topk_idx: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    num_kv_heads: int,
    sm_scale: float,
    output: torch.Tensor,
    decode_query_len: int,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    query_start_loc: torch.Tensor | None = None,
    token_to_req_indices: torch.Tensor | None = None,
) -> None:
    """Sparse attention of decode rows.

    They are the last decode_query_len rows of each request or, with query_start_loc, its own number of rows.

    Args:
        q: [total_q, Hq, D].
        kv_cache: As for prefill.
        topk_idx: [Hkv, total_q, topk] int32.
        block_table: [B, max_blocks] int32.
        seq_lens: [B] int32; 0 for padded requests.
        num_kv_heads: Hkv.
        sm_scale: Multiplies the logits.
        output: [total_q, Hq, D], written.
        decode_query_len: Rows per request; without meaning when query_start_loc is given.
        k_scale: As for prefill.
        v_scale: As for prefill.
        query_start_loc: [B+1] int32: request b owns rows query_start_loc[b] to query_start_loc[b+1].
        token_to_req_indices: The same by row; query_start_loc says it.
    """
    k, v = _split(kv_cache, q)
    _check_heads(kv_cache, num_kv_heads)
    rows = q.shape[0]
    options: dict[str, Any] = {
        "page_table": block_table,
        "seqused_k": seq_lens,
        "softmax_scale": sm_scale,
        "k_global_scale": _scale(k_scale),
        "v_global_scale": _scale(v_scale),
        "valid_prefix": True,
        "out": output,
    }
    ids = topk_idx[:, :rows]
    if query_start_loc is not None:
        msa_sparse_attention(q, k, v, ids, query_start_loc, **options)
        return
    if token_to_req_indices is not None:
        raise NotImplementedError("token_to_req_indices: rows of varying number need query_start_loc as well")
    msa_sparse_decode_attention(q, k, v, ids, seqlen_q=decode_query_len, **options)


_FUNCTIONS: dict[str, Callable[..., None]] = {
    "minimax_m3_sparse_attn": minimax_m3_sparse_attn,
    "minimax_m3_sparse_attn_decode": minimax_m3_sparse_attn_decode,
}
#: Where vLLM defines and uses them.
_PACKAGE = "vllm.models.minimax_m3.common"
_MODULES = (f"{_PACKAGE}.ops.sparse_attn", f"{_PACKAGE}.ops", f"{_PACKAGE}.sparse_attention")
#: What install() replaced: (module, name) and the function that was there.
_replaced: dict[tuple[ModuleType, str], Any] = {}


def _takes_the_arguments_of(ours: Callable[..., None], theirs: Any) -> bool:
    return set(inspect.signature(theirs).parameters) <= set(inspect.signature(ours).parameters)


def install() -> list[str]:
    """Puts these functions in the place of vLLM's, wherever its modules hold them. Call it before a model is loaded.

    Returns:
        The names that were replaced, such as "vllm.models.minimax_m3.common.ops.sparse_attn.minimax_m3_sparse_attn".

    Raises:
        ImportError: vLLM cannot be imported, or has no such functions, or they take other arguments.
    """
    importlib.import_module("vllm")
    for name in _MODULES:
        with contextlib.suppress(ImportError):  # other versions have other modules
            importlib.import_module(name)
    names = []
    for module in [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]:
        for name, function in _FUNCTIONS.items():
            present = vars(module).get(name)
            if present is None or present is function:
                continue
            if not _takes_the_arguments_of(function, present):
                raise ImportError(
                    f"{module.__name__}.{name} of this vLLM takes other arguments: {inspect.signature(present)}"
                )
            _replaced[module, name] = present
            setattr(module, name, function)
            names.append(f"{module.__name__}.{name}")
    if not names and not _replaced:
        raise ImportError("this vLLM has no minimax_m3_sparse_attn to replace")
    return sorted(names)


def uninstall() -> None:
    """Puts vLLM's own functions back."""
    for (module, name), function in _replaced.items():
        setattr(module, name, function)
    _replaced.clear()
