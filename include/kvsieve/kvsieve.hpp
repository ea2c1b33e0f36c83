// SPDX-License-Identifier: Apache-2.0
//
// Attention over selected KV-cache blocks. This header includes the whole public API.
#pragma once

#include "kvsieve/error.hpp"
#include "kvsieve/info.hpp"
#include "kvsieve/merge.hpp"
#include "kvsieve/msa.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/qsa.hpp"
#include "kvsieve/tensor.hpp"
