// SPDX-License-Identifier: Apache-2.0
//
// What the emulated CUDA backend has done, and the GPU that it emulates.
#pragma once

#include <cstdint>

namespace kvsieve::emulator {

inline int num_processors = 8;  ///< of the next call's GPU
inline std::int64_t calls_emulated = 0;
inline std::int64_t calls_elsewhere = 0;  ///< that the Hopper kernel does not take

}  // namespace kvsieve::emulator
