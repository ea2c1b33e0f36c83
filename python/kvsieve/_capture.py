# SPDX-License-Identifier: Apache-2.0
"""Capture: every call as a case file, which `kvsieve run` and `kvsieve.replay` run anywhere.

    with kvsieve.capture("calls", limit=10):
        model(...)

or, without touching the program, KVSIEVE_CAPTURE=calls (and KVSIEVE_CAPTURE_LIMIT=10) in its environment.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import _core, _hooks
from ._arrays import dtype_name

#: Decides whether a call is captured: gets its operation ("msa_prefill", "msa_decode", "qsa") and its arguments.
When = Callable[[str, dict[str, Any]], bool]

# The arguments of _core.msa by position, from the second on.
_MSA_TENSORS = ["q", "k", "v", "q2k_indices", "cu_seqlens_q", "cu_seqlens_k", "page_table", "seqused_k", "q_offset"]
_QSA_TENSORS = [
    "q",
    "k_cache",
    "v_cache",
    "block_table",
    "indexer_block_ids",
    "token_to_request",
    "query_positions",
    "qo_indptr",
]


def _on_host(array: Any) -> Any:
    """The array in host memory. Waits for the device."""
    module = type(array).__module__.partition(".")[0]
    if module == "cupy":
        return array.get()
    if hasattr(array, "cpu") and hasattr(array, "is_cuda"):
        return array.detach().cpu() if array.is_cuda else array
    return array


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, (int, float))


def _as_float32(array: Any) -> Any:
    array = _on_host(array)
    return array.float() if hasattr(array, "is_cuda") else array.astype("float32")


def _captures_graph() -> bool:
    """True while a CUDA graph is captured: nothing can be copied to the host then."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())


class Recorder:
    """Writes calls as case files. Threads may call at once.

    Attributes:
        paths: The files written, in order.
        skipped: Calls that could not be captured, because a CUDA graph was being captured.
    """

    def __init__(self, directory: str | os.PathLike[str], limit: int | None, when: When | None, expected: bool) -> None:
        """See `capture`."""
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.limit = limit
        self.when = when
        self.expected = expected
        self.paths: list[Path] = []
        self.skipped = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def msa(self, arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """A call of _core.msa."""
        (decode, *tensors) = arguments[:10]
        (seqlen_q, causal, softmax_scale, k_scale, v_scale, valid_prefix, block_size) = arguments[10:17]
        (lse_t, temperature) = arguments[19:21]
        scalars: dict[str, Any] = {"causal": causal, "valid_prefix": valid_prefix, "block_size": block_size}
        scalars["softmax_scale"] = softmax_scale
        scalars["k_global_scale"] = k_scale
        scalars["v_global_scale"] = v_scale
        if decode:
            scalars["seqlen_q"] = seqlen_q
        if lse_t is not None and lse_t is not False:
            scalars["lse_temperature_scale"] = temperature
        named = dict(zip(_MSA_TENSORS, tensors, strict=True))
        layout = (named["q"], named["k"], named["v"], named["q2k_indices"])
        op = "msa_decode" if decode else "msa_prefill"
        results: tuple[Any, Any, Any] = self._record(op, named, scalars, layout, lambda: _core.msa(arguments))
        return results

    def qsa(
        self,
        inputs: tuple[Any, ...],
        sizes: tuple[Any, ...],
        scales: tuple[Any, ...],
        call: Callable[[], tuple[Any, Any]],
        batch_size: int | None = None,
    ) -> tuple[Any, Any]:
        """A call of QsaPlan.run or _core.qsa."""
        named = dict(zip(_QSA_TENSORS, inputs, strict=True))
        (kv_block_size, group_size, max_seq_len_kv, out_dtype) = sizes
        (sm_scale, v_scale, gate) = scales
        q, table = named["q"], named["block_table"]
        named["output_gate"] = gate
        packed = len(q.shape) == 3
        if not packed:
            group_size = q.shape[2]
        if batch_size is None:
            groups = named["qo_indptr"].shape[0] - 1 if packed else q.shape[0] * q.shape[1]
            batch_size = max(groups, -(-q.shape[0] // group_size)) if packed else groups
        if max_seq_len_kv is None:
            max_seq_len_kv = table.shape[1] * named["k_cache"].shape[2]
        if out_dtype is None:
            out_dtype = dtype_name(q.dtype)
            out_dtype = "bf16" if out_dtype == "f8_e4m3" else out_dtype
        scalars = {
            "kv_block_size": kv_block_size,
            "group_size": int(group_size),
            "batch_size": int(batch_size),
            "max_seq_len_kv": int(max_seq_len_kv),
            "out_dtype": out_dtype,
            "sm_scale": sm_scale,
            "v_scale": v_scale,
        }
        layout = (q, named["k_cache"], named["v_cache"], named["indexer_block_ids"])
        results: tuple[Any, Any] = self._record("qsa", named, scalars, layout, call)
        return results

    def _record(
        self,
        op: str,
        tensors: dict[str, Any],
        scalars: dict[str, Any],
        layout: tuple[Any, ...],
        call: Callable[[], Any],
    ) -> Any:
        """Writes the call, then makes it: a call that takes the process down leaves its file."""
        path = self._claim(op, {**tensors, **scalars})
        if path is None:
            return call()
        names = ("kv_layout", "row_gap", "index_gap")
        scalars |= dict(zip(names, _core.memory_layout(*layout), strict=True))
        # A scale is a tensor of the file where it is one of the call.
        tensors |= {name: value for name, value in scalars.items() if _is_array(value)}
        scalars = {name: value for name, value in scalars.items() if value is not None and not _is_array(value)}
        hosted = {name: _on_host(value) for name, value in tensors.items() if value is not None}
        _core.write_case(str(path), op, hosted, scalars)
        results = call()
        if self.expected:
            named = zip(("expected.out", "expected.lse", "expected.lse_t"), results, strict=False)
            hosted |= {name: _as_float32(value) for name, value in named if value is not None}
            _core.write_case(str(path), op, hosted, scalars)
        return results

    def _claim(self, op: str, arguments: dict[str, Any]) -> Path | None:
        """The file of a call, None when it is not to be captured."""
        if self.limit is not None and len(self.paths) >= self.limit:
            return None
        if self.when is not None and not self.when(op, arguments):
            return None
        with self._lock:
            if _captures_graph():
                self.skipped += 1
                return None
            if self.limit is not None and len(self.paths) >= self.limit:
                return None
            path = self.directory / f"{os.getpid()}-{next(self._numbers):05d}-{op}.safetensors"
            self.paths.append(path)
            return path


@contextmanager
def capture(
    directory: str | os.PathLike[str],
    limit: int | None = None,
    when: When | None = None,
    *,
    expected: bool = False,
) -> Iterator[Recorder]:
    """Writes every MSA and QSA call of the process as a case file, while the context lasts.

    A call is written before it is made, so one that ends the process leaves its file. Writing copies the whole KV cache
    that the call was given, and waits for the device. Calls made while a CUDA graph is captured, or traced by
    torch.compile, are not written.

    Args:
        directory: Where the files go; made when it does not exist.
        limit: Calls to write at most.
        when: Called with the operation and a dict of its arguments; says whether to write.
        expected: Also writes the call's results as expected values, to compare with another backend's.

    Yields:
        The recorder, whose `paths` are the files.
    """
    before = _hooks.recorder
    recorder = Recorder(directory, limit, when, expected)
    _hooks.recorder = recorder
    try:
        yield recorder
    finally:
        _hooks.recorder = before


def start_from_environment() -> None:
    """Captures for the life of the process when KVSIEVE_CAPTURE names a directory."""
    directory = os.environ.get("KVSIEVE_CAPTURE")
    if not directory:
        return
    limit = os.environ.get("KVSIEVE_CAPTURE_LIMIT")
    expected = os.environ.get("KVSIEVE_CAPTURE_EXPECTED", "") not in ("", "0")
    recorder = Recorder(directory, int(limit) if limit else None, None, expected)
    _hooks.recorder = recorder
    atexit.register(lambda: print(f"kvsieve: {len(recorder.paths)} calls in {directory}", file=sys.stderr))
