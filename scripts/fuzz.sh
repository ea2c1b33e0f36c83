#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   scripts/fuzz.sh BUILD_DIR SECONDS
#
# Runs each fuzz target of the build tree for so many seconds, from the committed corpus, tests/data/fuzz_corpus/NAME. New
# inputs are kept in BUILD_DIR/corpus/NAME and go on from there next time. What a target fails on is written to
# BUILD_DIR/findings; once fixed, it belongs into the committed corpus, which the test suite replays.
set -euo pipefail
build=$1
seconds=$2
cd "$(dirname "$0")/.."

status=0
for target in "$build"/fuzz/fuzz_*; do
  [ -f "$target" ] && [ -x "$target" ] || continue
  name=${target##*/fuzz_}
  committed=tests/data/fuzz_corpus/$name
  mkdir -p "$build/corpus/$name" "$build/findings" "$committed"
  log=$build/fuzz_$name.log
  echo "fuzz: $name for $seconds s"
  if "$target" "$build/corpus/$name" "$committed" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
    -artifact_prefix="$build/findings/$name-" -print_final_stats=1 >"$log" 2>&1; then
    grep -E 'stat::number_of_executed_units|stat::new_units_added' "$log"
  else
    status=1
    tail -n 40 "$log"
    echo "fuzz: $name FAILED; see $log and $build/findings" >&2
  fi
done
exit $status
