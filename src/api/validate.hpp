// SPDX-License-Identifier: Apache-2.0
//
// The host checks of the public calls: everything that can be known from shapes, dtypes, strides, devices and pointers.
#pragma once

#include "kvsieve/merge.hpp"
#include "kvsieve/msa.hpp"
#include "kvsieve/qsa.hpp"

namespace kvsieve {

/// Throws ArgumentError that names the argument, what it got and what it wants. `decode` selects between
/// msa_sparse_decode_attention and msa_sparse_attention. `required_workspace` is 0 for paths that need none.
void validate_msa(const MsaArguments& arguments, const CallOptions& options, bool decode,
                  std::size_t required_workspace);
void validate_msa_config(const MsaConfig& config);

void validate_qsa_config(const QsaConfig& config);
/// Checks live data against the plan.
void validate_qsa(const QsaConfig& config, const QsaArguments& arguments, const CallOptions& options,
                  std::size_t required_workspace);

void validate_merge(const MergeArguments& arguments, const CallOptions& options);

}  // namespace kvsieve
