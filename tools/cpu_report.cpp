// SPDX-License-Identifier: Apache-2.0
#include "cpu_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bench/host.hpp"
#include "json_number.hpp"
#include "kvsieve/info.hpp"
#include "table.hpp"

namespace kvsieve::tools {
namespace {

using bench::CpuLimits;
using bench::CpuReport;
using bench::CpuRowResult;
using bench::Measurement;

std::string timing(const BenchRun& run) {
  const bench::MeasureSettings settings = bench::cpu_suite_settings(run.num_threads, run.quick);
  return fmt::format(
      "each row in a process of its own; {} warm-ups, then the median of {} to {} calls of the whole public call; "
      "warm: "
      "the same data each time",
      settings.warm_ups, settings.repeats, settings.most_repeats);
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }
std::string mebibytes(std::size_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); }
const char* yes_no(bool met) { return met ? "yes" : "NO"; }

bool within_target(const CpuRowResult& row, const CpuLimits& limits) { return row.ratio(limits) <= row.row.target; }
bool within_memory(const CpuRowResult& row) { return row.peak_bytes <= row.memory_limit(); }

constexpr const char* bf16_dot_note =
    "this CPU has BF16 dot products, which the float32 floor does not count on: rows may beat it";

/// Host checks of a call: the largest over the rows of a family, in microseconds.
double check_microseconds(const CpuReport& report, bool msa) {
  double largest = 0;
  for (const CpuRowResult& row : report.rows) {
    const bool is_msa = row.row.workload.options.operation != io::Operation::qsa;
    if (is_msa == msa) largest = std::max(largest, row.measured.check_seconds * 1e6);
  }
  return largest;
}

std::string heading(const CpuReport& report, const BenchRun& run) {
  const Info here = info();
  const bench::Provenance source = bench::provenance();
  const CpuLimits& limits = report.limits;
  std::string text = fmt::format("kvsieve {}, commit {}, {}\n", here.version, source.commit, source.date);
  text += fmt::format("command  {}\n", run.command);
  text += fmt::format("machine  {}, {}, {} threads\n", source.cpu, here.simd_target, run.num_threads);
  text += fmt::format(
      "limits   sgemm {:.1f} GFLOP/s (OpenBLAS for {}, {} threads, {}^3), read {:.1f} GB/s (sum over {} "
      "MiB); before and after the rows, the better one\n",
      limits.sgemm.flops_per_second * 1e-9, limits.sgemm.kernel, limits.sgemm.num_threads, limits.sgemm_size,
      limits.read_bytes_per_second * 1e-9, limits.read_buffer_bytes >> 20);
  text += fmt::format("timing   {}\n", timing(run));
  text += "memory   KV caches (all tensors from 2 MiB on) in huge pages by madvise, as engines do\n";
  text +=
      "floor    the larger of useful FLOPs at the sgemm rate and unique bytes (selected K, V; q, out) at the read "
      "rate\n";
  text += "shape    requests x new tokens, KV length, query/KV heads, head dim, selected blocks x their size\n";
  if (run.quick) text += "note     quick: tiny shapes; these numbers say nothing about speed\n";
#ifndef __OPTIMIZE__
  text += "note     built without optimisation; these numbers say nothing about speed\n";
#endif
  if (here.bf16_dot) text += fmt::format("note     {}\n", bf16_dot_note);
  return text;
}

std::string time_table(const CpuReport& report) {
  using Align = Table::Align;
  Table table;
  table.add_column("row", Align::left);
  table.add_column("shape", Align::left);
  for (const char* const name :
       {"ms", "min ms", "floor ms", "x floor", "target", "met", "GFLOP/s", "GB/s", "rel err", "max err", "lse err"}) {
    table.add_column(name);
  }
  table.add_column("check", Align::left);
  for (const CpuRowResult& row : report.rows) {
    const Measurement& m = row.measured;
    table.add_row({row.row.workload.name, shape_text(row.row.workload), milliseconds(m.median_seconds),
                   milliseconds(m.min_seconds), milliseconds(row.floor_seconds(report.limits)),
                   fmt::format("{:.2f}", row.ratio(report.limits)), fmt::format("{:.1f}", row.row.target),
                   yes_no(within_target(row, report.limits)),
                   fmt::format("{:.1f}", m.work.flops / m.median_seconds * 1e-9),
                   fmt::format("{:.2f}", m.work.unique_bytes / m.median_seconds * 1e-9),
                   fmt::format("{:.1e}", m.errors.out.frobenius), fmt::format("{:.1e}", m.errors.out.element),
                   fmt::format("{:.1e}", m.errors.lse.absolute), row.failure().empty() ? "ok" : row.failure()});
  }
  return table.text();
}

std::string memory_table(const CpuReport& report) {
  Table table;
  table.add_column("peak memory, MiB", Table::Align::left);
  for (const char* const name : {"inputs", "outputs", "workspace", "limit", "peak", "met"}) table.add_column(name);
  for (const CpuRowResult& row : report.rows) {
    const Measurement& m = row.measured;
    table.add_row({row.row.workload.name, mebibytes(m.input_bytes), mebibytes(m.output_bytes),
                   mebibytes(m.workspace_bytes), mebibytes(row.memory_limit()), mebibytes(row.peak_bytes),
                   yes_no(within_memory(row))});
  }
  return table.text();
}

std::string summary(const CpuReport& report) {
  const auto count = [&](auto&& met) { return std::count_if(report.rows.begin(), report.rows.end(), met); };
  const auto fast = count([&](const CpuRowResult& row) { return within_target(row, report.limits); });
  const auto lean = count([](const CpuRowResult& row) { return within_memory(row); });
  const auto right = count([](const CpuRowResult& row) { return row.failure().empty(); });
  const std::size_t all = report.rows.size();
  return fmt::format(
      "time targets met by {} of {} rows, memory limit by {} of {}, results right (sampled rows against float64) in {} "
      "of {}\nhost checks of a call's arguments: {:.2f} us (MSA), {:.2f} us (QSA)\n",
      fast, all, lean, all, right, all, check_microseconds(report, true), check_microseconds(report, false));
}

nlohmann::ordered_json row_json(const CpuRowResult& row, const CpuLimits& limits) {
  const Measurement& m = row.measured;
  nlohmann::ordered_json entry = {{"name", row.row.workload.name},
                                  {"shape", shape_text(row.row.workload)},
                                  {"generate", generate_command(row.row.workload.options)},
                                  {"path", path_name(m.path)},
                                  {"milliseconds", {{"median", m.median_seconds * 1e3}, {"min", m.min_seconds * 1e3}}},
                                  {"repeats", m.repeats},
                                  {"floor_milliseconds", row.floor_seconds(limits) * 1e3},
                                  {"time_over_floor", row.ratio(limits)},
                                  {"target", row.row.target},
                                  {"target_met", within_target(row, limits)},
                                  {"useful_flops", m.work.flops},
                                  {"unique_bytes", m.work.unique_bytes},
                                  {"gflops_per_second", m.work.flops / m.median_seconds * 1e-9},
                                  {"gbytes_per_second", m.work.unique_bytes / m.median_seconds * 1e-9},
                                  {"host_check_microseconds", m.check_seconds * 1e6},
                                  {"bytes",
                                   {{"inputs", m.input_bytes},
                                    {"outputs", m.output_bytes},
                                    {"workspace", m.workspace_bytes},
                                    {"peak", row.peak_bytes},
                                    {"peak_limit", row.memory_limit()},
                                    {"peak_met", within_memory(row)}}},
                                  {"checked_rows", m.errors.rows},
                                  {"errors",
                                   {{"frobenius", finite(m.errors.out.frobenius)},
                                    {"element", finite(m.errors.out.element)},
                                    {"lse", finite(m.errors.lse.absolute)}}},
                                  {"ok", row.failure().empty()}};
  if (!row.failure().empty()) entry["failure"] = row.failure();
  return entry;
}

}  // namespace

std::string cpu_report_text(const CpuReport& report, const BenchRun& run) {
  return heading(report, run) + "\n" + time_table(report) + "\n" + memory_table(report) + "\n" + summary(report);
}

nlohmann::ordered_json cpu_report_json(const CpuReport& report, const BenchRun& run) {
  const Info here = info();
  const bench::Provenance source = bench::provenance();
  const CpuLimits& limits = report.limits;
  nlohmann::ordered_json document = {{"suite", "cpu"},
                                     {"version", here.version},
                                     {"commit", source.commit},
                                     {"date", source.date},
                                     {"command", run.command},
                                     {"cpu", source.cpu},
                                     {"simd_target", here.simd_target},
                                     {"bf16_dot", here.bf16_dot},
                                     {"threads", run.num_threads},
                                     {"quick", run.quick},
                                     {"timing", timing(run)},
                                     {"limits",
                                      {{"sgemm_gflops_per_second", limits.sgemm.flops_per_second * 1e-9},
                                       {"sgemm_size", limits.sgemm_size},
                                       {"sgemm_threads", limits.sgemm.num_threads},
                                       {"openblas_kernel", limits.sgemm.kernel},
                                       {"read_gbytes_per_second", limits.read_bytes_per_second * 1e-9},
                                       {"read_buffer_bytes", limits.read_buffer_bytes}}},
                                     {"rows", nlohmann::ordered_json::array()}};
  if (here.bf16_dot) document["note"] = bf16_dot_note;
  for (const CpuRowResult& row : report.rows) document["rows"].push_back(row_json(row, limits));
  return document;
}

}  // namespace kvsieve::tools
