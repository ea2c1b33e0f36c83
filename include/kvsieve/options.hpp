// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <variant>

#include "kvsieve/export.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve {

/// A scalar that is either a host float or a one-element f32 tensor on the call's device, which is read when the
/// call executes (so that a captured CUDA graph sees its value at replay).
using Scalar = std::variant<float, Tensor>;

/// Scratch memory, owned by the caller, on the call's device. Contents before and after mean nothing. No alignment
/// is needed beyond what `workspace_bytes` already accounts for.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Implementations of the attend stage. `automatic` takes the best one that is right for the device and shape.
enum class Path { automatic, reference, cpu, cuda_portable, cuda_sm90 };

/// "auto", "reference", "cpu", "cuda_portable", "cuda_sm90".
KVSIEVE_API std::string_view path_name(Path path) noexcept;
/// Inverse of path_name. Throws ArgumentError (argument `path`) for an unknown name.
KVSIEVE_API Path path_from_name(std::string_view name);

/// How a call executes; what it computes is in its arguments.
struct CallOptions {
  Workspace workspace{};
  /// cudaStream_t of the call, null for the default stream. Ignored on the CPU, where a call returns when done.
  void* stream = nullptr;
  /// Forces a path, for tests and comparisons; UnsupportedError if it does not take the call. `automatic` is
  /// overridden by the environment variable KVSIEVE_PATH, read once per process.
  Path path = Path::automatic;
  /// CPU threads used by this call, 0 for all cores. Part of the workspace size and of the split-KV decision: results
  /// are bitwise repeatable for equal inputs and an equal thread count.
  int num_threads = 0;
  /// Skips every host check of the arguments. With wrong arguments the behaviour is then undefined.
  bool unchecked = false;
  /// Debug: counts index entries that are out of range (they are skipped in any case) and throws IndexError after the
  /// outputs are written when there are any. On CUDA this synchronises the stream. An MSA id of -1 is padding and
  /// never counted; neither are entries past the prefix that a row may use.
  bool check_indices = false;
};

}  // namespace kvsieve
