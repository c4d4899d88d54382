"""Fixtures for all rooms.

An async test has the mark `anyio` and runs on the backends of the nearest `anyio_backend`. The default is virtual
time on asyncio and trio. A folder or a module that needs real sockets, threads or SQLite overrides the fixture,
and then asserts no times:

    @pytest.fixture
    def anyio_backend():
        return backend("asyncio")
"""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers

from .support.depth import fewer
from .support.postgres_server import PostgresServer, shared_server, why_not
from .support.scripted import own_types
from .support.virtual_time import FakeClock, runs_on

# By default Python looks for garbage after each 700 new objects. A higher number saves a quarter of a run's CPU
# time.
gc.set_threshold(10_000, 20, 20)

# A client's TLS context reads the certificates of all authorities, which takes 50 ms each time. This file has only
# one authority. It has signed no other certificate, and its key no longer exists.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")

# The assertions of these shared modules are rewritten, like those of tests. This must happen before the first
# import.
pytest.register_assert_rewrite("tests.conformance.replies.cases", "tests.support.wires.reading")

# `pytest --hypothesis-profile=NAME` selects a profile. Quick and deep runs try the same examples every time. No
# example fails because the machine is busy. A search tries new examples, and keeps those that fail.
hypothesis.settings.register_profile("quick", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("deep", derandomize=True, deadline=None, database=None)
FOUND = DirectoryBasedExampleDatabase(".hypothesis/examples")
hypothesis.settings.register_profile("search", deadline=None, database=FOUND, print_blob=True)
hypothesis.settings.load_profile("quick")
# Hypothesis also tries constants of the loaded modules. These depend on the tests that ran before in the worker.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="Run files, and the tests in each, in a random order"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deep(reason): adds depth to what a quick test holds; see CONTRIBUTING.md")
    config.addinivalue_line("markers", "more(reason): tries more in a deep run")
    config.addinivalue_line("markers", "local: needs the local model")
    # A script in the background ignores SIGINT, and the commands that tests interrupt would inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "row(number, of): proves a row of the definition of done; see its folder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hypothesis.settings.get_current_profile_name() == "quick":
        for owner, name in {settings_of(item): None for item in items}:
            asked = getattr(owner, name, None)
            if asked is not None:
                setattr(owner, name, hypothesis.settings(asked, max_examples=fewer(asked.max_examples)))
    if (seed := config.option.shuffle) is not None:
        items[:] = shuffled(items, random.Random(seed))


def settings_of(item: pytest.Item) -> tuple[object, str]:
    """The object and its attribute that have the settings of a property test."""
    if item.name == "runTest":  # a test of a state machine
        return getattr(item, "cls", None), "settings"
    return getattr(item, "function", None), "_hypothesis_internal_use_settings"


def shuffled(items: Sequence[pytest.Item], order: random.Random) -> list[pytest.Item]:
    """Shuffle the files and the tests in each file. The tests of a file stay together, because they share
    fixtures.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    mixed = list(files.values())
    order.shuffle(mixed)
    for tests in mixed:
        order.shuffle(tests)
    return [item for tests in mixed for item in tests]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the command that runs a failed test of a deep run alone."""
    failed = [report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
    if failed and hypothesis.settings.get_current_profile_name() == "deep":
        terminalreporter.section("To run a failed test alone")
        for nodeid in failed:
            terminalreporter.line(f".venv/bin/pytest --hypothesis-profile=deep '{nodeid}'")


def pytest_collection_finish() -> None:
    """Exclude all imported and collected objects from garbage collection, because they live until the end.

    Otherwise each of the hundreds of full collections of a run would visit half a million objects.
    """
    gc.collect()
    gc.freeze()


anyio_backend = runs_on("virtual-asyncio", "virtual-trio")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this run. Without a server, the tests that need one are skipped."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server = shared_server()
    yield server
    server.drop_kept()


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database for one test."""
    with postgres_server.clean_database() as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def adapter_types_of_its_own() -> Iterator[None]:
    """Remove the adapter types that a test registers. Those of its module or of a wider fixture stay."""
    with own_types():
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restore the logging that a command or a benchmark of a test has configured."""
    ours = [logging.getLogger(name) for name in ("callboard", "callboard.plugins")]
    levels = [logger.level for logger in ours]
    yield
    for logger, level in zip(ours, levels, strict=True):
        logger.setLevel(level)
    root = logging.getLogger()
    root.handlers[:] = [kept for kept in root.handlers if ".cli." not in type(kept).__module__]
