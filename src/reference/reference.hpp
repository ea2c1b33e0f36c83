// SPDX-License-Identifier: Apache-2.0
//
// The definition of right: every operation in float64, straight from the formulas of the public headers, one row at a
// time. It shares no code with the fast paths (not even their lowering), so that it can judge them.
#pragma once

#include "kvsieve/merge.hpp"
#include "kvsieve/msa.hpp"
#include "kvsieve/qsa.hpp"

namespace kvsieve::reference {

/// Float64 results of one query row, before rounding to the output dtype: out is [Hq, D], lse and lse_t are [Hq].
struct Row {
  double* out = nullptr;
  double* lse = nullptr;
  double* lse_t = nullptr;  ///< may be null
};

/// One row of an MSA call, for checks on sampled rows. `decode` says which public call it is.
void msa_row(const MsaArguments& arguments, bool decode, std::int64_t row, const Row& result);
/// One row of a QSA call. `out` has the gate applied as the contract says (the attention is rounded to out_dtype
/// first).
void qsa_row(const QsaConfig& config, const QsaArguments& arguments, std::int64_t row, const Row& result);

/// Whole calls, rounded to the dtypes of the output tensors. CPU tensors only; no validation.
void msa(const MsaArguments& arguments, bool decode);
void qsa(const QsaConfig& config, const QsaArguments& arguments);
void merge(const MergeArguments& arguments);

/// Number of index entries of the call that are out of range and not padding (see CallOptions::check_indices): ids that
/// count and name no block, or a block that the row sees and whose page is out of range (QSA: also an incomplete last
/// block without a page, once per list of ids); token_to_request; positions past max_seq_len_kv; KV ranges of requests.
std::int64_t msa_bad_indices(const MsaArguments& arguments, bool decode);
std::int64_t qsa_bad_indices(const QsaConfig& config, const QsaArguments& arguments);

}  // namespace kvsieve::reference
