"""A vendor's server on 127.0.0.1 for the programs of the book's first pages and for all commands.

It has Chat Completions, embeddings, images, videos and a list of models.
"""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.book.everybody import WORDS, instance
from tests.support.media_server import mp4, png
from tests.support.provider_server import in_threads

MODELS = ("m", "words", "gpt-image-2", "sora-2")
JOB = {"id": "video_1", "object": "video", "model": "sora-2"}
FILM = {**JOB, "status": "completed", "progress": 100, "seconds": "4"}
USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def chat_server() -> AbstractContextManager[str]:
    """A server that runs until the end of the block, which gets its address."""
    return in_threads(_Handler)


def message(asked: dict[str, Any]) -> dict[str, Any]:
    """The assistant's message: a call of the first tool, an object that fits the schema, or a story."""
    tools, wanted = asked.get("tools"), asked.get("response_format", {}).get("json_schema")
    if tools and asked["messages"][-1]["role"] != "tool":
        function = tools[0]["function"]
        arguments = json.dumps(instance(function["parameters"]))
        call = {"id": "call_1", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    text = json.dumps(instance(wanted["schema"])) if wanted else "".join(WORDS)
    return {"role": "assistant", "content": text}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.endswith("/content"):
            return self._answer("video/mp4", mp4())
        models = {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]}
        return self._json(models if self.path.endswith("/models") else FILM)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        match self.path.rpartition("/")[2]:
            case "embeddings":
                texts = json.loads(body)["input"]
                vectors = [{"index": n, "embedding": [1.0, float(len(text))]} for n, text in enumerate(texts)]
                self._json({"model": "words", "data": vectors, "usage": {"prompt_tokens": 3, "total_tokens": 3}})
            case "generations":
                self._json({"created": 1, "data": [{"b64_json": b64encode(png()).decode()}]})
            case "videos":
                self._json(FILM)
            case _:
                self._chat(json.loads(body))

    def _chat(self, asked: dict[str, Any]) -> None:
        said = message(asked)
        reason = "tool_calls" if "tool_calls" in said else "stop"
        if not asked.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": reason}
            return self._json({"model": "m", "choices": [choice], "usage": USAGE})
        for index, call in enumerate(said.get("tool_calls", ())):
            call["index"] = index
        chunks = [
            {"model": "m", "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
            {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"model": "m", "choices": [], "usage": USAGE},
        ]
        events = [*map(json.dumps, chunks), "[DONE]"]
        return self._answer("text/event-stream", "".join(f"data: {event}\n\n" for event in events).encode())

    def _json(self, value: object) -> None:
        self._answer("application/json", json.dumps(value).encode())

    def _answer(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print no log lines."""
