"""What goes into the store comes out: events as they were, calls as their events say."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import anyio.lowlevel
import msgspec
import pytest

from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed
from callboard.bus.events.codec import topic_of
from callboard.bus.events.envelope import Event, UnknownEvent
from callboard.bus.events.operation import StoreStateChanged
from callboard.bus.events.sessions import SessionCreated, SessionMessageAppended, SessionModelChanged
from callboard.bus.values.messages import Message, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, Store
from callboard.tracestore.codec import decode_line, encode_line
from callboard.tracestore.sql import batches

from ..trace_making import DAY_US, T0, Maker
from .conftest import Place

pytestmark = pytest.mark.anyio


class HostEvent(Event, frozen=True, kw_only=True, tag="host.weird"):
    """An event of a host's own; its field may hold what can't be encoded."""

    value: object = None


async def test_a_completed_call_is_one_row(store: Store, make: Maker) -> None:
    """Start and end of an attempt meet in one row that carries everything both said."""
    usage = TokenUsage(
        input_tokens=70,
        output_tokens=30,
        cached_input_tokens=20,
        cache_creation_input_tokens=10,
        cache_creation_1h_input_tokens=4,
        reasoning_tokens=12,
        source=UsageSource.REPORTED,
        raw=msgspec.Raw(b'{"prompt_tokens":100}'),
    )
    cost = Cost(5_000, CostSource.COMPUTED, "abcdefabcdef")
    ids = {"session_id": "ses_1", "turn_id": "trn_1", "message_id": "msg_1", "caused_by": "req_0"}
    await store.write(
        [
            make.started(**ids, tags={"team": "blue"}),
            make.completed(usage=usage, cost=cost, served_model="gpt-5-2025-08-07", **ids, tags={"team": "blue"}),
        ]
    )
    (row,) = await store.calls()
    assert (row.request_id, row.attempt, row.status) == ("req_1", 1, "completed")
    assert (row.provider, row.model, row.requested_model) == ("openai", "openai:gpt-5", "alias")
    assert row.served_model == "gpt-5-2025-08-07"
    assert (row.session_id, row.turn_id, row.message_id, row.caused_by) == ("ses_1", "trn_1", "msg_1", "req_0")
    assert row.tags == {"team": "blue"}
    assert (row.first_token_ms, row.latency_ms, row.streamed) == (200, 900, True)
    assert row.usage is not None
    assert msgspec.structs.asdict(row.usage) | {"raw": None} == msgspec.structs.asdict(usage) | {"raw": None}
    assert row.usage.raw is not None
    assert bytes(row.usage.raw) == b'{"prompt_tokens":100}'
    assert row.at_call_time == cost
    assert row.cost == cost
    assert (row.stop_reason, row.raw_stop_reason) == ("end_turn", "stop")
    assert row.started_us is not None
    assert row.finished_us == row.started_us + 1_000_000


async def test_every_attempt_is_a_row(store: Store, make: Maker) -> None:
    """A retried call leaves the failed attempt beside the one that worked."""
    await store.write(
        [
            make.started(),
            make.failed(will_retry=True),
            make.started(attempt=2),
            make.completed(attempt=2),
        ]
    )
    second, first = await store.calls(CallFilter(request_id="req_1"))
    assert (first.status, first.will_retry, first.delay_seconds) == ("failed", True, 1.5)
    assert (first.error_class, first.error_type, first.provider_status) == ("server_error", "ServerError", 503)
    assert first.error_message == "the provider failed"
    assert first.cost is None
    assert (second.status, second.attempt, second.retry_count) == ("completed", 2, 1)


async def test_a_cancelled_call_keeps_its_partial_usage(store: Store, make: Maker) -> None:
    """Cancelling is a status of its own, and what had arrived is priced."""
    usage = TokenUsage(input_tokens=10, output_tokens=3, source=UsageSource.PARTIAL)
    cost = Cost(77, CostSource.COMPUTED, "v")
    await store.write([make.started(), make.failed(error_class="cancelled", usage=usage, cost=cost)])
    (row,) = await store.calls(CallFilter(status="cancelled"))
    assert row.usage == usage
    assert row.cost == cost


async def test_a_running_call_has_no_cost(store: Store, make: Maker) -> None:
    """A call that has only started is there, without usage and without a cost."""
    await store.write([make.started()])
    (row,) = await store.calls()
    assert (row.status, row.usage, row.cost, row.at_call_time) == ("started", None, None, None)


async def test_writing_twice_changes_nothing(store: Store, make: Maker) -> None:
    """The same batch again, as after an interrupted commit, leaves events, calls and tags as they were."""
    batch = [make.started(tags={"a": "b"}), make.failed(will_retry=True), make.started(attempt=2)]
    await store.write(batch)
    before = (await store.events(), await store.calls(), await store.sessions())
    await store.write(batch)
    await store.write(list(reversed(batch)))
    assert (await store.events(), await store.calls(), await store.sessions()) == before


async def test_the_loop_has_its_turn_while_a_batch_is_made(
    store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others on the loop wait for a few events of a large batch at a time, never for all of it."""
    turn = 0
    made: Counter[int] = Counter()

    def counted(event: Event) -> str:
        made[turn] += 1
        return topic_of(event)

    async def others() -> None:
        nonlocal turn
        while True:
            await anyio.lowlevel.checkpoint()
            turn += 1

    monkeypatch.setattr(batches, "topic_of", counted)
    monkeypatch.setattr(batches, "_MADE_PER_SECOND", 0)  # however slow the others are here
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await store.write([make.started(f"req_{number}") for number in range(250)])
        group.cancel_scope.cancel()
    assert made.total() == len(await store.calls()) == 250
    assert max(made.values()) <= 32


async def test_a_write_that_is_cancelled_while_its_batch_is_made_is_committed(
    store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled between two parts of a batch, it goes on to the commit, and only then lets go."""
    made = 0

    def cancelling(event: Event) -> str:
        nonlocal made
        made += 1
        if made == 40:
            write.cancel()
        return topic_of(event)

    monkeypatch.setattr(batches, "topic_of", cancelling)
    batch = [make.started(f"req_{number}") for number in range(250)]
    write = asyncio.ensure_future(store.write(batch))
    await asyncio.wait([write])
    assert write.cancelled()
    assert len(await store.calls()) == 250


async def test_an_end_before_its_start_gives_the_same_row(store: Store, make: Maker) -> None:
    """The order in which the two arrive doesn't matter."""
    start, end = make.started(), make.completed()
    await store.write([end])
    await store.write([start])
    (row,) = await store.calls()
    assert (row.status, row.started_us, row.requested_model) == ("completed", start.ts_us, "alias")


async def test_events_come_back_as_they_were(store: Store, make: Maker) -> None:
    """Envelope and data survive, in order."""
    state = StoreStateChanged(previous="ok", current="retrying", reason="disk full", lost=3)
    sent = [make.started(session_id="s", tags={"k": "v"}), make(state), make.completed(session_id="s")]
    await store.write(sent)
    assert await store.events() == sent
    assert await store.events(topic="llm.*") == [sent[0], sent[2]]
    assert await store.events(session_id="s", since=sent[2].ts_us) == [sent[2]]
    numbered = await store.numbered_events(limit=2)
    assert await store.numbered_events(after_id=numbered[-1][0]) == [(numbered[-1][0] + 1, sent[2])]


async def test_content_is_never_stored(store: Store, make: Maker) -> None:
    """Of an appended message only position, role and id are in the file."""
    message = Message.user("a very secret sentence")
    message = msgspec.structs.replace(message, id="msg_9", name="secret name")
    await store.write([make(SessionMessageAppended(position=4, message=message), session_id="s")])
    (envelope,) = await store.events()
    assert isinstance(envelope.data, SessionMessageAppended)
    assert envelope.data.position == 4
    assert (envelope.data.message.id, envelope.data.message.role) == ("msg_9", "user")
    assert envelope.data.message.content == ()
    await store.close()
    everything = b"".join(path.read_bytes() for path in store.path.parent.iterdir())
    assert b"secret" not in everything


async def test_an_unknown_topic_comes_back_whole(store: Store, make: Maker) -> None:
    """A host's own event, or a later version's, is kept as it was, also when stored a second time."""
    await store.write([make(HostEvent(value={"a": [1, 2]}))])
    (envelope,) = await store.events()
    assert isinstance(envelope.data, UnknownEvent)
    assert envelope.data.topic == "host.weird"
    assert msgspec.json.decode(envelope.data.raw) == {"type": "host.weird", "value": {"a": [1, 2]}}
    await store.write([make(envelope.data)])
    again = (await store.events())[1].data
    assert isinstance(again, UnknownEvent)
    assert (again.topic, bytes(again.raw)) == ("host.weird", bytes(envelope.data.raw))


@pytest.mark.parametrize("value", [object(), "half a pair \ud83d", 2**80, {1: {2: object()}}])
async def test_an_event_that_cannot_be_encoded_stops_nobody(store: Store, make: Maker, value: object) -> None:
    """One impossible event of a host's own is stored as far as it goes; its batch goes through."""
    await store.write([make.started(), make(HostEvent(value=value)), make.completed()])
    assert len(await store.events()) == 3
    assert len(await store.calls(CallFilter(status="completed"))) == 1


async def test_broken_text_and_impossible_numbers_are_stored(store: Store, make: Maker) -> None:
    """Half surrogate pairs and counts beyond 64 bits don't stop the ledger."""
    usage = TokenUsage(input_tokens=2**70, output_tokens=5)
    routing = RoutingDecision("x\ud800", "openai:gpt-5", "openai", "alias")
    start = make.started(session_id="s\udfff", tags={"k": "\ud800"})
    event = msgspec.structs.replace(start.data, routing=routing)
    await store.write([msgspec.structs.replace(start, data=event), make.completed(usage=usage)])
    (row,) = await store.calls()
    assert row.session_id == "s?"
    assert row.usage is not None
    assert (row.usage.input_tokens, row.usage.output_tokens) == (0, 5)


async def test_filters_choose(store: Store, make: Maker) -> None:
    """Each condition of a filter holds, alone and together with others."""
    batch = []
    for number, (model, session, team) in enumerate(
        [("openai:gpt-5", "s1", "red"), ("openai:gpt-5-mini", "s1", "blue"), ("local-chat:smol", "s2", "red")]
    ):
        ids = {"session_id": session, "tags": {"team": team}, "ts_us": T0 + number * DAY_US}
        batch += [make.started(f"req_{number}", model, **ids), make.completed(f"req_{number}", model, **ids)]
    await store.write(batch)

    async def chosen(**conditions: object) -> list[str]:
        rows = await store.calls(CallFilter(**conditions))  # type: ignore[arg-type]
        return sorted(row.request_id[-1] for row in rows)

    assert await chosen() == ["0", "1", "2"]
    assert await chosen(provider="openai") == ["0", "1"]
    assert await chosen(model="openai:gpt-5") == ["0"]
    assert await chosen(model="openai:gpt-5*") == ["0", "1"]
    assert await chosen(model="smol") == ["2"]
    assert await chosen(session_id="s1", tags={"team": "red"}) == ["0"]
    assert await chosen(since=T0 + DAY_US) == ["1", "2"]
    assert await chosen(until=T0 + DAY_US) == ["0"]
    assert await chosen(status="failed") == []
    assert [row.request_id for row in await store.calls(limit=1)] == ["req_2"]


async def test_sessions_sum_up_their_calls(store: Store, make: Maker) -> None:
    """A session shows its model now, its tags, and what all its attempts used."""
    ids = {"session_id": "s1", "turn_id": "t1"}
    await store.write(
        [
            make(SessionCreated(model="openai:gpt-5", tags={"team": "red"}), session_id="s1"),
            make.started(**ids),
            make.completed(**ids, cost=Cost(None, CostSource.UNPRICED, "v", "no price")),
            make.started("req_2", **ids),
            make.completed("req_2", **ids),
            make(SessionModelChanged(previous="openai:gpt-5", current="local-chat:smol"), session_id="s1"),
            make(SessionCreated(model="m:n"), session_id="s2"),
        ]
    )
    newest, row = await store.sessions()
    assert (newest.session_id, newest.calls) == ("s2", 0)
    assert [each.session_id for each in await store.sessions(1, tags={"team": "red"})] == ["s1"]
    assert await store.sessions(tags={"team": "red", "other": "x"}) == []
    assert (row.model, row.tags, row.turns, row.calls) == ("local-chat:smol", {"team": "red"}, 1, 2)
    assert (row.total_input_tokens, row.output_tokens) == (200, 20)
    assert (row.cost_nano_usd, row.unpriced) == (1234, 1)


async def test_costs_group_and_count_the_unpriced(store: Store, make: Maker) -> None:
    """Sums say how many calls have no price; unknown is not zero."""
    await store.write(
        [
            make.completed("a"),
            make.completed("b", cost=Cost(None, CostSource.UNPRICED, "v", "no price")),
            make.completed("c", "local-chat:smol", usage=TokenUsage(1, 1, source=UsageSource.ESTIMATED)),
        ]
    )
    (total,) = await store.costs(by=())
    assert (total.calls, total.cost_nano_usd, total.unpriced, total.estimated) == (3, 2468, 1, 1)
    rows = await store.costs(by=("provider", "day"))
    assert [row.key[0] for row in rows] == ["local-chat", "openai"]
    assert rows[0].key[1] == "2026-09-21"
    with pytest.raises(ValueError, match="grouped by"):
        await store.costs(by=("model; DROP TABLE calls",))  # type: ignore[arg-type]


async def test_committed_seq_is_per_run(store: Store) -> None:
    """Two runs in one file have their own sequence numbers and don't collide."""
    first, second = Maker("run_a"), Maker("run_b")
    await store.write([first.started(), first.completed(), second.started("req_2")])
    assert await store.committed_seq("run_a") == 2
    assert await store.committed_seq("run_b") == 1
    assert await store.committed_seq("run_c") == 0
    assert len(await store.events()) == 3
    assert len(await store.events(run_id="run_b")) == 1


async def test_the_events_of_a_run_are_read_by_their_numbers(store: Store) -> None:
    """Behind one of them, in pages, whatever other runs have."""
    first, second = Maker("run_a"), Maker("run_b")
    written = [first.started(), first.completed(), first.started("req_3")]
    await store.write([written[0], second.started("req_2"), *written[1:]])
    assert [envelope.seq for envelope in await store.run_events("run_a")] == [1, 2, 3]
    assert await store.run_events("run_a", 1) == (await store.events(run_id="run_a"))[1:]
    assert [envelope.seq for envelope in await store.run_events("run_a", 1, limit=1)] == [2]
    assert await store.run_events("run_a", 3) == await store.run_events("run_c") == []


async def test_how_far_runs_are_is_told_at_once(place: Place) -> None:
    """Those that go on, and those that ended lately."""
    first, second = Maker("run_a"), Maker("run_b")
    async with place.store() as store:
        store.hold_run("run_a")
        await store.write([first.started(), first.completed(), second.started("req_2")])
    async with place.store() as store:
        assert await store.run_positions(0) == {"run_a": 2, "run_b": 1}
        assert "run_a" not in await store.run_positions(T0 + DAY_US)


async def test_usage_with_the_providers_own_figures_is_read_back(store: Store, make: Maker) -> None:
    """An event whose usage has a raw part is not an unknown event; every stored byte of that part comes back."""
    raw = msgspec.Raw(b'{"prompt_tokens": 7, "new": [1.50]}')
    envelopes = [
        make.completed(usage=TokenUsage(7, 1, raw=raw)),
        make.failed("req_2", usage=TokenUsage(7, raw=raw)),
    ]
    await store.write(envelopes)
    for envelope in [*await store.events(), *(decode_line(encode_line(envelope)) for envelope in envelopes)]:
        assert isinstance(envelope.data, LlmCallCompleted | LlmCallFailed)
        assert envelope.data.usage is not None
        assert envelope.data.usage.raw is not None
        assert bytes(envelope.data.usage.raw) == bytes(raw)


async def test_a_call_that_went_through_the_spill_file_has_its_end(store: Store, make: Maker) -> None:
    """Events that were spilled as lines give the same rows as events that were not."""
    usage = TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tok\xffens": 7}'))  # kept as it came, text or not
    spilled = [encode_line(envelope) for envelope in (make.started(), make.completed(usage=usage))]
    await store.write([decode_line(line) for line in spilled])
    (row,) = await store.calls()
    assert (row.status, row.usage and row.usage.input_tokens) == ("completed", 7)
