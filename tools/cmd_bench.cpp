// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/dispatch.hpp"
#include "bench/cpu_suite.hpp"
#include "commands.hpp"
#include "cpu_report.hpp"
#include "gpu_report.hpp"
#include "kvsieve/error.hpp"
#include "kvsieve/info.hpp"
#include "output_file.hpp"
#include "progress.hpp"

namespace kvsieve::tools {
namespace {

struct Settings {
  std::string suite = "cpu";
  std::string filter;
  std::vector<std::string> outputs;
  std::string path;
  int threads = 0;
  int samples = 30;
  bool quick = false;
  bool json = false;
};

/// The options that matter, as typed.
std::string command_line(const Settings& settings) {
  std::string command = "kvsieve bench --suite " + settings.suite;
  if (!settings.filter.empty()) command += fmt::format(" --filter '{}'", settings.filter);
  if (!settings.path.empty()) command += " --path " + settings.path;
  if (settings.samples != Settings{}.samples) command += fmt::format(" --samples {}", settings.samples);
  if (settings.threads != 0) command += fmt::format(" --threads {}", settings.threads);
  if (settings.quick) command += " --quick";
  if (settings.json) command += " --json";
  for (const std::string& output : settings.outputs) command += " --output " + output;
  return command;
}

/// What a suite found.
struct Outcome {
  std::string text;
  std::string json;
  bool right = true;  ///< every result, of the rows that were checked
};

template <class Row>
void require_rows(const std::vector<Row>& rows, const Settings& settings) {
  if (rows.empty()) throw Error(fmt::format("--filter {}: no row of the suite has that in its name", settings.filter));
}

Outcome run_cpu(const Settings& settings) {
  const std::vector<bench::CpuSuiteRow> rows = bench::cpu_suite_rows(settings.filter, settings.quick);
  require_rows(rows, settings);
  const BenchRun run{command_line(settings), settings.threads > 0 ? settings.threads : info().num_threads,
                     settings.quick};
  bench::CpuReport report;
  {
    Progress progress("bench", static_cast<int>(rows.size()) + 2);
    report = bench::run_cpu_suite(rows, run.num_threads, settings.quick,
                                  [&](const std::string& step) { progress.step(step); });
  }
  return {cpu_report_text(report, run), cpu_report_json(report, run).dump(2) + "\n",
          std::all_of(report.rows.begin(), report.rows.end(),
                      [](const bench::CpuRowResult& row) { return row.failure().empty(); })};
}

Outcome run_gpu(const Settings& settings, const bench::GpuMachine& machine, std::vector<bench::GpuRow> all) {
  const std::vector<bench::GpuRow> rows = bench::choose_rows(std::move(all), settings.filter, settings.quick);
  require_rows(rows, settings);
  const BenchRun run{command_line(settings), settings.threads > 0 ? settings.threads : info().num_threads,
                     settings.quick};
  CallOptions options;
  if (!settings.path.empty()) options.path = path_from_name(settings.path);
  choose_path(machine.device, options);  // a path of another device is refused once, not by every row
  GpuReport report{settings.suite, machine, {}, {}};
  report.settings =
      bench::gpu_suite_settings(machine.device, options.path, run.num_threads, settings.samples, settings.quick);
  {
    Progress progress("bench", static_cast<int>(rows.size()));
    report.rows = bench::run_gpu_rows(rows, report.settings,
                                      {[&](const std::string& row) { progress.step(row); },
                                       [&](const std::string& stage) { progress.stage(stage); }});
  }
  return {gpu_report_text(report, run), gpu_report_json(report, run).dump(2) + "\n",
          std::all_of(report.rows.begin(), report.rows.end(),
                      [](const bench::GpuRowResult& row) { return row.failure().empty(); })};
}

Outcome run_targets(const Settings& settings) {
  const bench::GpuMachine machine = bench::best_gpu();
  return run_gpu(settings, machine, bench::target_rows(machine.num_processors));
}

Outcome run_production(const Settings& settings) {
  return run_gpu(settings, bench::best_gpu(), bench::production_rows());
}

struct Suite {
  const char* name;
  bool on_gpu;
  Outcome (*run)(const Settings&);
};
constexpr Suite suites[] = {
    {"cpu", false, run_cpu}, {"targets", true, run_targets}, {"production", true, run_production}};

/// The parser lets no other name through.
const Suite& suite_named(const std::string& name) {
  return *std::find_if(std::begin(suites), std::end(suites), [&](const Suite& suite) { return name == suite.name; });
}

ExitCode run_suite(const Settings& settings) {
  std::vector<std::unique_ptr<OutputFile>> files;  // a run may take an hour: what cannot be written shows before it
  for (const std::string& output : settings.outputs) files.push_back(std::make_unique<OutputFile>(output));
  const Outcome outcome = suite_named(settings.suite).run(settings);
  for (const std::unique_ptr<OutputFile>& file : files) {
    const bool json = settings.json || file->path().ends_with(".json");
    file->write(json ? outcome.json : outcome.text);
  }
  fmt::print("{}", settings.json ? outcome.json : outcome.text);
  return outcome.right ? success : mismatch;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand(
      "bench", "Measure a suite of calls against limits of the machine (exit 0 results right, 1 wrong, 2 it failed)");
  const auto settings = std::make_shared<Settings>();
  std::vector<std::string> names;
  std::transform(std::begin(suites), std::end(suites), std::back_inserter(names),
                 [](const Suite& suite) { return suite.name; });
  command->add_option("--suite", settings->suite, "Which one: cpu, or on a GPU targets or production")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command->add_option("--filter", settings->filter, "Only the rows whose names contain this");
  command->add_option("--threads", settings->threads, "CPU threads, 0 for all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  const CLI::Option* const path =
      command->add_option("--path", settings->path, "GPU suites: force a path (default: the best one)");
  CLI::Option* const samples =
      command->add_option("--samples", settings->samples, "GPU suites, not with --quick: timed replays of each row")
          ->check(CLI::Range(20, 100000))
          ->capture_default_str();
  command
      ->add_option("-o,--output", settings->outputs,
                   "Also write what is printed to this file, or JSON when its name ends in .json; repeatable")
      ->expected(1)
      ->take_all();
  command->add_flag("--quick", settings->quick, "Tiny shapes, to see that everything works")->excludes(samples);
  command->add_flag("--json", settings->json, "Print one JSON document");
  command->callback([settings, path, samples, &exit_code] {
    if (!suite_named(settings->suite).on_gpu) {
      for (const CLI::Option* const option : {path, static_cast<const CLI::Option*>(samples)}) {
        if (option->count() > 0) {
          throw Error(fmt::format("{}: the {} suite does not use it", option->get_name(), settings->suite));
        }
      }
    }
    exit_code = run_suite(*settings);
  });
}

}  // namespace kvsieve::tools
