"""A provider of background responses that records its requests, loses connections, restarts, and repeats answers.

`Books` is pure: the time is a parameter. `BooksTransport` is a network to it with the tests' fake time. `main`
serves it in a process of its own with the real time:

    python -m tests.support.background_server [PACE [FOLDER [PORT]]]

With a FOLDER, replies survive a restart. A reply has numbered events, one every `pace` seconds. The first word of
its request decides the result:

    fail     it fails after its first words
    short    it ends at the limit of its tokens
    say      its text is the words after that

A fault happens once, at the next request that it applies to. POST /faults takes a JSON list; null forgets them:

    refuse       the connection is refused, or closes before the request is carried out
    lose         the request is carried out, but its response is lost
    hold         the request is carried out, but gets no response
    busy         503, and the request is not carried out
    cut N        the stream breaks after N bytes of events
    silent       the stream opens and sends nothing
    end          the stream ends early
    twice        the stream begins with events that were read before
    no stream    400: the events are no longer kept
    garbage      an event that is no JSON, and the end
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import anyio

from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import NetworkError

from .server_process import ServerProcess, faults_after, serve

THOUGHT = "First the moon, then the tides."
WORDS = "The tide comes in, and the tide goes out; twice a day, says Ω the moon."
SENT, SAID_PER_PIECE = 1013, 7

BUSY = 503, {"error": {"message": "busy", "type": "server_error"}}
NO_STREAM = 400, {"error": {"message": "no stream", "type": "invalid_request_error"}}


def _pieces(text: str, size: int = 6) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def last_words(body: Mapping[str, Any]) -> str:
    """The last text of a request."""
    content = body["input"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@dataclass
class Made:
    """A reply in progress."""

    id: str
    body: dict[str, Any]
    began: float
    ended: float | None = None  # when it was cancelled

    @cached_property
    def script(self) -> list[dict[str, Any]]:
        """All events of the reply."""
        return _script(self)

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


class Books:
    """The state of the provider. Each method has the time in seconds as a parameter."""

    def __init__(self, pace: float = 1.0, path: Path | None = None) -> None:
        self.pace = pace
        self.made: dict[str, Made] = {}
        self.cancels: list[str] = []
        self._path = path
        if path is not None and path.exists():
            made, self.cancels = json.loads(path.read_text())
            self.made = {each["id"]: Made(**each) for each in made}

    def _keep(self) -> None:
        if self._path is not None:
            kept = ("id", "body", "began", "ended")
            made = [{name: getattr(each, name) for name in kept} for each in self.made.values()]
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps([made, self.cancels]))
            fresh.rename(self._path)

    def create(self, body: dict[str, Any], now: float) -> Made:
        """Start a reply."""
        began = now if body.get("background") else now - 1e6  # otherwise it is complete immediately
        reply = Made(f"resp_{len(self.made) + 1}", body, began)
        self.made[reply.id] = reply
        self._keep()
        return reply

    def events(self, reply: Made, after: int, now: float) -> list[dict[str, Any]]:
        """The events after a number that exist at this time."""
        return [event for event in self._there(reply, now) if event["sequence_number"] > after]

    def _there(self, reply: Made, now: float) -> list[dict[str, Any]]:
        until = now if reply.ended is None else min(now, reply.ended)
        there = reply.script[: int((until - reply.began) / self.pace + 1e-6) + 1]
        if reply.ended is not None and there[-1] is not reply.script[-1]:
            number = there[-1]["sequence_number"] + 1
            ended = {"type": "response.cancelled", "sequence_number": number}
            there = [*there, {**ended, "response": self._object(reply, there, "cancelled")}]
        return there

    def is_over(self, reply: Made, now: float) -> bool:
        """Whether a reply is complete."""
        return self.look(reply, now)["status"] not in ("queued", "in_progress")

    def look(self, reply: Made, now: float) -> dict[str, Any]:
        """The current state of a reply."""
        last = self._there(reply, now)[-1]
        if last["type"] in ("response.completed", "response.failed", "response.incomplete", "response.cancelled"):
            return last["response"]
        there = self._there(reply, now)
        return self._object(reply, there, "queued" if len(there) == 1 else "in_progress")

    def cancel(self, reply: Made, now: float) -> dict[str, Any]:
        """End a reply. It is idempotent."""
        self.cancels.append(reply.id)
        if reply.ended is None and not self.is_over(reply, now):
            reply.ended = now
        self._keep()
        return self.look(reply, now)

    def answer(self, method: str, path: str, query: str, body: bytes, now: float) -> tuple[int, Any] | Told:
        """The response to a request: a status and a body, or a stream that starts now."""
        if method == "POST" and path == "responses":
            made = self.create(json.loads(body), now)
            return Told(self, made) if made.streamed else (200, self.look(made, now))
        _, response_id, *action = path.split("/")
        known = self.made.get(response_id)
        if known is None:
            return 404, {"error": {"message": f"Response {response_id} not found.", "type": "not_found"}}
        if action == ["cancel"]:
            return 200, self.cancel(known, now)
        asked = parse_qs(query)
        if asked.get("stream") != ["true"]:
            return 200, self.look(known, now)
        if not known.streamed:
            return NO_STREAM
        return Told(self, known, int(asked.get("starting_after", ["-1"])[0]))

    def bill(self, now: float) -> dict[str, tuple[int, int]]:
        """The input and output tokens of each billed reply."""
        seen = {reply.id: self.look(reply, now).get("usage") for reply in self.made.values()}
        return {id_: (usage["input_tokens"], usage["output_tokens"]) for id_, usage in seen.items() if usage}

    def _object(self, reply: Made, there: list[dict[str, Any]], status: str) -> dict[str, Any]:
        """The response object after some of its events."""
        items = [event["item"] for event in there if event["type"] == "response.output_item.done"]
        usage = None
        if status == "cancelled":
            usage = _usage(there)
            deltas = [e for e in there if e["type"] == "response.output_text.delta"]
            if deltas and not any(item["type"] == "message" for item in items):
                items = [*items, _message("".join(e["delta"] for e in deltas), "incomplete")]
        return _response(reply, status, items, usage)


def _usage(there: list[dict[str, Any]]) -> dict[str, Any]:
    said = SAID_PER_PIECE * sum(event["type"].endswith(".delta") for event in there)
    return {"input_tokens": SENT, "output_tokens": said, "total_tokens": SENT + said}


def _response(reply: Made, status: str, output: list[Any], usage: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": reply.id, "object": "response", "background": bool(reply.body.get("background")), "status": status,
        "model": reply.body["model"], "output": output, "usage": usage, "error": None, **more,
    }  # fmt: skip


def _message(text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def _script(reply: Made) -> list[dict[str, Any]]:
    """All events of a reply."""
    fate, _, behind = last_words(reply.body).partition(" ")
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]}
    spoken = _pieces(behind if fate == "say" else WORDS)[: 3 if fate in ("fail", "short") else None]
    message = _message("".join(spoken), "incomplete" if fate == "short" else "completed")
    events: list[dict[str, Any]] = [
        {"type": "response.queued", "response": _response(reply, "queued", [], None)},
        {"type": "response.created", "response": _response(reply, "in_progress", [], None)},
        {"type": "response.in_progress", "response": _response(reply, "in_progress", [], None)},
        {"type": "response.output_item.added", "output_index": 0, "item": {**thought, "summary": []}},
        *({"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0,
            "delta": piece} for piece in _pieces(THOUGHT)),
        {"type": "response.output_item.done", "output_index": 0, "item": {**thought, "encrypted_content": "x"}},
        {"type": "response.output_item.added", "output_index": 1, "item": {**message, "content": []}},
        *({"type": "response.output_text.delta", "output_index": 1, "content_index": 0,
            "delta": piece} for piece in spoken),
    ]  # fmt: skip
    if fate == "fail":
        error = {"code": "server_error", "message": "The model fell asleep."}
        failed = _response(reply, "failed", [], None)
        events.append({"type": "response.failed", "response": {**failed, "error": error}})
    else:
        events.append({"type": "response.output_item.done", "output_index": 1, "item": message})
        status = "incomplete" if fate == "short" else "completed"
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if fate == "short" else {}
        whole = _response(reply, status, [thought, message], _usage(events), **details)
        events.append({"type": f"response.{status}", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def sse(event: Mapping[str, Any]) -> bytes:
    """An event in the format of the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


class Told:
    """A stream in progress. Its user waits for the time and writes the pieces."""

    def __init__(self, books: Books, made: Made, after: int = -1) -> None:
        self._books, self._made, self._after = books, made, after
        self._left = 10**9
        self._fault = ""

    def strike(self, fault: str) -> None:
        """Apply a fault to the stream."""
        kind, _, number = fault.partition(" ")
        self._fault = fault
        if kind == "cut":
            self._left = int(number)
        if kind == "twice":
            self._after = max(self._after - 3, -1)

    def piece(self, now: float) -> bytes | None:
        """The next bytes; empty if there are none yet, and None at the end."""
        if self._fault == "silent":
            return b""
        if self._fault in ("end", "garbage"):
            text = b'data: {"type": "respo\n\n' if self._fault == "garbage" else None
            self._fault = "end"
            return text
        new = self._books.events(self._made, self._after, now)
        if new and self._left == 0:
            raise NetworkError("the connection broke")
        if not new:
            return None if self._books.is_over(self._made, now) else b""
        self._after = new[-1]["sequence_number"]
        text = b"".join(map(sse, new))[: self._left]
        self._left -= len(text)
        return text


# -- on the tests' own time


class BooksTransport:
    """A network to the books. Faults happen in order, each at the next request that it applies to."""

    def __init__(self, books: Books, faults: list[str] | None = None) -> None:
        self.books = books
        self.faults = list(faults or [])
        self.asked: list[str] = []  # each request, as method and path
        self.key = ""  # the only accepted key; empty accepts any

    async def aclose(self) -> None:
        pass

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.sleep(0.01)
        path, _, query = request.url.partition("/v1/")[2].partition("?")
        self.asked.append(f"{request.method} {path}{'?' + query if query else ''}")
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refuse":
            refused = NetworkError("no connection")
            refused.before_sending = True
            raise refused
        if self.key and request.headers["authorization"] != f"Bearer {self.key}":
            return _Whole(401, {"error": {"message": "Incorrect API key", "type": "invalid_request_error"}})
        if fault == "busy":
            return _Whole(*BUSY)
        answer = self.books.answer(request.method, path, query, bytes(request.body), anyio.current_time())
        if fault == "hold":
            await anyio.sleep_forever()
        if fault == "lose":
            raise NetworkError("the connection was lost")
        if isinstance(answer, tuple):
            return _Whole(*answer)
        if fault == "no stream" and request.method == "GET":
            return _Whole(*NO_STREAM)
        answer.strike(fault)
        return _Stream(answer, self.books.pace)


class _Whole:
    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": "application/json"}
        self._body: bytes | None = json.dumps(body).encode()

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        body, self._body = self._body, None
        return body

    async def aclose(self) -> None:
        pass


class _Stream:
    status = 200

    def __init__(self, told: Told, pace: float) -> None:
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream"}
        self._told, self._pace = told, pace

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        while True:
            piece = self._told.piece(anyio.current_time())
            if piece != b"":
                return piece
            await anyio.sleep(self._pace)

    async def aclose(self) -> None:
        pass


# -- in a process of its own


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    books: Books
    faults: ClassVar[list[str]] = []
    lock = Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path == "/faults":
            with self.lock:
                self.faults[:] = faults_after(self.faults, json.loads(body))
            self._say(200, {})
        else:
            self._answer(body)

    def do_GET(self) -> None:
        if self.path != "/books":
            self._answer(b"")
            return
        with self.lock:
            now = time.monotonic()
            made = {
                one.id: {"status": self.books.look(one, now)["status"], "words": last_words(one.body)}
                for one in self.books.made.values()
            }
            told = {"made": made, "bill": self.books.bill(now), "cancels": self.books.cancels}
        self._say(200, told)

    def _answer(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        with self.lock:
            fault = self.faults.pop(0) if self.faults else ""
            refused = fault in ("refuse", "busy")
            path = parts.path.partition("/v1/")[2]
            answer: Any = refused or self.books.answer(self.command, path, parts.query, body, time.monotonic())
        if fault == "hold":
            self.rfile.read(1)  # until the connection closes
        if fault in ("refuse", "hold", "lose"):
            self.close_connection = True
        elif fault == "busy":
            self._say(*BUSY)
        elif isinstance(answer, tuple):
            self._say(*answer)
        elif fault == "no stream" and self.command == "GET":
            self._say(*NO_STREAM)
        else:
            answer.strike(fault)
            self._tell(answer)

    def _say(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _tell(self, told: Told) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with suppress(OSError, NetworkError):  # the reader may disconnect
            while (piece := self._piece(told)) is not None:
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                else:
                    time.sleep(self.books.pace)
            self.wfile.write(b"0\r\n\r\n")

    def _piece(self, told: Told) -> bytes | None:
        with self.lock:
            return told.piece(time.monotonic())


class BackgroundServer(ServerProcess):
    """The server's process, as tests use it."""

    def __init__(self, pace: float = 0.02, folder: Path | None = None) -> None:
        super().__init__("tests.support.background_server", pace, folder or "")


@contextmanager
def background_server(pace: float = 0.02, folder: Path | None = None) -> Iterator[BackgroundServer]:
    """Run a server within a block."""
    with BackgroundServer(pace, folder) as server:
        yield server


def main() -> None:
    """Serve until stdin is closed."""
    pace, folder, port = (*sys.argv[1:], *("0.02", "", "0")[len(sys.argv) - 1 :])
    _Handler.books = Books(float(pace), Path(folder) / "replies.json" if folder else None)
    serve(_Handler, int(port))


if __name__ == "__main__":
    main()
