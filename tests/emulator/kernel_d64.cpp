// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90/kernel_d64.cu"
