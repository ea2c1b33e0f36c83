# SPDX-License-Identifier: Apache-2.0
"""Lifetimes and threads: nothing is leaked, nothing is freed too early, calls may run at once."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kvsieve
import numpy as np
from support import calls
from support.libraries import Library


def _references(call: dict[str, Any]) -> list[int]:
    return [sys.getrefcount(value) for value in call.values()]


def test_arguments_are_released(library: Library, rng: np.random.Generator) -> None:
    call = calls.put(calls.msa(rng), library)
    kvsieve.msa_sparse_attention(**call)
    before = _references(call)
    for _ in range(50):
        kvsieve.msa_sparse_attention(**call, return_lse=True)
        with contextlib.suppress(kvsieve.ArgumentError):
            kvsieve.msa_sparse_attention(**call, out=call["q"])
    assert _references(call) == before


def test_results_outlive_everything(library: Library, rng: np.random.Generator) -> None:
    call = calls.put(calls.msa(rng), library)
    out = kvsieve.msa_sparse_attention(**call)
    bits = library.get(out).view(np.uint16).copy()
    call.clear()
    gc.collect()
    for _ in range(20):
        kvsieve.msa_sparse_attention(**calls.put(calls.msa(rng), library))
    assert np.array_equal(library.get(out).view(np.uint16), bits)


def test_results_are_collected(rng: np.random.Generator) -> None:
    out = kvsieve.msa_sparse_attention(**calls.msa(rng))
    seen = weakref.ref(out)
    del out
    gc.collect()
    assert seen() is None


def test_case_tensors_keep_their_file(golden: Any) -> None:
    q = kvsieve.load_case(golden).arguments["q"]
    gc.collect()
    assert q.size > 0
    assert np.isfinite(np.asarray(q, np.float32)).any()
    result = kvsieve.replay(golden)
    out = result.out
    del result
    gc.collect()
    assert np.isfinite(np.asarray(out, np.float32)).all()


def test_threads(library: Library, rng: np.random.Generator) -> None:
    """Each thread with sizes of its own, so that the kept workspaces grow at different times."""
    several = [calls.put(calls.msa(rng, rows=(n,), lengths=(200 + n,)), library) for n in (1, 40, 7, 90)]
    want = [library.get(kvsieve.msa_sparse_attention(**call)).view(np.uint16).copy() for call in several]

    def work(first: int) -> None:
        for i in range(12):
            which = (first + i) % len(several)
            got = library.get(kvsieve.msa_sparse_attention(**several[which])).view(np.uint16)
            assert np.array_equal(got, want[which])

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, n) for n in range(4)]:
            future.result()


def test_the_lock_is_released(rng: np.random.Generator) -> None:
    """Another thread runs Python code while a call works."""
    call = calls.msa(rng, rows=(1500,), lengths=(2048,), dim=128, heads=16, kv_heads=1, topk=16)
    kvsieve.msa_sparse_attention(**call)
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    kvsieve.msa_sparse_attention(**call)
    end = time.monotonic()
    stop.set()
    thread.join()
    during = [t for t in ticks if begin < t < end]
    assert end - begin < 0.02 or len(during) > 2


def test_import_needs_no_array_library() -> None:
    program = "import sys, kvsieve; assert not {'torch', 'numpy', 'jax'} & set(sys.modules); print(kvsieve.info())"
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
