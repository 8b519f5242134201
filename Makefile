# `make` lists the targets. Everything they need is installed by tools/setup.sh on first use; a second
# run reuses all of it. PRESET chooses the build of CMakePresets.json: make test PRESET=asan
PRESET ?= release
JOBS ?= $(shell nproc)
PREFIX ?= $(CURDIR)/build/install

BUILD := build/$(PRESET)
PYTHON := $(CURDIR)/.venv/bin/python
# More options of `cachedit bench attention`: make bench-attention BENCH_FLAGS='--case flux_1024'
BENCH_FLAGS ?=
DEMO_FLAGS := --steps 28 --seed 1 --width 128 --height 128
# How the cached half of the demo is drawn; see docs/caching.md.
DEMO_CACHE ?= --config-path models/emoji-flux/cache_28_steps.yaml
SOURCES = $(shell find src include apps examples tests bench -name '*.h' -o -name '*.cc')

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo test test-cpp test-python bench bench-attention bench-cache bench-step bench-parallel fuzz \
        format format-check layers tidy install clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what a build needs: Debian packages, and LibTorch in .venv
	@tools/setup.sh build

# The cache of an aborted first configuration would hide a changed CMAKE_PREFIX_PATH, hence build.ninja.
$(BUILD)/build.ninja: | setup
	cmake --preset $(PRESET) \
	  -DCMAKE_PREFIX_PATH="$$($(PYTHON) -W ignore -c 'import torch; print(torch.utils.cmake_prefix_path)')"

build: setup $(BUILD)/build.ninja ## Build the library, the command line, the examples and the tests
	cmake --build $(BUILD) --parallel $(JOBS)

demo: build ## Draw 8 pictures without and with block caching into demo/, and compare them
	$(BUILD)/apps/cli/cachedit generate --prompt-file examples/demo_prompts.txt --save-path demo/ \
	  --contact-sheet demo/contact_sheet.png $(DEMO_CACHE) --compare-cache $(DEMO_FLAGS)

test: test-cpp test-python ## Run every test (C++ suites, then Python parity tests)

test-cpp: build ## Run the C++ suites
	OMP_NUM_THREADS=1 CTEST_PARALLEL_LEVEL=$(JOBS) ctest --test-dir $(BUILD) --output-on-failure

test-python: build ## Run the Python tests, which compare with diffusers and transformers
	@tools/setup.sh test
	CACHEDIT_BUILD_DIR=$(CURDIR)/$(BUILD) $(PYTHON) -m pytest tests/python

bench: build ## Measure against diffusers; tables on stdout, JSON in build/bench/
	@tools/setup.sh test
	$(PYTHON) bench/run_all.py --build-dir $(BUILD)

bench-attention: build ## Measure the attention backends; table on stdout, JSON in build/bench/
	@mkdir -p build/bench
	$(BUILD)/apps/cli/cachedit bench attention --json build/bench/attention.json $(BENCH_FLAGS)

bench-cache: build ## Measure block caching against cache-dit; tables on stdout, JSON in build/bench/
	@tools/setup.sh test
	$(PYTHON) bench/cache.py --build-dir $(BUILD)

bench-step: build ## Measure a transformer step against diffusers; BENCH_FLAGS may name stable-diffusion.cpp
	@tools/setup.sh test
	$(PYTHON) bench/step.py --build-dir $(BUILD) $(BENCH_FLAGS)

bench-parallel: build ## Measure 2 ranks against one process, and the cost model; JSON in build/bench/
	@tools/setup.sh test
	$(PYTHON) bench/parallel.py --build-dir $(BUILD)

fuzz: ## Feed 200,000 damaged files to the readers under sanitizers
	$(MAKE) build/fuzz/build.ninja PRESET=fuzz
	cmake --build --preset fuzz --parallel $(JOBS)
	build/fuzz/tests/fuzz_readers

format: ## Format every C++ file in place
	@tools/setup.sh lint
	@clang-format -i $(SOURCES)

format-check: ## Fail if a C++ file is not formatted
	@tools/setup.sh lint
	@clang-format --dry-run -Werror $(SOURCES) && echo format: all files are formatted

layers: ## Check the arrows between rooms, file lengths and header rules
	@tools/setup.sh lint
	python3 tools/check_layers.py

tidy: ## Static analysis with clang-tidy
	@tools/setup.sh tidy
	PYTHON=$(PYTHON) tools/tidy.sh

install: build ## Install into PREFIX (default build/install)
	cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## Remove build results and demo pictures, keep what setup installed
	rm -rf build demo

distclean: clean ## Remove .venv as well
	rm -rf .venv
