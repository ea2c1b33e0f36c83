# SPDX-License-Identifier: Apache-2.0
"""What kvsieve raises. Every class is an `Error`, and also the built-in exception that fits."""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """Base of everything that kvsieve raises. The message is one line."""


class ArgumentError(Error, ValueError):
    """An argument is wrong: shape, dtype, strides, device, a workspace too small, an output that overlaps an input.

    Raised before anything has been written.

    Attributes:
        argument: Its name, as the documentation spells it.
        got: What it was.
        want: What it should have been.
    """

    def __init__(self, argument: str, got: str, want: str) -> None:
        super().__init__(f"{argument}: got {got}, want {want}")
        self.argument = argument
        self.got = got
        self.want = want

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, str, str]]:
        return type(self), (self.argument, self.got, self.want)


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is not of a type that the call takes, such as a list for a tensor."""


class UnsupportedError(Error, NotImplementedError):
    """The call is well formed, but this build has no path for it: a CUDA tensor without the CUDA backend, say."""


class IndexError(Error, builtins.IndexError):
    """Only with `check_indices=True`: index entries were out of range. They were skipped, and the outputs are written.

    Attributes:
        bad_entries: How many.
    """

    def __init__(self, message: str, bad_entries: int) -> None:
        super().__init__(message)
        self.bad_entries = bad_entries

    def __reduce__(self) -> tuple[type[IndexError], tuple[str, int]]:
        return type(self), (str(self), self.bad_entries)


class CaseError(Error, ValueError):
    """Something is wrong with a case file.

    Attributes:
        file: Its path.
        tensor: The tensor at fault, empty when it is not in one.
        reason: What is wrong.
    """

    def __init__(self, file: str, tensor: str, reason: str) -> None:
        super().__init__(f'{file}: tensor "{tensor}": {reason}' if tensor else f"{file}: {reason}")
        self.file = file
        self.tensor = tensor
        self.reason = reason

    def __reduce__(self) -> tuple[type[CaseError], tuple[str, str, str]]:
        return type(self), (self.file, self.tensor, self.reason)
