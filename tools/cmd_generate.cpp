// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <system_error>

#include "commands.hpp"
#include "io/case_run.hpp"
#include "io/generate.hpp"
#include "output_file.hpp"

namespace kvsieve::tools {
namespace {

using io::GenerateOptions;

struct Settings {
  GenerateOptions options;
  std::string output = "case.safetensors";
  std::int64_t count = 1;
  bool expected = false;
};

// One overload for each type of option: numbers and lists as CLI11 knows them, names through their own parsers.

template <class Value>
void add_option(CLI::App& command, const char* name, Value& value, const char* help) {
  command.add_option(name, value, help);
}

/// A number of things, or a seed: CLI11 would take a number that does not fit for the nearest that does, and -1 for a
/// large one.
template <class Integer>
void add_whole_number(CLI::App& command, const char* name, Integer& value, const char* help) {
  command.add_option_function<std::string>(
      name,
      [&value, name](const std::string& text) {
        const char* const end = text.data() + text.size();
        Integer number = 0;
        const auto [stop, status] = std::from_chars(text.data(), end, number);
        if (status != std::errc() || stop != end || number < Integer{0}) {
          throw ArgumentError(name, "\"" + text + "\"",
                              "a whole number of at most " + std::to_string(std::numeric_limits<Integer>::max()));
        }
        value = number;
      },
      help);
}

void add_option(CLI::App& command, const char* name, std::int64_t& value, const char* help) {
  add_whole_number(command, name, value, help);
}

void add_option(CLI::App& command, const char* name, std::uint64_t& value, const char* help) {
  add_whole_number(command, name, value, help);
}

void add_option(CLI::App& command, const char* name, std::vector<std::int64_t>& value, const char* help) {
  command.add_option(name, value, help)->delimiter(',');
}

void add_option(CLI::App& command, const char* name, DType& value, const char* help) {
  command.add_option_function<std::string>(
      name, [&value](const std::string& text) { value = io::dtype_from_name(text); }, help);
}

void add_option(CLI::App& command, const char* name, std::optional<io::KvLayout>& value, const char* help) {
  command.add_option_function<std::string>(
      name, [&value](const std::string& text) { value = io::kv_layout_from_name(text); }, help);
}

/// "case.safetensors" becomes "case-0007.safetensors" when there are many.
std::string numbered(const std::string& output, std::int64_t index, std::int64_t count) {
  if (count == 1) return output;
  const std::filesystem::path path(output);
  const std::string name = fmt::format("{}-{:04}{}", path.stem().string(), index, path.extension().string());
  return (path.parent_path() / name).string();
}

void generate(const Settings& settings) {
  for (std::int64_t i = 0; i < settings.count; ++i) {
    GenerateOptions options = settings.options;
    options.seed += static_cast<std::uint64_t>(i);
    const std::string path = numbered(settings.output, i, settings.count);
    OutputFile file(path);  // before the expected values, which may take minutes
    io::Case test_case = io::generate_case(options);
    if (settings.expected) io::add_reference_results(test_case);
    io::write_case(test_case, path);
    file.keep();
  }
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("generate", "Write random case files");
  const auto settings = std::make_shared<Settings>();
  command
      ->add_option_function<std::string>(
          "--op", [settings](const std::string& text) { settings->options.operation = io::operation_from_name(text); },
          "msa_prefill, msa_decode or qsa")
      ->required();
  io::for_each_option([&](const char* name, auto member, const char* help) {
    add_option(*command, name, settings->options.*member, help);
  });
  command->add_option("-o,--output", settings->output, "File to write; numbered when there are many")
      ->capture_default_str();
  command->add_option("--count", settings->count, "Number of files, with seeds counting up from --seed")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
      ->capture_default_str();
  command->add_flag("--expected", settings->expected, "Add expected values, computed by the float64 reference");
  command->callback([settings, &exit_code] {
    generate(*settings);
    exit_code = success;
  });
}

}  // namespace kvsieve::tools
