# Works on a machine that has only Python 3.11+ and its package manager: each target installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test nightly lint clean

demo: $(STAMP)
	$(BIN)/quark demo --yes

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not gpu and not network and not nightly"

nightly: $(STAMP)
	$(BIN)/python -m pytest -m "nightly and not gpu and not network" --timeout=7200

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
