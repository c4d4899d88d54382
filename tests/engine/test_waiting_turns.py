"""Turns that wait for an answer continue with their original options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.adapters import AdapterConfig, RetryPolicy, ToolDefinition
from callboard.bus import AdmissionError, ConfigurationError, Envelope, StoreError
from callboard.engine import (
    AdapterEntry,
    Approved,
    Denied,
    Engine,
    Limits,
    ModelRegistry,
    Reply,
    Requirements,
    Tool,
    tool,
)
from callboard.engine.runtime.runtime import Admission
from callboard.engine.tools import ApprovalRequest, Pending
from callboard.tracestore import StoreState, TraceStore, WriterStatistics
from callboard.tracestore.sql.batches import made_at_once

from ..support.cluster_engines import node_engine
from ..support.depth import first_is_quick
from ..support.engines import keeping, registry, requests_of, serving
from ..support.postgres_server import why_not
from ..support.scripted import Say, scripted_type
from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

REFUND = Say("Let me see.", calls=[("refund", {"order": "1"})])


Answer = Callable[..., Awaitable[Reply]]
EACH: dict[str, Answer] = {
    "submit": lambda at, **more: at.submit({at.pending_calls[0].id: "done"}, **more),
    "approve_stream": lambda at, **more: at.approve_stream(*at.pending_calls, **more).message(),
    "deny": lambda at, **more: at.deny(*at.pending_calls, why="no", **more),
    "approve": lambda at, **more: at.approve(*at.pending_calls, **more),
    "submit_stream": lambda at, **more: at.submit_stream({at.pending_calls[0].id: "done"}, **more).message(),
    "deny_stream": lambda at, **more: at.deny_stream(*at.pending_calls, why="no", **more).message(),
}
"""The ways to answer a session that waits."""

at_each_entry_point = pytest.mark.parametrize("answer", EACH.values(), ids=EACH)
at_two_entry_points = pytest.mark.parametrize(
    "answer", first_is_quick(EACH.values(), "one test at each entry point is quick", quick=2)
)


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def models(*replies: Say, other: list[Say] | None = None) -> ModelRegistry:
    """The models `s:m` and `t:m`. Each adapter has its own key, and keys of tenants."""
    config = AdapterConfig(api_key="house-secret", keys={"tenant": "tenant-secret", "second": "second-secret"})
    return serving(
        s=AdapterEntry(name="s", type=scripted_type(*replies), config=config),
        t=AdapterEntry(name="t", type=scripted_type(*(other or [])), config=config),
    )


OPTIONS: dict[str, Any] = {
    "max_output_tokens": 80,
    "temperature": 0.25,
    "top_p": 0.5,
    "seed": 7,
    "stop_sequences": ("END",),
    "reasoning_effort": None,
    "user": "u-1",
    "max_retries": 0,
    "call_timeout": 33.0,
    "provider_options": {"s": {"extra": 1}},
    "retry": RetryPolicy(base_delay=2.0),
    "requires": Requirements(("tools",)),
    "max_tool_rounds": 3,
    "tags": {"job": "refunds"},
}

IN_REQUESTS = ("max_output_tokens", "temperature", "top_p", "seed", "stop_sequences", "user", "retry")


def everything_in(folder: Path) -> bytes:
    """The bytes of all files in a folder."""
    return b"".join(each.read_bytes() for each in folder.iterdir())


def assert_same_options(engine: Engine, place: int = -1) -> None:
    """Check that the last request has the options of the turn that waited."""
    request = requests_of(engine)[place]
    for name in IN_REQUESTS:
        assert getattr(request, name) == OPTIONS[name], name
    assert (request.timeout_seconds, request.provider_options) == (33.0, OPTIONS["provider_options"])


@at_each_entry_point
@pytest.mark.parametrize("over", [{}, {"temperature": 0.75, "key": "second"}], ids=["as asked", "other options"])
async def test_a_turn_that_continues_keeps_its_options(answer: Answer, over: Any, tmp_path: Path) -> None:
    """An option that is passed with the answer replaces the turn's option. The other options stay."""
    async with keeping(tmp_path / "t.db", models=models(REFUND, Say("Done."))) as engine:
        session = engine.session("s:m", tools=[refund])
        await session.send("Refund it.", key="tenant", **OPTIONS)
        assert (await answer(session, **over)).text == "Done."
        request = requests_of(engine)[-1]
        wanted = {"key": "tenant", "temperature": 0.25, **over}
        assert {name: getattr(request, name) for name in wanted} == wanted
        assert request.max_output_tokens == 80
        if not over:
            assert_same_options(engine)


@at_each_entry_point
async def test_a_turn_keeps_its_options_over_a_restart(answer: Answer, tmp_path: Path) -> None:
    """The options that can be stored are kept at each of the six entry points."""
    async with keeping(tmp_path / "t.db", models=models(REFUND)) as engine:
        await engine.session("s:m", tools=[refund], session_id="ses_1").send("Refund it.", **OPTIONS)
    async with keeping(tmp_path / "t.db", models=models(Say("Done."))) as engine:
        session = await engine.resume("ses_1", tools=[refund])
        assert (await answer(session)).text == "Done."
        assert_same_options(engine)


@at_two_entry_points
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_turn_continues_with_its_own_model(answer: Answer, restarted: bool, tmp_path: Path) -> None:
    of_t = [Say("Of t.")]
    async with keeping(tmp_path / "t.db", models=models(Say("Of s."), other=[REFUND, *of_t])) as engine:
        session = engine.session("s:m", tools=[refund], session_id="ses_1")
        await session.send("Refund it.", model="t:m")
        if not restarted:
            assert (await answer(session)).text == "Of t."
            return
    async with keeping(tmp_path / "t.db", models=models(Say("Of s."), other=of_t)) as engine:
        assert (await answer(await engine.resume("ses_1", tools=[refund]))).text == "Of t."


@at_two_entry_points
@pytest.mark.parametrize("of_session", [False, True])
async def test_a_turn_with_a_lost_key_is_refused_until_the_key_is_passed(
    answer: Answer, of_session: bool, tmp_path: Path
) -> None:
    """The turn or its session had a tenant's key. After a restart, the adapter's own key never replaces it."""
    async with keeping(tmp_path / "t.db", models=models(REFUND)) as engine:
        session = engine.session("s:m", tools=[refund], session_id="ses_1", key="tenant" if of_session else None)
        await session.send("Refund it.", key=None if of_session else "tenant")
    assert b"tenant-secret" not in everything_in(tmp_path)
    assert b'"key"' in everything_in(tmp_path), "the name of the option is stored"
    async with keeping(tmp_path / "t.db", models=models(Say("Done."))) as engine:
        session = await engine.resume("ses_1", tools=[refund])
        with pytest.raises(ConfigurationError, match="Pass key= again"):
            await answer(session)
        assert session.pending_calls, "the calls are still pending"
        assert (await answer(session, key="tenant")).text == "Done."
        assert requests_of(engine)[-1].key == "tenant"


async def test_an_imported_and_a_forked_session_keep_the_options_of_a_turn(tmp_path: Path) -> None:
    """A copy of a waiting session continues like the original. A session that is resumed with its key does too."""
    async with keeping(tmp_path / "t.db", models=models(REFUND, Say("One."), Say("Two."))) as engine:
        session = engine.session("s:m", tools=[refund], session_id="ses_1", key="tenant")
        await session.send("Refund it.", **OPTIONS)
        fork = session.fork()
        other = await engine.import_session(session.export(), session_id="ses_2", tools=[refund], key="tenant")
        for each in (fork, other):
            await each.approve(*each.pending_calls)
            assert_same_options(engine)
    async with keeping(tmp_path / "t.db", models=models(Say("Done."))) as engine:
        session = await engine.resume("ses_1", tools=[refund], key="tenant")
        await session.approve(*session.pending_calls)
        assert requests_of(engine)[-1].key == "tenant"


async def test_calls_wait_again_when_the_approve_hook_is_lost(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    async def pay(order: str) -> str:
        """Pay an order."""
        ran.append(order)
        return "paid"

    calls = [Say("", calls=[("pay", {"order": str(place)})]) for place in range(3)]
    async with keeping(tmp_path / "t.db", models=models(calls[0])) as engine:
        session = engine.session("s:m", tools=[pay], session_id="ses_1")
        await session.send("Pay.", approve=lambda request: Pending())
    for place in (1, 2):
        async with keeping(tmp_path / "t.db", models=models(calls[place])) as engine:
            session = await engine.resume("ses_1", tools=[pay])
            reply = await session.approve(*session.pending_calls)
            assert reply.status == "awaiting_tools"
    assert ran == ["0", "1"]


async def test_an_approve_hook_stays_with_its_turn(tmp_path: Path) -> None:
    """In the same engine, the turn's hook decides about the following calls."""
    asked: list[str] = []

    def hook(request: ApprovalRequest) -> Pending | Denied | Approved:
        asked.append(request.call.name)
        return Pending() if len(asked) == 1 else Denied("enough")

    async with keeping(tmp_path / "t.db", models=models(REFUND, REFUND, Say("Done."))) as engine:
        session = engine.session("s:m", tools=[refund])
        await session.send("Refund it.", approve=hook, max_tool_rounds=2)
        assert (await session.approve(*session.pending_calls)).text == "Done."
        assert asked == ["refund", "refund"]


async def test_a_later_turn_does_not_get_the_options_of_an_earlier_one(tmp_path: Path) -> None:
    async with keeping(tmp_path / "t.db", models=models(REFUND, Say("Done."), REFUND)) as engine:
        session = engine.session("s:m", tools=[refund], session_id="ses_1")
        await session.send("Refund it.", **OPTIONS)
        await session.approve(*session.pending_calls)
        await session.send("Refund another.")
    async with keeping(tmp_path / "t.db", models=models(Say("Done."))) as engine:
        session = await engine.resume("ses_1", tools=[refund])
        await session.approve(*session.pending_calls)
        request = requests_of(engine)[-1]
        assert (request.temperature, request.stop_sequences) == (None, ())


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_a_turn_continues_with_its_options_on_another_node(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node gets the options through the shared store, and does not get the key."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    async with node_engine("a", postgres_dsn, tmp_path, models=models(REFUND)) as a:
        session = a.session("s:m", tools=[refund])
        await session.send("Refund it.", key="tenant", **OPTIONS)
        async with node_engine("b", postgres_dsn, tmp_path, models=models(Say("Done."))) as b:
            with anyio.fail_after(5):
                there = await b.resume(session.id, tools=[refund])
            with pytest.raises(ConfigurationError, match="Pass key= again"):
                await there.approve(*there.pending_calls)
            await there.approve(*there.pending_calls, key="tenant")
            assert_same_options(b)


# A new turn waits while the trace writer has a large backlog.


class SlowStore(TraceStore):
    """A store with writes that wait for the test, or fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may = anyio.Event()
        self.may.set()
        self.stuck = anyio.Event()
        self.fails = False

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        if self.fails:
            raise StoreError("trace.db: database or disk is full")
        if not self.may.is_set():
            self.stuck.set()
        await self.may.wait()
        await super().write(envelopes)


@asynccontextmanager
async def slow(path: Path, *replies: Say, **limits: float) -> AsyncIterator[tuple[Engine, SlowStore]]:
    """An engine with a store that has stopped writing."""
    store = SlowStore(path / "trace.db")
    bounds = Limits(admit_seconds=0.05, **limits)  # type: ignore[arg-type]
    async with Engine(models=registry(*replies), store=store, limits=bounds) as engine:
        await engine.flush()
        store.may = anyio.Event()
        try:
            yield engine, store
        finally:
            store.may.set()


async def test_a_writer_with_too_many_events_delays_new_turns(tmp_path: Path) -> None:
    """The turn waits and then fails, without an effect on the history or availability. Later turns work."""
    async with slow(tmp_path, Say("one"), Say("two"), admit_events=4) as (engine, store):
        session = engine.session("s:m")
        await session.send("Hi")
        with pytest.raises(AdmissionError, match=r"is \d+ events of about \d+ bytes behind \(limits: 4 events"):
            await session.send("more")
        assert [message.text for message in session.messages] == ["Hi", "one"]
        assert engine.availability.snapshot() == ()
        store.may.set()
        await engine.flush()
        assert (await session.send("again")).text == "two"


async def test_events_with_large_messages_count_by_their_bytes(tmp_path: Path) -> None:
    """An event refers to its message. The length of the message counts, although no event is encoded."""
    async with slow(tmp_path, Say("one"), Say("two"), Say("three"), admit_bytes=100_000) as (engine, store):
        session = engine.session("s:m")
        await session.send("small")
        await store.stuck.wait()
        await session.send("x" * 200_000)
        with pytest.raises(AdmissionError, match="limits: 8192 events and 100000 bytes"):
            await session.send("more")
        store.may.set()
        await engine.flush()
        assert engine.statistics().writer.waiting_bytes == 0  # type: ignore[union-attr]
        assert (await session.send("again")).text == "three"


async def test_an_admitted_turn_is_not_delayed_again(tmp_path: Path) -> None:
    """The calls and tools of an admitted turn need no further admission."""
    tool = Tool(ToolDefinition("read"), lambda arguments: "x" * 1000)
    says = [Say(calls=[("read", {})]), Say("done")]
    async with slow(tmp_path, *says, admit_events=4, admit_bytes=5000) as (engine, _):
        assert (await engine.session("s:m", tools=[tool]).send("Hi")).text == "done"


async def test_a_store_that_fails_delays_no_turn(tmp_path: Path) -> None:
    async with slow(tmp_path, *[Say("x")] * 10, admit_events=4) as (engine, store):
        store.may.set()
        store.fails = True
        session = engine.session("s:m")
        for _ in range(10):
            with anyio.fail_after(5):
                await session.send("Hi")
            while engine.statistics().writer.state == "ok":  # type: ignore[union-attr]  # noqa: ASYNC110
                await anyio.sleep(0.001)
        store.fails = False
        await engine.flush()


in_virtual_time = pytest.mark.parametrize("anyio_backend", ["virtual-asyncio"], indirect=True)


class FakeWriter:
    """A writer with statistics that the test sets."""

    def __init__(self) -> None:
        self.state: StoreState = "ok"
        self.committed = 0
        self.waiting = 10_000

    def statistics(self) -> WriterStatistics:
        return WriterStatistics("ok", self.waiting, 0, self.committed, 0, None, None, 0, None)


@in_virtual_time
async def test_a_writer_that_makes_progress_delays_turns_and_refuses_none() -> None:
    """The turns wait as long as needed, and start in their order."""
    writer, door, came = FakeWriter(), Admission(Limits(admit_seconds=1.0)), list[int]()

    async def turn(number: int) -> None:
        await door.admit(writer)
        came.append(number)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(turn, number)
        for _ in range(10):
            await anyio.sleep(0.9)
            writer.committed += 1
        assert came == []
        writer.waiting = 0
    assert came == list(range(100))


@in_virtual_time
async def test_a_writer_that_commits_nothing_refuses_all_turns_together() -> None:
    """A turn that waited behind another turn does not wait for the same time again."""
    writer, door, began = FakeWriter(), Admission(Limits(admit_seconds=1.0)), anyio.current_time()
    ends = await asyncio.gather(*(door.admit(writer) for _ in range(50)), return_exceptions=True)
    assert all(isinstance(end, AdmissionError) and "has committed none for 1 s" in str(end) for end in ends)
    assert anyio.current_time() - began < 1.5


def test_the_writer_handles_more_events_at_a_time_on_a_slow_loop() -> None:
    """A part has 32 events on a quick loop, and at most 256 on a loop with thousands of tasks."""
    assert [made_at_once(seconds) for seconds in (0.0, 0.0005, 0.002, 0.1)] == [32, 32, 80, 256]
