"""A fast server of fixed replies in each of the four streaming protocols, in a process of its own.

    python -m tests.support.reply_server [DELTAS [PER_SECOND]]

It prints its URL and runs until its stdin is closed, so it ends with the process that started it. A request for a
stream gets DELTAS deltas, any other a reply of a few sentences. The deltas come ten to a chunk and all at once;
with PER_SECOND one to a chunk after the first, so many in a second, each stream at its own moments. Headers may
ask for:

    x-together: N   no reply before N requests wait, so that N are in progress together; a streamed reply then
                    comes in chunks a few milliseconds apart, in turn with those of all others
    x-hold: 1       a streamed reply stops after its first chunk until somebody gets /release
    x-limit: N MS   at most N requests in each window of MS milliseconds, and headers that tell of it; further
                    ones are refused with 429. With `N MS silent` the headers tell nothing

GET /hold stops all streams until GET /release. GET /finish sends the rest of all streams immediately.

GET /served returns for each value of the header `authorization` the number of requests with a reply, and the
number of complete replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

ROOT = Path(__file__).resolve().parents[2]
DELTAS_PER_CHUNK = 10
PACE_SECONDS = 0.005
FIRST_EVENTS = 6
"""Events in the first chunk of a paced stream. In each protocol they include a delta."""

SENTENCES = "The curtain rises on a quiet street. A clerk reads the notice, then reads it again. " * 6
USAGE_OUT = 120
TOLD_TO_ALL = ("/release", "/hold", "/finish")
REFUSED = (
    b'HTTP/1.1 429 Too Many Requests\r\ncontent-length: 46\r\n\r\n{"error":{"message":"slow","code":"too_many"}}'
)


def words(deltas: int) -> list[str]:
    """The text of each delta of a streamed reply."""
    return [f"word {index:03d} of it " for index in range(deltas)]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _named(kind: str, **fields: object) -> str:
    return f"event: {kind}\ndata: {_json({'type': kind, **fields})}\n\n"


class Chat:
    path = "/v1/chat/completions"
    usage: ClassVar = {"prompt_tokens": 900, "completion_tokens": USAGE_OUT, "total_tokens": 900 + USAGE_OUT}
    head: ClassVar = {"id": "chatcmpl-b", "created": 1_700_000_000, "model": "bench"}

    @classmethod
    def whole(cls) -> dict[str, object]:
        message = {"role": "assistant", "content": SENTENCES, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**cls.head, "object": "chat.completion", "choices": [choice], "usage": cls.usage}

    @classmethod
    def events(cls, texts: list[str]) -> list[str]:
        def chunk(delta: dict[str, object], finish: str | None = None, **more: object) -> str:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return (
                f"data: {_json({**cls.head, 'object': 'chat.completion.chunk', 'choices': [choice], **more})}\n\n"
            )

        usage = {**cls.head, "object": "chat.completion.chunk", "choices": [], "usage": cls.usage}
        return [
            chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts),
            chunk({}, "stop"), f"data: {_json(usage)}\n\n", "data: [DONE]\n\n",
        ]  # fmt: skip


class GenerateContent:
    """The path of a request, with the method after a colon. Spaces and line ends are as in the vendor's
    replies.
    """

    path = "/v1beta/models/bench"
    usage: ClassVar = {
        "promptTokenCount": 900,
        "candidatesTokenCount": USAGE_OUT,
        "totalTokenCount": 900 + USAGE_OUT,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 900}],
    }

    @classmethod
    def _chunk(cls, text: str, **more: object) -> dict[str, object]:
        content = {"parts": [{"text": text}], "role": "model"}
        candidate = {"content": content, **more, "index": 0}
        named = {"modelVersion": "bench", "responseId": "reply_b"}
        return {"candidates": [candidate], "usageMetadata": cls.usage, **named}

    @classmethod
    def whole(cls) -> dict[str, object]:
        return cls._chunk(SENTENCES, finishReason="STOP")

    @classmethod
    def events(cls, texts: list[str]) -> list[str]:
        chunks = [*(cls._chunk(text) for text in texts), cls._chunk("", finishReason="STOP")]
        return [f"data: {json.dumps(chunk, separators=(',', ': '))}\r\n\r\n" for chunk in chunks]


class Messages:
    path = "/v1/messages"
    usage: ClassVar = {
        "input_tokens": 900, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": USAGE_OUT,
    }  # fmt: skip
    head: ClassVar = {"id": "msg_b", "type": "message", "role": "assistant", "model": "bench"}

    @classmethod
    def whole(cls) -> dict[str, object]:
        content = [{"type": "text", "text": SENTENCES}]
        return {
            **cls.head, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": cls.usage,
        }  # fmt: skip

    @classmethod
    def events(cls, texts: list[str]) -> list[str]:
        begun = {**cls.head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": cls.usage}
        return [
            _named("message_start", message=begun),
            _named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            *(_named("content_block_delta", index=0, delta={"type": "text_delta",
                "text": text}) for text in texts), _named("content_block_stop", index=0),
            _named("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None},
                usage={"output_tokens": USAGE_OUT}), _named("message_stop"),
        ]  # fmt: skip


class Responses:
    path = "/v1/responses"

    @classmethod
    def _response(cls, status: str, text: str | None) -> dict[str, object]:
        done = status == "completed"
        usage = {
            "input_tokens": 900, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": USAGE_OUT,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 900 + USAGE_OUT,
        }  # fmt: skip
        return {
            "id": "resp_b", "object": "response", "created_at": 1_700_000_000, "status": status, "error": None,
            "incomplete_details": None, "model": "bench", "output": [cls._item(text)] if text is not None else [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage if done else None,
        }  # fmt: skip

    @staticmethod
    def _item(text: str) -> dict[str, object]:
        content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]
        return {"id": "msg_b", "type": "message", "status": "completed", "role": "assistant", "content": content}

    @classmethod
    def whole(cls) -> dict[str, object]:
        return cls._response("completed", SENTENCES)

    @classmethod
    def events(cls, texts: list[str]) -> list[str]:
        text = "".join(texts)
        place = {"item_id": "msg_b", "output_index": 0, "content_index": 0}
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        opened = {"id": "msg_b", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        steps: list[tuple[str, dict[str, object]]] = [
            ("response.created", {"response": cls._response("in_progress", None)}),
            ("response.in_progress", {"response": cls._response("in_progress", None)}),
            ("response.output_item.added", {"output_index": 0, "item": opened}),
            ("response.content_part.added", {**place, "part": part}),
            *(("response.output_text.delta", {**place, "delta": text, "logprobs": []}) for text in texts),
            ("response.output_text.done", {**place, "text": text, "logprobs": []}),
            ("response.content_part.done", {**place, "part": {**part, "text": text}}),
            ("response.output_item.done", {"output_index": 0, "item": cls._item(text)}),
            ("response.completed", {"response": cls._response("completed", text)}),
        ]
        return [_named(kind, sequence_number=number, **fields) for number, (kind, fields) in enumerate(steps)]


class Replies:
    """All bytes that the server can send, made once. For each path: the plain reply, the stream, and its chunks.

    Args:
        deltas: The number of deltas in a stream.
        per_second: The number of chunks of a stream per second; None sends all chunks immediately.
    """

    def __init__(self, deltas: int, per_second: float | None = None) -> None:
        self.per_second = per_second
        self.whole: dict[str, bytes] = {}
        self.chunks: dict[str, list[bytes]] = {}
        self.streams: dict[str, bytes] = {}
        first, at_once = (DELTAS_PER_CHUNK, DELTAS_PER_CHUNK) if per_second is None else (FIRST_EVENTS, 1)
        for protocol in (Chat, GenerateContent, Messages, Responses):
            body = _json(protocol.whole()).encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self.whole[protocol.path] = head.encode() + body
            self.chunks[protocol.path] = list(self._chunked(protocol.events(words(deltas)), first, at_once))
            self.streams[protocol.path] = b"".join(self.chunks[protocol.path])

    @staticmethod
    def _chunked(events: list[str], first: int, at_once: int) -> Iterator[bytes]:
        starts = [0, *range(first, len(events), at_once), len(events)]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        for start, stop in itertools.pairwise(starts):
            piece = "".join(events[start:stop]).encode()
            yield head + f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
            head = b""
        yield b"0\r\n\r\n"


class Window:
    """The requests in the current window of a rate limit, which requests choose by a header."""

    def __init__(self) -> None:
        self._taken = 0
        self._ends = 0.0

    def take(self, asked: str) -> tuple[bool, bytes]:
        """Return whether another request is within the limit, and the headers of its reply.

        Args:
            asked: The value of the request's x-limit.
        """
        most, length, *silent = asked.split()
        now = time.time()
        if now >= self._ends:
            self._taken, self._ends = 0, now + int(length) / 1000
        fits = self._taken < int(most)
        self._taken += fits
        told = {
            "x-ratelimit-limit": most,
            "x-ratelimit-remaining": str(int(most) - self._taken),
            "x-ratelimit-reset": str(int(self._ends * 1000) + 1),
        }
        if silent:
            told.clear()
        if not fits:
            told["retry-after-ms"] = str(int((self._ends - now) * 1000) + 1)
        return fits, "".join(f"{name}: {value}\r\n" for name, value in told.items()).encode()


class Connection(asyncio.Protocol):
    """One connection. It handles requests one after the other."""

    waiting: ClassVar[list[Connection]] = []
    all: ClassVar[set[Connection]] = set()
    begun: ClassVar[itertools.count[int]] = itertools.count(1)
    window: ClassVar[Window] = Window()
    served: ClassVar[dict[str, list[int]]] = {}

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._transport: asyncio.Transport
        self._received = b""
        self._writable = True
        self._rest: list[bytes] = []
        self._due = 0.0  # the time of the next chunk of a paced stream
        self._scheduled = False
        self._held = False
        self._reply: tuple[str, bool, bool] = ("", False, False)
        self._told = b""  # headers of the reply
        self._count = [0, 0]  # the numbers of begun and of complete replies with this key

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is no subclass
        Connection.all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        Connection.all.discard(self)
        self._rest = []
        if self in Connection.waiting:
            Connection.waiting.remove(self)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._write_next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            lines = self._received[:end].decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            stop = end + 4 + int(headers.get("content-length", "0"))
            if len(self._received) < stop:
                return
            body, self._received = self._received[end + 4 : stop], self._received[stop:]
            self._answer(lines[0].split(" ")[1], headers, body)

    def _answer(self, path: str, headers: dict[str, str], body: bytes) -> None:
        if path in TOLD_TO_ALL:
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            for connection in Connection.all:
                connection._told_of_all(path)
            return
        if path == "/served":
            told = _json(Connection.served).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(told) + told)
            return
        if "x-limit" in headers:
            fits, self._told = Connection.window.take(headers["x-limit"])
            if not fits:
                self._transport.write(REFUSED.replace(b"\r\n", b"\r\n" + self._told, 1))
                return
        resource, _, method = path.partition(":")
        if resource not in self._replies.whole:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self._count = Connection.served.setdefault(headers.get("authorization", ""), [0, 0])
        self._count[0] += 1
        streamed = method.startswith("stream") or b'"stream":true' in body or b'"stream": true' in body
        self._reply = (resource, streamed, "x-hold" in headers)
        together = int(headers.get("x-together", "1"))
        if together == 1:
            self._begin(in_turn=False)
            return
        Connection.waiting.append(self)
        if len(Connection.waiting) >= together:
            begin, Connection.waiting[:] = list(Connection.waiting), []
            for connection in begin:
                connection._begin(in_turn=True)

    def _begin(self, *, in_turn: bool) -> None:
        path, streamed, hold = self._reply
        if not streamed:
            self._transport.write(self._with_headers(self._replies.whole[path]))
            self._count[1] += 1
        elif hold or in_turn or self._replies.per_second is not None:
            self._rest = self._replies.chunks[path][::-1]
            self._begin_to_count()
            self._write_next()
            self._held = hold
        else:
            self._transport.write(self._with_headers(self._replies.streams[path]))
            self._count[1] += 1

    def _with_headers(self, reply: bytes) -> bytes:
        return reply.replace(b"\r\n", b"\r\n" + self._told, 1) if self._told else reply

    def _begin_to_count(self) -> None:
        phase = next(Connection.begun) * 0.618 % 1  # otherwise all streams would send at the same time
        self._due = asyncio.get_running_loop().time() + phase / (self._replies.per_second or 1)

    def _told_of_all(self, path: str) -> None:
        if path == "/finish":
            self._finish()
        elif path == "/hold":
            self._held = True
        elif self._held:
            self._held = False
            self._release()

    def _release(self) -> None:
        if self._replies.per_second is None:
            self._write_next()
        elif self._rest and not self._scheduled:
            self._begin_to_count()
            self._scheduled = True
            asyncio.get_running_loop().call_at(self._due, self._continue)

    def _write_next(self) -> None:
        if not self._rest or not self._writable or self._scheduled or self._held:
            return
        self._transport.write(self._rest.pop())
        self._count[1] += not self._rest
        self._scheduled = True
        asyncio.get_running_loop().call_at(self._next_moment(), self._continue)

    def _finish(self) -> None:
        if self._rest:
            rest, self._rest = self._rest[::-1], []
            self._transport.write(b"".join(rest))
            self._count[1] += 1

    def _continue(self) -> None:
        self._scheduled = False
        self._write_next()

    def _next_moment(self) -> float:
        if self._replies.per_second is None:
            return asyncio.get_running_loop().time() + PACE_SECONDS
        self._due += 1 / self._replies.per_second
        return self._due


def leave_the_parents_cores() -> None:
    """Run on the other cores, if the parent process is bound to some."""
    with contextlib.suppress(AttributeError, OSError):  # missing on some systems and in some containers
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0))


async def serve(deltas: int, per_second: float | None) -> None:
    loop = asyncio.get_running_loop()
    replies = Replies(deltas, per_second)
    server = await loop.create_server(lambda: Connection(replies), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201
    await loop.run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def reply_server(deltas: int = 500, per_second: float | None = None) -> Iterator[str]:
    """Run the server. Yields its URL."""
    pace = [] if per_second is None else [str(per_second)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.reply_server", str(deltas), *pace], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the reply server did not start")
        yield url
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


if __name__ == "__main__":
    leave_the_parents_cores()
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    deltas, per_second = (*sys.argv[1:], None, None)[:2]
    asyncio.run(serve(int(deltas or 500), float(per_second) if per_second else None))
