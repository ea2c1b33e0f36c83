// SPDX-License-Identifier: Apache-2.0
//
// DLPack's C ABI, version 1 (https://dmlc.github.io/dlpack): the layouts that array libraries exchange, under names of
// our own. Only what the bindings use.
#pragma once

#include <cstdint>

#include "kvsieve/tensor.hpp"

namespace kvsieve::python::dlpack {

using kvsieve::dlpack::device_cuda;
inline constexpr int code_uint = 1;
inline constexpr std::uint32_t major_version = 1;
inline constexpr std::uint64_t flag_read_only = 1;

struct Device {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {  // DLTensor
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // DLManagedTensor, the capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct VersionedTensor {  // DLManagedTensorVersioned, the capsule "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

/// DLPackExchangeAPI: the functions that an array library offers at `type.__dlpack_c_exchange_api__`. They answer 0 on
/// success and set a Python exception otherwise.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  int (*allocate)(const Tensor* prototype, VersionedTensor** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*from_object)(void* object, VersionedTensor** out);
  int (*to_object)(VersionedTensor* tensor, void** out);
  int (*view_of_object)(void* object, Tensor* out);  // may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace kvsieve::python::dlpack
