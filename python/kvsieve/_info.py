# SPDX-License-Identifier: Apache-2.0
"""What this build and this machine offer."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core


@dataclass(frozen=True)
class PathInfo:
    """One implementation, whether it can run here, and what it uses or why it cannot."""

    name: str
    available: bool
    detail: str


@dataclass(frozen=True)
class Info:
    """Version, processors and paths.

    Attributes:
        version: Of the library.
        simd_target: SIMD target that the CPU path uses.
        bf16_dot: Whether it uses BF16 dot-product instructions.
        num_threads: CPU threads.
        devices: One line for each device.
        paths: Each path.
    """

    version: str
    simd_target: str
    bf16_dot: bool
    num_threads: int
    devices: tuple[str, ...]
    paths: tuple[PathInfo, ...]

    def __str__(self) -> str:
        """The lines of `kvsieve info`."""
        lines = [f"kvsieve {self.version}", *(f"device {device}" for device in self.devices)]
        lines += [f"path {p.name}: {'yes' if p.available else 'no'}, {p.detail}" for p in self.paths]
        return "\n".join(lines)


def info() -> Info:
    """What this build and this machine offer."""
    found = _core.info()
    return Info(
        version=found["version"],
        simd_target=found["simd_target"],
        bf16_dot=found["bf16_dot"],
        num_threads=found["num_threads"],
        devices=tuple(found["devices"]),
        paths=tuple(PathInfo(*path) for path in found["paths"]),
    )
