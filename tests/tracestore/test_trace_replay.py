"""Stored events that are replayed through a bus: unchanged, in order, page by page, in their current form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

from callboard.bus import (
    Bus,
    Envelope,
    Event,
    Lossless,
    ObservableBus,
    SessionCreated,
    SessionTurnStarted,
    TokenUsage,
    UnknownEvent,
)
from callboard.bus.events.codec import decode_event
from callboard.bus.values.base import JsonObject
from callboard.tracestore import StoredEvents, TraceStore, upcast
from callboard.tracestore.codec import decode_line, encode_event, encode_line

from .trace_making import T0, Maker


class Moved(Event, frozen=True, kw_only=True, tag="host.moved"):
    """A host's event in its third form."""

    SCHEMA: ClassVar[int] = 3

    metres: int
    name: str = ""


class Counted(Event, frozen=True, kw_only=True, tag="host.counted.often"):
    n: int


@pytest.fixture
def moved_forms() -> Iterator[None]:
    """Upcasts from the first form (feet) and the second (centimetres) to the current one."""

    def feet_to_centimetres(fields: JsonObject) -> JsonObject:
        feet = fields.pop("feet")
        assert isinstance(feet, int)
        return {**fields, "centimetres": feet * 30}

    def centimetres_to_metres(fields: JsonObject) -> JsonObject:
        centimetres = fields.pop("centimetres")
        assert isinstance(centimetres, int)
        return {**fields, "metres": centimetres // 100}

    upcast["host.moved", 1] = feet_to_centimetres
    upcast["host.moved", 2] = centimetres_to_metres
    yield
    del upcast["host.moved", 1], upcast["host.moved", 2]


async def watch(bus: ObservableBus, *patterns: str) -> list[Envelope]:
    async with bus.subscribe(*patterns or (">",), policy=Lossless()) as events:
        return [envelope async for envelope in events]


async def replayed(source: StoredEvents, *patterns: str) -> list[Envelope]:
    async with Bus.replay(source) as bus:
        return await watch(bus, *patterns)


def a_mixture(make: Maker) -> list[Envelope]:
    return [
        make(SessionCreated(model="openai:gpt-5"), session_id="s1", tags={"team": "a"}),
        make(SessionTurnStarted(model="openai:gpt-5"), session_id="s1", turn_id="t1"),
        make.started("r1", session_id="s1", turn_id="t1"),
        make.failed(
            "r1", will_retry=True, usage=TokenUsage(raw=msgspec.Raw(b"{}")), session_id="s1", turn_id="t1"
        ),
        make.started("r1", attempt=2, session_id="s1", turn_id="t1"),
        make.completed("r1", attempt=2, session_id="s1", turn_id="t1", caused_by="r0", message_id="m"),
        make.started("r2", session_id="s2"),
        make(Counted(n=3)),
        make.completed("r2", session_id="s2"),
    ]


async def test_a_replay_has_the_envelopes_of_the_live_bus(store: TraceStore) -> None:
    live = Bus(run_id="run_live")
    subscription = live.subscribe(">", policy=Lossless())
    for each in a_mixture(Maker()):
        named = {name: getattr(each, name) for name in ("session_id", "turn_id", "request_id", "message_id")}
        live.publish(each.data, **named, attempt=each.attempt, caused_by=each.caused_by, tags=each.tags)
    live.close()
    seen = [envelope async for envelope in subscription]
    await store.write(seen)
    for page in (1, 2, 4, 9, 500):
        assert await replayed(StoredEvents(store, types=(Counted,), page=page)) == seen


async def test_filters_combine_and_topics_match_as_on_a_bus(store: TraceStore, make: Maker) -> None:
    """As on a bus, a star is one token. A pattern that can't match is refused immediately."""
    await store.write(a_mixture(make))
    rows: list[tuple[dict[str, Any], Sequence[int]]] = [
        ({"session_id": "s1"}, [1, 2, 3, 4, 5, 6]),
        ({"request_id": "r2"}, [7, 9]),
        ({"run_id": "run_test"}, range(1, 10)),
        ({"run_id": "run_other"}, []),
        ({"topics": ("llm.call_started",)}, [3, 5, 7]),
        ({"topics": ("llm.*",)}, [3, 4, 5, 6, 7, 9]),
        ({"topics": ("host.*",)}, []),
        ({"topics": ("host.>",)}, [8]),
        ({"topics": ("*.created", "llm.call_failed")}, [1, 4]),
        ({"topics": (">",), "session_id": "s2"}, [7, 9]),
        ({"since": T0 + 3_000_000, "until": T0 + 5_000_000}, [3, 4]),
    ]
    for wanted, expected in rows:
        for page in (2, 500):
            seen = await replayed(StoredEvents(store, page=page, **wanted))
            assert [envelope.seq for envelope in seen] == list(expected), wanted
    with pytest.raises(ValueError, match="pattern"):
        StoredEvents(store, topics=("llm.call*",))


async def test_a_replay_ends_with_the_events_at_its_start(store: TraceStore, make: Maker) -> None:
    """Events that are written later do not extend the replay. A second replay has them."""
    await store.write([make.started(f"r{number}") for number in range(10)])
    source = StoredEvents(store, page=3)
    seen = []
    async for envelope in source:
        seen.append(envelope.seq)
        await store.write([make.started(f"more{envelope.seq}")])
    assert seen == list(range(1, 11))
    assert len([envelope async for envelope in source]) == 20


async def test_several_runs_are_replayed_in_the_order_of_storing(store: TraceStore) -> None:
    one, two = Maker("run_1"), Maker("run_2")
    batch = [one.started("a"), two.started("b"), one.completed("a"), two.completed("b")]
    await store.write(batch)
    assert await replayed(StoredEvents(store)) == batch
    assert await replayed(StoredEvents(store, run_id="run_2")) == [batch[1], batch[3]]


async def test_a_lossless_reader_limits_reading_ahead(store: TraceStore, make: Maker) -> None:
    await store.write([make.started(f"r{number}") for number in range(2000)])
    bus = Bus.replay(StoredEvents(store, page=100))
    pages = 0
    read = store.numbered_events

    async def counting(**wanted: object) -> object:
        nonlocal pages
        pages += 1
        return await read(**wanted)  # type: ignore[arg-type]

    store.numbered_events = counting  # type: ignore[method-assign, assignment]
    with bus.subscribe(">", policy=Lossless()) as events:
        async with anyio.create_task_group() as group:
            group.start_soon(bus.run)
            await events.wait()
            while bus.delivered < 1024:
                await anyio.lowlevel.checkpoint()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert (bus.delivered, pages) == (1024, 11)
            assert [envelope.seq async for envelope in events] == list(range(1, 2001))


async def test_a_hosts_event_has_its_type_or_is_unknown(store: TraceStore, make: Maker) -> None:
    """The replay returns the event's type if it is known, and otherwise an unknown event."""
    await store.write([make(Counted(n=7)), make(Moved(metres=2))])
    counted, moved = await replayed(StoredEvents(store, types=(Counted,)))
    assert counted.data == Counted(n=7)
    assert isinstance(moved.data, UnknownEvent)
    assert moved.topic == moved.data.topic == "host.moved"


@pytest.mark.usefixtures("moved_forms")
async def test_old_forms_are_upcast_one_step_at_a_time(store: TraceStore, make: Maker) -> None:
    """The stored text does not change. Each old form goes through its registered upcasts."""
    old = [
        b'{"type":"host.moved","feet":100,"name":"n"}',
        b'{"@schema":2,"type":"host.moved","centimetres":400}',
        encode_event(Moved(metres=5)),
    ]
    await store.write([make(UnknownEvent(topic="host.moved", raw=msgspec.Raw(text))) for text in old])
    seen = await replayed(StoredEvents(store, types=(Moved,)))
    assert [each.data for each in seen] == [Moved(metres=30, name="n"), Moved(metres=4), Moved(metres=5)]
    stored = [each.data for each in await store.events()]
    assert [bytes(each.raw) for each in stored if isinstance(each, UnknownEvent)] == old


@pytest.mark.usefixtures("moved_forms")
async def test_a_form_that_cannot_be_read_stays_unknown(store: TraceStore, make: Maker) -> None:
    """An event of a later version, or one whose upcast fails, is an unknown event. The replay continues."""
    texts = [
        b'{"@schema":4,"type":"host.moved","metres":1}',
        b'{"@schema":0,"type":"host.moved","metres":1}',
        b'{"@schema":"3","type":"host.moved","metres":1}',
        b'{"type":"host.moved","no feet":1}',
        b'{"@schema":3,"type":"host.moved","metres":"far"}',
    ]
    unknown = [make(UnknownEvent(topic="host.moved", raw=msgspec.Raw(text))) for text in texts]
    await store.write([*unknown, make(Moved(metres=1))])
    *first, last = [envelope.data for envelope in await replayed(StoredEvents(store, types=(Moved,)))]
    assert [bytes(each.raw) for each in first if isinstance(each, UnknownEvent)] == texts
    assert last == Moved(metres=1)


def test_an_event_of_the_catalogue_in_an_old_form_is_upcast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionTurnStarted, "SCHEMA", 2)
    monkeypatch.setitem(upcast, ("session.turn_started", 1), lambda fields: {"type": fields["type"], "model": "m"})
    monkeypatch.setattr("callboard.bus.events.codec._SCHEMAS", {"session.turn_started": 2})
    assert decode_event("session.turn_started", '{"type":"session.turn_started","modell":"m"}') == (
        SessionTurnStarted(model="m")
    )
    event = SessionTurnStarted(model="new")
    assert encode_event(event).startswith(b'{"@schema":2,"type":"session.turn_started","model":"new",')
    assert decode_event("session.turn_started", encode_event(event)) == event
    envelope = Maker()(event)
    assert decode_line(encode_line(envelope)) == envelope
