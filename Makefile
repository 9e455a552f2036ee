# Every target works from a fresh clone: the virtual environment is made on first use.

PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.installed
PEERS  := $(VENV)/.peers
JOBS   ?= 2
# A worker that is done takes over tests of the other: the first few hundred take as long as all the rest.
SPREAD := -n $(JOBS) --dist worksteal

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Tests start hundreds of processes, each of which would compile all that it imports where this is set.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint check bench logs conformance golden clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP)  ## build ResNet-18, compile it, check it against onnxruntime and time it
	bash examples/demo.sh

test: $(STAMP)  ## the tests that take seconds
	pytest $(SPREAD) -m "not slow"

test-all: $(STAMP)  ## every test
	pytest $(SPREAD) --hypothesis-profile=steady

lint: $(STAMP)  ## lint, format and types
	ruff check .
	ruff format --check .
	mypy

check: lint  ## lint, format, types, architecture, and a case of each unit test
	pytest $(SPREAD) -m "not slow" --few 1 tests/test_architecture.py tests/unit

bench: $(PEERS)  ## measure against the other engines; ARGS="--quick --out build/bench" takes minutes
	python -m benchmarks --out benchmarks/results $(ARGS)

logs: $(STAMP)  ## tune the zoo on this machine: the records that mlc ships (see src/mlc/logs/README.md)
	python -m benchmarks.logs $(ARGS)

conformance: $(STAMP)  ## run the ONNX backend test suite
	python -m tests.conformance

golden: $(STAMP)  ## rewrite the golden texts from what the compiler prints now
	pytest -n 0 --update-golden tests/unit

clean:  ## remove build outputs and caches (the virtual environment stays)
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(PEERS): $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --editable '.[bench]'
	touch $@
