"""One node in a process of its own: it reads commands as lines of JSON and writes results as lines of JSON.

    python -m labs.nodes.node NAME TRACE_FILE

The addresses are in environment variables. After the last result of each command there is a line with `done`. The
commands:

    {"ask": TEXT, "session": ID, "id": N}    a turn in a session; "begin": true begins, "anew": true resumes it
    {"read": STREAM_ID, "id": N}             read a stream to its end, or "pieces" pieces of text, "from" a seq
    {"callers": NUMBER, "id": N}             concurrent calls without a session, half of them streamed
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict, cast

import anyio
import anyio.to_thread

from callboard import Budget, CallboardError, Cluster, Engine, Session
from callboard.bus import MessageComplete, StreamReset, TextBlock, TextDelta, TurnComplete, TurnEvent
from callboard.bus.clock import SystemClock

MODEL = "lab:bench"
OUTPUT_TOKENS = 120
"""The maximum number of tokens of a reply, and the actual number."""


_From = TypedDict("_From", {"from": int}, total=False)


class Command(_From, total=False):
    """A command in a line of input."""

    id: int
    ask: str
    session: str
    begin: bool
    anew: bool
    read: str
    pieces: int
    callers: int


class SkewedClock(SystemClock):
    """The real clock with an offset in seconds."""

    def __init__(self, seconds: int) -> None:
        self._skew_us = seconds * 1_000_000

    def now_us(self) -> int:
        return super().now_us() + self._skew_us


class Node:
    """An engine and its open sessions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: dict[str, Session] = {}

    async def obey(self, command: Command) -> None:
        """Run the command in a line. An error is reported, and the node continues."""
        number = command["id"]
        try:
            if "read" in command:
                await self._read(number, command)
            elif "callers" in command:
                await self._call(number, command["callers"])
            else:
                await self._ask(number, command)
        except (CallboardError, OSError) as error:
            tell(number, done=f"{type(error).__name__}: {error}")

    async def _read(self, number: int, command: Command) -> None:
        ends, left = [], command.get("pieces", -1)
        async with contextlib.aclosing(
            self._engine.attach(command["read"], from_seq=command.get("from", 0))
        ) as reader:
            async for event in reader:
                if isinstance(event, StreamReset):
                    tell(number, reset=said(event.snapshot))
                elif isinstance(event, TextDelta):
                    tell(number, text=event.text)
                    left -= 1
                elif isinstance(event, TurnComplete):
                    ends.append(event.status)
                if left == 0:
                    break
        tell(number, done="+".join(ends), next=reader.seq + 1)

    async def _ask(self, number: int, command: Command) -> None:
        session_id = command["session"]
        if command.get("begin"):
            self._sessions[session_id] = self._engine.session(MODEL, session_id=session_id)
        if command.get("anew"):
            self._sessions.pop(session_id, None)  # another node has owned it since
        session = self._sessions.get(session_id) or await self._engine.resume(session_id)
        self._sessions[session_id] = session
        try:
            async with session.stream(command["ask"], max_output_tokens=OUTPUT_TOKENS) as turn:
                tell(number, stream=turn.stream_id)
                async for piece in turn.text_stream:
                    tell(number, text=piece)
                tell(number, done=(await turn.result()).status)
        except CallboardError:
            del self._sessions[session_id]  # its owner may have changed, so the next turn resumes it
            raise

    async def _call(self, number: int, callers: int) -> None:
        async def call(*, streamed: bool) -> None:
            try:
                if streamed:
                    await self._engine.stream(MODEL, "Hi", max_output_tokens=OUTPUT_TOKENS).result()
                else:
                    await self._engine.generate(MODEL, "Hi", max_output_tokens=OUTPUT_TOKENS)
                tell(number, made=True)
            except CallboardError as error:
                tell(number, refused=type(error).__name__)

        async with anyio.create_task_group() as group:
            for place in range(callers):
                group.start_soon(partial(call, streamed=place % 2 == 1))
        tell(number, done="all")


def said(events: Iterable[TurnEvent]) -> str:
    """The text of a reply. A finished message may have no deltas."""
    text = ""
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, MessageComplete):
            text = "".join(block.text for block in event.final_content if isinstance(block, TextBlock))
    return text


def tell(number: int, **what: object) -> None:
    """Write one line of output."""
    sys.stdout.write(json.dumps({"id": number, **what}) + "\n")
    sys.stdout.flush()


def engine_of(name: str, trace: Path, given: Mapping[str, str]) -> Engine:
    """The node's engine, configured by environment variables."""
    cluster = Cluster(
        nats=given["LAB_NATS"], store=given["LAB_STORE"], node=name, lease_seconds=float(given["LAB_LEASE"])
    )
    limit = given.get("LAB_BUDGET")
    window = cast("Literal['hour'] | None", given.get("LAB_WINDOW"))
    budgets = [Budget(max_cost_usd=Decimal(limit), window=window)] if limit else []
    clock = SkewedClock(int(given.get("LAB_SKEW", "0")))
    return Engine(store=trace, cluster=cluster, capture_content=True, budgets=budgets, clock=clock)


async def main(name: str, trace: Path) -> None:
    async with engine_of(name, trace, os.environ) as engine:
        node = Node(engine)
        # after it, a node that stops immediately has already ended the calls of a killed node
        await engine._host.settle()
        tell(0, ready=os.getpid())
        async with anyio.create_task_group() as group:
            while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                group.start_soon(node.obey, json.loads(line))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]))
