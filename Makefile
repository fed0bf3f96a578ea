# Everything runs in .venv, which is made on first use and renewed when pyproject.toml or constraints.txt changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
TRAIN := .venv/.train
# Versions for Python 3.11; `make fast CONSTRAINTS=` takes the newest that another Python gets.
CONSTRAINTS ?= -c constraints.txt
# --no-compile: most of what is installed is never imported, and bytecode of all of it takes a minute.

.DEFAULT_GOAL := help
.PHONY: help test accept lint fast slow docs build extras demo anchors clean

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(CONSTRAINTS) -e '.[dev]'
	touch $@

$(TRAIN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(CONSTRAINTS) -e '.[train]'
	touch $@

test: lint fast slow docs  ## everything that has to pass: style, types, tests, documentation

accept: $(READY)  ## what a newcomer types: the demonstration in a clone of its own, "Ship it", the documented commands
	$(BIN)/python -m pytest -m accept tests/accept

lint: $(READY)  ## style, types, and which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check
	$(BIN)/lint-imports --no-logo

fast: $(READY)  ## the tests that start no processes
	$(BIN)/python -m pytest -n 2 -m "not slow and not accept"

# Whole files go to a worker, so that what their tests share, ranks and clusters, is started once.
slow: $(READY)  ## the tests that start processes or compilers
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

docs: $(READY)  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

build: $(READY)  ## the wheel and the sdist, into dist/, with everything a release has to pass
	$(BIN)/python .ci/release.py $(TAG)

extras: $(READY)  ## every extra, in an environment that has nothing else: does it bring what messages say it brings?
	$(BIN)/python .ci/extras.py

# What trains is a third of what the tests need. `instant` comes first: it does not compute what the line beside it leaves for
# all others, the frozen features of a seed's broken sensors.
demo: $(if $(wildcard $(READY)),$(READY),$(TRAIN))  ## nine ways to a model on the sensors of a smartwatch: live progress, the table, and a page
	$(BIN)/equipoise compare --data watch --methods instant,unimodal,ensemble,msl,moddrop,ew,ogmge,mmpareto,mimo \
		--seeds 3 --out runs/watch encoder=rocket epochs=10

# aeon needs an older numpy than the package is tested with, hence an environment of its own.
anchors: .venv-anchors/.installed  ## the environment of the anchors that benchmarks/strength.py compares with

.venv-anchors/.installed: benchmarks/anchors/constraints.txt
	test -x .venv-anchors/bin/python || $(PYTHON) -m venv .venv-anchors
	.venv-anchors/bin/python -m pip install --quiet --disable-pip-version-check -c $< aeon numba scikit-learn numpy torch
	touch $@

clean:  ## remove what was built, and the environment
	rm -rf .venv .venv-anchors site build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
