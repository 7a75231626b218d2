# Every target creates .venv and installs what it needs; nothing else is asked of you.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all test-gpu lint format wheel clean

demo: .venv/core
	$(BIN)/spikewire train --method dense
	$(BIN)/spikewire train
	$(BIN)/spikewire train --method budget --connectivity 0.05 --lr 5e-3
	$(BIN)/spikewire report runs -o runs/report.html

test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not gpu"

test-all: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not gpu"

test-gpu:
	$(PYTHON) -m pytest tests/kernels tests/gpu

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/core: pyproject.toml constraints.txt setup.py src/spikewire/runtime/kernels.c
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/dev: .venv/core
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps neurobench==2.3.0  # a whole install would bring GPL code the tests do not need
	touch $@

wheel: .venv/core
	$(PIP) build
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
