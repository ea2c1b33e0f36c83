// SPDX-License-Identifier: Apache-2.0
//
// Normalised results: output rows, log-sum-exp, states of splits. Included by kernel.cpp once per instruction set,
// inside its namespace; hence no include guard.

template <class Storage>
HWY_INLINE void StoreUpperHalves(UintVec bits, Storage* HWY_RESTRICT to) {
  hn::StoreU(hn::DemoteTo(HalfBitsTag(), hn::BitCast(IntTag(), hn::ShiftRight<16>(bits))), HalfBitsTag(), to);
}

HWY_INLINE void StoreFloats(Bf16, FloatVec value, std::uint16_t* HWY_RESTRICT to) {
  StoreUpperHalves(RoundToBf16(value), to);
}

HWY_INLINE void StoreFloats(F16, FloatVec value, std::uint16_t* HWY_RESTRICT to) {
#if KVSIEVE_HAS_F16
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  hn::StoreU(hn::BitCast(HalfBitsTag(), hn::DemoteTo(dh, value)), HalfBitsTag(), to);
#else
  alignas(64) float values[kLanes];
  hn::Store(value, FloatTag(), values);
  for (std::int64_t i = 0; i < kLanes; ++i) to[i] = float_to_f16(values[i]);
#endif
}

template <class Type>
void StoreRowAs(const AttentionProblem& problem, float v_scale, std::int64_t row, std::int64_t head, float* values) {
  using Storage = typename Type::Storage;
  const FloatTag d;
  auto* to = static_cast<Storage*>(problem.out.data) + row * problem.out.stride_row + head * problem.out.stride_head;
  const auto* gate = static_cast<const Storage*>(problem.gate.data);
  if (gate != nullptr) gate += row * problem.gate.stride_row + head * problem.gate.stride_head;
  for (std::int64_t i = 0; i < problem.head_dim; i += kLanes) {
    StoreFloats(Type(), hn::Mul(hn::LoadU(d, values + i), hn::Set(d, v_scale)), to + i);
    if (gate == nullptr) continue;
    // out = round(attention) * sigmoid(gate): the rounded attention is read back.
    alignas(64) float gates[kLanes];
    hn::Store(LoadFloats(Type(), gate + i), d, gates);
    for (float& g : gates) g = 1.0f / (1.0f + std::exp(-g));
    StoreFloats(Type(), hn::Mul(LoadFloats(Type(), to + i), hn::Load(d, gates)), to + i);
  }
}

void StoreRow(const AttentionProblem& problem, float v_scale, std::int64_t row, std::int64_t head, float* values) {
  if (problem.out.dtype == DType::bf16) {
    StoreRowAs<Bf16>(problem, v_scale, row, head, values);
  } else {
    StoreRowAs<F16>(problem, v_scale, row, head, values);
  }
}

/// Normalises every row of the tile and writes it, as output or as the state of this split.
void FinishTile(const Tile& tile) {
  constexpr float ln_2 = 0.693147180559945309417f;
  const AttentionProblem& problem = tile.problem;
  const Scratch& scratch = tile.scratch;
  const Partials& partials = tile.task.partials;
  for (std::int64_t lane = 0; lane < tile.num_rows * tile.group; ++lane) {
    const std::int64_t row = tile.task.route->row_begin + lane / tile.group;
    const std::int64_t head = tile.task.kv_head * tile.group + lane % tile.group;
    const std::int64_t state = (row * problem.num_qo_heads + head) * partials.num_splits + tile.task.split;
    const float sum = scratch.sum[lane];
    const bool empty = sum == 0.0f;  // no key; a NaN sum stays NaN
    const float factor = empty ? 0.0f : 1.0f / sum;
    const float* o = tile.by_row ? scratch.o + lane * tile.head_dim : tile.vec_o(lane / kLanes) + lane % kLanes;
    const std::int64_t stride = tile.by_row ? 1 : kLanes;
    float* values = partials.out != nullptr ? partials.out + state * tile.head_dim : scratch.row;
    for (std::int64_t i = 0; i < tile.head_dim; ++i) values[i] = o[i * stride] * factor;

    const float minus_infinity = -std::numeric_limits<float>::infinity();
    const float max = scratch.max[lane] * tile.logit_scale;
    const float lse = empty ? minus_infinity : ln_2 * (max + std::log2(sum));
    float lse_t = minus_infinity;
    if (problem.lse_t.defined() && !empty) {
      lse_t = ln_2 * (tile.task.scalars.temperature * max + std::log2(scratch.sum_t[lane]));
    }
    if (partials.out != nullptr) {
      partials.lse[state] = lse;
      if (partials.lse_t != nullptr) partials.lse_t[state] = lse_t;
      continue;
    }
    StoreRow(problem, tile.task.scalars.v_scale, row, head, values);
    const auto store_lse = [&](const RowHeads& to, float value) {
      if (to.defined()) static_cast<float*>(to.data)[row * to.stride_row + head * to.stride_head] = value;
    };
    store_lse(problem.lse, lse);
    store_lse(problem.lse_t, lse_t);
  }
}
