"""Processes that die before, during and after a call is stored."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.adapters import AdapterError
from callboard.bus import CallboardError, StepFinish, StreamEvent
from callboard.engine import Engine
from callboard.tracestore import TraceStore
from tests.support.depth import first_is_quick

from ..support.engines import registry, running, talking, topics
from ..support.invariants import check_stream
from ..support.present import present
from ..support.programs import ended, started
from ..support.provider_server import in_threads
from ..support.scripted import Say
from ..support.virtual_time import runs_on
from .toy_engines import check_ends

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


# Processes that end, or are killed, during calls.


PROGRAM = """
import asyncio, sys
from pathlib import Path
from callboard import Engine
from tests.support.engines import registry
from tests.support.scripted import Say

async def talk(session, endless):
    while True:
        async with session.stream("Hi") as turn:
            async for _ in turn:
                pass
        if not endless:
            return

async def main():
    says = [Say("a", "b", "c", pause=lambda: asyncio.sleep(0.001)) for _ in range(5000)]
    engine = Engine(models=registry(*says), store=Path(sys.argv[1]))
    globals()["left"] = engine   # referenced, never closed
    await talk(engine.session("s:m"), False)
    globals()["talking"] = [asyncio.create_task(talk(engine.session("s:m"), True)) for _ in range(4)]
    await asyncio.sleep(0.02)
    await engine.flush()
    print("talking", flush=True)
    match sys.argv[2]:
        case "open":
            return
        case "raise":
            raise SystemExit(3)
        case "thread":
            import threading
            globals()["thread"] = threading.Timer(0.2, print, ("the thread has ended",))
            globals()["thread"].start()

asyncio.run(main())
"""


async def seen(path: Path) -> tuple[Counter[str], Counter[tuple[str, int]]]:
    """Return the number of calls of each status, and how often the file has each call."""
    async with TraceStore(path) as store:  # as the next process opens it: for writing
        calls = await store.calls(limit=None)
    return Counter(row.status for row in calls), Counter((row.request_id, row.attempt) for row in calls)


@pytest.mark.parametrize(("ending", "code"), [("open", 0), ("raise", 3), ("thread", 0)])
async def test_the_interpreter_ends_while_calls_run(tmp_path: Path, ending: str, code: int) -> None:
    """A program ends without output on stderr if its engine is open and calls are in progress."""
    process = started(PROGRAM, tmp_path / "trace.db", ending)
    said, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (code, "")
    assert said.startswith("talking")
    statuses, calls = await seen(tmp_path / "trace.db")
    assert statuses["completed"] >= 1
    assert set(calls.values()) == {1}


# A process dies when its provider receives a request. After the trace is opened again, the request has a row.


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
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None,
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "look",
        "arguments": '{"place": "Rome"}'}}]}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}  # fmt: skip
OVERLOADED: dict[str, Any] = {"error": {"message": "The server is overloaded.", "type": "server_error"}}
BEFORE: dict[str, tuple[int, dict[str, Any]]] = {
    "chat-tool": (200, CALLS_TOOL),
    "chat-retry": (503, OVERLOADED),
    "chat-fallback": (402, {"error": {"message": "Insufficient balance", "code": "insufficient_quota"}}),
}
"""The reply to the first request, for each kind that sends two. The second request kills the process."""

KINDS = (
    "chat-send", "messages-stream", "chat-tool", "responses-generate", "gemini-plain-stream",
    "responses-background", "responses-embed", "responses-image", "responses-video", "messages-batch",
    "chat-retry", "chat-fallback", "silent-send",
)  # fmt: skip


class Book:
    """The provider's list of the received requests. Instead of the last reply, the provider kills the client."""

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

    with in_threads(Handler) as url:
        yield url


@pytest.mark.parametrize("kind", first_is_quick(KINDS, "more kinds of calls that a kill ends", quick=4))
async def test_every_received_request_has_a_row_after_a_kill(tmp_path: Path, kind: str) -> None:
    path, book = tmp_path / "trace.db", Book(BEFORE.get(kind))
    with provider(book) as url, started(VICTIM, url, path, kind) as process:
        book.client = process.pid
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors[-2000:]
    async with Engine(models=registry(), store=path) as engine:
        await (await engine._host.running_life()).settle()
    async with TraceStore.open_readonly(path) as store:
        rows = await store.calls()
    assert len(rows) == len(book.requests) == (2 if kind in BEFORE else 1)
    lost = [row for row in rows if row.error_class == "process_lost"]
    assert len(lost) == 1


# Processes that end right after a reply: the next process finds every committed reply.

ANSWERED_PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from callboard import Engine, MessageComplete
from tests.support.engines import registry
from tests.support.scripted import Say

ENDINGS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
}

async def main(path, how, ending):
    models = registry(*[Say("a", "b")] * 3)
    engine = await Engine(models=models, store=Path(path), capture_content=True).__aenter__()
    session = engine.session("s:m", session_id="ses_x")
    for number in range(3):
        if how == "send":
            await session.send(f"Turn {number}")
            continue
        async with session.stream(f"Turn {number}") as turn:
            async for event in turn:
                if number == 2 and how == "message" and isinstance(event, MessageComplete):
                    ENDINGS[ending]()
    ENDINGS[ending]()
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("ending", first_is_quick(["kill", "exit", "terminate"], "another end of the process"))
@pytest.mark.parametrize("how", ["send", "stream"])
async def test_a_process_that_ends_after_a_reply_loses_nothing(tmp_path: Path, how: str, ending: str) -> None:
    path = tmp_path / "trace.db"
    ended(ANSWERED_PROGRAM, path, how, ending)
    async with Engine(models=registry(), store=path, capture_content=True) as engine:
        await (await engine._host.running_life()).settle()
        session = await engine.resume("ses_x")
        assert [message.text for message in session.messages] == ["Turn 0", "ab", "Turn 1", "ab", "Turn 2", "ab"]
    assert sorted(os.listdir(tmp_path)) == ["trace.db", "trace.db.lock"]
    await only_completed(path, 3)


async def test_the_last_event_of_a_message_comes_after_its_call_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    ended(ANSWERED_PROGRAM, path, "message", "kill")
    async with Engine(models=registry(), store=path) as engine:
        await (await engine._host.running_life()).settle()
    await only_completed(path, 3)


async def only_completed(path: Path, count: int) -> None:
    """Assert that the file has this number of calls, all completed. The events of each run must have no gap."""
    async with TraceStore.open_readonly(path) as store:
        assert [row.status for row in await store.calls()] == ["completed"] * count
        events = await store.events(limit=None)
    for run in {envelope.run_id for envelope in events}:
        seqs = [envelope.seq for envelope in events if envelope.run_id == run]
        assert seqs == list(range(1, len(seqs) + 1))


# Crashes of a call or of the trace writer, and a failing store: each call has one end and one row.


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("event", [0, 1, 4])
async def test_a_call_that_crashes_at_any_event_has_one_end(event: int, streamed: bool) -> None:
    """A bug inside a call raises AdapterError. The received text is kept, the stream is valid, and one attempt
    fails.
    """
    before = [f"piece {number} " for number in range(event)]
    async with talking(Say(*before, fails=ZeroDivisionError("a bug")), Say("fine")) as (session, events):
        seen: list[StreamEvent] = []
        with pytest.raises(AdapterError, match="crashed"):
            if streamed:
                async with session.stream("Hi") as turn:
                    async for item in turn:
                        if hasattr(item, "message_id") and not isinstance(item, StepFinish):
                            seen.append(item)  # type: ignore[arg-type]  # noqa: PERF401
            else:
                await session.send("Hi")
        if seen:
            check_stream(seen)
        kept = "".join(before) if streamed else ""
        assert "".join(message.text for message in session.messages[1:]) == kept
        assert (await session.send("again")).text == "fine"
        assert check_ends(events.take()) == 2


async def rows_and_events(path: Path) -> tuple[list[tuple[str, int, str]], list[int]]:
    async with TraceStore.open_readonly(path) as store:
        rows = [(row.request_id, row.attempt, row.status) for row in await store.calls(limit=None)]
        return rows, [envelope.seq for envelope in await store.events(limit=None)]


async def talk(engine: Engine, turns: int) -> None:
    session = engine.session("s:m")
    for _ in range(turns):
        with contextlib.suppress(CallboardError):
            async with session.stream("Hi") as turn:
                async for _ in turn:
                    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(2))
async def test_a_crashing_writer_stores_each_event_once(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    says = [Say("a", "b", "c", pause=lambda: asyncio.sleep(0.002)) for _ in range(30)]
    async with running(*says, store=tmp_path / "trace.db") as (engine, events):

        async def crash() -> None:
            for _ in range(3):  # the fifth crash in a row would end the engine
                await asyncio.sleep(chance.uniform(0, 0.03))
                hosted = await engine._host.running_life()
                present(hosted.supervisor).child("trace writer").tell("no writer understands this")

        async with anyio.create_task_group() as group:
            group.start_soon(crash)
            for _ in range(3):
                group.start_soon(talk, engine, 10)
        seen = events.take()
        assert len(topics(seen, "actor.crashed")) >= 1
        assert check_ends(seen) == 30
        await engine.aclose()
        seen += events.take()
    rows, seqs = await rows_and_events(tmp_path / "trace.db")
    assert sorted(seqs) == [envelope.seq for envelope in seen]
    assert len(rows) == 30
    assert {status for _, _, status in rows} == {"completed"}
