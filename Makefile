# Everything starts here. Each target does all of its own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src simulation handbook tests bench

# Compiled modules are kept, whatever the environment says: every node that a test starts would compile all of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up test quick check ferretdb fuzz storm sim bench bench-dump docs clean packages

help: ## List what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Headgate needs Python 3.11 or newer ($(PYTHON) is older)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/packages python3-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[embedded,dump,test]'
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # As pip would, but on all cores.
	@touch $@

packages: ## Install the system packages that some tests use (root only)
	@scripts/packages chromium-headless-shell || scripts/packages chromium || true
	@scripts/packages pgbouncer mariadb-server postgresql-15 redis-server rabbitmq-server mosquitto || true

up: $(VENV)/.ready ## Run a node with embedded PostgreSQL, the demo and the console
	$(BIN)/headgate up --demo

# Most tests wait for processes, so there are three workers for each of two cores. A file's tests stay together, because
# they share a node; files begin in the order that tests/conftest.py gives them, the longest first.
test: $(VENV)/.ready packages check ## Set up everything, then run all tests (some 20 minutes on two cores)
	scripts/tests

quick: $(VENV)/.ready check ## The inner loop, under 90 s: lint, types, the core, and one node that moves a record
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/core tests/acceptance/test_one_node.py

check: $(VENV)/.ready ## Lint and type-check
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_tidy.py

fuzz: $(VENV)/.ready ## Random connections to the doors for WebSockets, for ten minutes each (SEED=… repeats a run)
	HEADGATE_TEST_FUZZ_S=600 HEADGATE_TEST_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -s tests/web/test_socket_fuzz.py --timeout 1800

storm: $(VENV)/.ready ## Faults at random on three nodes and 60 datasources, all accounted for (SECONDS=3600, SEED=… repeats a plan)
	$(BIN)/python -m tests.storm --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) $(if $(STANDBY),--standby $(STANDBY)) $(ARGS)

sim: $(VENV)/.ready ## Simulate thousands of faulty runs (SEED=… for one of them, with its story)
ifdef SEED
	$(BIN)/python -m simulation --seed $(SEED) --trace
else
	HEADGATE_TEST_WALK_STATES=200000 $(BIN)/python -m pytest tests/core --timeout 900
	$(BIN)/python -m simulation --seeds 2000
endif

bench: $(VENV)/.ready ## Measure every figure that the docs state (about twenty minutes)
	@scripts/packages wrk
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m bench

bench-dump: $(VENV)/.ready ## Measure dumps against their peers, which it installs (ARGS='--rows 1000000 --runs 1')
	@scripts/packages mariadb-server pgloader postgresql-15 pgcopydb || true
	$(BIN)/python -m bench.dump $(ARGS)

docs: $(VENV)/.ready ## Write the generated reference pages, and the documents as a site (BASE=/docs/ if it is served there)
	$(BIN)/python -m headgate.testing.reference docs/reference
	$(BIN)/python -m handbook build/site $(if $(BASE),--base $(BASE))

ferretdb: ## Build FerretDB with go (some minutes), which the tests of the MongoDB connector then use as well
	@scripts/ferretdb

clean: ## Remove the environment and the caches (data in .headgate stays)
	rm -rf $(VENV) build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
