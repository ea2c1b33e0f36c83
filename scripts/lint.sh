#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   scripts/lint.sh check [FOLDER...]  clang-format (no changes) over all sources and clang-tidy over all host sources, or
#                                      those of some folders; fails when either has something to say
#   scripts/lint.sh formatted          clang-format alone, no changes
#   scripts/lint.sh format             clang-format in place
#
# Both tools are pinned to LLVM 14, Debian 12's: another version would format differently.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files --cached --others --exclude-standard -- '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh')

case "${1:-check}" in
  format)
    clang-format-14 -i "${sources[@]}"
    ;;
  formatted)
    clang-format-14 --dry-run -Werror "${sources[@]}" && echo "lint: ${#sources[@]} files are formatted"
    ;;
  check)
    ok=true
    clang-format-14 --dry-run -Werror "${sources[@]}" || ok=false
    $ok && echo "lint: ${#sources[@]} files are formatted" || echo "lint: not formatted; run make format" >&2

    # clang-tidy reads from the release build tree how each file is compiled. The examples are not compiled there: they
    # need an installed package, or, to be read, the headers alone.
    cmake --preset release --log-level=WARNING >/dev/null
    cmake --build --preset release --target kvsieve_commit >/dev/null  # the one header that is generated
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    shift $(($# > 0 ? 1 : 0))
    folders=$(IFS='|' && echo "${*:-[^/]+}")
    # Not what the emulator compiles: device code, in C++ that it is not written for.
    if run-clang-tidy-14 -quiet -p build/release -j "${JOBS:-$(nproc)}" "^$PWD/($folders)/(?!emulator/)" >"$log" 2>&1 &&
      clang-tidy-14 --quiet examples/*.cpp -- -std=c++20 -Iinclude >>"$log" 2>&1; then
      echo "lint: clang-tidy is content"
    else
      ok=false
      # The findings; all that was said when there are none.
      findings=$(awk -f scripts/clang_tidy_findings.awk "$log")
      [ -n "$findings" ] || findings=$(cat "$log")
      printf '%s\n' "$findings" >&2
      echo "lint: clang-tidy found something" >&2
    fi
    $ok
    ;;
  *)
    sed -n '4,7s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
