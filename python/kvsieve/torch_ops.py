# SPDX-License-Identifier: Apache-2.0
"""The calls as torch operators, `torch.ops.kvsieve.*`: what torch.compile puts into its graphs.

Outside of torch.compile the functions of the package do not come here, since the dispatcher costs more than the call.
Each operator has a form that returns new tensors and one, `..._out`, that writes given ones. An output that is not
asked for is an empty tensor. There are no gradients: this is inference.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _core

_TORCH_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}

_MSA_INPUTS = (
    "bool decode, Tensor q, Tensor k, Tensor v, Tensor q2k_indices, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? page_table, Tensor? seqused_k, Tensor? q_offset, int seqlen_q, bool causal, float? softmax_scale, "
    "float k_global_scale, Tensor? k_global_scale_tensor, float v_global_scale, Tensor? v_global_scale_tensor, "
    "bool valid_prefix, int block_size, float lse_temperature_scale, int num_threads"
)
_QSA_INPUTS = (
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor indexer_block_ids, Tensor token_to_request, "
    "Tensor query_positions, Tensor? qo_indptr, int kv_block_size, int seq_len_q, int? max_seq_len_kv, str out_dtype, "
    "float? sm_scale, Tensor? sm_scale_tensor, float v_scale, Tensor? v_scale_tensor, Tensor? output_gate, "
    "int num_threads"
)

_library = torch.library.Library("kvsieve", "DEF")
_library.define(f"msa({_MSA_INPUTS}, bool return_lse, bool return_lse_t) -> (Tensor, Tensor, Tensor)")
_library.define(f"msa_out({_MSA_INPUTS}, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? lse_t) -> ()")
_library.define(f"qsa({_QSA_INPUTS}, bool return_lse) -> (Tensor, Tensor)")
_library.define(f"qsa_out({_QSA_INPUTS}, Tensor(a!) out, Tensor(b!)? lse) -> ()")
_library.define("merge(Tensor outs, Tensor lses, str out_dtype, bool return_lse) -> (Tensor, Tensor)")
_library.define("merge_out(Tensor outs, Tensor lses, Tensor(a!) out, Tensor(b!)? lse) -> ()")


def _or_empty(like: torch.Tensor, tensor: torch.Tensor | None) -> torch.Tensor:
    """Operators return tensors: an empty one stands for what was not asked for."""
    return like.new_empty(0, dtype=torch.float32) if tensor is None else tensor


# ---- MSA -------------------------------------------------------------------------------------------------------------


def _run_msa(inputs: tuple[Any, ...], out: Any, lse: Any, lse_t: Any) -> tuple[Any, Any, Any]:
    # fmt: off
    (decode, q, k, v, ids, cu_q, cu_k, table, used, offset, seqlen_q, causal, softmax_scale, k_scale, k_scale_tensor,
     v_scale, v_scale_tensor, valid_prefix, block_size, temperature, num_threads) = inputs
    return _core.msa((
        decode, q, k, v, ids, cu_q, cu_k, table, used, offset, seqlen_q, causal, softmax_scale,
        k_scale if k_scale_tensor is None else k_scale_tensor, v_scale if v_scale_tensor is None else v_scale_tensor,
        valid_prefix, block_size, out, lse, lse_t, temperature, None, None, None, num_threads, False, False,
    ))
    # fmt: on


def _msa(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *inputs, return_lse, return_lse_t = arguments
    out, lse, lse_t = _run_msa(tuple(inputs), True, return_lse, return_lse_t)
    return out, _or_empty(out, lse), _or_empty(out, lse_t)


def _msa_out(*arguments: Any) -> None:
    *inputs, out, lse, lse_t = arguments
    _run_msa(tuple(inputs), out, lse, lse_t)


def _msa_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, (return_lse, return_lse_t) = arguments[1], arguments[-2:]
    rows = q.shape[:2]
    lse = q.new_empty(rows if return_lse else 0, dtype=torch.float32)
    lse_t = q.new_empty(rows if return_lse_t else 0, dtype=torch.float32)
    return q.new_empty(q.shape), lse, lse_t


# ---- QSA -------------------------------------------------------------------------------------------------------------


def _run_qsa(inputs: tuple[Any, ...], out: Any, lse: Any) -> tuple[Any, Any]:
    *tensors_and_sizes, sm_scale, sm_scale_tensor, v_scale, v_scale_tensor, gate, num_threads = inputs
    # fmt: off
    return _core.qsa((
        *tensors_and_sizes, sm_scale if sm_scale_tensor is None else sm_scale_tensor,
        v_scale if v_scale_tensor is None else v_scale_tensor, gate, out, lse, None, None, None, num_threads, False,
        False,
    ))
    # fmt: on


def _qsa(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *inputs, return_lse = arguments
    out, lse = _run_qsa(tuple(inputs), True, return_lse)
    return out, _or_empty(out, lse)


def _qsa_out(*arguments: Any) -> None:
    *inputs, out, lse = arguments
    _run_qsa(tuple(inputs), out, lse)


def _qsa_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, out_dtype, return_lse = arguments[0], arguments[11], arguments[-1]
    lse = q.new_empty(q.shape[:-1] if return_lse else 0, dtype=torch.float32)
    return q.new_empty(q.shape, dtype=_TORCH_DTYPES[out_dtype]), lse


# ---- Merge -----------------------------------------------------------------------------------------------------------


def _merge(outs: Any, lses: Any, out_dtype: str, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _core.merge((outs, lses, True, return_lse, out_dtype, None, None, 0, False))
    return out, _or_empty(out, lse)


def _merge_out(outs: Any, lses: Any, out: Any, lse: Any) -> None:
    _core.merge((outs, lses, out, lse, None, None, None, 0, False))


def _merge_fake(outs: Any, lses: Any, out_dtype: str, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    lse = lses.new_empty(lses.shape[1:] if return_lse else 0)
    return outs.new_empty(outs.shape[1:], dtype=_TORCH_DTYPES[out_dtype]), lse


def _nothing(*arguments: Any) -> None:
    """Shape function of the operators that write given tensors."""


_IMPLEMENTATIONS = {
    "msa": (_msa, _msa_fake),
    "msa_out": (_msa_out, _nothing),
    "qsa": (_qsa, _qsa_fake),
    "qsa_out": (_qsa_out, _nothing),
    "merge": (_merge, _merge_fake),
    "merge_out": (_merge_out, _nothing),
}
for _name, (_function, _shapes) in _IMPLEMENTATIONS.items():
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"kvsieve::{_name}", _shapes, lib=_library)


# ---- What the functions of the package call while they are traced ----------------------------------------------------


def _number_and_tensor(scale: Any, default: float | None) -> tuple[float | None, torch.Tensor | None]:
    if isinstance(scale, torch.Tensor):
        return (1.0 if default is None else default), scale
    return (default if scale is None else scale), None


def _asked_for(wanted: Any, new: torch.Tensor) -> torch.Tensor | None:
    return None if wanted is False or wanted is None else new


def _given(wanted: Any) -> bool:
    return isinstance(wanted, torch.Tensor)


def _filled(wanted: Any, like: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """The given output, a new one, or none."""
    if _given(wanted):
        given: torch.Tensor = wanted
        return given
    return like.new_empty(shape, dtype=dtype) if wanted is True else None


def msa(arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The arguments of _core.msa as an operator."""
    # fmt: off
    (decode, q, k, v, ids, cu_q, cu_k, table, used, offset, seqlen_q, causal, softmax_scale, k_scale, v_scale,
     valid_prefix, block_size, out, lse, lse_t, temperature, _workspace, _stream, _path, num_threads, _unchecked,
     _check_indices) = arguments
    inputs = (
        decode, q, k, v, ids, cu_q, cu_k, table, used, offset, seqlen_q, causal, softmax_scale,
        *_number_and_tensor(k_scale, 1.0), *_number_and_tensor(v_scale, 1.0), valid_prefix, block_size, temperature,
        num_threads,
    )
    # fmt: on
    if _given(out) or _given(lse) or _given(lse_t):
        out = _filled(out, q, q.shape, q.dtype)
        lse = _filled(lse, q, q.shape[:2], torch.float32)
        lse_t = _filled(lse_t, q, q.shape[:2], torch.float32)
        torch.ops.kvsieve.msa_out(*inputs, out, lse, lse_t)
        return out, lse, lse_t
    new_out, new_lse, new_lse_t = torch.ops.kvsieve.msa(*inputs, bool(lse), bool(lse_t))
    return new_out, _asked_for(lse, new_lse), _asked_for(lse_t, new_lse_t)


def qsa(
    tensors: tuple[Any, ...], sizes: tuple[Any, ...], scales: tuple[Any, ...], out: Any, lse: Any, num_threads: int
) -> tuple[Any, Any]:
    """A QSA call as an operator."""
    q = tensors[0]
    kv_block_size, seq_len_q, max_seq_len_kv, out_dtype = sizes
    sm_scale, v_scale, gate = scales
    if out_dtype is None:
        dtype = out.dtype if _given(out) else torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
        out_dtype = _NAMES[dtype]
    # fmt: off
    inputs = (
        *tensors, kv_block_size, seq_len_q, max_seq_len_kv, out_dtype, *_number_and_tensor(sm_scale, None),
        *_number_and_tensor(v_scale, 1.0), gate, num_threads,
    )
    # fmt: on
    if _given(out) or _given(lse):
        out = _filled(out, q, q.shape, _TORCH_DTYPES[out_dtype])
        lse = _filled(lse, q, q.shape[:-1], torch.float32)
        torch.ops.kvsieve.qsa_out(*inputs, out, lse)
        return out, lse
    new_out, new_lse = torch.ops.kvsieve.qsa(*inputs, bool(lse))
    return new_out, _asked_for(lse, new_lse)


def merge(outs: Any, lses: Any, out: Any, lse: Any, out_dtype: str | None) -> tuple[Any, Any]:
    """merge_states as an operator."""
    if _given(out) or _given(lse):
        out = _filled(out, outs, outs.shape[1:], _TORCH_DTYPES[out_dtype] if out_dtype else outs.dtype)
        lse = _filled(lse, lses, lses.shape[1:], torch.float32)
        torch.ops.kvsieve.merge_out(outs, lses, out, lse)
        return out, lse
    new_out, new_lse = torch.ops.kvsieve.merge(outs, lses, out_dtype or _NAMES[outs.dtype], bool(lse))
    return new_out, _asked_for(lse, new_lse)
