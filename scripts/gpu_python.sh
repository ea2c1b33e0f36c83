#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   scripts/gpu_python.sh pack [FOLDER]   here: the sources and the system libraries that a GPU machine may lack, and this
#                                         script, into one small folder (build/gpu_python)
#   gpu_python.sh run [OUT]               in that folder on a GPU machine, without network: builds the extension with
#                                         CUDA against the machine's own Python, runs the Python tests with torch and
#                                         CUDA, and measures the call overhead. Logs go to OUT (the folder itself).
#
# The GPU machine needs CMake, ninja, nvcc and g++; its python3 torch, NumPy, ml_dtypes, pytest and nanobind. PYTHON names
# another interpreter. KVSIEVE_GPU_ARCHITECTURES (90-real) is what code is compiled for there.
set -euo pipefail
cd "$(dirname "$0")"

pack() {
  cd ..
  local folder=${1:-build/gpu_python}
  content=$(mktemp -d)  # not local: the trap reads it
  trap 'rm -rf "$content"' EXIT
  mkdir -p "$content/source" "$content/usr"
  git ls-files -z --cached --others --exclude-standard -- ':!tests/data/fuzz_corpus' ':!bench/results' |
    xargs -0 cp --parents --no-dereference -t "$content/source"
  # Highway, {fmt} and nlohmann-json, with their CMake packages, as Debian lays them out.
  local package
  for package in libhwy-dev libhwy1 libfmt-dev libfmt9 nlohmann-json3-dev; do
    dpkg-query -L "$package" | grep -E '^/usr/(include|lib|share/(cmake|nlohmann))' | while read -r path; do
      if [ ! -d "$path" ]; then cp --parents --no-dereference "$path" "$content"; fi
    done
  done
  rm -rf "$folder"
  mkdir -p "$folder"
  tar -C "$content" -c . | xz -T0 -3 >"$folder/package.tar.xz"
  cp scripts/gpu_python.sh "$folder"
  du -sh "$folder"
}

run() {
  local out python=${PYTHON:-python3} failed=()
  out=$(realpath "${1:-.}")
  mkdir -p "$out"
  tar -xJf package.tar.xz
  local prefix=$PWD/usr libraries=$PWD/usr/lib/x86_64-linux-gnu
  # Only what was packed; the machine's own C library stays the first choice for all else.
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

  stage() {
    local name=$1
    shift
    echo "=== $name"
    "$@" >"$out/$name.log" 2>&1 || failed+=("$name")
    tail -n 15 "$out/$name.log"
  }
  configure() {
    cmake -S source -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVSIEVE_PYTHON=ON -DKVSIEVE_CUDA=ON \
      -DKVSIEVE_BUILD_TOOLS=OFF -DKVSIEVE_BUILD_TESTS=OFF -DKVSIEVE_INSTALL=OFF \
      -DCMAKE_CUDA_ARCHITECTURES="${KVSIEVE_GPU_ARCHITECTURES:-90-real}" -DCMAKE_PREFIX_PATH="$prefix" \
      -DPython_EXECUTABLE="$(command -v "$python")"
  }
  stage versions "$python" -c 'import torch, numpy, ml_dtypes, nanobind, sys; print(sys.version, torch.__version__,
numpy.__version__, ml_dtypes.__version__, nanobind.__version__, torch.cuda.get_device_name())'
  stage configure configure
  stage build cmake --build build --target _core
  cp build/python/_core*.so source/python/kvsieve/ || failed+=("no extension")
  cd source
  export PYTHONPATH=$PWD/python
  stage info "$python" -c 'import kvsieve; print(kvsieve.info())'
  stage pytest "$python" -m pytest -q -rs -p no:cacheprovider
  stage overhead "$python" python/benchmarks/call_overhead.py
  echo "failed: ${failed[*]:-none}"
  [ ${#failed[@]} -eq 0 ]
}

case "${1:-}" in
  pack | run) "$@" ;;
  *)
    sed -n '4,11s/^# \{0,1\}//p' "$(basename "$0")" >&2
    exit 2
    ;;
esac
