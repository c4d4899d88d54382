"""One server for all who want the same."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time

import anyio
import pytest

from callboard.adapters.providers.local.child import LocalServerSettings
from callboard.adapters.providers.local.process import LocalServer
from callboard.bus.errors import ServerError

from .local_processes import process_gone, wait_until

pytestmark = pytest.mark.anyio


async def test_two_users_share_one_server_until_the_last_leaves(settings: LocalServerSettings) -> None:
    """The first acquire starts it, at once or not; the last release, and no other, stops it."""
    first, second = LocalServer.shared(settings), LocalServer.shared(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(first.acquire)
        group.start_soon(second.acquire)
    assert first.server is not None
    assert first.server is second.server
    assert first.server.statistics().starts == 1
    pid = first.server.pid
    assert pid is not None
    await first.release()
    await first.release()
    assert first.server is None
    assert second.server is not None
    assert await second.server.health()
    await second.release()
    assert process_gone(pid)


async def test_other_settings_are_another_server(settings: LocalServerSettings) -> None:
    """Users who want different things get different servers."""
    other = LocalServerSettings(settings.model_path, context_tokens=512, slots=1)
    async with LocalServer.shared(settings) as one, LocalServer.shared(other) as two:
        assert one.pid != two.pid
        assert two.context_tokens == 512


async def test_a_server_that_died_is_started_anew_for_the_next_user(settings: LocalServerSettings) -> None:
    """After a crash the next acquire has a running server, and earlier users see the same one."""
    first, second = LocalServer.shared(settings), LocalServer.shared(settings)
    server = await first.acquire()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not server.running)
    assert await second.acquire() is server
    assert server.pid not in (None, pid)
    await second.release()
    assert await server.health()
    await first.release()
    assert not server.running


async def test_a_newcomer_during_the_last_release_has_a_running_server(settings: LocalServerSettings) -> None:
    """Who comes while the last one goes waits for the stop and gets a new process."""
    first, second = LocalServer.shared(settings), LocalServer.shared(settings)
    await first.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(first.release)
        group.start_soon(second.acquire)
    assert second.server is not None
    assert await second.server.health()
    await second.release()
    assert not SharedServerTable.now()


async def test_a_cancelled_user_does_not_take_the_server_from_the_others(settings: LocalServerSettings) -> None:
    """Two tasks acquire by one handle; the one that starts the server is cancelled; the other still gets it."""
    handle = LocalServer.shared(settings)
    got: list[LocalServer] = []

    async def acquire() -> None:
        got.append(await handle.acquire())

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(acquire)
                await wait_until(
                    lambda: bool(SharedServerTable.now()) and SharedServerTable.only().pid is not None
                )
                group.start_soon(acquire)
                await anyio.lowlevel.checkpoint()
                scope.cancel()
    assert got == [handle.server]
    assert await got[0].health()
    await handle.release()
    assert not SharedServerTable.now()


async def test_a_failed_acquire_holds_nothing(settings: LocalServerSettings) -> None:
    """A start that is cancelled or fails leaves no claim, no table entry and no process."""
    handle = LocalServer.shared(settings, start_timeout=0.001)
    with pytest.raises(Exception, match="did not answer"):
        await handle.acquire()
    assert handle.server is None
    assert not SharedServerTable.now()


async def test_releasing_during_the_start_ends_it(settings: LocalServerSettings) -> None:
    """A handle that is released while it still acquires fails the acquire instead of leaking a server."""
    handle = LocalServer.shared(settings)

    async def acquire() -> None:
        with pytest.raises(ServerError, match="while it was starting"):
            await handle.acquire()

    async with anyio.create_task_group() as group:
        group.start_soon(acquire)
        group.start_soon(acquire)
        await wait_until(lambda: bool(SharedServerTable.now()) and SharedServerTable.only().pid is not None)
        pid = SharedServerTable.only().pid
        await handle.release()
    assert pid is not None
    assert process_gone(pid)
    assert not SharedServerTable.now()


def test_a_loop_that_ends_takes_its_servers_along(settings: LocalServerSettings) -> None:
    """Two loops never see each other's server, and what a loop forgot is ended after it."""

    async def forget() -> int:
        server = await LocalServer.shared(settings).acquire()
        assert server.statistics().starts == 1
        assert server.pid is not None
        return server.pid

    pids = [asyncio.run(forget()), asyncio.run(forget())]
    assert pids[0] != pids[1]
    for _ in range(1000):  # anyio's idle worker threads hold a loop for a moment after its end
        gc.collect()
        if all(process_gone(pid) for pid in pids):
            return
        time.sleep(0.01)
    pytest.fail("a forgotten server lives on")


class SharedServerTable:
    """A look at the running loop's table."""

    @staticmethod
    def now() -> dict[LocalServerSettings, LocalServer]:
        from callboard.adapters.providers.local.process import _Shared

        return {key: shared.server for key, shared in (_Shared._table.get(None) or {}).items()}

    @staticmethod
    def only() -> LocalServer:
        (server,) = SharedServerTable.now().values()
        return server
