// SPDX-License-Identifier: Apache-2.0
//
// Checks that every tensor argument shares. The success path allocates nothing and builds no text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve {

/// A set of dtypes that an argument may have.
class DTypeSet {
 public:
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) bits_ |= 1u << static_cast<unsigned>(dtype);
  }
  constexpr bool contains(DType dtype) const {
    return static_cast<unsigned>(dtype) < 32 && (bits_ >> static_cast<unsigned>(dtype) & 1) != 0;
  }
  std::string to_string() const;

 private:
  unsigned bits_ = 0;
};

/// One dimension of an argument as the documentation names it; `any` where the argument itself defines the size.
struct Dim {
  static constexpr std::int64_t any = -1;
  const char* name;
  std::int64_t size = any;
};
using Dims = std::initializer_list<Dim>;

/// What is asked of an argument's strides: `rows` a contiguous last dimension, `free` nothing.
enum class Strides { rows, free };

/// Throws ArgumentError.
[[noreturn]] void fail(const char* argument, const std::string& got, const std::string& want);
/// Throws ArgumentError that describes the tensor as it is.
[[noreturn]] void fail(const char* argument, const Tensor& got, const std::string& want);

/// Collects the arguments of one call: checks each on its own, then that nothing written overlaps anything else.
class ArgumentChecker {
 public:
  /// All tensors must be on `device`, which is that of `device_owner` ("q").
  ArgumentChecker(Device device, const char* device_owner) : device_(device), device_owner_(device_owner) {}

  void input(const char* name, const Tensor& tensor, DTypeSet dtypes, Dims dims, Strides strides = Strides::rows);
  void output(const char* name, const Tensor& tensor, DTypeSet dtypes, Dims dims, Strides strides = Strides::rows);
  /// A host float must be finite, a tensor one f32 element.
  void scalar(const char* name, const Scalar& scalar);
  /// Does nothing when no workspace is required.
  void workspace(const Workspace& workspace, std::size_t required);

  /// Throws when an output or the workspace overlaps any other argument. Call last.
  void no_overlap() const;

 private:
  struct Span {
    const char* name;
    std::uintptr_t begin, end;
    bool written;
  };

  void tensor(const char* name, const Tensor& tensor, DTypeSet dtypes, Dims dims, Strides strides, bool written);
  void memory(const char* name, const Tensor& tensor, Strides strides, bool written);
  void add_span(const Span& span) { spans_[num_spans_++] = span; }

  static constexpr int max_spans = 20;
  Device device_;
  const char* device_owner_;
  std::array<Span, max_spans> spans_;
  int num_spans_ = 0;
};

void check_finite(const char* name, float value);

}  // namespace kvsieve
