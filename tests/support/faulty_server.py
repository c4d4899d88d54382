"""An HTTP server that speaks the three protocols and breaks each reply in a way that a seed decides.

What it does to a request depends on the seed and on the request's own mark (see `mark`) alone, not on the order in
which requests arrive: the same seed gives the same faults to the same turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from bus.json_types import Json, JsonObject
from tests.adapters.anthropic import wire_events as messages_wire
from tests.adapters.openai import wire_events as responses_wire
from tests.adapters.openai_compatible import wire_chunks as chat_wire

from .wire_history import history_faults

_MARK = re.compile(rb"#(\d+\.\d+)#")
_WORDS = ("lorem", "ipsum", "naïve", "☃", "dolor", "\u2028", "sit", "amet", "日本", "\\n", "}", '"quoted"')

FAULTS: dict[str, int] = {
    "none": 40,
    "latency": 8,
    "trickle": 6,
    "reset_before_head": 4,
    "close_before_head": 4,
    "slow_head": 4,
    "stall_before_head": 2,
    "status_429": 5,
    "status_429_long": 1,
    "status_529": 5,
    "status_5xx": 5,
    "status_400": 2,
    "redirect": 1,
    "reset_in_body": 6,
    "truncated": 6,
    "stall_in_body": 3,
    "bad_bytes": 5,
    "bad_json": 5,
    "bad_chunk": 3,
    "empty_body": 2,
    "html": 2,
    "error_in_stream": 6,
    "closed_after": 8,
    "open_after": 3,
}
"""What can happen to a reply, and how often, relative to each other."""


def mark(session: int, turn: int) -> str:
    """What a user's message must hold so that the server knows the turn again."""
    return f"#{session}.{turn}#"


class Reply:
    """A whole reply: its JSON, and the events of the same as a stream."""

    def __init__(self, whole: JsonObject, streamed: bytes, broken: bytes, error: bytes) -> None:
        self.whole = msgspec.json.encode(whole)
        self.streamed = streamed
        self.broken = broken  # an event that is no JSON
        self.error = error  # an event that ends the stream with an error


class _Gone(Exception):
    """The connection was ended on purpose."""


Handler: TypeAlias = Callable[[], Awaitable[None]]


class FaultyServer:
    """`async with FaultyServer(seed) as server: server.url`. faults: replaces FAULTS.

    seen: how often each mark came. done: how often each fault was played. wrong: what was wrong with requests.
    """

    def __init__(self, seed: object, *, faults: dict[str, int] | None = None) -> None:
        self._seed = seed
        self._faults = FAULTS if faults is None else faults
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._tasks)

    async def __aenter__(self) -> FaultyServer:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *details: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                path = head.split(b" ", 2)[1].decode()
                await _Exchange(self, path, body, reader, writer).play()
        except (_Gone, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()

    def plan(self, body: bytes) -> tuple[str, random.Random]:
        """The fault for a request, and what decides everything else about its reply."""
        marks = _MARK.findall(body)
        key = marks[-1].decode() if marks else "none"
        self.seen[key] += 1
        chance = random.Random(f"{self._seed}/{key}/{self.seen[key]}")
        burst = random.Random(f"{self._seed}/{key}").random() < 0.05
        if burst and "status_529" in self._faults and self.seen[key] <= 3:
            fault = "status_529"
        else:
            (fault,) = chance.choices(list(self._faults), list(self._faults.values()))
        self.done[fault] += 1
        return fault, chance


class _Exchange:
    """One request and what is done to its reply."""

    def __init__(
        self,
        server: FaultyServer,
        path: str,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.fault, self.chance = server.plan(body)
        self.reader = reader
        self.writer = writer
        request = msgspec.json.decode(body)
        self.streamed = bool(request.get("stream"))
        server.wrong += [f"{path}: {fault}" for fault in history_faults(path, request)]
        self.reply = _reply(path, request, self.chance)

    async def play(self) -> None:
        step: Handler | None = getattr(self, f"_{self.fault}", None)
        await (step() if step is not None else self._send(self._body()))

    # -- before the head

    async def _latency(self) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        await self._send(self._body())

    async def _reset_before_head(self) -> None:
        self._reset()

    async def _close_before_head(self) -> None:
        raise _Gone

    async def _slow_head(self) -> None:
        head = self._head(200, len(self._body()))
        for at in range(0, len(head), 16):
            await self._write(head[at : at + 16])
            await asyncio.sleep(self.chance.choice((0.001, 0.1)))
        await self._write(self._body())

    async def _stall_before_head(self) -> None:
        await self._until_gone()

    # -- other statuses

    async def _status_429(self) -> None:
        hint = self.chance.choice(("retry-after: 0.02", "retry-after-ms: 5", "retry-after: soon", "x-none: 1"))
        await self._status(429, "rate_limit_error", hint)

    async def _status_429_long(self) -> None:
        await self._status(429, "rate_limit_error", "retry-after: 3600")

    async def _status_529(self) -> None:
        await self._status(529, "overloaded_error")

    async def _status_5xx(self) -> None:
        await self._status(self.chance.choice((500, 502, 503, 504)), "api_error")

    async def _status_400(self) -> None:
        await self._status(400, "invalid_request_error")

    async def _redirect(self) -> None:
        await self._status(302, "moved", "location: http://127.0.0.1:1/")

    async def _status(self, status: int, kind: str, header: str = "x-none: 1") -> None:
        error: JsonObject = {"type": "error", "error": {"type": kind, "message": f"injected {status}"}}
        body = self.chance.choice((msgspec.json.encode(error), b"<html>busy</html>", b""))
        await self._write(self._head(status, len(body), header, kind="application/json") + body)

    # -- in the body

    async def _trickle(self) -> None:
        await self._send(self._body(), size=self.chance.choice((1, 3, 17)))

    async def _reset_in_body(self) -> None:
        await self._send(self._part(), end=False)
        self._reset()

    async def _truncated(self) -> None:
        await self._send(self._part(), end=False)
        raise _Gone

    async def _stall_in_body(self) -> None:
        await self._send(self._part(), end=False)
        await self._until_gone()

    async def _bad_bytes(self) -> None:
        body = bytearray(self._body())
        for _ in range(self.chance.randint(1, 5)):
            body[self.chance.randrange(len(body))] = self.chance.randrange(256)
        await self._send(bytes(body))

    async def _bad_json(self) -> None:
        broken = self._body()[:-1] + b",,"
        await self._send(self._events(self.reply.broken) if self.streamed else broken)

    async def _bad_chunk(self) -> None:
        head = "transfer-encoding: chunked"
        await self._write(self._head(200, None, head) + b"5\r\ndata:\r\nzz\r\nnonsense")
        raise _Gone

    async def _empty_body(self) -> None:
        await self._send(b"")

    async def _html(self) -> None:
        body = b"<html>a proxy says hello</html>"
        await self._write(self._head(200, len(body), kind="text/html") + body)

    async def _error_in_stream(self) -> None:
        await self._send(self._events(self.reply.error) if self.streamed else self._body())

    # -- after the body

    async def _closed_after(self) -> None:
        """It said keep-alive, and closes all the same; perhaps a moment later."""
        await self._send(self._body())
        if self.chance.random() < 0.5:
            await asyncio.sleep(0.005)
        self._reset() if self.chance.random() < 0.5 else None
        raise _Gone

    async def _open_after(self) -> None:
        """The message is whole, and the body does not end."""
        await self._send(self._body(), end=False)
        await self._until_gone()

    # -- small things

    def _body(self) -> bytes:
        return self.reply.streamed if self.streamed else self.reply.whole

    def _part(self) -> bytes:
        body = self._body()
        return body[: self.chance.randrange(len(body))]

    def _events(self, extra: bytes) -> bytes:
        """The stream up to some event, and then something else, which a server sends and then ends."""
        events = self.reply.streamed.split(b"\n\n")
        return b"\n\n".join([*events[: self.chance.randrange(len(events))], b""]) + extra

    def _head(self, status: int, length: int | None, *headers: str, kind: str | None = None) -> bytes:
        if kind is None:
            kind = "text/event-stream" if self.streamed else "application/json"
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "x-request-id: wire", *headers]
        if length is not None:
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "", ""]).encode()

    async def _send(self, body: bytes, *, size: int | None = None, end: bool = True) -> None:
        if self.streamed:
            await self._write(self._head(200, None, "transfer-encoding: chunked"))
            step = size or self.chance.choice((40, 200, 4096))
            for at in range(0, len(body), step):
                piece = body[at : at + step]
                await self._write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                if self.chance.random() < 0.2:
                    await asyncio.sleep(0)
            if end:
                await self._write(b"0\r\n\r\n")
        else:
            await self._write(self._head(200, len(body) + (0 if end else 10)) + body)

    async def _write(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise _Gone
        self.writer.write(data)
        await self.writer.drain()

    def _reset(self) -> None:
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise _Gone

    async def _until_gone(self) -> None:
        with contextlib.suppress(OSError):
            await self.reader.read()
        raise _Gone


# -- replies


def _reply(path: str, request: JsonObject, chance: random.Random) -> Reply:
    said = [" ".join(chance.choices(_WORDS, k=chance.randint(1, 4))) + " " for _ in range(chance.randint(1, 12))]
    history: list[Json] = request.get("messages") or request.get("input") or []
    answers = history[-1] if history else {}
    after_tool = '"tool' in msgspec.json.encode(answers).decode() or '"function_call_output"' in str(answers)
    wanted = 0 if after_tool or not request.get("tools") else chance.choices((0, 1, 2), (6, 3, 2))[0]
    calls = [(f"call_{chance.getrandbits(64):x}", chance.choice(("add", "fail", "slow"))) for _ in range(wanted)]
    if path.endswith("/messages"):
        return _messages(said, calls, chance)
    if path.endswith("/responses"):
        return _responses(said, calls)
    return _chat(said, calls)


_ARGUMENTS = ('{"a": 1, ', '"b": 2}')


def _messages(said: list[str], calls: list[tuple[str, str]], chance: random.Random) -> Reply:
    wire = messages_wire
    blocks: list[Json] = []
    events = [wire.message_start(), wire.PING]
    if chance.random() < 0.3:
        blocks.append({"type": "thinking", "thinking": "hm ☃", "signature": "c2ln"})
        events += [
            wire.start(0, "thinking", thinking="", signature=""),
            wire.delta(0, "thinking_delta", thinking="hm ☃"),
            wire.delta(0, "signature_delta", signature="c2ln"),
            wire.stop(0),
        ]
    events += wire.text(len(blocks), *said)
    blocks.append({"type": "text", "text": "".join(said)})
    for call_id, name in calls:
        events += wire.tool(len(blocks), name, call_id, *_ARGUMENTS)
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1, "b": 2}})
    reason = "tool_use" if calls else "end_turn"
    events += wire.ending(reason)
    whole = wire.message_start(content=blocks, stop_reason=reason)["message"]
    error = wire.event("error", error={"type": "overloaded_error", "message": "injected"})
    return Reply(whole, wire.body(events), wire.body([b'{"type": oops']), wire.body([error]))


def _responses(said: list[str], calls: list[tuple[str, str]]) -> Reply:
    wire = responses_wire
    message = wire.message("".join(said))
    output: list[JsonObject] = [message]
    events = [wire.CREATED, wire.added(0, message)]
    events += [wire.text_delta(0, piece) for piece in said]
    events.append(wire.done(0, message))
    for number, (call_id, name) in enumerate(calls, 1):
        item = wire.call(name, "".join(_ARGUMENTS), number, call_id=call_id)
        events.append(wire.added(number, item))
        events += [wire.arguments_delta(number, piece, number) for piece in _ARGUMENTS]
        events.append(wire.done(number, item))
        output.append(item)
    items: list[Json] = [*output]
    events.append(wire.ending(output=items))
    failed = wire.event(
        "failed", response=wire.response("failed", error={"code": "server_error", "message": "injected"})
    )
    whole = wire.response(output=items)
    return Reply(whole, wire.body(events), wire.body([b'{"type": oops']), wire.body([failed]))


def _chat(said: list[str], calls: list[tuple[str, str]]) -> Reply:
    wire = chat_wire
    events: list[JsonObject | bytes] = [wire.chunk(role="assistant", content="")]
    events += [wire.chunk(content=piece) for piece in said]
    for index, (call_id, name) in enumerate(calls):
        events.append(wire.tools(wire.tool(index, call_id, name)))
        events += [wire.more(piece, index) for piece in _ARGUMENTS]
    finish = "tool_calls" if calls else "stop"
    events += [wire.chunk(finish), {"choices": [], "usage": wire.USAGE}, wire.DONE]
    fields: JsonObject = {"content": "".join(said)}
    if calls:
        fields["tool_calls"] = [wire.tool(None, *call, "".join(_ARGUMENTS)) for call in calls]
    error: JsonObject = {"error": {"type": "server_error", "message": "injected", "code": 500}}
    whole = wire.reply(finish, **fields)
    return Reply(whole, wire.body(events), wire.body([b'{"choices": oops']), wire.body([error]))
