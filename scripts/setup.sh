#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the packages that kvsieve is built from, on Debian 12 and its relatives. Only what is missing is installed,
# and when nothing is missing neither the network nor root is needed, so the Makefile runs this before every build.
#
#   scripts/setup.sh         what `make demo`, `make test` and `make bench` need
#   scripts/setup.sh --python  what `pip install .` needs, and the means to make a virtual environment
#   scripts/setup.sh --dev   all of it, clang (`make fuzz`, `make format`, `make lint`), Boost.Context (a test)
set -euo pipefail

packages=(
  make g++ cmake ninja-build
  libhwy-dev            # portable SIMD: the CPU backend
  libgtest-dev          # the test suite
  libbenchmark-dev libopenblas-dev  # bench: timing, and the machine's arithmetic limit
  libcli11-dev nlohmann-json3-dev libfmt-dev  # the kvsieve command and its case files
)
# Any Python from 3.10 on with its headers will do; these are Debian's, for a machine that has no other.
python_packages=()
if ! python3 -c 'import ensurepip, pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' 2>/dev/null; then
  python_packages=(python3 python3-dev python3-venv)
fi
dev_packages=(
  clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14
  libboost-context-dev  # emulated_test: CUDA threads as fibers
)

usage() { sed -n '4,9s/^# \{0,1\}//p' "$0"; }
say() { printf 'setup: %s\n' "$*"; }

case "${1:-}" in
  '') ;;
  --python) packages+=("${python_packages[@]}") ;;
  --dev) packages+=("${python_packages[@]}" "${dev_packages[@]}") ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]; }
is_available() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  say "skipped: this system has no apt-get. The build needs these Debian packages, or their like: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "nothing to install"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "failed: run this as root, or install sudo. Missing: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# apt ARGUMENT...: quiet unless it fails.
apt() {
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null
  then
    cat "$log" >&2
    say "failed: apt-get $*" >&2
    exit 1
  fi
}

say "updating the package lists"
apt update
wanted=()
for package in "${missing[@]}"; do
  if is_available "$package"; then
    wanted+=("$package")
  else
    # Other releases carry other versions of clang; the build itself then says what it cannot do without.
    say "skipped $package: this release ($(. /etc/os-release && echo "$PRETTY_NAME")) does not have it"
  fi
done
if [ ${#wanted[@]} -gt 0 ]; then
  say "installing ${wanted[*]}"
  apt install --no-install-recommends "${wanted[@]}"
fi
say "done"
