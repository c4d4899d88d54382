"""A provider of background responses that keeps books, and loses connections, restarts and answers twice.

`Books` is pure: it is told the time. `BooksTransport` is a network to it on the tests' own time, and `main` serves
it in a process of its own, on the time of the clock on the wall:

    python -m tests.support.background_server [PACE]

A reply has numbered events, one more every `pace` seconds. The words of its request decide what becomes of it:

    "fail"    it fails after its first words
    "short"   it ends at the limit of its tokens

A fault strikes once, at the next request for which it is meant:

    refuse       the connection isn't made
    lose         the request is carried out, and its answer is lost
    busy         503 before anything is carried out
    cut N        the stream breaks after N bytes of events
    silent       the stream opens and says nothing any more
    end          the stream ends, as if it were over
    twice        the stream begins with events that were read before
    no stream    400: the events are no longer kept
    garbage      an event that is no JSON, and the end
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import anyio

from adapters.transport.transport import HttpReply, HttpRequest
from bus.errors import NetworkError

ROOT = Path(__file__).resolve().parents[2]

THOUGHT = "First the moon, then the tides."
WORDS = "The tide comes in, and the tide goes out; twice a day, says Ω the moon."
SENT, SAID_PER_PIECE = 1013, 7


def _pieces(text: str, size: int = 6) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _last_words(body: Mapping[str, Any]) -> str:
    content = body["input"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@dataclass
class Made:
    """A reply that is being made."""

    id: str
    body: dict[str, Any]
    began: float
    ended: float | None = None  # when it was cancelled
    looked: int = 0
    script: list[dict[str, Any]] = field(default_factory=list)

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


class Books:
    """What the provider knows. Every method is told the time, in seconds."""

    def __init__(self, pace: float = 1.0) -> None:
        self.pace = pace
        self.made: dict[str, Made] = {}
        self.cancels: list[str] = []

    def create(self, body: dict[str, Any], now: float) -> Made:
        """A reply that begins now."""
        began = now if body.get("background") else now - 1e6  # else it is whole at once
        reply = Made(f"resp_{len(self.made) + 1}", body, began)
        reply.script = _script(reply)
        self.made[reply.id] = reply
        return reply

    def events(self, reply: Made, after: int, now: float) -> list[dict[str, Any]]:
        """The events behind a number that are there by now."""
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
        """Whether nothing more will come of a reply."""
        return self.look(reply, now)["status"] not in ("queued", "in_progress")

    def look(self, reply: Made, now: float) -> dict[str, Any]:
        """The reply as it stands."""
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
        return self.look(reply, now)

    def bill(self, now: float) -> dict[str, tuple[int, int]]:
        """The input and output tokens of each reply that is billed."""
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
        "id": reply.id,
        "object": "response",
        "background": bool(reply.body.get("background")),
        "status": status,
        "model": reply.body["model"],
        "output": output,
        "usage": usage,
        "error": None,
        **more,
    }


def _message(text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def _script(reply: Made) -> list[dict[str, Any]]:
    """All events of a reply."""
    words = _last_words(reply.body)
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]}
    spoken = _pieces(WORDS)[: 3 if words in ("fail", "short") else None]
    message = _message("".join(spoken), "incomplete" if words == "short" else "completed")
    events: list[dict[str, Any]] = [
        {"type": "response.queued", "response": _response(reply, "queued", [], None)},
        {"type": "response.created", "response": _response(reply, "in_progress", [], None)},
        {"type": "response.in_progress", "response": _response(reply, "in_progress", [], None)},
        {"type": "response.output_item.added", "output_index": 0, "item": {**thought, "summary": []}},
        *(
            {
                "type": "response.reasoning_summary_text.delta",
                "output_index": 0,
                "summary_index": 0,
                "delta": piece,
            }
            for piece in _pieces(THOUGHT)
        ),
        {"type": "response.output_item.done", "output_index": 0, "item": {**thought, "encrypted_content": "x"}},
        {"type": "response.output_item.added", "output_index": 1, "item": {**message, "content": []}},
        *(
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": piece}
            for piece in spoken
        ),
    ]
    if words == "fail":
        error = {"code": "server_error", "message": "The model fell asleep."}
        failed = _response(reply, "failed", [], None)
        events.append({"type": "response.failed", "response": {**failed, "error": error}})
    else:
        events.append({"type": "response.output_item.done", "output_index": 1, "item": message})
        status = "incomplete" if words == "short" else "completed"
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if words == "short" else {}
        whole = _response(reply, status, [thought, message], _usage(events), **details)
        events.append({"type": f"response.{status}", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def sse(event: Mapping[str, Any]) -> bytes:
    """An event as it goes over the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


# -- on the tests' own time


class BooksTransport:
    """A network to the books. The faults strike in order, each at the next request that it can strike."""

    def __init__(self, books: Books, faults: list[str] | None = None) -> None:
        self.books = books
        self.faults = list(faults or [])
        self.asked: list[str] = []  # each request, as method and path
        self.key = ""  # the only one that is taken; empty for any

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
            return _Whole(503, {"error": {"message": "busy", "type": "server_error"}})
        reply = self._carried_out(request, path, parse_qs(query), fault)
        if fault == "lose":
            raise NetworkError("the connection was lost")
        return reply

    def _carried_out(
        self, request: HttpRequest, path: str, query: Mapping[str, list[str]], fault: str
    ) -> HttpReply:
        now = anyio.current_time()
        if request.method == "POST" and path == "responses":
            body = json.loads(request.body)
            made = self.books.create(body, now)
            if made.streamed:
                return _Stream(self.books, made, -1, fault)
            return _Whole(200, self.books.look(made, now))
        _, response_id, *action = path.split("/")
        made_before = self.books.made.get(response_id)
        if made_before is None:
            return _Whole(404, {"error": {"message": f"Response {response_id} not found.", "type": "not_found"}})
        if action == ["cancel"]:
            return _Whole(200, self.books.cancel(made_before, now))
        if query.get("stream") != ["true"]:
            return _Whole(200, self.books.look(made_before, now))
        if fault == "no stream" or not made_before.streamed:
            return _Whole(400, {"error": {"message": "no stream", "type": "invalid_request_error"}})
        after = int(query.get("starting_after", ["-1"])[0])
        return _Stream(self.books, made_before, max(after - 3, -1) if fault == "twice" else after, fault)


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

    def __init__(self, books: Books, made: Made, after: int, fault: str) -> None:
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream"}
        self._books, self._made, self._after, self._fault = books, made, after, fault
        kind, _, number = fault.partition(" ")
        self._left = int(number) if kind == "cut" else 10**9

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        if self._fault == "silent":
            await anyio.sleep_forever()
        if self._fault in ("end", "garbage"):
            text = b'data: {"type": "respo\n\n' if self._fault == "garbage" else None
            self._fault = "end"
            return text
        while True:
            now = anyio.current_time()
            new = self._books.events(self._made, self._after, now)
            if new:
                break
            if self._books.is_over(self._made, now):
                return None
            await anyio.sleep(self._books.pace)
        self._after = new[-1]["sequence_number"]
        text = b"".join(map(sse, new))
        if len(text) > self._left:
            self._fault, cut = "broken", text[: self._left]
            self._left = 0
            if not cut:
                raise NetworkError("the connection broke")
            return cut
        self._left -= len(text)
        return text

    async def aclose(self) -> None:
        pass


# -- in a process of its own


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    books: Books
    lock = Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        path = urlsplit(self.path).path
        with self.lock:
            if path.endswith("/cancel"):
                self._json(200, self.books.cancel(self.books.made[path.split("/")[-2]], time.monotonic()))
            else:
                made = self.books.create(json.loads(body), time.monotonic())
        if path.endswith("/responses"):
            if made.streamed:
                self._stream(made, -1)
            else:
                self._json(200, self.books.look(made, time.monotonic()))

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/books":
            now = time.monotonic()
            made = {one.id: {"status": self.books.look(one, now)["status"]} for one in self.books.made.values()}
            self._json(200, {"made": made, "bill": self.books.bill(now), "cancels": self.books.cancels})
            return
        query = parse_qs(parts.query)
        made_before = self.books.made.get(parts.path.rpartition("/")[2])
        if made_before is None:
            self._json(404, {"error": {"message": "Response not found.", "type": "not_found"}})
        elif query.get("stream") == ["true"]:
            self._stream(made_before, int(query.get("starting_after", ["-1"])[0]))
        else:
            self._json(200, self.books.look(made_before, time.monotonic()))

    def _json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, made: Made, after: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):  # whoever reads may leave
            while True:
                now = time.monotonic()
                for event in self.books.events(made, after, now):
                    after = event["sequence_number"]
                    self.wfile.write(sse(event))
                self.wfile.flush()
                if self.books.is_over(made, now):
                    return
                time.sleep(self.books.pace)


class BackgroundServer:
    """The server, seen from the tests."""

    def __init__(self, url: str) -> None:
        self.url = url

    def books(self) -> dict[str, Any]:
        """The replies that were made, what is billed, and what was cancelled."""
        with urlopen(f"{self.url}/books") as reply:
            found: dict[str, Any] = json.loads(reply.read())
        return found


@contextmanager
def background_server(pace: float = 0.02) -> Iterator[BackgroundServer]:
    """A server in a process of its own."""
    command = [sys.executable, "-m", "tests.support.background_server", str(pace)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield BackgroundServer(process.stdout.readline().strip())
        finally:
            process.kill()


def main() -> None:
    """Serve until stdin is closed."""
    _Handler.books = Books(float(sys.argv[1]) if len(sys.argv) > 1 else 0.02)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()

    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
