"""Three nodes share one conversation, and one of them is killed in the middle of a sentence. `make demo-nodes`
runs it.

It starts a PostgreSQL server and a NATS server from the wheels that the tests use, one local model for all, and
three processes of `examples.nodes.node`, each with a trace file of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import anyio
import anyio.abc

from callboard import ConfigurationError, CostSum, costs
from callboard.adapters.providers.local import LocalServer, LocalServerSettings
from callboard.adapters.providers.local.child import choose_model
from tests.support import nats_server, postgres_server

MODELS = """
adapters:
  local: {{type: openai_compatible, base_url: "{url}/v1", api_key_env: DEMO_MODEL_KEY}}
models:
  local:smollm2: {{adapter: local, aliases: [story]}}
"""

PRICES = """
label: example prices, nobody's list
date: 2026-01-01
prices:
  - {model: "local:*", input: 0.10, output: 0.40, cache_read: 0.01}
"""

KILL_AFTER_PIECES = 12
PATIENCE_SECONDS = 60.0
Line = Mapping[str, object]


class NodeProcess:
    """A node's process and its results."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.trace = folder / f"{name}.db"
        self._environment = environment
        self._process: anyio.abc.Process
        self._lines: list[Line] = []
        self._more = anyio.Event()
        self._commands = 0

    async def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start the process, and wait until its engine is up."""
        command = [sys.executable, "-m", "examples.nodes.node", self.name, str(self.trace)]
        log = self.trace.with_suffix(".log").open("wb")
        self._process = await anyio.open_process(command, stderr=log, env=self._environment)
        group.start_soon(self._listen)
        ready = await self.line(0, lambda line: "ready" in line)
        say(f"   {self.name:5} process {ready['ready']}, trace file {self.trace.name}")

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for chunk in self._process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            self._lines += map(json.loads, lines)
            self._more.set()
            self._more = anyio.Event()

    async def command(self, **what: str) -> int:
        """Send a command. Returns its number."""
        assert self._process.stdin is not None
        self._commands += 1
        await self._process.stdin.send(json.dumps({**what, "id": self._commands}).encode() + b"\n")
        return self._commands

    async def lines(self, number: int) -> AsyncIterator[Line]:
        """The results of a command, up to its end."""
        at = 0
        while True:
            line = await self._line_at(at)
            at += 1
            if line["id"] == number:
                yield line
                if "status" in line or "error" in line:
                    return

    async def _line_at(self, at: int) -> Line:
        with anyio.fail_after(PATIENCE_SECONDS):
            while at >= len(self._lines):
                await self._more.wait()
        return self._lines[at]

    async def line(self, number: int, fits: Callable[[Line], bool]) -> Line:
        """The first result of a command that satisfies a condition."""
        async for line in self.lines(number):
            if fits(line):
                return line
        raise AssertionError(f"{self.name} ended without it: {self._lines}")

    def kill(self) -> None:
        """Kill the process with SIGKILL, so nothing is flushed."""
        self._process.kill()

    async def stop(self) -> None:
        """Stop the process regularly."""
        if self._process.returncode is None and self._process.stdin is not None:
            await self._process.stdin.aclose()
            with anyio.move_on_after(10):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


def say(text: str = "", *, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def heading(number: int, title: str) -> None:
    say(f"\n{number}. {title}\n")


async def show(node: NodeProcess, number: int) -> tuple[str, str]:
    """Print the text of a turn or of a stream as it arrives. Returns the text, and how the turn ended."""
    text, status = "", ""
    say(f"   {node.name:5} ", end="")
    async for line in node.lines(number):
        if "text" in line:
            text += str(line["text"])
            say(str(line["text"]).replace("\n", "\n         "), end="")
        status = str(line.get("status", line.get("error", status)))
    say(f"\n         [{status}]")
    return text, status


async def first_turn(ada: NodeProcess, ben: NodeProcess) -> None:
    heading(2, "A turn on ada, read on ben while it is made")
    command = await ada.command(begin="tour", ask="Tell me a story about a lighthouse.")
    stream = str((await ada.line(command, lambda line: "stream" in line))["stream"])
    read, status = await show(ben, await ben.command(read=stream))
    streamed = "".join([str(line.get("text", "")) async for line in ada.lines(command)])
    assert (read, status) == (streamed, "completed"), (read, streamed, status)


async def killed_turn(ada: NodeProcess, ben: NodeProcess) -> str:
    heading(3, "ada is killed in the middle of her next turn; ben goes on reading, to exactly one end")
    command = await ada.command(session="tour", ask="And what happened then?")
    stream = str((await ada.line(command, lambda line: "stream" in line))["stream"])
    reading = await ben.command(read=stream)
    pieces, text, ends = 0, "", []
    say(f"   {ben.name:5} ", end="")
    async for line in ben.lines(reading):
        if "text" in line:
            pieces += 1
            text += str(line["text"])
            say(str(line["text"]).replace("\n", "\n         "), end="")
        else:
            ends.append(line.get("status", line.get("error")))
        if pieces == KILL_AFTER_PIECES:
            ada.kill()
            killed_at = time.monotonic()
            say("  <- kill -9 ada  ", end="")
            pieces += 1
    say(f"\n         {ends}, {time.monotonic() - killed_at:.1f} s after the kill (her lease is 5 s)")
    assert ends == ["outcome_unknown"], ends
    return text


async def goes_on(cleo: NodeProcess, delivered: str) -> None:
    heading(4, "cleo takes the conversation over")
    command = await cleo.command(session="tour", ask="Say it in one short sentence.")
    answer = await cleo.line(command, lambda line: "history" in line or "error" in line)
    history = answer.get("history")
    assert isinstance(history, list), answer
    for role, text in history:
        short = " ".join(text.split())
        say(f"         {role:9} {short if len(short) < 80 else short[:77] + '...'}")
    assert history[-1] == ["assistant", delivered], (history[-1], delivered)
    _, status = await show(cleo, command)
    assert status == "completed", status


async def same_costs(store: str, nodes: list[NodeProcess]) -> None:
    heading(5, "What it cost: the shared trace and the three files say the same")
    say("   (another node of this machine ends what ada left open, and ships her file; that takes half a minute)")
    files: list[CostSum] = []
    shared = CostSum()
    for _ in range(120):
        files = [await total(node.trace) for node in nodes]
        shared = await total(store)
        if shared == sum(files, CostSum()) and not await open_calls(store):
            break
        await anyio.sleep(0.5)
    for name, costs_of in zip([*(node.name for node in nodes), "all"], [*files, shared], strict=True):
        say(f"   {name:5} {costs_of.calls} calls, {costs_of.usd:f} USD, {costs_of.estimated} estimated")
    assert shared == sum(files, CostSum()), "the sums differ"
    command = [sys.executable, "-m", "callboard", "cost", "--by", "session,model,status", "--store", store]
    say()
    say((await anyio.run_process(command)).stdout.decode())


async def total(trace: Path | str) -> CostSum:
    (row,) = await costs(by=(), trace=trace)
    return CostSum(row.cost_nano_usd, row.calls, row.estimated, row.unpriced, row.unknown)


async def open_calls(trace: str) -> int:
    return sum(row.calls for row in await costs(by="status", trace=trace) if row["status"] == "started")


async def play(folder: Path, store: str, nats: str) -> None:
    claim = LocalServer.shared(LocalServerSettings(choose_model(None)))
    server = await claim.acquire()
    try:
        (folder / "models.yaml").write_text(MODELS.format(url=server.url))
        (folder / "prices.yaml").write_text(PRICES)
        environment = {
            **os.environ,
            "CALLBOARD_HOME": str(folder),
            "CLUSTER_NATS": nats,
            "CLUSTER_STORE": store,
            "DEMO_MODEL_KEY": server.api_key,
        }
        nodes = [NodeProcess(name, folder, environment) for name in ("ada", "ben", "cleo")]
        ada, ben, cleo = nodes
        async with anyio.create_task_group() as group:
            heading(1, "Three nodes, one PostgreSQL, one NATS, one local model")
            for node in nodes:
                await node.start(group)
            try:
                await first_turn(ada, ben)
                delivered = await killed_turn(ada, ben)
                await goes_on(cleo, delivered)
                await same_costs(store, nodes)
            finally:
                with anyio.CancelScope(shield=True):
                    for node in nodes:
                        await node.stop()
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await claim.release()


def main() -> int:
    missing = postgres_server.why_not(own=True) or nats_server.why_no_nats()
    if missing:
        say(f"This demo can't run here: {missing}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="callboard-nodes-"))
    try:
        with (
            postgres_server.own_server() as postgres,
            postgres.database() as store,
            nats_server.own_nats_server() as nats,
        ):
            anyio.run(play, folder, store, nats.url)
    except ConfigurationError as error:  # no local model on this machine
        say(f"This demo can't run here: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say("That was all of it. The guide is docs/how-to/two-hosts.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
