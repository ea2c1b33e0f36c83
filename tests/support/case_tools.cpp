// SPDX-License-Identifier: Apache-2.0
#include "support/case_tools.hpp"

#include <cmath>
#include <memory>
#include <utility>

#include "core/numeric.hpp"
#include "reference/reference.hpp"

namespace kvsieve::test {
namespace {

void add_scalar(std::vector<NamedTensor>& inputs, const char* name, Scalar& scalar) {
  if (Tensor* const tensor = std::get_if<Tensor>(&scalar)) inputs.push_back({name, tensor});
}

std::int64_t element_offset(const Tensor& tensor, std::int64_t flat) {
  std::int64_t offset = 0;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    offset += flat % tensor.shape[i] * tensor.stride[i];
    flat /= tensor.shape[i];
  }
  return offset;
}

}  // namespace

std::vector<NamedTensor> inputs_of(io::Case& c) {
  std::vector<NamedTensor> all;
  if (c.is_msa()) {
    all = {{"q", &c.msa.q},
           {"k", &c.msa.k},
           {"v", &c.msa.v},
           {"q2k_indices", &c.msa.q2k_indices},
           {"cu_seqlens_q", &c.msa.cu_seqlens_q},
           {"cu_seqlens_k", &c.msa.cu_seqlens_k},
           {"page_table", &c.msa.page_table},
           {"seqused_k", &c.msa.seqused_k},
           {"q_offset", &c.msa.q_offset}};
    add_scalar(all, "k_global_scale", c.msa.k_global_scale);
    add_scalar(all, "v_global_scale", c.msa.v_global_scale);
  } else {
    all = {{"q", &c.qsa.q},
           {"k_cache", &c.qsa.k_cache},
           {"v_cache", &c.qsa.v_cache},
           {"block_table", &c.qsa.block_table},
           {"indexer_block_ids", &c.qsa.indexer_block_ids},
           {"token_to_request", &c.qsa.token_to_request},
           {"query_positions", &c.qsa.query_positions},
           {"qo_indptr", &c.qsa.qo_indptr},
           {"output_gate", &c.qsa.output_gate}};
    if (c.qsa.sm_scale) add_scalar(all, "sm_scale", *c.qsa.sm_scale);
    add_scalar(all, "v_scale", c.qsa.v_scale);
  }
  std::erase_if(all, [](const NamedTensor& input) { return !input.tensor->defined(); });
  return all;
}

std::vector<NamedTensor> index_inputs_of(io::Case& test_case) {
  std::vector<NamedTensor> indices = inputs_of(test_case);
  std::erase_if(indices, [](const NamedTensor& input) {
    return input.tensor->dtype != DType::i32 && input.tensor->dtype != DType::i64;
  });
  return indices;
}

io::Case guarded_copy(const io::Case& test_case, Guard guard, const std::function<void(io::Case&)>& change) {
  io::Case copy = test_case;
  const auto memory = std::make_shared<GuardedMemory>(guard);
  for (const NamedTensor& input : inputs_of(copy)) *input.tensor = memory->copy(*input.tensor);
  if (change) change(copy);
  memory->seal();
  copy.memory.push_back(memory);
  copy.expected = {};
  return copy;
}

void set_integer(const Tensor& tensor, std::int64_t flat, std::int64_t value) {
  const std::int64_t offset = element_offset(tensor, flat);
  if (tensor.dtype == DType::i64) {
    static_cast<std::int64_t*>(tensor.data)[offset] = value;
  } else {
    static_cast<std::int32_t*>(tensor.data)[offset] = static_cast<std::int32_t>(value);
  }
}

std::int64_t get_integer(const Tensor& tensor, std::int64_t flat) {
  const std::int64_t offset = element_offset(tensor, flat);
  if (tensor.dtype == DType::i64) return static_cast<const std::int64_t*>(tensor.data)[offset];
  return static_cast<const std::int32_t*>(tensor.data)[offset];
}

void make_finite(const Tensor& cache) {
  io::for_each_run(cache, [&](std::int64_t offset) {
    for (std::int64_t d = 0; d < cache.shape[cache.rank - 1]; ++d) {
      if (!std::isfinite(load_as_float(cache.data, cache.dtype, offset + d))) {
        store_from_float(cache.data, cache.dtype, offset + d, static_cast<float>(d % 7) - 3.0f);
      }
    }
  });
}

CallOptions cpu_options(int num_threads) {
  CallOptions options;
  options.path = Path::cpu;
  options.num_threads = num_threads;
  return options;
}

std::string check_against_reference(io::Case test_case, const CallOptions& options, bool with_lse, Device device) {
  io::add_reference_results(test_case);
  const io::Expected expected = test_case.expected;
  io::CaseRun run(std::move(test_case), options, with_lse, device);
  run.poison_outputs();
  run.execute();
  return io::check_run(run, expected).failure;
}

std::int64_t reported_bad_indices(const io::Case& test_case, CallOptions options, Device device) {
  options.check_indices = true;
  io::CaseRun run(test_case, options, true, device);
  try {
    run.execute();
  } catch (const IndexError& error) {
    return error.bad_entries();
  }
  return 0;
}

std::int64_t reference_bad_indices(const io::Case& test_case) {
  return test_case.is_msa() ? reference::msa_bad_indices(test_case.msa, test_case.decode())
                            : reference::qsa_bad_indices(test_case.qsa_config, test_case.qsa);
}

}  // namespace kvsieve::test
