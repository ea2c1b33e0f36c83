// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the CUDA backend share: a fixture that skips without a GPU, the paths of the GPU, tensors between
// guards in device memory, and a check of a case on every path.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/case.hpp"
#include "io/case_run.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve::test {

inline constexpr Device gpu{DeviceType::cuda, 0};

CallOptions gpu_options(Path path = Path::automatic);

bool is_hopper();

/// The paths that this GPU has, and the choice among them.
std::vector<Path> gpu_paths();

/// True when a call threw because the forced path does not take it.
bool is_refusal(const std::string& failure);

/// The golden cases' files, in order; KVSIEVE_GOLDEN_DIR says where they are when not where they were at the build.
std::vector<std::filesystem::path> golden_files();

/// Skips, and says why, where there is no GPU.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
};

/// Device memory, each piece in an allocation of its exact size with a guard allocated before and after it: bytes of
/// 0xFF, which are NaN and -1. What is read past a piece's end spoils results, what is written there shows in intact(),
/// and compute-sanitizer sees both.
class GuardedDeviceMemory {
 public:
  GuardedDeviceMemory();
  /// Poisoned too.
  std::byte* allocate(std::size_t bytes);
  /// A tensor's memory, gaps between its elements included.
  Tensor copy(const Tensor& tensor);
  /// All inputs of a case, scalars included.
  io::Case copy(const io::Case& test_case);
  /// False when a guard was written.
  bool intact() const;

 private:
  void add_guard();

  std::vector<std::shared_ptr<std::byte>> pieces_;
  std::vector<std::shared_ptr<std::byte>> guards_;
};

/// What is wrong with a run of the case on one path, empty when nothing: outputs against `expected`, written guards
/// and, when `bad_indices` is not negative, what check_indices counts. Inputs are in guarded memory.
std::string check_on_path(const io::Case& test_case, const io::Expected& expected, Path path,
                          std::int64_t bad_indices = -1);

/// The same on every path of the GPU, against the reference, with the number of bad indices; the path is named.
std::string check_on_gpu(const io::Case& test_case);

/// Bytes of a tensor in host memory, gaps included.
std::vector<std::byte> bytes_of(const Tensor& tensor);

}  // namespace kvsieve::test
