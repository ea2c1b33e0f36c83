# SPDX-License-Identifier: Apache-2.0
"""Which array libraries and devices the suite runs with: NumPy always, torch on the CPU and on CUDA where they are."""

from __future__ import annotations

import random
from pathlib import Path

import kvsieve
import numpy as np
import pytest
from support import libraries

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "golden"


def pytest_report_header() -> list[str]:
    """What the suite found."""
    return [str(kvsieve.info()), "array libraries: " + ", ".join(library.name for library in libraries.available())]


@pytest.fixture(params=libraries.available(), ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> libraries.Library:
    """An array library on a device."""
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    random.seed(7)
    return np.random.default_rng(7)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `golden` runs once per golden case."""
    if "golden" in metafunc.fixturenames:
        files = sorted(GOLDEN.glob("*.safetensors"))
        assert files, f"no golden cases in {GOLDEN}"
        metafunc.parametrize("golden", files, ids=[file.stem for file in files])
