"""Budgets and the death of the process: what was sent is in the trace, and what nobody knows is not free."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.engine import AccountState, Budget, Engine
from tests.support.programs import started
from callboard.tracestore import TraceStore

pytestmark = pytest.mark.anyio

BUDGETS = [Budget(max_tokens=1_000_000), Budget(max_tokens=1_000_000, per="tag:tenant", window="month")]
SENT = 64
"""The upper end of the estimate of the victim's prompt."""
REPLY = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "bench",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27},
}

VICTIM = """
    import asyncio, sys
    from pathlib import Path

    from callboard import AdapterConfig, Budget, Engine, PriceRow, PriceTable, create_adapter
    from tests.engine.budgets.test_killed import BUDGETS

    async def main(url, path):
        prices = PriceTable([PriceRow(model="chat:*", input=1, output=1)], "test")
        async with Engine(store=Path(path), prices=prices, budgets=BUDGETS) as engine:
            config = AdapterConfig(api_key="k", base_url=url)
            engine.register("chat", lambda: create_adapter("openai_compatible", config, name="chat"))

            async def talk(number):
                while True:
                    tags = {"tenant": f"t{number % 3}"}
                    await engine.generate("chat:bench", "Hi", max_output_tokens=50, tags=tags)
                    print("answer", flush=True)

            await asyncio.gather(*(talk(number) for number in range(6)))

    asyncio.run(main(*sys.argv[1:]))
"""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    requests = 0
    answers: int | None = None
    """How many requests are answered; None for all."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unanswered = threading.Semaphore(0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.requests += 1
        if self.server.answers is not None and self.server.requests > self.server.answers:
            self.server.unanswered.release()
            threading.Event().wait()  # until the victim dies, and this thread with the tests
        time.sleep(0.01)  # so that some calls are under way whenever the victim dies
        body = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # the victim died
            super().handle()


@contextlib.contextmanager
def counting_server() -> Iterator[tuple[_Server, str]]:
    """A real server that counts the requests that reach it."""
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


async def recomputed(path: Path) -> tuple[int, int, int]:
    """Spent tokens, tokens of unknown calls, and attempts: from the rows alone, one by one."""
    async with TraceStore(path) as store:
        await store.close_lost_runs()
        found = await store.sql(
            "SELECT status, input_tokens, output_tokens, reserved_tokens FROM calls", limit=100_000
        )
    spent = sum(sent + said for status, sent, said, _ in found.rows if status == "completed")
    unknown = sum(reserved for status, *_, reserved in found.rows if status != "completed")
    return spent, unknown, len(found.rows)


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_kill_the_ledger_is_the_sum_of_the_rows(tmp_path: Path, seed: int) -> None:
    """Every request that reached the server is a row, and calls that died count at their most."""
    path = tmp_path / "trace.db"
    with counting_server() as (server, url):
        with started(VICTIM, url, path) as process:
            assert process.stdout is not None
            for _ in range(random.Random(seed).randint(1, 60)):
                assert process.stdout.readline() == "answer\n", process.stderr and process.stderr.read()
            process.kill()
        sent = server.requests
    async with Engine(store=path, budgets=BUDGETS) as engine:
        whole, *tenants = await engine.budgets()
        await engine.flush()
    spent, unknown, attempts = await recomputed(path)
    assert (whole.spent.tokens, whole.unknown.tokens, whole.calls) == (spent, unknown, attempts)
    assert attempts >= sent
    assert whole.held.tokens == 0
    assert _sum(tenants) == (spent, unknown, attempts)


async def test_calls_that_died_count_at_their_most(tmp_path: Path) -> None:
    """Six calls were under way when the process was killed; nobody knows what they used."""
    path = tmp_path / "trace.db"
    with counting_server() as (server, url):
        server.answers = 10
        with started(VICTIM, url, path) as process:
            assert process.stdout is not None
            for _ in range(server.answers):
                process.stdout.readline()
            for _ in range(6):
                await anyio.to_thread.run_sync(server.unanswered.acquire)
            process.kill()
    async with Engine(store=path, budgets=BUDGETS) as engine:
        whole, *_ = await engine.budgets()
    each = SENT + 50
    assert (whole.calls, whole.unknown_calls, whole.unknown.tokens) == (16, 6, 6 * each)
    assert whole.spent.tokens == 10 * 27


def _sum(states: list[AccountState]) -> tuple[int, int, int]:
    return (
        sum(state.spent.tokens for state in states),
        sum(state.unknown.tokens for state in states),
        sum(state.calls for state in states),
    )
