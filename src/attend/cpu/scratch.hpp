// SPDX-License-Identifier: Apache-2.0
//
// Working memory of a tile on the CPU. docs/kernels/cpu.md draws the layouts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsieve::cpu {

/// Keys processed at a time: their float copies of K and V (2 * 64 KiB) stay in the L2 cache.
inline std::int64_t chunk_keys(std::int64_t head_dim) { return head_dim > 128 ? 64 : 128; }

/// Words between two panels of V: one line more than a panel, so that the 16 parts of a row do not all fall into the
/// same set of the L1 cache.
inline std::int64_t value_panel_words(std::int64_t keys_or_pairs) { return keys_or_pairs * 16 + 16; }

/// Keys of a chunk at most.
inline constexpr std::int64_t max_chunk_keys = 128;

/// Consecutive keys of one block within a chunk.
struct Piece {
  std::int32_t first_key;  ///< index in the chunk
  std::int32_t num_keys;
  std::int32_t block;
  std::int32_t offset;    ///< of the first key within the block
  std::uint32_t members;  ///< rows that selected the block
  bool masked;            ///< some row of the tile does not attend to some key of the piece
};

/// The keys that one step of the online softmax works on.
struct Chunk {
  std::int64_t num_keys;
  std::int64_t num_pieces;
  std::uint32_t rows;  ///< rows of the tile that attend to some key
  Piece pieces[max_chunk_keys];
  const char* k_rows[max_chunk_keys];  ///< where each key is in the cache
  const char* v_rows[max_chunk_keys];
};

/// Bump allocator over the scratch memory; the same code computes its size.
class ScratchCursor {
 public:
  explicit ScratchCursor(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    char* place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(place);
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

/// A tile's working set. "panel" arrays are [vector][...][lanes]: vector v holds lanes v * L .. v * L + L - 1.
struct Scratch {
  float* q;      ///< [vector][D][lanes], or words of bf16 pairs [vector][D / 2][lanes], or [lane][D]
  float* o;      ///< [vector][D][lanes], or [lane][D] in a tile of few lanes; not normalised
  float* s;      ///< [vector][chunk][lanes]: logits, then probabilities
  float* k;      ///< [chunk][D] floats, or [chunk][D / 2] words
  float* v;      ///< [D / 16][chunk][16] floats, or [D / 16][chunk / 2][16] words; few lanes: P, [chunk][16]
  float* max;    ///< [lane]: running maximum of the unscaled logits
  float* sum;    ///< [lane]: running sum of exp(logit - max)
  float* sum_t;  ///< [lane]: the same for lse_t
  float* alpha;  ///< [lane]: factor that moves older sums to the new maximum
  std::int32_t* limit_block;   ///< [lane]: block of the last position that the lane attends to
  std::int32_t* limit_offset;  ///< [lane]: offset of that position within the block
  std::uint32_t* token_bit;    ///< [lane]: membership bit of the lane's token
  float* row;                  ///< [D]: an output row
  Chunk* chunks;               ///< [2]: the current one, and the one after it
  std::size_t bytes;

  Scratch(void* memory, std::int64_t lanes, std::int64_t head_dim) {
    const std::int64_t padded = (lanes + 15) / 16 * 16;
    const std::int64_t chunk = chunk_keys(head_dim);
    ScratchCursor cursor(memory);
    q = cursor.take<float>(padded * head_dim);
    o = cursor.take<float>(padded * head_dim);
    s = cursor.take<float>(padded * chunk);
    k = cursor.take<float>(chunk * head_dim);
    v = cursor.take<float>(value_panel_words(chunk) * (head_dim / 16));
    max = cursor.take<float>(padded);
    sum = cursor.take<float>(padded);
    sum_t = cursor.take<float>(padded);
    alpha = cursor.take<float>(padded);
    limit_block = cursor.take<std::int32_t>(padded);
    limit_offset = cursor.take<std::int32_t>(padded);
    token_bit = cursor.take<std::uint32_t>(padded);
    row = cursor.take<float>(head_dim);
    chunks = cursor.take<Chunk>(2);
    bytes = cursor.used();
  }
};

}  // namespace kvsieve::cpu
