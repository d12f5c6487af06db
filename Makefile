# Works on a machine that has only Python 3.11+ and its package manager: each target installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := $(VENV)/.extras

.PHONY: demo test nightly lint bench audit licences sbom clean

demo: $(STAMP)
	$(BIN)/quark demo --yes

test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not gpu and not network and not nightly"

nightly: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "nightly and not gpu and not network" --timeout=7200

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known weaknesses of every pinned version. Asks an advisory service: without one it fails, and says so.
audit: $(STAMP)
	@$(BIN)/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip --strict || { \
		echo "make audit: NOT PASSED. Either a weakness is known of a version, or pypi.org's advisories could not" >&2; \
		echo "be asked (no network, or a mirror without them: \"not found on PyPI\"). Nothing was audited then." >&2; \
		exit 1; }

licences: $(EXTRAS)
	$(BIN)/python -m release.licences > docs/licences.md

# The bill of materials of the wheel that is built here: dist/quark-launcher.cdx.json.
sbom: $(EXTRAS)
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/python -m release.bill_of_materials dist/*.whl > dist/quark-launcher.cdx.json

# Needs the peers' harness: see docs/benchmarks.md.
bench:
	@test -n "$(BENCH_ROOT)" -a -n "$(BENCH_HARNESS)" || \
		{ echo "set BENCH_ROOT and BENCH_HARNESS: docs/benchmarks.md says to what"; exit 2; }
	BENCH_ROOT="$(BENCH_ROOT)" BENCH_HARNESS="$(BENCH_HARNESS)" $(PYTHON) benchmarks/side_by_side.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

# The extras too, so that what they need can be asked and named.
$(EXTRAS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[hf,webdataset,litdata,tensorboard,plot,vision]'
	touch $(EXTRAS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
