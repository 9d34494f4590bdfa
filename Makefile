# moebox. `make help` explains itself.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help run test lint format bench examples clean

help: ## Show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The environment: made once, and again only when pyproject.toml changes.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "moebox needs Python 3.11 or newer"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@echo "installing moebox into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded]' --group dev
	@touch $@

run: $(READY) ## Show this machine and a plan for Kimi K2.6 on eight RTX PRO 6000
	@$(BIN)/moebox box
	@$(BIN)/moebox plan kimi-k2.6 --box 8x-rtx-pro-6000-server

test: lint ## Lint, types, import rule, and the whole suite
	@$(BIN)/python -m pytest

lint: $(READY) ## Style, types and the import rule
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## Put the code into the house's form
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format

bench: $(READY) ## The load generator against a server whose schedule is known, beside other clients
	@$(BIN)/python benchmarks/clients.py

clean: ## Remove the environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out
