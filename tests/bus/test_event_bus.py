"""The bus: order, patterns, policies, dead letters, publishers that never wait, and readers."""

from __future__ import annotations

import threading
from collections.abc import Hashable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    ActorCrashed,
    DropOldest,
    Envelope,
    Event,
    Gap,
    Latest,
    Lossless,
    Policy,
    StoreStateChanged,
    Subscription,
    WrongLoop,
    topic_matches,
)

from ..support.virtual_time import FakeClock, on_both, run_virtual
from .published import by_actor, new_bus, seqs, started

pytestmark = pytest.mark.anyio


class Deep(Event, frozen=True, kw_only=True, tag="llm.call.deep"):
    n: int = 0


def test_an_event_has_the_ids_of_its_session_turn_and_attempt() -> None:
    """publish() returns the seq, and the envelope has all ids that were passed to it."""
    clock = FakeClock()
    bus = new_bus(clock)
    with bus.subscribe("actor.started") as subscription:
        seq = bus.publish(
            started(),
            session_id="s",
            turn_id="t",
            request_id="r",
            attempt=2,
            message_id="m",
            caused_by="c",
            tags={"k": "v"},
        )
        (envelope,) = subscription.take()
    assert seq == 1
    expected = Envelope(
        1, "run_1", clock.now_us(), clock.monotonic_ns(), started(), "s", "t", "r", 2, "m", "c", {"k": "v"}
    )
    assert envelope == expected
    assert (envelope.topic, envelope.event_id) == ("actor.started", "run_1-1")


@pytest.mark.parametrize(("pattern", "topic", "matches"), [
    ("llm.call_started", "llm.call_started", True),
    ("llm.call_started", "llm.call_failed", False),
    ("llm.*", "llm.call_started", True),
    ("llm.*", "llm.call.deep", False),
    ("llm.*", "llm", False),
    ("*.started", "actor.started", True),
    ("llm.>", "llm.call.deep", True),
    ("llm.>", "llm.call_started", True),
    ("llm.>", "llm", False),
    ("llm.>", "llmx.call", False),
    (">", "anything.at.all", True),
    ("*", "one", True),
    ("*.>", "one", False),
])  # fmt: skip
def test_patterns_match_by_whole_tokens(pattern: str, topic: str, matches: bool) -> None:
    """A star matches one token, `>` matches one or more tokens at the end, and all other text is literal."""
    assert topic_matches(pattern, topic) is matches


@pytest.mark.parametrize("pattern", ["", "a..b", "llm.>.x", "llm.call*", "a.b>", "."])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        new_bus().subscribe(pattern)


def test_no_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="'>'"):
        new_bus().subscribe()


def test_an_event_that_two_patterns_match_comes_once() -> None:
    bus = new_bus()
    with bus.subscribe("actor.*", "actor.>", "actor.started") as subscription:
        bus.publish(started())
        assert seqs(subscription.take()) == [1]


def test_a_slow_reader_receives_a_gap_and_may_take_a_few_at_a_time() -> None:
    """DropOldest keeps the newest events and puts one gap before them, which counts as one event."""
    bus = new_bus()
    with bus.subscribe(">", policy=DropOldest(3)) as subscription:
        for _ in range(5):
            bus.publish(started())
        taken = [subscription.take(2) for _ in range(3)]
    assert [seqs(part) for part in taken] == [[2, 3], [4, 5], []]
    assert taken[0][0].data == Gap(first=1, last=2, count=2)
    assert subscription.statistics().dropped == 2


def test_an_event_without_a_topic_is_refused() -> None:
    with pytest.raises(TypeError, match="topic"):
        new_bus().publish(Event())


def test_latest_keeps_the_newest_per_key_in_order() -> None:
    bus = new_bus()
    with bus.subscribe("actor.started", policy=Latest(by_actor)) as subscription:
        for name in "abcab":
            bus.publish(started(name))
        assert [(e.seq, by_actor(e)) for e in subscription.take()] == [(3, "c"), (4, "a"), (5, "b")]


def test_latest_is_bounded_by_its_keys() -> None:
    """If there are too many keys, the oldest event is dropped and the reader receives a gap."""
    bus = new_bus()
    with bus.subscribe(">", policy=Latest(by_actor, capacity=2)) as subscription:
        for name in "abc":
            bus.publish(started(name))
        gap, *rest = subscription.take()
    assert gap.data == Gap(first=1, last=1, count=1)
    assert seqs(rest) == [2, 3]


def test_a_key_function_that_raises_loses_no_event() -> None:
    """If a subscriber's key function raises, publish() continues and the subscriber receives the event."""

    def bad(envelope: Envelope) -> Hashable:
        raise RuntimeError("boom")

    bus = new_bus()
    with bus.subscribe(">", policy=Latest(bad)) as broken, bus.subscribe(">") as fine:
        bus.publish(started())
        bus.publish(started())
        assert seqs(broken.take()) == seqs(fine.take()) == [1, 2]


@pytest.mark.parametrize("bad", [lambda: DropOldest(0), lambda: Latest(lambda envelope: 1, capacity=0)])
def test_a_policy_without_room_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        bad()  # type: ignore[operator]


def test_depth_and_age_show_how_far_a_lossless_reader_is_behind() -> None:
    """A subscription reports the number of waiting events and the age of the oldest."""
    clock = FakeClock()
    bus = new_bus(clock)
    with bus.subscribe("actor.*", policy=Lossless(), name="store") as subscription:
        assert (subscription.depth, subscription.oldest_age_ms) == (0, 0.0)
        for _ in range(3):
            bus.publish(started())
            clock.advance(1.0)
        assert (subscription.depth, subscription.oldest_age_ms) == (3, 3000.0)
        statistics = bus.statistics().subscriptions[0]
        assert (statistics.name, statistics.policy, statistics.depth) == ("store", "Lossless", 3)
        assert "test_event_bus.py:" in statistics.created_at


def test_dead_letters_are_kept_counted_and_logged_sparingly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last 1,000 dead letters are kept and all are counted. Ten are logged, then none for five minutes."""
    from callboard.bus import bus as event_bus

    logged: list[str] = []
    monkeypatch.setattr(event_bus._log, "warning", lambda event, **fields: logged.append(event))
    clock = FakeClock()
    bus = new_bus(clock)
    for n in range(1500):
        bus.dead_letter("gone", n, "stopped")
    assert (len(bus.dead_letters), bus.statistics().dead_letters, len(logged)) == (1000, 1500, 10)
    assert bus.dead_letters[-1].message_type == "int"
    clock.advance(299)
    bus.dead_letter("gone", 1, "stopped")
    assert len(logged) == 10
    clock.advance(1)
    bus.dead_letter("gone", 1, "stopped")
    assert len(logged) == 11


EVENTS = [
    started(),
    ActorCrashed(actor="a", error="e", failures=1),
    StoreStateChanged(previous="ok", current="retrying", reason="r"),
    Deep(),
]

PATTERNS = [(">",), ("actor.*",), ("actor.crashed", "store.>"), ("llm.>",)]
POLICIES: list[Policy] = [Lossless(), DropOldest(1), DropOldest(3), Latest(lambda envelope: envelope.topic)]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, len(EVENTS) - 1)),
        st.tuples(st.just("subscribe"), st.integers(0, len(PATTERNS) * len(POLICIES) - 1)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("close"), st.integers(0, 5)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps=steps, close=st.booleans())
def test_each_subscriber_receives_all_events_or_gaps_in_order(steps: list[tuple[str, int]], close: bool) -> None:
    """For each subscriber, seqs increase. The delivered events and the gaps together cover each published event
    once.
    """
    bus = new_bus()
    subscriptions: list[Subscription] = []
    expected: list[list[int]] = []
    got: list[list[Envelope]] = []
    for action, n in steps:
        match action:
            case "publish":
                seq = bus.publish(EVENTS[n])
                for subscription, story in zip(subscriptions, expected, strict=True):
                    topic = EVENTS[n].topic_of()
                    if not subscription.closed and any(topic_matches(p, topic) for p in subscription.patterns):
                        story.append(seq)
            case "subscribe":
                patterns, policy = PATTERNS[n % len(PATTERNS)], POLICIES[n // len(PATTERNS)]
                subscriptions.append(bus.subscribe(*patterns, policy=policy))
                expected.append([])
                got.append([])
            case "read" if n < len(subscriptions):
                got[n].extend(subscriptions[n].take())
            case "close" if n < len(subscriptions):
                subscriptions[n].close()
            case _:
                pass
    if close:
        bus.close()
    for subscription, story, envelopes in zip(subscriptions, expected, got, strict=True):
        envelopes.extend(subscription.take())
        numbers = seqs(envelopes)
        assert numbers == sorted(set(numbers))
        delivered = [e.seq for e in envelopes if not isinstance(e.data, Gap)]
        gaps = [e.data for e in envelopes if isinstance(e.data, Gap)]
        assert set(delivered) <= set(story)
        match subscription.policy:
            case Lossless():
                assert delivered == story
            case DropOldest():
                missing = [seq for seq in story if seq not in delivered]
                named = [seq for seq in missing if any(gap.first <= seq <= gap.last for gap in gaps)]
                assert named == missing
                assert sum(gap.count for gap in gaps) == len(missing) == subscription.statistics().dropped
                assert all(gap.first in missing and gap.last in missing for gap in gaps)
            case Latest():
                assert gaps == []
                assert delivered[-1:] == story[-1:]


# -- Readers of the bus: they wait, share a subscription, leave, are slow, or run in another thread or loop.


async def test_a_subscriber_may_publish_far_beyond_its_own_capacity() -> None:
    """Publishing from a reader neither blocks nor recurses. It only fills the reader's own buffer."""
    bus = new_bus()
    gaps = 0
    async with bus.subscribe("actor.*", policy=DropOldest(8)) as subscription:
        bus.publish(started())
        async for envelope in subscription:
            if isinstance(envelope.data, Gap):
                gaps += envelope.data.count
            elif envelope.seq == 1:
                for _ in range(80):
                    bus.publish(started())
            elif envelope.seq == 81:
                break
    assert gaps == 72


async def test_a_busy_reader_lets_others_run() -> None:
    bus = new_bus()
    turns = 0
    done = False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        with bus.subscribe(">", policy=Lossless()) as subscription:
            for _ in range(2000):
                bus.publish(started())
            async for envelope in subscription:
                if envelope.seq == 2000:
                    break
            done = True
    assert turns >= 5


async def test_two_tasks_share_a_subscription() -> None:
    bus = new_bus()
    subscription = bus.subscribe(">", policy=Lossless())
    got: list[int] = []

    async def read() -> None:
        async for envelope in subscription:
            got.append(envelope.seq)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(read)
        for _ in range(20):
            bus.publish(started())
            await anyio.lowlevel.checkpoint()
        bus.close()
    assert sorted(got) == list(range(1, 21))


@on_both
async def test_a_cancelled_reader_loses_nothing() -> None:
    """If a read is cancelled at any of its waits, the next read continues at the same event."""
    bus = new_bus()
    subscription = bus.subscribe(">", policy=Lossless())
    got: list[int] = []

    async def read() -> None:
        # not a comprehension: the events already read must survive a cancellation
        async for envelope in subscription:
            got.append(envelope.seq)  # noqa: PERF401

    for round_ in range(6):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                for step in range(6):
                    if step == round_:
                        scope.cancel()
                    bus.publish(started())
                    await anyio.lowlevel.checkpoint()
    bus.close()
    await read()
    assert got == list(range(1, bus.last_seq + 1))


async def test_waiting_events_are_still_read_after_close() -> None:
    """close() ends publishing, not reading. On a closed bus, events are counted but not delivered."""
    bus = new_bus()
    subscription = bus.subscribe(">")
    bus.publish(started())
    bus.close()
    bus.close()
    assert bus.publish(started()) == 2
    assert [envelope.seq async for envelope in subscription] == [1]
    await subscription.wait()
    assert subscription.closed
    assert bus.statistics().after_close == 1
    assert bus.subscribe(">").closed


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # virtual time would advance while the thread runs
async def test_another_thread_must_use_publish_threadsafe() -> None:
    """In another thread, publish() raises WrongLoop. The error names publish_threadsafe, which works there."""
    bus = new_bus()
    errors: list[WrongLoop] = []

    def foreign() -> None:
        try:
            bus.publish(started())
        except WrongLoop as error:
            errors.append(error)
        for name in "xyz":
            bus.publish_threadsafe(started(name), session_id="s")

    async with bus.subscribe(">") as subscription:
        thread = threading.Thread(target=foreign)
        thread.start()
        thread.join()
        got = [await anext(subscription) for _ in range(3)]
    assert [envelope.data for envelope in got] == [started(name) for name in "xyz"]
    assert {envelope.session_id for envelope in got} == {"s"}
    assert "publish_threadsafe" in str(errors[0])


def test_publish_threadsafe_needs_a_running_loop() -> None:
    bus = new_bus()
    with pytest.raises(WrongLoop, match="no event loop yet"):
        bus.publish_threadsafe(started())

    async def use() -> None:
        bus.publish(started())

    run_virtual(use)
    with pytest.raises(WrongLoop, match="has ended"):
        bus.publish_threadsafe(started())


def test_a_reader_left_in_a_dead_loop_does_not_break_publish() -> None:
    """If a waiting reader's loop is gone, the reader is dropped, and publish() continues."""
    bus = new_bus()
    subscription = bus.subscribe(">")

    class Dead:
        """An asyncio event whose loop was closed under it."""

        def set(self) -> None:
            raise RuntimeError("Event loop is closed")

    subscription._waiter = Dead()  # type: ignore[assignment]
    assert bus.publish(started()) == 1
    assert seqs(subscription.take()) == [1]
