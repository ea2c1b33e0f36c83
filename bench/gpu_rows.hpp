// SPDX-License-Identifier: Apache-2.0
//
// The rows that GPU speed is judged by, with the times that were set as aims and those of today's engines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/work.hpp"
#include "bench/workload.hpp"

namespace kvsieve::bench {

/// What one H200 (132 SMs) reaches; measured once, with everything below on that GPU.
struct GpuCeilings {
  double flops_per_second = 811e12;   ///< BF16 matrix product, 8192^3, random data
  double bytes_per_second = 4.43e12;  ///< sum over 4 GiB
  int num_processors = 132;
};
inline constexpr GpuCeilings h200;

/// The larger of the useful FLOPs and the unique bytes at the ceilings.
double floor_seconds(const Work& work, const GpuCeilings& ceilings = h200);

/// Microseconds; 0 where nobody published a number.
struct PublishedTimes {
  double triton = 0;  ///< today's serving engines on Hopper: a Triton program for each (query token, KV head)
  double floor = 0;   ///< as stated with the target
  double target = 0;
  double beyond = 0;
};

struct GpuRow {
  Workload workload;
  PublishedTimes published;
  /// Rows of a group have a weighted mean; "" for rows that stand alone.
  std::string group;
  double weight = 0;
  /// Useful FLOP/s of the Triton kernel, where its time is known by its rate.
  double triton_flops_per_second = 0;
};

/// One row for each shape and batch size that has a target, MSA and QSA. `num_processors`: of the GPU, for the rows per
/// group of QSA prefill. Rows that add a variant to a target's row have its times, and its name plus the variant.
std::vector<GpuRow> target_rows(int num_processors = h200.num_processors);

/// MSA shapes of a production service with their share of the calls: prefill in chunks, and decode with 8 queries a
/// request, once with one selection for the 8 and once with selections that are local in time.
std::vector<GpuRow> production_rows();

/// The rows whose names contain `filter`, in any case. `quick`: tiny shapes, to see that everything works.
std::vector<GpuRow> choose_rows(std::vector<GpuRow> rows, const std::string& filter, bool quick);

}  // namespace kvsieve::bench
