# SPDX-License-Identifier: Apache-2.0
"""Arrays of libraries that kvsieve knows nothing about, by `__dlpack__`; JAX where it is installed."""

from __future__ import annotations

import gc
from typing import Any

import kvsieve
import numpy as np
import pytest
from support import calls, oracle
from support.libraries import BF16, F16


class Versioned:
    """An array that can do nothing but be exported."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class Unversioned(Versioned):
    """The same before DLPack 1.0."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


def _wrapped(call: dict[str, Any], kind: type) -> dict[str, Any]:
    return {name: kind(value) for name, value in call.items()}


@pytest.mark.parametrize("kind", [Versioned, Unversioned])
def test_exported_arrays(rng: np.random.Generator, kind: type) -> None:
    call = calls.msa(rng, q_dtype=F16)
    call["q"] = np.concatenate([call["q"], call["q"]], axis=1)[:, :8]  # with strides
    want, _, _ = oracle.msa(**call)
    out = np.full(call["q"].shape, np.nan, F16)
    wrapped_out = kind(out)
    result = kvsieve.msa_sparse_attention(**_wrapped(call, kind), out=wrapped_out)
    assert result is wrapped_out
    gc.collect()
    oracle.assert_close(out, want)


def test_results_need_a_known_library(rng: np.random.Generator) -> None:
    with pytest.raises(kvsieve.ArgumentTypeError, match="^out: got nothing, with arrays of test_dlpack"):
        kvsieve.msa_sparse_attention(**_wrapped(calls.msa(rng, q_dtype=F16), Versioned))


def test_read_only_exports_are_not_written(rng: np.random.Generator) -> None:
    call = calls.msa(rng, q_dtype=F16)
    out = np.zeros_like(call["q"])
    out.flags.writeable = False
    with pytest.raises(kvsieve.ArgumentError, match="^out: got a read-only array"):
        kvsieve.msa_sparse_attention(**call, out=Versioned(out))


def test_a_failing_export_names_the_argument(rng: np.random.Generator) -> None:
    class Failing(Versioned):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no export today")

    call = calls.msa(rng)
    call["k"] = Failing(call["k"])
    with pytest.raises(kvsieve.ArgumentError, match="^k: got .*no export today"):
        kvsieve.msa_sparse_attention(**call)


def test_jax(rng: np.random.Generator) -> None:
    jnp = pytest.importorskip("jax.numpy")
    for dtype in (F16, BF16):
        call = calls.msa(rng, q_dtype=dtype)
        want, want_lse, _ = oracle.msa(**call)
        moved = {name: jnp.asarray(value) for name, value in call.items()}
        out, lse = kvsieve.msa_sparse_attention(**moved, return_lse=True)
        oracle.assert_close(out, want)
        oracle.assert_lse_close(lse, want_lse)
        with pytest.raises(kvsieve.ArgumentError, match="^out:.*writable"):
            kvsieve.msa_sparse_attention(**moved, out=jnp.zeros(call["q"].shape, moved["q"].dtype))
