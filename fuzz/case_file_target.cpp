// SPDX-License-Identifier: Apache-2.0
#include "case_file_target.hpp"

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "io/case_run.hpp"

namespace kvsieve::fuzz {
namespace {

constexpr double max_work = 1 << 20;  // multiplications of Q with K
constexpr std::size_t max_workspace = 64 << 20;
constexpr std::int64_t max_size = 1 << 16;  // of a dimension, so that empty tensors do not ask for long loops either

void require(bool condition, const char* what, const std::string& detail) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

void require_one_line(const Error& error) {
  const std::string message = error.what();
  require(!message.empty() && message.find('\n') == std::string::npos, "not one line", message);
}

bool is_small(const Tensor& tensor) {
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > max_size) return false;
  }
  return true;
}

double product(const Tensor& tensor) {
  double result = 1;
  for (int i = 0; i < tensor.rank; ++i) result *= static_cast<double>(tensor.shape[i]) + 1;
  return result;
}

/// Keys that a row selects at most.
double selected_keys(const io::Case& test_case) {
  const Tensor& ids = test_case.is_msa() ? test_case.msa.q2k_indices : test_case.qsa.indexer_block_ids;
  const std::int64_t block = test_case.is_msa() ? test_case.msa.block_size : test_case.qsa_config.kv_block_size;
  return (static_cast<double>(ids.shape[ids.rank - 1]) + 1) * static_cast<double>(block);
}

std::size_t workspace_of(const io::Case& test_case, const CallOptions& options) {
  if (!test_case.is_msa()) return workspace_bytes(test_case.qsa_config);
  return workspace_bytes(msa_config(test_case.msa, options));
}

/// Small enough to run thousands of times a second.
bool is_affordable(const io::Case& test_case, const CallOptions& options) {
  const MsaArguments& m = test_case.msa;
  const QsaArguments& q = test_case.qsa;
  for (const Tensor* const tensor : {&m.q, &m.k, &m.v, &m.q2k_indices, &m.cu_seqlens_q, &m.cu_seqlens_k, &m.page_table,
                                     &m.seqused_k, &m.q_offset, &q.q, &q.k_cache, &q.v_cache, &q.block_table,
                                     &q.indexer_block_ids, &q.token_to_request, &q.query_positions, &q.qo_indptr}) {
    if (!is_small(*tensor)) return false;
  }
  if (product(test_case.q()) * selected_keys(test_case) > max_work) return false;
  try {
    return workspace_of(test_case, options) <= max_workspace;
  } catch (const Error& error) {
    require_one_line(error);
    return true;  // the run has to refuse it as well
  }
}

bool run(const io::Case& test_case) {
  CallOptions options;
  options.path = Path::cpu;
  options.num_threads = 1;
  if (!is_affordable(test_case, options)) return false;
  try {
    io::CaseRun call(test_case, options);
    call.execute();
    require(call.gaps_intact(), "memory between rows was written", test_case.name);
    return true;
  } catch (const Error& error) {
    require_one_line(error);
    return false;
  }
}

}  // namespace

bool check_case_file(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  io::Case test_case;
  try {
    test_case = io::parse_case(bytes, "input");
  } catch (const io::CaseError& error) {
    require_one_line(error);
    return false;
  }
  const std::vector<std::byte> written = io::serialize_case(test_case);
  // What was accepted once must be accepted again, so an exception here is a fault.
  const std::vector<std::byte> again = io::serialize_case(io::parse_case(written, "written"));
  require(written == again, "changed when written and read", std::to_string(written.size()));
  return run(test_case);
}

}  // namespace kvsieve::fuzz
