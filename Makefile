# Every target creates .venv and installs what it needs; nothing else is asked of you.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all test-gpu lint format clean

demo: .venv/core
	$(BIN)/rewire train --preset digits

test: .venv/dev
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

test-all: .venv/dev
	$(BIN)/python -m pytest -n 2 -m "not gpu"

test-gpu:
	$(PYTHON) -m pytest -m gpu

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/dev: .venv/core
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
