// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90_decode/kernel_d128.cu"
