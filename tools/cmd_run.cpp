// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "bus_error.hpp"
#include "commands.hpp"
#include "io/case_run.hpp"
#include "kvsieve/info.hpp"

namespace kvsieve::tools {
namespace {

constexpr int line_width = 120;

struct Settings {
  std::vector<std::string> files;
  std::string device = "cpu";
  std::string path = "auto";
  int repeat = 1;
  int threads = 0;
  bool check = false;
  bool check_indices = false;
  bool json = false;
};

/// What one file gave.
struct Report {
  std::string file;
  std::string operation;
  std::string error;            ///< bad input; nothing below is set then
  Path path = Path::automatic;  ///< the one that ran
  io::RunCheck check;
  bool repeatable = true;
  std::vector<double> milliseconds;  ///< sorted
  std::vector<std::string> ignored;

  bool ok() const { return error.empty() && check.failure.empty(); }
  ExitCode exit_code() const { return !error.empty() ? bad_input : ok() ? success : mismatch; }
  double median() const { return milliseconds[milliseconds.size() / 2]; }
};

CallOptions call_options(const Settings& settings) {
  CallOptions options;
  options.path = path_from_name(settings.path);
  options.num_threads = settings.threads;
  options.check_indices = settings.check_indices;
  return options;
}

Device device_of(const Settings& settings) {
  return settings.device == "cuda" ? Device{DeviceType::cuda, 0} : Device{};
}

bool same_bytes(const Tensor& tensor, const std::vector<std::byte>& bytes) {
  return bytes.empty() || std::memcmp(tensor.data, bytes.data(), bytes.size()) == 0;
}

/// A copy of a tensor's bytes from its first to its last element.
std::vector<std::byte> bytes_of(const Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i) last += (tensor.shape[i] - 1) * tensor.stride[i];
  const auto* const begin = static_cast<const std::byte*>(tensor.data);
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(dtype_size(tensor.dtype))};
}

void run_case(const Settings& settings, const CallOptions& options, Report& report) {
  io::Case test_case = io::load_case(report.file);
  report.operation = io::operation_name(test_case.operation);
  report.ignored = test_case.ignored;
  if (settings.check) io::add_reference_results(test_case);
  io::CaseRun run(test_case, options, true, device_of(settings));
  std::vector<std::byte> first_out, first_lse;
  for (int i = 0; i < settings.repeat; ++i) {
    run.poison_outputs();
    const auto start = std::chrono::steady_clock::now();
    run.execute();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    report.milliseconds.push_back(elapsed.count());
    if (i == 0 && settings.repeat > 1) {
      first_out = bytes_of(run.out());
      first_lse = bytes_of(run.lse());
    } else {
      report.repeatable = report.repeatable && same_bytes(run.out(), first_out) && same_bytes(run.lse(), first_lse);
    }
  }
  std::sort(report.milliseconds.begin(), report.milliseconds.end());
  report.path = run.path();
  report.check = io::check_run(run, test_case.expected);
  if (!report.repeatable && report.check.failure.empty()) report.check.failure = "results differ from run to run";
}

Report run_file(const std::string& file, const Settings& settings, const CallOptions& options) {
  Report report;
  report.file = file;
  const BusErrorGuard guard(file);
  try {
    run_case(settings, options, report);
  } catch (const io::CaseError& error) {
    report.error = error.what();
  } catch (const Error& error) {
    report.error = fmt::format("{}: {}", file, error.what());
  } catch (const std::bad_alloc&) {
    report.error = fmt::format("{}: not enough memory", file);
  }
  return report;
}

/// The end of a text, which for a path is the telling part.
std::string tail(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : "..." + text.substr(text.size() - (width - 3));
}

std::string number(const std::optional<double>& value) { return value ? fmt::format("{:.2e}", *value) : "-"; }

std::optional<double> absolute(const std::optional<io::LseError>& error) {
  return error ? std::optional(error->absolute) : std::nullopt;
}

void print_heading(const Settings& settings) {
  const Info here = info();
  fmt::print("kvsieve {}, device {}, {}, {} threads\n", here.version, settings.device, here.simd_target,
             settings.threads > 0 ? settings.threads : here.num_threads);
  fmt::print("{:<8} {:<11} {:<13} {:>9} {:>8} {:>8} {:>8} {:>9}  {}\n", "result", "operation", "path", "median ms",
             "rel err", "max err", "lse err", "lse_t err", "file");
}

void print_text(const Report& report) {
  for (const std::string& what : report.ignored) {
    std::fprintf(stderr, "%s: %s has no meaning here and is ignored\n", report.file.c_str(), what.c_str());
  }
  if (!report.error.empty()) {
    std::fprintf(stderr, "%s\n", report.error.c_str());
    return;
  }
  const io::RunCheck& check = report.check;
  const char* const result = !report.ok() ? "MISMATCH" : check.compared() ? "ok" : "ran";
  const auto frobenius = check.out ? std::optional(check.out->frobenius) : std::nullopt;
  const auto element = check.out ? std::optional(check.out->element) : std::nullopt;
  const std::string line = fmt::format("{:<8} {:<11} {:<13} {:>9.3f} {:>8} {:>8} {:>8} {:>9}  ", result,
                                       report.operation, path_name(report.path), report.median(), number(frobenius),
                                       number(element), number(absolute(check.lse)), number(absolute(check.lse_t)));
  fmt::print("{}{}\n", line, tail(report.file, line_width - line.size()));
  if (!report.ok()) fmt::print("         {}\n", tail(check.failure, line_width - 9));
}

nlohmann::ordered_json finite(double value) {  // JSON has no infinity
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json("inf");
}

nlohmann::ordered_json lse_json(const io::LseError& error) {
  return {{"absolute_error", finite(error.absolute)}, {"mismatched", error.mismatched}, {"worst", error.worst}};
}

nlohmann::ordered_json to_json(const Report& report) {
  nlohmann::ordered_json entry = {{"file", report.file}};
  if (!report.error.empty()) {
    entry["error"] = report.error;
    return entry;
  }
  const io::RunCheck& check = report.check;
  entry["op"] = report.operation;
  entry["path"] = path_name(report.path);
  entry["ok"] = report.ok();
  entry["compared"] = check.compared();
  if (!report.ok()) entry["failure"] = check.failure;
  entry["milliseconds"] = {{"median", report.median()}, {"min", report.milliseconds.front()}};
  if (check.out) {
    entry["out"] = {{"frobenius_error", finite(check.out->frobenius)},
                    {"element_error", finite(check.out->element)},
                    {"non_finite", check.out->non_finite},
                    {"worst", check.out->worst}};
  }
  if (check.lse) entry["lse"] = lse_json(*check.lse);
  if (check.lse_t) entry["lse_t"] = lse_json(*check.lse_t);
  if (!report.ignored.empty()) entry["ignored"] = report.ignored;
  return entry;
}

ExitCode run_all(const Settings& settings) {
  const CallOptions options = call_options(settings);
  nlohmann::ordered_json document = {{"version", version()},
                                     {"device", settings.device},
                                     {"path", settings.path},
                                     {"repeat", settings.repeat},
                                     {"files", nlohmann::ordered_json::array()}};
  if (!settings.json) print_heading(settings);
  ExitCode worst = success;
  for (const std::string& file : settings.files) {
    const Report report = run_file(file, settings, options);
    worst = std::max(worst, report.exit_code());
    if (settings.json) {
      document["files"].push_back(to_json(report));
    } else {
      print_text(report);
    }
  }
  // File names and messages may hold bytes that are not UTF-8.
  if (settings.json) fmt::print("{}\n", document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return worst;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand(
      "run", "Replay case files; with expected values, check them (exit 0 right, 1 wrong, 2 bad input)");
  const auto settings = std::make_shared<Settings>();
  command->add_option("FILE", settings->files, "Case files")->required();
  command->add_option("--device", settings->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--path", settings->path, "Forces a path: auto, reference, cpu, cuda_portable, cuda_sm90")
      ->capture_default_str();
  command->add_option("--repeat", settings->repeat, "Runs of each case; their results must be bitwise equal")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--threads", settings->threads, "CPU threads, 0 for all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_flag("--check", settings->check, "Compute expected values with the float64 reference");
  command->add_flag("--check-indices", settings->check_indices,
                    "Report index entries that are out of range as an error");
  command->add_flag("--json", settings->json, "Print one JSON document");
  command->callback([settings, &exit_code] { exit_code = run_all(*settings); });
}

}  // namespace kvsieve::tools
