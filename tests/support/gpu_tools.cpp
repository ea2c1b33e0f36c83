// SPDX-License-Identifier: Apache-2.0
#include "support/gpu_tools.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "cuda/device_memory.hpp"
#include "kvsieve/error.hpp"
#include "support/case_tools.hpp"

namespace kvsieve::test {
namespace {

constexpr std::size_t guard_bytes = 4096;
constexpr int poison = 0xFF;

/// Bytes from a tensor's first element to the end of its last one.
std::size_t extent_bytes(const Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.rank); ++i) {
    last += (tensor.shape[i] - 1) * tensor.stride[i];
  }
  return static_cast<std::size_t>(last + 1) * dtype_size(tensor.dtype);
}

}  // namespace

CallOptions gpu_options(Path path) {
  CallOptions options;
  options.path = path;
  return options;
}

bool is_hopper() { return cuda::devices().properties[0].major == 9; }

std::vector<Path> gpu_paths() {
  std::vector<Path> paths{Path::automatic, Path::cuda_portable};
  if (is_hopper()) paths.push_back(Path::cuda_sm90);
  return paths;
}

bool is_refusal(const std::string& failure) { return failure.find("does not take this call") != std::string::npos; }

std::vector<std::filesystem::path> golden_files() {
  const char* const folder = std::getenv("KVSIEVE_GOLDEN_DIR");
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder != nullptr ? folder : KVSIEVE_TEST_DATA "/golden")) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void GpuTest::SetUp() {
  if (!cuda::devices().problem.empty()) GTEST_SKIP() << cuda::devices().problem;
}

GuardedDeviceMemory::GuardedDeviceMemory() { add_guard(); }

void GuardedDeviceMemory::add_guard() {
  guards_.push_back(cuda::allocate_device(guard_bytes, gpu.index));
  cuda::check(cudaMemset(guards_.back().get(), poison, guard_bytes), "cudaMemset");
}

std::byte* GuardedDeviceMemory::allocate(std::size_t bytes) {
  pieces_.push_back(cuda::allocate_device(bytes, gpu.index));
  if (bytes != 0) cuda::check(cudaMemset(pieces_.back().get(), poison, bytes), "cudaMemset");
  add_guard();
  return pieces_.back().get();
}

Tensor GuardedDeviceMemory::copy(const Tensor& tensor) {
  Tensor result = tensor;
  result.device = gpu;
  const std::size_t bytes = tensor.defined() ? extent_bytes(tensor) : 0;
  if (bytes == 0) return result;
  result.data = allocate(bytes);
  cuda::copy(result.data, tensor.data, bytes);
  return result;
}

io::Case GuardedDeviceMemory::copy(const io::Case& test_case) {
  io::Case result = test_case;
  for (const NamedTensor& input : inputs_of(result)) *input.tensor = copy(*input.tensor);
  return result;
}

bool GuardedDeviceMemory::intact() const {
  std::vector<std::byte> bytes(guard_bytes);
  return std::all_of(guards_.begin(), guards_.end(), [&](const std::shared_ptr<std::byte>& guard) {
    cuda::copy(bytes.data(), guard.get(), guard_bytes);
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{poison}; });
  });
}

std::string check_on_path(const io::Case& test_case, const io::Expected& expected, Path path,
                          std::int64_t bad_indices) {
  try {
    GuardedDeviceMemory memory;
    CallOptions options = gpu_options(path);
    options.check_indices = bad_indices >= 0;
    // Outputs and workspace come right after the last guard; one more follows them.
    io::CaseRun run(memory.copy(test_case), options, true, gpu);
    memory.allocate(0);
    std::int64_t counted = 0;
    try {
      run.execute();
    } catch (const IndexError& error) {
      counted = error.bad_entries();
    }
    std::string failure = io::check_run(run, expected).failure;
    if (!failure.empty()) return failure;
    if (!memory.intact()) return "memory outside the tensors was written";
    if (bad_indices >= 0 && counted != bad_indices) {
      return "check_indices counts " + std::to_string(counted) + " entries, the reference " +
             std::to_string(bad_indices);
    }
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string check_on_gpu(const io::Case& test_case) {
  io::Case with_expected = test_case;
  io::add_reference_results(with_expected);
  const std::int64_t bad_indices = reference_bad_indices(test_case);
  for (const Path path : gpu_paths()) {
    const std::string failure = check_on_path(test_case, with_expected.expected, path, bad_indices);
    if (!failure.empty()) return std::string(path_name(path)) + ": " + failure;
  }
  return "";
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  const auto* const begin = static_cast<const std::byte*>(tensor.data);
  return {begin, begin + extent_bytes(tensor)};
}

}  // namespace kvsieve::test
