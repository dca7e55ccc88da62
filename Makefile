# `make demo` and `make test` set everything up themselves; Python 3.11 or newer is all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test check format docs clean

install: $(VENV)/installed

demo: install
	$(BIN)/lm demo -o runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed-dev
	$(BIN)/python -m tests.documented_help > docs/commands.md.new
	mv docs/commands.md.new docs/commands.md

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# What is installed stands in these files: they are older than what they depend on when it must be done again.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lm needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[dev]'
	touch $@
