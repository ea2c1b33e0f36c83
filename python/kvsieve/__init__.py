# SPDX-License-Identifier: Apache-2.0
"""Attention over selected KV-cache blocks.

Tensors are those of torch, NumPy (with ml_dtypes for bfloat16 and float8_e4m3fn), CuPy, JAX or any other library that
speaks DLPack. They are never copied. None of these libraries is needed to import this one.
"""

from __future__ import annotations

import sys as _sys

from . import _capture, _core, _hooks
from ._functions import merge_states, msa_sparse_attention, msa_sparse_decode_attention, msa_workspace_size
from ._info import Info, PathInfo, info
from ._qsa import QsaAttention, qsa_attention, suggest_group_size
from .cases import Case, CaseResult, load_case, replay
from .errors import ArgumentError, ArgumentTypeError, CaseError, Error, IndexError, UnsupportedError

capture = _capture.capture

__version__ = _core.__version__

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Case",
    "CaseError",
    "CaseResult",
    "Error",
    "IndexError",
    "Info",
    "PathInfo",
    "QsaAttention",
    "UnsupportedError",
    "capture",
    "info",
    "load_case",
    "merge_states",
    "msa_sparse_attention",
    "msa_sparse_decode_attention",
    "msa_workspace_size",
    "qsa_attention",
    "replay",
    "suggest_group_size",
]

if "torch" in _sys.modules:
    _hooks.use_torch()
_capture.start_from_environment()
