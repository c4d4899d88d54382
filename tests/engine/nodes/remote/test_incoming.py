"""Incoming events: each event is delivered once and in order, for any order of pages and with a slow store."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import Envelope, StoreUnavailable
from callboard.bus.events.sessions import SessionCreated
from callboard.engine.nodes import remote_bus
from callboard.engine.nodes.broker_streams import RetainedMessage, StreamPosition
from callboard.engine.nodes.remote_bus import (
    GRACE_SECONDS,
    LONGEST_WAIT,
    MOST_HELD,
    Arrived,
    Incoming,
    RemoteEvents,
)
from callboard.tracestore import TraceStore

from ....support.virtual_time import FakeClock
from ..bridge.event_making import events

PATIENCE = 60.0


def arrived(after: int, *seqs: int) -> Arrived:
    return Arrived(after, seqs[-1], events(seqs))


def seqs(given: list[Envelope]) -> list[int]:
    return [envelope.seq for envelope in given]


def test_a_reader_of_new_events_starts_with_the_first_page() -> None:
    run = Incoming(None, PATIENCE)
    assert seqs(run.receive(arrived(70, 71), 0.0)) == [71]
    assert not run.lacking


def test_a_gap_waits_for_its_page_or_the_store() -> None:
    run = Incoming(0, PATIENCE)
    assert run.receive(arrived(4, 5, 6), 0.0) == []
    assert run.lacking
    assert run.ask_at is not None
    assert seqs(run.receive(arrived(0, 2, 4), 0.0)) == [2, 4, 5, 6]
    assert run.ask_at is None
    assert run.receive(arrived(8, 9), 1.0) == []
    assert seqs(run.answered(events([7, 8]), 8, 1.1)) == [7, 8, 9]
    assert (run.lacking, run.passed_over) == (False, 0)


def test_a_store_that_is_behind_is_asked_again() -> None:
    """The pauses grow up to a limit. After an answer with events, the next request is immediate."""
    run = Incoming(0, PATIENCE)
    run.receive(arrived(6, 7), 0.0)
    waits = []
    for _ in range(7):
        assert run.answered([], 0, 10.0) == []
        assert run.ask_at is not None
        waits.append(round(run.ask_at - 10.0, 3))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert seqs(run.answered(events([3]), 3, 20.0)) == [3]
    assert run.ask_at == 20.0


def test_events_that_never_arrive_are_skipped_in_the_end() -> None:
    """An event is skipped after the store has had no answer for long enough. While the store is unavailable, no
    event is skipped.
    """
    run = Incoming(0, PATIENCE)
    run.receive(arrived(6, 7), 0.0)
    run.unanswered(PATIENCE + 1)
    assert run.answered([], 0, PATIENCE + 2) == []
    assert seqs(run.answered([], 0, 3 * PATIENCE)) == [7]
    assert (run.passed_over, run.lacking) == (1, False)


def test_the_wait_can_be_unlimited() -> None:
    run = Incoming(0, math.inf)
    run.receive(arrived(6, 7), 1.0)
    assert run.answered([], 0, 1e9) == []
    assert run.stuck_since == 1.0
    assert seqs(run.answered(events([3]), 3, 1e9)) == [3]
    assert run.stuck_since == 1e9
    assert seqs(run.answered([], 6, 2e9)) == [7]
    assert run.stuck_since is None


def test_without_a_store_a_gap_is_skipped() -> None:
    run = Incoming(0, PATIENCE)
    run.receive(arrived(6, 7), 0.0)
    assert seqs(run.without_store(0.0)) == [7]
    assert run.passed_over == 1


def test_pruned_events_are_no_gap() -> None:
    """The store reports that it had all events up to that number."""
    run = Incoming(0, PATIENCE)
    run.receive(arrived(6, 7), 0.0)
    assert seqs(run.answered([], 6, 1.0)) == [7]
    assert run.passed_over == 0


def test_events_found_in_the_store_get_time_to_arrive() -> None:
    run = Incoming(0, PATIENCE)
    run.stored(4, 10.0)
    assert run.ask_at == 10.0 + GRACE_SECONDS
    assert seqs(run.receive(arrived(0, 1, 4), 10.1)) == [1, 4]
    assert run.ask_at is None


def test_the_number_of_held_pages_is_limited() -> None:
    run = Incoming(0, PATIENCE)
    for n in range(1, 3 * MOST_HELD):
        run.receive(arrived(n, n + 1), 0.0)
    assert len(run._early_pages) == MOST_HELD
    last = 3 * MOST_HELD
    assert seqs(run.answered(events(range(1, 3)), 2, 0.0)) == list(range(1, MOST_HELD + 2))
    assert run.lacking
    assert seqs(run.answered(events(range(MOST_HELD + 2, last + 1)), last, 0.0))[-1] == last
    assert not run.lacking


@st.composite
def days(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]]]:
    """The numbers of a run's events, and pages and answers of the store in any order and with repetitions."""
    numbers = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=20)))
    acts = st.one_of(
        st.tuples(st.just("page"), st.integers(0, len(numbers) - 1)),
        st.tuples(st.just("long page"), st.integers(0, len(numbers) - 1)),
        st.tuples(st.just("elsewhere"), st.integers(0, len(numbers) - 1)),
        st.tuples(st.just("store"), st.integers(0, len(numbers))),
        st.tuples(st.just("sweep"), st.integers(0, len(numbers))),
    )
    return numbers, draw(st.lists(acts, max_size=60))


@given(days())
def test_every_event_arrives_once_and_in_order(day: tuple[list[int], list[tuple[str, int]]]) -> None:
    """Pages can be lost, repeated or late. At any time the delivered events are a prefix of the run."""
    numbers, acts = day
    run = Incoming(0, PATIENCE)
    got: list[int] = []
    now = 0.0

    def store(stored: int, limit: int = 3) -> None:
        known = run.up_to or 0
        found = [seq for seq in numbers[:stored] if seq > known]
        through = found[limit - 1] if len(found) > limit else (numbers[stored - 1] if stored else 0)
        got.extend(seqs(run.answered(events(found[:limit]), through, now)))

    for act, n in acts:
        now += 0.01
        after = 0 if n == 0 else numbers[n - 1]
        match act:
            case "page":
                got.extend(seqs(run.receive(arrived(after, numbers[n]), now)))
            case "long page":
                got.extend(seqs(run.receive(arrived(after, *numbers[n:]), now)))
            case "elsewhere":
                got.extend(seqs(run.receive(Arrived(after, numbers[n], None), now)))
            case "store" if run.ask_at is not None and run.ask_at <= now:
                store(n)
            case "sweep":
                run.stored(numbers[n - 1] if n else 0, now)
        assert got == numbers[: len(got)]
    run.stored(numbers[-1], now)
    while run.ask_at is not None:
        now = max(now, run.ask_at)
        store(len(numbers))
    assert got == numbers
    assert run.passed_over == 0
    assert now < 40 * LONGEST_WAIT


# A reader of new events, with a store that is unavailable at the start.


class Nothing:
    """A broker that retains and receives nothing."""

    async def heads(self) -> tuple[StreamPosition | None, list[str]]:
        return None, []

    async def read(self, after: StreamPosition | datetime | None) -> AsyncIterator[RetainedMessage]:
        await anyio.sleep_forever()
        yield RetainedMessage(StreamPosition("", 0), b"")


class LateStore(TraceStore):
    """A store that is unavailable for some time."""

    gone = True

    async def run_positions(self, since_us: int) -> Mapping[str, int]:  # type: ignore[override]
        if self.gone:
            raise StoreUnavailable("gone")
        return await super().run_positions(since_us)


async def test_events_before_the_stores_first_answer_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not have these events. Events before the reader's start are not delivered."""
    monkeypatch.setattr(remote_bus, "GRACE_SECONDS", 0.01)
    clock = FakeClock()
    now_us = clock.now_us()

    def event(seq: int, at_us: int, run: str = "run_a") -> Envelope:
        return Envelope(seq, run, at_us, at_us * 1000, SessionCreated(model="s:m"), session_id="s")

    async with LateStore(tmp_path / "t.db") as store:
        await store.write([event(1, now_us - 9), event(2, now_us - 5), event(1, now_us - 7, "run_quiet")])
        events = RemoteEvents(Nothing(), store, clock, since=None, patience=9.0, sweep_seconds=0.05)
        await events.begin()
        await store.write([event(3, now_us + 10**9), event(4, now_us + 10**9 + 1)])
        store.gone = False
        with anyio.fail_after(10):
            assert [((found := await anext(events)).run_id, found.seq) for _ in range(2)] == [
                ("run_a", 3),
                ("run_a", 4),
            ]
            await store.write([event(2, now_us + 10**9, "run_quiet")])
            assert (await anext(events)).run_id == "run_quiet"
