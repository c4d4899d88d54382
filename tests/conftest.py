"""Fixtures for all rooms.

An async test is marked `anyio` and runs on the backends that the nearest `anyio_backend` names: here virtual time,
on asyncio and trio. A folder or a module that needs real sockets, threads or SQLite overrides it, and then asserts
no times:

    @pytest.fixture
    def anyio_backend():
        return backend("asyncio")
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from .support.postgres_server import PostgresServer, shared_server, why_not
from .support.scripted import own_types
from .support.virtual_time import FakeClock, runs_on

# Their assertions are those of the tests that share them; before any test imports them.
pytest.register_assert_rewrite("tests.conformance.replies.cases", "tests.support.wires.reading")

# The same examples in every run, and no example fails for the machine's being busy.
hypothesis.settings.register_profile("callboard", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("callboard")
# Hypothesis also tries constants of the modules that are loaded, and which are depends on the tests that a worker
# ran before. `pytest --hypothesis-profile=default` looks for other examples.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "local: needs the local model")
    # In the background of a script SIGINT is ignored, and the commands that tests interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "row(number, of): proves a row of the definition of done; see its folder")


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_auto_num_workers() -> int:
    """Three for two cores: half of the time tests wait for servers and processes."""
    return max(2, (os.cpu_count() or 1) * 3 // 2)


def pytest_collection_finish() -> None:
    """All that was imported and collected lives to the end: the garbage collector need not walk it again.

    That is half a million objects, at each of the hundreds of whole collections of a run.
    """
    gc.collect()
    gc.freeze()


anyio_backend = runs_on("virtual-asyncio", "virtual-trio")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this run. Tests that want one are skipped where there is none."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server = shared_server()
    yield server
    server.drop_kept()


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database of its own."""
    with postgres_server.clean_database() as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def adapter_types_of_its_own() -> Iterator[None]:
    """The types of adapters that a test makes end with it; those of its module or of a wider fixture stay."""
    with own_types():
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command or a benchmark that ran here has set up logging for itself; the next test knows nothing of it."""
    ours = logging.getLogger("callboard")
    level = ours.level
    yield
    ours.setLevel(level)
    root = logging.getLogger()
    root.handlers[:] = [kept for kept in root.handlers if ".cli." not in type(kept).__module__]
