// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda/attend_cuda.cpp"
#include "attend/cuda_sm90/kernel_shape.cpp"
