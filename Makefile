# The one door to the project: people and continuous integration call the same targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROWS ?= 25000
MINUTES ?= 10
SEED ?= 0
SECONDS_DOWN ?= 300
HALVES ?= 100000
KILLS ?= 40
RUNS ?= 20
WORKERS ?= 5
OLDEST := $(addprefix tests/integration/,checker/test_fence.py relay/test_foreign_table.py relay/test_kill_relay.py relay/test_table_kills.py operator/test_doctor_tables.py)
COMPILE = $(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11
NOT_PINNED := --no-emit-package kafka-transactional-outbox --no-emit-package kafka-transactional-outbox-services
BENCH_MODE := $(if $(FULL),full,$(if $(QUICK),quick,ordinary))
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Tests start hundreds of Python processes; without cached byte code each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-report unit spark test test-all test-long test-sqlalchemy20 test-containers mutants torture torture-document outage rolling land-torture land-torture-document bench bench-check bench-library bench-memory bench-relay bench-checker bench-spark bench-peers lint format docs coverage stack tables lock lock-jars dist hooks clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: requirements.txt requirements-build.txt pyproject.toml services/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes --no-deps -r requirements-build.txt
	$(BIN)/pip install -q --require-hashes --no-deps --no-build-isolation -r requirements.txt
	$(BIN)/pip install -q --no-build-isolation --no-deps -e . -e services
	@touch $@

setup: $(VENV)/.installed ## Install everything into .venv, exact versions with hashes, and fetch the jars
	$(BIN)/outbox stack fetch

demo: setup ## Run the flights demo, audit it and reconcile it (ROWS=25000, or ROWS=all; SECURE=1: TLS, and a login with its own rights for each role)
	$(BIN)/python -m examples.flights --rows $(ROWS) $(if $(filter 1,$(SECURE)),--secure)

demo-report: setup ## Keep the audit's report of the last demo, and its charts, in docs/audit
	$(BIN)/python -m examples.flights keep

unit: $(VENV)/.installed ## Run the tests that need no process, socket or JVM (under a minute on 2 cores)
	OUTBOX_TEST_EXAMPLES_PERCENT=10 $(BIN)/pytest tests/unit -n 2

spark: setup ## Run the tests that need a JVM and no servers
	$(BIN)/pytest tests/spark

# Not reordered: xdist would begin with the files of many tests, and end with the long ones, of which there are few.
test: setup ## Run the proofs of all promises, what needs no servers, and a test of each other file (under 8 minutes on 2 cores)
	OUTBOX_TEST_EXAMPLES_PERCENT=10 $(BIN)/pytest -m "not long" --proofs -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: setup ## Run all tests but the long ones, as CI does (20 minutes on 2 cores)
	OUTBOX_TEST_EXAMPLES_PERCENT=10 $(BIN)/pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-long: setup ## Run the long tests, and all random examples of the unit tests (over an hour)
	$(BIN)/pytest tests/unit -n 2
	$(BIN)/pytest -m long -n 3 --dist loadfile --no-loadscope-reorder
	OUTBOX_TEST_STACK=oldest $(BIN)/pytest $(OLDEST) -n 3 --dist loadfile --no-loadscope-reorder

test-sqlalchemy20: setup ## Run the session tests on SQLAlchemy 2.0
	$(BIN)/pip install -q --require-hashes --no-deps --upgrade --target build/sqlalchemy20 -r requirements-sqlalchemy20.txt
	PYTHONPATH=build/sqlalchemy20 $(BIN)/pytest -m "not long" tests/integration/library/test_publish.py tests/integration/library/test_session.py tests/integration/library/test_seal.py tests/integration/library/test_session_more.py tests/integration/library/test_session_routing.py tests/integration/library/test_eager.py tests/integration/library/test_async.py tests/integration/library/test_cancellation.py tests/integration/library/test_outbox_contract.py tests/integration/library/test_table_mode.py tests/unit/outbox/test_in_memory.py

test-containers: setup ## Build local images, run the integration suite and the compose file on them (needs root on Debian)
	$(BIN)/python -m tests.containers

mutants: setup ## Take each rule of docs/reliability.md out, and see its tests fail
	$(BIN)/python -m tests.mutants

torture: setup ## Kill, stop and cut everything at random for MINUTES=10, and check the invariants (SEED=7; HOSTILE=1: beside a hostile channel)
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED)$(if $(HOSTILE), --hostile)

torture-document: setup ## Make docs/torture.md from the reports that are kept (KEEP=build/torture/report.json keeps one)
	$(BIN)/python -m tests.torture.document $(if $(KEEP),--keep $(KEEP))

outage: setup ## Let a database be down for SECONDS_DOWN=300 while HALVES=100000 wait for it, and see all decided afterwards
	$(BIN)/python -m tests.torture.outage --seconds $(SECONDS_DOWN) --halves $(HALVES)

rolling: setup ## Restart three brokers one after the other, RUNS=20 times beside two endless loops, and keep the pauses in build/rolling.txt
	mkdir -p build
	OUTBOX_TEST_RUNS=$(RUNS) OUTBOX_TEST_LOOPS=2 OUTBOX_TEST_PAUSES=$(CURDIR)/build/rolling.txt $(BIN)/pytest tests/integration/relay/test_rolling_restart.py -k rolling

land-torture: setup ## Kill the driver of `outbox land` KILLS=40 times, and check that each record landed once (SEED=7)
	$(BIN)/python -m tests.land_torture --kills $(KILLS) --seed $(SEED)

land-torture-document: setup ## Write its table in docs/spark/land.md from the reports that are kept (KEEP=build/land-torture/report.json keeps one)
	$(BIN)/python -m tests.land_torture.document $(if $(KEEP),--keep $(KEEP))

bench: setup ## Run all benchmarks beside their peers, and make docs/performance.md (80 minutes; QUICK=1: 5 minutes; FULL=1: hours)
	-$(BIN)/python -m benchmarks.peers.jars
	$(BIN)/python -m benchmarks.whole --mode $(BENCH_MODE)
	$(BIN)/python -m benchmarks.report

bench-check: setup ## Run the benchmarks again, and fail if a ratio is more than 20 % worse than the kept one (RUN=file: only compare)
	$(if $(RUN),,$(BIN)/python -m benchmarks.whole --like benchmarks/results/latest.json --output build/bench/latest.json)
	$(BIN)/python -m benchmarks.whole.check --run $(or $(RUN),build/bench/latest.json)

bench-library: setup ## Measure what the library costs an application, and make docs/performance.md (BENCH="--part throughput")
	$(BIN)/python -m benchmarks.library $(BENCH)
	$(BIN)/python -m benchmarks.report

bench-memory: setup ## Run a million transactions through one Outbox, and make docs/performance.md (about half an hour)
	$(BIN)/python -m benchmarks.library --part memory --transactions 1000000 --output benchmarks/results/memory.json
	$(BIN)/python -m benchmarks.report

bench-relay: setup ## Measure how fast the relay is, and make docs/performance.md (BENCH="--part drain")
	$(BIN)/python -m benchmarks.relay $(BENCH)
	$(BIN)/python -m benchmarks.report

bench-checker: setup ## Measure how fast the checker is, and make docs/performance.md (BENCH="--part fence")
	$(BIN)/python -m benchmarks.checker $(BENCH)
	$(BIN)/python -m benchmarks.report

bench-spark: setup ## Measure how fast topics are landed and windows audited, and make docs/performance.md (BENCH="--part land")
	$(BIN)/python -m benchmarks.spark $(BENCH)
	$(BIN)/python -m benchmarks.report

bench-peers: setup ## Measure the peers and the project beside them, and make docs/performance.md (BENCH="--part latency")
	$(BIN)/python -m benchmarks.peers $(BENCH)
	$(BIN)/python -m benchmarks.report

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format .

stack: setup ## Start Kafka and Postgres, print how to connect, stop with Ctrl-C
	$(BIN)/outbox stack up

docs: $(VENV)/.installed ## Build the site of the documents into build/site; a broken link fails
	$(BIN)/mkdocs build --strict -q

coverage: setup ## Run unit and Spark tests, and list the lines of each module that none of them runs
	$(BIN)/pytest tests/unit tests/process tests/spark --cov=outbox --cov=relay --cov=checker --cov=spark_jobs --cov=stack --cov-report=term-missing:skip-covered --cov-report=html:build/coverage

tables: setup ## Write the tables of the documents that the code gives
	$(BIN)/python -m tests.documents

lock: setup ## Pin every dependency anew
	$(COMPILE) requirements-build.in -o requirements-build.txt
	$(COMPILE) --all-extras --group dev pyproject.toml services/pyproject.toml requirements.in requirements-build.in $(NOT_PINNED) -o requirements.txt
	$(COMPILE) --extra relay --extra checker -c requirements.txt pyproject.toml $(NOT_PINNED) -o requirements-services.txt
	$(COMPILE) requirements-sqlalchemy20.in -o requirements-sqlalchemy20.txt

lock-jars: setup ## Resolve the jars of every lock file again
	$(BIN)/python -m benchmarks.peers.lock_jars tests/support/oldest.lock tests/support/axe.lock

dist: $(VENV)/.installed ## Build wheels and source archives of both distributions, and their bill of materials, into dist/
	rm -rf dist build/sbom
	$(BIN)/python -m hatchling build --directory $(CURDIR)/dist
	cd services && ../$(BIN)/python -m hatchling build --directory $(CURDIR)/dist
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/pip install -q --require-hashes --no-deps -r requirements-services.txt
	build/sbom/bin/pip install -q --no-deps --no-index --find-links dist kafka-transactional-outbox kafka-transactional-outbox-services
	build/sbom/bin/pip uninstall -q -y pip setuptools
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file dist/sbom.cdx.json build/sbom/bin/python

hooks: $(VENV)/.installed ## Run ruff, mypy and a check of the subject at each commit of this clone
	$(BIN)/pre-commit install

clean: ## Remove what was built (not the user cache of jars)
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
