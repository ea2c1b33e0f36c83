// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks functions that the CPU backend and CUDA kernels share.
#if defined(__CUDACC__)
#define KVSIEVE_HOST_DEVICE __host__ __device__
#else
#define KVSIEVE_HOST_DEVICE
#endif
