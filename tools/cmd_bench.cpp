// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "bench/cpu_suite.hpp"
#include "commands.hpp"
#include "cpu_report.hpp"
#include "kvsieve/error.hpp"
#include "kvsieve/info.hpp"
#include "progress.hpp"

namespace kvsieve::tools {
namespace {

struct Settings {
  std::string suite = "cpu";
  std::string filter;
  std::string output;
  int threads = 0;
  bool quick = false;
  bool json = false;
};

/// The options that matter, as typed.
std::string command_line(const Settings& settings) {
  std::string command = "kvsieve bench --suite " + settings.suite;
  if (!settings.filter.empty()) command += fmt::format(" --filter '{}'", settings.filter);
  if (settings.threads != 0) command += fmt::format(" --threads {}", settings.threads);
  if (settings.quick) command += " --quick";
  if (settings.json) command += " --json";
  if (!settings.output.empty()) command += " --output " + settings.output;
  return command;
}

/// What a suite found.
struct Outcome {
  std::string document;
  bool right = true;  ///< every result, of the rows that were checked
};

Outcome run_cpu(const Settings& settings) {
  const std::vector<bench::CpuSuiteRow> rows = bench::cpu_suite_rows(settings.filter, settings.quick);
  if (rows.empty()) throw Error(fmt::format("--filter {}: no row of the suite has that in its name", settings.filter));
  const BenchRun run{command_line(settings), settings.threads > 0 ? settings.threads : info().num_threads,
                     settings.quick};
  bench::CpuReport report;
  {
    Progress progress("bench", static_cast<int>(rows.size()) + 2);
    report = bench::run_cpu_suite(rows, run.num_threads, settings.quick,
                                  [&](const std::string& step) { progress.step(step); });
  }
  return {settings.json ? cpu_report_json(report, run).dump(2) + "\n" : cpu_report_text(report, run),
          std::all_of(report.rows.begin(), report.rows.end(),
                      [](const bench::CpuRowResult& row) { return row.failure().empty(); })};
}

struct Suite {
  const char* name;
  Outcome (*run)(const Settings&);
};
constexpr Suite suites[] = {{"cpu", run_cpu}};

ExitCode run_suite(const Settings& settings) {
  const Suite* const suite =
      std::find_if(std::begin(suites), std::end(suites), [&](const Suite& s) { return settings.suite == s.name; });
  const Outcome outcome = suite->run(settings);  // the parser lets no other name through
  fmt::print("{}", outcome.document);
  if (!settings.output.empty()) {
    std::ofstream file(settings.output);
    if (!(file << outcome.document << std::flush)) throw Error(settings.output + ": cannot be written");
  }
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
  command->add_option("--suite", settings->suite, "Which one")->check(CLI::IsMember(names))->capture_default_str();
  command->add_option("--filter", settings->filter, "Only the rows whose names contain this");
  command->add_option("--threads", settings->threads, "CPU threads, 0 for all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_option("-o,--output", settings->output, "Also write what is printed to this file");
  command->add_flag("--quick", settings->quick, "Tiny shapes, to see that everything works");
  command->add_flag("--json", settings->json, "Print one JSON document");
  command->callback([settings, &exit_code] { exit_code = run_suite(*settings); });
}

}  // namespace kvsieve::tools
