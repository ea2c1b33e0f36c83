// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90/combine_shares.cu"
