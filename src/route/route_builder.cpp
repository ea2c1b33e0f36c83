// SPDX-License-Identifier: Apache-2.0
#include "route/route_builder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvsieve {
namespace {

/// At most half full, so that probes stay short.
std::uint64_t table_size(std::int64_t max_entries) {
  return std::bit_ceil(std::max<std::uint64_t>(16, 2 * static_cast<std::uint64_t>(max_entries)));
}

}  // namespace

std::size_t RouteBuilder::memory_bytes(std::int64_t max_entries) {
  return table_size(max_entries) * sizeof(std::int32_t) + static_cast<std::size_t>(max_entries) * sizeof(RouteEntry);
}

RouteBuilder::RouteBuilder(void* memory, std::int64_t tile_rows, std::int64_t max_entries) : tile_rows_(tile_rows) {
  const std::uint64_t size = table_size(max_entries);
  table_ = static_cast<std::int32_t*>(memory);
  table_mask_ = static_cast<std::uint32_t>(size - 1);
  table_shift_ = 32 - std::countr_zero(size);
  entries_ = reinterpret_cast<RouteEntry*>(table_ + size);
}

void RouteBuilder::add(const AttentionProblem& problem, std::int32_t request, std::int64_t block,
                       std::uint32_t member) {
  std::uint32_t place = (static_cast<std::uint32_t>(block) * 0x9E3779B1u) >> table_shift_;
  while (table_[place] != 0) {
    RouteEntry& entry = entries_[table_[place] - 1];
    if (entry.block == block) {
      entry.members |= member;
      return;
    }
    place = (place + 1) & table_mask_;
  }
  const BlockLocation location = locate_block(problem, request, block);
  if (location.page < 0) return;  // not in the table: skipped as if not selected
  entries_[num_entries_] = {location.page, location.slot, static_cast<std::int32_t>(block), member};
  table_[place] = static_cast<std::int32_t>(++num_entries_);
}

Route RouteBuilder::build(const AttentionProblem& problem, std::int64_t kv_head, std::int64_t row_begin,
                          std::int64_t row_end) {
  Route route;
  route.row_begin = row_begin;
  num_entries_ = 0;
  std::memset(table_, 0, (static_cast<std::size_t>(table_mask_) + 1) * sizeof(std::int32_t));

  row_end = std::min(row_end, row_begin + tile_rows_);
  std::int32_t request = -1;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const RowTarget target = row_target(problem, row);
    if (row > row_begin && (target.request != request || target.request < 0)) break;
    request = target.request;
    route.limits[route.num_rows] = target.limit;
    const std::uint32_t member = 1u << route.num_rows;
    ++route.num_rows;
    if (target.empty()) continue;

    const std::int32_t* ids = problem.ids + row * problem.ids_stride_row + kv_head * problem.ids_stride_head;
    for (std::int64_t i = 0; i < target.num_ids; ++i) {
      const std::int64_t block = ids[i];
      if (!is_visible_block(problem, target, block)) continue;
      add(problem, request, block, member);
    }
    if (target.tail_block >= 0) add(problem, request, target.tail_block, member);
  }

  if (route.num_rows > 1) {
    std::sort(entries_, entries_ + num_entries_, [](const RouteEntry& a, const RouteEntry& b) {
      return a.members != b.members ? a.members > b.members : a.block < b.block;
    });
  }
  route.entries = entries_;
  route.num_entries = num_entries_;
  return route;
}

}  // namespace kvsieve
