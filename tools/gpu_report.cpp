// SPDX-License-Identifier: Apache-2.0
#include "gpu_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bench/host.hpp"
#include "json_number.hpp"
#include "kvsieve/info.hpp"
#include "table.hpp"

namespace kvsieve::tools {
namespace {

using bench::GpuRowResult;
using bench::GroupMean;
using bench::Measurement;

std::string microseconds(double seconds) { return fmt::format("{:.1f}", seconds * 1e6); }
/// As published; "-" where nothing was.
std::string published(double value) { return value > 0 ? fmt::format("{:g}", value) : "-"; }

bool has_targets(const GpuReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(),
                     [](const GpuRowResult& row) { return row.row.published.target > 0; });
}

bool has_groups(const GpuReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(),
                     [](const GpuRowResult& row) { return !row.row.group.empty(); });
}

double target_ratio(const GpuRowResult& row) { return row.row.published.target * 1e-6 / row.measured.median_seconds; }

std::string timing(const GpuReport& report) {
  return fmt::format(
      "the whole public call in a CUDA graph, events around the replay, 256 MiB of random bytes copied before each; "
      "median of {} after {} warm-ups",
      report.settings.repeats, report.settings.warm_ups);
}

std::string heading(const GpuReport& report, const BenchRun& run) {
  const bench::Provenance source = bench::provenance();
  const bench::GpuMachine& machine = report.machine;
  std::string text = fmt::format("kvsieve {}, commit {}, {}\n", version(), source.commit, source.date);
  text += fmt::format("command  {}\n", run.command);
  text += fmt::format("machine  {}, {} SMs, driver {}, runtime {}; {}\n", machine.name, machine.num_processors,
                      machine.driver, machine.runtime, source.cpu);
  text += fmt::format("timing   {}\n", timing(report));
  text +=
      "calls    inputs are random, outputs are out and lse; page tables are random permutations; r: the probability "
      "that a token replaces an entry of "
      "its predecessor's selection\n";
  text += fmt::format(
      "floor    the larger of useful FLOPs at {:.0f} TFLOP/s and unique bytes (selected K, V; q, out) at {:.2f} TB/s: "
      "what an H200 reaches\n",
      bench::h200.flops_per_second * 1e-12, bench::h200.bytes_per_second * 1e-12);
  if (run.quick) text += "note     quick: tiny shapes; these numbers say nothing about speed\n";
#ifndef __OPTIMIZE__
  text += "note     built without optimisation; the host's times say nothing about speed\n";
#endif
  return text;
}

std::string row_table(const GpuReport& report) {
  using Align = Table::Align;
  const bool targets = has_targets(report), groups = has_groups(report);
  std::vector<std::string> names = {"us", "min us"};
  if (targets) names.insert(names.end(), {"target", "beyond", "floor*", "target/ours"});
  names.insert(names.end(),
               {"floor", "Triton", "Triton/ours", "TFLOP/s", "TB/s", "rel err", "max err", "lse err", "host us"});
  if (groups) names.emplace_back("weight");
  Table table;
  table.add_column("row", Align::left);
  table.add_column("path", Align::left);
  for (const std::string& name : names) table.add_column(name);
  table.add_column("check", Align::left);
  for (const GpuRowResult& row : report.rows) {
    const Measurement& m = row.measured;
    const bench::PublishedTimes& aim = row.row.published;
    std::vector<std::string> cells = {row.row.workload.name};
    if (!row.ran()) {
      cells.resize(names.size() + 2);
      cells.push_back(row.error);
      table.add_row(cells);
      continue;
    }
    const double triton = row.triton_seconds();
    cells.insert(cells.end(),
                 {std::string(path_name(m.path)), microseconds(m.median_seconds), microseconds(m.min_seconds)});
    if (targets) {
      cells.insert(cells.end(), {published(aim.target), published(aim.beyond), published(aim.floor),
                                 aim.target > 0 ? fmt::format("{:.2f}", target_ratio(row)) : "-"});
    }
    cells.insert(cells.end(),
                 {microseconds(row.floor_seconds()), triton > 0 ? microseconds(triton) : "-",
                  triton > 0 ? fmt::format("{:.2f}", triton / m.median_seconds) : "-",
                  fmt::format("{:.1f}", m.work.flops / m.median_seconds * 1e-12),
                  fmt::format("{:.3f}", m.work.unique_bytes / m.median_seconds * 1e-12),
                  fmt::format("{:.1e}", m.errors.out.frobenius), fmt::format("{:.1e}", m.errors.out.element),
                  fmt::format("{:.1e}", m.errors.lse.absolute), fmt::format("{:.2f}", m.host_seconds * 1e6)});
    if (groups) cells.push_back(fmt::format("{:g}", row.row.weight));
    cells.push_back(row.failure().empty() ? "ok" : "WRONG: " + row.failure());
    table.add_row(cells);
  }
  return table.text();
}

std::string group_table(const std::vector<GroupMean>& means) {
  Table table;
  table.add_column("weighted mean", Table::Align::left);
  for (const char* const name : {"rows", "us", "floor", "TFLOP/s", "Triton", "Triton/ours"}) table.add_column(name);
  for (const GroupMean& mean : means) {
    const bool triton = mean.triton_seconds > 0;
    const std::string rows =
        mean.missing == 0 ? fmt::format("{}", mean.rows) : fmt::format("{} of {}", mean.rows, mean.rows + mean.missing);
    table.add_row({mean.name, rows, microseconds(mean.seconds), microseconds(mean.floor_seconds),
                   fmt::format("{:.1f}", mean.flops_per_second * 1e-12),
                   triton ? microseconds(mean.triton_seconds) : "-",
                   triton && mean.seconds > 0 ? fmt::format("{:.2f}", mean.triton_seconds / mean.seconds) : "-"});
  }
  return table.text();
}

std::string legend(const GpuReport& report) {
  std::string text;
  if (has_targets(report)) text += "floor*: as stated with the target. ";
  text += "host us: host time of one call, validation and launches. rel err, max err, lse err: against the float64\n";
  text += fmt::format("reference on up to {} rows, all heads; the whole output was poisoned before and is finite.\n",
                      report.settings.checked_rows);
  if (has_groups(report)) {
    text += "Triton, in prefill: useful FLOPs at the rate that the Triton kernel keeps up over selected blocks.\n";
  }
  return text;
}

std::string summary(const GpuReport& report) {
  const auto count = [&](auto&& met) { return std::count_if(report.rows.begin(), report.rows.end(), met); };
  std::string text;
  if (has_targets(report)) {
    const auto within = [](const GpuRowResult& row, double limit) {
      return row.ran() && limit > 0 && row.measured.median_seconds <= limit * 1e-6;
    };
    text += fmt::format("targets met by {}, beyond by {}, ",
                        count([&](const GpuRowResult& row) { return within(row, row.row.published.target); }),
                        count([&](const GpuRowResult& row) { return within(row, row.row.published.beyond); }));
  }
  return text + fmt::format("results right in {} of {} rows\n",
                            count([](const GpuRowResult& row) { return row.failure().empty(); }), report.rows.size());
}

nlohmann::ordered_json row_json(const GpuRowResult& row) {
  const Measurement& m = row.measured;
  nlohmann::ordered_json entry = {{"name", row.row.workload.name},
                                  {"shape", shape_text(row.row.workload)},
                                  {"generate", generate_command(row.row.workload.options)},
                                  {"ok", row.failure().empty()}};
  if (!row.failure().empty()) entry["failure"] = row.failure();
  if (!row.row.group.empty()) {
    entry["group"] = row.row.group;
    entry["weight"] = row.row.weight;
  }
  if (row.row.published.target > 0) {
    entry["published_microseconds"] = {{"triton", row.row.published.triton},
                                       {"floor", row.row.published.floor},
                                       {"target", row.row.published.target},
                                       {"beyond", row.row.published.beyond}};
  }
  if (!row.ran()) return entry;
  if (row.row.published.target > 0) entry["target_over_time"] = target_ratio(row);
  entry["path"] = path_name(m.path);
  entry["microseconds"] = {{"median", m.median_seconds * 1e6}, {"min", m.min_seconds * 1e6}};
  entry["samples"] = m.repeats;
  entry["floor_microseconds"] = row.floor_seconds() * 1e6;
  if (row.triton_seconds() > 0) entry["triton_microseconds"] = row.triton_seconds() * 1e6;
  entry["useful_flops"] = m.work.flops;
  entry["unique_bytes"] = m.work.unique_bytes;
  entry["tflops_per_second"] = m.work.flops / m.median_seconds * 1e-12;
  entry["tbytes_per_second"] = m.work.unique_bytes / m.median_seconds * 1e-12;
  entry["host_microseconds"] = m.host_seconds * 1e6;
  entry["bytes"] = {{"inputs", m.input_bytes}, {"outputs", m.output_bytes}, {"workspace", m.workspace_bytes}};
  entry["checked_rows"] = m.errors.rows;
  entry["errors"] = {{"frobenius", finite(m.errors.out.frobenius)},
                     {"element", finite(m.errors.out.element)},
                     {"lse", finite(m.errors.lse.absolute)}};
  return entry;
}

nlohmann::ordered_json mean_json(const GroupMean& mean) {
  nlohmann::ordered_json entry = {{"group", mean.name}, {"rows", mean.rows}, {"rows_missing", mean.missing}};
  if (mean.rows == 0) return entry;
  entry["microseconds"] = mean.seconds * 1e6;
  entry["floor_microseconds"] = mean.floor_seconds * 1e6;
  entry["tflops_per_second"] = mean.flops_per_second * 1e-12;
  if (mean.triton_seconds > 0) entry["triton_microseconds"] = mean.triton_seconds * 1e6;
  return entry;
}

}  // namespace

std::string gpu_report_text(const GpuReport& report, const BenchRun& run) {
  std::string text = heading(report, run) + "\n" + row_table(report) + "\n";
  if (has_groups(report)) text += group_table(group_means(report.rows)) + "\n";
  return text + legend(report) + summary(report);
}

nlohmann::ordered_json gpu_report_json(const GpuReport& report, const BenchRun& run) {
  const bench::Provenance source = bench::provenance();
  const bench::GpuMachine& machine = report.machine;
  nlohmann::ordered_json document = {{"suite", report.suite},
                                     {"version", version()},
                                     {"commit", source.commit},
                                     {"date", source.date},
                                     {"command", run.command},
                                     {"gpu", machine.name},
                                     {"processors", machine.num_processors},
                                     {"driver", machine.driver},
                                     {"runtime", machine.runtime},
                                     {"cpu", source.cpu},
                                     {"quick", run.quick},
                                     {"timing", timing(report)},
                                     {"ceilings",
                                      {{"tflops_per_second", bench::h200.flops_per_second * 1e-12},
                                       {"tbytes_per_second", bench::h200.bytes_per_second * 1e-12}}},
                                     {"rows", nlohmann::ordered_json::array()}};
  for (const GpuRowResult& row : report.rows) document["rows"].push_back(row_json(row));
  if (has_groups(report)) {
    document["weighted_means"] = nlohmann::ordered_json::array();
    for (const GroupMean& mean : group_means(report.rows)) document["weighted_means"].push_back(mean_json(mean));
  }
  return document;
}

}  // namespace kvsieve::tools
