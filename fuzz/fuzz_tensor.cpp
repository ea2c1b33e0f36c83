// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer over the host checks of tensor arguments (tensor_target.hpp has the property).
#include "tensor_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvsieve::fuzz::check_tensor_arguments(data, size);
  return 0;
}
