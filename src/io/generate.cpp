// SPDX-License-Identifier: Apache-2.0
#include "io/generate.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "core/numeric.hpp"
#include "io/random.hpp"
#include "io/selection_walk.hpp"

namespace kvsieve::io {
namespace {

using Shape = std::initializer_list<std::int64_t>;
constexpr std::int32_t max_int32 = std::numeric_limits<std::int32_t>::max();

/// Random streams of a case, one for each kind of content, so that no choice changes another one's numbers.
enum Stream : std::uint64_t { queries, keys, values, gates, pages, selections, padding, corruption };

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void fill_normal(const Tensor& tensor, std::int64_t offset, std::int64_t count, float amplitude, Random random) {
  const auto fill = [&](auto* data, auto convert) {
    for (std::int64_t i = 0; i < count; ++i) data[offset + i] = convert(amplitude * random.normal());
  };
  switch (tensor.dtype) {
    case DType::bf16:
      return fill(static_cast<std::uint16_t*>(tensor.data), float_to_bf16);
    case DType::f16:
      return fill(static_cast<std::uint16_t*>(tensor.data), float_to_f16);
    case DType::f8_e4m3:
      return fill(static_cast<std::uint8_t*>(tensor.data), float_to_f8_e4m3);
    default:
      return fill(static_cast<float*>(tensor.data), [](float value) { return value; });
  }
}

/// A value that no valid entry has, or (random bits) hardly ever has.
template <class Int>
Int garbage(Random& random, std::int64_t first_invalid) {
  switch (random.below(5)) {
    case 0:
      return -1;
    case 1:
      return std::numeric_limits<Int>::min();
    case 2:
      return std::numeric_limits<Int>::max();
    case 3:
      return static_cast<Int>(first_invalid);
    default:
      return static_cast<Int>(random.next());
  }
}

/// Where the tokens of a request lie: slot page * page_size + offset of a paged cache, the row of a flat one.
using Locate = std::function<std::int64_t(std::int64_t request, std::int64_t token)>;

enum class Contents { all, indices };

class Generator {
 public:
  Generator(const GenerateOptions& options, Contents contents)
      : o_(resolved(options)), contents_(contents), corruption_(o_.seed, Stream::corruption) {
    if (contents_ == Contents::indices) require_row_major();
    case_.name = "generated case";
    case_.operation = o_.operation;
    case_.layout = {*o_.kv_layout, o_.row_gap, o_.index_gap};
    case_.seed = std::to_string(o_.seed);
    total_q_ = std::accumulate(o_.query_lengths.begin(), o_.query_lengths.end(), o_.padding_rows);
  }

  Case generate() {
    if (case_.is_msa()) {
      make_msa();
    } else {
      make_qsa();
    }
    return std::move(case_);
  }

 private:
  void require_row_major() const {
    if (*o_.kv_layout != row_major_layout(o_.page_size == 0 ? 3 : 4)) {
      throw ArgumentError("--kv-layout", std::string(kv_layout_name(*o_.kv_layout)), "row-major without values");
    }
    if (o_.row_gap != 0) throw ArgumentError("--row-gap", std::to_string(o_.row_gap), "0 without values");
  }

  // ---- MSA ----

  void make_msa() {
    MsaArguments& a = case_.msa;
    a.q = make_rows({total_q_, o_.num_qo_heads, o_.head_dim}, o_.q_dtype, Stream::queries, o_.query_amplitude);
    a.causal = o_.causal;
    a.valid_prefix = o_.valid_prefix;
    a.block_size = o_.block_size;
    a.softmax_scale = o_.softmax_scale;
    a.k_global_scale = make_scale(o_.k_scale);
    a.v_global_scale = make_scale(o_.v_scale);
    case_.wants_lse_t = o_.lse_temperature_scale.has_value();
    a.lse_temperature_scale = o_.lse_temperature_scale.value_or(1.0f);
    if (case_.decode()) {
      a.seqlen_q = o_.query_lengths.empty() ? 1 : o_.query_lengths.front();
    } else {
      a.cu_seqlens_q = make_prefix_sums(o_.query_lengths, 0);
      corrupt(a.cu_seqlens_q, total_q_ + 1);
    }
    if (!o_.q_offsets.empty()) {
      a.q_offset = make_list(o_.q_offsets);
      corrupt(a.q_offset, max_int32);
    }
    a.q2k_indices = make_msa_selection();
    if (o_.page_size == 0) {
      make_flat_cache(a);
    } else {
      make_paged_cache(a);
    }
  }

  Tensor make_msa_selection() {
    const OwnedTensor owned = make_tensor(DType::i32, std::array{o_.num_kv_heads, total_q_, o_.topk}, 1, o_.index_gap);
    const Tensor ids = case_.keep(owned);
    Random filler(o_.seed, Stream::padding);
    for (std::int64_t head = 0; head < o_.num_kv_heads; ++head) {
      std::int64_t row = 0;
      for (std::int64_t b = 0; b < o_.batch_size; ++b) {
        SelectionWalk walk = make_walk(head, b);
        const std::int64_t length = o_.kv_lengths[b];
        const std::int64_t first = o_.q_offsets.empty() ? length - o_.query_lengths[b] : o_.q_offsets[b];
        for (std::int64_t t = 0; t < o_.query_lengths[b]; ++t, ++row) {
          const std::int64_t limit = o_.causal ? std::min(first + t, length - 1) : length - 1;
          const std::int64_t visible = limit < 0 ? 0 : limit / o_.block_size + 1;
          std::int32_t* const to = static_cast<std::int32_t*>(ids.data) + head * ids.stride[0] + row * ids.stride[1];
          // The memory holds -1 already, which is what MSA's lists are padded with.
          std::int32_t* const rest = std::ranges::copy(walk.next(visible), to).out;
          if (o_.valid_prefix) fill_garbage(filler, rest, to + o_.topk, ceil_div(length, o_.block_size));
        }
      }
    }
    corrupt(ids, most_blocks());
    return ids;
  }

  void make_flat_cache(MsaArguments& a) {
    const std::int64_t total_k = std::accumulate(o_.kv_lengths.begin(), o_.kv_lengths.end(), o_.spare_pages);
    a.cu_seqlens_k = make_prefix_sums(o_.kv_lengths, o_.spare_pages / 2);
    corrupt(a.cu_seqlens_k, total_k + 1);
    const auto* const starts = static_cast<const std::int32_t*>(a.cu_seqlens_k.data);
    std::vector<std::int64_t> reach(static_cast<std::size_t>(o_.batch_size), 0);
    for (std::int64_t b = 0; b < o_.batch_size; ++b) {
      const bool valid = starts[b] >= 0 && starts[b] <= starts[b + 1] && starts[b + 1] <= total_k;
      reach[b] = valid ? std::int64_t{starts[b + 1]} - starts[b] : 0;
    }
    make_kv(std::array{total_k, o_.num_kv_heads, o_.head_dim}, reach, a.k, a.v,
            [starts](std::int64_t b, std::int64_t token) { return starts[b] + token; });
  }

  void make_paged_cache(MsaArguments& a) {
    a.page_table = make_page_table();
    a.seqused_k = make_list(o_.kv_lengths);
    corrupt(a.page_table, num_pages_);
    const std::int64_t capacity = a.page_table.shape[1] * o_.page_size;
    corrupt(a.seqused_k, capacity + 1);
    std::vector<std::int64_t> reach(static_cast<std::size_t>(o_.batch_size));
    for (std::int64_t b = 0; b < o_.batch_size; ++b) {
      reach[b] = std::clamp<std::int64_t>(static_cast<const std::int32_t*>(a.seqused_k.data)[b], 0, capacity);
    }
    make_paged_kv(a.page_table, reach, a.k, a.v);
  }

  // ---- QSA ----

  void make_qsa() {
    QsaArguments& a = case_.qsa;
    QsaConfig& c = case_.qsa_config;
    a.q = make_qsa_rows(o_.q_dtype, Stream::queries, o_.query_amplitude);
    if (o_.gate) a.output_gate = make_qsa_rows(o_.out_dtype, Stream::gates, 1.0f);
    if (o_.softmax_scale) a.sm_scale = make_scale(*o_.softmax_scale);
    a.v_scale = make_scale(o_.v_scale);
    a.block_table = make_page_table();
    const std::int64_t capacity = a.block_table.shape[1] * o_.page_size;
    make_row_owners(a);
    a.indexer_block_ids = make_qsa_selection();

    c.use_packed_q = o_.packed;
    c.seq_len_q = o_.group_size;
    c.batch_size = ceil_div(total_q_, o_.group_size);
    if (o_.packed) c.batch_size = std::max(c.batch_size, a.qo_indptr.shape[0] - 1);
    c.num_qo_heads = o_.num_qo_heads;
    c.num_kv_heads = o_.num_kv_heads;
    c.head_dim = o_.head_dim;
    c.kv_block_size = o_.block_size;
    c.page_size = o_.page_size;
    c.block_topk = o_.topk;
    c.max_seq_len_kv = o_.max_seq_len_kv.value_or(capacity);
    c.share_pattern_across_kv_heads = !o_.per_head_patterns;
    c.q_dtype = o_.q_dtype;
    c.kv_dtype = o_.kv_dtype;
    c.out_dtype = o_.out_dtype;

    corrupt(a.block_table, num_pages_);
    corrupt(a.token_to_request, o_.batch_size);
    corrupt(a.query_positions, c.max_seq_len_kv);
    make_paged_kv(a.block_table, qsa_reach(), a.k_cache, a.v_cache);
  }

  /// Tokens of each request up to the last position of its rows.
  std::vector<std::int64_t> qsa_reach() const {
    const QsaArguments& a = case_.qsa;
    std::vector<std::int64_t> reach(static_cast<std::size_t>(o_.batch_size), 0);
    for (std::int64_t row = 0; row < total_q_; ++row) {
      const std::int64_t request = static_cast<const std::int32_t*>(a.token_to_request.data)[row];
      const std::int64_t position = o_.positions_i32 ? static_cast<const std::int32_t*>(a.query_positions.data)[row]
                                                     : static_cast<const std::int64_t*>(a.query_positions.data)[row];
      const bool valid = request >= 0 && request < o_.batch_size && position < case_.qsa_config.max_seq_len_kv;
      if (valid) reach[request] = std::max(reach[request], position + 1);
    }
    // No page table has tokens past its last column.
    for (std::int64_t& tokens : reach) tokens = std::min(tokens, a.block_table.shape[1] * o_.page_size);
    return reach;
  }

  /// token_to_request, query_positions and, for packed rows, qo_indptr.
  void make_row_owners(QsaArguments& a) {
    std::vector<std::int64_t> requests, positions, bounds = {0};
    for (std::int64_t b = 0; b < o_.batch_size; ++b) {
      const std::int64_t rows = o_.query_lengths[b];
      for (std::int64_t t = 0; t < rows; ++t) {
        requests.push_back(b);
        positions.push_back(o_.kv_lengths[b] - rows + t);
        if ((t + 1) % o_.group_size == 0 || t + 1 == rows) bounds.push_back(static_cast<std::int64_t>(requests.size()));
      }
    }
    requests.resize(static_cast<std::size_t>(total_q_), 0);
    positions.resize(static_cast<std::size_t>(total_q_), -1);
    a.token_to_request = make_list(requests);
    if (o_.positions_i32) {
      a.query_positions = make_list(positions);
    } else {
      a.query_positions = case_.keep(make_tensor(DType::i64, std::array{total_q_}));
      std::ranges::copy(positions, static_cast<std::int64_t*>(a.query_positions.data));
    }
    if (!o_.packed) return;
    a.qo_indptr = make_list(bounds);
    corrupt(a.qo_indptr, total_q_ + 1);
  }

  Tensor make_qsa_selection() {
    const std::int64_t lists = o_.per_head_patterns ? o_.num_kv_heads : 1;
    const OwnedTensor owned = o_.per_head_patterns
                                  ? make_tensor(DType::i32, std::array{total_q_, lists, o_.topk}, 1, o_.index_gap)
                                  : make_tensor(DType::i32, std::array{total_q_, o_.topk}, 1, o_.index_gap);
    const Tensor ids = case_.keep(owned);
    const std::int64_t list_stride = o_.per_head_patterns ? ids.stride[1] : 0;
    Random filler(o_.seed, Stream::padding);
    for (std::int64_t list = 0; list < lists; ++list) {
      std::int64_t row = 0;
      for (std::int64_t b = 0; b < o_.batch_size; ++b) {
        SelectionWalk walk = make_walk(list, b);
        const std::int64_t first = o_.kv_lengths[b] - o_.query_lengths[b];
        for (std::int64_t t = 0; t < o_.query_lengths[b]; ++t, ++row) {
          const std::int64_t done = std::max<std::int64_t>(first + t + 1, 0) / o_.block_size;
          std::int32_t* const to = static_cast<std::int32_t*>(ids.data) + row * ids.stride[0] + list * list_stride;
          std::int32_t* const rest = std::ranges::copy(walk.next(done), to).out;
          fill_garbage(filler, rest, to + o_.topk, done);
        }
      }
    }
    corrupt(ids, most_blocks());
    return ids;
  }

  // ---- Shared parts ----

  /// Rows of q or the gate.
  Tensor make_rows(Shape shape, DType dtype, Stream stream, float amplitude) {
    if (contents_ == Contents::indices) return row_major(nullptr, dtype, shape);
    const OwnedTensor owned = make_tensor(dtype, shape, 2, o_.row_gap);
    const Tensor tensor = case_.keep(owned);
    std::uint64_t index = 0;
    for_each_run(tensor, [&](std::int64_t offset) {
      fill_normal(tensor, offset, o_.head_dim, amplitude, Random(o_.seed, stream, index++));
    });
    return tensor;
  }

  Tensor make_qsa_rows(DType dtype, Stream stream, float amplitude) {
    if (o_.packed) return make_rows({total_q_, o_.num_qo_heads, o_.head_dim}, dtype, stream, amplitude);
    const std::int64_t rows = o_.query_lengths.empty() ? 0 : o_.query_lengths.front();
    return make_rows({o_.batch_size, rows / o_.group_size, o_.group_size, o_.num_qo_heads, o_.head_dim}, dtype, stream,
                     amplitude);
  }

  Scalar make_scale(float value) {
    if (!o_.scale_tensors) return value;
    const Tensor tensor = case_.keep(make_tensor(DType::f32, std::array{std::int64_t{1}}));
    *static_cast<float*>(tensor.data) = value;
    return tensor;
  }

  Tensor make_list(const std::vector<std::int64_t>& list) {
    const Tensor tensor = case_.keep(make_tensor(DType::i32, std::array{static_cast<std::int64_t>(list.size())}));
    std::ranges::transform(list, static_cast<std::int32_t*>(tensor.data),
                           [](std::int64_t value) { return static_cast<std::int32_t>(value); });
    return tensor;
  }

  Tensor make_prefix_sums(const std::vector<std::int64_t>& lengths, std::int64_t first) {
    std::vector<std::int64_t> sums = {first};
    for (const std::int64_t length : lengths) sums.push_back(sums.back() + length);
    return make_list(sums);
  }

  /// Each request's pages, drawn from a random permutation of all pages; unused entries are -1.
  Tensor make_page_table() {
    std::int64_t columns = 1;
    for (const std::int64_t length : o_.kv_lengths) {
      columns = std::max(columns, ceil_div(length, o_.page_size));
      num_pages_ += ceil_div(length, o_.page_size);
    }
    num_pages_ = std::max<std::int64_t>(num_pages_ + o_.spare_pages, 1);
    std::vector<std::int32_t> permutation(static_cast<std::size_t>(num_pages_));
    std::iota(permutation.begin(), permutation.end(), 0);
    Random random(o_.seed, Stream::pages);
    for (std::int64_t i = num_pages_ - 1; i > 0; --i) std::swap(permutation[i], permutation[random.below(i + 1)]);

    const Tensor table = case_.keep(make_tensor(DType::i32, std::array{o_.batch_size, columns}, 1, o_.index_gap));
    auto* const entries = static_cast<std::int32_t*>(table.data);
    std::size_t next = 0;
    for (std::int64_t b = 0; b < o_.batch_size; ++b) {
      const std::int64_t used = ceil_div(o_.kv_lengths[b], o_.page_size);
      for (std::int64_t i = 0; i < used; ++i) entries[b * table.stride[0] + i] = permutation[next++];
    }
    return table;
  }

  void make_paged_kv(const Tensor& table, const std::vector<std::int64_t>& reach, Tensor& k, Tensor& v) {
    const auto* const entries = static_cast<const std::int32_t*>(table.data);
    make_kv(std::array{num_pages_, o_.num_kv_heads, o_.page_size, o_.head_dim}, reach, k, v,
            [&](std::int64_t b, std::int64_t token) -> std::int64_t {
              const std::int64_t page = entries[b * table.stride[0] + token / o_.page_size];
              return page >= 0 && page < num_pages_ ? page * o_.page_size + token % o_.page_size : -1;
            });
  }

  /// K and V with values in the first reach[b] tokens of each request b, and NaN everywhere else. The reach follows
  /// the index tensors as they are after corruption, so garbage never leads a legal access to a NaN.
  void make_kv(std::span<const std::int64_t> shape, const std::vector<std::int64_t>& reach, Tensor& k, Tensor& v,
               const Locate& locate) {
    if (contents_ == Contents::indices) {
      k = v = row_major(nullptr, o_.kv_dtype, shape);
      return;
    }
    const KvTensors kv = make_kv_tensors(o_.kv_dtype, shape, *o_.kv_layout);
    k = case_.keep(kv.k);
    v = case_.keep(kv.v);
    const bool paged = k.rank == 4;
    const std::int64_t page_tokens = paged ? k.shape[2] : std::max<std::int64_t>(k.shape[0], 1);
    const std::int64_t page_stride = paged ? k.stride[0] : 0;
    const std::int64_t token_stride = paged ? k.stride[2] : k.stride[0];
    const std::int64_t head_stride = k.stride[1];
    std::vector<bool> filled(static_cast<std::size_t>(paged ? k.shape[0] * page_tokens : k.shape[0]));
    for (std::int64_t b = 0; b < o_.batch_size; ++b) {
      for (std::int64_t token = 0; token < reach[b]; ++token) {
        const std::int64_t slot = locate(b, token);
        if (slot < 0 || filled[slot]) continue;
        filled[slot] = true;
        const std::int64_t offset = slot / page_tokens * page_stride + slot % page_tokens * token_stride;
        for (std::int64_t head = 0; head < o_.num_kv_heads; ++head) {
          const auto index = static_cast<std::uint64_t>(slot * o_.num_kv_heads + head);
          const std::int64_t run = offset + head * head_stride;
          fill_normal(k, run, o_.head_dim, 1.0f, Random(o_.seed, Stream::keys, index));
          fill_normal(v, run, o_.head_dim, 1.0f, Random(o_.seed, Stream::values, index));
        }
      }
    }
  }

  SelectionWalk make_walk(std::int64_t list, std::int64_t request) {
    const auto index = static_cast<std::uint64_t>(list * o_.batch_size + request);
    return {o_.topk, o_.replacement, case_.is_msa(), Random(o_.seed, Stream::selections, index)};
  }

  std::int64_t most_blocks() const {
    const auto longest = std::ranges::max_element(o_.kv_lengths);
    return longest == o_.kv_lengths.end() ? 0 : ceil_div(*longest, o_.block_size);
  }

  /// Entries that must be ignored: half of them would be valid ids.
  static void fill_garbage(Random& random, std::int32_t* begin, std::int32_t* end, std::int64_t blocks) {
    for (std::int32_t* id = begin; id < end; ++id) {
      const bool plausible = blocks > 0 && random.chance(0.5);
      *id = plausible ? static_cast<std::int32_t>(random.below(blocks)) : garbage<std::int32_t>(random, blocks);
    }
  }

  void corrupt(const Tensor& tensor, std::int64_t first_invalid) {
    if (o_.hostile <= 0) return;
    for_each_run(tensor, [&](std::int64_t offset) {
      for (std::int64_t i = 0; i < tensor.shape[tensor.rank - 1]; ++i) {
        if (!corruption_.chance(o_.hostile)) continue;
        if (tensor.dtype == DType::i32) {
          static_cast<std::int32_t*>(tensor.data)[offset + i] = garbage<std::int32_t>(corruption_, first_invalid);
        } else {
          static_cast<std::int64_t*>(tensor.data)[offset + i] = garbage<std::int64_t>(corruption_, first_invalid);
        }
      }
    });
  }

  GenerateOptions o_;
  Contents contents_;
  Random corruption_;
  Case case_;
  std::int64_t total_q_ = 0;
  std::int64_t num_pages_ = 0;
};

}  // namespace

Case generate_case(const GenerateOptions& options) { return Generator(options, Contents::all).generate(); }
Case generate_indices(const GenerateOptions& options) { return Generator(options, Contents::indices).generate(); }

}  // namespace kvsieve::io
