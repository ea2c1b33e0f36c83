// SPDX-License-Identifier: Apache-2.0
//
// What the GPU suites are made of, as far as it needs no GPU: the rows, what they select, how they are checked and
// reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "bench/gpu_rows.hpp"
#include "bench/gpu_suite.hpp"
#include "bench/host_excerpt.hpp"
#include "bench/sample_check.hpp"
#include "gpu_report.hpp"
#include "io/generate.hpp"

namespace kvsieve::bench {
namespace {

const GpuRow& row_named(const std::vector<GpuRow>& rows, const std::string& name) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const GpuRow& r) { return r.workload.name == name; });
  if (row == rows.end()) throw Error("no row " + name);
  return *row;
}

std::size_t count_containing(const std::vector<GpuRow>& rows, const std::string& part) {
  return choose_rows(rows, part, false).size();
}

TEST(GpuRows, NamesAreUniqueAndCountsAreThoseOfTheTables) {
  for (const std::vector<GpuRow>& rows : {target_rows(), production_rows()}) {
    std::set<std::string> names;
    for (const GpuRow& row : rows) EXPECT_TRUE(names.insert(row.workload.name).second) << row.workload.name;
  }
  const std::vector<GpuRow> targets = target_rows();
  EXPECT_EQ(count_containing(targets, "MSA prefill"), 6u);
  EXPECT_EQ(count_containing(targets, "msa DECODE"), 12u + 4u) << "with the variants of the 4 rows with 8 queries";
  EXPECT_EQ(count_containing(targets, "QSA prefill"), 4u);
  EXPECT_EQ(count_containing(targets, "QSA decode"), 16u + 8u) << "with the variants of the 8 rows with 4 queries";
  for (const GpuRow& row : targets) {
    EXPECT_GT(row.published.triton, row.published.target) << row.workload.name;
    EXPECT_GT(row.published.target, row.published.beyond) << row.workload.name;
    EXPECT_GT(row.published.beyond, row.published.floor) << row.workload.name;
  }
  const std::vector<GpuRow> production = production_rows();
  EXPECT_EQ(count_containing(production, "prefill"), 16u);
  EXPECT_EQ(count_containing(production, "shared"), 28u);
  EXPECT_EQ(count_containing(production, "similar"), 28u);
}

/// What the published floor of a row leaves out, as a factor that the computed one may be larger by.
double published_floor_lacks(const std::string& name) {
  // Half of it is not there to be read: 4 KV heads x 16 blocks of one request are 4.2 MB.
  if (name.starts_with("MSA decode") && name.find("B 1,") != std::string::npos) return 0.5;
  // Selections that are not shared touch more blocks than the one selection that the page counts.
  if (name.ends_with(", similar")) return 1.8;
  if (name.find("4 queries") != std::string::npos && name.ends_with("r 0.05")) return 1.145;
  // With an 8-bit cache and 8 queries a request, arithmetic takes longer than reading.
  if (name.starts_with("MSA decode FP8 KV, B 8, 8 queries")) return 1.375;
  if (name.starts_with("MSA decode FP8 KV, B 64, 8 queries")) return 1.39;
  return 1;
}

TEST(GpuRows, ComputedFloorsAgreeWithThePublishedOnes) {
  for (const GpuRow& row : target_rows()) {
    const double floor = floor_seconds(count_work(io::generate_indices(row.workload.options))) * 1e6;
    const double want = row.published.floor * published_floor_lacks(row.workload.name);
    // The page rounds to one digit below 10 and to none above.
    const double rounding = row.published.floor < 10 ? 0.05 : 0.5;
    EXPECT_NEAR(floor, want, 0.1 * want + rounding) << row.workload.name;
  }
}

const std::int32_t* ids_of(const io::Case& c, std::int64_t head, std::int64_t row) {
  const Tensor& ids = c.is_msa() ? c.msa.q2k_indices : c.qsa.indexer_block_ids;
  const auto* const data = static_cast<const std::int32_t*>(ids.data);
  return c.is_msa() ? data + head * ids.stride[0] + row * ids.stride[1] : data + row * ids.stride[0];
}

/// Part of the entries of successive rows of request 0 that the predecessor has not.
double changed_part(const io::Case& c, std::int64_t rows, std::int64_t topk) {
  std::int64_t changed = 0;
  for (std::int64_t row = 1; row < rows; ++row) {
    const std::set<std::int32_t> before(ids_of(c, 0, row - 1), ids_of(c, 0, row - 1) + topk);
    for (std::int64_t i = 0; i < topk; ++i) changed += before.contains(ids_of(c, 0, row)[i]) ? 0 : 1;
  }
  return static_cast<double>(changed) / static_cast<double>((rows - 1) * topk);
}

TEST(GpuRows, SelectionsChangeAtTheRateOfTheRow) {
  const std::vector<GpuRow> rows = target_rows();
  const auto part = [&](const std::string& name, std::int64_t count, std::int64_t topk) {
    return changed_part(io::generate_indices(row_named(rows, name).workload.options), count, topk);
  };
  EXPECT_NEAR(part("MSA prefill bf16, 1404 tokens, KV 46844, r 0.125", 1404, 16), 0.12, 0.015);
  EXPECT_GT(part("MSA prefill bf16, 1404 tokens, KV 46844, r 1", 1404, 16), 0.8);
  EXPECT_NEAR(part("QSA decode bf16, B 8, 4 queries, KV 16384, r 0.05", 4, 512), 0.05, 0.02);
  EXPECT_EQ(part("QSA decode bf16, B 8, 4 queries, KV 16384, shared", 4, 512), 0);
  EXPECT_EQ(part("MSA decode bf16, B 8, 8 queries, KV 50000, shared", 8, 16), 0);
  EXPECT_NEAR(part("MSA decode bf16, B 8, 8 queries, KV 50000, similar", 8, 16), 0.12, 0.09);
}

TEST(GpuRows, MsaAlwaysSelectsTheNewestBlock) {
  const GpuRow row = row_named(target_rows(), "MSA prefill bf16, 338 tokens, KV 74578, r 0.125");
  const io::Case c = io::generate_indices(row.workload.options);
  for (std::int64_t head = 0; head < 4; ++head) {
    for (std::int64_t t = 0; t < 338; ++t) {
      const std::int32_t* const ids = ids_of(c, head, t);
      EXPECT_EQ(std::count(ids, ids + 16, (74578 - 338 + t) / 128), 1) << head << ", " << t;
    }
  }
}

TEST(GpuRows, GroupsOfQsaPrefillFitATile) {
  for (const GpuRow& row : choose_rows(target_rows(), "QSA prefill", false)) {
    EXPECT_GE(row.workload.options.group_size, 8);
    EXPECT_LE(row.workload.options.group_size * 12, 128);
  }
}

TEST(GenerateIndices, AreThoseOfTheWholeCase) {
  for (const GpuRow& row : choose_rows(target_rows(), "", true)) {
    const io::Case indices = io::generate_indices(row.workload.options);
    const io::Case whole = io::generate_case(row.workload.options);
    const Tensor& got = indices.is_msa() ? indices.msa.q2k_indices : indices.qsa.indexer_block_ids;
    const Tensor& want = whole.is_msa() ? whole.msa.q2k_indices : whole.qsa.indexer_block_ids;
    ASSERT_EQ(got.numel(), want.numel());
    EXPECT_EQ(std::memcmp(got.data, want.data, static_cast<std::size_t>(got.numel()) * 4), 0) << row.workload.name;
    EXPECT_EQ(indices.k().data, nullptr);
    EXPECT_EQ(to_string(indices.k()), to_string(whole.k()));
    EXPECT_EQ(to_string(indices.q()), to_string(whole.q()));
  }
  io::GenerateOptions options = target_rows().front().workload.options;
  options.kv_layout = io::KvLayout::nhd;
  EXPECT_THROW(io::generate_indices(options), ArgumentError);
}

TEST(HostExcerpt, HoldsWhatTheSampledRowsRead) {
  for (GpuRow row : choose_rows(target_rows(), "", true)) {
    // Long enough for the rows to leave blocks out.
    row.workload.options.kv_lengths = {900};
    row.workload.options.topk = row.workload.options.operation == io::Operation::qsa ? 6 : 2;
    io::CaseRun run(io::generate_case(row.workload.options), {});
    run.execute();
    const std::vector<std::int64_t> rows = sample_rows(count_rows(run.test_case()), 2);
    std::size_t copied = 0;
    const io::Case excerpt = host_excerpt(run.test_case(), rows, [&](void* to, const void* from, std::size_t bytes) {
      std::memcpy(to, from, bytes);
      copied += bytes;
    });
    EXPECT_LT(copied, static_cast<std::size_t>(run.test_case().k().numel()) * 4) << row.workload.name;
    const SampledErrors got = check_rows(excerpt, run.out(), run.lse(), rows, 1);
    const SampledErrors want = check_rows(run.test_case(), run.out(), run.lse(), rows, 1);
    EXPECT_EQ(describe(got, run.out().dtype), "") << row.workload.name;
    EXPECT_EQ(got.out.frobenius, want.out.frobenius) << row.workload.name;
    EXPECT_EQ(got.lse.absolute, want.lse.absolute) << row.workload.name;
  }
}

TEST(SampleRows, AreDistinctAndSpread) {
  EXPECT_EQ(sample_rows(3, 8), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_TRUE(sample_rows(0, 8).empty());
  const std::vector<std::int64_t> rows = sample_rows(16384, 16);
  ASSERT_EQ(rows.size(), 16u);
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_EQ(rows[static_cast<std::size_t>(i)] / 1024, i);
}

GpuRowResult measured(const GpuRow& row, double seconds, double flops) {
  GpuRowResult result{row, {}, ""};
  result.measured.path = Path::cuda_portable;
  result.measured.median_seconds = seconds;
  result.measured.min_seconds = seconds / 2;
  result.measured.out_dtype = DType::bf16;
  result.measured.work = {flops, 0};
  return result;
}

TEST(GroupMeans, WeighEachRow) {
  GpuRow row;
  row.group = "a";
  row.triton_flops_per_second = 1;
  row.weight = 3;
  std::vector<GpuRowResult> results = {measured(row, 1, 10)};
  row.weight = 1;
  results.push_back(measured(row, 5, 50));
  row.weight = 100;
  results.push_back({row, {}, "out of memory"});
  results.push_back(measured(GpuRow{}, 7, 70));  // of no group
  const std::vector<GroupMean> means = group_means(results);
  ASSERT_EQ(means.size(), 1u);
  EXPECT_EQ(means[0].name, "a");
  EXPECT_EQ(means[0].rows, 2);
  EXPECT_EQ(means[0].missing, 1);
  EXPECT_DOUBLE_EQ(means[0].seconds, (3 * 1 + 1 * 5) / 4.0);
  EXPECT_DOUBLE_EQ(means[0].triton_seconds, (3 * 10 + 1 * 50) / 4.0);
  EXPECT_DOUBLE_EQ(means[0].flops_per_second, (3 * 10 + 1 * 50) / 8.0);
  EXPECT_DOUBLE_EQ(means[0].floor_seconds, (3 * 10 + 1 * 50) / 4.0 / 811e12);
}

TEST(GpuReport, TextAndJsonSayWhatWasMeasured) {
  const std::vector<GpuRow> rows = target_rows(), production = production_rows();
  tools::GpuReport report{"targets", {{DeviceType::cuda, 0}, "Some GPU", 132, "580.1, CUDA 13.0", "CUDA 13.0"}, {}, {}};
  report.rows = {
      measured(rows[0], 240e-6, 2e11), measured(rows[1], 4800e-6, 2e11), {rows[2], {}, "no \"memory\"\nleft"}};
  report.rows[1].measured.errors.out.frobenius = INFINITY;
  report.rows[1].measured.errors.non_finite = 7;
  const tools::BenchRun run{"kvsieve bench --suite targets", 16, false};
  const std::string text = gpu_report_text(report, run);
  for (const char* const part :
       {"Some GPU, 132 SMs, driver 580.1, CUDA 13.0", "commit ", "command  kvsieve bench --suite targets\n", "2.00",
        "out: 7 elements are not finite", "cuda_portable", "targets met by 1, beyond by 1, results right in 1 of 3"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("weighted mean"), std::string::npos);

  const auto json = nlohmann::json::parse(gpu_report_json(report, run).dump());
  EXPECT_EQ(json["gpu"], "Some GPU");
  ASSERT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][0]["ok"], true);
  EXPECT_DOUBLE_EQ(json["rows"][0]["target_over_time"], 2.0);
  EXPECT_DOUBLE_EQ(json["rows"][0]["published_microseconds"]["triton"], 1698);
  EXPECT_EQ(json["rows"][1]["ok"], false);
  EXPECT_EQ(json["rows"][1]["errors"]["frobenius"], "inf");
  EXPECT_EQ(json["rows"][2]["failure"], "no \"memory\"\nleft");
  EXPECT_FALSE(json["rows"][2].contains("microseconds"));

  report.rows = {measured(production[0], 1e-3, 1.2e11), measured(production[20], 1e-3, 1e9)};
  const std::string means = gpu_report_text(report, run);
  EXPECT_NE(means.find("weighted mean"), std::string::npos) << means;
  EXPECT_EQ(means.find("beyond"), std::string::npos) << means;
  const auto document = nlohmann::json::parse(gpu_report_json(report, run).dump());
  ASSERT_EQ(document["weighted_means"].size(), 2u);
  EXPECT_NEAR(document["weighted_means"][0]["triton_microseconds"], 1000, 1e-6);
  EXPECT_FALSE(document["weighted_means"][1].contains("triton_microseconds"));
}

}  // namespace
}  // namespace kvsieve::bench
