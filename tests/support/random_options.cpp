// SPDX-License-Identifier: Apache-2.0
#include "support/random_options.hpp"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "io/random.hpp"
#include "support/case_tools.hpp"

namespace kvsieve::test {
namespace {

/// Multiplications of the reference per call, at most about this many.
constexpr std::int64_t max_work = 40'000'000;

class Sampler {
 public:
  explicit Sampler(std::uint64_t seed) : random_(seed, 77) { o_.seed = seed; }

  RandomCall sample() {
    sample_operation();
    sample_shape();
    sample_requests();
    limit_work();
    sample_memory();
    sample_scalars();
    sample_contents();
    RandomCall call;
    call.options = o_;
    call.call_options = cpu_options(static_cast<int>(one_of({0, 0, 1, 2, 3, 5, 16})));
    call.with_lse = chance(0.8);
    return call;
  }

 private:
  bool chance(double probability) { return random_.chance(probability); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + random_.below(high - low + 1); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[random_.below(static_cast<std::int64_t>(values.size()))];
  }
  std::int64_t one_of(std::initializer_list<std::int64_t> values) { return pick(values); }

  bool qsa() const { return o_.operation == io::Operation::qsa; }
  bool same_rows() const { return o_.operation == io::Operation::msa_decode || (qsa() && !o_.packed); }

  void sample_operation() {
    o_.operation = pick({io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa});
    o_.packed = chance(0.6);
    o_.q_dtype = pick({DType::bf16, DType::f16});
    if (chance(0.4)) o_.kv_dtype = DType::f8_e4m3;
    if (!qsa() || chance(0.75)) return;
    o_.out_dtype = o_.q_dtype;
    o_.q_dtype = o_.kv_dtype = DType::f8_e4m3;
  }

  void sample_shape() {
    o_.head_dim = one_of({64, 64, 128, 128, 256});
    o_.num_kv_heads = one_of({1, 1, 2, 3, 4});
    o_.num_qo_heads = o_.num_kv_heads * between(1, 16);
    o_.block_size = std::int64_t{4} << between(0, 5);
    o_.topk = chance(0.05) ? 0 : chance(0.5) ? between(1, 8) : chance(0.7) ? between(9, 40) : between(41, 600);
    o_.page_size = o_.block_size * one_of({1, 1, 2, 3, 4, 16});
    if (!qsa() && chance(0.4)) o_.page_size = 0;
    o_.spare_pages = one_of({0, 0, 1, 5});
    if (!qsa()) return;
    o_.group_size = between(1, std::min<std::int64_t>(16, 128 * o_.num_kv_heads / o_.num_qo_heads));
    o_.per_head_patterns = chance(0.4);
  }

  void sample_requests() {
    o_.batch_size = chance(0.03) ? 0 : between(1, 5);
    const std::int64_t longest_kv = one_of({1, 9, 100, 300, 700, 1500});
    const std::int64_t longest_q = one_of({1, 4, 24, 70});
    o_.query_lengths.clear();
    o_.kv_lengths.clear();
    for (std::int64_t b = 0; b < std::max<std::int64_t>(o_.batch_size, 1); ++b) {
      o_.query_lengths.push_back(chance(0.1) ? 0 : between(1, longest_q));
      o_.kv_lengths.push_back(chance(0.1) ? 0 : between(1, longest_kv));
    }
    if (o_.batch_size == 0) o_.query_lengths = o_.kv_lengths = {1};
    if (!qsa() && chance(0.3)) {
      for (const std::int64_t length : o_.kv_lengths) o_.q_offsets.push_back(between(-6, length + 10));
    }
  }

  /// Fewer rows where a row is much work, and rows as the layout wants them.
  void limit_work() {
    const std::int64_t longest = *std::max_element(o_.kv_lengths.begin(), o_.kv_lengths.end());
    const std::int64_t keys = std::min(longest, (o_.topk + 1) * o_.block_size);
    const std::int64_t row_work = std::max<std::int64_t>(1, o_.num_qo_heads * keys * o_.head_dim * 2);
    const std::int64_t most = std::max<std::int64_t>(1, max_work / row_work / std::max<std::int64_t>(1, o_.batch_size));
    for (std::int64_t& rows : o_.query_lengths) rows = std::min(rows, most);
    if (same_rows()) {
      std::int64_t rows = std::max<std::int64_t>(1, o_.query_lengths.front());
      if (qsa()) {
        o_.group_size = std::min(o_.group_size, most);
        const std::int64_t groups = chance(0.05) ? 0 : std::max<std::int64_t>(1, rows / o_.group_size);
        rows = groups * o_.group_size;
      }
      o_.query_lengths = {rows};
    } else if (chance(0.2)) {
      o_.padding_rows = between(1, 5);
    }
  }

  void sample_memory() {
    if (chance(0.7)) {
      o_.kv_layout = pick({io::KvLayout::nhd, io::KvLayout::hnd, io::KvLayout::packed_nhd, io::KvLayout::packed_hnd});
    }
    o_.row_gap = one_of({0, 0, 1, 8, 192});
    o_.index_gap = one_of({0, 0, 1, 6});
  }

  void sample_scalars() {
    if (chance(0.4)) o_.softmax_scale = pick({0.0f, -0.1f, 0.03f, 0.125f, 0.5f});
    if (!qsa()) o_.k_scale = pick({1.0f, 1.0f, 0.5f, 1.75f});
    o_.v_scale = pick({1.0f, 1.0f, 0.25f, -3.0f});
    o_.scale_tensors = chance(0.4);
    if (qsa()) {
      o_.gate = chance(0.4);
      o_.positions_i32 = chance(0.5);
      if (chance(0.4)) o_.max_seq_len_kv = one_of({0, 64, 500, 1 << 20, std::int64_t{1} << 40});
    } else {
      o_.causal = chance(0.75);
      o_.valid_prefix = chance(0.3);
      if (chance(0.3)) o_.lse_temperature_scale = pick({0.25f, 1.0f, 2.0f});
    }
  }

  void sample_contents() {
    o_.query_amplitude = pick({1.0f, 1.0f, 1.0f, 0.1f, 20.0f});
    o_.replacement = pick({0.05, 0.125, 0.5, 1.0});
    if (chance(0.4)) o_.hostile = pick({0.01, 0.02, 0.1, 0.1, 0.3, 1.0});
  }

  io::GenerateOptions o_;
  io::Random random_;
};

}  // namespace

RandomCall random_call(std::uint64_t seed) { return Sampler(seed).sample(); }

}  // namespace kvsieve::test
