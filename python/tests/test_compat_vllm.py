# SPDX-License-Identifier: Apache-2.0
"""vLLM's signatures, results in place, and installation into a stand-in for vLLM."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvsieve.compat import vllm
from support import calls, libraries, oracle
from support.libraries import BF16, FP8, Library


@pytest.fixture(params=[lib for lib in libraries.available() if lib.name != "numpy"], ids=lambda lib: lib.name)
def library(request: pytest.FixtureRequest) -> Library:
    """torch, on each device."""
    return request.param


def _as_vllm(call: dict[str, Any], library: Library) -> dict[str, Any]:
    """The tensors as vLLM holds them: a packed cache, more id rows than query rows, garbage after the prefix."""
    ids = call["q2k_indices"].copy()
    ids[ids < 0] = 1 << 30
    padding = np.full((ids.shape[0], 3, ids.shape[2]), -7, np.int32)
    return calls.put(
        {
            "q": call["q"],
            "kv_cache": np.concatenate([call["k"], call["v"]], axis=-1),
            "topk_idx": np.concatenate([ids, padding], axis=1),
            "block_table": call["page_table"],
            "seq_lens": call["seqused_k"],
        },
        library,
    )


@pytest.mark.parametrize("kv_dtype", [BF16, FP8], ids=str)
def test_prefill(library: Library, rng: np.random.Generator, kv_dtype: Any) -> None:
    call = calls.msa(rng, dim=128, heads=16, kv_heads=1, topk=3, kv_dtype=kv_dtype)
    rows, lengths = np.diff(call["cu_seqlens_q"]), call["seqused_k"]
    scales = {"k_global_scale": np.array([0.7], np.float32), "v_global_scale": np.array([1.5], np.float32)}
    want, _, _ = oracle.msa(**call, **scales, softmax_scale=0.1, valid_prefix=True)
    moved = _as_vllm(call, library)
    if kv_dtype == FP8:
        moved["kv_cache"] = moved["kv_cache"].view(torch.uint8)
    output = torch.full_like(moved["q"], float("nan"))
    vllm.minimax_m3_sparse_attn(
        moved["q"],
        moved["kv_cache"],
        moved["topk_idx"],
        moved["block_table"],
        library.put(call["cu_seqlens_q"]),
        moved["seq_lens"],
        library.put((lengths - rows).astype(np.int32)),
        5,
        1,
        0.1,
        output,
        library.put(scales["k_global_scale"]),
        library.put(scales["v_global_scale"]),
    )
    oracle.assert_close(library.get(output), want)


@pytest.mark.parametrize("rows", [1, 3])
def test_decode_with_padded_requests(library: Library, rng: np.random.Generator, rows: int) -> None:
    call = calls.msa_decode(rng, seqlen_q=rows, dim=128, heads=16, kv_heads=1, topk=3)
    want, _, _ = oracle.msa(**call, softmax_scale=0.1, valid_prefix=True)
    moved = _as_vllm(call, library)
    output = torch.full_like(moved["q"], float("nan"))
    vllm.minimax_m3_sparse_attn_decode(**moved, num_kv_heads=1, sm_scale=0.1, output=output, decode_query_len=rows)
    oracle.assert_close(library.get(output), want)


def test_decode_with_rows_of_varying_number(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa(rng, rows=(2, 1, 3), lengths=(300, 5, 131), dim=128, heads=16, kv_heads=1, topk=3)
    want, _, _ = oracle.msa(**call, softmax_scale=0.1, valid_prefix=True)
    moved = _as_vllm(call, library)
    output = torch.full_like(moved["q"], float("nan"))
    vllm.minimax_m3_sparse_attn_decode(
        **moved,
        num_kv_heads=1,
        sm_scale=0.1,
        output=output,
        decode_query_len=3,
        query_start_loc=library.put(call["cu_seqlens_q"]),
        token_to_req_indices=library.put(np.array([0, 0, 1, 2, 2, 2], np.int32)),
    )
    oracle.assert_close(library.get(output), want)


def test_wrong_cache(library: Library, rng: np.random.Generator) -> None:
    call = calls.msa_decode(rng, dim=128, heads=16, kv_heads=1)
    moved = _as_vllm(call, library)
    options = {"sm_scale": 0.1, "output": torch.empty_like(moved["q"]), "decode_query_len": 1}
    with pytest.raises(ValueError, match="^num_kv_heads"):
        vllm.minimax_m3_sparse_attn_decode(**moved, num_kv_heads=2, **options)
    moved["kv_cache"] = moved["kv_cache"][..., :128]
    with pytest.raises(ValueError, match="^kv_cache"):
        vllm.minimax_m3_sparse_attn_decode(**moved, num_kv_heads=1, **options)


def _stand_in(folder: Path, parameters: str) -> None:
    """A package with vLLM's modules."""
    ops = folder / "vllm" / "models" / "minimax_m3" / "common" / "ops"
    ops.mkdir(parents=True)
    for package in (ops, *ops.parents[:4]):
        (package / "__init__.py").write_text("")
    (ops / "sparse_attn.py").write_text(
        f"def minimax_m3_sparse_attn({parameters}): pass\ndef minimax_m3_sparse_attn_decode(q, output): pass\n"
    )
    (ops / "__init__.py").write_text("from .sparse_attn import *\n")
    (ops.parent / "sparse_attention.py").write_text(
        "from .ops import minimax_m3_sparse_attn as _unused\nfrom .ops import *\n"
    )


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Forgets what a test imported as vllm."""
    if "vllm" in sys.modules:
        pytest.skip("vLLM itself is loaded")
    yield
    vllm.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def test_install(no_vllm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, "q, kv_cache, output")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = vllm.install()
    assert "vllm.models.minimax_m3.common.ops.sparse_attn.minimax_m3_sparse_attn" in names
    assert "vllm.models.minimax_m3.common.sparse_attention.minimax_m3_sparse_attn_decode" in names
    from vllm.models.minimax_m3.common import sparse_attention

    assert sparse_attention.minimax_m3_sparse_attn is vllm.minimax_m3_sparse_attn
    assert vllm.install() == []
    vllm.uninstall()
    assert sparse_attention.minimax_m3_sparse_attn is not vllm.minimax_m3_sparse_attn


def test_install_refuses_other_signatures(no_vllm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, "q, another_argument")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="another_argument"):
        vllm.install()


def test_install_without_vllm(no_vllm: None) -> None:
    with pytest.raises(ImportError):
        vllm.install()
