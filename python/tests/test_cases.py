# SPDX-License-Identifier: Apache-2.0
"""Golden cases through Python; calls captured and replayed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kvsieve
import numpy as np
import pytest
from support import calls, oracle
from support.libraries import FP8, Library


def test_golden_replays(golden: Path, library: Library) -> None:
    result = kvsieve.replay(golden, device=library.device)
    assert result.compared
    assert result, result.failure
    assert result.errors["out.frobenius"] < 4e-3


def test_golden_through_the_api(golden: Path, library: Library) -> None:
    case = kvsieve.load_case(golden)
    options: dict[str, Any] = {"return_lse": True}
    if "lse_t" in case.expected:
        options["return_lse_t"] = True
    results = case.call(library.put, **options)
    oracle.assert_close(library.get(results[0]), case.expected["out"])
    oracle.assert_lse_close(library.get(results[1]), case.expected["lse"])


def _captured(library: Library, call: Any, directory: Path, **options: Any) -> tuple[Any, Path]:
    with kvsieve.capture(directory, **options) as recorder:
        result = call()
    assert len(recorder.paths) == 1
    return library.get(result), recorder.paths[0]


@pytest.mark.parametrize("kind", ["prefill", "flat", "decode", "packed", "qsa", "qsa plan"])
def test_capture_and_replay(library: Library, rng: np.random.Generator, tmp_path: Path, kind: str) -> None:
    if kind.startswith("qsa"):
        arguments = calls.put(calls.qsa(rng), library)
        call = lambda: kvsieve.qsa_attention(**arguments, sm_scale=0.3)  # noqa: E731
        if kind == "qsa plan":
            plan = kvsieve.QsaAttention().plan(5, 2, 8, 2, 64, 4, 16, 6, 99, use_packed_q=True, device=library.device)
            del arguments["kv_block_size"], arguments["seq_len_q"]
            call = lambda: plan.run(**arguments, v_scale=0.5)  # noqa: E731
    elif kind == "decode":
        arguments = calls.put(calls.msa_decode(rng, seqlen_q=2), library)
        call = lambda: kvsieve.msa_sparse_decode_attention(**arguments)  # noqa: E731
    else:
        arguments = calls.put(calls.msa(rng, paged=kind != "flat", kv_dtype=FP8), library)
        if kind == "packed":
            made = calls.msa(rng)
            arguments = calls.put(made, library)
            cache = library.put(np.concatenate([made["k"], made["v"]], axis=-1))
            arguments |= {"k": cache[..., :64], "v": cache[..., 64:]}
        scale = library.put(np.array([0.5], np.float32))
        call = lambda: kvsieve.msa_sparse_attention(**arguments, k_global_scale=scale)  # noqa: E731
    out, path = _captured(library, call, tmp_path, expected=True)
    result = kvsieve.replay(path, device=library.device)
    assert result.compared
    assert result, result.failure
    assert np.array_equal(result.out.view(np.uint16), out.view(np.uint16))
    reference = kvsieve.replay(path, backend="reference")
    assert reference, reference.failure
    case = kvsieve.load_case(path)
    assert not case.ignored
    if kind == "packed":
        k, v = case.arguments["k"], case.arguments["v"]
        assert v.ctypes.data - k.ctypes.data == 2 * 64
        assert k.strides == v.strides


def test_limit_and_when(rng: np.random.Generator, tmp_path: Path) -> None:
    call = calls.msa(rng)
    with kvsieve.capture(tmp_path / "a", limit=2) as recorder:
        for _ in range(4):
            kvsieve.msa_sparse_attention(**call)
    assert len(recorder.paths) == len(list((tmp_path / "a").iterdir())) == 2

    def only_long(op: str, arguments: dict[str, Any]) -> bool:
        return op == "msa_prefill" and arguments["q"].shape[0] > 3

    with kvsieve.capture(tmp_path / "b", when=only_long) as recorder:
        kvsieve.msa_sparse_attention(**call)
        kvsieve.msa_sparse_attention(**calls.msa(rng, rows=(1,), lengths=(9,)))
        kvsieve.qsa_attention(**calls.qsa(rng))
    assert len(recorder.paths) == 1
    kvsieve.msa_sparse_attention(**call)
    assert len(recorder.paths) == 1


def test_a_failing_call_leaves_its_file(rng: np.random.Generator, tmp_path: Path) -> None:
    call = calls.msa(rng)
    call["cu_seqlens_q"] = call["cu_seqlens_q"][:2]
    with kvsieve.capture(tmp_path) as recorder, pytest.raises(kvsieve.ArgumentError):
        kvsieve.msa_sparse_attention(**call)
    with pytest.raises(kvsieve.CaseError, match="cu_seqlens_q"):
        kvsieve.replay(recorder.paths[0])


def test_environment(tmp_path: Path) -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, kvsieve
from support import calls
for _ in range(3):
    kvsieve.msa_sparse_attention(**calls.msa(np.random.default_rng(0)))
"""
    environment = os.environ | {"KVSIEVE_CAPTURE": str(tmp_path / "calls"), "KVSIEVE_CAPTURE_LIMIT": "2"}
    subprocess.run([sys.executable, "-c", program, str(Path(__file__).parent)], env=environment, check=True)
    files = sorted((tmp_path / "calls").iterdir())
    assert len(files) == 2
    assert kvsieve.replay(files[0], check=True)


def test_the_command_reads_what_python_writes(rng: np.random.Generator, tmp_path: Path) -> None:
    command = os.environ.get("KVSIEVE_COMMAND") or shutil.which("kvsieve")
    if not command:
        pytest.skip("no kvsieve command: KVSIEVE_COMMAND names one")
    with kvsieve.capture(tmp_path, expected=True) as recorder:
        kvsieve.msa_sparse_attention(**calls.msa(rng))
        kvsieve.qsa_attention(**calls.qsa(rng))
    subprocess.run([command, "run", *map(str, recorder.paths)], check=True)


def test_not_a_case(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(kvsieve.CaseError) as error:
        kvsieve.load_case(file)
    assert error.value.file == str(file)
    with pytest.raises(kvsieve.ArgumentError, match="^device:"):
        kvsieve.replay(next(Path(__file__).parents[2].glob("tests/data/golden/*.safetensors")), device="tpu")
