// SPDX-License-Identifier: Apache-2.0
//
// The tile: its sizes and memory, per-lane tables, packed queries. Included by kernel.cpp once per instruction set,
// inside its namespace; hence no include guard.

/// What the steps below share: sizes, scratch, and which vectors of lanes take part in the current chunk.
struct Tile {
  const TileTask& task;
  const AttentionProblem& problem;
  Scratch scratch;
  std::int64_t head_dim;
  std::int64_t group;
  std::int64_t num_rows;
  std::int64_t num_vecs;
  std::int64_t capacity;                   ///< keys of a chunk
  std::uint32_t all_rows;                  ///< membership bits of all rows
  std::int64_t min_limit;                  ///< smallest limit of the rows
  bool by_row = false;                     ///< q and o are [lane][D]: a tile of few lanes
  float logit_scale;                       ///< applied to the logits in the softmax; log2(e) included
  std::uint32_t vec_rows[max_tile_lanes];  ///< rows that have lanes in a vector

  // The current chunk.
  const Chunk* chunk = nullptr;
  bool finite_values = true;  ///< no NaN or infinity among its V elements
  std::int64_t num_active = 0;
  std::int16_t active[max_tile_lanes];  ///< vectors with such a row

  explicit Tile(const TileTask& t)
      : task(t),
        problem(*t.problem),
        scratch(t.scratch, t.route->num_rows * problem.group(), problem.head_dim),
        head_dim(problem.head_dim),
        group(problem.group()),
        num_rows(t.route->num_rows),
        num_vecs((num_rows * group + kLanes - 1) / kLanes),
        capacity(chunk_keys(head_dim)),
        all_rows(num_rows >= 32 ? ~0u : (1u << num_rows) - 1u),
        min_limit(*std::min_element(t.route->limits, t.route->limits + num_rows)) {}

  float* vec_q(std::int64_t vec) const { return scratch.q + vec * kLanes * head_dim; }
  float* vec_o(std::int64_t vec) const { return scratch.o + vec * kLanes * head_dim; }
  float* vec_s(std::int64_t vec) const { return scratch.s + vec * kLanes * capacity; }
};

/// Fills the per-lane tables and clears the running sums.
void InitLanes(Tile& tile) {
  const Scratch& s = tile.scratch;
  const std::int64_t lanes = tile.num_rows * tile.group;
  const std::int64_t padded = tile.num_vecs * kLanes;
  for (std::int64_t lane = 0; lane < padded; ++lane) {
    s.max[lane] = -std::numeric_limits<float>::infinity();
    s.sum[lane] = 0.0f;
    s.sum_t[lane] = 0.0f;
    if (lane < lanes) {
      const std::int64_t row = lane / tile.group;
      const std::int64_t limit = tile.task.route->limits[row];
      // A 64-bit position may be past every block that an id can name.
      s.limit_block[lane] =
          static_cast<std::int32_t>(limit < 0 ? -1
                                              : std::min<std::int64_t>(limit / tile.problem.block_size,
                                                                       std::numeric_limits<std::int32_t>::max()));
      s.limit_offset[lane] = limit < 0 ? -1 : static_cast<std::int32_t>(limit % tile.problem.block_size);
      s.token_bit[lane] = 1u << row;
    } else {  // padding lanes have q = 0 and are never stored; they only must not make a masked piece look special
      s.limit_block[lane] = std::numeric_limits<std::int32_t>::max();
      s.limit_offset[lane] = 0;
      s.token_bit[lane] = ~0u;
    }
  }
  for (std::int64_t vec = 0; vec < tile.num_vecs; ++vec) {
    tile.vec_rows[vec] = 0;
    for (std::int64_t lane = vec * kLanes; lane < std::min(lanes, (vec + 1) * kLanes); ++lane) {
      tile.vec_rows[vec] |= s.token_bit[lane];
    }
  }
  std::memset(s.o, 0, static_cast<std::size_t>(padded * tile.head_dim) * sizeof(float));
}

template <class Type>
void LoadRow(const AttentionProblem& problem, std::int64_t row, std::int64_t head, float* HWY_RESTRICT values) {
  const auto* from = static_cast<const typename Type::Storage*>(problem.q.data) + row * problem.q.stride_row +
                     head * problem.q.stride_head;
  for (std::int64_t i = 0; i < problem.head_dim; i += kLanes) {
    hn::Store(LoadFloats(Type(), from + i), FloatTag(), values + i);
  }
}

/// Transposes the tile's queries into panels (or copies them by rows, in a tile of few lanes). Float arithmetic folds
/// the logit scale into them; BF16 arithmetic leaves the numbers as they are stored (the scale comes in at the softmax)
/// except for its sign, since the running maximum is taken before scaling.
template <class Math>
void PackQueries(Tile& tile) {
  constexpr float log2_e = 1.44269504088896340736f;
  const float scale = tile.task.scalars.logit_scale * log2_e;
  tile.logit_scale = Math::pairs ? std::fabs(scale) : 1.0f;
  const float factor = Math::pairs ? std::copysign(1.0f, scale) : scale;
  const AttentionProblem& problem = tile.problem;
  if (tile.num_rows * tile.group % kLanes != 0) {  // padding lanes
    float* last = tile.scratch.q + (tile.num_vecs - 1) * kLanes * (Math::pairs ? tile.head_dim / 2 : tile.head_dim);
    std::memset(last, 0, static_cast<std::size_t>(kLanes * tile.head_dim) * sizeof(float));
  }
  for (std::int64_t lane = 0; lane < tile.num_rows * tile.group; ++lane) {
    const std::int64_t row = tile.task.route->row_begin + lane / tile.group;
    const std::int64_t head = tile.task.kv_head * tile.group + lane % tile.group;
    float* HWY_RESTRICT values = tile.scratch.row;
    if (problem.q.dtype == DType::bf16) LoadRow<Bf16>(problem, row, head, values);
    if (problem.q.dtype == DType::f16) LoadRow<F16>(problem, row, head, values);
    if (problem.q.dtype == DType::f8_e4m3) LoadRow<F8WithNan>(problem, row, head, values);
    if (tile.by_row) {
      float* HWY_RESTRICT copy = tile.scratch.q + lane * tile.head_dim;
      for (std::int64_t i = 0; i < tile.head_dim; ++i) copy[i] = values[i] * factor;
      continue;
    }
    float* HWY_RESTRICT panel = tile.scratch.q + lane % kLanes;
    if constexpr (Math::pairs) {
      panel += lane / kLanes * kLanes * (tile.head_dim / 2);
      for (std::int64_t i = 0; i < tile.head_dim; i += 2) {
        std::uint32_t pair[2];
        for (int j = 0; j < 2; ++j) pair[j] = std::bit_cast<std::uint32_t>(values[i + j] * factor);
        panel[i / 2 * kLanes] = std::bit_cast<float>((pair[0] >> 16) | (pair[1] & 0xFFFF0000u));
      }
    } else {
      panel += lane / kLanes * kLanes * tile.head_dim;
      for (std::int64_t i = 0; i < tile.head_dim; ++i) panel[i * kLanes] = values[i] * factor;
    }
  }
}
