// SPDX-License-Identifier: Apache-2.0
#include "route/route_cuda.cu"
