# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments give exceptions that name them, and leave the outputs alone."""

from __future__ import annotations

import pickle
from typing import Any

import kvsieve
import numpy as np
import pytest
from support import calls
from support.libraries import BF16, Library


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", lambda a: a[0]),
        ("q", lambda a: a.astype(np.float32)),
        ("k", lambda a: a[..., :32]),
        ("v", lambda a: a[:1]),
        ("q2k_indices", lambda a: a.astype(np.int64)),
        ("q2k_indices", lambda a: a[:, :1]),
        ("cu_seqlens_q", lambda a: a[:2]),
        ("page_table", lambda a: a[0]),
        ("seqused_k", lambda a: a[:1]),
    ],
)
def test_wrong_tensor(library: Library, rng: np.random.Generator, name: str, change: Any) -> None:
    call = calls.msa(rng)
    call[name] = change(call[name])
    with pytest.raises(kvsieve.ArgumentError) as error:
        kvsieve.msa_sparse_attention(**calls.put(call, library))
    assert isinstance(error.value, ValueError)
    assert error.value.argument == name
    assert str(error.value).startswith(f"{name}: got ")


@pytest.mark.parametrize("name", ["q", "k", "q2k_indices", "page_table", "out"])
@pytest.mark.parametrize("value", [[1.0], "text", 3, object()], ids=["list", "str", "int", "object"])
def test_no_tensor(rng: np.random.Generator, name: str, value: Any) -> None:
    call = calls.msa(rng) | {name: value}
    with pytest.raises(TypeError, match=f"^{name}: got <class") as error:
        kvsieve.msa_sparse_attention(**call)
    assert isinstance(error.value, kvsieve.ArgumentTypeError)


def test_wrong_scalars(rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    for name in ("softmax_scale", "k_global_scale"):
        with pytest.raises(kvsieve.ArgumentTypeError, match=f"^{name}:"):
            kvsieve.msa_sparse_attention(**call, **{name: "big"})
        with pytest.raises(kvsieve.ArgumentError, match=f"^{name}:"):
            kvsieve.msa_sparse_attention(**call, **{name: float("nan")})
    with pytest.raises(kvsieve.ArgumentError, match="^block_size:"):
        kvsieve.msa_sparse_attention(**call, block_size=100)
    with pytest.raises(kvsieve.ArgumentError, match="^path:"):
        kvsieve.msa_sparse_attention(**call, path="fast")


def test_missing_and_superfluous(library: Library, rng: np.random.Generator) -> None:
    call = calls.put(calls.msa(rng), library)
    with pytest.raises(kvsieve.ArgumentError, match="^seqused_k: got not given"):
        kvsieve.msa_sparse_attention(**call | {"seqused_k": None})
    with pytest.raises(kvsieve.ArgumentError, match="^cu_seqlens_k:"):
        kvsieve.msa_sparse_attention(**call, cu_seqlens_k=call["cu_seqlens_q"])
    with pytest.raises(TypeError, match="no_such_option"):
        kvsieve.msa_sparse_attention(**call, no_such_option=1)


def test_wrong_outputs(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    moved = calls.put(call, library)
    with pytest.raises(kvsieve.ArgumentError, match="^out:"):
        kvsieve.msa_sparse_attention(**moved, out=library.put(np.zeros((1, 8, 64), BF16)))
    with pytest.raises(kvsieve.ArgumentError, match="^lse:"):
        kvsieve.msa_sparse_attention(**moved, lse=library.put(np.zeros((8, 8), np.int32)))
    with pytest.raises(kvsieve.ArgumentError, match="^out: got memory that overlaps q"):
        kvsieve.msa_sparse_attention(**moved, out=moved["q"])
    untouched = library.put(np.full_like(call["q"], 7))
    with pytest.raises(kvsieve.ArgumentError, match="^workspace:"):
        kvsieve.msa_sparse_attention(**moved, out=untouched, workspace=library.put(np.zeros(8, np.uint8)))
    assert (np.asarray(library.get(untouched), np.float32) == 7).all()


def test_read_only_output(rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    for out in (np.zeros_like(call["q"]), np.zeros(call["q"].shape, np.float16)):
        out.flags.writeable = False
        with pytest.raises(kvsieve.ArgumentError, match="^out:.*writ"):
            kvsieve.msa_sparse_attention(**call, out=out)


def test_byte_order(rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    call["seqused_k"] = call["seqused_k"].astype(">i4")
    with pytest.raises(kvsieve.ArgumentError, match="^seqused_k: got an array of >i4"):
        kvsieve.msa_sparse_attention(**call)


def test_check_indices(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng)
    call["q2k_indices"][0, 0, 0] = 1 << 20
    out = library.put(np.zeros_like(call["q"]))
    with pytest.raises(kvsieve.IndexError) as error:
        kvsieve.msa_sparse_attention(**calls.put(call, library), out=out, check_indices=True)
    assert isinstance(error.value, IndexError)
    assert error.value.bad_entries == 1
    assert np.asarray(library.get(out), np.float32).any()


def test_unsupported_path(rng: np.random.Generator) -> None:
    with pytest.raises(kvsieve.UnsupportedError):
        kvsieve.msa_sparse_attention(**calls.msa(rng), path="cuda_portable")
    assert issubclass(kvsieve.UnsupportedError, NotImplementedError)


def test_qsa(library: Library, rng: np.random.Generator) -> None:
    call = calls.qsa(rng)
    wrong = {
        "block_table": call["block_table"].astype(np.int64),
        "query_positions": call["query_positions"][:1],
        "token_to_request": call["token_to_request"].astype(np.float32),
    }
    for name, value in wrong.items():
        with pytest.raises(kvsieve.ArgumentError, match=f"^{name}:"):
            kvsieve.qsa_attention(**calls.put(call | {name: value}, library))
    with pytest.raises(kvsieve.ArgumentError, match="^kv_block_size:"):
        kvsieve.qsa_attention(**calls.put(call | {"kv_block_size": 5}, library))
    with pytest.raises(kvsieve.ArgumentError, match="^head_dim:"):
        kvsieve.QsaAttention().plan(1, 1, 8, 2, 65, 4, 16, 6, 80)
    with pytest.raises(kvsieve.ArgumentTypeError, match="^q_data_type:"):
        kvsieve.QsaAttention().plan(1, 1, 8, 2, 64, 4, 16, 6, 80, q_data_type="complex64")


def test_errors_can_be_pickled() -> None:
    for error in (
        kvsieve.ArgumentError("q", "this", "that"),
        kvsieve.IndexError("2 entries", 2),
        kvsieve.CaseError("f", "q", "is bad"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy) == str(error)
        assert copy.__dict__ == error.__dict__
