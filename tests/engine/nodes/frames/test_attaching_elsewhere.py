"""A stream can be read on every node, with the same events, the same numbers and one end."""

from __future__ import annotations

from typing import Any, Literal

import anyio
import pytest

from callboard.bus import CallboardError, StreamReset, TurnComplete, TurnEvent, UnknownStream
from callboard.bus.errors import CancelledError
from callboard.engine import Engine
from tests.support.cluster_engines import node_of, until
from tests.support.nats_server import NatsServer
from tests.support.scripted import ADD, CALLS_ADD, Say

from .conftest import Gate, connected, nodes

WORDS = [f"word{number} " for number in range(40)]
Seen = list[tuple[int, TurnEvent | StreamReset[TurnEvent]]]


async def read(
    engine: Engine, stream_id: str, from_seq: int | Literal["tail"] = 0, at_most: int | None = None
) -> Seen:
    """The events that a reader gets, with their numbers."""
    seen: Seen = []
    with anyio.fail_after(20):
        async with engine.attach(stream_id, from_seq=from_seq) as reader:
            async for event in reader:
                seen.append((reader.seq, event))
                if len(seen) == at_most:
                    break
    return seen


async def test_readers_on_other_nodes_get_the_events_of_the_owner(nats: NatsServer) -> None:
    """The readers read while the reply arrives. A tool runs between two messages."""
    gate = Gate()
    async with nodes(nats, 3, CALLS_ADD, Say(*WORDS, pause=gate.step)) as (owner, *others):
        results: dict[int, Seen] = {}

        async def follow(number: int, engine: Engine, stream_id: str) -> None:
            results[number] = await read(engine, stream_id)

        async with owner.session("s:m", tools=[ADD]).stream("Hi") as turn, anyio.create_task_group() as group:
            for number, engine in enumerate([owner, *others]):
                group.start_soon(follow, number, engine, turn.stream_id)
            for _ in range(len(WORDS)):
                gate.open(1)
                await anyio.sleep(0.002)
            gate.open()
            await turn.message()
    assert results[0] == results[1] == results[2]
    assert isinstance(results[0][-1][1], TurnComplete)
    assert "tool.finished" in [event.type for _, event in results[1]]


async def test_a_reader_on_another_node_continues_after_the_last_event(nats: NatsServer) -> None:
    """A browser does this with Last-Event-ID. No event is repeated or missing."""
    gate = Gate(20)
    async with nodes(nats, 3, Say(*WORDS, pause=gate.step)) as (owner, one, other):
        async with owner.session("s:m").stream("Hi") as turn:
            turn.detach()
        first = await read(one, turn.stream_id, at_most=10)
        gate.open()
        rest = await read(other, turn.stream_id, first[-1][0] + 1)
        assert [*first, *rest] == await read(owner, turn.stream_id)


async def test_the_tail_has_only_new_events(nats: NatsServer) -> None:
    gate = Gate(11)
    async with nodes(nats, 2, Say(*WORDS, pause=gate.step)) as (owner, other):
        async with owner.session("s:m").stream("Hi") as turn:
            turn.detach()
        early = await read(other, turn.stream_id, at_most=11)
        reader = other.attach(turn.stream_id, from_seq="tail")
        tail: list[Any] = []

        async def follow() -> None:
            tail.extend([(reader.seq, event) async for event in reader])

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await until(lambda: reader.seq >= 0)
            gate.open()
        assert tail[0][0] > 0
        whole = await read(owner, turn.stream_id)
        assert tail == whole[tail[0][0] :]
        assert early == whole[:11]


@pytest.mark.parametrize("wiped", [False, True])
async def test_a_completed_stream_is_read_from_its_frames(nats: NatsServer, wiped: bool) -> None:
    """The broker keeps the frames, so the owner can be closed. If the broker is wiped, the owner answers."""
    async with nodes(nats, 2, Say(*WORDS)) as (owner, other):
        async with owner.session("s:m").stream("Hi") as turn:
            await turn.message()
        whole = await read(owner, turn.stream_id)
        if wiped:
            await restart(nats, owner, other)
        else:
            await owner.aclose()
        assert await read(other, turn.stream_id) == whole
        assert await read(other, turn.stream_id, 5) == whole[5:]


@pytest.mark.deep("another fault of the broker")
async def test_a_broker_that_is_wiped_during_a_stream_loses_no_event(nats: NatsServer) -> None:
    gate = Gate(20)
    async with nodes(nats, 3, Say(*WORDS, pause=gate.step)) as (owner, other, late):
        seen: Seen = []

        async def follow(stream_id: str) -> None:
            seen.extend(await read(other, stream_id))

        async with anyio.create_task_group() as group:
            async with owner.session("s:m").stream("Hi") as turn:
                turn.detach()
            group.start_soon(follow, turn.stream_id)
            await read(late, turn.stream_id, at_most=15)
            nats.stop()
            nats.wipe()
            gate.open(10)
            nats.start()
            for engine in (owner, other, late):
                await connected(engine)
            gate.open()
        whole = await read(owner, turn.stream_id)
        assert seen == whole
        assert await read(late, turn.stream_id) == whole


async def restart(nats: NatsServer, *engines: Engine) -> None:
    nats.stop()
    nats.wipe()
    await until(lambda: not any(node_of(engine).broker.connected for engine in engines))
    nats.start()
    for engine in engines:
        await connected(engine)


async def test_an_unknown_stream_is_an_error_of_the_first_read(nats: NatsServer) -> None:
    async with nodes(nats, 2, Say("a")) as (owner, other):
        reader = other.attach("trn_nothing")
        with pytest.raises(UnknownStream, match="no node has it"):
            await anext(reader)
        assert "trn_nothing" not in other.streams
        async with owner.session("s:m").stream("Hi") as turn:
            await turn.message()
        whole = await read(owner, turn.stream_id)
        assert await read(other, turn.stream_id, len(whole)) == []
        other.streams.discard(turn.stream_id)
        with pytest.raises(ValueError, match="from_seq=99"):
            await read(other, turn.stream_id, 99)
        with pytest.raises(ValueError, match="from_seq=-1"):
            other.attach("trn_other", from_seq=-1)


async def test_a_turn_is_cancelled_from_any_node(nats: NatsServer) -> None:
    gate = Gate(10)
    async with nodes(nats, 3, Say(*WORDS, pause=gate.step)) as (owner, other, third):
        async with owner.session("s:m").stream("Hi") as turn, anyio.create_task_group() as group:
            seen: dict[str, Seen] = {}

            async def follow(name: str, engine: Engine) -> None:
                seen[name] = await read(engine, turn.stream_id)

            for name, engine in {"owner": owner, "other": other}.items():
                group.start_soon(follow, name, engine)
            await read(third, turn.stream_id, at_most=5)
            assert await third.cancel(turn.stream_id)
            with pytest.raises(CancelledError):
                await turn.message()
        assert seen["other"] == seen["owner"]
        end = seen["other"][-1][1]
        assert isinstance(end, TurnComplete)
        assert end.status == "cancelled"
        assert not await third.cancel(turn.stream_id)
        assert not await third.cancel("trn_nothing")


async def test_a_mirror_without_readers_is_dropped(nats: NatsServer) -> None:
    gate = Gate(11)
    async with nodes(nats, 2, Say(*WORDS, pause=gate.step)) as (owner, other):
        async with owner.session("s:m").stream("Hi") as turn:
            turn.detach()
        await read(other, turn.stream_id, at_most=5)
        gate.open(1)
        await until(lambda: turn.stream_id not in other.streams)
        gate.open()
        assert await read(other, turn.stream_id) == await read(owner, turn.stream_id)


async def test_closing_an_engine_ends_its_readers(nats: NatsServer) -> None:
    """The reader gets an error, because the stream continues on the node of its owner."""
    gate = Gate(11)
    async with nodes(nats, 2, Say(*WORDS, pause=gate.step)) as (owner, other):
        async with owner.session("s:m").stream("Hi") as turn:
            turn.detach()
        reader = other.attach(turn.stream_id)
        for _ in range(5):
            await anext(reader)
        await other.aclose()
        with pytest.raises(CallboardError, match="any other node"):
            async for _ in reader:
                pass


async def test_a_stream_larger_than_a_message_of_the_broker(nats: NatsServer) -> None:
    text = "x" * 3_000_000
    async with nodes(nats, 2, Say(text, "end")) as (owner, other):
        async with owner.session("s:m").stream("Hi") as turn:
            await turn.message()
        assert await read(other, turn.stream_id) == await read(owner, turn.stream_id)


async def test_no_frame_of_a_deleted_session_is_kept(nats: NatsServer) -> None:
    async with nodes(nats, 2, Say("a"), Say("b")) as (owner, other):
        sessions = [owner.session("s:m"), owner.session("s:m")]
        frames = node_of(other).frames
        assert frames is not None
        for session in sessions:
            async with session.stream("Hi") as turn:
                await turn.message()

        async def are_retained() -> bool:
            return all([(await frames.retained_turns(session.id)).turns for session in sessions])

        await until(are_retained)
        await owner.delete_session(sessions[0].id)
        assert [len((await frames.retained_turns(session.id)).turns) for session in sessions] == [0, 1]


async def test_a_stream_of_another_node_is_read_by_its_owner_only(nats: NatsServer) -> None:
    """Readers attach during the reply and after its end, at every start. They share one mirror."""
    gate = Gate(20)
    async with nodes(nats, 2, Say(*WORDS, pause=gate.step)) as (owner, other):
        async with owner.session("s:m", tags={"owner": "ada"}).stream("Hi") as turn:
            turn.detach()
        stream_id = turn.stream_id
        reader = other.attach(stream_id, owner="ada")
        await anext(reader)
        for from_seq in (0, 5, "tail"):
            for options in ({}, {"owner": "bob"}):
                with anyio.fail_after(20), pytest.raises(UnknownStream):
                    await anext(other.attach(stream_id, from_seq=from_seq, **options))  # type: ignore[call-overload]
        assert not await other.cancel(stream_id, owner="bob")
        gate.open()
        rest = [event async for event in reader]
        assert rest[-1] == TurnComplete("completed")
        await owner.aclose()
        for options in ({}, {"owner": "bob"}):
            with anyio.fail_after(20), pytest.raises(UnknownStream):
                await anext(other.attach(stream_id, **options))  # type: ignore[call-overload]
        assert [event async for event in other.attach(stream_id, owner="ada")][1:] == rest
