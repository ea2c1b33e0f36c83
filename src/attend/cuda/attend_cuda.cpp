// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda/attend_cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>
#include <string>

#include "attend/cuda_portable/kernel.hpp"
#include "attend/cuda_sm90/kernel.hpp"
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
constexpr std::int64_t chunk = 64;  // keys of a step of the portable kernel

/// Rows a request from which on a call counts as prefill, whose tiles are filled with as many rows as fit.
constexpr std::int64_t many_neighbours = 16;
constexpr std::int64_t many_rows = 128;

std::size_t align_up(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Memory of a call within its workspace.
struct Layout {
  std::size_t entries = 0, counts = 0, rows = 0, tables = 0, partials = 0, total = 0;
};

/// The attend kernels.
enum class Kernel { portable_64, portable_16, sm90 };

struct Plan {
  Kernel kernel = Kernel::portable_64;
  std::int64_t tile_rows = 1;
  std::int64_t num_tiles = 0;
  std::int64_t num_splits = 1;  ///< portable: states of split rows go through the workspace
  sm90::Schedule schedule;      ///< sm90
  std::int32_t dense_blocks = 0;
  RouteOrder order;
};

/// Query rows whose route's hash table fits into shared memory, at least 1.
std::int64_t max_rows_of_route(const Shape& shape) {
  return std::max<std::int64_t>(max_shared_entries / (shape.topk + 1), 1);
}

Plan plan_portable(const Shape& shape, Kernel kernel, std::int64_t rows_hint, int num_processors) {
  const std::int64_t pairs = kernel == Kernel::portable_64 ? 64 : 16;
  const std::int64_t group = shape.num_qo_heads / shape.num_kv_heads;
  const std::int64_t most = std::min({pairs / group, max_tile_rows, max_rows_of_route(shape)});
  Plan plan;
  plan.kernel = kernel;
  plan.tile_rows = std::clamp<std::int64_t>(rows_hint, 1, most);
  plan.num_tiles = ceil_div(shape.total_q, plan.tile_rows);
  const std::int64_t blocks = plan.num_tiles * shape.num_kv_heads;
  const std::int64_t wanted = ceil_div(blocks_per_processor * num_processors, std::max<std::int64_t>(blocks, 1));
  const std::int64_t chunks = ceil_div(shape.topk * shape.block_size, chunk);
  plan.num_splits = std::clamp<std::int64_t>(wanted, 1, std::clamp<std::int64_t>(chunks / 2, 1, max_splits));
  return plan;
}

/// Thread blocks (a power of two) that share a tile's keys: what ends first by a count of the steps of 128 keys that
/// the busiest processor makes.
int choose_cluster(const Shape& shape, std::int64_t works, std::int64_t places) {
  constexpr std::int64_t steps_to_start = 2;
  constexpr std::int64_t steps_to_combine = 1;
  const std::int64_t steps = std::max<std::int64_t>(ceil_div(shape.topk * shape.block_size, 128), 1);
  int best = 1;
  std::int64_t best_cost = ceil_div(works, places) * (steps + steps_to_start);
  for (int splits = 2; splits <= 16 && splits <= 2 * steps; splits *= 2) {
    const std::int64_t cost =
        ceil_div(works * splits, places) * (ceil_div(steps, splits) + steps_to_start + steps_to_combine);
    if (cost < best_cost) {
      best = splits;
      best_cost = cost;
    }
  }
  return best;
}

/// Words of a dense table for requests of at most `kv_blocks` blocks; 0 when a hash table is the better choice.
std::int32_t dense_blocks(std::int64_t kv_blocks, std::int64_t most) {
  return kv_blocks <= most ? static_cast<std::int32_t>(kv_blocks) : 0;
}

/// `rows_hint`: neighbouring rows that share most of their selection. `kv_blocks`: of a request at most.
Plan plan_sm90(const Shape& shape, std::int64_t rows_hint, std::int64_t kv_blocks, int num_processors) {
  const std::int64_t group = shape.num_qo_heads / shape.num_kv_heads;
  Plan plan;
  plan.kernel = Kernel::sm90;
  plan.schedule.wide = rows_hint * group > 64;
  const sm90::KernelShape kernel = sm90::kernel_shape(shape.head_dim, plan.schedule.wide);
  const std::int64_t most = kernel.warpgroups * std::min(64 / group, max_tile_rows / kernel.warpgroups);
  const std::int64_t by_route =
      std::max<std::int64_t>(max_rows_of_route(shape) / kernel.warpgroups, 1) * kernel.warpgroups;
  // A request's rows in tiles of equal size, so that windows stay within a request where all have as many rows.
  const std::int64_t rows = rows_hint >= many_rows ? most : ceil_div(rows_hint, ceil_div(rows_hint, most));
  plan.tile_rows = std::min(by_route, rows);
  plan.schedule.warpgroup_tokens = static_cast<int>(ceil_div(plan.tile_rows, kernel.warpgroups));
  plan.num_tiles = ceil_div(shape.total_q, plan.tile_rows);
  const std::int64_t works = plan.num_tiles * shape.num_kv_heads;
  const std::int64_t places = std::int64_t{num_processors} * kernel.blocks_per_processor;
  const std::int64_t capacity = plan.tile_rows * (shape.topk + 1);
  plan.schedule.splits = choose_cluster(shape, works, places);
  plan.schedule.split_shift = std::countr_zero(static_cast<unsigned>(plan.schedule.splits));
  plan.order = {kernel.warpgroups, plan.schedule.warpgroup_tokens};
  plan.dense_blocks = dense_blocks(kv_blocks, max_dense_blocks);
  if (capacity <= kernel.route_entries && (!plan.schedule.wide || works <= 2 * places)) {
    const std::int32_t dense = dense_blocks(kv_blocks, kernel.route_words);
    plan.schedule.in_block_route = dense > 0 || route_table_slots(capacity) <= kernel.route_slots;
    if (plan.schedule.in_block_route) plan.dense_blocks = dense;
  }
  return plan;
}

Layout make_layout(const Shape& shape, const Plan& plan) {
  const std::int64_t lists = shape.shared_selection ? 1 : shape.num_kv_heads;
  const std::int64_t capacity = plan.tile_rows * (shape.topk + 1);
  const std::int64_t routes = plan.num_tiles * lists;
  Layout layout;
  if (plan.schedule.in_block_route) return layout;
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

/// True when data and strides of each row are multiples of `unit` elements; the last dimension is contiguous.
bool is_aligned(const void* data, std::size_t element_size, std::int64_t unit,
                std::initializer_list<std::int64_t> strides) {
  const std::size_t bytes = element_size * static_cast<std::size_t>(unit);
  if (reinterpret_cast<std::uintptr_t>(data) % bytes != 0) return false;
  return std::all_of(strides.begin(), strides.end(), [&](std::int64_t stride) { return stride % unit == 0; });
}

bool is_aligned(const KvCache& cache, DType dtype, std::int64_t unit) {
  return is_aligned(cache.data, dtype_size(dtype), unit, {cache.stride_page, cache.stride_head, cache.stride_token});
}

bool is_aligned(const RowHeads& rows, std::int64_t unit) {
  return is_aligned(rows.data, dtype_size(rows.dtype), unit, {rows.stride_row, rows.stride_head});
}

Plan plan_of(const AttentionProblem& p, bool hopper, int num_processors) {
  const Shape shape = shape_of(p, 0);
  const std::int64_t average = p.total_q / std::max<std::int64_t>(p.num_requests, 1);
  std::int64_t hint = max_tile_rows;  // prefill: as many neighbours as fit
  if (p.row_rule == RowRule::rows_per_request) hint = p.rows_per_request;
  if (p.row_rule == RowRule::per_row) hint = p.max_group_rows;
  const std::int64_t kv_blocks =
      ceil_div(p.paged ? p.max_pages * p.page_size : p.page_size, p.block_size);  // check_limits: fits 32 bits
  if (!hopper) {
    Plan plan =
        plan_portable(shape, hint * p.group() <= 16 ? Kernel::portable_16 : Kernel::portable_64, hint, num_processors);
    plan.dense_blocks = dense_blocks(kv_blocks, max_dense_blocks);
    return plan;
  }
  if (p.row_rule == RowRule::cu_seqlens) hint = std::clamp<std::int64_t>(average, 1, many_rows);
  if (p.row_rule == RowRule::per_row && average >= many_neighbours) hint = many_rows;
  return plan_sm90(shape, hint, kv_blocks, num_processors);
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
  check_sizes(shape_of(p, 0));
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

void check_sizes(const Shape& shape) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (max_tile_rows * (shape.topk + 1) > most / shape.block_size) {
    throw UnsupportedError("CUDA: a top-k of " + std::to_string(shape.topk) + " is too large");
  }
  if (shape.total_q * shape.num_qo_heads * max_splits > most) {
    throw UnsupportedError("CUDA: " + std::to_string(shape.total_q) + " rows are more than one launch takes");
  }
}

std::string sm90_refusal(const AttentionProblem& p, int device) {
  const DeviceProperties& properties = device_properties(device);
  if (properties.major != 9) return properties.name + " is not a Hopper GPU";
  if (p.lse_t.defined()) return "lse_t is asked for";
  const std::int64_t unit = 16 / static_cast<std::int64_t>(dtype_size(p.kv_dtype));
  if (!is_aligned(p.k, p.kv_dtype, unit) || !is_aligned(p.v, p.kv_dtype, unit)) {
    return "rows of k and v do not start at multiples of 16 bytes";
  }
  if (!is_aligned(p.q, 8)) return "rows of q do not start at multiples of 8 elements";
  if (!is_aligned(p.out, 2)) return "rows of out do not start at multiples of 2 elements";
  return {};
}

std::size_t workspace_bytes(const Shape& shape, int device) {
  // A bound over all kernels, tile heights and smaller calls, since a call's kernel depends on what is not a size.
  const int processors = device_properties(device).num_processors;
  const std::int64_t lists = shape.shared_selection ? 1 : shape.num_kv_heads;
  const std::int64_t group = shape.num_qo_heads / shape.num_kv_heads;
  const std::int64_t padded_rows = shape.total_q + max_tile_rows;  // the last tile may be partly filled
  const auto bytes = [](std::int64_t count, std::size_t size) {
    return align_up(static_cast<std::size_t>(count) * size);
  };
  const std::int64_t selections = padded_rows * (shape.topk + 1) * lists;
  std::size_t total = bytes(selections, sizeof(DeviceRouteEntry));
  total += bytes(padded_rows * lists, sizeof(std::int32_t));  // counts
  total += bytes(shape.total_q, sizeof(DeviceRow));
  // Hash tables: less than twice 10 / 7 of the selections and 16, if one tile's does not fit into shared memory.
  const std::int64_t most_capacity = std::max<std::int64_t>(max_shared_entries, 3 * (shape.topk + 1));
  if (route_table_slots(most_capacity) > max_shared_slots) {
    total += bytes(3 * selections + 32 * padded_rows * lists, 3 * sizeof(std::uint32_t));
  }
  // States of split rows, portable: rows * heads * splits, where tiles * KV heads * (splits - 1) is less than
  // blocks_per_processor * processors, and so are tiles * KV heads.
  const std::int64_t tile_rows = std::min(std::max<std::int64_t>(64 / group, 1), max_tile_rows);
  const std::int64_t few_rows =
      std::min(shape.total_q, tile_rows * ceil_div(blocks_per_processor * processors, shape.num_kv_heads));
  const std::int64_t states =
      std::min(few_rows * shape.num_qo_heads * max_splits,
               2 * blocks_per_processor * processors * tile_rows * group + few_rows * shape.num_qo_heads);
  total += bytes(states * (shape.head_dim + 2), sizeof(float));
  return total + alignment;
}

namespace {

void launch_attend(const AttendParameters& a, const Plan& plan, int num_processors, cudaStream_t stream) {
  const std::int64_t dim = a.problem.head_dim;
  if (plan.kernel == Kernel::sm90) {
    const sm90::Parameters parameters{a, plan.schedule};
    if (dim == 64) sm90::launch_d64(parameters, num_processors, stream);
    if (dim == 128) sm90::launch_d128(parameters, num_processors, stream);
    if (dim == 256) sm90::launch_d256(parameters, num_processors, stream);
    return;
  }
  const TileShape tile_shape = plan.kernel == Kernel::portable_64 ? TileShape::rows_64 : TileShape::rows_16;
  if (dim == 64) launch_attend_d64(a, tile_shape, stream);
  if (dim == 128) launch_attend_d128(a, tile_shape, stream);
  if (dim == 256) launch_attend_d256(a, tile_shape, stream);
}

}  // namespace

std::int64_t attend(const AttentionProblem& problem, int device, bool hopper, void* workspace, void* stream_handle,
                    bool check_indices) {
  if (problem.total_q == 0) return 0;
  check_limits(problem);
  const DeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Shape shape = shape_of(problem, 0);
  const int num_processors = device_properties(device).num_processors;
  const Plan plan = plan_of(problem, hopper, num_processors);
  const Layout layout = make_layout(shape, plan);
  auto* base = static_cast<char*>(workspace);
  base += align_up(reinterpret_cast<std::uintptr_t>(base)) - reinterpret_cast<std::uintptr_t>(base);

  AttendParameters a;
  a.problem = problem;
  a.device = device;
  a.routes.entries = reinterpret_cast<DeviceRouteEntry*>(base + layout.entries);
  a.routes.counts = reinterpret_cast<std::int32_t*>(base + layout.counts);
  a.routes.rows = reinterpret_cast<DeviceRow*>(base + layout.rows);
  a.routes.tile_rows = plan.tile_rows;
  a.routes.num_tiles = plan.num_tiles;
  a.routes.num_lists = shape.shared_selection ? 1 : shape.num_kv_heads;
  a.routes.capacity = plan.tile_rows * (shape.topk + 1);
  if (problem.paged) a.routes.blocks_per_page = static_cast<std::uint32_t>(problem.page_size / problem.block_size);
  a.routes.dense_blocks = plan.dense_blocks;
  a.routes.order = plan.order;
  a.partials.num_splits = plan.num_splits;
  if (plan.num_splits > 1) {
    const std::int64_t states = problem.total_q * problem.num_qo_heads * plan.num_splits;
    a.partials.out = reinterpret_cast<float*>(base + layout.partials);
    a.partials.lse = a.partials.out + states * problem.head_dim;
    if (problem.lse_t.defined()) a.partials.lse_t = a.partials.lse + states;
  }
  a.block_shift = std::countr_zero(static_cast<std::uint64_t>(problem.block_size));
  a.aligned = is_aligned(problem.k, problem.kv_dtype, 8) && is_aligned(problem.v, problem.kv_dtype, 8);

  if (!plan.schedule.in_block_route) build_routes(problem, a.routes, base + layout.tables, device, stream);
  launch_attend(a, plan, num_processors, stream);
  if (plan.num_splits > 1) combine_splits(a, stream);
  if (!check_indices) return 0;
  // The routes are done with their memory.
  return count_bad_indices(problem, reinterpret_cast<std::int64_t*>(base), stream);
}

}  // namespace kvsieve::cuda
