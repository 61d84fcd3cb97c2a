# Two commands do everything: `make demo` and `make test`. Each sets up .venv first, once: the demo with what a user needs,
# the tests with the tools of development besides.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
UV_VERSION = 0.13.8
BIN = .venv/bin
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python
READY = .venv/.ready
READY_DEV = .venv/.ready-dev

.PHONY: demo test test-slow check bench gpu setup dev lock help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## the environment alone, with what a user needs

dev: $(READY_DEV)  ## the same with the tools of development

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "attend: Python 3.11, 3.12 or 3.13 is needed; name one with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up .venv (once; torch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(INSTALL) --compile-bytecode --require-hashes -r requirements.lock
	@$(INSTALL) --no-deps --build-constraints requirements-dev.lock -e .
	@touch $@
	@echo "ready: now run: source .venv/bin/activate"

$(READY_DEV): $(READY) requirements-dev.lock
	@$(INSTALL) --compile-bytecode --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(READY)  ## generated pictures -> a registered captioner, offline, in minutes
	@$(BIN)/attend demo

test: $(READY_DEV)  ## the tests, in minutes and without a network
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not realdata"

test-slow: $(READY_DEV)  ## the tests that take longer, and those on real photographs where their variables are set
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "slow or realdata"

check: $(READY_DEV)  ## lint, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(READY_DEV)  ## the speed benches: twenty minutes on an idle machine
	@for name in training_step beam_search extraction status; do \
	  echo "== bench/speed/$$name.py"; $(BIN)/python -m bench.speed.$$name || exit 1; done

# With the packages that the machine has, so that it runs where nothing can be installed.
PYTHON_HERE = $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
gpu:  ## the tests and the speed benches on a GPU
	@$(PYTHON_HERE) -m pytest -q -m gpu tests/models/test_device.py
	@for name in training_step beam_search extraction; do \
	  echo "== bench/speed/$$name.py"; $(PYTHON_HERE) -m bench.speed.$$name --device cuda || exit 1; done

# Three locks and not one with groups: uv.lock names the index that it was made from, and a constraint does not ask for a
# hash of every package. The others begin with the first's versions. The third is what the Containerfile installs.
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet
lock: $(READY)  ## resolve requirements.lock and requirements-dev.lock anew
	@$(COMPILE) --upgrade -o requirements.lock
	@$(COMPILE) --upgrade --group dev --constraints requirements.lock -o requirements-dev.lock
	@$(subst pyproject.toml,,$(COMPILE)) --group serve --constraints requirements.lock -o requirements-serve.lock
