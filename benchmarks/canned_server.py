"""A server with canned replies, as fast as asyncio allows, to measure clients against: see `per_delta`.

    python -m benchmarks.canned_server DELTAS [PER_SECOND]

Prints its port, and ends when its standard input does. Streams have DELTAS deltas: all at once, ten events to a
write, or with PER_SECOND one delta to a write, that many in a second. Only asyncio is imported.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

Wire = tuple[bytes, list[bytes]]
"""A whole reply's body, and the events of a streamed one."""

USAGE = {"input_tokens": 10, "output_tokens": 60}


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: dict[str, Any], *, named: bool = True) -> bytes:
    name = b"event: " + value["type"].encode() + b"\n" if named else b""
    return name + b"data: " + dump(value) + b"\n\n"


def words(deltas: int) -> list[str]:
    return [f"lorem ipsum {number} " for number in range(deltas)]


def chat(deltas: int) -> Wire:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "canned"}

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**head, "choices": [choice]}, named=False)

    usage = {"prompt_tokens": 10, "completion_tokens": 60, "total_tokens": 70}
    message = {"role": "assistant", "content": "lorem ipsum dolor " * 20}
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "canned",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": word}) for word in words(deltas)]
    events += [chunk({}, "stop"), event({**head, "choices": [], "usage": usage}, named=False)]
    return dump(whole), [*events, b"data: [DONE]\n\n"]


def messages(deltas: int) -> Wire:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "canned", "usage": USAGE}
    text = {"type": "text", "text": "lorem ipsum dolor " * 20}
    whole = {**message, "content": [text], "stop_reason": "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    for word in words(deltas):
        delta = {"type": "text_delta", "text": word}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    events += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": deltas}},
        {"type": "message_stop"},
    ]
    return dump(whole), [event(value) for value in events]


def responses(deltas: int) -> Wire:
    def response(status: str, output: list[Any]) -> dict[str, Any]:
        head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "canned", "error": None}
        return {**head, "status": status, "output": output, "usage": USAGE if output else None}

    def item(text: str) -> dict[str, Any]:
        part = {"type": "output_text", "annotations": [], "text": text}
        return {"id": "item_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}

    place = {"item_id": "item_1", "output_index": 0}
    text = "".join(words(deltas))
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item(""), "content": []}},
    ]
    head = {"type": "response.output_text.delta", **place, "content_index": 0}
    events += [{**head, "delta": word} for word in words(deltas)]
    events += [
        {"type": "response.output_text.done", **place, "content_index": 0, "text": text},
        {"type": "response.output_item.done", "output_index": 0, "item": item(text)},
        {"type": "response.completed", "response": response("completed", [item(text)])},
    ]
    whole = response("completed", [item("lorem ipsum dolor " * 20)])
    return dump(whole), [event({**value, "sequence_number": at}) for at, value in enumerate(events)]


def plain(body: bytes) -> bytes:
    length = str(len(body)).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: " + length + b"\r\n\r\n" + body


def chunk_of(data: bytes) -> bytes:
    return f"{len(data):x}".encode() + b"\r\n" + data + b"\r\n"


def chunked(events: list[bytes], at_once: int) -> Iterable[bytes]:
    yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for start in range(0, len(events), at_once):
        yield chunk_of(b"".join(events[start : start + at_once]))
    yield b"0\r\n\r\n"


class Server:
    """The replies, made once."""

    def __init__(self, deltas: int, per_second: float | None) -> None:
        wires = {b"/v1/chat": chat(deltas), b"/v1/mess": messages(deltas), b"/v1/resp": responses(deltas)}
        self.plain = {path: plain(body) for path, (body, _) in wires.items()}
        self.pieces = {path: list(chunked(events, 1 if per_second else 10)) for path, (_, events) in wires.items()}
        self.bursts = {path: b"".join(pieces) for path, pieces in self.pieces.items()}
        self.per_second = per_second
        self.streams = 0


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.pending = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pending += data
        while (end := self.pending.find(b"\r\n\r\n")) >= 0:
            head = self.pending[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.pending) < end + 4 + length:
                return
            body = self.pending[end + 4 : end + 4 + length]
            self.pending = self.pending[end + 4 + length :]
            self.answer(head.split(b" ", 2)[1][:8], b'"stream":true' in body)

    def answer(self, path: bytes, stream: bool) -> None:
        server = self.server
        if not stream:
            self.transport.write(server.plain[path])
        elif server.per_second is None:
            self.transport.write(server.bursts[path])
        else:
            server.streams += 1
            phase = server.streams * 0.618 % 1 / server.per_second  # or all streams would speak at one moment
            self.drip(server.pieces[path], 0, asyncio.get_running_loop().time() + phase)

    def drip(self, pieces: list[bytes], at: int, started: float) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(pieces[at])
        if at + 1 < len(pieces):
            assert self.server.per_second is not None
            due = started + (at + 1) / self.server.per_second
            asyncio.get_running_loop().call_at(due, self.drip, pieces, at + 1, started)


async def serve(deltas: int, per_second: float | None) -> None:
    loop = asyncio.get_running_loop()
    server = Server(deltas, per_second)
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)  # with whoever started it, whatever is still being written


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None))
