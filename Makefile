# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`. Everything goes into .venv.
# Another Python, another PyTorch: make demo PYTHON=python3.12 TORCH=torch==2.13.0 (scripts/environment has more).

PYTHON ?= python3
export PYTHON
BIN := .venv/bin

.PHONY: install demo test test-engines check slow clean

install: .venv/.installed  ## vitkit into .venv, with PyTorch's CPU build where there is no GPU

demo: .venv/.installed  ## train on the built-in digits, evaluate, write the report
	$(BIN)/vitkit train --recipe digits --out runs/digits

test: .venv/.installed-dev  ## ruff, mypy and the tests
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test

check: .venv/.installed-dev  ## ruff, mypy and the fast tests: what to run before each commit
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test -q -m fast $(addprefix tests/,analysis data evaluation kernels models weights)

test-engines:  ## the tests of export and engines, in an environment that has OpenVINO and ONNX Runtime
	scripts/test-engines

slow: .venv/.installed-dev  ## the heavier tests: 100 kills
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test-slow

.venv/.installed: pyproject.toml
	scripts/environment .venv --editable .

.venv/.installed-dev: pyproject.toml
	scripts/environment .venv --editable '.[dev]'
	touch $@

clean:  ## remove the environment and caches; runs stay
	rm -rf .venv .venv-engines .venv-torch-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
