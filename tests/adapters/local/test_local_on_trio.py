"""The local server's life on trio."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters.providers.local.child import LocalServerSettings
from callboard.adapters.providers.local.process import LocalServer

from .local_processes import process_gone, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.mark.deep("another start of the local model, on trio")
async def test_a_server_works_on_trio(settings: LocalServerSettings) -> None:
    """Start, health and stop work on trio. A cancelled start leaves no process."""
    server = LocalServer(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(server.start)
        await wait_until(lambda: server.pid is not None)
        pid = server.pid
        group.cancel_scope.cancel()
    assert pid is not None
    assert process_gone(pid)
    async with LocalServer.shared(settings) as shared:
        pid = shared.pid
        assert pid is not None
        assert await shared.health()
    assert process_gone(pid)
