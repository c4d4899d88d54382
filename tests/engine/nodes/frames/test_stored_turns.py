"""A stream that nobody has any more is what the shared store has of its turn."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.bus import SessionTurnCompleted, StreamReset, TextDelta, TurnComplete, UnknownStream
from callboard.engine import Engine
from callboard.engine.nodes.frames.retained import stored_turn
from callboard.tracestore import TraceStore
from tests.support.cluster_engines import node_engine
from tests.support.engines import keeping
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import why_not
from tests.support.scripted import ADD, CALLS_ADD, Say

from .conftest import connected

on_server = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


async def a_turn(engine: Engine) -> tuple[str, list[str]]:
    """The id of a turn with a tool round that is over, and the types of its events but for progress of tools."""
    async with engine.session("s:m", tools=[ADD]).stream("Hi") as turn:
        types = [event.type async for event in turn]
    return turn.stream_id, [kind for kind in types if not kind.startswith("tool.") or "use" in kind]


async def test_a_stored_turn_has_the_events_of_its_messages(tmp_path: Path) -> None:
    """Each block in one piece, in the order of the turn; also if the session isn't known."""
    async with keeping(tmp_path / "t.db", CALLS_ADD, Say("Three")) as engine:
        stream_id, types = await a_turn(engine)
        await engine.flush()
        async with TraceStore(tmp_path / "t.db") as store:
            found = await stored_turn(store, stream_id)
            assert found.owner is None
            events = found.events
            assert [event.type for event in events] == types
            assert [event.text for event in events if isinstance(event, TextDelta)] == ["Let me see.", "Three"]
            assert events[-1] == TurnComplete("completed")
            assert await stored_turn(store, "trn_other") is None


async def test_an_end_that_others_have_decided_stands(tmp_path: Path) -> None:
    """Though the node's own end may be shipped later: readers have been told the other one."""
    async with keeping(tmp_path / "t.db", Say("Hi")) as engine:
        session = engine.session("s:m")
        async with session.stream("Hi") as turn:
            decided = SessionTurnCompleted(status="outcome_unknown", calls=1, attempts=1, error="gone")
            engine.bus.publish(decided, session_id=session.id, turn_id=turn.stream_id)
            await turn.message()
        await engine.flush()
        async with TraceStore(tmp_path / "t.db") as store:
            found = await stored_turn(store, turn.stream_id)
            assert found.events[-1] == TurnComplete("outcome_unknown", "gone")


async def test_without_content_nothing_is_stored_of_a_stream(tmp_path: Path) -> None:
    """Its end alone would be no answer to what it said."""
    async with Engine(models=keeping(tmp_path / "m.db", Say("Hi")).registry, store=tmp_path / "t.db") as engine:
        async with engine.session("s:m").stream("Hi") as turn:
            await turn.message()
        await engine.flush()
        async with TraceStore(tmp_path / "t.db") as store:
            assert await stored_turn(store, turn.stream_id) is None


@on_server
async def test_a_stream_without_frames_and_owner_is_read_from_the_store(
    nats: NatsServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """Whole for a new reader; who has read a part elsewhere begins anew, and an unknown stream stays unknown."""
    cluster = {"nats": nats.url}
    async with node_engine("b", postgres_dsn, tmp_path, cluster=cluster) as reader:
        await connected(reader)
        owner = node_engine("a", postgres_dsn, tmp_path, CALLS_ADD, Say("Three"), cluster=cluster)
        async with owner:
            await connected(owner)
            stream_id, types = await a_turn(owner)
        nats.stop()
        nats.wipe()
        node = reader._runtime.node
        with anyio.fail_after(10):
            while node.broker.connected:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        nats.start()
        await connected(reader)
        with anyio.fail_after(20):
            assert [event.type async for event in reader.attach(stream_id)] == types
            for seq in (1, len(types) - 1, len(types), 500):
                reset, end = [event async for event in reader.attach(stream_id, from_seq=seq)]
                assert isinstance(reset, StreamReset)
                assert end == TurnComplete("completed")
            with pytest.raises(UnknownStream):
                await anext(reader.attach("trn_01ARZ3NDEKTSV4RRFFQ69G5FAV"))


async def test_a_stored_turn_has_the_owner_of_its_session(tmp_path: Path) -> None:
    """So a reader on another node gets it by the same owner only."""
    async with keeping(tmp_path / "t.db", Say("Hi")) as engine:
        async with engine.session("s:m", tags={"owner": "ada"}).stream("Hi") as turn:
            await turn.message()
        await engine.flush()
        async with TraceStore(tmp_path / "t.db") as store:
            found = await stored_turn(store, turn.stream_id)
            assert found.owner == "ada"
