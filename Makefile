# `make install` and `make test` set everything up themselves; Python 3.11 or newer is all they need.

PYTHON ?= python3
# Tests start many processes: bytecode is written even where the environment says not to, or each would compile lm again.
export PYTHONDONTWRITEBYTECODE =
VENV := .venv
BIN := $(VENV)/bin

PARALLEL := -n auto --dist loadscope --no-loadscope-reorder

# What other processors would do, as far as this one can be told to do no more than they can.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe
PLAIN := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2

.PHONY: install bench test test-medium test-portable test-roundings test-newest test-gpu check format docs site pictures clean

install: $(VENV)/compiled

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(PARALLEL)

# Whole trainings, several processes and the like: seconds each.
test-medium: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(PARALLEL) -m 'medium and not slow'

test-portable: $(VENV)/installed-dev
	$(AVX2) $(BIN)/python -m pytest $(PARALLEL) -m 'not slow' tests/lm/kernels tests/lm/engine
	$(AVX2) $(BIN)/python -m pytest -m slow tests/system/test_portable.py
	$(PLAIN) $(BIN)/python -m pytest -m slow tests/system/test_portable.py
	$(BIN)/python -m tests.roundings

# All numerical tests under all roundings: most of an hour on two cores.
test-roundings: $(VENV)/installed-dev
	$(BIN)/python -m tests.roundings --all

# The newest torch, tokenizers, transformers and numpy, transformers 5.0, and the pins, each in an environment of its own:
# needs the network, gigabytes of disk and an hour on two cores.
test-newest:
	$(PYTHON) -m tests.newest

test-gpu: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m device --device cuda -rs

# Speed against other tools, as docs/benchmarks.md describes; CLAIM names a part of it. Twenty minutes on two cores.
bench: $(VENV)/installed-dev
	@$(BIN)/python -m tests.benchmarks $(CLAIM) $(if $(TINYSHAKESPEARE),--tinyshakespeare "$(TINYSHAKESPEARE)") $(BENCH_FLAGS)

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.vocabulary
	$(BIN)/python -m tests.size

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed-dev
	$(BIN)/python -m tests.documented_help settings > docs/reference/settings.md.new
	mv docs/reference/settings.md.new docs/reference/settings.md
	$(BIN)/python -m tests.documented_help server > docs/reference/server.md.new
	mv docs/reference/server.md.new docs/reference/server.md
	$(BIN)/python -m tests.documented_help > docs/commands.md.new
	mv docs/commands.md.new docs/commands.md

# The documentation as HTML: open build/site/index.html, which needs no server and no network.
site: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site . build/site

pictures: $(VENV)/installed-dev
	$(BIN)/python -m tests.pictures docs/pictures $(TINYSHAKESPEARE)

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# What is installed stands in these files: they are older than what they depend on when it must be done again.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lm needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable .
	touch $@

# An unsupported platform decodes with PyTorch.
$(VENV)/compiled: $(VENV)/installed
	-$(BIN)/lm compile
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[dev]'
	touch $@
