# Everything a newcomer, a developer and CI run. Each target installs what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
ENGINE_VENV := .venv-engine
PYTHON := $(VENV)/bin/python
SEED ?= 0
KEEP ?=
ENGINE ?= cpu

.PHONY: help install demo test check lint types imports architecture clients lock docs bench-gateway bench-gateway-quick bench-hotswap bench-hotswap-quick bench-fleet bench-fleet-quick bench-speculation bench-speculation-quick bench-parity bench-parity-quick bench-learner bench-learner-quick bench-learning bench-learning-quick bench-live bench-live-quick bench-release bench-release-quick clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

install: ## Install everything into .venv and .venv-engine
	@scripts/install.sh $(ENGINE)

demo: install ## Serve, record, judge, train, swap, compare, promote: the whole loop, watched
	@$(VENV)/bin/hone demo --seed $(SEED) $(if $(KEEP),--keep)

test: check ## All checks and all tests
	@scripts/install.sh clients
	@$(PYTHON) -m pytest -q

check: install lint types imports architecture ## Style, types, import directions, documents

lint:
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types:
	@$(VENV)/bin/mypy core store serving gateway sandbox learner hone bench

imports:
	@$(VENV)/bin/lint-imports

architecture:
	@$(PYTHON) -m pytest -q tests/architecture

clients: install ## Run other people's clients on a real stack; writes bench/results/clients.json and docs/clients.md
	@scripts/install.sh clients
	@CLIENT_MATRIX_RESULTS=bench/results/clients.json $(PYTHON) -m pytest -q tests/e2e/test_clients.py
	@$(PYTHON) -m tests.client_matrix

lock: ## Resolve the locked requirements again (needs uv)
	@scripts/lock.sh

docs: install ## Write the generated documents again
	@$(VENV)/bin/hone config reference > docs/configuration.md

bench-gateway: install ## Measure the gateway beside others (20 minutes); writes bench/results and docs/benchmarks.md
	@scripts/install.sh bench
	@$(PYTHON) -m bench.gateway.run

bench-gateway-quick: install ## Try every part of that benchmark in short windows; writes nothing
	@scripts/install.sh bench
	@$(PYTHON) -m bench.gateway.run --quick

bench-hotswap: install ## Swap versions under 16 streams (20 minutes); writes bench/results and docs/benchmarks.md
	@$(PYTHON) -m bench.hotswap.run

bench-hotswap-quick: install ## Try every part of that benchmark with a few swaps; writes nothing
	@$(PYTHON) -m bench.hotswap.run --quick

bench-fleet: install ## Three replicas: routing, and one killed in a swap (10 minutes); writes the same two
	@$(PYTHON) -m bench.fleet.run

bench-fleet-quick: install ## Try every part of that benchmark shortly; writes nothing
	@$(PYTHON) -m bench.fleet.run --quick

bench-speculation: install ## Measure speculation against standard decoding (25 minutes); writes bench/results
	@$(PYTHON) -m bench.speculation.run

bench-speculation-quick: install ## Try every part of that benchmark with a few prompts; writes nothing
	@$(PYTHON) -m bench.speculation.run --quick

bench-parity: install ## Compare gradients of all layouts (5 minutes); writes bench/results and docs/benchmarks.md
	@$(PYTHON) -m bench.parity.run

bench-parity-quick: install ## Compare three of them; writes nothing
	@$(PYTHON) -m bench.parity.run --quick

bench-learner: install ## Train beside TRL (30 minutes); writes bench/results and docs/benchmarks.md
	@scripts/install.sh learner-bench
	@$(PYTHON) -m bench.learner.run

bench-learner-quick: install ## Try every part of that benchmark shortly; writes nothing
	@scripts/install.sh learner-bench
	@$(PYTHON) -m bench.learner.run --quick

bench-learning: install ## Train four Domains with controls (hours; DOMAIN=, SEED= for one); writes bench/results
	@$(PYTHON) -m bench.learning.run $(if $(DOMAIN),--domain $(DOMAIN)) $(if $(filter command line,$(origin SEED)),--seed $(SEED))

bench-learning-quick: install ## Try one Domain of that shortly; writes nothing
	@$(PYTHON) -m bench.learning.run --quick

bench-live: install ## Learn from 200 simulated users (10 minutes); writes bench/results and docs/benchmarks.md
	@$(PYTHON) -m bench.live.run

bench-live-quick: install ## Try every part of that benchmark with a few users; writes nothing
	@$(PYTHON) -m bench.live.run --quick

bench-release: install ## Simulate 5,500 candidates, run three real ones (15 minutes); writes bench/results
	@$(PYTHON) -m bench.release.run

bench-release-quick: install ## Try every part of that benchmark shortly; writes nothing
	@$(PYTHON) -m bench.release.run --quick

clean: ## Remove environments, caches and local data
	rm -rf $(VENV) $(ENGINE_VENV) .venv-bench .venv-learner-bench .venv-clients tests/clients/node/node_modules bench/.build .hone runs .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build
