# SPDX-License-Identifier: Apache-2.0
"""Array libraries behind one interface: the tests make NumPy arrays and move them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import kvsieve
import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)


@dataclass(frozen=True)
class Library:
    """One library on one device.

    Attributes:
        name: For test ids.
        device: kvsieve's name of the device.
        put: A NumPy array as one of this library.
        get: The way back.
        kind: The type that new arrays have.
    """

    name: str
    device: str
    put: Callable[[Any], Any]
    get: Callable[[Any], Any]
    kind: type


def _numpy() -> Library:
    return Library("numpy", "cpu", lambda array: array, lambda array: array, np.ndarray)


def _torch(device: str) -> Library:
    import torch

    dtypes = {BF16: torch.bfloat16, FP8: torch.float8_e4m3fn}
    names = {dtype: name for name, dtype in dtypes.items()}

    def put(array: Any) -> Any:
        if array.dtype not in dtypes:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)
        integers = np.uint16 if array.dtype == BF16 else np.uint8
        return torch.from_numpy(np.ascontiguousarray(array).view(integers)).view(dtypes[array.dtype]).to(device)

    def get(tensor: Any) -> Any:
        tensor = tensor.detach().cpu()
        if tensor.dtype not in names:
            return tensor.numpy()
        integers = torch.uint16 if tensor.dtype == torch.bfloat16 else torch.uint8
        return tensor.view(integers).numpy().view(names[tensor.dtype])

    return Library(f"torch-{device}", device, put, get, torch.Tensor)


def _jax() -> Library:
    import jax.numpy as jnp

    return Library("jax", "cpu", jnp.asarray, np.asarray, np.ndarray)


@cache
def available() -> tuple[Library, ...]:
    """Every library that is installed, on every device that this build of kvsieve can use."""
    found = [_numpy()]
    try:
        import torch
    except ImportError:
        pass
    else:
        found.append(_torch("cpu"))
        usable = any(path.name.startswith("cuda") and path.available for path in kvsieve.info().paths)
        if usable and torch.cuda.is_available():
            found.append(_torch("cuda"))
    return tuple(found)


@cache
def torch_devices() -> tuple[str, ...]:
    """The devices of torch among them."""
    return tuple(library.device for library in available() if library.name.startswith("torch"))
