# SPDX-License-Identifier: Apache-2.0
"""Call overhead of nanobind and of apache-tvm-ffi: a function of ten tensors and three scalars. Behind docs/python.md.

pip install nanobind apache-tvm-ffi numpy torch
python python/benchmarks/bindings/measure.py
"""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nanobind
import numpy as np
import torch
import tvm_ffi

HERE = Path(__file__).parent


def compile_library(output: Path, sources: list[Path], options: list[str]) -> None:
    """A shared library."""
    command = ["g++", "-O3", "-DNDEBUG", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-o", output]
    subprocess.run([*map(str, [*command, *sources]), *options], check=True)


def with_nanobind(folder: Path) -> Any:
    """The nanobind module."""
    root = Path(nanobind.include_dir()).parent
    include = [
        sysconfig.get_path("include"),
        root / "include",
        root / "ext/robin_map/include",
        HERE.parents[2] / "include",
    ]
    output = folder / "with_nanobind.so"
    sources = [HERE / "with_nanobind.cpp", root / "src/nb_combined.cpp"]
    compile_library(output, sources, [f"-I{path}" for path in include])
    spec = importlib.util.spec_from_file_location("with_nanobind", output)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_tvm_ffi(folder: Path) -> Any:
    """The function in tvm-ffi."""
    root = Path(tvm_ffi.__file__).parent
    options = [f"-I{root}/include", f"-L{root}/lib", "-ltvm_ffi", f"-Wl,-rpath,{root}/lib"]
    output = folder / "with_tvm_ffi.so"
    compile_library(output, [HERE / "with_tvm_ffi.cpp"], options)
    return tvm_ffi.load_module(str(output)).sum


def microseconds(function: Callable[..., Any], arguments: list[Any], calls: int = 400, rounds: int = 300) -> float:
    """The best mean of a round."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            function(*arguments)
        best = min(best, (time.perf_counter_ns() - begin) / calls)
    return best / 1000


def main() -> None:
    """One line for each library."""
    with tempfile.TemporaryDirectory() as name:
        ours, tvm = with_nanobind(Path(name)), with_tvm_ffi(Path(name))
        scalars = [1.0, True, 3]
        numpy = [np.zeros((4, 4), np.float32) for _ in range(10)] + scalars
        tensors = [torch.zeros(4, 4) for _ in range(10)] + scalars
        print(
            f"nanobind {nanobind.__version__}, tvm-ffi {tvm_ffi.__version__}, torch {torch.__version__}; microseconds"
        )
        print(
            f"NumPy: tvm-ffi {microseconds(tvm, numpy):.2f}, nanobind ndarray {microseconds(ours.ndarray, numpy):.2f}, "
            f"nanobind with buffers {microseconds(ours.buffer, numpy):.2f}"
        )
        print(
            f"torch: tvm-ffi {microseconds(tvm, tensors):.2f}, "
            f"nanobind ndarray {microseconds(ours.ndarray, tensors, 100):.2f}, "
            f"nanobind with exchange functions {microseconds(ours.exchange, tensors):.2f}"
        )


if __name__ == "__main__":
    main()
