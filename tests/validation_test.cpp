// SPDX-License-Identifier: Apache-2.0
//
// Every host check: starting from arguments that are right, one thing is made wrong, and the whole message must be the
// expected one.
#include "api/validate.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kvsieve {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr Device gpu{DeviceType::cuda, 0};
constexpr std::int64_t huge = std::int64_t{1} << 62;

/// Address of a fresh piece of memory: the checks look at addresses and never at contents, so that these need not
/// exist.
class Addresses {
 public:
  void* next() {
    address_ += std::uintptr_t{1} << 30;
    return reinterpret_cast<void*>(address_);
  }

 private:
  std::uintptr_t address_ = 0;
};

void* moved(void* address, std::ptrdiff_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(bytes));
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ArgumentError& error) {
    EXPECT_EQ(error.what(), error.argument() + ": got " + error.got() + ", want " + error.want());
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

// ---- MSA -----------------------------------------------------------------------------------------------------------

/// B 2, 6 rows, 8 query heads, 2 KV heads, D 64, blocks of 16, pages of 32.
struct MsaCall {
  MsaArguments a;
  CallOptions options;
  bool decode = false;
  std::size_t required_workspace = 0;

  std::string message() const {
    return message_of([this] { validate_msa(a, options, decode, required_workspace); });
  }
};

MsaCall paged_msa() {
  MsaCall call;
  Addresses at;
  MsaArguments& a = call.a;
  a.q = {at.next(), DType::bf16, {6, 8, 64}};
  a.k = {at.next(), DType::bf16, {5, 2, 32, 64}};
  a.v = {at.next(), DType::bf16, {5, 2, 32, 64}};
  a.q2k_indices = {at.next(), DType::i32, {2, 6, 3}};
  a.cu_seqlens_q = {at.next(), DType::i32, {3}};
  a.page_table = {at.next(), DType::i32, {2, 4}};
  a.seqused_k = {at.next(), DType::i32, {2}};
  a.q_offset = {at.next(), DType::i32, {2}};
  a.out = {at.next(), DType::bf16, {6, 8, 64}};
  a.lse = {at.next(), DType::f32, {6, 8}};
  a.lse_t = {at.next(), DType::f32, {6, 8}};
  a.k_global_scale = Tensor(at.next(), DType::f32, {1});
  a.v_global_scale = Tensor(at.next(), DType::f32, {});
  a.block_size = 16;
  call.options.workspace = {at.next(), 4096};
  call.required_workspace = 4096;
  return call;
}

MsaCall flat_msa() {
  MsaCall call = paged_msa();
  call.a.k.rank = call.a.v.rank = 3;
  call.a.k = {call.a.k.data, DType::bf16, {100, 2, 64}};
  call.a.v = {call.a.v.data, DType::bf16, {100, 2, 64}};
  call.a.cu_seqlens_k = {call.a.page_table.data, DType::i32, {3}};
  call.a.page_table = call.a.seqused_k = {};
  return call;
}

MsaCall decode_msa() {
  MsaCall call = paged_msa();
  call.decode = true;
  call.a.seqlen_q = 3;
  call.a.cu_seqlens_q = {};
  return call;
}

struct MsaCase {
  const char* expected;
  std::function<void(MsaCall&)> spoil;
};

void expect_messages(const MsaCall& good, const std::vector<MsaCase>& cases) {
  ASSERT_EQ(good.message(), "");
  for (const MsaCase& c : cases) {
    MsaCall call = good;
    c.spoil(call);
    EXPECT_EQ(call.message(), c.expected);
  }
}

TEST(MsaValidation, AcceptsWhatTheContractAllows) {
  EXPECT_EQ(paged_msa().message(), "");
  EXPECT_EQ(flat_msa().message(), "");
  EXPECT_EQ(decode_msa().message(), "");

  MsaCall optional = paged_msa();
  optional.a.lse = optional.a.lse_t = optional.a.q_offset = {};
  optional.a.k_global_scale = optional.a.v_global_scale = 0.5f;
  optional.a.softmax_scale = 0.125f;
  EXPECT_EQ(optional.message(), "");

  MsaCall fp8 = paged_msa();
  fp8.a.k.dtype = fp8.a.v.dtype = DType::f8_e4m3;
  EXPECT_EQ(fp8.message(), "");

  MsaCall packed = flat_msa();  // K and V are halves of one cache [tokens, heads, 2 D]
  packed.a.k = {packed.a.k.data, DType::bf16, {100, 2, 64}, {256, 128, 1}};
  packed.a.v = {moved(packed.a.k.data, 128), DType::bf16, {100, 2, 64}, {256, 128, 1}};
  EXPECT_EQ(packed.message(), "");

  MsaCall repeated = paged_msa();  // all heads and rows share one list of ids; lse is [heads, rows] in memory
  repeated.a.q2k_indices.stride = {0, 0, 1};
  repeated.a.lse.stride = {1, 6};
  EXPECT_EQ(repeated.message(), "");
}

TEST(MsaValidation, AcceptsEmptyTensorsWithoutMemory) {
  MsaCall no_rows = paged_msa();
  no_rows.a.q = no_rows.a.out = {nullptr, DType::bf16, {0, 8, 64}};
  no_rows.a.q2k_indices = {nullptr, DType::i32, {2, 0, 3}};
  no_rows.a.lse = no_rows.a.lse_t = {nullptr, DType::f32, {0, 8}};
  EXPECT_EQ(no_rows.message(), "");

  MsaCall no_pages = paged_msa();
  no_pages.a.k = no_pages.a.v = {nullptr, DType::bf16, {0, 2, 32, 64}};
  no_pages.a.page_table = {nullptr, DType::i32, {2, 0}};
  EXPECT_EQ(no_pages.message(), "");

  MsaCall no_ids = paged_msa();
  no_ids.a.q2k_indices = {nullptr, DType::i32, {2, 6, 0}};
  EXPECT_EQ(no_ids.message(), "");

  MsaCall no_requests = paged_msa();
  no_requests.a.cu_seqlens_q.shape[0] = 1;
  no_requests.a.page_table = {nullptr, DType::i32, {0, 4}};
  no_requests.a.seqused_k = no_requests.a.q_offset = {nullptr, DType::i32, {0}};
  EXPECT_EQ(no_requests.message(), "");

  MsaCall no_keys = flat_msa();
  no_keys.a.k = no_keys.a.v = {nullptr, DType::bf16, {0, 2, 64}};
  EXPECT_EQ(no_keys.message(), "");
}

TEST(MsaValidation, ShapesAndDTypes) {
  expect_messages(
      paged_msa(),
      {
          {"q: got not given, want bf16 or f16 [total_q, Hq, D]", [](MsaCall& c) { c.a.q = {}; }},
          {"q: got f32[6, 8, 64] on cpu, want bf16 or f16 [total_q, Hq, D]",
           [](MsaCall& c) { c.a.q.dtype = DType::f32; }},
          {"q: got f8_e4m3[6, 8, 64] on cpu, want bf16 or f16 [total_q, Hq, D]",
           [](MsaCall& c) { c.a.q.dtype = DType::f8_e4m3; }},
          {"q: got bf16[6, 8] strides [512, 64] on cpu, want bf16 or f16 [total_q, Hq, D]",
           [](MsaCall& c) { c.a.q.rank = 2; }},
          {"q: got a tensor of rank 7, want bf16 or f16 [total_q, Hq, D]", [](MsaCall& c) { c.a.q.rank = 7; }},
          {"q: got a tensor of rank -1, want bf16 or f16 [total_q, Hq, D]", [](MsaCall& c) { c.a.q.rank = -1; }},
          {"q: got bf16[-6, 8, 64] on cpu, want bf16 or f16 [total_q, Hq, D]", [](MsaCall& c) { c.a.q.shape[0] = -6; }},
          {"q: got a head dim of 96, want 64, 128 or 256",
           [](MsaCall& c) {
             c.a.q = {c.a.q.data, DType::bf16, {6, 8, 96}};
           }},
          {"q: got 3000000000 rows, want 0 to 2147483647",
           [](MsaCall& c) {
             c.a.q = {c.a.q.data, DType::bf16, {3000000000, 8, 64}, {0, 64, 1}};
           }},
          {"q: got 9 query heads for 2 KV heads, want a multiple of the KV heads, at most 16 times as many",
           [](MsaCall& c) {
             c.a.q = {c.a.q.data, DType::bf16, {6, 9, 64}};
           }},
          {"q: got 34 query heads for 2 KV heads, want a multiple of the KV heads, at most 16 times as many",
           [](MsaCall& c) {
             c.a.q = {c.a.q.data, DType::bf16, {6, 34, 64}};
           }},
          {"q: got 8 query heads for 0 KV heads, want a multiple of the KV heads, at most 16 times as many",
           [](MsaCall& c) {
             c.a.k = c.a.v = {nullptr, DType::bf16, {5, 0, 32, 64}};
           }},
          {"k: got not given, want bf16 or f8_e4m3 [num_pages, Hkv, page_size, D=64]", [](MsaCall& c) { c.a.k = {}; }},
          {"k: got f16[5, 2, 32, 64] on cpu, want bf16 or f8_e4m3 [num_pages, Hkv, page_size, D=64]",
           [](MsaCall& c) { c.a.k.dtype = DType::f16; }},
          {"k: got bf16[100, 2, 64] on cpu, want bf16 or f8_e4m3 [num_pages, Hkv, page_size, D=64]",
           [](MsaCall& c) {
             c.a.k = {c.a.k.data, DType::bf16, {100, 2, 64}};
           }},
          {"k: got pages of 24 tokens, want a multiple of the block size 16",
           [](MsaCall& c) {
             c.a.k = {c.a.k.data, DType::bf16, {5, 2, 24, 64}};
             c.a.v = {c.a.v.data, DType::bf16, {5, 2, 24, 64}};
           }},
          {"k: got pages of 0 tokens, want a multiple of the block size 16",
           [](MsaCall& c) {
             c.a.k = c.a.v = {nullptr, DType::bf16, {5, 2, 0, 64}};
           }},
          {"v: got bf16[4, 2, 32, 64] on cpu, want bf16 [num_pages=5, Hkv=2, page_size=32, D=64]",
           [](MsaCall& c) { c.a.v.shape[0] = 4; }},
          {"v: got f8_e4m3[5, 2, 32, 64] on cpu, want bf16 [num_pages=5, Hkv=2, page_size=32, D=64]",
           [](MsaCall& c) { c.a.v.dtype = DType::f8_e4m3; }},
          {"q2k_indices: got not given, want i32 [Hkv=2, total_q=6, topk]", [](MsaCall& c) { c.a.q2k_indices = {}; }},
          {"q2k_indices: got i64[2, 6, 3] on cpu, want i32 [Hkv=2, total_q=6, topk]",
           [](MsaCall& c) { c.a.q2k_indices.dtype = DType::i64; }},
          {"q2k_indices: got i32[6, 2, 3] on cpu, want i32 [Hkv=2, total_q=6, topk]",
           [](MsaCall& c) {
             c.a.q2k_indices = {c.a.q2k_indices.data, DType::i32, {6, 2, 3}};
           }},
          {"cu_seqlens_q: got not given, want i32 [B+1=3]", [](MsaCall& c) { c.a.cu_seqlens_q = {}; }},
          {"cu_seqlens_q: got i32[2] on cpu, want i32 [B+1=3]", [](MsaCall& c) { c.a.cu_seqlens_q.shape[0] = 2; }},
          {"seqused_k: got not given, want i32 [B=2]", [](MsaCall& c) { c.a.seqused_k = {}; }},
          {"seqused_k: got i32[3] on cpu, want i32 [B=2]", [](MsaCall& c) { c.a.seqused_k.shape[0] = 3; }},
          {"page_table: got i32[8] on cpu, want i32 [B, max_pages]",
           [](MsaCall& c) {
             c.a.page_table = {c.a.page_table.data, DType::i32, {8}};
           }},
          {"page_table: got 4611686018427387904 pages of 32 tokens, want fewer than 2^63 tokens",
           [](MsaCall& c) {
             c.a.page_table = {nullptr, DType::i32, {0, huge}};
           }},
          {"q_offset: got i64[2] on cpu, want i32 [B=2]", [](MsaCall& c) { c.a.q_offset.dtype = DType::i64; }},
          {"out: got not given, want bf16 [total_q=6, Hq=8, D=64]", [](MsaCall& c) { c.a.out = {}; }},
          {"out: got f16[6, 8, 64] on cpu, want bf16 [total_q=6, Hq=8, D=64]",
           [](MsaCall& c) { c.a.out.dtype = DType::f16; }},
          {"out: got bf16[5, 8, 64] on cpu, want bf16 [total_q=6, Hq=8, D=64]",
           [](MsaCall& c) { c.a.out.shape[0] = 5; }},
          {"lse: got bf16[6, 8] on cpu, want f32 [total_q=6, Hq=8]", [](MsaCall& c) { c.a.lse.dtype = DType::bf16; }},
          {"lse_t: got f32[8, 6] on cpu, want f32 [total_q=6, Hq=8]",
           [](MsaCall& c) {
             c.a.lse_t = {c.a.lse_t.data, DType::f32, {8, 6}};
           }},
      });
}

TEST(MsaValidation, Layouts) {
  expect_messages(
      flat_msa(),
      {
          {"page_table: got not given, want page_table and seqused_k (paged k, v) or cu_seqlens_k (flat k, v)",
           [](MsaCall& c) { c.a.cu_seqlens_k = {}; }},
          {"cu_seqlens_k: got i32[3] on cpu, want not given: k and v are paged, as page_table is given",
           [](MsaCall& c) { c.a.page_table = paged_msa().a.page_table; }},
          {"seqused_k: got i32[2] on cpu, want not given: k and v are flat, as cu_seqlens_k is given",
           [](MsaCall& c) { c.a.seqused_k = paged_msa().a.seqused_k; }},
          {"cu_seqlens_k: got i32[0] on cpu, want at least 1 element",
           [](MsaCall& c) { c.a.cu_seqlens_k.shape[0] = 0; }},
          {"cu_seqlens_q: got i32[3] on cpu, want i32 [B+1=2]", [](MsaCall& c) { c.a.cu_seqlens_k.shape[0] = 2; }},
          {"k: got bf16[5, 2, 32, 64] on cpu, want bf16 or f8_e4m3 [total_k, Hkv, D=64]",
           [](MsaCall& c) { c.a.k = paged_msa().a.k; }},
          {"v: got bf16[99, 2, 64] on cpu, want bf16 [total_k=100, Hkv=2, D=64]",
           [](MsaCall& c) { c.a.v.shape[0] = 99; }},
      });
}

TEST(MsaValidation, Decode) {
  expect_messages(
      decode_msa(),
      {
          {"cu_seqlens_q: got i32[3] on cpu, want not given: in decode every request has seqlen_q rows",
           [](MsaCall& c) { c.a.cu_seqlens_q = paged_msa().a.cu_seqlens_q; }},
          {"seqlen_q: got 0, want at least 1", [](MsaCall& c) { c.a.seqlen_q = 0; }},
          {"q: got 6 rows, want B * seqlen_q rows, with B = 2 and seqlen_q = 2", [](MsaCall& c) { c.a.seqlen_q = 2; }},
          {"q: got 6 rows, want B * seqlen_q rows, with B = 2 and seqlen_q = 4611686018427387904",
           [](MsaCall& c) { c.a.seqlen_q = huge; }},
      });
}

TEST(MsaValidation, Memory) {
  expect_messages(
      paged_msa(),
      {
          {"q: got a null pointer for bf16[6, 8, 64] on cpu, want the address of its elements",
           [](MsaCall& c) { c.a.q.data = nullptr; }},
          {"seqused_k: got a null pointer for i32[2] on cpu, want the address of its elements",
           [](MsaCall& c) { c.a.seqused_k.data = nullptr; }},
          {"k: got an address that is 1 modulo 2, want an address aligned to its elements",
           [](MsaCall& c) { c.a.k.data = moved(c.a.k.data, 1); }},
          {"page_table: got an address that is 2 modulo 4, want an address aligned to its elements",
           [](MsaCall& c) { c.a.page_table.data = moved(c.a.page_table.data, 2); }},
          {"k: got bf16[5, 2, 32, 64] on cuda:0, want a tensor on cpu, the device of q",
           [](MsaCall& c) { c.a.k.device = gpu; }},
          {"lse: got f32[6, 8] on cuda:0, want a tensor on cpu, the device of q",
           [](MsaCall& c) { c.a.lse.device = gpu; }},
          {"k: got bf16[5, 2, 32, 64] on cpu, want a tensor on cuda:0, the device of q",
           [](MsaCall& c) { c.a.q.device = gpu; }},
          {"q: got bf16[6, 8, 64] strides [1024, 128, 2] on cpu, want a contiguous last dimension (stride 1)",
           [](MsaCall& c) {
             c.a.q.stride = {1024, 128, 2};
           }},
          {"v: got bf16[5, 2, 32, 64] strides [4096, 2048, 1, 32] on cpu, want a contiguous last dimension (stride 1)",
           [](MsaCall& c) {
             c.a.v.stride = {4096, 2048, 1, 32};
           }},
          {"seqused_k: got i32[2] strides [2] on cpu, want a contiguous last dimension (stride 1)",
           [](MsaCall& c) { c.a.seqused_k.stride[0] = 2; }},
          {"k: got bf16[5, 2, 32, 64] strides [4611686018427387904, 2048, 64, 1] on cpu, want a shape and strides "
           "inside "
           "the address space",
           [](MsaCall& c) { c.a.k.stride[0] = huge; }},
          {"k: got bf16[5, 2, 32, 64] strides [-1073741824, 2048, 64, 1] on cpu, want a shape and strides inside the "
           "address space",
           [](MsaCall& c) { c.a.k.stride[0] = -(1 << 30); }},
          {"q2k_indices: got i32[2, 6, 1152921504606846976] strides [0, 0, 1] on cpu, want a shape and strides inside "
           "the "
           "address space",
           [](MsaCall& c) {
             c.a.q2k_indices = {c.a.q2k_indices.data, DType::i32, {2, 6, huge / 4}, {0, 0, 1}};
           }},
          {"q2k_indices: got 3000000000 ids per row, want 0 to 2147483647",
           [](MsaCall& c) {
             c.a.q2k_indices = {c.a.q2k_indices.data, DType::i32, {2, 6, 3000000000}, {0, 0, 1}};
           }},
      });
}

TEST(MsaValidation, OutputsThatOverlap) {
  expect_messages(
      paged_msa(),
      {
          {"out: got memory that overlaps q, want memory that no other argument uses",
           [](MsaCall& c) { c.a.out.data = c.a.q.data; }},
          {"out: got memory that overlaps k, want memory that no other argument uses",
           [](MsaCall& c) { c.a.out.data = moved(c.a.k.data, 5 * 2 * 32 * 64 * 2 - 2); }},
          {"out: got memory that overlaps q2k_indices, want memory that no other argument uses",
           [](MsaCall& c) { c.a.out.data = moved(c.a.q2k_indices.data, 2 - 6 * 8 * 64 * 2); }},
          {"out: got memory that overlaps seqused_k, want memory that no other argument uses",
           [](MsaCall& c) { c.a.seqused_k.data = moved(c.a.out.data, 128); }},
          {"lse: got memory that overlaps out, want memory that no other argument uses",
           [](MsaCall& c) { c.a.lse.data = c.a.out.data; }},
          {"lse_t: got memory that overlaps lse, want memory that no other argument uses",
           [](MsaCall& c) { c.a.lse_t.data = c.a.lse.data; }},
          {"lse: got memory that overlaps v_global_scale, want memory that no other argument uses",
           [](MsaCall& c) { c.a.v_global_scale = Tensor(c.a.lse.data, DType::f32, {1}); }},
          {"workspace: got memory that overlaps v, want memory that no other argument uses",
           [](MsaCall& c) { c.options.workspace.data = c.a.v.data; }},
          {"out: got bf16[6, 8, 64] strides [0, 64, 1] on cpu, want positive strides under which no two elements share "
           "memory",
           [](MsaCall& c) { c.a.out.stride[0] = 0; }},
          {"out: got bf16[6, 8, 64] strides [-512, 64, 1] on cpu, want positive strides under which no two elements "
           "share memory",
           [](MsaCall& c) { c.a.out.stride[0] = -512; }},
          {"out: got bf16[6, 8, 64] strides [448, 64, 1] on cpu, want positive strides under which no two elements "
           "share memory",
           [](MsaCall& c) { c.a.out.stride[0] = 448; }},
          {"lse: got f32[6, 8] strides [1, 5] on cpu, want positive strides under which no two elements share memory",
           [](MsaCall& c) {
             c.a.lse.stride = {1, 5};
           }},
      });

  MsaCall adjacent = paged_msa();  // touching is not overlapping
  adjacent.a.out.data = moved(adjacent.a.q.data, 6 * 8 * 64 * 2);
  adjacent.a.lse.data = moved(adjacent.a.out.data, 6 * 8 * 64 * 2);
  EXPECT_EQ(adjacent.message(), "");
  MsaCall single_row = paged_msa();  // the stride of a dimension of size 1 means nothing
  single_row.decode = true;
  single_row.a.cu_seqlens_q = single_row.a.q_offset = {};
  single_row.a.page_table.shape[0] = single_row.a.seqused_k.shape[0] = 1;
  for (Tensor* t : {&single_row.a.q, &single_row.a.out, &single_row.a.lse, &single_row.a.lse_t}) t->shape[0] = 1;
  single_row.a.q2k_indices.shape[1] = 1;
  single_row.a.out.stride[0] = single_row.a.lse.stride[0] = 0;
  EXPECT_EQ(single_row.message(), "");
}

TEST(MsaValidation, ScalarsAndOptions) {
  expect_messages(
      paged_msa(),
      {
          {"block_size: got 48, want a power of two from 4 to 128", [](MsaCall& c) { c.a.block_size = 48; }},
          {"block_size: got 2, want a power of two from 4 to 128", [](MsaCall& c) { c.a.block_size = 2; }},
          {"block_size: got 256, want a power of two from 4 to 128", [](MsaCall& c) { c.a.block_size = 256; }},
          {"block_size: got -4, want a power of two from 4 to 128", [](MsaCall& c) { c.a.block_size = -4; }},
          {"softmax_scale: got inf, want a finite number", [](MsaCall& c) { c.a.softmax_scale = infinity; }},
          {"k_global_scale: got -inf, want a finite number", [](MsaCall& c) { c.a.k_global_scale = -infinity; }},
          {"v_global_scale: got nan, want a finite number",
           [](MsaCall& c) { c.a.v_global_scale = std::numeric_limits<float>::quiet_NaN(); }},
          {"k_global_scale: got not given, want a float or an f32 tensor of 1 element",
           [](MsaCall& c) { c.a.k_global_scale = Tensor(); }},
          {"k_global_scale: got f32[2] on cpu, want a float or an f32 tensor of 1 element",
           [](MsaCall& c) { std::get<Tensor>(c.a.k_global_scale).shape[0] = 2; }},
          {"v_global_scale: got bf16[] on cpu, want a float or an f32 tensor of 1 element",
           [](MsaCall& c) { std::get<Tensor>(c.a.v_global_scale).dtype = DType::bf16; }},
          {"v_global_scale: got a null pointer for f32[] on cpu, want the address of its elements",
           [](MsaCall& c) { std::get<Tensor>(c.a.v_global_scale).data = nullptr; }},
          {"v_global_scale: got f32[] on cuda:0, want a tensor on cpu, the device of q",
           [](MsaCall& c) { std::get<Tensor>(c.a.v_global_scale).device = gpu; }},
          {"lse_temperature_scale: got 0.000000, want greater than 0",
           [](MsaCall& c) { c.a.lse_temperature_scale = 0.0f; }},
          {"lse_temperature_scale: got -1.000000, want greater than 0",
           [](MsaCall& c) { c.a.lse_temperature_scale = -1.0f; }},
          {"lse_temperature_scale: got inf, want a finite number",
           [](MsaCall& c) { c.a.lse_temperature_scale = infinity; }},
          {"num_threads: got -1, want at least 0", [](MsaCall& c) { c.options.num_threads = -1; }},
          {"workspace: got 4095 bytes, want at least 4096 bytes", [](MsaCall& c) { c.options.workspace.bytes = 4095; }},
          {"workspace: got a null pointer, want at least 4096 bytes",
           [](MsaCall& c) { c.options.workspace.data = nullptr; }},
      });
  MsaCall no_workspace = paged_msa();
  no_workspace.options.workspace = {};
  no_workspace.required_workspace = 0;
  EXPECT_EQ(no_workspace.message(), "");
}

TEST(MsaConfigValidation, Messages) {
  const MsaConfig good{.total_q = 6, .batch_size = 2, .num_qo_heads = 8, .num_kv_heads = 2};
  const auto message = [&](const std::function<void(MsaConfig&)>& spoil) {
    MsaConfig config = good;
    spoil(config);
    return message_of([&] { validate_msa_config(config); });
  };
  EXPECT_EQ(message([](MsaConfig&) {}), "");
  EXPECT_EQ(message([](MsaConfig& c) { c.total_q = -1; }), "total_q: got -1 rows, want 0 to 2147483647");
  EXPECT_EQ(message([](MsaConfig& c) { c.batch_size = -1; }), "batch_size: got -1, want at least 0");
  EXPECT_EQ(message([](MsaConfig& c) { c.batch_size = huge; }),
            "batch_size: got 4611686018427387904, want at most 2147483647");
  EXPECT_EQ(
      message([](MsaConfig& c) { c.num_kv_heads = 3; }),
      "num_qo_heads: got 8 query heads for 3 KV heads, want a multiple of the KV heads, at most 16 times as many");
  EXPECT_EQ(
      message([](MsaConfig& c) { c.num_qo_heads = c.num_kv_heads = 1 << 17; }),
      "num_qo_heads: got 131072 query heads for 131072 KV heads, want a multiple of the KV heads, at most 16 times "
      "as many");
  EXPECT_EQ(message([](MsaConfig& c) { c.head_dim = 80; }), "head_dim: got a head dim of 80, want 64, 128 or 256");
  EXPECT_EQ(message([](MsaConfig& c) { c.topk = -1; }), "topk: got -1 ids per row, want 0 to 2147483647");
  EXPECT_EQ(message([](MsaConfig& c) { c.block_size = 0; }), "block_size: got 0, want a power of two from 4 to 128");
  EXPECT_EQ(message([](MsaConfig& c) { c.q_dtype = DType::f32; }), "q_dtype: got f32, want bf16 or f16");
  EXPECT_EQ(message([](MsaConfig& c) { c.kv_dtype = DType::f16; }),
            "kv_dtype: got f16, want bf16 or f8_e4m3, with q_dtype bf16");
  EXPECT_EQ(message([](MsaConfig& c) { c.num_threads = -2; }), "num_threads: got -2, want at least 0");
}

// ---- QSA -----------------------------------------------------------------------------------------------------------

/// Groups of 3 rows, 8 query heads, 2 KV heads, D 128, blocks of 4, pages of 16, one list of 5 ids per row.
struct QsaCall {
  QsaConfig config;
  QsaArguments a;
  CallOptions options;
  std::size_t required_workspace = 0;

  std::string message() const {
    return message_of([this] {
      validate_qsa_config(config);
      validate_qsa(config, a, options, required_workspace);
    });
  }
};

QsaCall packed_qsa() {
  QsaCall call;
  call.config = {.batch_size = 4,
                 .seq_len_q = 3,
                 .num_qo_heads = 8,
                 .num_kv_heads = 2,
                 .head_dim = 128,
                 .kv_block_size = 4,
                 .page_size = 16,
                 .block_topk = 5,
                 .max_seq_len_kv = 64,
                 .use_packed_q = true};
  Addresses at;
  QsaArguments& a = call.a;
  a.q = {at.next(), DType::bf16, {10, 8, 128}};
  a.k_cache = {at.next(), DType::bf16, {7, 2, 16, 128}};
  a.v_cache = {at.next(), DType::bf16, {7, 2, 16, 128}};
  a.block_table = {at.next(), DType::i32, {2, 4}};
  a.indexer_block_ids = {at.next(), DType::i32, {10, 5}};
  a.token_to_request = {at.next(), DType::i32, {10}};
  a.query_positions = {at.next(), DType::i64, {10}};
  a.qo_indptr = {at.next(), DType::i32, {5}};
  a.sm_scale = Tensor(at.next(), DType::f32, {1});
  a.v_scale = Tensor(at.next(), DType::f32, {1});
  a.output_gate = {at.next(), DType::bf16, {10, 8, 128}};
  a.out = {at.next(), DType::bf16, {10, 8, 128}};
  a.lse = {at.next(), DType::f32, {10, 8}};
  call.options.workspace = {at.next(), 4096};
  call.required_workspace = 4096;
  return call;
}

/// The same rows as [B 2, Nq 2, G 3].
QsaCall fixed_qsa() {
  QsaCall call = packed_qsa();
  call.config.use_packed_q = false;
  QsaArguments& a = call.a;
  a.q = {a.q.data, DType::bf16, {2, 2, 3, 8, 128}};
  a.output_gate = {a.output_gate.data, DType::bf16, {2, 2, 3, 8, 128}};
  a.out = {a.out.data, DType::bf16, {2, 2, 3, 8, 128}};
  a.lse = {a.lse.data, DType::f32, {2, 2, 3, 8}};
  a.qo_indptr = {};
  a.indexer_block_ids.shape[0] = a.token_to_request.shape[0] = a.query_positions.shape[0] = 12;
  return call;
}

struct QsaCase {
  const char* expected;
  std::function<void(QsaCall&)> spoil;
};

void expect_messages(const QsaCall& good, const std::vector<QsaCase>& cases) {
  ASSERT_EQ(good.message(), "");
  for (const QsaCase& c : cases) {
    QsaCall call = good;
    c.spoil(call);
    EXPECT_EQ(call.message(), c.expected);
  }
}

TEST(QsaValidation, AcceptsWhatTheContractAllows) {
  EXPECT_EQ(packed_qsa().message(), "");
  EXPECT_EQ(fixed_qsa().message(), "");

  QsaCall optional = packed_qsa();
  optional.a.sm_scale.reset();
  optional.a.v_scale = 2.0f;
  optional.a.output_gate = optional.a.lse = {};
  optional.a.query_positions.dtype = DType::i32;
  EXPECT_EQ(optional.message(), "");

  QsaCall fewer = packed_qsa();  // fewer groups and rows than planned
  fewer.a.qo_indptr.shape[0] = 1;
  for (Tensor* t : {&fewer.a.q, &fewer.a.out, &fewer.a.output_gate, &fewer.a.lse, &fewer.a.indexer_block_ids,
                    &fewer.a.token_to_request, &fewer.a.query_positions}) {
    t->shape[0] = 0;
    t->data = nullptr;
  }
  EXPECT_EQ(fewer.message(), "");

  QsaCall per_head = packed_qsa();
  per_head.config.share_pattern_across_kv_heads = false;
  per_head.a.indexer_block_ids = {per_head.a.indexer_block_ids.data, DType::i32, {10, 2, 5}};
  EXPECT_EQ(per_head.message(), "");

  QsaCall fp8 = packed_qsa();
  fp8.config.q_dtype = fp8.config.kv_dtype = DType::f8_e4m3;
  fp8.a.q.dtype = fp8.a.k_cache.dtype = fp8.a.v_cache.dtype = DType::f8_e4m3;
  EXPECT_EQ(fp8.message(), "");

  QsaCall padded = fixed_qsa();  // every row followed by as much unused memory
  padded.a.q.stride = {2 * 3 * 2048, 3 * 2048, 2048, 128, 1};
  padded.a.out.stride = padded.a.q.stride;
  EXPECT_EQ(padded.message(), "");
}

TEST(QsaValidation, Packed) {
  expect_messages(
      packed_qsa(),
      {
          {"q: got not given, want bf16 [total_q, Hq=8, D=128]", [](QsaCall& c) { c.a.q = {}; }},
          {"q: got f16[10, 8, 128] on cpu, want bf16 [total_q, Hq=8, D=128]",
           [](QsaCall& c) { c.a.q.dtype = DType::f16; }},
          {"q: got bf16[2, 2, 3, 8, 128] on cpu, want bf16 [total_q, Hq=8, D=128]",
           [](QsaCall& c) { c.a.q = fixed_qsa().a.q; }},
          {"q: got 13 rows, want at most batch_size * seq_len_q of the plan, 12",
           [](QsaCall& c) {
             for (Tensor* t : {&c.a.q, &c.a.out, &c.a.output_gate, &c.a.lse}) t->shape[0] = 13;
           }},
          {"qo_indptr: got not given, want i32 [groups+1]", [](QsaCall& c) { c.a.qo_indptr = {}; }},
          {"qo_indptr: got 5 groups, want 0 to 4, the plan's batch_size",
           [](QsaCall& c) { c.a.qo_indptr.shape[0] = 6; }},
          {"qo_indptr: got -1 groups, want 0 to 4, the plan's batch_size",
           [](QsaCall& c) { c.a.qo_indptr.shape[0] = 0; }},
          {"k_cache: got f8_e4m3[7, 2, 16, 128] on cpu, want bf16 [num_pages, Hkv=2, page_size=16, D=128]",
           [](QsaCall& c) { c.a.k_cache.dtype = DType::f8_e4m3; }},
          {"k_cache: got bf16[7, 2, 32, 128] on cpu, want bf16 [num_pages, Hkv=2, page_size=16, D=128]",
           [](QsaCall& c) {
             c.a.k_cache = {c.a.k_cache.data, DType::bf16, {7, 2, 32, 128}};
           }},
          {"v_cache: got bf16[6, 2, 16, 128] on cpu, want bf16 [num_pages=7, Hkv=2, page_size=16, D=128]",
           [](QsaCall& c) { c.a.v_cache.shape[0] = 6; }},
          {"block_table: got not given, want i32 [requests, max_pages]", [](QsaCall& c) { c.a.block_table = {}; }},
          {"block_table: got 4611686018427387904 pages of 16 tokens, want fewer than 2^63 tokens",
           [](QsaCall& c) {
             c.a.block_table = {nullptr, DType::i32, {0, huge}};
           }},
          {"indexer_block_ids: got i32[10, 4] strides [5, 1] on cpu, want i32 [total_q=10, block_topk=5]",
           [](QsaCall& c) { c.a.indexer_block_ids.shape[1] = 4; }},
          {"indexer_block_ids: got i32[10, 5] on cpu, want i32 [total_q=10, Hkv=2, block_topk=5]",
           [](QsaCall& c) { c.config.share_pattern_across_kv_heads = false; }},
          {"token_to_request: got i64[10] on cpu, want i32 [total_q=10]",
           [](QsaCall& c) { c.a.token_to_request.dtype = DType::i64; }},
          {"query_positions: got f32[10] on cpu, want i32 or i64 [total_q=10]",
           [](QsaCall& c) { c.a.query_positions.dtype = DType::f32; }},
          {"query_positions: got an address that is 4 modulo 8, want an address aligned to its elements",
           [](QsaCall& c) { c.a.query_positions.data = moved(c.a.query_positions.data, 4); }},
          {"output_gate: got bf16[10, 8, 64] on cpu, want bf16 [total_q=10, Hq=8, D=128]",
           [](QsaCall& c) {
             c.a.output_gate = {c.a.output_gate.data, DType::bf16, {10, 8, 64}};
           }},
          {"out: got f16[10, 8, 128] on cpu, want bf16 [total_q=10, Hq=8, D=128]",
           [](QsaCall& c) { c.a.out.dtype = DType::f16; }},
          {"lse: got f32[8, 10] on cpu, want f32 [total_q=10, Hq=8]",
           [](QsaCall& c) {
             c.a.lse = {c.a.lse.data, DType::f32, {8, 10}};
           }},
          {"q: got bf16[10, 8, 128] on cuda:0, want a tensor on cpu, the device of the plan",
           [](QsaCall& c) { c.a.q.device = gpu; }},
          {"sm_scale: got nan, want a finite number",
           [](QsaCall& c) { c.a.sm_scale = std::numeric_limits<float>::quiet_NaN(); }},
          {"v_scale: got f32[0] on cpu, want a float or an f32 tensor of 1 element",
           [](QsaCall& c) { std::get<Tensor>(c.a.v_scale).shape[0] = 0; }},
          {"num_threads: got -1, want at least 0", [](QsaCall& c) { c.options.num_threads = -1; }},
          {"workspace: got 1 bytes, want at least 4096 bytes", [](QsaCall& c) { c.options.workspace.bytes = 1; }},
          {"out: got memory that overlaps output_gate, want memory that no other argument uses",
           [](QsaCall& c) { c.a.out.data = c.a.output_gate.data; }},
          {"out: got memory that overlaps sm_scale, want memory that no other argument uses",
           [](QsaCall& c) { std::get<Tensor>(*c.a.sm_scale).data = moved(c.a.out.data, 64); }},
          {"workspace: got memory that overlaps block_table, want memory that no other argument uses",
           [](QsaCall& c) { c.options.workspace.data = c.a.block_table.data; }},
      });
}

TEST(QsaValidation, Fixed) {
  expect_messages(
      fixed_qsa(),
      {
          {"qo_indptr: got i32[5] on cpu, want not given: the plan is for the fixed layout",
           [](QsaCall& c) { c.a.qo_indptr = packed_qsa().a.qo_indptr; }},
          {"q: got bf16[12, 8, 128] on cpu, want bf16 [B, Nq, G=3, Hq=8, D=128]",
           [](QsaCall& c) {
             c.a.q = {c.a.q.data, DType::bf16, {12, 8, 128}};
           }},
          {"q: got bf16[2, 3, 2, 8, 128] on cpu, want bf16 [B, Nq, G=3, Hq=8, D=128]",
           [](QsaCall& c) {
             c.a.q = {c.a.q.data, DType::bf16, {2, 3, 2, 8, 128}};
           }},
          {"q: got 2 * 2 groups, want at most 3, the plan's batch_size", [](QsaCall& c) { c.config.batch_size = 3; }},
          {"q: got bf16[2, 2, 3, 8, 128] strides [6144, 3072, 2048, 128, 1] on cpu, want leading dimensions [B, Nq, G] "
           "that collapse into one row stride",
           [](QsaCall& c) {
             c.a.q.stride = {6144, 3072, 2048, 128, 1};
           }},
          {"out: got bf16[2, 2, 3, 8, 128] strides [8192, 3072, 1024, 128, 1] on cpu, want leading dimensions [B, Nq, "
           "G] "
           "that collapse into one row stride",
           [](QsaCall& c) { c.a.out.stride[0] = 8192; }},
          {"output_gate: got bf16[2, 2, 3, 8, 128] strides [8192, 4096, 1024, 128, 1] on cpu, want leading dimensions "
           "[B, Nq, G] that collapse into one row stride",
           [](QsaCall& c) {
             c.a.output_gate.stride = {8192, 4096, 1024, 128, 1};
           }},
          {"lse: got f32[2, 2, 3, 8] strides [49, 24, 8, 1] on cpu, want leading dimensions [B, Nq, G] that collapse "
           "into "
           "one row stride",
           [](QsaCall& c) { c.a.lse.stride[0] = 49; }},
          {"out: got bf16[2, 2, 4, 8, 128] on cpu, want bf16 [B=2, Nq=2, G=3, Hq=8, D=128]",
           [](QsaCall& c) {
             c.a.out = {c.a.out.data, DType::bf16, {2, 2, 4, 8, 128}};
           }},
          {"token_to_request: got i32[10] on cpu, want i32 [total_q=12]",
           [](QsaCall& c) { c.a.token_to_request.shape[0] = 10; }},
      });
}

TEST(QsaConfigValidation, Messages) {
  const auto message = [](const std::function<void(QsaConfig&)>& spoil) {
    QsaConfig config = packed_qsa().config;
    spoil(config);
    return message_of([&] { validate_qsa_config(config); });
  };
  EXPECT_EQ(message([](QsaConfig&) {}), "");
  EXPECT_EQ(message([](QsaConfig& c) { c.batch_size = -1; }), "batch_size: got -1, want at least 0");
  EXPECT_EQ(message([](QsaConfig& c) { c.batch_size = huge; }),
            "batch_size: got 4611686018427387904, want at most 715827882");
  EXPECT_EQ(message([](QsaConfig& c) { c.seq_len_q = 0; }), "seq_len_q: got 0, want at least 1");
  EXPECT_EQ(message([](QsaConfig& c) { c.seq_len_q = 33; }),
            "seq_len_q: got 33 rows of 4 query heads per KV head, want at most 128 (row, head) pairs");
  EXPECT_EQ(
      message([](QsaConfig& c) { c.num_qo_heads = 0; }),
      "num_qo_heads: got 0 query heads for 2 KV heads, want a multiple of the KV heads, at most 16 times as many");
  EXPECT_EQ(message([](QsaConfig& c) { c.head_dim = 512; }), "head_dim: got a head dim of 512, want 64, 128 or 256");
  EXPECT_EQ(message([](QsaConfig& c) { c.kv_block_size = 12; }),
            "kv_block_size: got 12, want a power of two from 4 to 128");
  EXPECT_EQ(message([](QsaConfig& c) { c.page_size = 6; }),
            "page_size: got pages of 6 tokens, want a multiple of the block size 4");
  EXPECT_EQ(message([](QsaConfig& c) { c.page_size = 0; }),
            "page_size: got pages of 0 tokens, want a multiple of the block size 4");
  EXPECT_EQ(message([](QsaConfig& c) { c.block_topk = -1; }), "block_topk: got -1 ids per row, want 0 to 2147483647");
  EXPECT_EQ(message([](QsaConfig& c) { c.max_seq_len_kv = -1; }), "max_seq_len_kv: got -1, want at least 0");
  EXPECT_EQ(message([](QsaConfig& c) { c.q_dtype = DType::f32; }), "q_dtype: got f32, want bf16 or f16 or f8_e4m3");
  EXPECT_EQ(message([](QsaConfig& c) { c.kv_dtype = DType::f16; }),
            "kv_dtype: got f16, want bf16 or f8_e4m3, with q_dtype bf16");
  EXPECT_EQ(message([](QsaConfig& c) { c.q_dtype = DType::f8_e4m3; }),
            "kv_dtype: got bf16, want f8_e4m3, with q_dtype f8_e4m3");
  EXPECT_EQ(message([](QsaConfig& c) { c.out_dtype = DType::f16; }),
            "out_dtype: got f16, want bf16, with q_dtype bf16");
  EXPECT_EQ(message([](QsaConfig& c) { c.q_dtype = c.kv_dtype = c.out_dtype = DType::f8_e4m3; }),
            "out_dtype: got f8_e4m3, want bf16 or f16, with q_dtype f8_e4m3");
  EXPECT_EQ(message([](QsaConfig& c) { c.num_threads = -1; }), "num_threads: got -1, want at least 0");
}

TEST(QsaPlanValidation, ADeviceThatNoPathRunsOnIsRefused) {
  QsaConfig config = packed_qsa().config;
  config.device = {DeviceType::cuda, 1000};
  EXPECT_THROW(QsaPlan{config}, UnsupportedError);
  config.head_dim = 512;
  EXPECT_THROW(QsaPlan{config}, ArgumentError) << "what is wrong anywhere comes first";
}

// ---- Merge ---------------------------------------------------------------------------------------------------------

MergeArguments good_merge() {
  Addresses at;
  MergeArguments a;
  a.outs = {at.next(), DType::f32, {3, 5, 4, 32}};
  a.lses = {at.next(), DType::f32, {3, 5, 4}};
  a.out = {at.next(), DType::bf16, {5, 4, 32}};
  a.lse = {at.next(), DType::f32, {5, 4}};
  return a;
}

TEST(MergeValidation, Messages) {
  const auto message = [](const std::function<void(MergeArguments&)>& spoil, int num_threads = 0) {
    MergeArguments a = good_merge();
    spoil(a);
    CallOptions options;
    options.num_threads = num_threads;
    return message_of([&] { validate_merge(a, options); });
  };
  EXPECT_EQ(message([](MergeArguments&) {}), "");
  EXPECT_EQ(message([](MergeArguments& a) { a.lse = {}; }), "");
  EXPECT_EQ(message([](MergeArguments& a) {
              a.outs = {nullptr, DType::f16, {0, 5, 4, 32}};
              a.lses = {nullptr, DType::f32, {0, 5, 4}};
            }),
            "");
  EXPECT_EQ(message([](MergeArguments& a) { a.outs = {}; }),
            "outs: got not given, want bf16 or f16 or f32 [num_states, total_q, Hq, D]");
  EXPECT_EQ(message([](MergeArguments& a) { a.outs.dtype = DType::f8_e4m3; }),
            "outs: got f8_e4m3[3, 5, 4, 32] on cpu, want bf16 or f16 or f32 [num_states, total_q, Hq, D]");
  EXPECT_EQ(message([](MergeArguments& a) { a.lses.shape[0] = 2; }),
            "lses: got f32[2, 5, 4] on cpu, want f32 [num_states=3, total_q=5, Hq=4]");
  EXPECT_EQ(message([](MergeArguments& a) { a.out.shape[1] = 3; }),
            "out: got bf16[5, 3, 32] strides [128, 32, 1] on cpu, want bf16 or f16 or f32 [total_q=5, Hq=4, D=32]");
  EXPECT_EQ(message([](MergeArguments& a) { a.out.device = gpu; }),
            "out: got bf16[5, 4, 32] on cuda:0, want a tensor on cpu, the device of outs");
  EXPECT_EQ(message([](MergeArguments& a) { a.lse.dtype = DType::bf16; }),
            "lse: got bf16[5, 4] on cpu, want f32 [total_q=5, Hq=4]");
  EXPECT_EQ(message([](MergeArguments& a) { a.out.data = moved(a.outs.data, 128); }),
            "out: got memory that overlaps outs, want memory that no other argument uses");
  EXPECT_EQ(message([](MergeArguments& a) { a.lse.data = a.lses.data; }),
            "lse: got memory that overlaps lses, want memory that no other argument uses");
  EXPECT_EQ(message([](MergeArguments&) {}, -1), "num_threads: got -1, want at least 0");
}

// ---- Cost ----------------------------------------------------------------------------------------------------------

template <class Call>
double nanoseconds_per_call(Call&& call) {
  double best = std::numeric_limits<double>::infinity();
  for (int sample = 0; sample < 20; ++sample) {
    constexpr int calls = 1000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / calls);
  }
  return best;
}

TEST(ValidationCost, UnderTwoMicroseconds) {
  const MsaCall msa = paged_msa();
  const QsaCall qsa = fixed_qsa();
  const double msa_ns =
      nanoseconds_per_call([&] { validate_msa(msa.a, msa.options, msa.decode, msa.required_workspace); });
  const double qsa_ns =
      nanoseconds_per_call([&] { validate_qsa(qsa.config, qsa.a, qsa.options, qsa.required_workspace); });
  std::printf("host checks: MSA %.0f ns, QSA %.0f ns\n", msa_ns, qsa_ns);
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(msa_ns, 2000.0);
  EXPECT_LT(qsa_ns, 2000.0);
#endif
}

}  // namespace
}  // namespace kvsieve
