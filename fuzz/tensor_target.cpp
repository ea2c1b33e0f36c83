// SPDX-License-Identifier: Apache-2.0
#include "tensor_target.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/validate.hpp"
#include "core/numeric.hpp"
#include "kvsieve/kvsieve.hpp"
#include "reference/reference.hpp"

namespace kvsieve::fuzz {
namespace {

constexpr std::int64_t max_tensor_bytes = 1 << 18;

/// Reads values off the input; zeros once it is used up.
class ByteReader {
 public:
  ByteReader(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return used_ >= size_; }
  std::uint8_t byte() { return empty() ? 0 : data_[used_++]; }
  /// A value in [0, count).
  std::int64_t below(std::int64_t count) { return byte() % count; }
  std::int64_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(byte()) << (8 * i);
    return static_cast<std::int64_t>(value);
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t used_ = 0;
};

/// A number that tends to break things.
std::int64_t awkward_number(ByteReader& in) {
  constexpr std::int64_t numbers[] = {0,
                                      1,
                                      -1,
                                      2,
                                      3,
                                      64,
                                      128,
                                      256,
                                      std::int64_t{1} << 31,
                                      std::int64_t{1} << 32,
                                      std::int64_t{1} << 61,
                                      std::numeric_limits<std::int64_t>::max(),
                                      std::numeric_limits<std::int64_t>::min()};
  const std::int64_t choice = in.below(std::size(numbers) + 3);
  if (choice < static_cast<std::int64_t>(std::size(numbers))) return numbers[choice];
  return choice == static_cast<std::int64_t>(std::size(numbers)) ? in.word() : in.below(256);
}

/// What the elements of a tensor are filled with once the checks have accepted it.
enum class Content { floats, ids, boundaries, output };

struct Argument {
  Tensor* tensor;
  Content content;
};

/// One call, of any operation.
struct Call {
  enum class Kind { msa_prefill, msa_decode, qsa, merge };
  Kind kind = Kind::msa_prefill;
  MsaArguments msa;
  QsaConfig qsa_config;
  QsaArguments qsa;
  MergeArguments merge;
  CallOptions options;
  std::vector<Argument> arguments;

  bool is_msa() const { return kind == Kind::msa_prefill || kind == Kind::msa_decode; }
  void add(Tensor& tensor, Content content, const Tensor& value) {
    // Addresses of the unspoiled arguments: far apart, and never followed before the checks have passed.
    tensor = value;
    tensor.data = reinterpret_cast<void*>((arguments.size() + 1) << 32);
    arguments.push_back({&tensor, content});
  }
};

struct Shape {
  std::int64_t rows, requests, group, kv_heads, head_dim, block, page, topk, pages;
  DType q_dtype, kv_dtype;
  std::int64_t heads() const { return kv_heads * group; }
};

Shape read_shape(ByteReader& in) {
  Shape s{};
  s.rows = in.below(6);
  s.requests = in.below(4);
  s.group = 1 + in.below(16);
  s.kv_heads = 1 + in.below(3);
  s.head_dim = std::array{64, 64, 128, 256}[in.below(4)];
  s.block = std::int64_t{4} << in.below(4);
  s.page = s.block * (1 + in.below(3));
  s.topk = in.below(8);
  s.pages = in.below(6);
  s.q_dtype = in.below(2) == 0 ? DType::bf16 : DType::f16;
  s.kv_dtype = in.below(2) == 0 ? s.q_dtype : DType::f8_e4m3;
  return s;
}

void build_msa(Call& call, ByteReader& in, Shape s) {
  MsaArguments& a = call.msa;
  const std::uint8_t flags = in.byte();
  const bool paged = (flags & 1) != 0, decode = call.kind == Call::Kind::msa_decode;
  a.block_size = s.block;
  a.causal = (flags & 2) != 0;
  a.valid_prefix = (flags & 4) != 0;
  if (decode) {
    a.seqlen_q = 1 + in.below(3);
    s.rows = s.requests * a.seqlen_q;
  } else {
    call.add(a.cu_seqlens_q, Content::boundaries, {nullptr, DType::i32, {s.requests + 1}});
  }
  call.add(a.q, Content::floats, {nullptr, s.q_dtype, {s.rows, s.heads(), s.head_dim}});
  if (paged) {
    for (Tensor* t : {&a.k, &a.v}) {
      call.add(*t, Content::floats, {nullptr, s.kv_dtype, {s.pages, s.kv_heads, s.page, s.head_dim}});
    }
    call.add(a.page_table, Content::ids, {nullptr, DType::i32, {s.requests, in.below(5)}});
    call.add(a.seqused_k, Content::boundaries, {nullptr, DType::i32, {s.requests}});
  } else {
    for (Tensor* t : {&a.k, &a.v}) {
      call.add(*t, Content::floats, {nullptr, s.kv_dtype, {s.pages * 8, s.kv_heads, s.head_dim}});
    }
    call.add(a.cu_seqlens_k, Content::boundaries, {nullptr, DType::i32, {s.requests + 1}});
  }
  call.add(a.q2k_indices, Content::ids, {nullptr, DType::i32, {s.kv_heads, s.rows, s.topk}});
  if ((flags & 8) != 0) call.add(a.q_offset, Content::boundaries, {nullptr, DType::i32, {s.requests}});
  call.add(a.out, Content::output, {nullptr, s.q_dtype, {s.rows, s.heads(), s.head_dim}});
  if ((flags & 16) != 0) call.add(a.lse, Content::output, {nullptr, DType::f32, {s.rows, s.heads()}});
  if ((flags & 32) != 0) call.add(a.lse_t, Content::output, {nullptr, DType::f32, {s.rows, s.heads()}});
  if ((flags & 64) != 0) {
    a.v_global_scale = Tensor();
    call.add(std::get<Tensor>(a.v_global_scale), Content::floats, {nullptr, DType::f32, {1}});
  }
}

void build_qsa(Call& call, ByteReader& in, Shape s) {
  QsaArguments& a = call.qsa;
  const std::uint8_t flags = in.byte();
  const bool packed = (flags & 1) != 0, shared = (flags & 2) != 0;
  const std::int64_t group_rows = 1 + in.below(128 / s.group);
  const std::int64_t groups = in.below(4);
  s.rows = packed ? std::min(s.rows, groups * group_rows) : groups * group_rows;
  if ((flags & 4) != 0) s.q_dtype = s.kv_dtype = DType::f8_e4m3;
  const DType out_dtype = s.q_dtype == DType::f8_e4m3 ? DType::bf16 : s.q_dtype;
  call.qsa_config = {.batch_size = groups,
                     .seq_len_q = group_rows,
                     .num_qo_heads = s.heads(),
                     .num_kv_heads = s.kv_heads,
                     .head_dim = s.head_dim,
                     .kv_block_size = s.block,
                     .page_size = s.page,
                     .block_topk = s.topk,
                     .max_seq_len_kv = in.byte() % 4 == 0 ? awkward_number(in) : s.page * 4,
                     .use_packed_q = packed,
                     .share_pattern_across_kv_heads = shared,
                     .q_dtype = s.q_dtype,
                     .kv_dtype = s.kv_dtype,
                     .out_dtype = out_dtype};
  const auto rows = [&](DType dtype) {
    return packed ? Tensor(nullptr, dtype, {s.rows, s.heads(), s.head_dim})
                  : Tensor(nullptr, dtype, {1, groups, group_rows, s.heads(), s.head_dim});
  };
  call.add(a.q, Content::floats, rows(s.q_dtype));
  for (Tensor* t : {&a.k_cache, &a.v_cache}) {
    call.add(*t, Content::floats, {nullptr, s.kv_dtype, {s.pages, s.kv_heads, s.page, s.head_dim}});
  }
  call.add(a.block_table, Content::ids, {nullptr, DType::i32, {s.requests, in.below(5)}});
  call.add(a.indexer_block_ids, Content::ids,
           shared ? Tensor(nullptr, DType::i32, {s.rows, s.topk})
                  : Tensor(nullptr, DType::i32, {s.rows, s.kv_heads, s.topk}));
  call.add(a.token_to_request, Content::ids, {nullptr, DType::i32, {s.rows}});
  call.add(a.query_positions, Content::boundaries, {nullptr, (flags & 8) != 0 ? DType::i64 : DType::i32, {s.rows}});
  if (packed) call.add(a.qo_indptr, Content::boundaries, {nullptr, DType::i32, {groups + 1}});
  if ((flags & 16) != 0) call.add(a.output_gate, Content::floats, rows(out_dtype));
  call.add(a.out, Content::output, rows(out_dtype));
  if ((flags & 32) != 0) {
    call.add(a.lse, Content::output,
             packed ? Tensor(nullptr, DType::f32, {s.rows, s.heads()})
                    : Tensor(nullptr, DType::f32, {1, groups, group_rows, s.heads()}));
  }
  if ((flags & 64) != 0) {
    a.sm_scale = Tensor();
    call.add(std::get<Tensor>(*a.sm_scale), Content::floats, {nullptr, DType::f32, {1}});
  }
}

void build_merge(Call& call, ByteReader& in, const Shape& s) {
  MergeArguments& a = call.merge;
  const std::int64_t states = in.below(5), head_dim = in.below(70);
  const DType out_dtype = std::array{DType::f32, DType::bf16, DType::f16}[in.below(3)];
  call.add(a.outs, Content::floats, {nullptr, s.q_dtype, {states, s.rows, s.heads(), head_dim}});
  call.add(a.lses, Content::floats, {nullptr, DType::f32, {states, s.rows, s.heads()}});
  call.add(a.out, Content::output, {nullptr, out_dtype, {s.rows, s.heads(), head_dim}});
  if (in.below(2) != 0) call.add(a.lse, Content::output, {nullptr, DType::f32, {s.rows, s.heads()}});
}

/// Replaces one field of one argument.
void spoil(Call& call, ByteReader& in) {
  const Argument& argument = call.arguments[in.below(static_cast<std::int64_t>(call.arguments.size()))];
  Tensor& t = *argument.tensor;
  const std::int64_t dim = in.below(Tensor::max_rank);
  switch (in.below(10)) {
    case 0:
      t.dtype = static_cast<DType>(in.byte());
      break;
    case 1:
      t.rank = static_cast<int>(awkward_number(in));
      break;
    case 2:
    case 3:
      t.shape[dim] = awkward_number(in);
      break;
    case 4:
    case 5:
      t.stride[dim] = awkward_number(in);
      break;
    case 6:
      t.data = reinterpret_cast<void*>(awkward_number(in));
      break;
    case 7: {  // an address that overlaps, or touches, another argument
      const Argument& other = call.arguments[in.below(static_cast<std::int64_t>(call.arguments.size()))];
      const auto address = reinterpret_cast<std::uintptr_t>(other.tensor->data);
      t.data = reinterpret_cast<void*>(address + static_cast<std::uintptr_t>(in.below(9)) - 4);
      break;
    }
    case 8:
      t.device = {in.below(2) == 0 ? DeviceType::cpu : DeviceType::cuda, in.byte()};
      break;
    default:
      t = {};
  }
}

void spoil_scalars(Call& call, ByteReader& in) {
  switch (in.below(8)) {
    case 0:
      call.msa.block_size = call.qsa_config.kv_block_size = awkward_number(in);
      break;
    case 1:
      call.msa.seqlen_q = call.qsa_config.seq_len_q = awkward_number(in);
      break;
    case 2:
      call.qsa_config.batch_size = awkward_number(in);
      break;
    case 3:
      call.qsa_config.page_size = awkward_number(in);
      break;
    case 4:
      call.msa.softmax_scale = static_cast<float>(in.below(5)) / static_cast<float>(in.below(3));
      break;
    case 5:
      call.qsa_config.num_kv_heads = awkward_number(in);
      break;
    case 6:
      call.qsa_config.block_topk = awkward_number(in);
      break;
    default:
      call.qsa_config.num_qo_heads = awkward_number(in);
  }
}

/// Throws ArgumentError.
void validate(const Call& call) {
  switch (call.kind) {
    case Call::Kind::msa_prefill:
    case Call::Kind::msa_decode:
      return validate_msa(call.msa, call.options, call.kind == Call::Kind::msa_decode, 0);
    case Call::Kind::qsa:
      validate_qsa_config(call.qsa_config);
      return validate_qsa(call.qsa_config, call.qsa, call.options, 0);
    case Call::Kind::merge:
      return validate_merge(call.merge, call.options);
  }
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  float uniform() { return static_cast<float>(next() % 2001) / 1000.0f - 1.0f; }

 private:
  std::uint64_t state_;
};

std::int64_t random_index(Content content, std::int64_t i, Random& random) {
  const std::uint32_t choice = random.next() % 16;
  if (choice == 0) return std::numeric_limits<std::int32_t>::max();
  if (choice == 1) return std::numeric_limits<std::int32_t>::min();
  if (choice == 2) return -1;
  if (content == Content::boundaries && choice < 12) return 2 * i + random.next() % 3;
  return random.next() % (content == Content::boundaries ? 40 : 8);
}

/// Memory of exactly the extents of every argument, all of whose bytes, gaps included, are filled.
class Memory {
 public:
  /// False when the arguments describe more memory than one wants to fill.
  bool provide(Call& call, Random& random) {
    for (const Argument& argument : call.arguments) {
      Tensor& t = *argument.tensor;
      if (!t.defined() || t.numel() == 0) continue;
      std::int64_t low = 0, high = 0;
      for (int i = 0; i < t.rank; ++i) {
        const std::int64_t reach = (t.shape[i] - 1) * t.stride[i];
        (reach < 0 ? low : high) += reach;
      }
      const std::int64_t size = static_cast<std::int64_t>(dtype_size(t.dtype));
      const std::int64_t count = high - low + 1;
      if (count > max_tensor_bytes / size || t.numel() > max_tensor_bytes) return false;
      char* block = add_block(count * size);
      t.data = block - low * size;
      if (argument.content == Content::output) {
        outputs_.push_back(Tensor(block, t.dtype, {count}));
      } else {
        for (std::int64_t i = 0; i < count; ++i) fill(block, t.dtype, argument.content, i, random);
      }
    }
    return true;
  }

  void poison_outputs() {
    for (const Tensor& block : outputs_) {
      for (std::int64_t i = 0; i < block.shape[0]; ++i) store_from_float(block.data, block.dtype, i, NAN);
    }
  }

  /// A block of its own, so that AddressSanitizer guards its ends.
  char* add_block(std::int64_t bytes) {
    blocks_.push_back(std::make_unique<char[]>(bytes));
    return blocks_.back().get();
  }

 private:
  static void fill(char* block, DType dtype, Content content, std::int64_t i, Random& random) {
    if (dtype == DType::i32) {
      reinterpret_cast<std::int32_t*>(block)[i] = static_cast<std::int32_t>(random_index(content, i, random));
    } else if (dtype == DType::i64) {
      reinterpret_cast<std::int64_t*>(block)[i] = random_index(content, i, random);
    } else {
      store_from_float(block, dtype, i, random.uniform());
    }
  }

  std::vector<std::unique_ptr<char[]>> blocks_;
  std::vector<Tensor> outputs_;
};

[[noreturn]] void violation(const std::string& what) {
  std::fprintf(stderr, "fuzz_tensor: %s\n", what.c_str());
  std::abort();
}

/// Elements of an output in row-major order.
std::vector<float> elements(const Tensor& t) {
  std::vector<float> values;
  if (!t.defined()) return values;
  const std::int64_t count = t.numel();
  values.reserve(count);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = t.rank - 1; d >= 0; --d) {
      offset += rest % t.shape[d] * t.stride[d];
      rest /= t.shape[d];
    }
    values.push_back(load_as_float(t.data, t.dtype, offset));
  }
  return values;
}

std::array<Tensor, 3> outputs(const Call& call) {
  if (call.is_msa()) return {call.msa.out, call.msa.lse, call.msa.lse_t};
  if (call.kind == Call::Kind::qsa) return {call.qsa.out, call.qsa.lse, {}};
  return {call.merge.out, call.merge.lse, {}};
}

void run_reference(const Call& call) {
  if (call.is_msa()) return reference::msa(call.msa, call.kind == Call::Kind::msa_decode);
  if (call.kind == Call::Kind::qsa) return reference::qsa(call.qsa_config, call.qsa);
  reference::merge(call.merge);
}

void run_cpu(Call& call, Memory& memory) {
  call.options.path = Path::cpu;
  std::optional<QsaPlan> plan;
  if (call.kind == Call::Kind::qsa) {
    call.qsa_config.num_threads = call.options.num_threads;
    plan.emplace(call.qsa_config);
  }
  std::size_t bytes = 0;
  if (call.is_msa()) bytes = workspace_bytes(msa_config(call.msa, call.options));
  if (plan) bytes = plan->workspace_bytes();
  call.options.workspace = {memory.add_block(static_cast<std::int64_t>(bytes)), bytes};
  if (plan) return plan->run(call.qsa, call.options);
  if (call.kind == Call::Kind::msa_prefill) return msa_sparse_attention(call.msa, call.options);
  if (call.kind == Call::Kind::msa_decode) return msa_sparse_decode_attention(call.msa, call.options);
  merge_states(call.merge, call.options);
}

void compare(const Tensor& t, const std::vector<float>& want, const std::vector<float>& got) {
  float largest = 1.0f;
  for (const float x : want) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i] || std::fabs(want[i] - got[i]) <= 0.01f * largest) continue;
    violation(to_string(t) + " element " + std::to_string(i) + ": got " + std::to_string(got[i]) + ", want " +
              std::to_string(want[i]));
  }
}

}  // namespace

bool check_tensor_arguments(const std::uint8_t* data, std::size_t size) {
  ByteReader in(data, size);
  Call call;
  call.kind = static_cast<Call::Kind>(in.below(4));
  call.options.num_threads = 1 + static_cast<int>(in.below(3));
  Random random(in.byte());
  call.arguments.reserve(16);
  const Shape shape = read_shape(in);
  if (call.is_msa()) {
    build_msa(call, in, shape);
  } else if (call.kind == Call::Kind::qsa) {
    build_qsa(call, in, shape);
  } else {
    build_merge(call, in, shape);
  }
  while (!in.empty()) in.below(8) == 0 ? spoil_scalars(call, in) : spoil(call, in);

  try {
    validate(call);
  } catch (const ArgumentError&) {
    return false;
  }
  if (outputs(call)[0].device.type != DeviceType::cpu) return false;
  Memory memory;
  if (!memory.provide(call, random)) return false;

  memory.poison_outputs();
  run_reference(call);
  std::array<std::vector<float>, 3> want;
  for (int i = 0; i < 3; ++i) want[i] = elements(outputs(call)[i]);
  memory.poison_outputs();
  try {
    run_cpu(call, memory);
  } catch (const UnsupportedError&) {
    return false;
  }
  for (int i = 0; i < 3; ++i) compare(outputs(call)[i], want[i], elements(outputs(call)[i]));
  return true;
}

}  // namespace kvsieve::fuzz
