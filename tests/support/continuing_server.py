"""A provider that continues the beginning of a reply, breaks off, and records its requests, with the tests' fake
time.

Its text is fixed. If the last message of a request is the model's, it sends the text after that message. It speaks
Messages, and Chat Completions as several servers do. A break is a number: the connection is lost after this number
of characters. Other breaks are ``end`` (the stream ends early), ``refuse`` (no connection), ``busy`` (503),
``overloaded`` (Messages: an error in the middle of the stream) and ``ok``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio

from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import NetworkError


class TextProvider:
    """The provider, which is also the network to it."""

    def __init__(self, text: str, breaks: list[int | str], kind: str = "messages", *, piece: int = 3) -> None:
        self.text, self.breaks, self.kind, self.piece = text, list(breaks), kind, piece
        self.bodies: list[dict[str, Any]] = []
        self.bill: list[tuple[int, int]] = []
        """The input and output tokens of each request that was carried out."""

    async def aclose(self) -> None:
        pass

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.sleep(0.01)
        fault = self.breaks.pop(0) if self.breaks else "ok"
        if fault == "refuse":
            raise NetworkError("no connection")
        body = json.loads(request.body)
        self.bodies.append(body)
        if fault == "busy":
            return _Reply(503, [b'{"error": {"message": "busy", "type": "server_error"}}'], None)
        beginning = self._beginning(body)
        if beginning is None:
            return _Reply(
                400, [b'{"error": {"message": "no such beginning", "type": "invalid_request_error"}}'], None
            )
        rest = self.text[len(beginning) :]
        words = beginning + rest if self.kind == "prefix" else rest
        said = words[:fault] if isinstance(fault, int) else words[: len(words) // 2] if fault != "ok" else words
        sent, spoken = 100 + len(beginning), len(said)
        self.bill.append((sent, spoken))
        whole = fault == "ok" or (isinstance(fault, int) and fault >= len(words))
        events = self._messages(said, sent, whole) if self.kind == "messages" else self._chat(said, sent, whole)
        if fault == "overloaded":
            error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            events.append(_sse(error, "error"))
        ends = whole or fault in ("end", "overloaded")
        return _Reply(200, events, None if ends else NetworkError("the connection broke"))

    def _beginning(self, body: dict[str, Any]) -> str | None:
        """The beginning that the reply must continue; None if the provider refuses it."""
        last = body["messages"][-1]
        if last["role"] != "assistant":
            return ""
        content = last["content"]
        words = content if isinstance(content, str) else "".join(part["text"] for part in content)
        fits = {
            "messages": "messages" in self.kind,
            "prefix": last.get("prefix") is True,
            "partial": last.get("partial") is True,
            "final_message": body.get("continue_final_message") is True
            and body.get("add_generation_prompt") is False,
            "plain": set(last) == {"role", "content"},
        }
        refused = words != words.rstrip() or not fits[self.kind] or not self.text.startswith(words)
        return None if refused else words

    def _pieces(self, said: str) -> list[str]:
        return [said[start : start + self.piece] for start in range(0, len(said), self.piece)]

    def _messages(self, said: str, sent: int, whole: bool) -> list[bytes]:
        start = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": [],
        }  # fmt: skip
        usage = {"input_tokens": sent, "output_tokens": 1}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**start, "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ]
        for piece in self._pieces(said):
            delta = {"type": "text_delta", "text": piece}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        if whole:
            end = {"stop_reason": "end_turn", "stop_sequence": None}
            events += [
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": end, "usage": {"output_tokens": len(said)}},
                {"type": "message_stop"},
            ]
        return [_sse(event, event["type"]) for event in events]

    def _chat(self, said: str, sent: int, whole: bool) -> list[bytes]:
        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return _sse({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more})

        events = [
            chunk({"role": "assistant", "content": ""}),
            *(chunk({"content": p}) for p in self._pieces(said)),
        ]
        if whole:
            usage = {"prompt_tokens": sent, "completion_tokens": len(said), "total_tokens": sent + len(said)}
            events += [chunk({}, "stop", usage=usage), b"data: [DONE]\n\n"]
        return events


def _sse(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


class _Reply:
    def __init__(self, status: int, pieces: list[bytes], error: Exception | None) -> None:
        self.status, self._pieces, self._error = status, pieces, error
        kind = "text/event-stream" if status < 300 else "application/json"
        self.headers: Mapping[str, str] = {"content-type": kind}

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        if self._pieces:
            return self._pieces.pop(0)
        if self._error is not None:
            raise self._error
        return None

    async def aclose(self) -> None:
        pass
