"""One round, derived from a seed: a growing file, its shippers, and their faults."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope, Event
from callboard.bus.events.calls import LlmCallCompleted, LlmCallStarted
from callboard.bus.events.sessions import SessionConfigured, SessionCreated, SessionMessageAppended
from callboard.bus.values.messages import Message, SessionSetup
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage
from callboard.tracestore import Capture, ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.postgres.database import Database
from callboard.tracestore.postgres.receiver import Receiver
from callboard.tracestore.postgres.statements import Statements
from callboard.tracestore.shipping.source import Recent
from tests.support.postgres_server import StartedServer
from tests.support.virtual_time import FakeClock

from .checks import failures_of
from .shipper import EAGER

T = TypeVar("T")
MODEL = "openai:gpt-5"
AFTERWARDS = FakeClock(epoch_us=2_500_000_000_000_000)
"""The clock of the process that deletes sessions: later than all events."""


class Run:
    """Generates the events of one run from a seed."""

    def __init__(self, run_id: str, dice: random.Random) -> None:
        self._run_id = run_id
        self._dice = dice
        self._seqs = count(1)
        self._now = 1_790_000_000_000_000
        self._session = f"ses_{run_id}"
        self._said = 0
        self._capture = Capture()
        self._requests = count(1)
        self._waiting = self._begin()

    def _begin(self) -> list[Envelope]:
        setup = SessionSetup(model=MODEL, system_prompt="Be brief.")
        return [
            self._event(SessionCreated(model=MODEL, tags={"team": "lab"})),
            self._event(SessionConfigured(history=0, begins=True, setup=setup)),
        ]

    def _event(self, event: Event, **ids: Any) -> Envelope:
        self._now += self._dice.randrange(1_000_000, 40_000_000_000)  # so that some runs last for months
        seq = next(self._seqs)
        envelope = Envelope(seq, self._run_id, self._now, seq, event, session_id=self._session, **ids)
        return self._capture.apply(envelope)

    def call(self) -> list[Envelope]:
        """Generate the events of one more call."""
        request = f"req_{self._run_id}_{next(self._requests)}"
        cost = Cost(self._dice.randrange(10**6), CostSource.COMPUTED, "000000000000")
        usage = TokenUsage(self._dice.randrange(1000), self._dice.randrange(1000))
        events, self._waiting = self._waiting, []
        events.append(self._said_by("user", f"Question {self._said}? \\ \t\u2028\n"))
        about: dict[str, Any] = {"provider": "openai", "model": MODEL, "requested_model": MODEL}
        events.append(self._event(LlmCallStarted(**about, streamed=True), request_id=request, attempt=1))
        end = LlmCallCompleted(
            provider="openai",
            model=MODEL,
            served_model="gpt-5",
            raw_stop_reason="stop",
            stop_reason=StopReason.END_TURN,
            usage=usage,
            cost=cost,
            latency_ms=5,
        )
        events.append(self._event(end, request_id=request, attempt=1))
        events.append(self._said_by("assistant", "Answer. " * self._dice.randrange(300)))
        return events

    def begin_anew(self) -> str:
        """Let the next call restart the session, which the caller has deleted. Returns its id."""
        self._said = 0
        self._waiting = self._begin()
        return self._session

    def _said_by(self, who: str, text: str) -> Envelope:
        message = Message.user(text) if who == "user" else Message.assistant(text)
        event = SessionMessageAppended(position=self._said, message=message)
        self._said += 1
        return self._event(event)


class FaultyDatabase(Database):
    """A database with injected faults: while a batch is staged, while it is stored, and afterwards."""

    befall: Callable[[str], None] = staticmethod(lambda place: None)

    async def write(self, work: Callable[[Statements], T], stage: Callable[[Statements], None] | None = None) -> T:
        def staged(statements: Statements) -> None:
            if stage is not None:
                stage(statements)
            self.befall("between copy and insert")

        def worked(statements: Statements) -> T:
            result = work(statements)
            self.befall("between insert and commit")
            return result

        result = await super().write(worked, staged)
        await anyio.to_thread.run_sync(self.befall, "after the commit")
        return result


async def run_round(seed: int, server: StartedServer, dsn: str, trace: Path) -> tuple[Counter[str], list[str]]:
    """Play one round. Returns the counts of faults, and the violations."""
    dice = random.Random(seed)
    seen: Counter[str] = Counter()
    async with TraceStore(trace, clock=AFTERWARDS) as store, anyio.create_task_group() as group:
        group.start_soon(_write, store, seed, dice.randrange(20, 60))
        if dice.random() < 0.5:
            await _killed_shippers(dice, server, dsn, trace, seen)
        else:
            await _faulty_shippers(dice, server, dsn, store, seen)
    with contextlib.suppress(subprocess.CalledProcessError):
        server.start()  # if it is stopped
    shipper = TraceShipper(trace, dsn, options=EAGER)
    for attempt in range(20):
        try:
            await shipper.ship()
            break
        except StoreError:
            if attempt == 19:
                raise
            await anyio.sleep(0.5)
    await shipper.close()
    return seen, await failures_of(trace, dsn)


async def _write(store: TraceStore, seed: int, batches: int) -> None:
    dice = random.Random(f"writer {seed}")
    runs = [Run(f"run_{seed}_{number}", dice) for number in range(dice.choice((1, 3)))]
    for _ in range(batches):
        events = [event for _ in range(dice.randrange(1, 12)) for event in dice.choice(runs).call()]
        await store.write(events)
        if dice.random() < 0.1:
            await store.delete_session(dice.choice(runs).begin_anew())
        await anyio.sleep(dice.random() * 0.1)


async def _killed_shippers(
    dice: random.Random, server: StartedServer, dsn: str, trace: Path, seen: Counter[str]
) -> None:
    """Ship in processes that are killed and started again, while the server is stopped and connections are cut."""
    number = dice.choice((1, 2))
    with contextlib.ExitStack() as stack:
        shippers = [stack.enter_context(_process(trace, dsn)) for _ in range(number)]
        seen[f"{number} shippers in processes of their own"] += 1
        for _ in range(dice.randrange(2, 6)):
            await anyio.sleep(dice.random() * 1.2)
            what = dice.choice(("kill", "kill", "cut", "restart", "stop"))
            seen[f"processes: {what}"] += 1
            if what == "kill":
                place = dice.randrange(number)
                shippers[place].kill()
                shippers[place] = stack.enter_context(_process(trace, dsn))
            else:
                await anyio.to_thread.run_sync(_trouble, server, what, dice.random())


@contextlib.contextmanager
def _process(trace: Path, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-m", "labs.shipping.shipper", str(trace), dsn)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _trouble(server: StartedServer, what: str, seconds: float) -> None:
    import time

    with contextlib.suppress(subprocess.CalledProcessError, Exception):
        if what == "cut":
            server.cut_connections()
        elif what == "restart":
            server.restart("immediate")
        else:
            server.stop("immediate")
            time.sleep(seconds * 2)
            server.start()


async def _faulty_shippers(
    dice: random.Random, server: StartedServer, dsn: str, store: TraceStore, seen: Counter[str]
) -> None:
    """Ship with one or two shippers in this process, with faults at places that the seed decides.

    The shippers read recent events from memory, and only older ones from the file.
    """
    recents = [Recent() for _ in range(dice.choice((1, 2)))]
    store.tell(lambda batch: [recent.keep(batch) for recent in recents])
    options = msgspec.structs.replace(EAGER, batch_events=dice.choice((EAGER.batch_events, 500)))

    def befall(place: str) -> None:
        if dice.random() < 0.12:
            what = dice.choice(("cut", "cut", "restart", "stop"))
            seen[f"{what} {place}"] += 1
            _trouble(server, what, 0.2)

    async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as group:
        for recent in recents:
            group.start_soon(
                (await stack.enter_async_context(_shipper(store.path, dsn, befall, options, recent))).run
            )
        await anyio.sleep(1 + dice.random() * 4)
        group.cancel_scope.cancel()


@asynccontextmanager
async def _shipper(
    trace: Path, dsn: str, befall: Callable[[str], None], options: ShippingOptions, recent: Recent
) -> AsyncIterator[TraceShipper]:
    receiver = Receiver(dsn)
    faulty = FaultyDatabase(dsn, single=True)
    faulty.befall = befall
    receiver._database = faulty
    shipper = TraceShipper(trace, receiver, options=options, recent=recent)
    try:
        yield shipper
    finally:
        await shipper.close()
