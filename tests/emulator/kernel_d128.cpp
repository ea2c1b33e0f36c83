// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include "emulator/kernel_memory.hpp"  // before what it is for
#include "attend/cuda_sm90/kernel_d128.cu"
// clang-format on
