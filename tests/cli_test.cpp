// SPDX-License-Identifier: Apache-2.0
//
// The kvsieve command as a user meets it: exit codes, and what it prints.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "core/numeric.hpp"
#include "io/case.hpp"

namespace kvsieve {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class Cli : public testing::Test {
 protected:
  Cli() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvsieve_cli_XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~Cli() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  Outcome kvsieve(const std::string& arguments) const {
    Outcome outcome = kvsieve_into(path("out"), arguments);
    outcome.out = read_file(path("out"));
    return outcome;
  }
  /// With standard output to a file that need not be readable.
  Outcome kvsieve_into(const std::string& file, const std::string& arguments) const {
    const std::string command =
        std::string("'" KVSIEVE_TOOL "' ") + arguments + " >'" + file + "' 2>'" + path("err") + "'";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", read_file(path("err"))};
  }

  std::string directory_;
};

const char* const golden = KVSIEVE_TEST_DATA "/golden/msa_decode_paged_bf16_ragged.safetensors";

/// A copy of a golden case with one expected value changed.
void write_wrong_case(const std::string& path) {
  io::Case test_case = io::load_case(golden);
  const io::OwnedTensor out =
      io::make_tensor(DType::f32, std::span(test_case.expected.out.shape).first(test_case.expected.out.rank));
  io::copy_elements(test_case.expected.out, out.view);
  static_cast<float*>(out.view.data)[17] += 1.0f;
  test_case.expected.out = test_case.keep(out);
  io::write_case(test_case, path);
}

TEST_F(Cli, ARightResultExitsWith0) {
  for (const char* const path : {"auto", "cpu", "reference"}) {
    const Outcome outcome = kvsieve(std::string("run --path ") + path + " '" + golden + "'");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("\nok "), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.err, "");
  }
}

TEST_F(Cli, AWrongResultExitsWith1) {
  write_wrong_case(path("wrong.safetensors"));
  const Outcome outcome = kvsieve("run '" + path("wrong.safetensors") + "' '" + golden + "'");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.out.find("MISMATCH"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("out: relative error"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nok "), std::string::npos) << "the other file still runs";
}

TEST_F(Cli, BadInputExitsWith2AndOneLine) {
  std::ofstream(path("bad")) << "not a case";
  write_wrong_case(path("wrong.safetensors"));
  const Outcome outcome = kvsieve("run '" + path("bad") + "' '" + path("wrong.safetensors") + "' '" + golden + "'");
  EXPECT_EQ(outcome.exit_code, 2) << "bad input outweighs a mismatch";
  EXPECT_EQ(outcome.err.find(path("bad") + ": header length is"), 0u) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.out.find("\nok "), std::string::npos) << outcome.out;

  for (const std::string& arguments :
       {std::string("run '") + path("missing") + "'", "run '" + directory_ + "'", std::string("run"), std::string(""),
        std::string("frobnicate"), std::string("run --path fastest '") + golden + "'",
        std::string("run --path cuda_sm90 '") + golden + "'", std::string("run --device cuda '") + golden + "'",
        std::string("run --repeat 0 '") + golden + "'", std::string("generate"), std::string("generate --op mla"),
        std::string("generate --op qsa --heads 5 --kv-heads 2"), std::string("generate --op qsa --seed abc"),
        std::string("generate --op qsa --seed -1"), std::string("generate --op qsa --seed 99999999999999999999999"),
        std::string("generate --op qsa --topk -1"), std::string("generate --op qsa --head-dim -1"),
        std::string("generate --op qsa -o /nonexistent/directory/case")}) {
    const Outcome bad = kvsieve(arguments);
    EXPECT_EQ(bad.exit_code, 2) << arguments << "\n" << bad.out << bad.err;
    EXPECT_FALSE(bad.err.empty()) << arguments;
  }
}

TEST_F(Cli, AFileCutWhileInUseExitsWith2AndOneLine) {
  const std::string file = path("cut.safetensors");
  std::filesystem::copy_file(golden, file);
  // The file is cut once the command has it mapped and works on it, however slow the machine. All threads then fault at
  // about the same time.
  const std::string command = "'" KVSIEVE_TOOL "' run --repeat 1000000 '" + file + "' 2>'" + path("err") +
                              "' >/dev/null & pid=$!; while kill -0 $pid && ! grep -q cut.safetensors /proc/$pid/maps; "
                              "do sleep 0.02; done; sleep 0.3; truncate -s 4096 '" +
                              file + "'; wait $pid";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  const std::string err = read_file(path("err"));
  EXPECT_EQ(err.find(file + ": was cut"), 0u) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

TEST_F(Cli, OutputThatCannotBeWrittenExitsWith2AndOneLine) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  write_wrong_case(path("wrong.safetensors"));
  std::string many;  // of files, so that the output is more than a buffer holds
  for (int i = 0; i < 200; ++i) many += std::string(" '") + golden + "'";
  for (const std::string& arguments :
       {std::string("--help"), std::string("--version"), std::string("bench --help"), std::string("info"),
        std::string("info --json"), std::string("run '") + golden + "'", std::string("run --json '") + golden + "'",
        "run '" + path("wrong.safetensors") + "'", "run" + many, "run --json" + many, std::string("demo --quick"),
        std::string("bench --quick --filter 'decode bf16 B 1'"),
        std::string("bench --quick --json --filter 'decode bf16 B 1'")}) {
    const Outcome outcome = kvsieve_into("/dev/full", arguments);
    const std::string shown = arguments.substr(0, 100);
    EXPECT_EQ(outcome.exit_code, 2) << shown;
    const std::size_t complaint = outcome.err.find("kvsieve: standard output cannot be written");
    ASSERT_NE(complaint, std::string::npos) << shown << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin() + static_cast<std::ptrdiff_t>(complaint), outcome.err.end(), '\n'), 1)
        << shown << "\n"
        << outcome.err;
    EXPECT_EQ(outcome.err.find("kvsieve: ", complaint + 1), std::string::npos) << shown << "\n" << outcome.err;
  }
}

TEST_F(Cli, MessagesThatCannotBeWrittenDoNotStopTheWork) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const std::string& where : {std::string("2>/dev/full"), std::string("2>&-")}) {
    std::string command = "'" KVSIEVE_TOOL "' bench --quick --filter 'MSA decode bf16 B 1' -o '";
    command.append(path("rows")).append("' ").append(where).append(" >'").append(path("out")).append("'");
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << where;
    EXPECT_NE(read_file(path("rows")).find("MSA decode"), std::string::npos) << where;
    std::filesystem::remove(path("rows"));
  }
}

TEST_F(Cli, AnOutputFileThatCannotBeWrittenIsNoticedBeforeTheWork) {
  const std::string missing = path("no/such/folder/file");
  for (const std::string& arguments : {"bench --quick --output '" + missing + "'",
                                       "bench --quick -o '" + path("good") + "' -o '" + directory_ + "'"}) {
    const Outcome outcome = kvsieve(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err.find(": cannot be written: "), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << "a row began\n" << outcome.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path("good"))) << "nothing was measured";

  // Options that are wrong too, and only looked at when the case is made.
  const Outcome generated = kvsieve("generate --op qsa --heads 5 --kv-heads 2 -o '" + missing + "'");
  EXPECT_EQ(generated.exit_code, 2);
  EXPECT_EQ(generated.err.find("kvsieve: " + missing + ": cannot be written: "), 0u) << generated.err;
  EXPECT_EQ(kvsieve("generate --op qsa --heads 5 --kv-heads 2 -o '" + path("new") + "'").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("new")));
}

TEST_F(Cli, AnOutputFileIsReplacedByAResultAndKeptWithoutOne) {
  const std::string old(1 << 16, 'x');
  std::ofstream(path("file")) << old;
  EXPECT_EQ(kvsieve("bench --quick --filter nothing -o '" + path("file") + "'").exit_code, 2);
  EXPECT_EQ(read_file(path("file")), old);
  const Outcome outcome = kvsieve("bench --quick --filter 'MSA decode bf16 B 1' -o '" + path("file") + "'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read_file(path("file")), outcome.out);
}

TEST_F(Cli, AnOptionThatTheSuiteDoesNotUseIsAnError) {
  const Outcome path = kvsieve("bench --quick --suite cpu --path cpu");
  EXPECT_EQ(path.exit_code, 2);
  EXPECT_EQ(path.out, "");
  EXPECT_EQ(path.err, "kvsieve: --path: the cpu suite does not use it\n");
  const Outcome samples = kvsieve("bench --samples 30");
  EXPECT_EQ(samples.exit_code, 2);
  EXPECT_EQ(samples.err, "kvsieve: --samples: the cpu suite does not use it\n");
  const Outcome quick = kvsieve("bench --suite targets --quick --samples 30");  // which has its own number of them
  EXPECT_EQ(quick.exit_code, 2);
  EXPECT_NE(quick.err.find("--samples excludes --quick"), std::string::npos) << quick.err;
}

TEST_F(Cli, RunSaysWhichPathRan) {
  for (const auto& [asked, ran] : {std::pair<std::string, std::string>{"auto", "cpu"}, {"reference", "reference"}}) {
    const Outcome text = kvsieve("run --path " + asked + " '" + golden + "'");
    EXPECT_NE(text.out.find("msa_decode  " + ran + " "), std::string::npos) << text.out;
    EXPECT_EQ(text.out.find("auto"), std::string::npos) << text.out;
    const auto document = nlohmann::json::parse(kvsieve("run --json --path " + asked + " '" + golden + "'").out);
    EXPECT_EQ(document["files"][0]["path"], ran);
  }
}

TEST_F(Cli, LinesFitIn120Columns) {
  write_wrong_case(path("wrong.safetensors"));
  const Outcome outcome =
      kvsieve("run '" + path("wrong.safetensors") + "' '" KVSIEVE_TEST_DATA "'/golden/*.safetensors");
  EXPECT_EQ(outcome.exit_code, 1);
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

TEST_F(Cli, JsonIsOneDocument) {
  write_wrong_case(path("wrong.safetensors"));
  const Outcome outcome =
      kvsieve("run --json --repeat 3 '" + path("wrong.safetensors") + "' '" + path("missing") + "' '" + golden + "'");
  EXPECT_EQ(outcome.exit_code, 2);
  const auto document = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(document["repeat"], 3);
  ASSERT_EQ(document["files"].size(), 3u);
  EXPECT_EQ(document["files"][0]["ok"], false);
  EXPECT_TRUE(document["files"][0]["failure"].is_string());
  EXPECT_TRUE(document["files"][1]["error"].is_string());
  EXPECT_EQ(document["files"][2]["ok"], true);
  EXPECT_EQ(document["files"][2]["op"], "msa_decode");
  EXPECT_LT(document["files"][2]["out"]["frobenius_error"], 4e-3);
  EXPECT_LT(document["files"][2]["lse"]["absolute_error"], 2e-3);
  EXPECT_GT(document["files"][2]["milliseconds"]["median"], 0);

  const auto here = nlohmann::json::parse(kvsieve("info --json").out);
  EXPECT_TRUE(here["version"].is_string());
  EXPECT_EQ(here["paths"].size(), 4u);
}

TEST_F(Cli, GeneratedCasesReplayRight) {
  const Outcome msa = kvsieve(
      "generate --op msa_prefill --batch 2 --q-len 3,9 --kv-len 300,700 --heads 8 --kv-heads 2 --topk 3 "
      "--kv-layout packed_nhd --hostile 0.2 --lse-temperature-scale 0.5 --expected --count 3 -o '" +
      path("msa.safetensors") + "'");
  ASSERT_EQ(msa.exit_code, 0) << msa.err;
  const Outcome qsa = kvsieve(
      "generate --op qsa --q-len 7 --kv-len 90 --topk 9 --group-size 3 --gate true --q-dtype f8_e4m3 --seed 9 -o '" +
      path("qsa.safetensors") + "'");
  ASSERT_EQ(qsa.exit_code, 0) << qsa.err;
  const Outcome run = kvsieve("run --repeat 2 '" + directory_ + "'/msa-000[012].safetensors");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  const Outcome ran = kvsieve("run '" + path("qsa.safetensors") + "'");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(ran.out.find("\nran "), std::string::npos) << ran.out;
  const Outcome checked = kvsieve("run --check '" + path("qsa.safetensors") + "'");
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  EXPECT_NE(checked.out.find("\nok "), std::string::npos) << checked.out;
}

TEST_F(Cli, GpuSuitesSayWhatTheyNeed) {
  const auto here = nlohmann::json::parse(kvsieve("info --json").out);
  for (const auto& path : here["paths"]) {
    if (path["path"] == "cuda_portable" && path["available"] == true) GTEST_SKIP() << "this machine has what they need";
  }
  for (const char* const arguments :
       {"bench --suite targets", "bench --suite production --quick --json", "demo --quick --device cuda"}) {
    const Outcome outcome = kvsieve(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err.find("CUDA"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_EQ(kvsieve("bench --suite targets --samples 3").exit_code, 2) << "too few for a median";
}

TEST_F(Cli, HelpAndVersionExitWith0) {
  for (const char* const arguments : {"--help", "--version", "run --help", "generate --help", "info --help", "info"}) {
    const Outcome outcome = kvsieve(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments;
    EXPECT_FALSE(outcome.out.empty()) << arguments;
  }
}

}  // namespace
}  // namespace kvsieve
