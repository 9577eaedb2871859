# Everything a contributor types. `make` alone lists the targets; each sets up .venv first if it must.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
READY := $(VENV)/.ready
# Test processes; each starts the database servers that its tests ask for.
JOBS ?= auto
# Further arguments for the tool behind a target: make test ARGS="-k refund".
ARGS ?=

.PHONY: help setup run demo test lint format types layers docs-check bench failpoints mutants crds lock images check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with the locked dependencies (needs Python 3.11 or newer)

# Again only when what is locked or declared has changed.
$(READY): requirements.txt pyproject.toml scripts/setup
	@scripts/setup $(VENV)

run: $(READY) ## Refund an order once, with a payment provider on this machine, and show what happened
	@$(PY) examples/refund/run.py $(ARGS)

demo: $(READY) ## The same refund with its worker killed in the middle, once per delivery mode
	@$(PY) examples/refund/demo.py $(ARGS)

test: $(READY) ## Run all tests, with real Postgres, Valkey and Redis servers
	@$(PY) -m pytest -n $(JOBS) --maxprocesses 4 $(ARGS)

lint: $(READY) ## Check code style and banned calls
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY) ## Put the code into the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY) ## Check types (mypy --strict on code, tests and examples)
	@$(BIN)/mypy $(ARGS)

layers: $(READY) ## Check which module may import which
	@$(BIN)/lint-imports --no-logo

docs-check: $(READY) ## Run every code block of the README and the documentation
	@$(PY) -m pytest tests/docs $(ARGS)

bench: $(READY) ## Print the figures of this machine (nothing passes or fails by them)
	@$(PY) bench/run.py $(ARGS)

failpoints: $(READY) ## Fail, delay, freeze and kill a worker at every step, on every store (minutes)
	@AAA_FAILPOINTS=all $(PY) -m pytest tests/failpoints $(ARGS)

mutants: $(READY) ## Break each guarantee on purpose and demand that its tests notice
	@$(PY) tests/mutants/run.py $(ARGS)

crds: $(READY) ## Write crds/, and the chart's copy of them, from the models in aaa.manifest
	@PYTHONPATH=runtime:operator $(PY) -m aaa_operator.crds crds
	@PYTHONPATH=runtime:operator $(PY) -m aaa_operator.crds charts/aaa/files/crds

COMPILE := $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	--python-version 3.11 -q

# requirements/ holds what each image needs, in the versions of requirements.txt.
lock: $(READY) ## Resolve the dependencies again and write requirements.txt and requirements/
	@$(COMPILE) --all-extras --group dev -o requirements.txt $(ARGS) pyproject.toml
	@$(COMPILE) -c requirements.txt --extra redis --extra postgres --extra llm --extra otel \
		-o requirements/worker.txt pyproject.toml
	@$(COMPILE) -c requirements.txt --extra operator --extra otel -o requirements/operator.txt \
		pyproject.toml
	@echo hatchling | $(COMPILE) -c requirements.txt -o requirements/build.txt -

images: ## Build the worker's and the operator's image (needs Docker or buildah)
	@scripts/images $(ARGS)

check: lint types layers test test-chart mutants e2e-smoke ## All that .ci/run demands

clean: ## Remove .venv, caches and the local store
	@rm -rf $(VENV) .aaa dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- The end-to-end tests' Kubernetes cluster: e2e/README.md ------------------------------------
.PHONY: cluster-up cluster-down e2e-cluster e2e-smoke e2e test-chart

CLUSTER := PYTHONPATH=e2e $(PY) -m cluster

cluster-up: $(READY) ## Start a Kubernetes cluster on this machine (needs Docker, or root on Debian)
	@$(CLUSTER) up

cluster-down: $(READY) ## Take that cluster down, and check that nothing of it is left
	@$(CLUSTER) down

test-chart: $(READY) ## Test the chart with Helm 3 and 4 (builds both the first time; needs Go)
	@$(PY) -m pytest e2e/chart --timeout 600 $(ARGS)

e2e-cluster: $(READY) ## Test the cluster itself: its pods, its faults, and that it leaves no trace
	@$(PY) -m pytest e2e/tests/test_cluster.py e2e/tests/test_kind.py \
		e2e/tests/test_traces.py --timeout 900 $(ARGS)

e2e-smoke: $(READY) ## Install the chart in that cluster; see a run, a policy and a frozen pod through; uninstall
	@$(PY) -m pytest e2e/tests -m smoke --timeout 600 $(ARGS)

e2e: $(READY) ## Run every test that needs that cluster
	@$(PY) -m pytest e2e/tests --timeout 900 $(ARGS)
