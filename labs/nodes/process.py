"""The process of a node: sends commands, and stores the results by command."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.abc

PATIENCE_SECONDS = 60.0
Line = Mapping[str, object]


class Told(NamedTuple):
    """The result of a command."""

    text: str
    """The text of the reply."""
    end: str
    """The ends of the stream, joined by +, or the error."""
    following: int
    """The seq after the last event that was read."""
    reset: bool
    """Whether the stream was reset, so that the text before must be discarded."""


class NodeProcess:
    """A node's process and its results."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.trace = folder / f"{name}.db"
        self._environment = environment
        self._process: anyio.abc.Process
        self.killed = False
        """Whether it was killed and has not started again."""
        self._lines: dict[int, list[Line]] = {}
        self._more = anyio.Event()
        self._commands = 0

    async def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start the process, or start it again, and wait until its engine is up."""
        self._lines.pop(0, None)
        self.killed = False
        command = [sys.executable, "-m", "labs.nodes.node", self.name, str(self.trace)]
        with self.trace.with_suffix(".log").open("ab") as log:
            self._process = await anyio.open_process(command, stderr=log, env=self._environment)
        group.start_soon(self._listen)
        await self.until(0, lambda lines: bool(lines))

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for chunk in self._process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in map(json.loads, lines):
                self._lines.setdefault(line["id"], []).append(line)
            self._more.set()
            self._more = anyio.Event()

    async def command(self, **what: object) -> int:
        """Send a command. Returns its number."""
        assert self._process.stdin is not None
        self._commands += 1
        await self._process.stdin.send(json.dumps({**what, "id": self._commands}).encode() + b"\n")
        return self._commands

    async def until(self, number: int, fits: Callable[[list[Line]], bool]) -> list[Line]:
        """Wait until the results of a command satisfy a condition, and return them."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while not fits(self._lines.get(number, [])):
                await self._more.wait()
            return self._lines.get(number, [])
        raise AssertionError(f"{self.name} told no more of {number} than {self._lines.get(number, [])[-2:]}")

    async def stream(self, number: int) -> str:
        """The stream id of a turn."""
        lines = await self.until(number, lambda lines: bool(lines))
        if "stream" not in lines[0]:
            raise AssertionError(f"{self.name} has no stream: {lines[0]}")
        return str(lines[0]["stream"])

    async def end(self, number: int) -> Told:
        """Wait for the end of a command. Returns its result."""
        lines = await self.until(number, lambda lines: bool(lines) and "done" in lines[-1])
        text, reset = "", False
        for line in lines:
            if "reset" in line:
                text, reset = str(line["reset"]), True
            text += str(line.get("text", ""))
        following = lines[-1].get("next")
        return Told(text, str(lines[-1]["done"]), following if isinstance(following, int) else 0, reset)

    def pieces(self, number: int) -> int:
        """The number of text pieces that a command has returned so far."""
        return sum("text" in line for line in self._lines.get(number, []))

    def count(self, number: int, key: str) -> int:
        """The number of results of a command that have this key."""
        return sum(key in line for line in self._lines.get(number, []))

    async def kill(self) -> None:
        """Kill the process with -9."""
        self.killed = True
        self._process.kill()
        await self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop the process regularly."""
        if self._process.returncode is None and self._process.stdin is not None:
            with contextlib.suppress(OSError, anyio.BrokenResourceError):
                await self._process.stdin.aclose()
            with anyio.move_on_after(20):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
