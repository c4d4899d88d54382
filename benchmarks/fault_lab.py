"""The whole engine against a server that breaks its replies, with crashes, cancels and swaps on top.

    python benchmarks/fault_lab.py [--seed N] [--seconds S] [--verbose]

One round per seed, N, N + 1, ... until S seconds are over: an engine with its real adapters over real sockets and
its real store, several sessions side by side that swap their provider from turn to turn, readers that come and go,
and a chaos that crashes adapters, calls, the session manager and the trace writer, and lets the store fail.
After each round the invariants are checked (`_Round.check`): no hang, one terminal per attempt on the bus and in
the store, every stream valid and the same for all readers, every history valid for every provider, nothing left.

What is done to whom follows from the seed alone; only the moments depend on the machine. The seed of a failed
round is printed, and `--seed N --seconds 0` runs its plan again. Exits with 1 if a round failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import structlog

from adapters import AdapterConfig, CanonicalRequest, Message, RetryPolicy, ToolDefinition, create_adapter
from adapters.actor import AdapterActor
from adapters.http_adapter import HttpAdapter
from bus import (
    CallboardError,
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Lossless,
    SessionTurnCompleted,
    StoreError,
    StreamReset,
)
from bus.stream_events import StepFinish, StreamEvent, TurnComplete, TurnEvent
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, Tool
from tests.support.faulty_server import FaultyServer, mark
from tests.support.invariants import check_stream
from tests.support.wire_history import history_faults

STEP_SECONDS = 20.0
"""No turn, flush or stop may take longer: the adapters give up long before."""

PROTOCOLS = {"chat": "openai_compatible", "messages": "anthropic", "responses": "openai"}


def registry(url: str) -> ModelRegistry:
    """The three protocols at one address, with limits so short that a stall ends soon."""
    config = AdapterConfig(
        api_key="key-of-the-fault-lab",
        base_url=url,
        timeout_seconds=1.5,
        max_retries=2,
        retry=RetryPolicy(base_delay=0.01, max_delay=0.05),
        connect_timeout=0.5,
        first_event_timeout=0.4,
        stream_read_timeout=0.3,
    )
    return ModelRegistry(
        {name: AdapterEntry(name=name, type=kind, config=config) for name, kind in PROTOCOLS.items()},
        {f"{name}:m": ModelEntry(id=f"{name}:m", adapter=name, wire_name="m") for name in PROTOCOLS},
    )


async def _slow(arguments: object) -> str:
    await asyncio.sleep(0.02)
    return "at last"


def _fail(arguments: object) -> str:
    raise ValueError("this tool never works")


TOOLS = (
    Tool(ToolDefinition("add"), lambda arguments: 3),
    Tool(ToolDefinition("fail"), _fail),
    Tool(ToolDefinition("slow"), _slow),
)


class Report(msgspec.Struct):
    """What a round came to. failures: invariants that did not hold. counts: what happened how often."""

    seed: int
    failures: list[str]
    counts: Counter[str]


class _Round:
    """One engine's life under fire."""

    def __init__(self, seed: int, folder: Path, *, sessions: int, turns: int) -> None:
        self.seed = seed
        self.path = folder / f"trace-{seed}.db"
        self.sessions = sessions
        self.turns = turns
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self._engine: Engine
        self._server: FaultyServer
        self._open: list[Session] = []
        self._streams: dict[str, list[list[TurnEvent]]] = {}
        self._store_fails = False

    def _chance(self, *of: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *of))))

    def fail(self, text: str) -> None:
        self.failures.append(text)

    async def run(self) -> None:
        async with FaultyServer(self.seed) as self._server:
            self._engine = engine = Engine(models=registry(self._server.url), store=self.path)
            events = engine.bus.subscribe(">", policy=Lossless(), name="fault lab")
            async with self._bounded("start"):
                await engine.start()
            self._break_store()
            chaos = asyncio.create_task(self._chaos())
            await asyncio.gather(*(self._session(number) for number in range(self.sessions)))
            chaos.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await chaos
            self._store_fails = False
            async with self._bounded("flush"):
                await engine.flush()
            self._check_streams()
            await self._check_histories()
            async with self._bounded("stop"):
                report = await engine.aclose()
                if report is None or not report.clean:
                    self.fail(f"the engine did not close cleanly: {report}")
            self._check_bus(envelopes := events.take())
            await self._check_store(envelopes)
            for _ in range(100):
                if self._server.connections == 0:
                    break
                await asyncio.sleep(0.01)
            else:
                self.fail(f"{self._server.connections} sockets are open after the engine has closed")
            self.failures += [f"a request its provider would refuse: {text}" for text in self._server.wrong]
            self.counts.update(self._server.done)

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        """A step that must not hang; what it raises is a failure, too."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                yield
        except TimeoutError:
            self.fail(f"{what}: hangs\n{_stacks()}")
        except Exception as error:
            self.fail(f"{what}: raised {''.join(traceback.format_exception(error))}")

    # -- sessions

    async def _session(self, number: int) -> None:
        chance = self._chance("session", number)
        session = self._engine.session("chat:m", tools=TOOLS, tags={"number": str(number)})
        self._open.append(session)
        for turn in range(self.turns):
            text = f"Turn {mark(number, turn)}"
            model = f"{chance.choice(list(PROTOCOLS))}:m"
            if chance.random() < 0.5:
                session.model = model
            kind = chance.choice(("send", "send", "read", "read", "read", "leave", "cancel", "kill", "text"))
            self.counts[f"turn {kind}"] += 1
            step = getattr(self, f"_{kind}")
            async with self._bounded(f"session {number}, turn {turn} ({kind} to {session.model})"):
                try:
                    await step(session, text, random.Random(chance.random()))
                    self.counts["turns well"] += 1
                except CallboardError as error:
                    self.counts[f"turns {type(error).__name__}"] += 1

    async def _send(self, session: Session, text: str, chance: random.Random) -> None:
        await session.send(text, max_tool_rounds=chance.choice((0, 1, 2)))

    async def _read(self, session: Session, text: str, chance: random.Random) -> None:
        """Several readers, some late, of which some leave early."""
        async with session.stream(text) as turn, asyncio.TaskGroup() as readers:
            for _ in range(chance.randint(0, 3)):
                readers.create_task(self._one_more(turn.stream_id, random.Random(chance.random())))
            seen = self._streams.setdefault(turn.stream_id, [])
            mine: list[TurnEvent] = []
            seen.append(mine)
            failure: CallboardError | None = None
            try:
                async for event in turn:
                    assert not isinstance(event, StreamReset)
                    mine.append(event)
                    if chance.random() < 0.1:
                        await asyncio.sleep(0)
            except CallboardError as error:
                failure = error
        if failure is not None:
            raise failure

    async def _one_more(self, stream_id: str, chance: random.Random) -> None:
        await asyncio.sleep(chance.uniform(0, 0.03))
        leaves_after = chance.choice((3, 10**9, 10**9))
        mine: list[TurnEvent] = []
        self._streams.setdefault(stream_id, []).append(mine)
        async with self._engine.attach(stream_id) as reader:
            async for event in reader:
                assert not isinstance(event, StreamReset)
                mine.append(event)
                if len(mine) >= leaves_after:
                    break
                if chance.random() < 0.2:
                    await asyncio.sleep(0.001)

    async def _text(self, session: Session, text: str, chance: random.Random) -> None:
        async with session.stream(text) as turn:
            async for _ in turn.text_stream:
                pass

    async def _leave(self, session: Session, text: str, chance: random.Random) -> None:
        after = chance.randint(0, 8)
        async with session.stream(text) as turn:
            async for _ in turn:
                after -= 1
                if after <= 0:
                    break

    async def _cancel(self, session: Session, text: str, chance: random.Random) -> None:
        """Cancelled by another task, more than once."""
        streamed = chance.random() < 0.5
        turn = asyncio.create_task(self._text(session, text, chance) if streamed else session.send(text))  # type: ignore[arg-type]
        for _ in range(chance.randint(1, 3)):
            await asyncio.sleep(chance.choice((0, 0.002, 0.01, 0.05)))
            await session.cancel()
        await turn

    async def _kill(self, session: Session, text: str, chance: random.Random) -> None:
        """The host's own task is cancelled."""
        streamed = chance.random() < 0.5
        task = asyncio.create_task(self._text(session, text, chance) if streamed else session.send(text))  # type: ignore[arg-type]
        for _ in range(chance.randint(0, 20)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice((0, 0, 0.002, 0.01, 0.1)))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.counts["killed"] += 1

    # -- chaos

    def _break_store(self) -> None:
        store = self._engine.store
        assert store is not None
        write = store.write

        async def sometimes(envelopes: Sequence[Envelope]) -> None:
            if self._store_fails:
                raise StoreError("injected: the disk is full")
            await write(envelopes)

        store.write = sometimes  # type: ignore[method-assign]

    async def _chaos(self) -> None:
        chance = self._chance("chaos")
        hosted = await self._engine.start()
        # five crashes in a row of one of these are the end of the engine; an adapter is stopped, and revived
        bounded = Counter({"writer": 2, "manager": 2})
        while True:
            await asyncio.sleep(chance.uniform(0.01, 0.15))
            what = chance.choices(("actor", "call", "writer", "manager", "store"), (4, 6, 2, 1, 2))[0]
            provider = chance.choice(list(PROTOCOLS))
            if what in bounded:
                bounded[what] -= 1
                if bounded[what] < 0:
                    continue
            self.counts[f"chaos {what}"] += 1
            running = self._engine.adapters.running.get(provider)
            match what:
                case "actor" if running is not None:
                    running.ref.tell("an injected message that no adapter understands")
                case "call" if running is not None and isinstance(running.ref.actor, AdapterActor):
                    _crash_once(running.ref.actor.adapter, chance.choice(("read_whole", "_write", "feed")))
                case "writer" if hosted.writer is not None:
                    _crash_once(hosted.writer, "_wait")
                case "manager":
                    hosted.manager.tell("an injected message that no manager understands")
                case "store":
                    self._store_fails = not self._store_fails

    # -- what must hold

    def _check_bus(self, envelopes: Sequence[Envelope]) -> None:
        open_attempts: dict[tuple[str | None, int | None], bool] = {}
        by_call: dict[str, list[tuple[int, bool]]] = {}
        for envelope in envelopes:
            key = (envelope.request_id, envelope.attempt)
            match envelope.data:
                case LlmCallStarted():
                    if key in open_attempts:
                        self.fail(f"{key} starts twice")
                    open_attempts[key] = True
                case LlmCallCompleted() | LlmCallFailed():
                    if not open_attempts.get(key):
                        self.fail(f"{key} ends and was not open")
                    open_attempts[key] = False
                    again = isinstance(envelope.data, LlmCallFailed) and envelope.data.will_retry
                    by_call.setdefault(str(key[0]), []).append((key[1] or 0, again))
                case _:
                    pass
        for key in [key for key, is_open in open_attempts.items() if is_open]:
            self.fail(f"{key} has no end on the bus")
        for call, ends in by_call.items():
            if ends != [(at, at < len(ends)) for at in range(1, len(ends) + 1)]:
                self.fail(f"call {call}: its attempts end as {ends}")
        turns = Counter(e.turn_id for e in envelopes if isinstance(e.data, SessionTurnCompleted))
        for turn, times in turns.items():
            if times != 1:
                self.fail(f"turn {turn} completes {times} times")
        for envelope in envelopes:
            if envelope.topic == "session.turn_started" and envelope.turn_id not in turns:
                self.fail(f"turn {envelope.turn_id} starts and does not end")
        self.counts["attempts"] += len(open_attempts)

    async def _check_store(self, envelopes: Sequence[Envelope]) -> None:
        from tracestore import TraceStore

        attempts = {(e.request_id, e.attempt) for e in envelopes if isinstance(e.data, LlmCallStarted)}
        async with TraceStore.open_readonly(self.path) as store:
            rows = await store.calls(limit=None)
            stored = [envelope.seq for envelope in await store.events(limit=None)]
        keys = Counter((row.request_id, row.attempt) for row in rows)
        if set(keys) != attempts:
            self.fail(f"rows and attempts differ: {set(keys) ^ attempts}")
        for key in [key for key, times in keys.items() if times > 1]:
            self.fail(f"{key} has more than one row")
        for row in rows:
            if row.status == "started":
                self.fail(f"{(row.request_id, row.attempt)} has no end in the store")
        published = [envelope.seq for envelope in envelopes]
        missing, twice = set(published) - set(stored), [s for s, n in Counter(stored).items() if n > 1]
        if missing or twice:
            self.fail(f"events lost: {sorted(missing)}, events twice: {twice}")
        for number, session in enumerate(self._open):
            asked = sum(n for key, n in self._server.seen.items() if key.startswith(f"{number}."))
            if asked and not [row for row in rows if row.session_id == session.id]:
                self.fail(f"session {number} has {asked} requests and not one row")

    def _check_streams(self) -> None:
        channel = self._engine.streams
        for stream_id, readings in self._streams.items():
            log = channel.attach(stream_id)._log
            whole = log.since(0)
            if not log.closed or not whole or not isinstance(whole[-1], TurnComplete):
                self.fail(f"stream {stream_id} has no end: {whole[-2:]}")
            for reading in readings:
                if reading != whole[: len(reading)]:
                    self.fail(f"a reader of {stream_id} has read something else: {reading} of {whole}")
            messages: dict[str, list[StreamEvent]] = {}
            for event in whole:
                message_id = getattr(event, "message_id", None)
                if message_id is not None and not isinstance(event, StepFinish):
                    messages.setdefault(message_id, []).append(event)  # type: ignore[arg-type]
            for events in messages.values():
                try:
                    check_stream(events)
                except AssertionError as error:
                    self.fail(f"stream {stream_id} breaks an invariant: {error}\n{events}")
                except Exception as error:
                    self.fail(f"stream {stream_id} breaks an invariant: {error!r}\n{events}")
            self.counts["streams"] += 1

    async def _check_histories(self) -> None:
        entries = self._engine.registry.adapters.values()
        for session, entry in itertools.product(self._open, entries):
            if session._state.waiting or session._state.running is not None:
                self.fail(f"session {session.id}: waiting={session._state.waiting} after all turns")
            adapter = create_adapter(entry.type, entry.config, name=entry.name)
            assert isinstance(adapter, HttpAdapter)
            request = CanonicalRequest(
                request_id="check",
                messages=(*session.messages, Message.user("and now?")),
                model=f"{entry.name}:m",
                max_output_tokens=100,
                tools=tuple(tool.definition for tool in TOOLS),
            )
            wire = adapter.write_request(request, stream=False)
            for fault in history_faults(wire.path, msgspec.json.decode(wire.body)):
                self.fail(f"{entry.name} would refuse the history of session {session.id}: {fault}")
            await adapter.close()


def _crash_once(target: object, what: str) -> None:
    """Let the next use of a method raise what nobody expects; ``feed``: of the next stream's second piece."""

    def crash(*args: object, **options: object) -> object:
        delattr(target, what)
        raise ZeroDivisionError("injected")

    if what != "feed":
        setattr(target, what, crash)
        return
    assert isinstance(target, HttpAdapter)
    make = target.normaliser

    def make_once(assembler: object) -> object:
        del target.normaliser  # type: ignore[method-assign]  # the instance's, not the class's
        made = make(assembler)  # type: ignore[arg-type]
        feed, fed = made.feed, itertools.count()

        def feeding(chunk: bytes) -> object:
            if next(fed) == 1:
                raise ZeroDivisionError("injected into a stream")
            return feed(chunk)

        made.feed = feeding  # type: ignore[method-assign,assignment]
        return made

    target.normaliser = make_once  # type: ignore[method-assign,assignment]


def _stacks() -> str:
    lines = []
    for task in asyncio.all_tasks():
        frames = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
        lines.append(f"  {task.get_name()}: {' > '.join(frames)}")
    return "\n".join(lines)


# -- what may be left: nothing


def _files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def _threads() -> set[str]:
    """Without anyio's workers, which end by themselves, and the store's guard, which waits for the interpreter."""
    return {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if not thread.name.startswith(("AnyIO worker", "callboard-sqlite-reaper"))
    }


async def _guarded(run: Callable[[], Awaitable[None]]) -> list[str]:
    """Run, and say what is left afterwards."""
    files, threads = _files(), _threads()
    await run()
    await asyncio.sleep(0.05)  # a socket's transport closes in the next turn of the loop, a thread soon after
    still = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    gc.collect()
    failures = [f"a task is left: {task}" for task in still]
    failures += [f"a file is left open: {name}" for name in sorted(_files() - files)]
    failures += [f"a thread is left: {name}" for name in sorted(_threads() - threads)]
    return failures


def run_round(seed: int, folder: Path, *, sessions: int = 6, turns: int = 8) -> Report:
    """One round of the lab; its failures, empty if every invariant held."""
    plan = _Round(seed, folder, sessions=sessions, turns=turns)
    complaints: list[str] = []

    async def main() -> list[str]:
        def complain(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            complaints.append(f"the event loop complains: {context.get('message')}: {context.get('exception')!r}")

        asyncio.get_running_loop().set_exception_handler(complain)
        return await _guarded(plan.run)

    left = asyncio.run(main())
    return Report(seed, plan.failures + left + complaints, plan.counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long; at least one round is run")
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--verbose", action="store_true", help="show the engine's log")
    options = parser.parse_args()
    if not options.verbose:
        quiet()
    until = time.monotonic() + options.seconds
    total: Counter[str] = Counter()
    failed: list[int] = []
    with tempfile.TemporaryDirectory(prefix="callboard-faults-") as folder:
        for seed in itertools.count(options.seed):
            report = run_round(seed, Path(folder), sessions=options.sessions, turns=options.turns)
            total.update(report.counts)
            if report.failures:
                failed.append(seed)
                print(f"seed {seed}: {len(report.failures)} failures")
                for failure in report.failures[:10]:
                    print(f"  {failure[:3000]}", flush=True)
            if time.monotonic() >= until:
                break
    rounds = seed - options.seed + 1
    for name, count in sorted(total.items()):
        print(f"{count:8}  {name}")
    print(f"{rounds} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


def quiet() -> None:
    """Without the log of all that goes wrong on purpose."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


if __name__ == "__main__":
    sys.exit(main())
