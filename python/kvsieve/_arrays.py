# SPDX-License-Identifier: Apache-2.0
"""What the extension leaves to Python: array libraries that have no C functions for exchange, and dtype names."""

from __future__ import annotations

import sys
from typing import Any

from .errors import ArgumentTypeError

# kvsieve's names, and those that NumPy, ml_dtypes and torch use.
_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8_e4m3",
    "int32": "i32",
    "int64": "i64",
}
_PYTHON_NAMES = {short: name for name, short in _NAMES.items()}


def dtype_name(dtype: Any, argument: str = "dtype") -> str:
    """Kvsieve's name of a dtype given as a string or as an object of torch, NumPy, ml_dtypes or JAX."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    if name is None:
        name = str(dtype)
    name = str(name).removeprefix("torch.")
    if name in _PYTHON_NAMES:
        return name
    if name not in _NAMES:
        raise ArgumentTypeError(argument, repr(dtype), "float32, float16, bfloat16 or float8_e4m3fn")
    return _NAMES[name]


def device_name(device: Any) -> str:
    """`cpu`, `cuda` or `cuda:N` for a string or a torch device. A torch device without a number is the current one."""
    if isinstance(device, str):
        return device
    kind = getattr(device, "type", None)
    if not isinstance(kind, str):
        return str(device)
    index = getattr(device, "index", None)
    if kind == "cuda" and index is None:
        index = sys.modules["torch"].cuda.current_device()
    return kind if index is None or kind == "cpu" else f"{kind}:{index}"


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a name; ml_dtypes supplies what NumPy has not."""
    import numpy as np

    name = _PYTHON_NAMES.get(name, name)
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def _library(like: Any) -> str:
    """Which array library an object belongs to, subclasses included."""
    for base in type(like).__mro__:
        module = base.__module__.partition(".")[0]
        if module in ("torch", "numpy", "cupy", "jax", "jaxlib"):
            return str(module)
    return type(like).__module__.partition(".")[0]


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of the library and on the device of `like`."""
    library = _library(like)
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if library == "numpy":
        import numpy as np

        return np.empty(shape, numpy_dtype(dtype))
    if library == "cupy":
        import cupy

        with like.device:
            return cupy.empty(shape, numpy_dtype(dtype))
    if library in ("jax", "jaxlib") and next(iter(like.devices())).platform == "cpu":
        import numpy as np  # JAX's own arrays cannot be written

        return np.empty(shape, numpy_dtype(dtype))
    raise ArgumentTypeError("out", f"nothing, with arrays of {library}", "an array to write to")


def stream_handle(stream: Any, like: Any) -> int:
    """The cudaStream_t of a stream object; for None that of the current stream of `like`'s library."""
    if stream is None:
        library = _library(like)
        if library == "torch":
            import torch

            return int(torch.cuda.current_stream(like.device).cuda_stream)
        if library == "cupy":
            import cupy

            return int(cupy.cuda.get_current_stream().ptr)
        return 0
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise ArgumentTypeError("stream", str(type(stream)), "None, a number or a CUDA stream of torch or CuPy")
