# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`. Everything goes into .venv.
# Another Python: make demo PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-engines check slow clean

demo: .venv/.installed  ## train on the built-in digits, evaluate, write the report
	$(BIN)/vitkit train --recipe digits --out runs/digits

test: .venv/.installed-dev  ## ruff, mypy and the tests
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test

check: .venv/.installed-dev  ## ruff and mypy alone
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

test-engines:  ## the tests of export and engines, in an environment that has OpenVINO and ONNX Runtime
	PYTHON="$(PYTHON)" scripts/test-engines

slow: .venv/.installed-dev  ## the heavier tests: 100 kills
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test-slow

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "vitkit needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ .venv/.installed

clean:  ## remove the environment and caches; runs stay
	rm -rf .venv .venv-engines .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
