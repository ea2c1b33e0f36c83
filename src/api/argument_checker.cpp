// SPDX-License-Identifier: Apache-2.0
#include "api/argument_checker.hpp"

#include <cmath>
#include <limits>

namespace kvsieve {
namespace {

/// Exact for every product of a size and a stride, and for the sum of max_rank of them.
using Wide = __int128;

constexpr std::array all_dtypes = {DType::bf16, DType::f16, DType::f8_e4m3, DType::f32, DType::i32, DType::i64};

std::string describe(DTypeSet dtypes, Dims dims) {
  std::string text = dtypes.to_string();
  text += " [";
  for (const Dim& dim : dims) {
    if (&dim != dims.begin()) text += ", ";
    text += dim.name;
    if (dim.size == Dim::any) continue;
    text += "=";
    text += std::to_string(dim.size);
  }
  return text + "]";
}

bool rank_in_range(const Tensor& tensor) { return tensor.rank >= 0 && tensor.rank <= Tensor::max_rank; }

bool has_shape(const Tensor& tensor, Dims dims) {
  if (tensor.rank != static_cast<int>(dims.size())) return false;
  const std::int64_t* size = tensor.shape.data();
  for (const Dim& dim : dims) {
    if (*size < 0 || (dim.size != Dim::any && *size != dim.size)) return false;
    ++size;
  }
  return true;
}

/// Bytes [begin, end) that the elements of a tensor lie in; false when they would leave the address space. The tensor
/// is not empty.
bool address_range(const Tensor& tensor, std::uintptr_t& begin, std::uintptr_t& end) {
  constexpr Wide limit = std::numeric_limits<std::int64_t>::max();
  if (tensor.numel() == limit) return false;
  Wide low = 0, high = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    const Wide reach = static_cast<Wide>(tensor.shape[i] - 1) * tensor.stride[i];
    (reach < 0 ? low : high) += reach;
  }
  if (low < -limit || high > limit) return false;
  const Wide address = reinterpret_cast<std::uintptr_t>(tensor.data);
  const Wide size = static_cast<Wide>(dtype_size(tensor.dtype));
  const Wide first = address + low * size, past_last = address + (high + 1) * size;
  if (first < 0 || past_last > limit) return false;
  begin = static_cast<std::uintptr_t>(first);
  end = static_cast<std::uintptr_t>(past_last);
  return true;
}

/// True when every dimension's stride steps over all that the dimensions of smaller stride span, so that no two indices
/// name one element.
bool is_nested(const Tensor& tensor) {
  std::array<int, Tensor::max_rank> order;  // dimensions of more than one element, by stride
  int count = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] <= 1) continue;
    int place = count++;
    for (; place > 0 && tensor.stride[order[place - 1]] > tensor.stride[i]; --place) order[place] = order[place - 1];
    order[place] = i;
  }
  Wide span = 1;
  for (int i = 0; i < count; ++i) {
    const int dim = order[i];
    if (tensor.stride[dim] < span) return false;
    span += static_cast<Wide>(tensor.shape[dim] - 1) * tensor.stride[dim];
  }
  return true;
}

}  // namespace

std::string DTypeSet::to_string() const {
  std::string text;
  for (const DType dtype : all_dtypes) {
    if (!contains(dtype)) continue;
    if (!text.empty()) text += " or ";
    text += dtype_name(dtype);
  }
  return text;
}

void fail(const char* argument, const std::string& got, const std::string& want) {
  throw ArgumentError(argument, got, want);
}

void fail(const char* argument, const Tensor& got, const std::string& want) {
  if (!rank_in_range(got)) fail(argument, "a tensor of rank " + std::to_string(got.rank), want);
  fail(argument, to_string(got), want);
}

void check_finite(const char* name, float value) {
  if (!std::isfinite(value)) fail(name, std::to_string(value), "a finite number");
}

void ArgumentChecker::input(const char* name, const Tensor& t, DTypeSet dtypes, Dims dims, Strides strides) {
  tensor(name, t, dtypes, dims, strides, /*written=*/false);
}

void ArgumentChecker::output(const char* name, const Tensor& t, DTypeSet dtypes, Dims dims, Strides strides) {
  tensor(name, t, dtypes, dims, strides, /*written=*/true);
}

void ArgumentChecker::tensor(const char* name, const Tensor& t, DTypeSet dtypes, Dims dims, Strides strides,
                             bool written) {
  if (!dtypes.contains(t.dtype) || !has_shape(t, dims)) fail(name, t, describe(dtypes, dims));
  memory(name, t, strides, written);
}

void ArgumentChecker::memory(const char* name, const Tensor& t, Strides strides, bool written) {
  if (t.device != device_) {
    fail(name, t, "a tensor on " + to_string(device_) + ", the device of " + device_owner_);
  }
  if (t.numel() == 0) return;
  if (t.data == nullptr) fail(name, "a null pointer for " + to_string(t), "the address of its elements");
  const int last = t.rank - 1;
  if (strides == Strides::rows && t.shape[last] > 1 && t.stride[last] != 1) {
    fail(name, t, "a contiguous last dimension (stride 1)");
  }
  const std::size_t size = dtype_size(t.dtype);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(t.data) % size;
  if (misaligned != 0) {
    fail(name, "an address that is " + std::to_string(misaligned) + " modulo " + std::to_string(size),
         "an address aligned to its elements");
  }
  Span span{name, 0, 0, written};
  if (!address_range(t, span.begin, span.end)) fail(name, t, "a shape and strides inside the address space");
  if (written && !is_nested(t)) fail(name, t, "positive strides under which no two elements share memory");
  add_span(span);
}

void ArgumentChecker::scalar(const char* name, const Scalar& scalar) {
  if (const float* value = std::get_if<float>(&scalar)) return check_finite(name, *value);
  const Tensor& t = std::get<Tensor>(scalar);
  if (t.dtype != DType::f32 || !rank_in_range(t) || t.numel() != 1)
    fail(name, t, "a float or an f32 tensor of 1 element");
  memory(name, t, Strides::free, /*written=*/false);
}

void ArgumentChecker::workspace(const Workspace& workspace, std::size_t required) {
  if (required == 0) return;
  if (workspace.data == nullptr || workspace.bytes < required) {
    fail("workspace",
         workspace.data == nullptr ? std::string("a null pointer") : std::to_string(workspace.bytes) + " bytes",
         "at least " + std::to_string(required) + " bytes");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  add_span({"workspace", address, address + required, /*written=*/true});
}

void ArgumentChecker::no_overlap() const {
  for (int i = 0; i < num_spans_; ++i) {
    if (!spans_[i].written) continue;
    for (int j = 0; j < num_spans_; ++j) {
      if (j == i || (j > i && spans_[j].written)) continue;  // of two outputs, the later one is named
      if (spans_[i].begin >= spans_[j].end || spans_[j].begin >= spans_[i].end) continue;
      fail(spans_[i].name, std::string("memory that overlaps ") + spans_[j].name, "memory that no other argument uses");
    }
  }
}

}  // namespace kvsieve
