// SPDX-License-Identifier: Apache-2.0
//
// What the emulated CUDA backend has done, and the GPU that it emulates.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace kvsieve::emulator {

inline int num_processors = 8;  ///< of the next call's GPU
inline int most_splits = 0;     ///< largest cluster of a launch so far
inline std::int64_t calls_emulated = 0;
inline std::int64_t calls_elsewhere = 0;              ///< that the Hopper kernels do not take
inline std::map<std::string, std::int64_t> launches;  ///< by the name that the launch gives

}  // namespace kvsieve::emulator
