"""A repricing of a shared trace reaches every engine that reads it, in whichever process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import CHECKOUT, call, environment

HOST = """
import asyncio
import json
import sys
from pathlib import Path

import tests.support.engines as engines
from callboard import Budget, PostgresStore, PriceRow, PriceTable
from tests.support.scripted import Say

CHEAP = PriceTable.from_rows([PriceRow(model="s:*", input=1_000_000, output=1_000_000)], "cheap")


async def main(place, name):
    store = PostgresStore(place) if "://" in place else Path(place)
    budget = Budget(max_cost_usd=1000, per="tag:host", follows_repricing=True)
    replies = [Say("Hello")] * 50
    async with engines.running(*replies, store=store, prices=CHEAP, budgets=[budget]) as (engine, _):
        session = engine.session("s:m", tags={"host": name})
        heard = []

        async def listen():
            async with engine.bus.subscribe("pricing.repriced") as events:
                async for envelope in events:
                    heard.append([envelope.data.pricing_version, envelope.data.calls])

        listening = asyncio.create_task(listen())
        await session.send("first")
        await engine.flush()
        loop, rounds = asyncio.get_running_loop(), 0
        while True:
            message = session.messages[1].metadata
            account = next(state for state in await engine.budgets() if state.scope == name)
            told = {
                "version": message.pricing_version, "nano_usd": message.cost.nano_usd, "heard": heard,
                "new_calls": engine.prices.version == CHEAP.version, "spent": account.spent.nano_usd,
            }
            print(json.dumps(told), flush=True)
            if not await loop.run_in_executor(None, sys.stdin.readline):
                break
            await session.send("again")
            await engine.flush()
            await asyncio.sleep(1.1)
            await session.send("and again")
            await engine.flush()
            rounds += 1
            async with asyncio.timeout(30):
                while len(heard) < rounds:
                    await asyncio.sleep(0.02)
        listening.cancel()


asyncio.run(main(*sys.argv[1:]))
"""

DEAR = """
label: dear
date: 2026-01-01
prices:
  - {model: "s:*", input: 9.0, output: 9.0}
"""


class Host:
    """An engine in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def told(self) -> Any:
        """What it knows of the costs of its first call."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1].decode()
        return json.loads(line)

    def go_on(self) -> Any:
        """Let it make calls, more than a second apart, and tell again."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self.told()


@contextmanager
def host(place: str, name: str, home: Path) -> Iterator[Host]:
    command = [sys.executable, "-c", HOST, place, name]
    pipe = subprocess.PIPE
    variables = environment(home)
    with subprocess.Popen(command, cwd=CHECKOUT, env=variables, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield Host(process)


@pytest.fixture
def dear(tmp_path: Path) -> Path:
    path = tmp_path / "dear.yaml"
    path.write_text(DEAR)
    return path


@pytest.fixture(params=["--db", "--store"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """An option, and the trace that it names: a file, or a database on a server."""
    if request.param == "--db":
        return "--db", str(tmp_path / "trace.db")
    return "--store", request.getfixturevalue("postgres_dsn")


def test_engines_in_two_processes_see_what_a_third_reprices(
    trace: tuple[str, str], home: Path, dear: Path
) -> None:
    """At their next turns: live messages, their event, budgets that follow; new calls keep the engine's prices.

    And the way back, too.
    """
    with ExitStack() as hosts:
        both = [hosts.enter_context(host(trace[1], name, home)) for name in ("frankfurt", "zurich")]
        before = [each.told() for each in both]
        repriced = call("reprice", "--prices", str(dear), *trace, "--json", home=home, exits=0)
        assert json.loads(repriced.stdout.splitlines()[0])["calls"] == 2
        after = [each.go_on() for each in both]
        for one, two in zip(before, after, strict=True):
            assert two["nano_usd"] == 9 * one["nano_usd"]
            assert two["version"] != one["version"]
            assert two["heard"] == [[two["version"], 2]]
            assert two["spent"] == 11 * one["spent"], "the call of the past at its new price, and two new ones"
            assert two["new_calls"]
        call("reprice", "--undo", *trace, home=home, exits=0)
        for one, two in zip(before, [each.go_on() for each in both], strict=True):
            assert (two["nano_usd"], two["version"]) == (one["nano_usd"], one["version"])
            assert len(two["heard"]) == 2
