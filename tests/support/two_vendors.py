"""Two vendors on one address of 127.0.0.1, which answer the requests of `examples/programs`. They run in threads
of their own.

Messages (whole and streamed), Responses (whole) and Embeddings. It reads requests as the vendors document them.
Its answers depend on the request: it calls the offered tools, repeats their results, and repeats earlier messages.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from .provider_server import in_threads

Body = dict[str, Any]

OVERLOADED = "claude-opus-4-6"
"""The model that always answers 529."""

STORY = ["Once ", "upon ", "a ", "time."]


class TwoVendors:
    """The server of `two_vendors`: the address, and the bodies of all requests by path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, Body]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which a program uses this server for both vendors."""
        return {
            "ANTHROPIC_API_KEY": "key",
            "ANTHROPIC_BASE_URL": self.url,
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": self.url,
        }


@contextmanager
def two_vendors() -> Iterator[TwoVendors]:
    """Run a server within a block."""

    class Handler(_Handler):
        asked: list[tuple[str, Body]] = []  # noqa: RUF012 (of this server)

    with in_threads(Handler) as url:
        server = TwoVendors(url)
        server.asked = Handler.asked
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, Body]]

    def do_POST(self) -> None:
        body: Body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not body:  # the adapter's probe for the protocol of the server
            self._answer({"error": {"message": "model is required", "type": "invalid_request_error"}}, 400)
            return
        self.asked.append((self.path, body))
        match self.path:
            case "/v1/messages" if body["model"] == OVERLOADED:
                error = {"type": "overloaded_error", "message": "Overloaded"}
                self._answer({"type": "error", "error": error}, 529)
            case "/v1/messages" if body.get("stream"):
                self._stream(body)
            case "/v1/messages":
                self._answer(_message(body))
            case "/v1/responses":
                self._answer(_response(body, sum(path == self.path for path, _ in self.asked)))
            case "/v1/embeddings":
                self._answer(_embeddings(body))
            case _:
                self._answer({"error": {"message": f"nothing at {self.path}"}}, 404)

    def _answer(self, body: Body, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body: Body) -> None:
        """A short story, or a novel that continues until the client disconnects."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        endless = "novel" in _said(body["messages"])[-1]
        try:
            self._event("message_start", message={**_HEAD, "content": [], "usage": _USAGE})
            self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            number = 0
            while endless or number < len(STORY):
                text = STORY[number % len(STORY)]
                self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
                number += 1
                time.sleep(0.01 if endless else 0)
            self._event("content_block_stop", index=0)
            ending = {"stop_reason": "end_turn", "stop_sequence": None}
            self._event("message_delta", delta=ending, usage={"output_tokens": number})
            self._event("message_stop")
        except OSError:  # the client has disconnected
            pass

    def _event(self, kind: str, **fields: object) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


_HEAD: Body = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-served", "stop_reason": None,
}  # fmt: skip
_USAGE: Body = {"input_tokens": 20, "output_tokens": 1}


# -- What is said


def _said(messages: list[Body]) -> list[str]:
    """The texts of the user's messages."""
    found: list[str] = []
    for message in messages:
        if message.get("role") != "user":
            continue
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        found += [block["text"] for block in blocks if "text" in block]
    return found


def _reply_to(said: list[str]) -> str:
    """A fruit, or the texts so far."""
    return "A fig." if "fruit" in said[-1] else f"You have said: {' / '.join(said)}"


def _calls(text: str, tools: list[str]) -> list[tuple[str, Body]]:
    """The tool calls for a question."""
    calls: list[tuple[str, Body]] = []
    if "weather" in tools:
        calls += [("weather", {"city": city}) for city in re.findall("Bonn|Oslo", text)]
    if "pay" in tools:
        calls += [("pay", {"euros": int(amount)}) for amount in re.findall(r"(\d+) euros", text)]
    return calls


# -- Messages


def _message(body: Body) -> Body:
    last = body["messages"][-1]["content"]
    blocks: list[Body] = [] if isinstance(last, str) else last
    results = [block for block in blocks if block["type"] == "tool_result"]
    usage = {"input_tokens": 20, "output_tokens": 10}
    if results:
        text = " ".join(_text_of(result["content"]) for result in results)
        content: list[Body] = [{"type": "text", "text": text}]
        return {**_HEAD, "content": content, "stop_reason": "end_turn", "usage": usage}
    said = _said(body["messages"])
    calls = _calls(said[-1], [tool["name"] for tool in body.get("tools", [])])
    content = []
    if body.get("thinking", {}).get("type") not in (None, "disabled"):
        content.append({"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"})
    if not calls:
        content.append({"type": "text", "text": _reply_to(said)})
    for number, (name, given) in enumerate(calls):
        content.append({"type": "tool_use", "id": f"toolu_{len(said)}_{number}", "name": name, "input": given})
    return {**_HEAD, "content": content, "stop_reason": "tool_use" if calls else "end_turn", "usage": usage}


def _text_of(content: str | list[Body]) -> str:
    return content if isinstance(content, str) else " ".join(block["text"] for block in content)


# -- Responses


def _response(body: Body, number: int) -> Body:
    given = body["input"]
    items: list[Body] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    said = _said(items)
    results = [item for item in items[-2:] if item.get("type") == "function_call_output"]
    output: list[Body] = []
    if body.get("text", {}).get("format", {}).get("type") == "json_schema":
        # first an object that violates the schema, then invalid JSON
        many = '"many"' if len(said) == 1 else "336352,"
        output.append(_output_text(f'{{"name": "Bonn", "inhabitants": {many}}}'))
    elif results:
        output.append(_output_text(" ".join(_text_of(item["output"]) for item in results)))
    else:
        calls = _calls(said[-1], [tool["name"] for tool in body.get("tools", [])])
        for place, (name, arguments) in enumerate(calls):
            call_id = f"call_{number}_{place}"
            written = json.dumps(arguments)
            output.append(
                {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name}
                | {"arguments": written, "status": "completed"}
            )
        if not calls:
            output.append(_output_text(_reply_to(said)))
    usage = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
    head = {"id": "resp_1", "object": "response", "model": "gpt-served", "status": "completed"}
    return {**head, "error": None, "incomplete_details": None, "output": output, "usage": usage}


def _output_text(text: str) -> Body:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


# -- Embeddings


def _embeddings(body: Body) -> Body:
    texts = body["input"]
    data = [{"object": "embedding", "index": at, "embedding": [0.5, 0.25]} for at in range(len(texts))]
    usage = {"prompt_tokens": 2 * len(texts), "total_tokens": 2 * len(texts)}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}
