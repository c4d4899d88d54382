"""A process dies the moment its provider has a request: the request has a row when the trace is opened again."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from callboard import Engine, TraceStore
from tests.support.engines import registry
from tests.support.programs import started
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

VICTIM = """
import asyncio, json, sys, urllib.request
from pathlib import Path
from callboard.adapters import AdapterConfig, CanonicalRequest, Message, RetryPolicy
from callboard.adapters.providers.scripted.adapter import ScriptedAdapter
from callboard import Engine, tool
from tests.support.engines import entry, model, serving

url, path, kind = sys.argv[1:]
QUICK = RetryPolicy(base_delay=0.0, max_delay=0.0, jitter=False)
PROVIDERS = {"chat": "openai_compatible", "messages": "anthropic", "responses": "openai", "gemini": "gemini"}
QUESTIONS = [
    CanonicalRequest(request_id=text, model="messages:m", messages=(Message.user(text),), max_output_tokens=9)
    for text in ("Hi", "Ho")
]
VIDEO, IMAGE, EMBEDDING = "sora-2", "gpt-image-1", "text-embedding-3-small"


class Silent(ScriptedAdapter):
    '''An adapter of a host that reports no attempts.'''

    reports_attempts = False

    def __init__(self, config, **options):
        super().__init__(config, name="silent", replies=["never"])

    async def complete(self, request, *, on_attempt=None):
        await asyncio.to_thread(urllib.request.urlopen, f"{url}/silent", b"{}")


@tool
def look(place: str) -> str:
    "Look at a place."
    return "sunny"


async def streamed(stream):
    async with stream as events:
        async for _ in events:
            pass


def work(engine):
    session = engine.session(f"{kind.partition('-')[0]}:m", tools=[look])
    return {
        "chat-send": lambda: session.send("Hi"),
        "messages-stream": lambda: streamed(session.stream("Hi")),
        "chat-tool": lambda: session.send("Hi"),
        "responses-generate": lambda: engine.generate("responses:m", "Hi"),
        "gemini-plain-stream": lambda: streamed(engine.stream("gemini:m", "Hi")),
        "responses-background": lambda: engine.generate("responses:m", "Hi", background=True),
        "responses-embed": lambda: engine.embed(["Hi"], model=f"responses:{EMBEDDING}"),
        "responses-image": lambda: engine.generate_image("A cat", model=f"responses:{IMAGE}"),
        "responses-video": lambda: engine.create_video("A cat", model=f"responses:{VIDEO}"),
        "messages-batch": lambda: engine.create_batch(QUESTIONS, model="messages:m"),
        "chat-retry": lambda: engine.generate("chat:m", "Hi"),
        "chat-fallback": lambda: engine.generate("chat:m", "Hi", fallback=["gemini:m"]),
        "silent-send": lambda: session.send("Hi"),
    }[kind]()


async def main():
    config = AdapterConfig(api_key="k", base_url=url, retry=QUICK, options={"quirks": "openai"})
    plain = AdapterConfig(api_key="k", base_url=url, retry=QUICK)
    configs = {"responses": config}
    adapters = {name: entry(name, kind, configs.get(name, plain)) for name, kind in PROVIDERS.items()}
    adapters["silent"] = entry("silent", "__main__:Silent")
    served = [model(f"{name}:m") for name in adapters]
    served += [model(f"responses:{name}") for name in (EMBEDDING, IMAGE, VIDEO)]
    async with Engine(models=serving(*served, **adapters), store=Path(path)) as engine:
        await work(engine)

asyncio.run(main())
"""

CALLS_TOOL = {
    "id": "c",
    "object": "chat.completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "t", "type": "function", "function": {"name": "look", "arguments": '{"place": "Rome"}'}}
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}
OVERLOADED: dict[str, Any] = {"error": {"message": "The server is overloaded.", "type": "server_error"}}
BEFORE: dict[str, tuple[int, dict[str, Any]]] = {
    "chat-tool": (200, CALLS_TOOL),
    "chat-retry": (503, OVERLOADED),
    "chat-fallback": (402, {"error": {"message": "Insufficient balance", "code": "insufficient_quota"}}),
}
"""The reply to the first request of a kind whose second request is the last thing that its process does."""

KINDS = (
    "chat-send",
    "messages-stream",
    "chat-tool",
    "responses-generate",
    "gemini-plain-stream",
    "responses-background",
    "responses-embed",
    "responses-image",
    "responses-video",
    "messages-batch",
    "chat-retry",
    "chat-fallback",
    "silent-send",
)


class Book:
    """The provider's own book of requests. It kills the client at the request that it doesn't answer."""

    def __init__(self, before: tuple[int, dict[str, Any]] | None) -> None:
        self.before = before
        self.requests: list[str] = []
        self.client = 0


@contextmanager
def provider(book: Book) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            book.requests.append(self.path)
            if book.before is None or len(book.requests) > 1:
                os.kill(book.client, signal.SIGKILL)
                self.close_connection = True
                return
            status, reply = book.before
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_the_provider_got_has_a_row_after_a_kill(tmp_path: Path, kind: str) -> None:
    """The provider's book of requests and the rows agree, on every path that sends one."""
    path, book = tmp_path / "trace.db", Book(BEFORE.get(kind))
    with provider(book) as url, started(VICTIM, url, path, kind) as process:
        book.client = process.pid
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors[-2000:]
    async with Engine(models=registry(), store=path) as engine:
        await (await engine._host.living()).settle()
    async with TraceStore.open_readonly(path) as store:
        rows = await store.calls()
    assert len(rows) == len(book.requests) == (2 if kind in BEFORE else 1)
    lost = [row for row in rows if row.error_class == "process_lost"]
    assert len(lost) == 1
