// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "kvsieve/error.hpp"
#include "kvsieve/export.hpp"

namespace kvsieve {

/// Element types. `f8_e4m3` is the OCP FP8 E4M3 format without infinities (S.1111.111 is NaN, largest finite
/// value 448), which PyTorch calls float8_e4m3fn.
enum class DType : std::uint8_t { none, f32, f16, bf16, f8_e4m3, i32, i64 };

/// Bytes per element; 0 for DType::none.
constexpr std::size_t dtype_size(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f8_e4m3:
      return 1;
    case DType::i64:
      return 8;
    case DType::none:
      break;
  }
  return 0;
}

/// "bf16", "f16", "f8_e4m3", "f32", "i32", "i64" or "none".
KVSIEVE_API std::string_view dtype_name(DType dtype) noexcept;

enum class DeviceType : std::uint8_t { cpu, cuda };

/// Where a tensor's memory lives. `index` is the CUDA ordinal and 0 on the CPU.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// Non-owning view of a strided array: pointer, dtype, shape, strides, device. A default-constructed Tensor
/// (`defined()` is false) stands for an argument that is not given.
///
/// Strides count elements, not bytes, may be zero or negative in no dimension that has more than one element
/// and that the callee writes, and are ignored in dimensions of size 1.
struct KVSIEVE_API Tensor {
  static constexpr int max_rank = 6;

  void* data = nullptr;
  DType dtype = DType::none;
  int rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> stride{};
  Device device{};

  Tensor() = default;
  /// Contiguous (row-major) view. Throws ArgumentError when there are more than `max_rank` dimensions.
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {});
  /// Strided view; `shape` and `stride` have the same length. Throws ArgumentError otherwise.
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> stride, Device device = {});

  /// True when the argument is given. A tensor with no elements may have a null pointer and is still given.
  bool defined() const noexcept { return dtype != DType::none; }
  /// Number of elements, 1 for rank 0. Saturates at INT64_MAX when the product of the shape overflows.
  std::int64_t numel() const noexcept;
  /// Row-major with no gaps.
  bool is_contiguous() const noexcept;
};

/// "bf16[512, 64, 128] strides [8192, 128, 1] on cpu"; "not given" for an undefined tensor.
KVSIEVE_API std::string to_string(const Tensor& tensor);
KVSIEVE_API std::string to_string(Device device);

// ---- DLPack -----------------------------------------------------------------------------------------------
//
// The conversions are templates over the caller's own `DLTensor`, so kvsieve needs no DLPack header and works
// with every version of it. The numeric codes below are DLPack's ABI (dlpack.h, DLDataTypeCode, DLDeviceType).

namespace dlpack {
inline constexpr int code_int = 0;
inline constexpr int code_float = 2;
inline constexpr int code_bfloat = 4;
inline constexpr int code_float8_e4m3fn = 10;
inline constexpr int device_cpu = 1;
inline constexpr int device_cuda = 2;
inline constexpr int device_cuda_host = 3;
inline constexpr int device_cuda_managed = 13;
}  // namespace dlpack

/// View of a DLPack tensor. Copies shape and strides; the data stays the caller's. CUDA managed memory counts as
/// CUDA, pinned host memory as CPU. Throws ArgumentError (argument `dltensor`) for a dtype, device, lane count or
/// rank that kvsieve does not have.
template <class DLTensorT>
Tensor from_dlpack(const DLTensorT& t) {
  const int code = static_cast<int>(t.dtype.code);
  const int bits = static_cast<int>(t.dtype.bits);
  const int device_type = static_cast<int>(t.device.device_type);
  Tensor out;
  if (code == dlpack::code_float && bits == 32) out.dtype = DType::f32;
  if (code == dlpack::code_float && bits == 16) out.dtype = DType::f16;
  if (code == dlpack::code_bfloat && bits == 16) out.dtype = DType::bf16;
  if (code == dlpack::code_float8_e4m3fn && bits == 8) out.dtype = DType::f8_e4m3;
  if (code == dlpack::code_int && bits == 32) out.dtype = DType::i32;
  if (code == dlpack::code_int && bits == 64) out.dtype = DType::i64;
  if (!out.defined() || t.dtype.lanes != 1) {
    throw ArgumentError("dltensor",
                        "DLPack dtype code " + std::to_string(code) + ", bits " + std::to_string(bits) + ", lanes " +
                            std::to_string(static_cast<int>(t.dtype.lanes)),
                        "float32, float16, bfloat16, float8_e4m3fn, int32 or int64 with 1 lane");
  }
  if (device_type == dlpack::device_cpu || device_type == dlpack::device_cuda_host) {
    out.device = {DeviceType::cpu, 0};
  } else if (device_type == dlpack::device_cuda || device_type == dlpack::device_cuda_managed) {
    out.device = {DeviceType::cuda, static_cast<int>(t.device.device_id)};
  } else {
    throw ArgumentError("dltensor", "DLPack device type " + std::to_string(device_type), "CPU (1) or CUDA (2)");
  }
  if (t.ndim < 0 || t.ndim > Tensor::max_rank) {
    throw ArgumentError("dltensor", std::to_string(static_cast<int>(t.ndim)) + " dimensions",
                        "0 to " + std::to_string(Tensor::max_rank));
  }
  if (t.ndim > 0 && t.shape == nullptr) throw ArgumentError("dltensor", "a null shape", "an array of ndim sizes");
  out.rank = static_cast<int>(t.ndim);
  out.data = t.data == nullptr ? nullptr : static_cast<void*>(static_cast<char*>(t.data) + t.byte_offset);
  std::int64_t next = 1;  // a null stride array means row-major
  for (int i = out.rank - 1; i >= 0; --i) {
    out.shape[i] = t.shape[i];
    out.stride[i] = t.strides != nullptr ? t.strides[i] : next;
    if (t.strides == nullptr && __builtin_mul_overflow(next, t.shape[i], &next)) next = INT64_MAX;
  }
  return out;
}

/// DLPack view of a Tensor. `shape` and `strides` of the result point into `t`, which must outlive it.
/// Throws ArgumentError (argument `tensor`) for an undefined tensor.
template <class DLTensorT>
DLTensorT to_dlpack(Tensor& t) {
  if (!t.defined()) throw ArgumentError("tensor", "a tensor that is not given", "a defined tensor");
  DLTensorT out{};
  int code = dlpack::code_int;
  if (t.dtype == DType::f32 || t.dtype == DType::f16) code = dlpack::code_float;
  if (t.dtype == DType::bf16) code = dlpack::code_bfloat;
  if (t.dtype == DType::f8_e4m3) code = dlpack::code_float8_e4m3fn;
  out.data = t.data;
  out.byte_offset = 0;
  out.ndim = t.rank;
  out.dtype.code = static_cast<decltype(out.dtype.code)>(code);
  out.dtype.bits = static_cast<decltype(out.dtype.bits)>(8 * dtype_size(t.dtype));
  out.dtype.lanes = 1;
  out.device.device_type = static_cast<decltype(out.device.device_type)>(
      t.device.type == DeviceType::cpu ? dlpack::device_cpu : dlpack::device_cuda);
  out.device.device_id = t.device.index;
  out.shape = t.shape.data();
  out.strides = t.stride.data();
  return out;
}

}  // namespace kvsieve
