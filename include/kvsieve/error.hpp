// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "kvsieve/export.hpp"

namespace kvsieve {

/// Base of everything the library throws. `what()` is one line.
class KVSIEVE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument that the host can see is wrong: shape, dtype, stride, device, alignment, null pointer,
/// workspace too small, output overlapping an input. Thrown before anything has been written.
class KVSIEVE_API ArgumentError : public Error {
 public:
  ArgumentError(std::string argument, std::string got, std::string want)
      : Error(argument + ": got " + got + ", want " + want),
        argument_(std::move(argument)),
        got_(std::move(got)),
        want_(std::move(want)) {}

  /// Name of the argument as the documentation spells it, for example `q2k_indices`.
  const std::string& argument() const noexcept { return argument_; }
  const std::string& got() const noexcept { return got_; }
  const std::string& want() const noexcept { return want_; }

 private:
  std::string argument_;
  std::string got_;
  std::string want_;
};

/// The call is well formed, but no path of this build is right for it: a device that the library was not
/// built for, or a forced path (`CallOptions::path`, KVSIEVE_PATH) that does not take this shape.
class KVSIEVE_API UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// Raised after the call has finished, only when `CallOptions::check_indices` is set: some index entries were
/// out of range. They were skipped as if not selected, so the outputs are written and finite.
class KVSIEVE_API IndexError : public Error {
 public:
  IndexError(const std::string& message, std::int64_t bad_entries) : Error(message), bad_entries_(bad_entries) {}
  /// Number of index entries that were skipped because they were out of range.
  std::int64_t bad_entries() const noexcept { return bad_entries_; }

 private:
  std::int64_t bad_entries_;
};

}  // namespace kvsieve
