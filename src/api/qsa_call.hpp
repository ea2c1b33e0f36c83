// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "kvsieve/qsa.hpp"

namespace kvsieve {

/// What QsaPlan::run computes, for a configuration that follows from the call. A plan is refused when its groups, all
/// full, are more than a path takes; the groups of a call may have fewer rows, and the call alone is judged here.
/// `workspace`: workspace_bytes(config).
void run_qsa(const QsaConfig& config, std::size_t workspace, const QsaArguments& arguments, const CallOptions& options);

}  // namespace kvsieve
