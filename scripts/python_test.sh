#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   scripts/python_test.sh test [PYTEST ARGUMENT...]  installs the package into build/python/venv and runs its tests
#   scripts/python_test.sh lint                       ruff and mypy over the Python sources
#
# PYTHON names the interpreter (python3), JOBS the parallel compilations. torch is tested when the environment has it:
# build/python/venv/bin/pip install torch, then again.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/python/venv

if [ ! -x $venv/bin/python ]; then
  mkdir -p build/python
  "${PYTHON:-python3}" -m venv $venv
  $venv/bin/pip install --quiet --disable-pip-version-check pip==26.3
fi

case "${1:-}" in
  test)
    shift
    $venv/bin/pip install --quiet --group test
    # Instances of the package that were installed before have the same version, so it is made to replace them.
    CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} $venv/bin/pip install --quiet --force-reinstall --no-deps .
    command=build/release/tools/kvsieve
    if [ -x $command ]; then export KVSIEVE_COMMAND=${KVSIEVE_COMMAND:-$PWD/$command}; fi
    $venv/bin/python -m pytest -q -rs "$@"
    ;;
  lint)
    $venv/bin/pip install --quiet --group lint
    $venv/bin/ruff format --check
    $venv/bin/ruff check
    MYPYPATH=python $venv/bin/mypy
    ;;
  *)
    sed -n '4,5s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
