# SPDX-License-Identifier: Apache-2.0
"""Case files: calls as data, read, run and checked. docs/case-format.md describes the format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from . import _core
from ._arrays import numpy_dtype
from ._functions import msa_sparse_attention, msa_sparse_decode_attention
from ._qsa import qsa_attention


def _numpy(stored: tuple[Any, str]) -> Any:
    """A NumPy array of the right dtype over the integers that the extension hands out."""
    array, dtype = stored
    return array.view(numpy_dtype(dtype))


def _decoded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _numpy(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True)
class CaseResult:
    """What running a case gave.

    Attributes:
        out: The output, a NumPy array.
        lse: [.., Hq] float32.
        lse_t: Likewise, where the case asks for it.
        compared: Whether there was something to compare with.
        failure: One line that says what is wrong, empty when the result is right or nothing was compared.
        errors: The errors that the comparison found: "out.frobenius", "out.element", "lse", "lse_t".
    """

    out: Any
    lse: Any
    lse_t: Any
    compared: bool
    failure: str
    errors: dict[str, float]

    def __bool__(self) -> bool:
        """False when the result is wrong."""
        return not self.failure


class Case:
    """A case file in memory. Get one with `load_case`.

    Attributes:
        path: The file.
        op: "msa_prefill", "msa_decode" or "qsa".
        arguments: The call's tensors (NumPy arrays over the file's memory) and scalars by their names.
        expected: "out", "lse", "lse_t": float32 results to compare with, where the file holds them.
        ignored: Metadata keys and tensors of the file that mean nothing to this version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Loads a file. Raises CaseError."""
        self.path = os.fspath(path)
        self._case = _core.load_case(self.path)
        self.op = self._case.op
        self.ignored = tuple(self._case.ignored)

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments."""
        return _decoded(self._case.arguments)

    @property
    def expected(self) -> dict[str, Any]:
        """The expected results that the file holds."""
        return _decoded(self._case.expected)

    def run(
        self, device: str = "cpu", *, backend: str = "auto", num_threads: int = 0, check: bool = False
    ) -> CaseResult:
        """Runs the call, and compares where there are expected values.

        Args:
            device: "cpu", "cuda" or "cuda:N": the tensors are copied there.
            backend: Forces a path: "reference", "cpu", "cuda_portable", "cuda_sm90".
            num_threads: CPU threads, 0 for all cores.
            check: Without expected values, compares with the float64 reference.

        Returns:
            The results and how they compare. False in a condition when they are wrong.
        """
        run = self._case.run(device, backend, num_threads, check)
        results = _decoded(run.results)
        return CaseResult(
            out=results["out"],
            lse=results.get("lse"),
            lse_t=results.get("lse_t"),
            compared=run.compared,
            failure=run.failure,
            errors=run.errors,
        )

    def call(self, convert: Any = None, **overrides: Any) -> Any:
        """Makes the same call through the Python API.

        Args:
            convert: Applied to each tensor, to put it on a device or into another array library.
            **overrides: Arguments to add or replace, such as return_lse=True.

        Returns:
            What the call returns.
        """
        arguments = self.arguments
        if convert is not None:
            arguments = {n: convert(a) if hasattr(a, "__array_interface__") else a for n, a in arguments.items()}
        arguments.update(overrides)
        if self.op == "qsa":
            cache = (arguments.pop("k_cache"), arguments.pop("v_cache"))
            arguments["o_data_type"] = arguments.pop("out_dtype")
            return qsa_attention(arguments.pop("q"), cache, **arguments)
        function = msa_sparse_decode_attention if self.op == "msa_decode" else msa_sparse_attention
        return function(**arguments)


def load_case(path: str | os.PathLike[str]) -> Case:
    """Reads a case file.

    Args:
        path: The file.

    Returns:
        The case.

    Raises:
        kvsieve.CaseError: The file is no case file.
    """
    return Case(path)


def replay(
    path: str | os.PathLike[str],
    device: str = "cpu",
    *,
    backend: str = "auto",
    num_threads: int = 0,
    check: bool = False,
) -> CaseResult:
    """Runs a case file, as `kvsieve run` does.

    Args:
        path: The file.
        device: "cpu", "cuda" or "cuda:N".
        backend: Forces a path.
        num_threads: CPU threads, 0 for all cores.
        check: Without expected values in the file, compares with the float64 reference.

    Returns:
        The results and how they compare.
    """
    return Case(path).run(device, backend=backend, num_threads=num_threads, check=check)
