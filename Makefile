# A fresh machine needs python >= 3.11 and make; everything else is installed here, into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARTS := wire worker broker cli

.PHONY: install sandbox demo test-fast test test-all test-sdist test-interop soak mutate check format docs site bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "replctl needs python >= 3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'  # knows dependency groups
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

# bubblewrap is the sandbox of sessions. Where we may, it is installed; else its absence is reported, and sessions are refused.
sandbox:
	@test -x /usr/bin/bwrap || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get install -y -q bubblewrap || { apt-get update -q && apt-get install -y -q bubblewrap; }; }; } \
	  || echo 'bubblewrap is missing: apt-get install bubblewrap, or dnf install bubblewrap (as root)' >&2

# The main job on real work: two agents, state, streaming, interrupt, timeout, crash, reset, limits.
demo: install sandbox
	$(BIN)/python -m docs.demo

# The tests, in tiers (tests/tiers.toml says what each leaves out). Bytecode is compiled first: the tests start hundreds
# of processes, and where PYTHONDONTWRITEBYTECODE is set each would compile all.
PYTEST = $(BIN)/python -m compileall -q $(PARTS) && $(BIN)/python -m pytest
PARALLEL := -n auto --no-loadscope-reorder

# Wire, core and client: seconds.
test-fast: install
	@$(PYTEST) -m 'not slow' tests/wire tests/broker tests/cli/test_client.py tests/cli/test_client_protocol.py

# What a change needs.
test: install sandbox
	@$(PYTEST) $(PARALLEL) -m 'not slow'

# Everything: what CI runs.
test-all: install sandbox
	@$(PYTEST) $(PARALLEL)

# Longer runs of the simulator, the leak checks, the fuzzing, the attacks by each kind of user, and ten users.
soak: install sandbox
	@REPLCTL_SOAK=1 $(PYTEST) -m soak tests/broker tests/e2e tests/conformance tests/sandbox

# A tier from an unpacked source distribution, with an environment of its own there: make test-sdist TIER=test-all.
TIER ?= test-fast
test-sdist: install
	rm -rf build/sdist
	$(BIN)/python -m hatchling build --target sdist --directory build/sdist
	tar -xzf build/sdist/replctl-*.tar.gz -C build/sdist
	$(MAKE) -C $$(echo build/sdist/replctl-*/) $(TIER)

# Against clients nobody here wrote. They are installed into .interop first (by npm, which needs node) and stay there;
# the tests themselves fetch nothing.
test-interop: install sandbox
	$(BIN)/python tests/interop/peers.py
	REPLCTL_INTEROP=1 $(BIN)/python -m pytest tests/interop -n 2

# Changes the core, one expression at a time, and lists the changes that no test notices: make mutate FILES=...
FILES ?= $(shell find broker/replbroker/core -name '*.py')
mutate: install
	$(BIN)/python tests/mutate.py $(FILES)

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

# docs/ as a site in build/site. Every link is checked; nothing is fetched once the packages are there.
site: install
	$(BIN)/pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: install
	$(BIN)/pip install --quiet --group bench
	$(PYTHON) -m venv .bench/pykernel
	.bench/pykernel/bin/pip install --quiet --disable-pip-version-check -r bench/pykernel.txt
	$(PYTHON) -m venv .bench/jupyter-mcp
	.bench/jupyter-mcp/bin/pip install --quiet --disable-pip-version-check -r bench/jupyter_mcp.txt
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .interop .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
