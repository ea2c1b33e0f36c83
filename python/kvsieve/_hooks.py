# SPDX-License-Identifier: Apache-2.0
"""What a call passes through on its way: torch.compile, and the recorder of `capture`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._capture import Recorder

#: Set while calls are captured.
recorder: Recorder | None = None


def _torch_not_seen() -> bool:
    if "torch" in sys.modules:
        use_torch()
        return is_compiling()
    return False


#: True while torch.compile traces the caller: then the calls are torch operators.
is_compiling: Callable[[], bool] = _torch_not_seen


def use_torch() -> None:
    """Registers the torch operators. Called when torch is there; torch itself is never imported first by kvsieve."""
    global is_compiling
    import torch

    from . import torch_ops  # noqa: F401  (registers on import)

    is_compiling = torch.compiler.is_compiling
