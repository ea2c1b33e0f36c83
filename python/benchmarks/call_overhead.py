# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs over the attention itself.

The calls have no query rows, so all of their time is overhead: Python, the conversion of the arguments, the allocation
of the results, and the checks that the C++ call makes too. Prints microseconds, the best of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kvsieve
import ml_dtypes
import numpy as np


def microseconds(call: Callable[[], Any], calls: int = 400, rounds: int = 300) -> float:
    """The best mean of a round."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / calls)
    return best / 1000


def arguments(put: Callable[[Any], Any]) -> dict[str, Any]:
    """A decode step of no requests: eight tensors, and out, lse and workspace to be given."""
    cache = np.zeros((4, 4, 128, 128), ml_dtypes.bfloat16)
    one = np.ones(1, np.float32)
    call = {
        "q": np.zeros((0, 64, 128), ml_dtypes.bfloat16),
        "k": cache,
        "v": cache.copy(),
        "q2k_indices": np.zeros((4, 0, 16), np.int32),
        "page_table": np.zeros((0, 4), np.int32),
        "seqused_k": np.zeros(0, np.int32),
        "k_global_scale": one,
        "v_global_scale": one.copy(),
    }
    return {name: put(array) for name, array in call.items()}


def report(name: str, put: Callable[[Any], Any]) -> None:
    """One line."""
    call = arguments(put)
    out, lse = put(np.zeros((0, 64, 128), ml_dtypes.bfloat16)), put(np.zeros((0, 64), np.float32))
    workspace = put(np.zeros(1 << 20, np.uint8))
    decode = kvsieve.msa_sparse_decode_attention
    given = microseconds(lambda: decode(**call, out=out, lse=lse, workspace=workspace))
    unchecked = microseconds(lambda: decode(**call, out=out, lse=lse, workspace=workspace, unchecked=True))
    allocated = microseconds(lambda: decode(**call, return_lse=True))
    print(f"{name:12}{given:18.2f}{unchecked:18.2f}{allocated:22.2f}")


def main() -> None:
    """Every array library that is there."""
    print(f"{'us':12}{'11 tensors given':>18}{'unchecked':>18}{'out, lse allocated':>22}")
    report("numpy", lambda array: array)
    try:
        import torch
    except ImportError:
        return

    def put(array: Any) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    report("torch", put)
    if torch.cuda.is_available() and any(p.name.startswith("cuda") and p.available for p in kvsieve.info().paths):
        report("torch cuda", lambda array: put(array).cuda())


if __name__ == "__main__":
    main()
