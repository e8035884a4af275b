# A fresh machine needs python >= 3.11 and make; everything else is installed here, into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARTS := wire worker broker cli

.PHONY: install demo test test-interop soak check format docs bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "replctl needs python >= 3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The main job on real work: two agents, state, streaming, interrupt, timeout, crash, reset, limits.
demo: install
	$(BIN)/python -m docs.demo

test: install
	$(BIN)/python -m pytest

# Against clients nobody here wrote; they are installed into .interop on first use (node and npm are needed for that).
test-interop: install
	REPLCTL_INTEROP=1 $(BIN)/python -m pytest tests/interop

# Longer runs of the simulator and the leak checks.
soak: install
	REPLCTL_SOAK=1 $(BIN)/python -m pytest tests/broker tests/e2e

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The tables in docs/ that are made from wire/.
docs: install
	$(BIN)/python -m docs.generate

bench: install
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .interop build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
