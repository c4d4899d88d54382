"""Connections through the whole engine with a real server. No connection stays open after any kind of end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from callboard.adapters import AdapterConfig, AdapterError
from callboard.adapters.actor import AdapterActor
from callboard.bus import CallboardError, TextDelta
from callboard.engine import Engine, Session
from tests.support.engines import entry, serving

from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio", "uvloop")

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,'
END += b'"completion_tokens":2}}\n\ndata: [DONE]\n\n'


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true. The other side of a socket sends no event to the test."""
    while not condition():  # noqa: ASYNC110
        await anyio.sleep(0.001)


class Server:
    """A server that runs `script` for each request, and counts its open connections."""

    def __init__(self) -> None:
        self.open: set[asyncio.StreamWriter] = set()
        self.accepted = 0
        self.script: Callable[[asyncio.StreamWriter], Awaitable[None]] = whole
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        self.accepted += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(HEAD + chunk(WORD))
                speaking = asyncio.ensure_future(self.script(writer))
                # This task ends when the client closes the connection.
                leaving = asyncio.ensure_future(reader.read(1))
                await asyncio.wait((speaking, leaving), return_when=asyncio.FIRST_COMPLETED)
                if leaving.done() or writer.is_closing():
                    speaking.cancel()
                    return
                leaving.cancel()
                await asyncio.wait((leaving,))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def all_closed(self) -> None:
        """Wait until the client side has no open connection. The test's timeout limits the wait."""
        await until(lambda: not self.open)


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def whole(writer: asyncio.StreamWriter) -> None:
    writer.write(chunk(END) + b"0\r\n\r\n")


async def silent(writer: asyncio.StreamWriter) -> None:
    await anyio.sleep_forever()


async def breaking(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(chunk(b"data: {nonsense\n\n"))
    await anyio.sleep_forever()


@asynccontextmanager
async def engine_and_server() -> AsyncIterator[tuple[Engine, Server]]:
    """An engine and its server. At the end, check that no connection and no task remains."""
    before = asyncio.all_tasks()
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    config = AdapterConfig(base_url=f"http://127.0.0.1:{server.port}", max_retries=0)
    async with Engine(models=serving(s=entry("s", "openai_compatible", config)), trace=False) as engine:
        yield engine, server
    with anyio.fail_after(10):
        await server.all_closed()
        listening.close()
        await until(lambda: not asyncio.all_tasks() - before)


async def first_word(session: Session) -> None:
    """Read a stream up to the first word and leave it, which cancels the call."""
    async with session.stream("Hello") as turn:
        async for event in turn:
            if isinstance(event, TextDelta):
                return


async def test_a_connection_is_kept_for_the_next_call_and_closed_with_the_engine() -> None:
    async with engine_and_server() as (engine, server):
        session = engine.session("s:m")
        for _ in range(3):
            async with session.stream("Hello") as turn:
                assert (await turn.message()).text == "word "
        assert (server.accepted, len(server.open)) == (1, 1)


@pytest.mark.parametrize(
    ("script", "timeout"), [(breaking, None), (nonsense, None), (silent, 0.05), (silent, None)]
)
async def test_a_call_that_ends_early_closes_its_connection(
    script: Callable[[asyncio.StreamWriter], Awaitable[None]], timeout: float | None
) -> None:
    async with engine_and_server() as (engine, server):
        server.script, session = script, engine.session("s:m")
        if script is silent and timeout is None:
            await first_word(session)
        else:
            with pytest.raises(AdapterError):
                await session.stream("Hello", timeout=timeout).message()
        with anyio.fail_after(10):
            await server.all_closed()


async def test_an_actor_that_crashes_closes_its_clients_and_restarts_with_new_ones() -> None:
    """Calls in flight fail. The next call uses a new adapter with its own connections."""
    async with engine_and_server() as (engine, server):
        session = engine.session("s:m")
        server.script = silent
        async with session.stream("Hello") as turn:
            async for event in turn:
                if isinstance(event, TextDelta):
                    break
            ref = engine._runtime.adapters["s"].ref
            former = ref.actor.adapter
            ref.tell("what it does not understand")  # The actor crashes on this message.
            with pytest.raises(AdapterError):
                await turn.message()
        with anyio.fail_after(10):
            await server.all_closed()
            await until(lambda: isinstance(ref.actor, AdapterActor))
        server.script = whole
        async with engine.session("s:m").stream("Hello") as turn:
            assert (await turn.message()).text == "word "
        assert ref.actor.adapter is not former


async def test_an_engine_that_is_closed_during_calls_closes_their_connections() -> None:
    """Each call fails with an error of Callboard."""

    async def read(session: Session, started: anyio.Event) -> None:
        async with session.stream("Hello") as turn:
            async for event in turn:
                if isinstance(event, TextDelta):
                    started.set()

    async with engine_and_server() as (engine, server):
        server.script, calls = silent, []
        for _ in range(5):
            started = anyio.Event()
            calls.append(asyncio.ensure_future(read(engine.session("s:m"), started)))
            await started.wait()
        assert len(server.open) == 5
        await engine.aclose()
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, CallboardError) for end in ends)


async def test_many_calls_cancelled_at_random_points_leave_nothing_open() -> None:
    """The cancellation can come before the head, within the reply, or at its end."""
    async with engine_and_server() as (engine, server):

        async def one(ticks: int) -> None:
            call = asyncio.ensure_future(engine.session("s:m").stream("Hello").message())
            for _ in range(ticks):
                await anyio.lowlevel.checkpoint()
            call.cancel()
            await asyncio.wait([call])

        await asyncio.gather(*map(one, range(120)))
        server.script = whole
        async with engine.session("s:m").stream("Hello") as turn:
            assert (await turn.message()).text == "word "
        assert engine._runtime.adapters.running["s"].slots.used == 0
