// SPDX-License-Identifier: Apache-2.0
#include "attend/cpu/attend_cpu.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "attend/cpu/kernel.hpp"
#include "combine/combine.hpp"
#include "core/thread_pool.hpp"
#include "route/route_builder.hpp"

namespace kvsieve::cpu {
namespace {

constexpr std::size_t alignment = 64;

/// Keys that a split should have at least: below, merging the states costs more than the second core brings.
constexpr std::int64_t min_split_keys = 128;

/// Selected ids of a tile at most (unless one row alone has more): bounds the route's hash table to the L2 cache.
constexpr std::int64_t max_tile_ids = 32768;

std::size_t align_up(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

int resolve_threads(int num_threads) { return num_threads > 0 ? num_threads : ThreadPool::instance().size(); }

/// Threads that really run: a request for more than there are cores still decides the splits, but gets no more scratch.
int num_workers(int threads) { return std::min(threads, ThreadPool::instance().size()); }

std::int64_t group_of(const Shape& shape) { return shape.num_qo_heads / shape.num_kv_heads; }

/// Rows of a tile as far as its (row, head) pairs decide.
std::int64_t max_rows_by_lanes(const Shape& shape) {
  const auto rows =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(max_tile_lanes / group_of(shape))));
  return std::min(rows, max_tile_rows);
}

std::int64_t max_rows_per_tile(const Shape& shape) {
  return std::clamp<std::int64_t>(max_tile_ids / (shape.topk + 1), 1, max_rows_by_lanes(shape));
}

/// Route entries of a tile at most; grows with topk, so that a call never needs more than a larger one.
std::int64_t max_route_entries(const Shape& shape) {
  const std::int64_t ids = shape.topk + 1;
  return std::max(ids, std::min(max_rows_by_lanes(shape) * ids, max_tile_ids));
}

std::size_t route_bytes(const Shape& shape) { return align_up(RouteBuilder::memory_bytes(max_route_entries(shape))); }

std::size_t worker_bytes(const Shape& shape) {
  return route_bytes(shape) + align_up(scratch_bytes(max_rows_by_lanes(shape) * group_of(shape), shape.head_dim));
}

/// Floats of one state: output, lse, lse_t.
std::int64_t state_floats(const Shape& shape) { return shape.head_dim + 2; }

/// How a call is cut into tasks. Depends on shapes and the thread count alone.
struct Plan {
  std::int64_t tile_rows = 1;
  std::int64_t num_tiles = 0;
  std::int64_t num_splits = 1;
};

/// Fewest splits that keep all threads busy at least 90% of the time, or as busy as four tasks a thread can.
std::int64_t choose_splits(std::int64_t tasks, int threads, std::int64_t max_splits) {
  std::int64_t best = 1;
  double best_use = 0.0;
  const std::int64_t most = std::int64_t{4} * threads;
  for (std::int64_t splits = 1; splits <= max_splits && tasks * splits < tasks + most; ++splits) {
    const std::int64_t rounds = (tasks * splits + threads - 1) / threads;
    const double use = static_cast<double>(tasks * splits) / static_cast<double>(rounds * threads);
    if (use > best_use + 1e-9) {
      best = splits;
      best_use = use;
    }
    if (best_use >= 0.9) break;
  }
  return best;
}

Plan make_plan(const AttentionProblem& problem, const Shape& shape, int threads) {
  Plan plan;
  if (problem.total_q == 0) return plan;
  const std::int64_t cap = max_rows_per_tile(shape);
  const auto tiles = [&](std::int64_t rows) { return (problem.total_q + rows - 1) / rows; };
  if (problem.row_rule == RowRule::rows_per_request && problem.rows_per_request <= cap) {
    plan.tile_rows = problem.rows_per_request;  // a decode tile is a request
  } else {
    // Larger tiles share more loads and conversions; smaller ones keep every core busy.
    plan.tile_rows = cap;
    while (plan.tile_rows > 1 && plan.tile_rows > problem.max_group_rows &&
           tiles(plan.tile_rows) * problem.num_kv_heads < std::int64_t{2} * threads) {
      plan.tile_rows /= 2;
    }
  }
  plan.num_tiles = tiles(plan.tile_rows);
  const std::int64_t tasks = plan.num_tiles * problem.num_kv_heads;
  if (tasks < std::int64_t{4} * threads) {
    const std::int64_t keys = problem.topk * problem.block_size;
    plan.num_splits = choose_splits(tasks, threads, std::max<std::int64_t>(1, keys / min_split_keys));
  }
  return plan;
}

Scalars read_scalars(const AttentionProblem& problem) {
  return {problem.softmax_scale.get() * problem.k_scale.get(), problem.v_scale.get(), problem.lse_temperature_scale};
}

/// Entries [begin, end) of a route that belong to a split: equal shares in a fixed order.
std::int64_t split_bound(std::int64_t num_entries, std::int64_t split, std::int64_t num_splits) {
  return num_entries * split / num_splits;
}

/// Routes and attends the rows of one tile for one KV head and split. The rows may belong to several requests.
void run_tile(const TileTask& base, RouteBuilder& builder, std::int64_t row_begin, std::int64_t row_end) {
  TileTask task = base;
  for (std::int64_t row = row_begin; row < row_end;) {
    const Route route = builder.build(*task.problem, task.kv_head, row, row_end);
    task.route = &route;
    task.entry_begin = split_bound(route.num_entries, task.split, task.partials.num_splits);
    task.entry_end = split_bound(route.num_entries, task.split + 1, task.partials.num_splits);
    attend_tile(task);
    row += route.num_rows;
  }
}

/// Merges the splits of one (row, head) pair and writes the outputs.
void combine_splits(const AttentionProblem& problem, float v_scale, const Partials& partials, std::int64_t row,
                    std::int64_t head) {
  const std::int64_t first = (row * problem.num_qo_heads + head) * partials.num_splits;
  const std::int64_t dim = problem.head_dim;
  States states;
  states.out = partials.out + first * dim;
  states.out_stride_state = dim;
  states.lse = partials.lse + first;
  states.lse_stride_state = 1;
  states.num_states = partials.num_splits;
  float values[max_head_dim];
  const float lse = combine_states(states, 0, 0, dim, values);
  store_row(problem, v_scale, row, head, values);
  const auto store = [&](const RowHeads& to, float value) {
    if (to.defined()) static_cast<float*>(to.data)[row * to.stride_row + head * to.stride_head] = value;
  };
  store(problem.lse, lse);
  if (partials.lse_t != nullptr) {
    store(problem.lse_t, combine_lse(partials.lse_t + first, 1, partials.num_splits));
  }
}

}  // namespace

std::size_t workspace_bytes(const Shape& shape) {
  const int threads = resolve_threads(shape.num_threads);
  // Splitting ends where there are four tasks a thread, so that tasks times splits stay below eight a thread; and a row
  // has fewer than 4 * threads + 1 splits.
  const std::int64_t by_tasks = std::int64_t{8} * threads * max_rows_by_lanes(shape) * group_of(shape);
  const std::int64_t by_rows =
      shape.total_q > by_tasks ? by_tasks : shape.total_q * shape.num_qo_heads * (std::int64_t{4} * threads + 1);
  const std::int64_t states = std::min(by_tasks, by_rows);
  return alignment + static_cast<std::size_t>(num_workers(threads)) * worker_bytes(shape) +
         align_up(static_cast<std::size_t>(states * state_floats(shape)) * sizeof(float));
}

void attend(const AttentionProblem& problem, int num_threads, void* workspace) {
  const int threads = resolve_threads(num_threads);
  const Shape shape = shape_of(problem, num_threads);
  const Plan plan = make_plan(problem, shape, threads);
  if (plan.num_tiles == 0) return;

  auto* base = static_cast<char*>(workspace);
  base += align_up(reinterpret_cast<std::uintptr_t>(base)) - reinterpret_cast<std::uintptr_t>(base);
  const std::size_t per_worker = worker_bytes(shape);

  TileTask task;
  task.problem = &problem;
  task.scalars = read_scalars(problem);
  task.partials.num_splits = plan.num_splits;
  if (plan.num_splits > 1) {
    const std::int64_t states = problem.total_q * problem.num_qo_heads * plan.num_splits;
    task.partials.out = reinterpret_cast<float*>(base + static_cast<std::size_t>(num_workers(threads)) * per_worker);
    task.partials.lse = task.partials.out + states * problem.head_dim;
    if (problem.lse_t.defined()) task.partials.lse_t = task.partials.lse + states;
  }

  // A tile's own bound, not the workspace's: a table no larger than needed is cleared faster and stays in the caches.
  const std::int64_t route_entries = std::min(max_route_entries(shape), plan.tile_rows * (problem.topk + 1));
  ThreadPool& pool = ThreadPool::instance();
  const std::int64_t num_tasks = plan.num_tiles * problem.num_kv_heads * plan.num_splits;
  pool.parallel_for(num_tasks, num_workers(threads), [&](std::int64_t index, int worker) noexcept {
    char* memory = base + static_cast<std::size_t>(worker) * per_worker;
    RouteBuilder builder(memory, plan.tile_rows, route_entries);
    TileTask mine = task;
    mine.scratch = memory + route_bytes(shape);
    mine.split = index % plan.num_splits;
    mine.kv_head = index / plan.num_splits % problem.num_kv_heads;
    const std::int64_t tile = index / plan.num_splits / problem.num_kv_heads;
    const std::int64_t row_begin = tile * plan.tile_rows;
    run_tile(mine, builder, row_begin, std::min(row_begin + plan.tile_rows, problem.total_q));
  });
  if (plan.num_splits == 1) return;
  pool.parallel_for(problem.total_q, num_workers(threads), [&](std::int64_t row, int) noexcept {
    for (std::int64_t head = 0; head < problem.num_qo_heads; ++head) {
      combine_splits(problem, task.scalars.v_scale, task.partials, row, head);
    }
  });
}

}  // namespace kvsieve::cpu
