// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/safetensors_header.hpp"

namespace kvsieve::io {
namespace {

constexpr std::size_t length_bytes = 8;
// The limit of the format's reference implementation. Far above any real header; it bounds the time spent on a bad one.
constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr auto max_int64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName dtype_names[] = {{DType::bf16, "BF16"},       {DType::f16, "F16"}, {DType::f32, "F32"},
                                     {DType::f8_e4m3, "F8_E4M3"}, {DType::i32, "I32"}, {DType::i64, "I64"}};

std::uint64_t load_length(const std::byte* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = (value << 8) | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < length_bytes) {
    throw CaseError(file,
                    fmt::format("is {} bytes long, a safetensors file has at least {}", bytes.size(), length_bytes));
  }
  const std::uint64_t length = load_length(bytes.data());
  const std::uint64_t available = bytes.size() - length_bytes;
  if (length > available) {
    throw CaseError(file, fmt::format("header length is {} bytes, but only {} follow", length, available));
  }
  if (length > max_header_bytes) {
    throw CaseError(file, fmt::format("header length is {} bytes, at most {} are allowed", length, max_header_bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + length_bytes, length);
  if (text.empty() || text.front() != '{') throw CaseError(file, "header does not start with '{'");
  return text;
}

/// Bytes that a tensor of this shape has. Zero dimensions do not excuse an overflow of the others: strides are products
/// too.
std::uint64_t byte_length(const HeaderEntry& entry, DType dtype, const std::string& file) {
  std::uint64_t product = dtype_size(dtype);
  bool empty = false;
  for (const std::uint64_t size : entry.shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product) || product > max_int64) {
      throw CaseError(file, entry.name, fmt::format("shape [{}] overflows 63 bits", fmt::join(entry.shape, ", ")));
    }
  }
  return empty ? 0 : product;
}

StoredTensor make_tensor(const HeaderEntry& entry, std::span<const std::byte> data, const std::string& file) {
  StoredTensor tensor;
  tensor.dtype = safetensors_dtype(entry.dtype);
  if (tensor.dtype == DType::none) {
    throw CaseError(file, entry.name,
                    fmt::format("dtype is {}, want BF16, F16, F32, F8_E4M3, I32 or I64", in_quotes(entry.dtype)));
  }
  const std::uint64_t wanted = byte_length(entry, tensor.dtype, file);
  const std::uint64_t begin = entry.offsets[0];
  const std::uint64_t end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    throw CaseError(file, entry.name,
                    fmt::format("data_offsets [{}, {}] are not within the {} bytes of data", begin, end, data.size()));
  }
  if (end - begin != wanted) {
    throw CaseError(file, entry.name,
                    fmt::format("data_offsets give {} bytes, {} [{}] has {}", end - begin, entry.dtype,
                                fmt::join(entry.shape, ", "), wanted));
  }
  tensor.shape.assign(entry.shape.begin(), entry.shape.end());
  tensor.data = data.data() + begin;
  tensor.bytes = wanted;
  return tensor;
}

/// The format allows neither gaps nor overlaps, so that a file has one meaning and carries nothing hidden.
void check_coverage(std::vector<HeaderEntry>& entries, std::uint64_t data_bytes, const std::string& file) {
  std::sort(entries.begin(), entries.end(),
            [](const HeaderEntry& a, const HeaderEntry& b) { return a.offsets < b.offsets; });
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const HeaderEntry& entry = entries[i];
    if (entry.offsets[0] < covered) {
      throw CaseError(file, entry.name, fmt::format("overlaps tensor {}", in_quotes(entries[i - 1].name)));
    }
    if (entry.offsets[0] > covered) {
      throw CaseError(file, entry.name, fmt::format("{} unused bytes before its data", entry.offsets[0] - covered));
    }
    covered = entry.offsets[1];
  }
  if (covered != data_bytes) throw CaseError(file, fmt::format("{} unused bytes after the data", data_bytes - covered));
}

std::string header_for(const Metadata& metadata, const std::vector<TensorToWrite>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", safetensors_dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((length_bytes - text.size() % length_bytes) % length_bytes, ' ');
  return text;
}

/// Calls `sink(data, bytes)` for each part of the file in turn.
template <class Sink>
void emit(const Metadata& metadata, std::vector<TensorToWrite> tensors, Sink&& sink) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return dtype_size(a.tensor.dtype) > dtype_size(b.tensor.dtype);
  });
  const std::string header = header_for(metadata, tensors);
  std::byte length[length_bytes];
  for (std::size_t i = 0; i < length_bytes; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  sink(length, sizeof length);
  sink(reinterpret_cast<const std::byte*>(header.data()), header.size());
  for (const auto& to_write : tensors) sink(to_write.tensor.data, to_write.tensor.bytes);
}

}  // namespace

std::string_view safetensors_dtype_name(DType dtype) noexcept {
  for (const auto& entry : dtype_names) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "";
}

DType safetensors_dtype(std::string_view name) noexcept {
  for (const auto& entry : dtype_names) {
    if (entry.name == name) return entry.dtype;
  }
  return DType::none;
}

SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, std::string name) {
  const std::string_view text = header_text(bytes, name);
  const std::span<const std::byte> data = bytes.subspan(length_bytes + text.size());
  Header header = parse_header(text, name);
  SafetensorsFile file;
  for (const HeaderEntry& entry : header.entries) file.tensors.emplace(entry.name, make_tensor(entry, data, name));
  check_coverage(header.entries, data.size(), name);
  file.metadata = std::move(header.metadata);
  file.name = std::move(name);
  return file;
}

SafetensorsFile read_safetensors(const std::string& path) {
  auto mapping = std::make_shared<const MappedFile>(path);
  SafetensorsFile file = parse_safetensors(mapping->bytes(), path);
  file.mapping = std::move(mapping);
  return file;
}

void write_safetensors(const std::string& path, const Metadata& metadata, std::vector<TensorToWrite> tensors) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file) throw CaseError(path, fmt::format("cannot write: {}", std::strerror(errno)));
  emit(metadata, std::move(tensors), [&](const std::byte* data, std::size_t bytes) {
    if (bytes != 0 && std::fwrite(data, 1, bytes, file.get()) != bytes) {
      throw CaseError(path, fmt::format("cannot write: {}", std::strerror(errno)));
    }
  });
  if (std::fflush(file.get()) != 0) throw CaseError(path, fmt::format("cannot write: {}", std::strerror(errno)));
}

std::vector<std::byte> serialize_safetensors(const Metadata& metadata, std::vector<TensorToWrite> tensors) {
  std::vector<std::byte> bytes;
  emit(metadata, std::move(tensors),
       [&](const std::byte* data, std::size_t count) { bytes.insert(bytes.end(), data, data + count); });
  return bytes;
}

}  // namespace kvsieve::io
