#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# scripts/gpu_pack.sh [FOLDER]: builds the CUDA backend and puts what a GPU machine needs to prove a change into one small
# folder (build/gpu): an archive of stripped programs, their shared libraries and the golden cases, and gpu_run.sh, which
# unpacks it and runs everything there.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/gpu}

cmake --preset cuda --log-level=WARNING
cmake --build --preset cuda --target gpu_test simd_targets_test kvsieve_tool
content=$(mktemp -d)
trap 'rm -rf "$content"' EXIT
mkdir -p "$content/lib" "$content/golden"
programs=(build/cuda/tests/gpu_test build/cuda/tests/simd_targets_test build/cuda/tools/kvsieve)
for program in "${programs[@]}"; do strip -o "$content/$(basename "$program")" "$program"; done
# Libraries that a GPU machine may lack; the C and C++ runtimes are its own.
ldd "${programs[@]}" | awk '$2 == "=>" && $1 ~ /hwy|fmt|gtest|openblas|gfortran|quadmath/ { print $1, $3 }' | sort -u |
  while read -r name path; do strip --strip-unneeded -o "$content/lib/$name" "$path"; done
cp tests/data/golden/*.safetensors "$content/golden"
rm -rf "$folder"
mkdir -p "$folder"
tar -C "$content" -c . | xz -T0 -1 >"$folder/package.tar.xz"
cp scripts/gpu_run.sh "$folder"
du -sh "$folder"
