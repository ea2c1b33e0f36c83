// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/gpu_measure.hpp"
#include "bench/host.hpp"
#include "bench/measure.hpp"
#include "commands.hpp"
#include "json_number.hpp"
#include "kvsieve/info.hpp"
#include "progress.hpp"
#include "table.hpp"

namespace kvsieve::tools {
namespace {

using bench::Measurement;
using bench::Workload;

struct Settings {
  std::string device = "auto";
  int threads = 0;
  bool quick = false;
  bool json = false;
};

struct Result {
  Workload workload;
  Measurement measured;
  std::string failure() const { return describe(measured.errors, measured.out_dtype); }
};

std::vector<Workload> workloads(bool quick) {
  constexpr std::int64_t rows = 512, kv_length = 16384, requests = 8;
  std::vector<Workload> all;
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    all.push_back(bench::msa_prefill(rows, kv_length, kv_dtype));
    all.push_back(bench::msa_decode(requests, kv_length, kv_dtype));
    all.push_back(bench::qsa_prefill(rows, kv_length, kv_dtype));
    all.push_back(bench::qsa_decode(requests, kv_length, kv_dtype));
  }
  all.push_back(bench::qsa_prefill(rows, kv_length, DType::bf16, 2));
  if (quick) std::for_each(all.begin(), all.end(), bench::make_tiny);
  return all;
}

/// Where the demo runs.
struct Machine {
  Device device{};
  std::string name;  ///< of the CPU or the GPU
};

/// The best device that there is, or the one asked for. Throws UnsupportedError when that is a GPU and there is none.
Machine choose_machine(const std::string& device) {
  if (device != "cpu") {
    try {
      const bench::GpuMachine gpu = bench::best_gpu();
      return {gpu.device, gpu.name};
    } catch (const UnsupportedError&) {
      if (device == "cuda") throw;
    }
  }
  return {{}, bench::provenance().cpu};
}

bench::MeasureSettings measure_settings(const Settings& settings, const Machine& machine) {
  bench::MeasureSettings measure;
  measure.device = machine.device;
  measure.num_threads = settings.threads > 0 ? settings.threads : info().num_threads;
  measure.warm_ups = 1;
  if (machine.device.type == DeviceType::cuda) {
    measure.warm_ups = settings.quick ? 1 : 5;
    measure.repeats = settings.quick ? 1 : 20;
    return measure;
  }
  measure.repeats = settings.quick ? 1 : 3;
  measure.seconds = settings.quick ? 0 : 0.5;
  return measure;
}

std::vector<Result> run_all(const Settings& settings, const Machine& machine) {
  const bench::MeasureSettings measure_with = measure_settings(settings, machine);
  const std::vector<Workload> all = workloads(settings.quick);
  Progress progress("demo", static_cast<int>(all.size()));
  std::vector<Result> results;
  for (const Workload& workload : all) {
    progress.step(workload.name + ", " + shape_text(workload));
    results.push_back(
        {workload, measure(workload, measure_with, [&](const std::string& stage) { progress.stage(stage); })});
  }
  return results;
}

std::string table_text(const std::vector<Result>& results, const Info& here) {
  using Align = Table::Align;
  Table table;
  table.add_column("operation", Align::left);
  table.add_column("shape", Align::left);
  table.add_column("path", Align::left);
  for (const char* const name : {"ms", "GFLOP/s", "GB/s", "rel err", "max err"}) table.add_column(name);
  table.add_column("check", Align::left);
  for (const Result& result : results) {
    const Measurement& m = result.measured;
    const std::string path = m.path == Path::cpu ? "cpu, " + here.simd_target : std::string(path_name(m.path));
    table.add_row({result.workload.name, shape_text(result.workload), path,
                   fmt::format("{:.3f}", m.median_seconds * 1e3),
                   fmt::format("{:.1f}", m.work.flops / m.median_seconds * 1e-9),
                   fmt::format("{:.2f}", m.work.unique_bytes / m.median_seconds * 1e-9),
                   fmt::format("{:.1e}", m.errors.out.frobenius), fmt::format("{:.1e}", m.errors.out.element),
                   result.failure().empty() ? "ok" : "WRONG"});
  }
  return table.text();
}

void print_text(const std::vector<Result>& results, const Machine& machine, int threads, double seconds) {
  const Info here = info();
  const bench::Provenance source = bench::provenance();
  const bool on_gpu = machine.device.type == DeviceType::cuda;
  fmt::print("kvsieve {}, commit {}, on {}", here.version, source.commit, machine.name);
  fmt::print("{}\n", on_gpu ? "" : fmt::format(", {} threads", threads));
  fmt::print("shape: requests x new tokens, KV length, query/KV heads, head dim, selected blocks x their size\n\n");
  fmt::print("{}\n", table_text(results, here));
  fmt::print(
      "ms: the whole call{}, median of {} or more. GFLOP/s: useful work. GB/s: q, out, and the K and V of selected "
      "tokens, "
      "once.\nrel err, max err: against the float64 reference on {} random rows, all heads: Frobenius, and largest "
      "over "
      "the\noutput's largest magnitude; at most {:.0e} and {:.0e} are allowed, and {:.0e} for the log-sum-exp.\n",
      on_gpu ? " in a CUDA graph, cold L2" : "", results.front().measured.repeats, results.front().measured.errors.rows,
      io::tolerance_for(DType::bf16).frobenius, io::tolerance_for(DType::bf16).element,
      io::tolerance_for(DType::bf16).lse);
  for (const Result& result : results) {
    if (!result.failure().empty()) fmt::print("WRONG: {}: {}\n", result.workload.name, result.failure());
  }
  const auto right = std::count_if(results.begin(), results.end(), [](const Result& r) { return r.failure().empty(); });
  fmt::print("{} of {} right, in {:.0f} s\n", right, results.size(), seconds);
}

void print_json(const std::vector<Result>& results, const Machine& machine, int threads, double seconds) {
  const Info here = info();
  const bench::Provenance source = bench::provenance();
  nlohmann::ordered_json document = {
      {"version", here.version}, {"commit", source.commit}, {"date", source.date},
      {"cpu", source.cpu},       {"threads", threads},      {"simd_target", here.simd_target},
      {"machine", machine.name}, {"seconds", seconds},      {"rows", nlohmann::ordered_json::array()}};
  for (const Result& result : results) {
    const Measurement& m = result.measured;
    document["rows"].push_back({{"operation", result.workload.name},
                                {"shape", shape_text(result.workload)},
                                {"generate", generate_command(result.workload.options)},
                                {"device", to_string(machine.device)},
                                {"path", path_name(m.path)},
                                {"milliseconds", {{"median", m.median_seconds * 1e3}, {"min", m.min_seconds * 1e3}}},
                                {"gflops_per_second", m.work.flops / m.median_seconds * 1e-9},
                                {"gbytes_per_second", m.work.unique_bytes / m.median_seconds * 1e-9},
                                {"checked_rows", m.errors.rows},
                                {"frobenius_error", finite(m.errors.out.frobenius)},
                                {"element_error", finite(m.errors.out.element)},
                                {"lse_error", finite(m.errors.lse.absolute)},
                                {"ok", result.failure().empty()},
                                {"failure", result.failure()}});
  }
  fmt::print("{}\n", document.dump(2));
}

ExitCode demo(const Settings& settings) {
  const auto start = std::chrono::steady_clock::now();
  const Machine machine = choose_machine(settings.device);
  const std::vector<Result> results = run_all(settings, machine);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const int threads = measure_settings(settings, machine).num_threads;
  if (settings.json) {
    print_json(results, machine, threads, elapsed.count());
  } else {
    print_text(results, machine, threads, elapsed.count());
  }
  const bool right = std::all_of(results.begin(), results.end(), [](const Result& r) { return r.failure().empty(); });
  return right ? success : mismatch;
}

}  // namespace

void add_demo_command(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("demo", "Run MSA and QSA at the models' shapes, check and time them (exit 0 right, 1 wrong)");
  const auto settings = std::make_shared<Settings>();
  command->add_option("--device", settings->device, "cpu, cuda, or auto: a GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", settings->threads, "CPU threads, 0 for all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_flag("--quick", settings->quick, "Tiny shapes, to see that everything works");
  command->add_flag("--json", settings->json, "Print one JSON document");
  command->callback([settings, &exit_code] { exit_code = demo(*settings); });
}

}  // namespace kvsieve::tools
