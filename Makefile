# make demo   set everything up, train over 20 simulated silos, write a report
# make test   set everything up, lint, type-check, test
# make bench-round   wall and CPU time of a whole run, stage by stage, without masks and with them
# make results-fast   every method under one plan, tuned alike: the tables of docs/results.md, in minutes; make results for all
# make audit   empirical lower bounds on epsilon, table, figure and JSON in runs/audit
# make scaling-study   public scaling of the features against private means and variances, in runs/scaling
# make bench-secagg   cost of secure aggregation beside Flower's SecAgg+
# make secagg-schedules   thousands of schedules of losses, lies and restarts against the secure sum
# make recovery   every process of a deployment killed on purpose, and the table of what came of it in docs/operations.md
# make bench-dp   CPU time of one DP-SGD step beside plain autograd, Opacus and torch.func
# make bench-deploy   round time by stage over a real SuperLink, flower-supernode beside fcfl silo run; SILOS=20 for more
# make compose-demo   20 silos, proxy and coordinator as containers; report in runs/compose
# make compose-test   4 silos as containers, attacked and killed
# make bench-data   ticker-years per second of the check and of the preparation of price files

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Folders of real price files (and of macro and factor files) for the demo, separated by blanks.
DATA ?=

.PHONY: demo test lint types unit recovery bench-dp bench-secagg bench-deploy bench-data secagg-schedules audit scaling-study images compose-demo compose-test clean

# torch first and exactly: a looser requirement may resolve to a build of several gigabytes.
$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/fcfl demo $(foreach folder,$(DATA),--data $(folder))

test: lint types unit

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

# A file at a time in each process, and more processes than cores: many tests wait for others, and for disks. The longest
# files come first (tests/conftest.py).
unit: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(($$(nproc) * 3 / 2)) --dist loadfile --no-loadscope-reorder --durations 40

bench-dp: $(VENV)/.ready
	$(BIN)/python -m experiments.benchmarks.dp_step

bench-secagg: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.benchmarks.secagg

SILOS ?= 4
bench-deploy: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.benchmarks.deployment --silos $(SILOS)

secagg-schedules: $(VENV)/.ready
	FCFL_SCHEDULES=2000 FCFL_PARTIES=30 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --durations 2 tests/secagg/test_schedules.py

recovery: $(VENV)/.ready
	rm -rf runs/recovery
	-FCFL_RECOVERY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -p no:xdist tests/experiments/deployment/test_recovery*.py
	$(BIN)/python -m tests.experiments.deployment.scenarios

bench-data: $(VENV)/.ready
	$(BIN)/python -m experiments.benchmarks.data_prep

# Every study that comes with the software, for hours; its tables go to docs/results.md. The fast one takes minutes.
.PHONY: results results-fast
results: results-fast
	OMP_NUM_THREADS=1 $(BIN)/fcfl experiment run table2
	$(BIN)/fcfl experiment show table2 --markdown docs/results-table2.md

results-fast: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/fcfl experiment run headline
	$(BIN)/fcfl experiment show headline --markdown docs/results.md

.PHONY: bench-round
bench-round: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.benchmarks.round

audit: $(VENV)/.ready
	$(BIN)/python -m experiments.audit

scaling-study: $(VENV)/.ready
	$(BIN)/python -m experiments.scaling --constants both

# BUILD is for a mirror: --build-arg PIP_INDEX_URL=... and the like, see docker/Dockerfile.
BUILD ?=
images:
	docker compose build $(BUILD) fcfl-image proxy

compose-demo: images
	mkdir -p runs
	docker compose up --detach --no-build
	docker compose logs --follow --no-log-prefix conductor
	docker compose down --volumes

compose-test: images $(VENV)/.ready
	mkdir -p runs
	FCFL_COMPOSE=1 $(BIN)/python -m pytest -p no:xdist tests/docker

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
