# Every target makes .venv by itself; CI runs `make test` and `make check`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO := .venv/.demo
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test check mutants format bench docs clean

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[plot]'
	touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $(DEMO) $@

demo: $(DEMO)  ## a GPT that grows against fixed depths, at equal compute; 5 minutes; installs no developer tools
	$(BIN)/python examples/demo.py

test: $(READY)  ## everything, slow learning tests included
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)  ## format, lint, types, import contracts, and today's sample of mutants
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python tests/mutants/run.py --sample 20

mutants: $(READY)  ## every requirement broken on purpose: each fault must be noticed by the tests it names
	$(BIN)/python tests/mutants/run.py --write docs/mutants.md

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## what growing costs, against plain PyTorch
	$(BIN)/python benchmark/single_host.py

docs: $(READY)  ## refresh the tables that come from the code, then build the site
	$(BIN)/python docs/tables.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet it would not be strict

clean:
	rm -rf .venv site runs .pytest_cache .ruff_cache .hypothesis
