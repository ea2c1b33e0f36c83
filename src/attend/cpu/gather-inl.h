// SPDX-License-Identifier: Apache-2.0
//
// Chunks of keys: cut from the route, prefetched, copied into the products' layouts. Included by kernel.cpp once per
// instruction set, inside its namespace; hence no include guard.

/// Position in the route: the next entry, and how much of its block earlier chunks have taken.
struct RouteCursor {
  std::int64_t entry;
  std::int64_t offset = 0;
};

/// Number of keys of a block that some member row may attend to.
std::int64_t AttendedKeys(const Tile& tile, const RouteEntry& entry) {
  const std::int64_t start = entry.block * tile.problem.block_size;
  if (start + tile.problem.block_size - 1 <= tile.min_limit) return tile.problem.block_size;
  std::int64_t last = -1;
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    if ((entry.members >> row & 1) != 0) last = std::max(last, tile.task.route->limits[row]);
  }
  return std::clamp<std::int64_t>(last - start + 1, 0, tile.problem.block_size);
}

/// Appends keys of one block to a chunk.
void AppendPiece(const Tile& tile, const RouteEntry& entry, std::int64_t offset, std::int64_t count, Chunk& chunk) {
  const AttentionProblem& problem = tile.problem;
  const std::int64_t last = entry.block * problem.block_size + offset + count - 1;
  const bool masked = entry.members != tile.all_rows || last > tile.min_limit;
  chunk.pieces[chunk.num_pieces++] = {static_cast<std::int32_t>(chunk.num_keys),
                                      static_cast<std::int32_t>(count),
                                      entry.block,
                                      static_cast<std::int32_t>(offset),
                                      entry.members,
                                      masked};
  chunk.rows |= entry.members;
  const auto element = static_cast<std::int64_t>(dtype_size(problem.kv_dtype));
  const auto row_address = [&](const KvCache& cache, std::int64_t slot) {
    return static_cast<const char*>(cache.data) +
           (entry.page * cache.stride_page + slot * cache.stride_token + tile.task.kv_head * cache.stride_head) *
               element;
  };
  for (std::int64_t i = 0; i < count; ++i, ++chunk.num_keys) {
    chunk.k_rows[chunk.num_keys] = row_address(problem.k, entry.slot + offset + i);
    chunk.v_rows[chunk.num_keys] = row_address(problem.v, entry.slot + offset + i);
  }
}

/// Cuts the next keys of the route into pieces until the chunk is full; an empty chunk is the end of the route.
void FillChunk(const Tile& tile, RouteCursor& cursor, Chunk& chunk) {
  chunk.num_keys = 0;
  chunk.num_pieces = 0;
  chunk.rows = 0;
  while (cursor.entry < tile.task.entry_end && chunk.num_keys < tile.capacity) {
    const RouteEntry& entry = tile.task.route->entries[cursor.entry];
    const std::int64_t remaining = AttendedKeys(tile, entry) - cursor.offset;
    const std::int64_t count = std::min(remaining, tile.capacity - chunk.num_keys);
    if (count > 0) AppendPiece(tile, entry, cursor.offset, count, chunk);
    if (count < remaining) {
      cursor.offset += count;
      break;
    }
    ++cursor.entry;
    cursor.offset = 0;
  }
}

/// Makes a chunk the current one. In a tile of few lanes every vector takes part.
void SelectChunk(Tile& tile, const Chunk& chunk) {
  tile.chunk = &chunk;
  tile.num_active = 0;
  for (std::int64_t vec = 0; vec < tile.num_vecs; ++vec) {
    if (tile.by_row || (tile.vec_rows[vec] & chunk.rows) != 0)
      tile.active[tile.num_active++] = static_cast<std::int16_t>(vec);
  }
}

/// Fetches a chunk's rows into the L2 cache, row by row between the products of the chunk before it: blocks lie
/// scattered over memory, and no hardware prefetcher can know the next one.
class Prefetcher {
 public:
  /// `total_work`: sum of what the calls of advance() will report.
  Prefetcher(const Chunk& chunk, std::int64_t row_bytes, std::int64_t total_work)
      : chunk_(chunk), row_bytes_(row_bytes), num_rows_(2 * chunk.num_keys), total_work_(total_work) {}

  /// Some work is done: fetches the same part of the rows.
  void advance(std::int64_t work) {
    for (due_ += work * num_rows_; due_ >= total_work_ && row_ < num_rows_; due_ -= total_work_, ++row_) {
      const char* row = row_ % 2 == 0 ? chunk_.k_rows[row_ / 2] : chunk_.v_rows[row_ / 2];
      for (std::int64_t byte = 0; byte < row_bytes_; byte += line_bytes) __builtin_prefetch(row + byte, 0, 2);
    }
  }

 private:
  static constexpr std::int64_t line_bytes = 64;
  const Chunk& chunk_;
  std::int64_t row_bytes_;
  std::int64_t num_rows_;  ///< K and V rows
  std::int64_t total_work_;
  std::int64_t due_ = 0;  ///< rows to fetch, times total_work_
  std::int64_t row_ = 0;
};

/// Keys of the chunk, rounded up to what the products work in; the added ones are zeros and masked.
std::int64_t PaddedKeys(const Tile& tile) { return (tile.chunk->num_keys + 7) / 8 * 8; }

/// One key or value row into float words, K's layout.
template <class Type>
HWY_INLINE void CopyKeyFloats(const typename Type::Storage* HWY_RESTRICT from, std::int64_t head_dim,
                              float* HWY_RESTRICT to) {
  for (std::int64_t i = 0; i < head_dim; i += kLanes) hn::Store(LoadFloats(Type(), from + i), FloatTag(), to + i);
}

/// One key row into bf16 pairs: for BF16 storage the bytes as they are.
template <class Type>
HWY_INLINE void CopyKeyPairs(const typename Type::Storage* HWY_RESTRICT from, std::int64_t head_dim,
                             float* HWY_RESTRICT to) {
  if constexpr (Type::dtype == DType::bf16) {
    std::memcpy(to, from, static_cast<std::size_t>(head_dim) * 2);
  } else {
    auto* HWY_RESTRICT bits = reinterpret_cast<std::uint16_t*>(to);
    for (std::int64_t i = 0; i < head_dim; i += kLanes) {
      const UintVec upper = hn::ShiftRight<16>(hn::BitCast(UintTag(), LoadFloats(Type(), from + i)));
      hn::StoreU(hn::DemoteTo(HalfBitsTag(), hn::BitCast(IntTag(), upper)), HalfBitsTag(), bits + i);
    }
  }
}

/// One value row into float panels [D / 16][chunk][16]. Adds v * 0 to `check`, which so becomes NaN if v is not finite.
template <class Type>
HWY_INLINE void CopyValueFloats(const typename Type::Storage* HWY_RESTRICT from, std::int64_t head_dim,
                                std::int64_t chunk, std::int64_t key, float* HWY_RESTRICT to, FloatVec& check) {
  const FloatTag d;
  for (std::int64_t i = 0; i < head_dim; i += kLanes) {
    const FloatVec value = LoadFloats(Type(), from + i);
    check = hn::MulAdd(value, hn::Zero(d), check);
    hn::Store(value, d, to + i / 16 * value_panel_words(chunk) + key * 16 + i % 16);
  }
}

/// Two value rows into panels of bf16 pairs [D / 16][chunk / 2][16]. `odd` may be null: zeros.
template <class Type>
HWY_INLINE void CopyValuePairs(const typename Type::Storage* HWY_RESTRICT even,
                               const typename Type::Storage* HWY_RESTRICT odd, std::int64_t head_dim,
                               std::int64_t chunk, std::int64_t key, float* HWY_RESTRICT to, FloatVec& check) {
  const FloatTag d;
  const UintTag du;
  for (std::int64_t i = 0; i < head_dim; i += kLanes) {
    const FloatVec low = LoadFloats(Type(), even + i);
    const FloatVec high = odd != nullptr ? LoadFloats(Type(), odd + i) : hn::Zero(d);
    check = hn::MulAdd(low, hn::Zero(d), hn::MulAdd(high, hn::Zero(d), check));
    const UintVec word = hn::Or(hn::ShiftRight<16>(hn::BitCast(du, low)), hn::BitCast(du, high));
    hn::Store(hn::BitCast(d, word), d, to + i / 16 * value_panel_words(chunk / 2) + key / 2 * 16 + i % 16);
  }
}

/// Copies keys [first, first + count) of the chunk out of the cache; zeros stand for those past its end.
template <class Math, class Type>
void GatherKeys(const Tile& tile, std::int64_t first, std::int64_t count) {
  const std::int64_t num_keys = std::clamp<std::int64_t>(tile.chunk->num_keys - first, 0, count);
  const char* const* rows = tile.chunk->k_rows + first;
  if constexpr (std::is_same_v<Type, F8>) {
    if (HasNanCodes(rows, num_keys, 0, tile.head_dim)) return GatherKeys<Math, F8WithNan>(tile, first, count);
  }
  const std::int64_t words = Math::pairs ? tile.head_dim / 2 : tile.head_dim;
  float* keys = tile.scratch.k;
  for (std::int64_t key = 0; key < num_keys; ++key) {
    const auto* from = reinterpret_cast<const typename Type::Storage*>(rows[key]);
    if constexpr (Math::pairs) {
      CopyKeyPairs<Type>(from, tile.head_dim, keys + key * words);
    } else {
      CopyKeyFloats<Type>(from, tile.head_dim, keys + key * words);
    }
  }
  std::memset(keys + num_keys * words, 0, static_cast<std::size_t>((count - num_keys) * words) * sizeof(float));
}

/// Copies the chunk's values out of the cache into panels, and notes whether all are finite.
template <class Math, class Type>
void GatherValues(Tile& tile) {
  if constexpr (std::is_same_v<Type, F8>) {
    if (HasNanCodes(tile.chunk->v_rows, tile.chunk->num_keys, 0, tile.head_dim)) {
      return GatherValues<Math, F8WithNan>(tile);
    }
  }
  using Storage = typename Type::Storage;
  const FloatTag d;
  FloatVec check = hn::Zero(d);
  float* values = tile.scratch.v;
  const std::int64_t num_keys = tile.chunk->num_keys;
  const auto row = [&](std::int64_t key) { return reinterpret_cast<const Storage*>(tile.chunk->v_rows[key]); };
  if constexpr (Math::pairs) {
    for (std::int64_t key = 0; key < num_keys; key += 2) {
      const Storage* odd = key + 1 < num_keys ? row(key + 1) : nullptr;
      CopyValuePairs<Type>(row(key), odd, tile.head_dim, tile.capacity, key, values, check);
    }
  } else {
    for (std::int64_t key = 0; key < num_keys; ++key) {
      CopyValueFloats<Type>(row(key), tile.head_dim, tile.capacity, key, values, check);
    }
  }
  tile.finite_values = hn::AllFalse(d, hn::IsNaN(check));
}
