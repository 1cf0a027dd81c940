# `make report` and `make test` set up everything they need in .venv. `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
# Test processes. 0 runs the tests in one process, which is what a debugger wants.
WORKERS ?= 2
MODEL ?= meta-llama/Meta-Llama-3-8B
ARGS ?= --gpu h100-sxm --batch 1 --prompt 1024 --output 128

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup report test lint types format docs site bench accuracy gate calibrations lock clean

help: ## What there is to make
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-8s %s\n", $$1, $$2 }'

# Runs again when the pinned packages or the package's own metadata change.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "hymell needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not installed): name another one, for example 'make PYTHON=python3.12 report'" >&2; \
	  exit 2; }
	@echo "Setting up $(VENV) (once, a few minutes)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -qq -r requirements.lock
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(INSTALLED) ## Everything the other targets need, in .venv

report: $(INSTALLED) ## The cost report of Llama 3 8B on an H100 (MODEL=..., ARGS='--gpu ...')
	@$(BIN)/hymell report $(MODEL) $(ARGS)

test: $(INSTALLED) ## Every test; WORKERS=0 for one process
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(INSTALLED) ## ruff, formatting, and the arrows between the parts of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED) ## mypy --strict on the package
	$(BIN)/mypy

format: $(INSTALLED) ## Format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## Renew the output that README and docs show
	$(BIN)/python tests/doc_blocks.py
	-$(BIN)/python tests/screenshot.py

site: $(INSTALLED) ## The documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(INSTALLED) ## The benchmarks: docs/speed.md in minutes, docs/coverage.md in an hour
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/trace_coverage.py

accuracy: $(INSTALLED) ## Held-out errors and pictures: docs/accuracy.md, hours at first
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy_level1.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/blocks.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sweet_spot.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/end_to_end.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/attention_variants.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/eager.py --ship
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serving.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/energy.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/intervals.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/own_runs.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sets.py
	$(BIN)/python benchmarks/accuracy_join.py

gate: $(INSTALLED) ## No estimator got worse on a fixed subset, two minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy_gate.py

calibrations: $(INSTALLED) ## Refit every shipped calibration, hours
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/calibrations.py

lock: ## Pin requirements.lock anew from pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet '.[dev]' hatchling editables
	{ sed -n '/^#/p' requirements.lock; \
	  $(VENV)-lock/bin/python -m pip freeze --all --exclude pip --exclude hymell | sed 's/+cpu$$//'; \
	} > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf $(VENV)-lock

clean: ## Remove .venv and what the tools cached here
	rm -rf $(VENV) $(VENV)-lock .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
