// SPDX-License-Identifier: Apache-2.0
#include "io/case_run.hpp"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "api/validate.hpp"
#include "reference/reference.hpp"

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

CaseRun::CaseRun(Case test_case, const CallOptions& options, bool with_lse)
    : case_(std::move(test_case)), options_(options), msa_(case_.msa), qsa_(case_.qsa) {
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
      bytes = workspace_bytes(msa_config(msa_, options_));
    } else {
      qsa_.out = out_.view;
      qsa_.lse = lse_.view;
      case_.qsa_config.num_threads = options_.num_threads;
      plan_.emplace(case_.qsa_config);
      bytes = plan_->workspace_bytes();
    }
    workspace_ = allocate(bytes);
    options_.workspace = {workspace_.get(), bytes};
  });
}

void CaseRun::execute() {
  if (case_.mapping) case_.mapping->check_not_truncated();
  in_the_name_of(case_, [&] { call(); });
}

void CaseRun::call() {
  switch (case_.operation) {
    case Operation::msa_prefill:
      return msa_sparse_attention(msa_, options_);
    case Operation::msa_decode:
      return msa_sparse_decode_attention(msa_, options_);
    case Operation::qsa:
      return plan_->run(qsa_, options_);
  }
}

void CaseRun::poison_outputs() {
  for (const OwnedTensor* const tensor : {&out_, &lse_, &lse_t_}) {
    if (tensor->bytes != 0) std::memset(tensor->memory.get(), 0xFF, tensor->bytes);
  }
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
