// SPDX-License-Identifier: Apache-2.0
//
// The matrix-product kernel of the CPU backend, shared by logits (S = K Q^T) and values (O = V^T P). Included by
// kernel.cpp once for each arithmetic (float32 FMA, BF16 dot product), inside the namespace of that arithmetic, after
// `Dot` has been defined there; hence no include guard.
//
// Vectors run along query rows ("lanes"). One step k multiplies a vector of lanes by a broadcast word of K or V:
//
//     acc[i][j][lane] += panels[i][k][lane] * columns[j][k * kStep]
//
// where a word is one float, or two bf16 numbers whose products are both added.

/// kVecs vectors of lanes by kCols columns over `steps` steps. Results go to out[i] + j * lanes; with kRescale they are
/// added to what is there times alpha[i][lane].
template <int kVecs, int kCols, int kStep, bool kRescale>
HWY_NOINLINE void PanelProduct(size_t steps, const float* const* panels, const float* const* columns,
                               const float* const* alpha, float* const* out) {
  const FloatTag d;
  FloatVec acc[kVecs][kCols];
  const float* panel[kVecs];
  const float* column[kCols];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    panel[i] = panels[i];
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) acc[i][j] = hn::Zero(d);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kCols; ++j) column[j] = columns[j];

  for (size_t k = 0; k < steps; ++k) {
    FloatVec lanes[kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) lanes[i] = hn::Load(d, panel[i] + k * kLanes);
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      const FloatVec word = hn::Set(d, column[j][k * kStep]);
#pragma GCC unroll 8
      for (int i = 0; i < kVecs; ++i) acc[i][j] = Dot(acc[i][j], lanes[i], word);
    }
  }

#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      float* HWY_RESTRICT target = out[i] + static_cast<size_t>(j) * kLanes;
      if (kRescale) {
        hn::Store(hn::MulAdd(hn::Load(d, target), hn::Load(d, alpha[i]), acc[i][j]), d, target);
      } else {
        hn::Store(acc[i][j], d, target);
      }
    }
  }
}
