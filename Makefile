# Every target creates .venv and installs what it needs; Python 3.11 or newer is all it requires.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

.PHONY: demo figures test test-all docs gallery pages notebooks test-gpu lint format wheel clean

demo: .venv/core
	@echo "training three networks on the embedded digits (about a minute) ..."
	$(BIN)/spikewire train --method dense
	$(BIN)/spikewire train
	$(BIN)/spikewire train --method budget --connectivity 0.05
	$(BIN)/spikewire report runs -o runs/report.html
	@echo "open runs/report.html in a browser; for the command spikewire: source $(BIN)/activate"

figures: .venv/core
	$(BIN)/spikewire figures --results results --kinds svg --out docs/figures

test: .venv/dev
	$(PYTEST) -m "not slow and not gpu"

test-all: .venv/dev
	$(PYTEST) -m "not gpu"

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
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spikewire needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@echo "installing PyTorch and spikewire into .venv (once, about two minutes) ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) -e .
	@touch $@

.venv/dev: .venv/core
	@echo "installing the test tools into .venv (once, about two minutes) ..."
	@$(PIP) -e ".[dev]"
	@$(PIP) --no-deps neurobench==2.3.0  # a whole install would bring GPL code the tests do not need
	@touch $@

docs: .venv/docs  # not --quiet, which would turn off --strict
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

pages: .venv/core
	$(BIN)/python docs/site/pages.py

.venv/docs: .venv/core
	@echo "installing the tools for the documentation into .venv (once) ..."
	@$(PIP) -e ".[docs]"
	@touch $@

gallery: .venv/core
	$(BIN)/spikewire frontier --methods dense,gradr,budget --connectivity 0.25,0.05,0.02,0.01 --seeds 1 --epochs 40 --jobs 2 --out runs/gallery
	$(BIN)/spikewire figures runs/gallery --kinds svg --out docs/figures/gallery

notebooks: .venv/dev
	$(BIN)/python examples/notebooks/run.py

wheel: .venv/core
	@echo "building the source distribution, and the wheel from it, into dist ..."
	@rm -rf build dist
	@$(PIP) "setuptools>=77"
	@$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist dist/*.tar.gz
	@PYTHON=$(PYTHON) .ci/check-wheel dist/*.whl
	@ls dist/*

clean:
	rm -rf .venv build dist site src/*.egg-info src/spikewire/runtime/_kernels*.so
	rm -rf .pytest_cache .ruff_cache .hypothesis
