// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/case.hpp"
#include "io/compare.hpp"
#include "kvsieve/options.hpp"

namespace kvsieve::io {

/// A case ready to be called: its arguments with poisoned outputs and a workspace. Called as often as wanted.
class CaseRun {
 public:
  /// `options.workspace` is set here. `with_lse` asks for lse (and lse_t when the case wants it). On a CUDA device the
  /// inputs that are not there already are copied there once, the outputs back after each call. Throws CaseError when
  /// the library does not accept the case, UnsupportedError when it has no such device.
  CaseRun(Case test_case, const CallOptions& options, bool with_lse = true, Device device = {});
  // The call's arguments point at the members.
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;

  /// The public call, to its end; on a CUDA device also the copies of the outputs. Throws CaseError for what the
  /// library says about the arguments, and the library's UnsupportedError and IndexError as they are.
  void execute();
  /// The public call alone: on a CUDA device it has been enqueued on the stream of the options, and no output is
  /// copied.
  void enqueue();
  /// Waits for the device and copies the outputs to host memory. On the CPU they are there.
  void fetch_outputs();
  /// Fills the outputs with NaN bytes again.
  void poison_outputs();

  const Case& test_case() const noexcept { return case_; }
  const Tensor& out() const noexcept { return out_.view; }
  /// Undefined when not asked for.
  const Tensor& lse() const noexcept { return lse_.view; }
  const Tensor& lse_t() const noexcept { return lse_t_.view; }
  /// The path that the call takes: never Path::automatic. Throws UnsupportedError when the forced one does not take it.
  Path path() const;
  std::size_t workspace_size() const noexcept { return options_.workspace.bytes; }
  /// False when the call wrote memory between the rows of out.
  bool gaps_intact() const { return io::gaps_intact(out_); }

  /// The arguments of the call, outputs included, in host memory but for inputs that the case has on a device.
  const MsaArguments& msa() const noexcept { return msa_; }
  const QsaArguments& qsa() const noexcept { return qsa_; }

 private:
  void call();
  void place_on_device();

  Case case_;
  Device device_;
  CallOptions options_;
  OwnedTensor out_, lse_, lse_t_;
  std::shared_ptr<std::byte> workspace_;
  MsaArguments msa_;
  QsaArguments qsa_;
  std::optional<QsaPlan> plan_;

  // On a CUDA device: the arguments as the device sees them, and their memory.
  MsaArguments device_msa_;
  QsaArguments device_qsa_;
  std::vector<std::shared_ptr<std::byte>> device_memory_;
  std::vector<std::pair<const OwnedTensor*, std::byte*>> device_outputs_;
};

/// Errors of a run against expected values. `failure` is one line, empty when the run is right.
struct RunCheck {
  Tolerance tolerance;
  std::optional<OutError> out;
  std::optional<LseError> lse;
  std::optional<LseError> lse_t;
  std::string failure;
  bool compared() const noexcept { return out || lse || lse_t; }
};
/// Compares what both sides have.
RunCheck check_run(const CaseRun& run, const Expected& expected);

/// f32 results of the float64 reference. Throws CaseError when the library does not accept the case. The memory is kept
/// by the case.
void add_reference_results(Case& test_case);

}  // namespace kvsieve::io
