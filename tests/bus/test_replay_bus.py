"""A replay of envelopes, log lines, and envelopes as JSON."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    ActorStarted,
    ActorStoppedEvent,
    Bus,
    DropOldest,
    Envelope,
    Event,
    Gap,
    ImageBlock,
    Latest,
    LlmCallCompleted,
    Lossless,
    Message,
    MessageMetadata,
    ObservableBus,
    ReplayBus,
    SessionMessageAppended,
    StopReason,
    TextBlock,
    TokenUsage,
    UnknownEvent,
    decode_as,
    decode_envelope,
    encode_envelope,
)
from callboard.bus.events.codec import decode_event, encode_event
from callboard.bus.log import ROOT, Log
from callboard.bus.replay import WINDOW
from callboard.bus.values.usage import Cost, CostSource

from ..support.logs import captured_logs
from ..support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio
T0 = 1_700_000_000_000_000


def stored(seq: int, at_ms: int = 0, *, run: str = "run_old", mono_from: int = 0, actor: str = "a") -> Envelope:
    """An envelope from an earlier run, `at_ms` after T0 by both clocks."""
    mono_ns = mono_from + at_ms * 1_000_000
    ids = ("ses_1", "trn_1", "req_1", 2, "msg_1", "req_0", {"k": "v"})
    return Envelope(seq, run, T0 + at_ms * 1000, mono_ns, ActorStarted(actor=actor), *ids)


def some(count: int) -> list[Envelope]:
    return [stored(seq) for seq in range(1, count + 1)]


async def watch(bus: ObservableBus, *patterns: str) -> list[Envelope]:
    """Read a bus as a host reads a live bus."""
    async with bus.subscribe(*patterns or (">",), name="host") as events:
        return [envelope async for envelope in events]


async def moments_of(bus: ObservableBus) -> list[float]:
    """When each event arrives, in seconds from the start."""
    began = anyio.current_time()
    with bus.subscribe(">") as events:
        return [anyio.current_time() - began async for _ in events]


def test_a_replay_has_no_publish() -> None:
    assert not hasattr(ReplayBus, "publish")
    assert not hasattr(ReplayBus, "publish_threadsafe")


async def test_only_the_topics_that_match_are_delivered() -> None:
    """An event with an unknown topic goes to the readers that subscribed to that topic."""
    odd = Envelope(2, "run_old", T0, 0, UnknownEvent(topic="my.own", raw=b"{}"))
    stopped = Envelope(3, "run_old", T0, 0, ActorStoppedEvent(actor="a", reason="r"))
    bus = Bus.replay([stored(1), odd, stopped])
    with bus.subscribe("my.*") as mine, bus.subscribe("actor.stopped") as actors:
        assert await bus.run() == 3
        assert mine.take() == [odd]
        assert odd.topic == "my.own"
        assert actors.take() == [stopped]
    assert (bus.delivered, bus.last_seq, bus.run_id) == (3, 3, "run_old")


async def test_readers_that_subscribe_together_get_all_events() -> None:
    """The replay starts when a reader waits for its first event, so earlier subscribers miss nothing."""
    seen: dict[int, list[Envelope]] = {}

    async def read(number: int, bus: ObservableBus) -> None:
        seen[number] = await watch(bus)

    async with Bus.replay(some(500)) as bus:
        await anyio.sleep(10)
        assert bus.delivered == 0
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(read, number, bus)
    assert [len(events) for events in seen.values()] == [500] * 3


async def test_a_slow_lossless_reader_is_never_flooded() -> None:
    """The replay waits for the reader, loses no event, and keeps the order."""
    count = WINDOW * 3
    read: list[int] = []
    deepest = 0
    async with Bus.replay(some(count)) as bus:
        with bus.subscribe(">", policy=Lossless()) as events:
            async for envelope in events:
                read.append(envelope.seq)
                deepest = max(deepest, events.depth)
                if len(read) % 500 == 0:
                    await anyio.sleep(1)
    assert read == list(range(1, count + 1))
    assert WINDOW - 1 <= deepest <= WINDOW


async def test_a_lossless_reader_that_leaves_lets_the_others_go_on() -> None:
    bus = Bus.replay(some(WINDOW * 2))
    stuck = bus.subscribe(">", policy=Lossless())
    with bus.subscribe(">", policy=Lossless()) as events:
        async with anyio.create_task_group() as group:
            group.start_soon(bus.run)
            await anyio.wait_all_tasks_blocked()
            assert stuck.depth == WINDOW
            assert bus.delivered == WINDOW
            events.take()
            await anyio.wait_all_tasks_blocked()
            assert bus.delivered == WINDOW
            stuck.close()
            await anyio.wait_all_tasks_blocked()
            assert bus.delivered == WINDOW * 2


async def test_readers_with_a_lossy_policy_drop_as_on_a_live_bus() -> None:
    """With DropOldest a reader receives a gap. With Latest it receives the newest event of each key."""
    bus = Bus.replay([stored(seq, actor="ab"[seq % 2]) for seq in range(1, 101)])
    newest = bus.subscribe(">", policy=DropOldest(10))
    last = bus.subscribe(">", policy=Latest(lambda envelope: envelope.data))
    assert await bus.run() == 100
    gap, *rest = newest.take()
    assert gap.data == Gap(first=1, last=90, count=90)
    assert [envelope.seq for envelope in rest] == list(range(91, 101))
    assert [envelope.seq for envelope in last.take()] == [99, 100]


async def test_a_reader_that_waits_for_nothing_else_drops_nothing() -> None:
    """The default policy drops no event of a replay, at any speed, if the reader waits for nothing else."""
    async with Bus.replay(some(5000)) as bus:
        assert [envelope.seq for envelope in await watch(bus)] == list(range(1, 5001))


async def test_the_pace_is_the_original_one_times_the_speed() -> None:
    """The pace follows the monotonic clock of each run and ignores jumps of the wall clock."""
    events = [stored(1, 0), stored(2, 500), stored(3, 2500)]
    # the wall clock was set back
    events[2] = Envelope(3, "run_old", T0 - 10**12, events[2].mono_ns, events[2].data)
    later = [stored(1, 4000, run="run_new", mono_from=77), stored(2, 4500, run="run_new", mono_from=77)]
    for speed, expected in ((1.0, [0, 0.5, 2.5, 4, 4.5]), (0.5, [0, 1, 5, 8, 9]), (None, [0, 0, 0, 0, 0])):
        async with Bus.replay([*events, *later], speed=speed) as bus:
            assert await moments_of(bus) == pytest.approx(expected)


async def test_a_long_pause_is_cut_short() -> None:
    hour = 3_600_000
    events = [stored(1), stored(2, hour), stored(3, hour + 1000), stored(4, 3 * hour)]
    async with Bus.replay(events, speed=1.0, longest_pause=5.0) as bus:
        assert await moments_of(bus) == pytest.approx([0, 5, 6, 11])


async def test_a_paced_replay_that_had_to_wait_catches_up() -> None:
    """A reader's pause delays the events that are due then, but no later events."""
    events = [stored(seq, seq * 10) for seq in range(1, WINDOW + 200)]
    async with Bus.replay([*events, stored(9999, 100_000)], speed=1.0) as bus:
        began = anyio.current_time()
        with bus.subscribe(">", policy=Lossless()) as subscription:
            await anyio.lowlevel.checkpoint()
            await subscription.wait()
            await anyio.sleep(50)
            read = [envelope async for envelope in subscription]
        assert len(read) == len(events) + 1
        assert anyio.current_time() - began == pytest.approx(100 - 0.01)


async def test_a_source_that_fails_ends_the_readers_and_raises_at_the_end() -> None:
    async def source() -> AsyncIterator[Envelope]:
        for envelope in some(3):
            yield envelope
        raise OSError("the disk is gone")

    seen: list[Envelope] = []
    with pytest.raises(OSError, match="the disk is gone"):
        async with Bus.replay(source()) as bus:
            seen = await watch(bus)
    assert [envelope.seq for envelope in seen] == [1, 2, 3]


async def test_leaving_early_ends_the_replay_and_keeps_the_error() -> None:
    """The error is not wrapped in an exception group."""
    with pytest.raises(ValueError, match="mine"):
        async with Bus.replay(some(10_000), speed=1.0) as bus:
            with bus.subscribe(">", policy=Lossless()) as events:
                async for _ in events:
                    raise ValueError("mine")
    assert bus.delivered < 10_000
    assert bus.subscribe(">").closed


async def test_a_replay_runs_once() -> None:
    bus = Bus.replay(some(1))
    assert await bus.run() == 1
    with pytest.raises(RuntimeError, match="Create a new one"):
        await bus.run()


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_speed_is_refused(speed: float) -> None:
    """A speed must be positive: with other speeds, the replay would never end or never start."""
    with pytest.raises(ValueError, match="speed"):
        Bus.replay([], speed=speed)


async def test_statistics_use_the_time_of_the_replay() -> None:
    bus = Bus.replay([stored(1, 0), stored(2, 1500)])
    with bus.subscribe(">", name="me") as events:
        await bus.run()
        assert events.oldest_age_ms == 1500.0
        assert bus.statistics().published == 2
        assert bus.statistics().subscriptions == ()


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([None, 1, 7, 300]), min_size=1, max_size=4),
    st.lists(st.integers(0, 2000), min_size=0, max_size=60),
)
def test_lossless_readers_get_every_event_of_the_source(pauses: Sequence[int | None], moments: list[int]) -> None:
    events = [stored(seq, at) for seq, at in enumerate(sorted(moments), 1)]
    results: list[list[Envelope]] = []

    async def read(bus: ReplayBus, pause: int | None) -> None:
        seen: list[Envelope] = []
        results.append(seen)
        async with bus.subscribe(">", policy=Lossless()) as subscription:
            async for envelope in subscription:
                seen.append(envelope)
                if pause is not None:
                    await anyio.sleep(pause / 1000)

    async def replay() -> None:
        async with Bus.replay(events, speed=2.0) as bus, anyio.create_task_group() as group:
            for pause in pauses:
                group.start_soon(read, bus, pause)

    run_virtual(replay)
    assert results == [events] * len(pauses)


# -- Log lines go to `logging`, below one logger, and not to stdout or stderr.


CHECKOUT = Path(__file__).parents[2]

SAY_IT_ALL = """
from callboard.bus.log import Log
log = Log("engine.tools")
log.debug("a", x=1), log.info("b"), log.warning("c", ValueError("no")), log.error("d", text="x")
"""


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """The log records that a handler of the host receives."""
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    keep = Keep()
    logging.getLogger(ROOT).addHandler(keep)
    yield kept
    logging.getLogger(ROOT).removeHandler(keep)


@pytest.fixture
def hosts_structlog() -> Iterator[list[str]]:
    """A host that configures structlog for itself. Yields the lines that its processors receive."""
    heard: list[str] = []

    def hear(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        heard.append(line["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[hear], cache_logger_on_first_use=True)
    yield heard
    structlog.reset_defaults()


def program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60
    )


def test_a_program_without_logging_prints_nothing() -> None:
    """At every level, stdout and stderr are empty. A line below the level does not import structlog."""
    below = "import sys\nfrom callboard.bus.log import Log\nLog('x').debug('a'), Log('x').info('b')\n"
    done = program(f"{below}assert 'structlog' not in sys.modules{SAY_IT_ALL}")
    assert (done.stdout, done.stderr) == ("", "")


def test_the_logging_module_sets_level_format_and_stream() -> None:
    done = program(
        "import logging\n"
        "logging.basicConfig(format='%(levelname)s|%(name)s|%(message)s', level='INFO')" + SAY_IT_ALL
    )
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "INFO|callboard.engine.tools|b",
        "WARNING|callboard.engine.tools|c",
        "ValueError: no",
        "ERROR|callboard.engine.tools|d text='x'",
    ]


def test_a_record_has_its_event_fields_and_place(records: list[logging.LogRecord]) -> None:
    """A record has a message for readers, fields for programs, and the place in the code that logged the
    record.
    """
    Log("a.b").warning("it_happened", times=2, level="high", message="m", name="n")
    (record,) = records
    assert record.name == "callboard.a.b"
    assert record.funcName == "test_a_record_has_its_event_fields_and_place"
    assert record.pathname == __file__
    fields = {"event": "it_happened", "times": 2, "level": "high", "message": "m", "name": "n"}
    assert getattr(record, ROOT) == fields
    assert record.getMessage() == "it_happened times=2 level='high' message='m' name='n'"


def test_text_in_a_field_can_not_forge_a_line(records: list[logging.LogRecord]) -> None:
    """Line breaks, escapes and changes of text direction are written as Python escapes."""
    Log("a").warning("said", text="x\nERROR forged\x1b[2J\u202e %s %(no)s")
    assert records[0].getMessage() == "said text='x\\nERROR forged\\x1b[2J\\u202e %s %(no)s'"


def test_a_hosts_structlog_receives_nothing_and_is_not_changed(hosts_structlog: list[str]) -> None:
    before = structlog.get_config()
    with captured_logs() as lines:
        Log("new").warning("ours")
    structlog.get_logger().warning("theirs")
    assert [line["event"] for line in lines] == ["ours"]
    assert hosts_structlog == ["theirs"]
    assert structlog.get_config() == before


def test_a_failing_log_handler_does_not_stop_the_caller() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    broken = Broken()
    logging.getLogger(ROOT).addHandler(broken)
    try:
        Log("a").error("something")
    finally:
        logging.getLogger(ROOT).removeHandler(broken)


# -- Envelopes as JSON: every event survives the round trip, with its content and any data of a provider or host.


class Moved(Event, frozen=True, kw_only=True, tag="host.moved"):
    """An event of a host."""

    metres: int


def envelope(event: Event) -> Envelope:
    return Envelope(7, "run_a", 1_790_000_000_000_000, 5, event, session_id="s1", attempt=2, tags={"team": "red"})


def raw_usage() -> TokenUsage:
    return TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tokens":7}'))


def completed(usage: TokenUsage) -> LlmCallCompleted:
    return LlmCallCompleted(
        provider="openai",
        model="openai:gpt-5",
        served_model="openai:gpt-5",
        stop_reason=StopReason.END_TURN,
        raw_stop_reason="stop",
        usage=usage,
        cost=Cost(1, CostSource.COMPUTED),
        latency_ms=10,
    )


@pytest.mark.parametrize(
    "raw", [b'{"raw":{"n":1},"n":2}', b'{"raw":null}', b'"raw"', b"[1]", b'{ "n" : 1 }', b"7"]
)
def test_a_usage_object_may_look_like_anything(raw: bytes) -> None:
    """The round trip keeps every usage object, for each way of writing JSON."""
    sent = completed(TokenUsage(7, 1, raw=msgspec.Raw(raw)))
    encoded = encode_event(sent)
    for text in (encoded, encoded.decode(), encoded.replace(b'"raw":', b'"raw" :  ', 1)):
        assert decode_event(sent.topic_of(), text) == sent


def test_a_message_comes_back_with_its_content() -> None:
    """Media comes back as bytes, and the usage object of the reply is unchanged."""
    metadata = MessageMetadata(
        provider="openai",
        model="openai:gpt-5",
        usage=raw_usage(),
        cost=Cost(1, CostSource.COMPUTED),
        stop_reason=StopReason.END_TURN,
    )
    content = (TextBlock(text="line\nbreak"), ImageBlock(data=b"\x00\xff", media_type="image/png"))
    message = msgspec.structs.replace(Message.user("x"), content=content, metadata=metadata)
    sent = envelope(SessionMessageAppended(position=3, message=message))
    encoded = encode_envelope(sent)
    assert b"\n" not in encoded
    assert decode_envelope(encoded) == sent


def test_a_hosts_own_event_comes_back_as_unknown_and_then_as_its_type() -> None:
    found = decode_envelope(encode_envelope(envelope(Moved(metres=2))))
    assert isinstance(found.data, UnknownEvent)
    assert found.topic == "host.moved"
    assert decode_as(Moved, found.data) == Moved(metres=2)
    assert decode_envelope(encode_envelope(found)) == found


def test_half_a_surrogate_pair_is_no_reason_to_lose_an_envelope() -> None:
    sent = msgspec.structs.replace(envelope(Moved(metres=2)), tags={"team": "\ud800"})
    assert decode_envelope(encode_envelope(sent)).tags == {"team": "\ud800"}


NO_TOPIC = b'{"seq":1,"run_id":"r","ts_us":1,"mono_ns":1,"data":{}}'


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"seq":1}', NO_TOPIC])
def test_what_is_no_envelope_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode_envelope(text)
