# The commands one needs. Each does its own set-up; `make help` lists them.
#
# Variables: CMAKE_ARGS (more arguments to configure with), JOBS, PREFIX, BENCH_ARGS, PYTEST_ARGS, FUZZ_SECONDS.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
# Instrumented code is 3 to 20 times slower, so the random tests take a sample.
SANITIZE_CONFIGS ?= 300
# The tests in which several threads use the library at once.
CONCURRENT_TESTS = concurrency_test thread_pool_test

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-python build demo test bench sanitize asan tsan fuzz format lint python-test python-lint \
  install clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' $(MAKEFILE_LIST)

setup:
	@scripts/setup.sh
setup-dev:
	@scripts/setup.sh --dev
setup-python:
	@scripts/setup.sh --python

# What demo and test build: the CUDA backend too where there is a GPU to run it, and nvcc 13 or later to compile it.
HAS_NVCC = $(shell nvcc --version 2>/dev/null | grep -E 'release (1[3-9]|[2-9][0-9])\.')
HAS_GPU = $(shell nvidia-smi -L 2>/dev/null | grep '^GPU ')
BEST_PRESET := $(if $(and $(HAS_NVCC),$(HAS_GPU)),cuda,release)

# configure_and_build(preset, targets)
define configure_and_build
cmake --preset $(1) $(CMAKE_ARGS) --log-level=WARNING
cmake --build --preset $(1) --parallel $(JOBS) $(if $(2),--target $(2))
endef

build: setup ## Build the library and the kvsieve command (build/release)
	$(call configure_and_build,release,kvsieve kvsieve_tool)

demo: setup ## Build, then run MSA and QSA at the models' shapes, checked and timed, on a GPU where nvcc and one are
	$(call configure_and_build,$(BEST_PRESET),kvsieve kvsieve_tool)
	build/$(BEST_PRESET)/tools/kvsieve demo

test: setup ## Build, then run the whole test suite: the CPU's, and the GPU's where nvcc and one are
	$(call configure_and_build,$(BEST_PRESET))
	ctest --preset $(BEST_PRESET) --parallel $(JOBS)

bench: build ## Time every row of the CPU suite against this machine's own limits
	build/release/tools/kvsieve bench --suite cpu $(BENCH_ARGS)

sanitize: asan tsan ## The suite under ASan and UBSan, the concurrent tests under TSan
asan: setup
	$(call configure_and_build,asan)
	KVSIEVE_RANDOM_CONFIGS=$(SANITIZE_CONFIGS) ctest --preset asan --parallel $(JOBS)
tsan: setup
	$(call configure_and_build,tsan,$(CONCURRENT_TESTS))
	KVSIEVE_RANDOM_CONFIGS=$(SANITIZE_CONFIGS) ctest --preset tsan --tests-regex '^($(subst $() ,|,$(strip $(CONCURRENT_TESTS))))$$'

fuzz: setup-dev ## Fuzz the case-file reader and the tensor checks for FUZZ_SECONDS each
	$(call configure_and_build,fuzz)
	scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

format: setup-dev ## Format the sources in place
	scripts/lint.sh format

lint: setup-dev ## Check the formatting, and run clang-tidy over the sources
	scripts/lint.sh check

python-test: setup-python ## Build the Python package in a virtual environment of its own, and run its tests
	JOBS=$(JOBS) scripts/python_test.sh test $(PYTEST_ARGS)

python-lint: setup-python ## Check the format, the style and the types of the Python sources
	scripts/python_test.sh lint

install: setup ## Install into PREFIX (/usr/local)
	$(call configure_and_build,release,kvsieve kvsieve_tool)
	cmake --install build/release --prefix $(PREFIX)

clean: ## Remove what was built
	rm -rf build
