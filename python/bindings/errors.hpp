// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "kvsieve/error.hpp"

namespace kvsieve::python {

/// An argument that is not of a kind that the call takes at all: `kvsieve.ArgumentTypeError`, a TypeError.
class ArgumentTypeError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

/// Has every exception of the library raised as the class of its name in `kvsieve.errors`.
void register_errors();

/// str(object).
std::string string_of(nanobind::handle object);

/// "<class 'list'>": an object's type, for messages.
std::string type_of(nanobind::handle object);

}  // namespace kvsieve::python
