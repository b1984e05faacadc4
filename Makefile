# Two commands do all set-up on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test test-all check clean

quickstart: .venv/installed
	$(BIN)/cotalk quickstart

test: .venv/installed
	$(BIN)/python -m pytest -n auto

test-all: .venv/installed
	$(BIN)/python -m pytest -n auto -m "slow or not slow"

check: .venv/checking
	$(BIN)/ruff check src tests bench examples scripts
	$(BIN)/ruff format --check src tests bench examples scripts
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

.venv/checking: .venv/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[check]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
