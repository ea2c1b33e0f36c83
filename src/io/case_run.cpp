// SPDX-License-Identifier: Apache-2.0
#include "io/case_run.hpp"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "api/dispatch.hpp"
#include "api/validate.hpp"
#include "reference/reference.hpp"
#if KVSIEVE_HAS_CUDA
#include "cuda/device_memory.hpp"
#endif

namespace kvsieve::io {
namespace {

/// Runs `body`; what the library says about an argument becomes an error of the case's file.
template <class Body>
void in_the_name_of(const Case& test_case, Body&& body) {
  try {
    body();
  } catch (const ArgumentError& error) {
    const std::string reason = fmt::format("got {}, want {}", error.got(), error.want());
    const std::string& argument = error.argument();
    // Arguments of the call are tensors of the file, scalars of the metadata, or of neither (the path, the device).
    if (argument.find_first_of(" .[") != std::string::npos) {
      throw CaseError(test_case.name, fmt::format("{}: {}", argument, reason));
    }
    throw CaseError(test_case.name, argument, reason);
  } catch (const std::bad_alloc&) {
    throw CaseError(test_case.name, "not enough memory to run it");
  }
}

std::span<const std::int64_t> shape_of(const Tensor& tensor) { return std::span(tensor.shape).first(tensor.rank); }

}  // namespace

CaseRun::CaseRun(Case test_case, const CallOptions& options, bool with_lse, Device device)
    : case_(std::move(test_case)), device_(device), options_(options), msa_(case_.msa), qsa_(case_.qsa) {
  in_the_name_of(case_, [&] {
    const std::span<const std::int64_t> shape = shape_of(case_.q());
    const std::span<const std::int64_t> row_shape = shape.first(shape.size() - 1);
    out_ = make_tensor(case_.out_dtype(), shape, 2, case_.layout.row_gap);
    if (with_lse) lse_ = make_tensor(DType::f32, row_shape);
    if (with_lse && case_.wants_lse_t) lse_t_ = make_tensor(DType::f32, row_shape);
    std::size_t bytes = 0;
    if (case_.is_msa()) {
      msa_.out = out_.view;
      msa_.lse = lse_.view;
      msa_.lse_t = lse_t_.view;
      MsaConfig config = msa_config(msa_, options_);
      config.device = device_;
      bytes = workspace_bytes(config);
    } else {
      qsa_.out = out_.view;
      qsa_.lse = lse_.view;
      case_.qsa_config.num_threads = options_.num_threads;
      QsaConfig config = case_.qsa_config;
      config.device = device_;
      plan_.emplace(config);
      bytes = plan_->workspace_bytes();
    }
    options_.workspace.bytes = bytes;
    if (device_.type == DeviceType::cuda) {
      place_on_device();
    } else {
      workspace_ = allocate(bytes);
      options_.workspace.data = workspace_.get();
    }
  });
}

#if KVSIEVE_HAS_CUDA

void CaseRun::place_on_device() {
  const auto keep = [&](std::shared_ptr<std::byte> memory) {
    device_memory_.push_back(std::move(memory));
    return device_memory_.back().get();
  };
  const auto move_input = [&](Tensor& tensor) {
    std::shared_ptr<std::byte> memory;
    if (tensor.device == device_) return;
    if (tensor.defined()) tensor = cuda::to_device(tensor, device_.index, memory);
    keep(memory);
  };
  const auto move_scalar = [&](Scalar& scalar) {
    if (Tensor* const tensor = std::get_if<Tensor>(&scalar)) move_input(*tensor);
  };
  const auto move_output = [&](Tensor& tensor, const OwnedTensor& host) {
    if (!tensor.defined()) return;
    tensor.device = device_;
    if (host.bytes == 0) return;
    std::byte* const memory = keep(cuda::allocate_device(host.bytes, device_.index));
    tensor.data = memory + (static_cast<std::byte*>(host.view.data) - host.memory.get());
    device_outputs_.emplace_back(&host, memory);
  };
  device_msa_ = msa_;
  device_qsa_ = qsa_;
  if (case_.is_msa()) {
    MsaArguments& a = device_msa_;
    for (Tensor* const t : {&a.q, &a.k, &a.v, &a.q2k_indices, &a.cu_seqlens_q, &a.cu_seqlens_k, &a.page_table,
                            &a.seqused_k, &a.q_offset}) {
      move_input(*t);
    }
    move_scalar(a.k_global_scale);
    move_scalar(a.v_global_scale);
    move_output(a.out, out_);
    move_output(a.lse, lse_);
    move_output(a.lse_t, lse_t_);
  } else {
    QsaArguments& a = device_qsa_;
    for (Tensor* const t : {&a.q, &a.k_cache, &a.v_cache, &a.block_table, &a.indexer_block_ids, &a.token_to_request,
                            &a.query_positions, &a.qo_indptr, &a.output_gate}) {
      move_input(*t);
    }
    if (a.sm_scale) move_scalar(*a.sm_scale);
    move_scalar(a.v_scale);
    move_output(a.out, out_);
    move_output(a.lse, lse_);
  }
  options_.workspace.data = keep(cuda::allocate_device(options_.workspace.bytes, device_.index));
  poison_outputs();
}

void CaseRun::fetch_outputs() {
  if (device_.type != DeviceType::cuda) return;
  cuda::synchronize(device_.index);
  for (const auto& [host, device] : device_outputs_) cuda::copy(host->memory.get(), device, host->bytes);
}

#else

void CaseRun::place_on_device() { throw UnsupportedError("this build of kvsieve has no CUDA backend"); }
void CaseRun::fetch_outputs() {}

#endif

void CaseRun::execute() {
  if (case_.mapping) case_.mapping->check_not_truncated();
  in_the_name_of(case_, [&] {
    try {
      call();
    } catch (const IndexError&) {
      fetch_outputs();  // which are written all the same
      throw;
    }
    fetch_outputs();
  });
}

void CaseRun::enqueue() {
  in_the_name_of(case_, [&] { call(); });
}

void CaseRun::call() {
  const bool on_device = device_.type == DeviceType::cuda;
  const MsaArguments& msa = on_device ? device_msa_ : msa_;
  switch (case_.operation) {
    case Operation::msa_prefill:
      msa_sparse_attention(msa, options_);
      break;
    case Operation::msa_decode:
      msa_sparse_decode_attention(msa, options_);
      break;
    case Operation::qsa:
      plan_->run(on_device ? device_qsa_ : qsa_, options_);
      break;
  }
}

Path CaseRun::path() const {
  const bool on_device = device_.type == DeviceType::cuda;
  if (case_.is_msa()) return msa_path(on_device ? device_msa_ : msa_, options_, case_.decode());
  return qsa_path(plan_->config(), on_device ? device_qsa_ : qsa_, options_);
}

void CaseRun::poison_outputs() {
  for (const OwnedTensor* const tensor : {&out_, &lse_, &lse_t_}) {
    if (tensor->bytes != 0) std::memset(tensor->memory.get(), 0xFF, tensor->bytes);
  }
#if KVSIEVE_HAS_CUDA
  for (const auto& [host, device] : device_outputs_) cuda::copy(device, host->memory.get(), host->bytes);
#endif
}

RunCheck check_run(const CaseRun& run, const Expected& expected) {
  RunCheck check;
  check.tolerance = tolerance_for(run.out().dtype);
  const auto note = [&](std::string failure) {
    if (check.failure.empty()) check.failure = std::move(failure);
  };
  if (expected.out.defined()) {
    check.out = compare_out(run.out(), expected.out);
    note(describe(*check.out, check.tolerance));
  }
  if (expected.lse.defined() && run.lse().defined()) {
    check.lse = compare_lse(run.lse(), expected.lse);
    note(describe(*check.lse, check.tolerance));
  }
  if (expected.lse_t.defined() && run.lse_t().defined()) {
    check.lse_t = compare_lse(run.lse_t(), expected.lse_t);
    note(describe(*check.lse_t, check.tolerance, "lse_t"));
  }
  if (!run.gaps_intact()) note("out: memory between its rows was written");
  return check;
}

void add_reference_results(Case& test_case) {
  in_the_name_of(test_case, [&] {
    // The reference validates nothing, and its results here are not of the dtype that a call's output has.
    const CaseRun run(test_case, {});
    MsaArguments msa = run.msa();
    QsaArguments qsa = run.qsa();
    if (test_case.is_msa()) {
      validate_msa(msa, {}, test_case.decode(), 0);
    } else {
      validate_qsa(test_case.qsa_config, qsa, {}, 0);
    }
    const std::span<const std::int64_t> shape = shape_of(test_case.q());
    const std::span<const std::int64_t> row_shape = shape.first(shape.size() - 1);
    Expected& expected = test_case.expected;
    expected.out = test_case.keep(make_tensor(DType::f32, shape));
    expected.lse = test_case.keep(make_tensor(DType::f32, row_shape));
    if (test_case.is_msa()) {
      msa.out = expected.out;
      msa.lse = expected.lse;
      if (test_case.wants_lse_t) msa.lse_t = expected.lse_t = test_case.keep(make_tensor(DType::f32, row_shape));
      reference::msa(msa, test_case.decode());
    } else {
      qsa.out = expected.out;
      qsa.lse = expected.lse;
      reference::qsa(test_case.qsa_config, qsa);
    }
  });
}

}  // namespace kvsieve::io
