"""A server that tests may stop, and a database on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres_server import StartedServer, own_server, why_not
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")


@pytest.fixture(scope="module")
def server() -> Iterator[StartedServer]:
    """A server for one module. A test that stops the server also starts it again."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with own_server() as started:
        yield started


@pytest.fixture
def dsn(server: StartedServer) -> Iterator[str]:
    """The address of an empty database on the server."""
    with server.database() as address:
        yield address
