# Needs Python 3.11 or newer, make and a package registry; everything else is fetched into .tools and .venv.

PYTHON ?= python3
BIN    := .venv/bin
UV     := .tools/bin/uv
READY  := .venv/.ready
CODE   := $(wildcard src tests benchmarks examples docs/pictures)

export UV_PYTHON_DOWNLOADS := never
# Texts and names of files are UTF-8 in every locale.
export PYTHONUTF8 := 1
# Hundreds of tests start Python processes; without compiled files each of them would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lock fmt lint types test test-long test-pythons test-newest check reference mutants chaos figures instructions bench pictures demo

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install what is missing

lock: $(UV) ## choose newer versions of the tools and of the benchmarks' peers
	$(UV) pip compile pyproject.toml --group dev --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --custom-compile-command "make lock" --quiet --output-file requirements-dev.txt
	for peer in $(basename $(wildcard benchmarks/peers/requirements/*.in)); do \
		$(UV) pip compile $$peer.in --upgrade --universal --python-version 3.11 --generate-hashes \
			--no-emit-index-url --custom-compile-command "make lock" --quiet --output-file $$peer.txt || exit 1; \
	done

fmt: $(READY) ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

lint: $(READY) ## check style, format and layers
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports --no-logo

types: $(READY) ## check types
	$(BIN)/mypy $(CODE)

PYTEST = $(BIN)/pytest -n auto --dist worksteal
# Tests wait about half of their time, for disks, for servers and for processes they start: so there are twice as many
# workers as processors.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN) + 1)))

test: $(READY) ## run the short tier of the tests; ARGS="-k name" chooses
	$(PYTEST) --tier short $(ARGS)

test-long: $(READY) ## run the long tier: processes, faults, crashes everywhere, every scenario on every store
	$(PYTEST) --tier long $(ARGS)

test-pythons: $(READY) ## run the short tier on each CPython that is found; ARGS="-k name" chooses
	UV=$(UV) $(BIN)/python -m tests.pythons $(ARGS)

test-newest: $(READY) ## run the short tier on the newest CPython that is found, unless that is the one of .venv
	UV=$(UV) $(BIN)/python -m tests.pythons --newest $(ARGS)

check: lint types test test-long test-newest ## everything that must hold before a change goes in

reference: $(READY) ## write docs/reference and docs/flows-reference.md from the source
	$(BIN)/python -m tests.docs.reference

mutants: $(READY) ## put bugs into the code and see who notices; ARGS="--only name" chooses
	$(BIN)/python -m tests.mutants $(ARGS)

instructions: $(READY) ## count what operations cost, compare with the baseline; ARGS="--update", ARGS="--base REV"
	$(BIN)/python -m benchmarks.instructions $(ARGS)

bench: $(READY) ## measure side by side with peers; ARGS="--quick" is short
	UV=$(UV) $(BIN)/python -m benchmarks.versus $(ARGS)

STORE   ?= sqlite
MINUTES ?= 1
CHAOS    = $(BIN)/python -m tests.chaos --store $(STORE) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: $(READY) ## kill, stop and cut at random; STORE=postgres (redis, sqlite) MINUTES=10 SEED=x
	$(CHAOS) --minutes $(MINUTES)

figures: $(READY) ## reproduce the figures that are promised; STORE=postgres (redis, sqlite)
	$(CHAOS) --figures

pictures: $(READY) ## draw the pictures of the documentation again
	$(BIN)/python docs/pictures/processes.py
	$(BIN)/python docs/pictures/terminal.py

demo: $(READY) ## watch runs survive crashes
	$(BIN)/holdfast demo

$(UV):
	$(PYTHON) -m pip install --quiet --root-user-action ignore --target .tools uv

$(READY): requirements-dev.txt pyproject.toml | $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
