"""Compares a provider's record of requests with the rows of the trace, over kills at random times.

    python -m labs.kills.book [--rounds N] [--seed N]

A round starts one engine, or two on one file, that make calls of each kind: turns of sessions, plain calls and
streams, background replies, embeddings, images, videos, batches, retries and fallbacks. Each process is killed
with kill -9: at a random time, when the provider has a request, or between the journal and the sending.
Immediately afterwards a reader opens the trace, and then an engine opens the file. Each time, record and rows must
agree: each request that the provider got has its row, and a process leaves at most one row for each call in
progress that was never sent. The program exits with 1 if a round failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import msgspec

from callboard.adapters import AdapterConfig, CanonicalRequest, Message, RetryPolicy
from callboard.bus import CallboardError
from callboard.engine import Engine, ModelRegistry
from callboard.tracestore import TraceStore
from tests.support.engines import entry, model, registry, serving
from tests.support.media_server import png
from tests.support.reply_server import Chat, GenerateContent, Messages, Responses

PROVIDERS = {"chat": "openai_compatible", "messages": "anthropic", "responses": "openai", "gemini": "gemini"}
EMBEDDING, IMAGE, VIDEO = "responses:text-embedding-3-small", "responses:gpt-image-1", "responses:sora-2"
AT_ONCE = 4
"""The number of concurrent calls in each process."""

Death = Literal["any", "asked", "journalled"]


class Plan(msgspec.Struct, frozen=True):
    """When and how one process is killed."""

    name: str
    death: Death
    after: int
    """The number of requests, or of starts in the journal, before the kill."""
    seconds: float
    """For `any`: the seconds between the first request and the kill."""


def plans(seed: int) -> list[Plan]:
    """One process, or two that write to one file at the same time."""
    chance = random.Random(seed)
    deaths: list[Death] = ["any", "asked", "journalled"]
    return [
        Plan(f"{seed}x{place}", chance.choice(deaths), chance.randint(1, 40), chance.uniform(0.0, 0.5))
        for place in range(2 if chance.random() < 0.3 else 1)
    ]


# -- the provider


class Book:
    """Records the requests that the provider received, by their numbers, and kills processes at given requests."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._kills: dict[str, tuple[int, Callable[[], object]]] = {}
        self._up: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def expect(self, plan: Plan, kill: Callable[[], object]) -> threading.Event:
        """Return an event that is set at the first request of the process."""
        if plan.death == "asked":
            self._kills[plan.name] = (plan.after, kill)
        return self._up.setdefault(plan.name, threading.Event())

    def enter(self, number: str) -> None:
        name = number.partition("-")[0]
        with self._lock:
            self.requests[number] += 1
            self._asked[name] += 1
            count = self._asked[name]
        self._up[name].set()
        after, kill = self._kills.get(name, (0, None))
        if kill is not None and count == after:
            kill()

    def of(self, names: Sequence[str]) -> Counter[str]:
        """The requests of these processes."""
        return Counter({each: n for each, n in self.requests.items() if each.partition("-")[0] in names})


_NUMBER = re.compile(rb"call-(\w+-\d+)")


def _reply(path: str, body: dict[str, Any], before: int) -> tuple[int, str, bytes]:
    """The status, the media type and the body of a reply."""
    text = json.dumps(body)
    if "again" in text and not before:
        return (
            503,
            "application/json",
            b'{"error": {"message": "Overloaded.", "type": "server_error"}}',
        )
    if "elsewhere" in text and "chat/completions" in path:
        return (
            402,
            "application/json",
            b'{"error": {"message": "No money", "code": "insufficient_quota"}}',
        )
    said: Any
    wire: Any = None
    if path.endswith("/embeddings"):
        vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}]
        said = {"object": "list", "data": vectors, "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    elif "/images" in path:
        import base64

        said = {"created": 1, "data": [{"b64_json": base64.b64encode(png()).decode()}]}
    elif "/videos" in path:
        said = {"id": "video_1", "object": "video", "model": "sora-2", "status": "queued", "progress": 0}
    elif "/batches" in path:
        said = {
            "id": "msgbatch_1",
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": {"processing": 1, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-02T00:00:00Z",
        }
    else:
        wires = {"chat/completions": Chat, "/messages": Messages, "/responses": Responses}
        wire = next((each for part, each in wires.items() if part in path), GenerateContent)
        said = wire.whole()
    if wire is not None and (body.get("stream") or "stream" in path):
        return 200, "text/event-stream", "".join(wire.events(["Hello ", "you."])).encode()
    return 200, "application/json", json.dumps(said).encode()


@contextlib.contextmanager
def provider(book: Book) -> Iterator[str]:
    """A server on 127.0.0.1 that records each request before it replies."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            number = _NUMBER.search(raw)
            assert number is not None, raw[:300]
            known = number[1].decode()
            before = book.requests[known]
            book.enter(known)
            status, media, body = _reply(self.path, json.loads(raw) if raw[:1] == b"{" else {}, before)
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("content-type", media)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def do_GET(self) -> None:  # a poll of a background reply, which costs nothing
            body = json.dumps(Responses.whole()).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: killed clients reset their connections."""

    http = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


# -- the process that dies


def models(url: str) -> ModelRegistry:
    """A model of each wire, and the models of images, videos and embeddings."""
    quick = RetryPolicy(base_delay=0.0, max_delay=0.0, jitter=False)
    plain = AdapterConfig(api_key="k", base_url=url, retry=quick)
    openai_config = AdapterConfig(api_key="k", base_url=url, retry=quick, options={"quirks": "openai"})
    adapters = {
        name: entry(name, kind, openai_config if name == "responses" else plain)
        for name, kind in PROVIDERS.items()
    }
    served = [*(f"{name}:m" for name in PROVIDERS), EMBEDDING, IMAGE, VIDEO]
    return serving(*(model(each) for each in served), **adapters)


async def _stream(stream: Any) -> None:
    async with stream:
        async for _ in stream:
            pass


def kinds(
    engine: Engine, text: str, tags: dict[str, str], wire: str
) -> dict[str, Callable[[], Awaitable[object]]]:
    """One call of each kind. Each sends the text, and its rows have the tags."""
    at = f"{wire}:m"

    def session() -> Any:
        return engine.session(at, tags=tags)

    def batch() -> Awaitable[object]:
        messages = (Message.user(text),)
        request = CanonicalRequest(request_id="r", model="messages:m", messages=messages, max_output_tokens=9)
        return engine.create_batch([request], model="messages:m", tags=tags)

    return {
        "turn": lambda: session().send(text),
        "streamed turn": lambda: _stream(session().stream(text)),
        "call": lambda: engine.generate(at, text, tags=tags),
        "stream": lambda: _stream(engine.stream(at, text, tags=tags)),
        "background": lambda: engine.generate("responses:m", text, background=True, tags=tags),
        "retry": lambda: engine.generate(at, f"{text} again", tags=tags),
        "fallback": lambda: engine.generate("chat:m", f"{text} elsewhere", fallback=["gemini:m"], tags=tags),
        "embedding": lambda: engine.embed([text], model=EMBEDDING, tags=tags),
        "image": lambda: engine.generate_image(text, model=IMAGE, tags=tags),
        "video": lambda: engine.create_video(text, model=VIDEO, tags=tags),
        "batch": batch,
    }


async def _victim(url: str, path: Path, plan: Plan) -> None:
    """Make calls until killed."""
    numbers = itertools.count()
    async with Engine(models=models(url), store=path) as engine:
        if plan.death == "journalled":
            _die_after(engine, plan.after)

        async def calls(chance: random.Random) -> None:
            while True:
                number = f"{plan.name}-{next(numbers)}"
                wire = chance.choice(list(PROVIDERS))
                choices = kinds(engine, f"call-{number}", {"n": number}, wire)
                with contextlib.suppress(CallboardError):
                    await choices[chance.choice(list(choices))]()

        async with asyncio.TaskGroup() as group:
            for place in range(AT_ONCE):
                group.create_task(calls(random.Random(f"{plan.name}/{place}")))


def _die_after(engine: Engine, starts: int) -> None:
    """Kill the process after this number of starts in the journal, before the last request is sent."""
    host: Any = engine._host
    secure, starts_left = host.secure_now, itertools.count(starts - 1, -1)

    def secure_and_die() -> None:
        secure()
        if not next(starts_left):
            os.kill(os.getpid(), signal.SIGKILL)

    host.secure_now = secure_and_die


# -- a round


def run_round(seed: int, book: Book, url: str, path: Path) -> list[str]:
    """Run and kill the processes of a seed on a file, which may already contain rows."""
    chosen = plans(seed)
    processes = []
    for plan in chosen:
        command = [sys.executable, "-m", "labs.kills.book", "--victim", url, str(path)]
        process = subprocess.Popen(
            [*command, msgspec.json.encode(plan).decode()], stderr=subprocess.PIPE, text=True
        )
        processes.append((plan, process, book.expect(plan, process.kill)))
    wrong = []
    for plan, process, up in processes:
        if plan.death == "any":
            while not up.wait(0.05) and process.poll() is None:
                pass
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(plan.seconds)
            process.kill()
        _, errors = process.communicate()
        if process.returncode != -signal.SIGKILL:
            wrong.append(f"{plan.name} ended by itself: {errors[-2000:]}")
    names = [f"{each}x{place}" for each in range(seed + 1) for place in range(2)]
    expected = book.of(names)
    wrong += [f"a reader right after the kill: {each}" for each in differences(expected, asyncio.run(_read(path)))]
    asyncio.run(_take_over(path))
    wrong += [f"after the next start: {each}" for each in differences(expected, asyncio.run(_read(path)))]
    return wrong


def differences(book: Counter[str], rows: Counter[str]) -> list[str]:
    """The differences between the book and the rows, except calls that are in the journal and were never sent."""
    missing = book - rows
    unsent: Counter[str] = Counter()
    for number, count in (rows - book).items():
        unsent[number.partition("-")[0]] += count
    wrong = [f"{sum(missing.values())} requests have no row: {sorted(missing)[:5]}"] if missing else []
    return wrong + [f"{name} has {count} rows too many" for name, count in unsent.items() if count > AT_ONCE]


async def _read(path: Path) -> Counter[str]:
    """The number of attempts of each call, as a reader of the trace sees them."""
    async with TraceStore.open_readonly(path) as store:
        rows = await store.calls(limit=None)
    return Counter((row.tags or {})["n"] for row in rows if row.operation != "video")


async def _take_over(path: Path) -> None:
    async with Engine(models=registry(), store=path) as engine:
        await (await engine._host.running_life()).settle()


def play(first: int, rounds: int) -> list[int]:
    """Play the rounds. Returns the seeds of those that failed."""
    failed, book = [], Book()
    with provider(book) as url, tempfile.TemporaryDirectory(prefix="callboard-book-") as folder:
        for seed in range(first, first + rounds):
            wrong = run_round(seed, book, url, Path(folder) / "trace.db")
            for each in wrong:
                print(f"seed {seed}: {each}", flush=True)
            failed += [seed] if wrong else []
        print(
            f"{rounds} rounds, {sum(book.requests.values()):,} requests, {len(failed)} rounds failed", flush=True
        )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--victim", nargs=3, metavar=("URL", "FILE", "PLAN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        url, path, plan = options.victim
        asyncio.run(_victim(url, Path(path), msgspec.json.decode(plan, type=Plan)))
        return 0
    return 1 if play(options.seed, options.rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
