// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_portable/attend_cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "attend/cuda_portable/kernel.hpp"
#include "combine/combine_cuda.hpp"
#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "kvsieve/error.hpp"
#include "route/route_cuda.hpp"

namespace kvsieve::cuda {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::int64_t max_tile_rows = 32;  // one membership bit a row
/// Entries of a route whose hash table still fits into shared memory.
constexpr std::int64_t max_shared_entries = max_shared_slots * 7 / 10 - 32;
/// Thread blocks for each processor at which splitting the keys of a tile stops paying.
constexpr std::int64_t blocks_per_processor = 2;
constexpr std::int64_t max_splits = 64;
constexpr std::int64_t chunk = 64;

std::size_t align_up(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Memory of a call within its workspace.
struct Layout {
  std::size_t entries = 0, counts = 0, rows = 0, tables = 0, partials = 0, total = 0;
};

struct Plan {
  TileShape shape = TileShape::rows_64;
  std::int64_t tile_rows = 1;
  std::int64_t num_tiles = 0;
  std::int64_t num_splits = 1;
};

std::int64_t max_rows_of_tile(const Shape& shape, TileShape tile_shape) {
  const std::int64_t pairs = tile_shape == TileShape::rows_64 ? 64 : 16;
  const std::int64_t group = shape.num_qo_heads / shape.num_kv_heads;
  const std::int64_t by_pairs = std::min(pairs / group, max_tile_rows);
  return std::clamp<std::int64_t>(max_shared_entries / (shape.topk + 1), 1, by_pairs);
}

std::int64_t choose_splits(const Shape& shape, std::int64_t blocks, int num_processors) {
  const std::int64_t wanted = ceil_div(blocks_per_processor * num_processors, std::max<std::int64_t>(blocks, 1));
  const std::int64_t chunks = ceil_div(shape.topk * shape.block_size, chunk);
  return std::clamp<std::int64_t>(wanted, 1, std::clamp<std::int64_t>(chunks / 2, 1, max_splits));
}

Plan make_plan(const Shape& shape, TileShape tile_shape, std::int64_t rows_hint, int num_processors) {
  Plan plan;
  plan.shape = tile_shape;
  plan.tile_rows = std::min(max_rows_of_tile(shape, tile_shape), std::max<std::int64_t>(rows_hint, 1));
  plan.num_tiles = ceil_div(shape.total_q, plan.tile_rows);
  plan.num_splits = choose_splits(shape, plan.num_tiles * shape.num_kv_heads, num_processors);
  return plan;
}

Layout make_layout(const Shape& shape, const Plan& plan) {
  const std::int64_t lists = shape.shared_selection ? 1 : shape.num_kv_heads;
  const std::int64_t capacity = plan.tile_rows * (shape.topk + 1);
  const std::int64_t routes = plan.num_tiles * lists;
  Layout layout;
  std::size_t used = 0;
  const auto take = [&](std::size_t bytes) {
    const std::size_t at = used;
    used += align_up(bytes);
    return at;
  };
  layout.entries = take(static_cast<std::size_t>(routes * capacity) * sizeof(DeviceRouteEntry));
  layout.counts = take(static_cast<std::size_t>(routes) * sizeof(std::int32_t));
  layout.rows = take(static_cast<std::size_t>(shape.total_q) * sizeof(DeviceRow));
  layout.tables = take(route_table_bytes(capacity, routes));
  if (plan.num_splits > 1) {
    const std::int64_t states = shape.total_q * shape.num_qo_heads * plan.num_splits;
    layout.partials = take(static_cast<std::size_t>(states * (shape.head_dim + 2)) * sizeof(float));
  }
  layout.total = used;
  return layout;
}

Shape shape_of(const AttentionProblem& p) {
  Shape shape;
  shape.total_q = p.total_q;
  shape.num_qo_heads = p.num_qo_heads;
  shape.num_kv_heads = p.num_kv_heads;
  shape.head_dim = p.head_dim;
  shape.topk = p.topk;
  shape.block_size = p.block_size;
  shape.shared_selection = p.ids_stride_head == 0;
  return shape;
}

Plan plan_of(const AttentionProblem& p, int num_processors) {
  std::int64_t hint = max_tile_rows;  // prefill: as many neighbours as fit
  if (p.row_rule == RowRule::rows_per_request) hint = p.rows_per_request;
  if (p.row_rule == RowRule::per_row) hint = p.max_group_rows;
  const TileShape tile_shape = hint * p.group() <= 16 ? TileShape::rows_16 : TileShape::rows_64;
  return make_plan(shape_of(p), tile_shape, hint, num_processors);
}

bool rows_are_aligned(const AttentionProblem& p) {
  const auto element = static_cast<std::int64_t>(dtype_size(p.kv_dtype));
  const std::int64_t unit = 8 * element;  // what a thread loads at a time
  const auto aligned = [&](const KvCache& cache) {
    return reinterpret_cast<std::uintptr_t>(cache.data) % static_cast<std::uintptr_t>(unit) == 0 &&
           cache.stride_page * element % unit == 0 && cache.stride_head * element % unit == 0 &&
           cache.stride_token * element % unit == 0;
  };
  return aligned(p.k) && aligned(p.v);
}

void check_limits(const AttentionProblem& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t tokens = p.paged ? p.max_pages * p.page_size : p.page_size;
  if (tokens > most) {
    throw UnsupportedError("CUDA: a KV capacity of " + std::to_string(tokens) + " tokens is more than 2^31 - 1");
  }
  if (tokens / p.block_size >= (std::int64_t{1} << 27) - 1) {
    throw UnsupportedError("CUDA: a KV capacity of " + std::to_string(tokens / p.block_size) +
                           " blocks is more than 2^27 - 2");
  }
  if (p.total_q * p.num_qo_heads * max_splits > most) {
    throw UnsupportedError("CUDA: " + std::to_string(p.total_q) + " rows are more than one launch takes");
  }
}

void combine_splits(const AttendParameters& a, cudaStream_t stream) {
  const AttentionProblem& p = a.problem;
  CombineParameters c;
  c.states.out = a.partials.out;
  c.states.num_states = a.partials.num_splits;
  c.states.out_stride_state = p.head_dim;
  c.states.out_stride_head = p.head_dim * a.partials.num_splits;
  c.states.out_stride_row = c.states.out_stride_head * p.num_qo_heads;
  c.states.lse = a.partials.lse;
  c.states.lse_stride_state = 1;
  c.states.lse_stride_head = a.partials.num_splits;
  c.states.lse_stride_row = a.partials.num_splits * p.num_qo_heads;
  c.shape = {p.total_q, p.num_qo_heads, p.head_dim};
  c.problem = p;
  c.lse_t_states = a.partials.lse_t;
  combine(c, stream);
}

}  // namespace

std::size_t workspace_bytes(const Shape& shape, int device) {
  // The tile shape and the rows that a tile gets depend on what is not a size (decode or prefill), so the largest
  // layout of all counts. Splits only exist for few rows; the bound is the same for more.
  const int processors = device_properties(device).num_processors;
  std::size_t most = 0;
  for (const TileShape tile_shape : {TileShape::rows_64, TileShape::rows_16}) {
    for (std::int64_t rows = 1; rows <= max_rows_of_tile(shape, tile_shape); ++rows) {
      Plan plan = make_plan(shape, tile_shape, rows, processors);
      const std::int64_t few_rows =
          std::min(shape.total_q, plan.tile_rows * ceil_div(blocks_per_processor * processors, shape.num_kv_heads));
      plan.num_splits = 1;
      const std::size_t base = make_layout(shape, plan).total;
      // states = rows * heads * splits, where tiles * KV heads * (splits - 1) < blocks_per_processor * processors.
      const std::int64_t pairs = plan.tile_rows * shape.num_qo_heads / shape.num_kv_heads;
      const std::int64_t states =
          std::min(few_rows * shape.num_qo_heads * max_splits,
                   2 * blocks_per_processor * processors * pairs + few_rows * shape.num_qo_heads);
      most = std::max(most, base + align_up(static_cast<std::size_t>(states * (shape.head_dim + 2)) * sizeof(float)));
    }
  }
  return most + alignment;
}

std::int64_t attend(const AttentionProblem& problem, int device, void* workspace, void* stream_handle,
                    bool check_indices) {
  if (problem.total_q == 0) return 0;
  check_limits(problem);
  const DeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Shape shape = shape_of(problem);
  const Plan plan = plan_of(problem, device_properties(device).num_processors);
  const Layout layout = make_layout(shape, plan);
  auto* base = static_cast<char*>(workspace);
  base += align_up(reinterpret_cast<std::uintptr_t>(base)) - reinterpret_cast<std::uintptr_t>(base);

  AttendParameters a;
  a.problem = problem;
  a.routes.entries = reinterpret_cast<DeviceRouteEntry*>(base + layout.entries);
  a.routes.counts = reinterpret_cast<std::int32_t*>(base + layout.counts);
  a.routes.rows = reinterpret_cast<DeviceRow*>(base + layout.rows);
  a.routes.tile_rows = plan.tile_rows;
  a.routes.num_tiles = plan.num_tiles;
  a.routes.num_lists = shape.shared_selection ? 1 : shape.num_kv_heads;
  a.routes.capacity = plan.tile_rows * (shape.topk + 1);
  a.partials.num_splits = plan.num_splits;
  if (plan.num_splits > 1) {
    const std::int64_t states = problem.total_q * problem.num_qo_heads * plan.num_splits;
    a.partials.out = reinterpret_cast<float*>(base + layout.partials);
    a.partials.lse = a.partials.out + states * problem.head_dim;
    if (problem.lse_t.defined()) a.partials.lse_t = a.partials.lse + states;
  }
  a.block_shift = std::countr_zero(static_cast<std::uint64_t>(problem.block_size));
  a.aligned = rows_are_aligned(problem);

  build_routes(problem, a.routes, base + layout.tables, stream);
  if (problem.head_dim == 64) launch_attend_d64(a, plan.shape, stream);
  if (problem.head_dim == 128) launch_attend_d128(a, plan.shape, stream);
  if (problem.head_dim == 256) launch_attend_d256(a, plan.shape, stream);
  if (plan.num_splits > 1) combine_splits(a, stream);
  if (!check_indices) return 0;
  // The routes are done with their memory.
  return count_bad_indices(problem, reinterpret_cast<std::int64_t*>(base), stream);
}

}  // namespace kvsieve::cuda
