// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "route/route_cuda.hpp"
#include "route/row_map.hpp"

namespace kvsieve::cuda {
namespace {

constexpr int num_threads = 256;

/// One thread a row, and a request.
__global__ void count_bad_indices_kernel(const __grid_constant__ AttentionProblem problem,
                                         unsigned long long* counter) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::int64_t bad = 0;
  if (i < problem.total_q) bad += bad_indices_of_row(problem, i);
  if (i < problem.num_requests) bad += bad_indices_of_request(problem, i);
  if (bad != 0) atomicAdd(counter, static_cast<unsigned long long>(bad));
}

}  // namespace

std::int64_t count_bad_indices(const AttentionProblem& problem, std::int64_t* counter, cudaStream_t stream) {
  const std::int64_t items = larger(problem.total_q, problem.num_requests);
  std::int64_t bad = 0;
  if (items == 0) return bad;
  check(cudaMemsetAsync(counter, 0, sizeof(bad), stream), "cudaMemsetAsync");
  const auto grid = static_cast<unsigned>((items + num_threads - 1) / num_threads);
  count_bad_indices_kernel<<<grid, num_threads, 0, stream>>>(problem, reinterpret_cast<unsigned long long*>(counter));
  check_launch("count_bad_indices_kernel");
  check(cudaMemcpyAsync(&bad, counter, sizeof(bad), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return bad;
}

}  // namespace kvsieve::cuda
