"""One HTTP server on 127.0.0.1 that plays all servers. The first part of the path names the server and its wire.

A request that breaks a rule gets the error of the real server, and the refusal is recorded. Otherwise the server
sends the next planned response: a reply of its wire, streamed or not, or an error of its notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping

import msgspec

from callboard.adapters.servers import Note
from callboard.bus.values.base import Json, JsonObject
from tests.support.wire_history import history_faults

from .rules import RULES, Asked
from .tempers import TEMPERS, Temper, notes_of

_REASONS = {200: "OK", 400: "Bad Request"}
_STEADY = Temper("steady", "chat")  # the last fallback of all conversations, without notes
_BY_NAME = {temper.name: temper for temper in (*TEMPERS, _STEADY)}
_SAYS_REASONING = frozenset({"cerebras", "groq", "lmstudio", "ollama", "openrouter", "together", "vllm"})
"""Servers of Chat Completions whose replies name the field `reasoning`. Databricks has no field for it."""
_IDS = re.compile(rb'"(toolu_|call_|fc_)(\d+)"')


class Says(msgspec.Struct, frozen=True):
    """A planned response."""

    text: str = ""
    calls: int = 0
    thought: str = ""
    error: Note | None = None
    stalls: bool = False
    """Whether a stream stops after its first chunk, until the reader disconnects."""


class Refusal(msgspec.Struct, frozen=True):
    """A request that a server refused."""

    server: str
    rule: str
    why: str


class TemperServer:
    """The server. It runs within a block: `async with TemperServer() as server: server.url`."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        """The refused requests since `reset`."""
        self.histories: dict[str, list[list[Json]]] = {}
        """The histories that each server received since `reset`."""
        self.keeps = True
        """Whether histories are stored in `histories`."""
        self.requests = 0
        self._next: list[Says] = []
        self._said = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def reset(self) -> None:
        """Delete the records of the conversation."""
        self.refusals, self.histories, self._next = [], {}, []

    def plan(self, *says: Says) -> None:
        """Set the responses to the next requests. Further requests get a short text."""
        self._next = list(says)

    async def __aenter__(self) -> TemperServer:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *details: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- HTTP

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split("\r\n", 1)[0].split(" ")
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                if await self._answer(writer, method, target, body):
                    await reader.read()  # the reply has stopped, and its reader disconnects
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, body: bytes) -> bool:
        """Answer a request. Returns True if the reply stops before its end."""
        name, _, path = target.lstrip("/").partition("/")
        temper, path = _BY_NAME[name], f"/{path}"
        known = _known(temper, path)
        if method == "GET" or known is not None:
            await _send(writer, 200, msgspec.json.encode(known if known is not None else {}))
            return False
        self.requests += 1
        request: JsonObject = msgspec.json.decode(body)
        refused = self._refused(temper, path, request)
        if refused is not None:
            await _send(writer, *refused)
            return False
        if self.keeps:
            self.histories.setdefault(temper.name, []).append(_history(temper, request))
        says = self._say_next(temper)
        streamed = request.get("stream") is True or "stream" in path
        if temper.wire == "ollama":
            streamed = request.get("stream") is not False
        if says.error is not None:
            await _send_error(writer, says.error)
        else:
            await self._reply(writer, temper, says, streamed=streamed, has_tools=bool(request.get("tools")))
        return says.stalls and streamed

    # -- what is refused

    def _refused(self, temper: Temper, path: str, request: JsonObject) -> tuple[int, bytes] | None:
        plain = path.partition("?")[0]
        if temper.wire in ("chat", "messages", "responses", "gemini"):
            faults = history_faults(plain, request)
            if faults:
                return self._refuse(temper, "history", faults[0], 400, {"error": {"message": faults[0]}})
        for note in notes_of(temper, "A", "B"):
            named = note.input.get("rule")
            if named is None:
                continue
            why = RULES[named](Asked(temper.wire, plain, request, note.input))
            if why is not None:
                refusal = note.input.get("refusal") or {}
                body = refusal.get("body", {"error": {"message": why, "type": "invalid_request_error"}})
                return self._refuse(temper, named, why, refusal.get("status", 400), body)
        return None

    def _refuse(self, temper: Temper, rule: str, why: str, status: int, body: Json) -> tuple[int, bytes]:
        self.refusals.append(Refusal(temper.name, rule, why))
        return status, msgspec.json.encode(body)

    # -- what is said

    def _say_next(self, temper: Temper) -> Says:
        """Return the next planned response. The planned error of another server is skipped, because the engine
        sent that server no request.
        """
        while self._next:
            says = self._next.pop(0)
            if says.error is None or says.error.server == temper.server:
                return says
        return Says(text="Yes.")

    async def _reply(
        self, writer: asyncio.StreamWriter, temper: Temper, says: Says, *, streamed: bool, has_tools: bool
    ) -> None:
        kit = temper.kit
        calls = says.calls if has_tools and temper.tools else 0
        thought = says.thought if kit.reasons and temper.server != "databricks" else ""
        stop = "tools" if calls else "end"
        self._said += 1
        if not streamed:
            whole = msgspec.json.encode(kit.body(says.text, calls, stop, thought))
            await _send(writer, 200, self._own_ids(temper, whole))
            return
        events = [event for _, event in kit.events(says.text, calls, stop, thought)]
        kind = "application/x-ndjson" if temper.wire == "ollama" else "text/event-stream"
        body = self._own_ids(temper, kit.stream(*events))
        if not says.stalls:
            await _send(writer, 200, body, kind)
            return
        first = kit.stream(*events[: max(2, len(events) // 2)])
        writer.write(_head(200, kind, None) + f"{len(first):x}\r\n".encode() + first + b"\r\n")
        await writer.drain()

    def _own_ids(self, temper: Temper, body: bytes) -> bytes:
        """Make the call ids of each reply unique. Mistral's have nine characters."""
        if temper.server in _SAYS_REASONING:
            body = body.replace(b'"reasoning_content"', b'"reasoning"')
        if temper.server == "mistral":
            return _IDS.sub(lambda found: b'"%08d%s"' % (self._said, found[2][-1:]), body)
        return _IDS.sub(lambda found: b'"%s%d_%s"' % (found[1], self._said, found[2]), body)


def _known(temper: Temper, path: str) -> Json:
    """The response to a request that an adapter makes by itself."""
    return next((answer for end, answer in temper.kit.knows.items() if path.endswith(end)), None)


def _history(temper: Temper, request: JsonObject) -> list[Json]:
    """The history of a request without the parts that may change between calls, such as cache marks."""
    found = request.get("messages") or request.get("input") or request.get("contents") or []
    assert isinstance(found, list | str)
    plain: Json = msgspec.json.decode(msgspec.json.encode([found] if isinstance(found, str) else found))
    _unmark(plain)
    assert isinstance(plain, list)
    return plain


def _unmark(value: Json) -> None:
    if isinstance(value, dict):
        value.pop("cache_control", None)
        for inner in value.values():
            _unmark(inner)
        content = value.get("content")
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
            text = content[0]
            if text.keys() == {"type", "text"}:
                value["content"] = text["text"]  # a text with a mark is a block; without a mark it is a string
    elif isinstance(value, list):
        for inner in value:
            _unmark(inner)


def _head(status: int, kind: str, length: int | None, headers: Mapping[str, str] = {}) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}", f"content-type: {kind}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    kind: str = "application/json",
    headers: Mapping[str, str] = {},
) -> None:
    writer.write(_head(status, kind, len(body), headers) + body)
    await writer.drain()


async def _send_error(writer: asyncio.StreamWriter, note: Note) -> None:
    """Send the error of a note."""
    reply = note.input
    if "events" in reply:
        kind = "application/x-ndjson" if note.wire == "ollama" else "text/event-stream"
        await _send(writer, 200, "".join(reply["events"]).encode(), kind)
        return
    body = reply["body"]
    page = isinstance(body, str)
    data = body.encode() if page else msgspec.json.encode(body)
    kind = "text/html" if page else "application/json"
    await _send(writer, reply["status"], data, kind, reply.get("headers", {}))
