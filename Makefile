# make demo      compare attention variants on a small language model; writes runs/demo
# make test      run the tests
# make lint      ruff: rules and format
# make types     mypy
# make docs      build the documentation into build/docs
# make wheel     build a wheel for any Linux into dist, and test it where torch alone is installed
# make sanitize  test the kernels, built with AddressSanitizer and UndefinedBehaviorSanitizer
# make clean     remove caches, build outputs and the environment
#
# Each makes a virtual environment and installs into it what it needs, once.
#   PYTHON=python3.12    the interpreter to make the environment with
#   VENV=path            where the environment lies
#   DEMO="--preset ..."  further arguments for the comparison that `make demo` runs
#   TESTS="-k ..."       further arguments for pytest
#   WORKERS=2            processes that run tests at once

PYTHON ?= python3
VENV ?= .venv
DEMO ?=
TESTS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
# There from the first moment until an installation is whole: an environment in which it is found
# was interrupted, and is made afresh. The stamps .installed-* are written last.
INSTALLING := $(VENV)/.installing

.PHONY: demo test lint types docs wheel sanitize clean environment with-compare with-dev

demo: with-compare
	$(BIN)/neural-attention compare lm --out runs/demo $(DEMO)

test: with-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(TESTS)

lint: with-dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: with-dev
	$(BIN)/python -m mypy

# -W: a warning, such as a link that leads nowhere, is an error.
docs: with-dev
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs

# torch brings the OpenMP runtime, and two in one process would fight over the cores.
wheel: with-dev
	rm -rf build/wheel
	NEURAL_ATTENTION_REQUIRE_KERNELS=1 $(BIN)/python -m pip wheel . --no-deps --wheel-dir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --exclude libgomp.so.1 \
	  --wheel-dir build/wheel/repaired build/wheel/neural_attention-*.whl
	$(BIN)/python .ci/torch_only_environment.py build/wheel/environment
	build/wheel/environment/bin/python -m pip install --no-index build/wheel/repaired/*.whl
	env -i NO_COMPILER=1 PATH=build/wheel/environment/bin python .ci/check_torch_only.py
	mkdir -p dist && mv build/wheel/repaired/*.whl dist

# The kernels and what calls them, not torch's compiler: it would not end under these checks. The
# interpreter is not built with them, so the runtime libraries are loaded before it, and leaks of
# its own are not looked for.
SANITIZED := tests/native $(addprefix tests/operator/test_, values.py operator_masks.py poison.py \
  strides.py dropout.py lse.py decoding.py)
sanitize: with-dev
	cmake -S . -B build/sanitize -DNA_SANITIZE=ON
	cmake --build build/sanitize --parallel
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
	  $(BIN)/python .ci/test_with_kernels.py build/sanitize/kernels.so $(SANITIZED) -q -k native

# A second make, because the first has looked at the stamps before `environment` may remove them.
with-compare with-dev: with-%: environment
	@$(MAKE) --silent --no-print-directory $(VENV)/.installed-$*

# Older than these: the requirements or the kernels may have changed.
$(VENV)/.installed-%: pyproject.toml CMakeLists.txt $(wildcard csrc/*)
	@echo "Installing neural-attention[$*] into $(VENV)."
	@touch $(INSTALLING)
	$(BIN)/python -m pip install --editable '.[$*]'
	@touch $@
	@rm $(INSTALLING)

environment:
	@if [ ! -e $(INSTALLING) ] && $(BIN)/python -c '' 2>/dev/null; then \
	  $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exit 0; \
	  echo "The environment in $(VENV) has no pip or is older than Python 3.11. Remove it, or name another: make VENV=.venv-neural" >&2; exit 1; \
	fi; \
	command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -c 'import platform; print(platform.python_version())'). Name a newer one: make PYTHON=python3.12" >&2; exit 1; }; \
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the module venv or ensurepip. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	echo "Making a virtual environment in $(VENV)."; \
	rm -rf $(VENV) && mkdir -p $(VENV) && touch $(INSTALLING) && $(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
