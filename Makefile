# Every target prepares what it needs inside the checkout; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# In a terminal pip shows how far it is; elsewhere only what goes wrong.
QUIET := $(shell test -t 2 || echo --quiet)
WORKERS ?= 3
LIVES ?= 50

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev up test test-long explore e2e bench-real check format bench soak chaos soak-30d nightly fuzz mutate release browser chart workflows docs sbom audit manifests vectors lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "karpool needs Python 3.11 or newer; set PYTHON=python3.11 (found: $$($(PYTHON) --version 2>&1))" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "could not create $(VENV); on Debian install the package python3-venv" >&2; exit 1; }

# Bytecode is written when a module is first imported: most modules of the larger packages never are.
install = $(PIP) install $(QUIET) --no-compile --require-hashes -r $(1) && $(PIP) install $(QUIET) --no-deps --no-build-isolation -e .

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "setup: installing the runtime dependencies into $(VENV)" >&2
	@$(call install,$<)
	@touch $@

# The development lock contains the runtime lock, so one run of pip installs both.
$(VENV)/.dev: requirements/dev.txt requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "setup: installing the runtime and development dependencies into $(VENV)" >&2
	@$(call install,$<)
	@touch $(VENV)/.runtime $@

setup: $(VENV)/.runtime ## prepare .venv with what running needs
setup-dev: $(VENV)/.dev

up: setup ## start a fleet with all controllers and take the tour (ends by itself without a terminal)
	@$(BIN)/karpool up

test: setup-dev ## run the tests that take no longer than a few seconds each
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not long"

test-long: setup-dev ## run the other tests: crashes at every write, whole days, real processes
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --timeout 300 -m long

explore: setup-dev ## run the tests with new random examples in every property
	@KARPOOL_EXPLORE=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

e2e: setup-dev ## run against the real Kubernetes, Karpenter and Karmada (needs Go; builds them once)
	@$(BIN)/python -m e2e.peers >/dev/null
	@$(BIN)/python -m pytest -q e2e

bench-real: setup-dev ## measure Go's programs and Karpool's side by side (needs Go): make bench-real [ARGS=--small]
	@$(BIN)/python -m e2e.bench_real $(ARGS)

check: setup-dev ## lint, formatting, strict types, import layers, names and reachability
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_house.py

format: setup-dev ## format the code
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: setup-dev ## run the benchmarks: a table, and JSON in bench/results/
	@$(BIN)/python -m bench $(BENCH)

soak: setup-dev ## random lives of embedded clusters, long: make soak [LIVES=50]
	@KARPOOL_SOAK=$(LIVES) $(BIN)/python -m pytest -q -n $(WORKERS) tests/fleet/test_random_runs_keep_the_invariants.py

chaos: setup-dev ## the fault campaign, long: make chaos [LIVES=50] [FROM=0]
	@KARPOOL_CHAOS=$(LIVES) KARPOOL_CHAOS_FROM=$(or $(FROM),0) $(BIN)/python -m pytest -q -n $(WORKERS) tests/chaos
	@if command -v go >/dev/null 2>&1; then KARPOOL_CHAOS_ROUNDS=5 $(BIN)/python -m pytest -q e2e/test_processes_outlive_etcd.py; else echo "chaos: the real API server was left out, there is no Go tool chain"; fi

shared-plan-30d: setup-dev ## thirty simulated days under one savings plan, known and unknown: a picture, about 10 minutes
	@$(BIN)/karpool simulate shared-plan -o svg > docs/pictures/shared-plan.svg

soak-30d: setup-dev ## thirty simulated days with every controller, about 17 minutes
	@$(BIN)/python -m tests.chaos.soak 30

nightly: setup-dev ## 2,000 random histories of GPU scale-ups
	@KARPOOL_EXPLORE=1 KARPOOL_HISTORIES=2000 $(BIN)/python -m pytest -q tests/gpu/test_scale_up_survives_anything.py

fuzz: setup-dev ## look for hostile inputs: make fuzz [SECONDS=60], for each reader
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

mutate: setup-dev ## plant mistakes in decision code: make mutate [PATHS=...] [SAMPLE=150] [SEED=1]
	@$(BIN)/python -m tools.mutate $(PATHS) --sample $(or $(SAMPLE),150) --seed $(or $(SEED),1)

release: setup-dev ## build everything that is published into dist/ and verify it: make release [TAG=v0.1.0]
	@$(BIN)/python tools/release.py $(if $(TAG),--tag "$(TAG)")

browser: setup-dev ## the tests that drive Chromium, with pictures in build/screenshots
	@KARPOOL_SCREENSHOTS="$${KARPOOL_SCREENSHOTS:-build/screenshots}" $(BIN)/python -m pytest -q tests/dashboard

chart: setup-dev ## the tests of the chart, manifests, roles and alerts
	@$(BIN)/python -m pytest -q -n $(WORKERS) tests/deploy

docs: ## build the documentation as a site that needs no network: build/site/index.html
	@test -x build/docs-venv/bin/mkdocs || { $(PYTHON) -m venv build/docs-venv && build/docs-venv/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/docs.txt; }
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --quiet --strict

workflows: ## lint the workflows (needs Go, which fetches actionlint)
	@GOFLAGS= go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 .github/workflows/*.yaml

sbom: setup-dev ## print a bill of materials (CycloneDX)
	@$(BIN)/python tools/sbom.py

audit: ## ask a service for known vulnerabilities of dependencies (needs pip-audit)
	@command -v pip-audit >/dev/null || { echo "make audit needs pip-audit: pipx install pip-audit" >&2; exit 1; }
	pip-audit --strict --disable-pip --require-hashes -r requirements/runtime.txt

manifests: setup-dev ## plain manifests and dashboards from their sources (needs helm)
	@$(BIN)/python tools/build_manifests.py
	@$(BIN)/python tools/build_dashboards.py

vectors: setup-dev ## run golden vectors: make vectors VECTORS=DIR [KINDS=a,b]
	@test -n "$(VECTORS)" || { echo 'usage: make vectors VECTORS=DIR [KINDS=a,b]' >&2; exit 2; }
	@$(BIN)/python -m tests.vectors "$(VECTORS)" --kinds "$(KINDS)"

lock: ## refresh the lock files (needs uv)
	uv pip compile pyproject.toml --group build -p 3.11 --universal --generate-hashes --no-emit-index-url --no-header -q -o requirements/runtime.txt
	uv pip compile pyproject.toml --group dev -p 3.11 --universal --generate-hashes --no-emit-index-url --no-header -q -c requirements/runtime.txt -o requirements/dev.txt
	uv pip compile --group docs -p 3.11 --universal --generate-hashes --no-emit-index-url --no-header -q -o requirements/docs.txt

clean: ## remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .mutation bench/results
