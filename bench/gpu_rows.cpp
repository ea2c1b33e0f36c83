// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bench/name_filter.hpp"
#include "kvsieve/qsa.hpp"

namespace kvsieve::bench {
namespace {

/// How like each other the selections of the queries of a decode request are.
enum class Selection {
  shared,   ///< one for all of them
  similar,  ///< local in time, as between the tokens of a prefill
};

GpuRow row(Workload workload, const std::string& detail, PublishedTimes published) {
  workload.name += ", " + detail;
  return {std::move(workload), published, "", 0, 0};
}

// ---- MSA ----

GpuRow msa_prefill_row(DType kv_dtype, std::int64_t rows, std::int64_t kv_length, double replacement,
                       PublishedTimes published) {
  Workload workload = msa_prefill(rows, kv_length, kv_dtype);
  workload.options.replacement = replacement;
  return row(std::move(workload), fmt::format("{} tokens, KV {}, r {}", rows, kv_length, replacement), published);
}

GpuRow msa_decode_row(DType kv_dtype, std::int64_t requests, std::int64_t queries, std::int64_t kv_length,
                      std::int64_t topk, Selection selection, PublishedTimes published) {
  Workload workload = msa_decode(requests, kv_length, kv_dtype);
  workload.options.query_lengths = {queries};
  workload.options.topk = topk;
  workload.options.replacement = selection == Selection::shared ? 0 : 0.125;
  std::string detail =
      fmt::format("B {}, {} {}, KV {}", requests, queries, queries == 1 ? "query" : "queries", kv_length);
  if (topk != 16) detail += fmt::format(", top-k {}", topk);
  if (queries > 1) detail += selection == Selection::shared ? ", shared" : ", similar";
  return row(std::move(workload), detail, published);
}

void add_msa_targets(std::vector<GpuRow>& rows) {
  const DType bf16 = DType::bf16, fp8 = DType::f8_e4m3;
  rows.push_back(msa_prefill_row(bf16, 4096, 4096, 0.125, {1698, 260, 480, 380}));
  rows.push_back(msa_prefill_row(bf16, 16384, 47744, 0.125, {9057, 1351, 2400, 1900}));
  rows.push_back(msa_prefill_row(bf16, 1404, 46844, 0.125, {798, 116, 260, 190}));
  rows.push_back(msa_prefill_row(bf16, 338, 74578, 0.125, {222, 28, 75, 50}));
  rows.push_back(msa_prefill_row(bf16, 1404, 46844, 1, {813, 116, 420, 300}));
  rows.push_back(msa_prefill_row(fp8, 16384, 47744, 0.125, {14547, 1351, 2700, 2000}));

  const auto one_query = [&](DType dtype, std::int64_t requests, std::int64_t kv_length, PublishedTimes published) {
    rows.push_back(msa_decode_row(dtype, requests, 1, kv_length, 16, Selection::shared, published));
  };
  const auto eight_queries = [&](DType dtype, std::int64_t requests, std::int64_t kv_length, std::int64_t topk,
                                 PublishedTimes published) {
    for (const Selection selection : {Selection::shared, Selection::similar}) {
      rows.push_back(msa_decode_row(dtype, requests, 8, kv_length, topk, selection, published));
    }
  };
  one_query(bf16, 1, 8192, {11.3, 1.9, 6.5, 5});
  one_query(bf16, 8, 50000, {23.9, 7.6, 12, 10});
  one_query(bf16, 64, 50000, {80.2, 61, 67, 64});
  one_query(bf16, 128, 50000, {142.8, 121, 130, 126});
  eight_queries(bf16, 8, 50000, 16, {56.6, 7.6, 20, 14});
  eight_queries(bf16, 64, 65536, 32, {670, 121, 170, 140});
  one_query(fp8, 1, 8192, {11.7, 1, 6.5, 5});
  one_query(fp8, 8, 50000, {22.5, 3.8, 10, 8});
  one_query(fp8, 64, 50000, {81.9, 30, 38, 34});
  one_query(fp8, 128, 50000, {166.8, 61, 72, 66});
  eight_queries(fp8, 8, 50000, 16, {76.7, 3.8, 18, 13});
  eight_queries(fp8, 64, 65536, 32, {927, 61, 130, 100});
}

// ---- QSA ----

GpuRow qsa_prefill_row(DType kv_dtype, std::int64_t rows, int num_processors, PublishedTimes published) {
  Workload workload = qsa_prefill(rows, rows, kv_dtype);
  io::GenerateOptions& options = workload.options;
  options.replacement = 0.05;
  options.group_size = suggest_group_size(1, rows, options.num_qo_heads, options.num_kv_heads, num_processors);
  return row(std::move(workload), fmt::format("{} tokens from 0, r 0.05", rows), published);
}

/// A group of `queries` rows at successive positions for each request.
GpuRow qsa_decode_row(DType kv_dtype, std::int64_t requests, std::int64_t queries, Selection selection,
                      PublishedTimes published) {
  constexpr std::int64_t kv_length = 16384;
  Workload workload = qsa_decode(requests, kv_length, kv_dtype);
  io::GenerateOptions& options = workload.options;
  options.query_lengths = {queries};
  options.group_size = queries;
  options.replacement = selection == Selection::shared ? 0 : 0.05;
  std::string detail =
      fmt::format("B {}, {} {}, KV {}", requests, queries, queries == 1 ? "query" : "queries", kv_length);
  if (queries > 1) detail += selection == Selection::shared ? ", shared" : ", r 0.05";
  return row(std::move(workload), detail, published);
}

void add_qsa_targets(std::vector<GpuRow>& rows, int num_processors) {
  const DType bf16 = DType::bf16, fp8 = DType::f8_e4m3;
  rows.push_back(qsa_prefill_row(bf16, 8192, num_processors, {2073, 222, 520, 400}));
  rows.push_back(qsa_prefill_row(bf16, 32768, num_processors, {8952, 985, 2200, 1700}));
  rows.push_back(qsa_prefill_row(fp8, 8192, num_processors, {2439, 222, 580, 430}));
  rows.push_back(qsa_prefill_row(fp8, 32768, num_processors, {10269, 985, 2450, 1800}));

  const auto decode = [&](DType dtype, std::int64_t queries, const std::array<PublishedTimes, 4>& published) {
    constexpr std::array<std::int64_t, 4> requests = {1, 8, 64, 256};
    for (std::size_t i = 0; i < requests.size(); ++i) {
      rows.push_back(qsa_decode_row(dtype, requests[i], queries, Selection::similar, published[i]));
      if (queries > 1) rows.push_back(qsa_decode_row(dtype, requests[i], queries, Selection::shared, published[i]));
    }
  };
  decode(bf16, 1, {{{14.1, 0.5, 8, 6.5}, {20.0, 3.8, 11, 9}, {63.5, 30, 40, 35}, {184.5, 121, 138, 128}}});
  decode(bf16, 4, {{{14.4, 0.5, 8.5, 7}, {31.4, 3.8, 14, 11}, {126.6, 30, 48, 40}, {403, 121, 165, 140}}});
  decode(fp8, 1, {{{16.2, 0.2, 8, 6.5}, {19.6, 1.9, 10, 8}, {55.7, 15, 26, 20}, {129.2, 61, 78, 68}}});
  decode(fp8, 4, {{{16.5, 0.2, 8.5, 7}, {35.6, 1.9, 13, 10}, {112.7, 15, 34, 26}, {398.8, 61, 110, 85}}});
}

// ---- Production ----

struct PrefillShape {
  std::int64_t tokens;
  std::int64_t kv_length;
  double weight;
};
constexpr std::array<PrefillShape, 16> prefill_shapes = {{{16384, 47744, 2477},
                                                          {338, 74578, 1418},
                                                          {16384, 84480, 1347},
                                                          {171, 55339, 1325},
                                                          {16384, 27136, 1010},
                                                          {182, 17718, 611},
                                                          {1626, 93146, 565},
                                                          {1404, 46844, 492},
                                                          {1623, 18007, 388},
                                                          {347, 131547, 312},
                                                          {1649, 135537, 180},
                                                          {9844, 48884, 110},
                                                          {10295, 85815, 103},
                                                          {8897, 25537, 47},
                                                          {16384, 173824, 35},
                                                          {8476, 153884, 14}}};

constexpr std::array<std::int64_t, 4> decode_requests = {8, 32, 64, 128};
struct DecodeShapes {
  std::int64_t kv_length;
  std::array<double, 4> weights;  ///< by number of requests
};
constexpr std::array<DecodeShapes, 7> decode_shapes = {{{1000, {30, 90, 180, 300}},
                                                        {4000, {40, 120, 240, 400}},
                                                        {5000, {50, 150, 300, 500}},
                                                        {10000, {140, 350, 490, 420}},
                                                        {50000, {500, 800, 500, 200}},
                                                        {100000, {1260, 980, 420, 140}},
                                                        {200000, {910, 350, 112, 28}}}};

}  // namespace

double floor_seconds(const Work& work, const GpuCeilings& ceilings) {
  return std::max(work.flops / ceilings.flops_per_second, work.unique_bytes / ceilings.bytes_per_second);
}

std::vector<GpuRow> target_rows(int num_processors) {
  std::vector<GpuRow> rows;
  add_msa_targets(rows);
  add_qsa_targets(rows, num_processors);
  return rows;
}

std::vector<GpuRow> production_rows() {
  // 120 TFLOP/s of selected blocks: what the Triton kernel keeps up over these shapes.
  constexpr double triton_flops_per_second = 120e12;
  std::vector<GpuRow> rows;
  for (const PrefillShape& shape : prefill_shapes) {
    GpuRow prefill = msa_prefill_row(DType::bf16, shape.tokens, shape.kv_length, 0.125, {});
    prefill.group = "MSA prefill";
    prefill.weight = shape.weight;
    prefill.triton_flops_per_second = triton_flops_per_second;
    rows.push_back(std::move(prefill));
  }
  for (const Selection selection : {Selection::shared, Selection::similar}) {
    for (const DecodeShapes& shapes : decode_shapes) {
      for (std::size_t i = 0; i < decode_requests.size(); ++i) {
        GpuRow decode = msa_decode_row(DType::bf16, decode_requests[i], 8, shapes.kv_length, 16, selection, {});
        decode.group = selection == Selection::shared ? "MSA decode, shared" : "MSA decode, similar";
        decode.weight = shapes.weights[i];
        rows.push_back(std::move(decode));
      }
    }
  }
  return rows;
}

std::vector<GpuRow> choose_rows(std::vector<GpuRow> rows, const std::string& filter, bool quick) {
  std::erase_if(rows, [&](const GpuRow& row) { return !name_contains(row.workload.name, filter); });
  if (!quick) return rows;
  for (GpuRow& row : rows) make_tiny(row.workload);
  return rows;
}

}  // namespace kvsieve::bench
