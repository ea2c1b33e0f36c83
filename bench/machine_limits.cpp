// SPDX-License-Identifier: Apache-2.0
#include "bench/machine_limits.hpp"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>

#include "bench/stream_sum.hpp"
#include "core/thread_pool.hpp"
#include "io/random.hpp"
#include "io/tensor_storage.hpp"
#include "kvsieve/error.hpp"

namespace kvsieve::bench {
namespace {

template <class Body>
double best_seconds(int repeats, const Body& body) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return best;
}

}  // namespace

SgemmRate measure_sgemm(int num_threads, std::int64_t size, int repeats) {
  SgemmRate rate;
  openblas_set_num_threads(num_threads);
  rate.num_threads = openblas_get_num_threads();
  std::strncpy(rate.kernel, openblas_get_corename(), sizeof(rate.kernel) - 1);

  const auto elements = static_cast<std::size_t>(size * size);
  const auto a = io::allocate(elements * sizeof(float)), b = io::allocate(elements * sizeof(float)),
             c = io::allocate(elements * sizeof(float));
  io::Random random(0);
  for (const auto& matrix : {a, b}) {
    std::generate_n(reinterpret_cast<float*>(matrix.get()), elements, [&] { return random.normal(); });
  }
  const auto n = static_cast<blasint>(size);
  const auto product = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, reinterpret_cast<const float*>(a.get()), n,
                reinterpret_cast<const float*>(b.get()), n, 0, reinterpret_cast<float*>(c.get()), n);
  };
  product();  // warm-up: its threads start, its buffers are mapped
  rate.flops_per_second = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) /
                          best_seconds(repeats, product);
  openblas_set_num_threads(1);  // idle OpenBLAS threads spin for a while
  return rate;
}

double measure_read(int num_threads, std::size_t bytes, int repeats) {
  constexpr std::size_t chunk_words = 1 << 18;  // 2 MiB
  const auto chunks = static_cast<std::int64_t>(bytes / sizeof(std::uint64_t) / chunk_words);
  const auto memory = io::allocate(static_cast<std::size_t>(chunks) * chunk_words * sizeof(std::uint64_t));
  auto* const words = reinterpret_cast<std::uint64_t*>(memory.get());
  const auto for_each_chunk = [&](const auto& body) {
    ThreadPool::instance().parallel_for(chunks, num_threads, [&](std::int64_t chunk, int) noexcept {
      body(words + static_cast<std::size_t>(chunk) * chunk_words, static_cast<std::uint64_t>(chunk));
    });
  };
  for_each_chunk([](std::uint64_t* begin, std::uint64_t chunk) { std::fill_n(begin, chunk_words, chunk); });
  const auto count = static_cast<std::uint64_t>(chunks);
  const std::uint64_t expected = count * (count - 1) / 2 * chunk_words;
  const double seconds = best_seconds(repeats, [&] {
    std::atomic<std::uint64_t> total{0};
    for_each_chunk([&](const std::uint64_t* begin, std::uint64_t) { total += stream_sum(begin, chunk_words); });
    if (total != expected) throw Error("the streaming read has lost data");
  });
  return static_cast<double>(count) * chunk_words * sizeof(std::uint64_t) / seconds;
}

}  // namespace kvsieve::bench
