#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu_run.sh [OUT [STAGE...]]: on a GPU machine, in the folder that gpu_pack.sh made: tests, compute-sanitizer, and the GPU
# suites' times. Without a STAGE all of them run, in this order:
#
#   info golden gpu_test gpu_random simd_targets smoke demo memcheck racecheck initcheck targets production
#
# OUT then holds logs.txt (what the stages printed), targets.txt, targets.json, production.txt and production.json. The last
# line says whether all of it passed. BENCH_ARGS: more options for targets and production, for example "--path
# cuda_portable --filter QSA".
set -uo pipefail
cd "$(dirname "$0")"
out=$(realpath "${1:-.}")
shift $(($# > 0))
mkdir -p "$out"
all_stages=(info golden gpu_test gpu_random simd_targets smoke demo memcheck racecheck initcheck targets production)
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
for name in "${stages[@]}"; do
  if [[ " ${all_stages[*]} " != *" $name "* ]]; then
    echo "gpu_run: no stage $name; there are ${all_stages[*]}" >&2
    exit 2
  fi
done

tar -xJf package.tar.xz
export KVSIEVE_GOLDEN_DIR=$PWD/golden
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
read -ra bench_args <<<"${BENCH_ARGS:-}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
logs=$out/logs.txt
: >"$logs"

golden() { ./kvsieve run golden/*.safetensors --device cuda "$@"; }
random_shards() {  # one process a shard, all at once
  local pids=() ok=0
  for shard in 0 1 2 3 4 5 6 7; do
    ./gpu_test --gtest_filter="Shard/GpuRandom.*_$shard" >"$scratch/random_$shard" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || ok=1; done
  cat "$scratch"/random_*
  return $ok
}
sanitize() {  # tool, command...
  local tool=$1
  shift
  if ! command -v compute-sanitizer >/dev/null; then
    echo "skipped: there is no compute-sanitizer"
    return 0
  fi
  KVSIEVE_RANDOM_CONFIGS=160 compute-sanitizer --tool "$tool" --error-exitcode 9 "$@"
}
bench() { ./kvsieve bench --suite "$1" --output "$out/$1.txt" --output "$out/$1.json" ${bench_args[@]+"${bench_args[@]}"}; }
run_stage() {
  case $1 in
    info) ./kvsieve info ;;
    golden) golden --repeat 3 ;;
    gpu_test) ./gpu_test --gtest_filter='-Shard/*' ;;
    gpu_random) random_shards ;;
    simd_targets) ./simd_targets_test ;;
    smoke) ./kvsieve bench --suite targets --quick && ./kvsieve bench --suite production --quick ;;
    demo) ./kvsieve demo --device cuda ;;
    memcheck) sanitize memcheck ./gpu_test --gtest_filter='*Golden*:*Random*_0' ;;
    racecheck | initcheck) sanitize "$1" ./kvsieve run golden/*.safetensors --device cuda ;;
    targets | production) bench "$1" ;;
  esac
}

failed=()
for name in "${stages[@]}"; do
  echo "=== $name" | tee -a "$logs"
  begin=$SECONDS
  run_stage "$name" >"$scratch/log" 2>&1 || failed+=("$name")
  cat "$scratch/log" >>"$logs"
  case $name in
    info | demo | targets | production) grep -v '^bench: \|^demo: ' "$scratch/log" ;;
    gpu_test) grep "host time" "$scratch/log"; tail -n 4 "$scratch/log" ;;
    *) tail -n 4 "$scratch/log" ;;
  esac
  echo "=== $name: $((SECONDS - begin)) s" | tee -a "$logs"
done
echo "failed: ${failed[*]:-none}" | tee -a "$logs"
[ ${#failed[@]} -eq 0 ]
