// SPDX-License-Identifier: Apache-2.0
//
// kernel.cuh declares its dynamic shared memory as an external array; here the name stands for that of the thread block
// that runs. To be included right before kernel.cuh, and after the headers that give the name to other things.
#pragma once

#include "attend/cuda_sm90/consumer.cuh"
#include "attend/cuda_sm90/producer.cuh"
#include "attend/cuda_sm90/split_states.cuh"
#include "cuda/launch.cuh"
#include "emulator/emulator.hpp"

namespace kvsieve::cuda::sm90 {

using BlockMemory = unsigned char (*)[];
inline unsigned char (*emulated_block_memory())[] { return reinterpret_cast<BlockMemory>(emulator::block_memory()); }

}  // namespace kvsieve::cuda::sm90

#undef __align__
#define __align__(n)
#undef __shared__
#define __shared__
#define shared_memory (*emulated_block_memory())
