"""One round: it runs an engine with its real adapters, sockets and store through a plan, and then checks the
invariants.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from callboard.adapters import AdapterConfig, RetryPolicy, ToolDefinition
from callboard.bus import CallboardError, Lossless, StreamReset
from callboard.bus.streams.events import TurnEvent
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, Tool

from . import checks
from .chaos import BreakableStore, perform
from .plan import PROTOCOLS, STEADY, Plan, TurnPlan, make_plan, mark
from .server import FaultyServer

STEP_SECONDS = 20.0
"""The maximum time of a turn, a flush or a stop. The adapters' timeouts are much shorter."""


def registry(url: str, steady_url: str) -> ModelRegistry:
    """Models of all protocols at the faulty server, each also with a circular fallback chain, and one model at a
    working server.

    The timeouts are short, so that a stalled call ends soon.
    """
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
    slower = AdapterConfig(api_key=config.api_key, base_url=steady_url)
    adapters = {name: AdapterEntry(name=name, type=kind, config=config) for name, kind in PROTOCOLS.items()}
    adapters[STEADY] = AdapterEntry(name=STEADY, type="openai_compatible", config=slower)
    models = {f"{name}:m": ModelEntry(id=f"{name}:m", adapter=name, wire_name="m") for name in adapters}
    names = list(PROTOCOLS)
    for name, following in zip(names, names[1:] + names[:1], strict=True):
        chained = f"{name}:chained"
        models[chained] = ModelEntry(id=chained, adapter=name, wire_name="m", fallback=(f"{following}:chained",))
    return ModelRegistry(adapters, models)


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
    """The results of a round."""

    seed: int
    failures: list[str]
    """The violated invariants."""
    counts: Counter[str]
    """The number of events of each kind."""
    played: dict[tuple[str, str, int], str]
    """The fault of each request, by turn, protocol and the number of the request."""


class Round:
    """One round. Call `run` once; then read `failures`, `counts` and `played`."""

    def __init__(self, plan: Plan, path: Path, *, tls: ssl.SSLContext | None = None) -> None:
        self.plan = plan
        self.path = path
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.played: dict[tuple[str, str, int], str] = {}
        self._tls = tls
        self._engine: Engine
        self._server: FaultyServer
        self._open: dict[int, Session] = {}
        self._streams: dict[str, list[list[TurnEvent]]] = {}
        self._closing = False
        self._reloads = 0

    async def run(self) -> None:
        faulty = FaultyServer(self.plan.seed, tls=self._tls)
        steady = FaultyServer(f"{self.plan.seed}/{STEADY}", faults={"none": 5, "latency": 1}, tls=self._tls)
        async with faulty as self._server, steady:
            self._engine = engine = Engine(models=registry(faulty.url, steady.url), store=self.path)
            events = engine.bus.subscribe(">", policy=Lossless(), name="fault lab")
            async with self._bounded("start"):
                await engine.start()
            await self._play()
            if not self._closing:
                async with self._bounded("flush"):
                    await engine.flush()
            self._check_streams()
            definitions = tuple(tool.definition for tool in TOOLS)
            entries = engine.registry.adapters.values()
            self.failures += await checks.of_histories(list(self._open.values()), entries, definitions)
            async with self._bounded("stop"):
                report = await engine.aclose()
                if report is None or not report.clean:
                    self.failures.append(f"the engine did not close cleanly: {report}")
            envelopes = events.take()
            self.failures += checks.on_the_bus(envelopes)
            self.failures += await checks.in_the_store(self.path, envelopes, self._asked())
            await self._check_sockets(faulty, steady)
            for server in (faulty, steady):
                self.failures += [f"a request its provider would refuse: {text}" for text in server.wrong]
            self.counts.update(faulty.done)
            self.counts["attempts"] += len(checks.attempts(envelopes))
            self.counts["answers of steady"] += sum(steady.done.values())
            self.played = faulty.played

    async def _play(self) -> None:
        store = BreakableStore(self._engine)
        chaos = asyncio.create_task(perform(self.plan.chaos, self._engine, store, self._reload, self.counts))
        closing = asyncio.create_task(self._close_early(chaos, store))
        await asyncio.gather(*(self._session(number) for number in range(len(self.plan.sessions))))
        for task in (closing, chaos):
            if not self._closing:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        store.fails = False

    async def _close_early(self, chaos: asyncio.Task[None], store: BreakableStore) -> None:
        """Close the engine during the turns, if the plan says so."""
        if self.plan.close_after is None:
            return
        await asyncio.sleep(self.plan.close_after)
        self._closing = True
        self.counts["closed under turns"] += 1
        chaos.cancel()
        store.fails = False
        async with self._bounded("stop under turns"):
            await self._engine.aclose()

    async def _reload(self, provider: str) -> None:
        """Load another configuration of a provider, so that its adapter is replaced."""
        self._reloads += 1
        current = self._engine.registry
        entry = current.adapters[provider]
        config = msgspec.structs.replace(entry.config, timeout_seconds=1.5 + self._reloads / 1000)
        changed = {**current.adapters, provider: msgspec.structs.replace(entry, config=config)}
        async with self._bounded(f"reload of {provider}"):
            await self._engine.reload(ModelRegistry(changed, current.models))

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        """Run a step with a time limit. An exception is also recorded as a failure."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                yield
        except TimeoutError:
            self.failures.append(f"{what}: hangs\n{checks.stacks()}")
        except Exception as error:
            self.failures.append(f"{what}: raised {''.join(traceback.format_exception(error))}")

    # -- sessions

    async def _session(self, number: int) -> None:
        session = self._engine.session("chat:m", tools=TOOLS, tags={"number": str(number)})
        self._open[number] = session
        for at, turn in enumerate(self.plan.sessions[number]):
            if turn.model is not None:
                session.model = turn.model
            self.counts[f"turn {turn.kind}"] += 1
            where = f"session {number}, turn {at} ({turn.kind} to {session.model})"
            async with self._bounded(where):
                try:
                    await self._turn(session, f"Turn {mark(number, at)}", turn)
                    self.counts["turns well"] += 1
                except CallboardError as error:
                    self.counts[f"turns {type(error).__name__}"] += 1
                    if not self._closing:
                        self.failures += [f"{where}: {text}" for text in checks.of_fallback(turn, error)]

    async def _turn(self, session: Session, text: str, turn: TurnPlan) -> None:
        options: dict[str, Any] = {
            "fallback": turn.fallback,
            "max_tool_rounds": turn.rounds,
            "drain_for_usage": turn.drain_for_usage,
            "timeout": turn.timeout_seconds,
        }
        chance = random.Random(turn.details)
        streamed = chance.random() < 0.5

        async def simply() -> None:
            if not streamed:
                await session.send(text, **options)
                return
            async with session.stream(text, **options) as stream:
                async for _ in stream.text_stream:
                    pass

        match turn.kind:
            case "send":
                await session.send(text, **options)
            case "text":
                async with session.stream(text, **options) as stream:
                    async for _ in stream.text_stream:
                        pass
            case "read":
                await self._read(session, text, options, chance)
            case "leave":
                await _leave(session, text, options, chance.randint(0, 8))
            case "cancel":
                await _cancel(session, simply, chance)
            case "kill":
                self.counts["killed"] += await _kill(simply, chance)

    async def _read(self, session: Session, text: str, options: dict[str, Any], chance: random.Random) -> None:
        """Read a stream with several readers. Some start late, and some stop early."""
        failure: CallboardError | None = None
        async with session.stream(text, **options) as turn, asyncio.TaskGroup() as readers:
            for _ in range(chance.randint(0, 3)):
                readers.create_task(self._one_more(turn.stream_id, random.Random(chance.random())))
            mine: list[TurnEvent] = []
            self._streams.setdefault(turn.stream_id, []).append(mine)
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

    # -- afterwards

    def _check_streams(self) -> None:
        for stream_id, readings in self._streams.items():
            log = self._engine.streams.attach(stream_id)._log
            self.failures += checks.of_stream(stream_id, log.closed, log.since(0), readings)
            self.counts["streams"] += 1

    def _asked(self) -> dict[str, int]:
        """The number of requests that the faulty server received from each session."""
        counts = {
            session.id: sum(n for turn, n in self._server.seen.items() if turn.startswith(f"{number}."))
            for number, session in self._open.items()
        }
        return {session: times for session, times in counts.items() if times}

    async def _check_sockets(self, *servers: FaultyServer) -> None:
        for _ in range(100):
            if not any(server.connections for server in servers):
                return
            await asyncio.sleep(0.01)
        still = sum(server.connections for server in servers)
        self.failures.append(f"{still} sockets are open after the engine has closed")


async def _leave(session: Session, text: str, options: dict[str, Any], after: int) -> None:
    async with session.stream(text, **options) as turn:
        async for _ in turn:
            after -= 1
            if after <= 0:
                break


async def _cancel(session: Session, turn: Callable[[], Coroutine[Any, Any, None]], chance: random.Random) -> None:
    """Cancel the turn from another task, several times."""
    task = asyncio.create_task(turn())
    for _ in range(chance.randint(1, 3)):
        await asyncio.sleep(chance.choice((0, 0.002, 0.01, 0.05)))
        await session.cancel()
    await task


async def _kill(turn: Callable[[], Coroutine[Any, Any, None]], chance: random.Random) -> bool:
    """Cancel the host's task. Returns whether the turn was still running."""
    task = asyncio.create_task(turn())
    for _ in range(chance.randint(0, 20)):
        await asyncio.sleep(0)
    await asyncio.sleep(chance.choice((0, 0, 0.002, 0.01, 0.1)))
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def run_round(
    seed: int,
    folder: Path,
    *,
    sessions: int = 6,
    turns: int = 8,
    tls: ssl.SSLContext | None = None,
    uvloop: bool = False,
) -> Report:
    """Run the round of a seed in an event loop of its own. Its failures are empty if all invariants hold."""
    played = Round(make_plan(seed, sessions=sessions, turns=turns), folder / f"trace-{seed}.db", tls=tls)
    complaints: list[str] = []

    async def main() -> list[str]:
        def complain(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            complaints.append(f"the event loop complains: {context.get('message')}: {context.get('exception')!r}")

        asyncio.get_running_loop().set_exception_handler(complain)
        return await checks.nothing_left(played.run)

    with asyncio.Runner(loop_factory=_uvloop() if uvloop else None) as runner:
        leftover = runner.run(main())
    return Report(seed, played.failures + leftover + complaints, played.counts, played.played)


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop
