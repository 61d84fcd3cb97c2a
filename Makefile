# Two commands do everything: `make demo` and `make test`. Each sets up .venv first, once.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
UV_VERSION = 0.13.8
BIN = .venv/bin
READY = .venv/.ready

.PHONY: demo test test-slow check bench setup lock help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## the environment alone

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "attend: Python 3.11, 3.12 or 3.13 is needed; name one with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up .venv (once; torch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## generated pictures -> a registered captioner, offline, in minutes
	@$(BIN)/attend demo

test: $(READY)  ## the tests, in minutes and without a network
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not realdata"

test-slow: $(READY)  ## the tests that take longer, and those on real photographs where their variables are set
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "slow or realdata"

check: $(READY)  ## lint, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(READY)  ## the speed benches: half an hour on an idle machine; reading.py needs disk for more than its memory
	@for name in training_step beam_search extraction status reading threads; do \
	  echo "== bench/speed/$$name.py"; $(BIN)/python -m bench.speed.$$name || exit 1; done

lock: $(READY)  ## resolve requirements.lock anew
	@$(BIN)/uv pip compile pyproject.toml --group dev --universal --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --quiet --upgrade -o requirements.lock
