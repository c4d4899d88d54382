"""Five crashes in a row of an actor that the engine can't do without: the engine ends, in order, and says why."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from callboard.bus import AdapterError, CallboardError, Envelope, Lossless, Subscription, SupervisorEscalated
from callboard.bus.streams.events import MessageComplete, TextDelta, TurnComplete, TurnEvent
from callboard.engine import Engine, Session
from tests.support.engines import registry, running
from tests.support.present import present
from tests.support.programs import ended
from tests.support.scripted import Say
from tests.support.virtual_time import FakeClock, runs_on
from callboard.tracestore import TraceStore

from .toy_engines import check_ends

pytestmark = pytest.mark.anyio

CHECKOUT = Path(__file__).parents[2]
VITAL = ("trace writer", "availability", "session manager")

anyio_backend = runs_on("asyncio")


async def crash_until_the_end(engine: Engine, actor: str) -> None:
    """Crash an actor each time it is up, until its supervisor gives up and the engine has ended."""
    hosted = engine._host.life
    assert hosted is not None
    ref = present(hosted.supervisor).child(actor)
    with anyio.fail_after(10):
        while hosted.state == "running":
            if ref.running:
                ref.tell("no actor understands this")
            await anyio.lowlevel.checkpoint()


async def hold() -> None:
    await asyncio.sleep(60)


class Talk:
    """A streamed and a whole call that never end by themselves, and an observer of the first."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = [engine.session("s:m"), engine.session("s:m")]
        self.seen: list[TurnEvent] = []
        self.ends: list[BaseException | None] = []

    async def streamed(self, session: Session) -> None:
        async with session.stream("Hi") as turn:
            async for event in turn:
                self.seen.append(event)

    async def until_under_way(self, events: Subscription) -> list[Envelope]:
        came: list[Envelope] = []
        while sum(envelope.topic == "llm.call_started" for envelope in came) < 2 or not self.seen:
            await anyio.sleep(0.001)
            came += events.take()
        return came

    async def run(self, events: Subscription, actor: str) -> list[Envelope]:
        """All that was published."""
        tasks = [
            asyncio.create_task(self.streamed(self.sessions[0])),
            asyncio.create_task(self.sessions[1].send("Hi")),
        ]
        came = await self.until_under_way(events)
        await crash_until_the_end(self.engine, actor)
        with anyio.fail_after(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        self.ends = [end for end in ends if isinstance(end, BaseException)]
        return came + [envelope async for envelope in events]  # which ends, as the bus does


@pytest.mark.parametrize("actor", VITAL)
async def test_an_engine_whose_actor_cannot_be_kept_running_ends_in_order(actor: str, tmp_path: Path) -> None:
    """Every call has its end, on the bus, in its stream and in the store; whoever asks is told the reason."""
    path, before = tmp_path / "trace.db", asyncio.all_tasks()
    says = [Say("some text", "never", pause=OnlyFirst()) for _ in range(2)]
    engine = Engine(models=registry(*says), store=path, clock=FakeClock(randomness=0.0))
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    await engine.start()
    talk = Talk(engine)
    came = await talk.run(events, actor)

    assert check_ends(came) == 2
    assert len(talk.ends) == 2, "neither turn hangs, and neither ends as if all were well"
    assert all(isinstance(end, CallboardError) for end in talk.ends)
    assert isinstance(talk.seen[-1], TurnComplete)
    assert [event.text for event in talk.seen if isinstance(event, TextDelta)] == ["some text"]
    assert sum(isinstance(event, MessageComplete) for event in talk.seen) == 1
    topics = Counter(envelope.topic for envelope in came)
    assert (topics["actor.crashed"], topics["actor.restarted"], topics["actor.escalated"]) == (5, 4, 1)

    reason = f"{actor} ended 5 times in a row"
    with pytest.raises(SupervisorEscalated, match=reason):
        await engine.aclose()
    with pytest.raises(CallboardError, match=rf"this engine is closed \({reason}.*make a new one"):
        await talk.sessions[0].send("again")
    assert asyncio.all_tasks() == before
    async with TraceStore.open_readonly(path) as store:
        ends = {row.status for row in await store.calls(limit=None)}
        stored = [envelope.seq for envelope in await store.events(limit=None)]
    assert ends == {"cancelled" if actor == "session manager" else "failed"}  # its turns die with the manager
    assert stored == [envelope.seq for envelope in came], "the store was written to the end, and closed"


class OnlyFirst:
    """A pause that lets the first step of a reply through, and no other."""

    def __init__(self) -> None:
        self.steps = 0

    async def __call__(self) -> None:
        self.steps += 1
        if self.steps > 1:
            await hold()


async def test_an_adapter_that_cannot_be_kept_running_takes_nobody_with_it() -> None:
    """Its calls fail, its provider is unavailable as adapter_crashed, others go on, a probe starts it afresh."""
    asked = asyncio.Event()

    async def never() -> None:
        asked.set()
        await hold()

    async with running(Say("never", pause=never), Say("back"), other=[Say("fine")]) as (engine, events):
        failing = asyncio.create_task(engine.session("s:m").send("Hi"))
        with anyio.fail_after(30):
            await asked.wait()
            ref = engine._runtime.adapters["s"].ref
            while engine.availability.state("s") != "unavailable":
                if ref.running:
                    ref.tell("no adapter understands this")
                await anyio.sleep(0.01)
        with pytest.raises(AdapterError, match="actor stopped"):
            await failing
        (row,) = engine.availability.snapshot()
        assert (row.provider, row.model, row.reason) == ("s", None, "adapter_crashed")
        assert (await engine.session("other:m").send("Hi")).text == "fine"
        assert not ref.running
        assert (await engine.session("s:m").send("Hi")).text == "back"  # alone, so the call is the probe
        assert engine.availability.snapshot() == ()
        assert check_ends(events.take()) == 3


PROGRAM = """
import asyncio, logging, sys
from pathlib import Path
from callboard import Engine
from tests.support.engines import registry
from tests.faults.test_giving_up import crash_until_the_end
from tests.support.scripted import Say
from tests.support.virtual_time import FakeClock, runs_on

logging.basicConfig(stream=sys.stdout)

async def main():
    global engine
    engine = Engine(models=registry(Say("Hello")), store=Path(sys.argv[1]), clock=FakeClock(randomness=0.0))
    await engine.session("s:m").send("Hi")
    await crash_until_the_end(engine, sys.argv[2])
    print("over", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("actor", VITAL)
def test_the_interpreter_ends_after_an_engine_that_gave_up(actor: str, tmp_path: Path) -> None:
    """Though nobody closes it and it is still referenced; with nothing said on stderr, and all of it stored."""
    process = ended(PROGRAM, tmp_path / "trace.db", actor, timeout=30)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.endswith("over\n")
    assert "supervisor.escalated" in process.stdout
