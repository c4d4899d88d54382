"""A kit for an adapter over HTTP, from a description of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import NetworkError
from callboard.bus.values.base import Json, JsonObject

from ..config import AdapterConfig
from ..contract import ProviderAdapter
from ..transport.transport import HttpReply, HttpRequest, Transport
from .kit import CALLS, KEY, Fails, FakeClock, Kit, NotShown, Says, Scene, Silent, Stage, Unreachable

# --- A scripted network ---

HANG = float("inf")
"""A wait without end, as a step of a `FakeReply`."""

Step: TypeAlias = "bytes | float | Exception"
"""A step of a body: some bytes, a wait in seconds (HANG for an endless one), or an error to raise."""


class FakeReply:
    """A reply that follows its steps, and records whether it was closed. `read` is the number of steps so far.

    Args:
        steps: The steps of the body.
        status: The HTTP status.
        wait: The time before the head, in seconds.
    """

    def __init__(
        self, *steps: Step, status: int = 200, headers: Mapping[str, str] | None = None, wait: float = 0.0
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream", **(headers or {})}
        self.wait = wait  # in seconds, before the reply's head
        self.steps = list(steps)
        self.read = 0
        self.handed_over = False
        self.closed = False

    async def chunk(self) -> bytes | None:
        """The next bytes; None at the end. Raises a step that is an error."""
        await anyio.lowlevel.checkpoint()
        while self.read < len(self.steps):
            step = self.steps[self.read]
            self.read += 1
            match step:
                case bytes():
                    return step
                case float():
                    await anyio.sleep(step)
                case _:
                    raise step
        return None

    async def aclose(self) -> None:
        self.closed = True


class FakeTransport:
    """A transport that answers the n-th request with the n-th reply. If no reply is left, a request raises
    AssertionError.

    `requests` are the requests in order. `closed` is set by `aclose`.
    """

    def __init__(self, *replies: FakeReply | Exception) -> None:
        self.replies = list(replies)
        self.requests: list[HttpRequest] = []
        self.closed = False

    async def send(self, request: HttpRequest) -> HttpReply:
        """Return the next reply, or raise the next exception. Raises AssertionError if there is neither."""
        await anyio.lowlevel.checkpoint()
        self.requests.append(request)
        if len(self.requests) > len(self.replies):
            raise AssertionError(f"unexpected request number {len(self.requests)}")
        reply = self.replies[len(self.requests) - 1]
        if isinstance(reply, Exception):
            raise reply
        await anyio.sleep(reply.wait)
        reply.handed_over = True
        return reply

    async def aclose(self) -> None:
        self.closed = True

    @property
    def all_closed(self) -> bool:
        """Whether the adapter has closed all its replies."""
        return all(reply.closed for reply in self.replies if isinstance(reply, FakeReply) and reply.handed_over)


def failing(status: int, body: bytes = b"", **headers: str) -> FakeReply:
    """An error reply.

    Args:
        status: The HTTP status.
        body: The body.
        headers: The headers, with underscores in place of hyphens.
    """
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return FakeReply(body, status=status, headers={"content-type": "application/json", **named})


def pieces(body: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Cut a body at the given positions."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(body)}), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


class HttpKit(Kit):
    """The kit of one protocol over HTTP. Every reply reports `usage`: 12 input tokens, 4 of them from a cache, and
    7 output tokens.

    Implement the five abstract methods. The other methods have defaults. If a method returns None, the checks that
    need it are skipped.
    """

    adapter: Callable[..., ProviderAdapter]
    """The adapter's class, or a function of a config and the keywords `transport` and `clock` that makes an
    adapter."""
    base_url = "https://provider.test"
    id_prefix = "call_"
    """The prefix of the provider's ids of tool calls, before the number of the call."""
    content_type = "text/event-stream"
    """The content type of a streamed reply."""
    request_id_header = "x-request-id"
    """The header with the provider's own id of a request."""
    options: ClassVar[Mapping[str, Json]] = {}
    """The `options` of the adapter's AdapterConfig."""

    # --- The protocol ---

    @abstractmethod
    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        """A whole reply: text, the first `calls` of CALLS, and the stop reason (end, tools or length)."""

    @abstractmethod
    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        """The reply of `body` as a stream of named events. A name may be empty. Text and arguments have two
        pieces, see `halves`.
        """

    @abstractmethod
    def error_body(self, condition: str) -> tuple[int, Json]:
        """Status and body of an error reply.

        Args:
            condition: The reason for the error, which is a name in `CONDITIONS`.

        Raises:
            NotShown: The provider has no such error.
        """

    @abstractmethod
    def error_event(self) -> tuple[str, JsonObject]:
        """The event of an overloaded provider in the middle of a stream. Raises NotShown."""

    @abstractmethod
    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        """The ids of the calls and of the results in a request. Raises NotShown if the protocol has none."""

    def thinking_body(self, thought: str, text: str) -> JsonObject | None:
        """A whole reply that starts with reasoning."""
        return None

    def thinking_events(self, thought: str, text: str) -> Iterable[tuple[str, JsonObject]] | None:
        """The events of a streamed reply with reasoning in two pieces, followed by text. None if there is none."""
        return None

    def unknown_event(self) -> tuple[str, JsonObject] | None:
        """An event of a kind that doesn't exist yet, to check that it is ignored."""
        return None

    def ids_issued(self, calls: int) -> list[str]:
        """The provider's ids of the first `calls` tool calls."""
        return [f"{self.id_prefix}{number}" for number in range(calls)]

    def write_event(self, name: str, data: Json) -> bytes:
        """One event as bytes of the body. Text is written unchanged."""
        return write_event(name, data)

    def make(self, transport: Transport, clock: Clock, **config: object) -> ProviderAdapter:
        """The adapter over a transport."""
        fields = {"api_key": KEY, "base_url": self.base_url, "options": self.options, **config}
        make = type(self).adapter  # not self.adapter: a plain function must not become a method
        return make(AdapterConfig(**fields), transport=transport, clock=clock)  # type: ignore[arg-type]  # a check names them

    # --- Replies ---

    def whole(self, text: str = "", calls: int = 0, stop: str = "end") -> FakeReply:
        """A whole reply with the content of `body`."""
        return self._reply_with(self.body(text, calls, stop))

    def chunks(self, text: str = "", calls: int = 0, stop: str = "end") -> list[bytes]:
        """A streamed reply, one piece for each event."""
        return [self.write_event(*event) for event in self.events(text, calls, stop)]

    def streamed(self, text: str = "", calls: int = 0, stop: str = "end") -> FakeReply:
        """A streamed reply with the content of `chunks`."""
        return self.stream_of(*self.chunks(text, calls, stop))

    def stream_of(self, *steps: Step) -> FakeReply:
        """A streamed reply that consists of these pieces."""
        return FakeReply(*steps, headers={"content-type": self.content_type, self.request_id_header: "their_1"})

    def failing(self, condition: str) -> FakeReply:
        """An error reply with the content of `error_body`. Raises NotShown."""
        return self._failing(Fails(condition))

    # --- Scenes ---

    @asynccontextmanager
    async def stage(self, *scenes: Scene, **config: object) -> AsyncIterator[Stage]:
        async with self.stage_of(*[self.reply_of(scene) for scene in scenes], **config) as stage:
            yield stage

    @asynccontextmanager
    async def stage_of(self, *replies: FakeReply | Exception, **config: object) -> AsyncIterator[Stage]:
        """A stage whose provider gives these replies."""
        transport, clock = FakeTransport(*replies), FakeClock(randomness=0.0)
        adapter = self.make(transport, clock, **config)
        try:
            yield Stage(
                adapter=adapter,
                clock=clock,
                model=f"{self.name}:{self.model}",
                asked=lambda: len(transport.requests),
                released=lambda: transport.all_closed,
                requests=transport.requests,
            )
        finally:
            await adapter.close()

    def pieces(self, scene: Says) -> int:
        return len(self._chunks_of(scene))

    def reply_of(self, scene: Scene) -> FakeReply | Exception:
        """The transport's reply for a scene."""
        match scene:
            case Says():
                return self._says(scene)
            case Fails():
                return self._failing(scene)
            case Unreachable():
                return NetworkError("there is no connection")
            case Silent():
                return FakeReply(wait=HANG)

    def _chunks_of(self, scene: Says) -> list[bytes]:
        if not scene.thought:
            return self.chunks(scene.text, scene.calls, scene.stop)
        events = self.thinking_events(scene.thought, scene.text)
        if events is None:
            raise NotShown("the kit shows no streamed reasoning (thinking_events)")
        return [self.write_event(*event) for event in events]

    def _says(self, scene: Says) -> FakeReply:
        if not (scene.streamed and self.streams):
            if scene.thought:
                body = self.thinking_body(scene.thought, scene.text)
            else:
                body = self.body(scene.text, scene.calls, scene.stop)
            if body is None:
                raise NotShown("the kit shows no whole reply with reasoning (thinking_body)")
            reply = self._reply_with(body)
            reply.wait = scene.pause
            return reply
        steps: list[Step] = []
        for chunk in self._chunks_of(scene)[: scene.after]:
            steps += [scene.pause, chunk] if scene.pause else [chunk]
        match scene.then:
            case "hang":
                steps.append(HANG)
            case "break":
                steps.append(NetworkError("the connection broke"))
            case "error":
                steps.append(self.write_event(*self.error_event()))
            case "end":
                pass
        return self.stream_of(*steps)

    def _reply_with(self, body: Json, status: int = 200, headers: Mapping[str, str] = {}) -> FakeReply:
        of_json = {"content-type": "application/json", self.request_id_header: "their_1", **headers}
        return FakeReply(msgspec.json.encode(body), status=status, headers=of_json)

    def _failing(self, scene: Fails) -> FakeReply:
        status, body = self.error_body(scene.condition)
        headers = {} if scene.retry_after is None else {"retry-after": f"{scene.retry_after:g}"}
        return self._reply_with(_with_text(body, scene.says) if scene.says else body, status, headers)


def write_event(name: str, data: Json) -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + (data.encode() if isinstance(data, str) else msgspec.json.encode(data)) + b"\n\n"


def halves(text: str) -> tuple[str, str]:
    """Divide a text into the two pieces in which it is streamed."""
    return text[: len(text) // 2], text[len(text) // 2 :]


def arguments(call: int) -> str:
    """The arguments of one of `CALLS`, as JSON text.

    Args:
        call: The number of the call, from 0.
    """
    return msgspec.json.encode(CALLS[call][1]).decode()


def _with_text(body: Json, text: str) -> Json:
    """A copy with `text` appended to every string."""
    if isinstance(body, dict):
        return {name: _with_text(value, text) for name, value in body.items()}
    if isinstance(body, list):
        return [_with_text(value, text) for value in body]
    return f"{body} {text}" if isinstance(body, str) else body


# --- Adapters with their own HTTP client ---

PATIENCE_SECONDS = 2.0


class ServedKit(HttpKit):
    """The kit of an adapter that needs an address instead of a transport."""

    real_time = True
    moment = 0.2

    def make_at(self, base_url: str, clock: Clock, **config: object) -> ProviderAdapter:
        """The adapter for a provider at an address."""
        fields = {"api_key": KEY, "base_url": base_url, "options": self.options, **config}
        return type(self).adapter(AdapterConfig(**fields), clock=clock)  # type: ignore[arg-type]  # a check names them

    @asynccontextmanager
    async def stage_of(self, *replies: FakeReply | Exception, **config: object) -> AsyncIterator[Stage]:
        clock = FakeClock(randomness=0.0)
        server = _Server(replies)
        address = await server.start()
        adapter = self.make_at(address, clock, **config)
        try:
            yield Stage(
                adapter=adapter,
                clock=clock,
                model=f"{self.name}:{self.model}",
                asked=lambda: len(server.requests),
                released=lambda: server.playing == 0,
                requests=server.requests,
                patience=PATIENCE_SECONDS,
            )
        finally:
            await adapter.close()
            await server.stop()


class _Server:
    """A server that answers the n-th request with the n-th reply, or disconnects at an exception."""

    def __init__(self, replies: Sequence[FakeReply | Exception]) -> None:
        self.requests: list[HttpRequest] = []
        self.playing = 0
        self._replies = replies
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the stage was closed
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return False if the connection can't be reused."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(HttpRequest(method, f"http://{headers.get('host', '')}{path}", headers, body))
        number = len(self.requests) - 1
        reply = self._replies[number] if number < len(self._replies) else ConnectionError("one request too many")
        if isinstance(reply, Exception):
            return False
        self.playing += 1
        play = asyncio.ensure_future(_play(reply, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((play, gone), return_when=asyncio.FIRST_COMPLETED)
            return play.done() and await play and not gone.done()
        finally:
            self.playing -= 1
            for task in (play, gone):
                task.cancel()
            await asyncio.gather(play, gone, return_exceptions=True)


async def _play(reply: FakeReply, writer: asyncio.StreamWriter) -> bool:
    """Send a reply step by step. Return False if the reply broke off."""
    await asyncio.sleep(reply.wait)
    lines = [f"HTTP/1.1 {reply.status} Said", *[f"{name}: {value}" for name, value in reply.headers.items()]]
    writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())
    for step in reply.steps:
        match step:
            case bytes():
                if step:
                    writer.write(f"{len(step):x}\r\n".encode() + step + b"\r\n")
                    await writer.drain()
            case float():
                await asyncio.sleep(step)
            case _:
                return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True
