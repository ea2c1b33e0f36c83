#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu_run.sh [OUT]: on a GPU machine, in the folder that gpu_pack.sh made: tests, compute-sanitizer, and the CPU suite's
# benchmark of that machine. Logs go to OUT. The last line says whether all of it passed.
set -uo pipefail
cd "$(dirname "$0")"
out=$(realpath "${1:-.}")
tar -xJf package.tar.xz
export KVSIEVE_GOLDEN_DIR=$PWD/golden
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=()
stage() {
  local name=$1
  shift
  echo "=== $name"
  "$@" >"$out/$name.log" 2>&1 || failed+=("$name")
  tail -n 4 "$out/$name.log"
}
random_shards() {  # one process a shard, all at once
  local pids=() ok=0
  for shard in 0 1 2 3 4 5 6 7; do
    ./gpu_test --gtest_filter="Shard/GpuRandom.*/$shard" >"$out/random_$shard.tmp" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || ok=1; done
  cat "$out"/random_*.tmp && rm -f "$out"/random_*.tmp
  return $ok
}
stage info ./kvsieve info
cat "$out/info.log"
stage golden ./kvsieve run golden/*.safetensors --device cuda --repeat 3
stage gpu_test ./gpu_test --gtest_filter='-Shard/*'
grep "host time" "$out/gpu_test.log"
stage gpu_random random_shards
stage simd_targets ./simd_targets_test
if command -v compute-sanitizer >/dev/null; then
  export KVSIEVE_RANDOM_CONFIGS=160
  stage memcheck compute-sanitizer --tool memcheck --error-exitcode 9 ./gpu_test --gtest_filter='*Golden*:*Random*/0:*Random*/1'
  stage racecheck compute-sanitizer --tool racecheck --error-exitcode 9 ./kvsieve run golden/*.safetensors --device cuda
  stage initcheck compute-sanitizer --tool initcheck --error-exitcode 9 ./kvsieve run golden/*.safetensors --device cuda
fi
echo "failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
