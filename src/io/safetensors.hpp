// SPDX-License-Identifier: Apache-2.0
//
// The safetensors container: 8 bytes with the length N of the header (little endian), N bytes of JSON, then the data of
// the tensors, each at the `data_offsets` that the header gives, without gaps or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/case_error.hpp"
#include "io/mapped_file.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve::io {

/// One tensor of a file, row-major. `data` may not be aligned for `dtype`.
struct StoredTensor {
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

using Metadata = std::map<std::string, std::string, std::less<>>;

/// A parsed file. The tensors point into `mapping`, or into the caller's memory when that is null.
struct SafetensorsFile {
  std::string name;  ///< the file's path, for messages
  Metadata metadata;
  std::map<std::string, StoredTensor, std::less<>> tensors;
  std::shared_ptr<const MappedFile> mapping;
};

/// Maps a file and parses its header. Throws CaseError for everything that is wrong with it: after this, every tensor
/// lies within the file, its byte length is that of its shape and dtype, its rank is at most Tensor::max_rank, and the
/// product of its non-zero dimensions and element size fits in 63 bits.
SafetensorsFile read_safetensors(const std::string& path);
/// The same for bytes in memory, which must outlive the result. `name` stands for the file in messages.
SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, std::string name);

/// A tensor to be written: row-major, `bytes` long.
struct TensorToWrite {
  std::string name;
  StoredTensor tensor;
};

/// Writes a file in which every tensor is aligned for its dtype (wider dtypes come first). Throws CaseError when it
/// cannot be written.
void write_safetensors(const std::string& path, const Metadata& metadata, std::vector<TensorToWrite> tensors);
/// The same file as bytes.
std::vector<std::byte> serialize_safetensors(const Metadata& metadata, std::vector<TensorToWrite> tensors);

/// "BF16", "F8_E4M3", ...: the format's name of a dtype, and its inverse (DType::none for a name that is not
/// supported).
std::string_view safetensors_dtype_name(DType dtype) noexcept;
DType safetensors_dtype(std::string_view name) noexcept;

}  // namespace kvsieve::io
