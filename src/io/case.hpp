// SPDX-License-Identifier: Apache-2.0
//
// A case: one call of the library as data. Cases are read from files (docs/case-format.md) or generated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"
#include "io/tensor_storage.hpp"
#include "kvsieve/msa.hpp"
#include "kvsieve/qsa.hpp"

namespace kvsieve::io {

enum class Operation { msa_prefill, msa_decode, qsa };

/// "msa_prefill", "msa_decode", "qsa".
std::string_view operation_name(Operation operation) noexcept;

/// How the tensors lie in memory. A file stores them row-major; loading it rebuilds these layouts, with poison (NaN, or
/// garbage indices) in every gap.
struct MemoryLayout {
  KvLayout kv = KvLayout::hnd;
  /// Unused elements after each [Hq, D] row of q, output_gate and out.
  std::int64_t row_gap = 0;
  /// Unused elements after each row of q2k_indices, indexer_block_ids, page_table and block_table.
  std::int64_t index_gap = 0;
};

/// f32 results to compare with; tensors that are not given are undefined.
struct Expected {
  Tensor out;
  Tensor lse;
  Tensor lse_t;
};

struct Case {
  /// The file, or what stands for it in messages.
  std::string name;
  Operation operation = Operation::msa_prefill;

  /// Inputs and scalars of an MSA case; the outputs are undefined.
  MsaArguments msa;
  /// True: lse_t is asked for, at msa.lse_temperature_scale.
  bool wants_lse_t = false;
  /// Configuration and inputs of a QSA case; the outputs are undefined.
  QsaConfig qsa_config;
  QsaArguments qsa;

  MemoryLayout layout;
  Expected expected;
  /// Free text: the seed that the case was generated from.
  std::string seed;

  /// Metadata keys and tensors of the file that have no meaning to this version.
  std::vector<std::string> ignored;
  /// Keeps the memory of all tensors.
  std::vector<std::shared_ptr<const void>> memory;
  /// The mapped file, when tensors lie in one.
  std::shared_ptr<const MappedFile> mapping;

  bool is_msa() const noexcept { return operation != Operation::qsa; }
  bool decode() const noexcept { return operation == Operation::msa_decode; }
  const Tensor& q() const noexcept { return is_msa() ? msa.q : qsa.q; }
  const Tensor& k() const noexcept { return is_msa() ? msa.k : qsa.k_cache; }
  const Tensor& v() const noexcept { return is_msa() ? msa.v : qsa.v_cache; }
  DType out_dtype() const noexcept { return is_msa() ? msa.q.dtype : qsa_config.out_dtype; }

  /// Takes over the memory of a tensor and returns its view.
  Tensor keep(const OwnedTensor& tensor) {
    memory.push_back(tensor.memory);
    return tensor.view;
  }
};

/// Throws CaseError. What only the library's own validation sees (head counts, matching shapes, ...) is found when the
/// case is run.
Case load_case(const std::string& path);
/// The same from bytes in memory, which must outlive the case. `name` stands for the file in messages.
Case parse_case(std::span<const std::byte> bytes, std::string name);

/// Throws CaseError when the file cannot be written.
void write_case(const Case& test_case, const std::string& path);
std::vector<std::byte> serialize_case(const Case& test_case);

}  // namespace kvsieve::io
