# SPDX-License-Identifier: Apache-2.0
"""torch: operators and their shape functions, torch.compile, CUDA graphs and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kvsieve
from kvsieve import torch_ops  # noqa: F401  (registers the operators)
from support import calls, libraries, oracle
from support.libraries import FP8, Library


@pytest.fixture(params=[lib for lib in libraries.available() if lib.name != "numpy"], ids=lambda lib: lib.name)
def library(request: pytest.FixtureRequest) -> Library:
    """torch, on each device."""
    return request.param


needs_cuda = pytest.mark.skipif("cuda" not in libraries.torch_devices(), reason="no CUDA device that kvsieve can use")


def _msa_operands(call: dict[str, Any]) -> tuple[Any, ...]:
    # fmt: off
    return (
        False, call["q"], call["k"], call["v"], call["q2k_indices"], call["cu_seqlens_q"], None, call["page_table"],
        call["seqused_k"], None, 1, True, None, 1.0, None, 1.0, None, False, 128, 1.0, 0,
    )
    # fmt: on


def _qsa_operands(call: dict[str, Any]) -> tuple[Any, ...]:
    # fmt: off
    return (
        call["q"], *call["paged_kv_cache"], call["block_table"], call["indexer_block_ids"], call["token_to_request"],
        call["query_positions"], call["qo_indptr"], call["kv_block_size"], call["seq_len_q"], None, "bf16", None, None,
        1.0, None, None, 0,
    )
    # fmt: on


def test_operators_pass_torchs_own_checks(library: Library, rng: np.random.Generator) -> None:
    """Schemas, shape functions, and the tracing of dynamic shapes."""
    check = {"test_utils": ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")}
    msa = calls.put(calls.msa(rng), library)
    torch.library.opcheck(torch.ops.kvsieve.msa, (*_msa_operands(msa), True, True), **check)
    torch.library.opcheck(torch.ops.kvsieve.msa, (*_msa_operands(msa), False, False), **check)
    out = torch.zeros_like(msa["q"])
    lse = torch.zeros(out.shape[:2], device=out.device)
    torch.library.opcheck(torch.ops.kvsieve.msa_out, (*_msa_operands(msa), out, lse, None), **check)
    qsa = calls.put(calls.qsa(rng), library)
    torch.library.opcheck(torch.ops.kvsieve.qsa, (*_qsa_operands(qsa), True), **check)
    torch.library.opcheck(torch.ops.kvsieve.qsa_out, (*_qsa_operands(qsa), torch.zeros_like(qsa["q"]), None), **check)
    outs = torch.randn(2, 3, 4, 64, device=out.device)
    lses = torch.randn(2, 3, 4, device=out.device)
    torch.library.opcheck(torch.ops.kvsieve.merge, (outs, lses, "bf16", True), **check)


def test_compiled_equals_eager(library: Library, rng: np.random.Generator) -> None:
    msa = calls.put(calls.msa(rng, kv_dtype=FP8), library)
    qsa = calls.put(calls.qsa(rng), library)
    scale = library.put(np.array([0.5], np.float32))

    def model(msa: dict[str, Any], qsa: dict[str, Any]) -> Any:
        out, lse = kvsieve.msa_sparse_attention(**msa, return_lse=True, k_global_scale=scale)
        given = torch.empty_like(qsa["q"])
        kvsieve.qsa_attention(**qsa, out=given)
        merged = kvsieve.merge_states(torch.stack([out, out]), torch.stack([lse, lse]), return_lse=False)
        return merged * 2, lse + 1, given * 3

    want = model(msa, qsa)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for got in (compiled(msa, qsa), compiled(msa, qsa)):
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


def test_compiled_with_inductor_and_varying_rows(library: Library, rng: np.random.Generator) -> None:
    attention = kvsieve.QsaAttention().plan(8, 2, 8, 2, 64, 4, 16, 6, 112, use_packed_q=True, device=library.device)

    def model(call: dict[str, Any]) -> Any:
        return attention.run(**call).float() + 1

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for positions in (((96, 97, 98), (40,)), ((10, 11, 12, 13, 14), (20, 21))):
        call = calls.put(calls.qsa(rng, positions=positions), library)
        del call["kv_block_size"], call["seq_len_q"]
        assert torch.equal(compiled(call), model(call))


def test_tensor_subclasses(library: Library, rng: np.random.Generator) -> None:
    call = calls.put(calls.msa(rng), library)
    want = kvsieve.msa_sparse_attention(**call)
    call["k"] = torch.nn.Parameter(call["k"], requires_grad=False)
    assert torch.equal(kvsieve.msa_sparse_attention(**call), want)


def test_older_torch_without_exchange_functions(library: Library, rng: np.random.Generator) -> None:
    """What the bindings do with a torch that has no `__dlpack_c_exchange_api__`."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch is such a one: every other test shows it")

    class Old(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    call = calls.put(calls.msa(rng, kv_dtype=FP8), library)
    want, want_lse = kvsieve.msa_sparse_attention(**call, return_lse=True)
    old = {n: v.as_subclass(Old) if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    got, got_lse = kvsieve.msa_sparse_attention(**old, return_lse=True)
    assert torch.equal(got, want)
    assert torch.equal(got_lse, want_lse)


@needs_cuda
def test_cuda_graph(rng: np.random.Generator) -> None:
    """Capture once, replay with other contents; outputs and workspace come from torch's graph pool."""
    cuda = next(lib for lib in libraries.available() if lib.name == "torch-cuda")
    first, second = calls.msa_decode(rng, seqlen_q=2), calls.msa_decode(rng, seqlen_q=2)
    static = calls.put(first, cuda)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kvsieve.msa_sparse_decode_attention(**static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = kvsieve.msa_sparse_decode_attention(**static, return_lse=True)
    for call in (first, second, first):
        for name, value in calls.put(call, cuda).items():
            if isinstance(value, torch.Tensor):
                static[name].copy_(value)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        want, want_lse, _ = oracle.msa(**call)
        oracle.assert_close(cuda.get(out), want)
        oracle.assert_lse_close(cuda.get(lse), want_lse)


@needs_cuda
def test_compiled_with_cuda_graphs(rng: np.random.Generator) -> None:
    cuda = next(lib for lib in libraries.available() if lib.name == "torch-cuda")
    call = calls.put(calls.msa_decode(rng), cuda)

    def model(call: dict[str, Any]) -> Any:
        return kvsieve.msa_sparse_decode_attention(**call) * 2

    torch._dynamo.reset()
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(call).clone(), model(call))


@needs_cuda
def test_streams(rng: np.random.Generator) -> None:
    """The current stream by default, so that work queued there before is seen; a given stream otherwise."""
    cuda = next(lib for lib in libraries.available() if lib.name == "torch-cuda")
    numpy_call = calls.msa(rng)
    call = calls.put(numpy_call, cuda)
    want, _, _ = oracle.msa(**numpy_call)
    q = call["q"]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for given in (None, side, side.cuda_stream):
        call["q"] = torch.zeros_like(q)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            call["q"].copy_(q)
            if given is None:
                out = kvsieve.msa_sparse_attention(**call)
        if given is not None:
            out = kvsieve.msa_sparse_attention(**call, stream=given)
        torch.cuda.synchronize()
        oracle.assert_close(cuda.get(out), want)


@needs_cuda
def test_mixed_devices_are_refused(rng: np.random.Generator) -> None:
    cuda = next(lib for lib in libraries.available() if lib.name == "torch-cuda")
    numpy_call = calls.msa(rng)
    call = calls.put(numpy_call, cuda)
    with pytest.raises(kvsieve.ArgumentError, match="^k: .*cpu"):
        kvsieve.msa_sparse_attention(**call | {"k": call["k"].cpu()})
    with pytest.raises(kvsieve.ArgumentError, match="^workspace:"):
        kvsieve.msa_sparse_attention(**call, workspace=torch.empty(1 << 24, dtype=torch.uint8))


@pytest.mark.skipif("cuda" in libraries.torch_devices() or not torch.cuda.is_available(), reason="not this build")
def test_cuda_tensors_without_the_backend(rng: np.random.Generator) -> None:
    call = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in calls.msa(rng).items()}
    with pytest.raises(kvsieve.UnsupportedError, match="no CUDA backend"):
        kvsieve.msa_sparse_attention(**call)
