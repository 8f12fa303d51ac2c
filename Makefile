# gpt2fast: the commands of README, CONTRIBUTING and CI.  `make help` lists them.
#
# Everything happens in .venv, which the first command makes.  Other tools: cargo and a C compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py Cargo.toml Cargo.lock rust/Cargo.toml rust/build.rs gpt2fast/data/gpt2/merges.txt \
	$(shell find build_backend rust/src rust/tables pyx -type f \( -name '*.py' -o -name '*.rs' -o -name '*.c' -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' \))
CRATE := --workspace --locked

# cython-lint runs pycodestyle from the path.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick lint format package fuzz sanitize clean check-tools

help:  ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.installed  ## install into .venv and write a story with the model that ships inside
	@echo
	@$(BIN)/gpt2fast generate "Once upon a time" --tokens 120 --seed 7
	@echo
	@echo "The command gpt2fast is in $(VENV); to have it at hand:  . $(VENV)/bin/activate"

# Files of tests run side by side, each whole in one process; WORKERS=0 runs all in one.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-test  ## install what the tests need and run all of them
	@echo "== the Rust crate =="
	cargo test -q $(CRATE)
	@echo "== the Python package (the slow tests make full-size weights: some minutes) =="
	$(PYTEST)

.PHONY: bits bits-aarch64
bits: $(VENV)/.installed-test  ## check that gcc and clang give the same bits at every CPU level
	$(BIN)/python tests/tools/bits_compilers.py

bits-aarch64: $(VENV)/.installed-test  ## check the same on aarch64 under emulation (root, debootstrap, qemu-user-static)
	PYTHON=$(BIN)/python tests/tools/bits_aarch64.sh

.PHONY: cross
cross: $(VENV)/bin/python  ## compile the C half for Windows, macOS, musl and aarch64, and run it where Wine and QEMU are
	$(BIN)/python -m pip install --quiet ziglang
	$(BIN)/python tests/tools/cross_compile.py

test-quick: $(VENV)/.installed-test  ## the same without the slow tests
	cargo test -q $(CRATE)
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed-lint  ## formatting, linters, types, stubs, generated files
	cargo fmt --manifest-path rust/Cargo.toml --check
	cargo clippy -q $(CRATE) --all-targets -- -D warnings
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy -q $(CRATE) --features python -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/cython-lint pyx
	for system in linux darwin win32; do $(BIN)/mypy --platform $$system --cache-dir .mypy_cache/$$system || exit 1; done
	$(BIN)/stubtest gpt2fast._bpe gpt2fast.kernels --allowlist tests/tools/stubtest-allowlist.txt --ignore-unused-allowlist
	$(BIN)/python rust/tools/generate_unicode.py --check
	$(BIN)/python tests/tools/third_party.py --check

.PHONY: figures release-check
release-check: $(VENV)/bin/python  ## look whether a release could be cut: version, licences, vulnerabilities, equal builds
	$(BIN)/python tests/tools/release_check.py

figures: $(VENV)/bin/python  ## write the tables and charts of README and docs from benchmarks/results.json
	$(BIN)/python benchmarks/figures.py

.PHONY: bench-compare
bench-compare: $(VENV)/.installed  ## run the engine's benchmark here and at BASE=commit by turns; fail where 3 % are lost
	$(BIN)/python benchmarks/compare.py $(or $(BASE),$(error BASE is missing: make bench-compare BASE=commit))

format: $(VENV)/.installed-lint  ## rewrite the sources as `make lint` wants them
	cargo fmt --manifest-path rust/Cargo.toml
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: wheel docs
wheel: $(VENV)/bin/python  ## build the wheel of a release into dist/, use it in an empty environment at each CPU level
	$(BIN)/python tests/tools/check_wheel.py

docs: $(VENV)/.installed-docs  ## run every example of the pages, then build them into build/site, warnings are errors
	$(BIN)/python -m pytest -q tests/package/test_documentation.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tests/tools/check_site.py build/site

$(VENV)/.installed-docs: $(VENV)/.installed-test
	@echo "== installing what the pages need =="
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

package: $(VENV)/.installed-test  ## build sdist and wheel, install each in an empty environment, use it there
	$(BIN)/python tests/tools/check_package.py

# libFuzzer with coverage from the stable compiler; new inputs are kept under target/fuzz, findings appear there, too.
FUZZ_SECONDS ?= 60
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1 --cfg fuzzing
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
LIBFUZZER := -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 -max_total_time=$(FUZZ_SECONDS)

fuzz: $(VENV)/.installed-fuzz  ## look for inputs that break tokenizer, readers, loader or server, FUZZ_SECONDS=60 for each of seven targets
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo build -q --release --locked --manifest-path rust/fuzz/Cargo.toml \
		--target $(HOST) --target-dir target/fuzz
	@for target in added encode vocabulary; do \
		echo "== fuzz: $$target =="; mkdir -p target/fuzz/corpus/$$target; \
		target/fuzz/$(HOST)/release/$$target $(LIBFUZZER) -artifact_prefix=target/fuzz/$$target- \
			target/fuzz/corpus/$$target || exit 1; \
	done
	@for target in safetensors checkpoint compressed server; do \
		echo "== fuzz: $$target =="; mkdir -p target/fuzz/corpus/$$target; \
		$(BIN)/python tests/tools/fuzz_$$target.py $(LIBFUZZER) -artifact_prefix=target/fuzz/$$target- \
			target/fuzz/corpus/$$target || exit 1; \
	done

SOAK_MINUTES ?= 5
.PHONY: soak
soak: $(VENV)/.installed-test  ## everything at once for SOAK_MINUTES=5: right answers, and at the end all is back where it was
	$(BIN)/python tests/tools/soak.py --minutes $(SOAK_MINUTES)

# The package again, under build/sanitize, with its kernels watched: no access outside of memory, no undefined behaviour.
# The kernels for GPUs are watched as they run on the CPU, once for all levels.
SANITIZED := tests/compression/test_coding.py tests/kernels/test_kernels.py tests/kernels/test_cache.py tests/model/test_invariance.py tests/kernels/test_threads.py \
	tests/model/test_reference.py tests/kernels/test_sizes.py tests/checkpoint/test_hostile_checkpoints.py
sanitize: $(VENV)/.installed-test  ## run the kernels' tests at each CPU level under the sanitizers (four minutes to build)
	$(BIN)/python -m pip install --quiet "cython>=3.1,<4" "setuptools>=77"
	rm -rf build/sanitize && mkdir -p build/sanitize && cp -r gpt2fast build/sanitize/
	rm -f build/sanitize/gpt2fast/kernels/*.so
	GPT2FAST_SANITIZE=address,undefined $(BIN)/python setup.py --quiet build_ext \
		--build-temp build/sanitize/temp --build-lib build/sanitize
	@for level in $$($(BIN)/python -c 'from gpt2fast.kernels.cpu import *; print(*supported_levels())'); do \
		echo "== sanitize: $$level =="; \
		LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libstdc++.so)" \
			ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 GPT2FAST_CPU=$$level \
			PYTHONPATH=build/sanitize $(BIN)/pytest -q -m "not slow" $(SANITIZED) || exit 1; \
	done
	@echo "== sanitize: kernels.cu, choice.cu =="
	LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 GPT2FAST_SANITIZE=address,undefined \
		PYTHONPATH=build/sanitize $(BIN)/pytest -q tests/cuda/test_cuda_kernels.py

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist target rust/target gpt2fast/kernels/*.so gpt2fast/_bpe*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "gpt2fast needs Python 3.10 or newer; '$(PYTHON)' was not found (make PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "gpt2fast needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) -V) (make PYTHON=...)"; exit 1; }
	@command -v cargo >/dev/null || { echo "gpt2fast needs cargo to build its tokenizer, and it was not found: install Rust 1.89 or newer (https://rustup.rs)"; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "gpt2fast needs a C compiler to build its kernels, and '$${CC:-cc}' was not found: install one (Debian: apt install build-essential)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian: apt install python3-venv)"; exit 1; }

$(VENV)/bin/python: | check-tools
	@echo "== making $(VENV) =="
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	@echo "== installing gpt2fast into $(VENV) (compiles Rust and C: a minute or two) =="
	$(BIN)/python -m pip install -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "== installing what the tests need =="
	$(BIN)/python -m pip install --quiet --group test
	@touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed-test
	@echo "== installing what the fuzzers need =="
	$(BIN)/python -m pip install --quiet --group fuzz
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed-test
	@echo "== installing what the linters need =="
	$(BIN)/python -m pip install --quiet --group lint
	@touch $@
