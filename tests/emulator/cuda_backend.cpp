// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda/attend_cuda.cpp"
#include "attend/cuda_sm90_decode/schedule.cpp"
