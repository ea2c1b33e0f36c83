# SPDX-License-Identifier: Apache-2.0
"""The Python examples, which check themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def _run(*arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _torchrun(ranks: int, *options: str) -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return _run(*launcher, str(EXAMPLES / "context_parallel_decode.py"), *options)


def test_layer() -> None:
    assert "2 of 6 blocks" in _run(str(EXAMPLES / "sparse_attention_layer.py"))


def test_two_ranks_with_gloo() -> None:
    output = _torchrun(2)
    assert output.count("context parallel, 2 ranks") == 2
    assert "tensor parallel, 2 ranks" in output


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_ranks_with_nccl() -> None:
    assert "context parallel, 2 ranks" in _torchrun(2, "--cuda")
