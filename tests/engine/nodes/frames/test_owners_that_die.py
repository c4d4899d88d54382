"""Streams after the death of their node: the parts of a turn that the next owner and the shared store have."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from callboard.bus import (
    MessageComplete,
    MessageStart,
    SessionTurnCompleted,
    StreamReset,
    TextDelta,
    ThinkingDelta,
    TurnComplete,
    TurnEvent,
    UnknownStream,
)
from callboard.engine import Engine
from callboard.engine.nodes.retained_turns import stored_turn
from callboard.tracestore import TraceStore
from tests.support.cluster_engines import node_engine, node_of
from tests.support.depth import first_is_quick
from tests.support.engines import keeping
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import why_not
from tests.support.programs import started
from tests.support.scripted import ADD, CALLS_ADD, Say

from .conftest import connected
from .dying_owner import AFTER, TEXT, THINKING

LEASE = 2.0
OWNER = "from tests.engine.nodes.frames.dying_owner import run; run()"
SPOKEN = ["".join(TEXT), "".join(AFTER)]
Seen = list[TurnEvent | StreamReset[TurnEvent]]


@contextmanager
def owner(nats: NatsServer, dsn: str, folder: Path, name: str, dies_at: int) -> Iterator[subprocess.Popen[str]]:
    """A node in a separate process, which is killed at the end of the block."""
    process = started(OWNER, nats.url, dsn, folder, name, dies_at, LEASE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


PLAIN = 22


def _name(place: int) -> str:
    return f"plain{place}" if place == PLAIN else f"owner{place}"


def texts_of(seen: Seen) -> list[str]:
    """The text of each message with content."""
    texts: dict[str, str] = {}
    for event in seen:
        if isinstance(event, TextDelta | ThinkingDelta):
            texts.setdefault(event.message_id, "")
            texts[event.message_id] += event.text if isinstance(event, TextDelta) else ""
    return list(texts.values())


async def stream_of(process: subprocess.Popen[str]) -> str:
    line = await anyio.to_thread.run_sync(process.stdout.readline)
    return str(line.split()[1])


async def read(engine: Engine, stream_id: str, from_seq: int = 0) -> Seen:
    with anyio.fail_after(30):
        return [event async for event in engine.attach(stream_id, from_seq=from_seq)]


def check(seen: Seen) -> None:
    """Check a stream: its texts are prefixes of the replies, each message ends once, and the turn ends once."""
    assert [type(event) for event in seen].count(TurnComplete) == 1
    assert isinstance(seen[-1], TurnComplete)
    starts = [event.message_id for event in seen if isinstance(event, MessageStart)]
    ends = [event for event in seen if isinstance(event, MessageComplete)]
    assert starts == [event.message_id for event in ends]
    thought = "".join(event.text for event in seen if isinstance(event, ThinkingDelta))
    assert "".join(THINKING).startswith(thought)
    for message_id, spoken, end in zip(starts, SPOKEN, ends, strict=False):
        text = "".join(e.text for e in seen if isinstance(e, TextDelta) and e.message_id == message_id)
        assert spoken.startswith(text)
        assert "".join(getattr(block, "text", "") for block in end.final_content).endswith(text)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    "dies_at",
    first_is_quick([(PLAIN, 37), (1, 5, 20, 35, 39, 45)], "the owner dies at other events"),
    ids=["some events", "others"],
)
async def test_readers_of_killed_owners_get_a_prefix_and_one_end(
    nats: NatsServer, postgres_dsn: str, tmp_path: Path, dies_at: tuple[int, ...]
) -> None:
    """The owner dies within thinking, text or arguments, before tools, or before the end of the turn. One turn has
    no session. A node that resumes the session has the text that readers have got.
    """
    seen: dict[tuple[str, int], Seen] = {}

    async def follow(name: str, engine: Engine, place: int, stream_id: str) -> None:
        seen[name, place] = await read(engine, stream_id)

    async with AsyncExitStack() as stack:
        readers = {}
        for name in ("b", "c", "late"):
            cluster = {"nats": nats.url, "lease_seconds": LEASE}
            engine = node_engine(name, postgres_dsn, tmp_path, cluster=cluster)
            readers[name] = await stack.enter_async_context(engine)
            await connected(readers[name])
        owners = {
            place: stack.enter_context(owner(nats, postgres_dsn, tmp_path, _name(place), place))
            for place in dies_at
        }
        streams = {place: await stream_of(process) for place, process in owners.items()}
        async with anyio.create_task_group() as group:
            for place, stream_id in streams.items():
                for name in ("b", "c"):
                    group.start_soon(follow, name, readers[name], place, stream_id)
        for place, process in owners.items():
            assert process.wait() == -9
            check(seen["b", place])
            assert seen["b", place] == seen["c", place]
            assert len(seen["b", place]) >= place
            end = seen["b", place][-1]
            assert isinstance(end, TurnComplete)
            assert end.status == "outcome_unknown"
            assert await read(readers["late"], streams[place]) == seen["b", place]
            # A reader that continues on another node after the message's end gets the same text.
            last = len(seen["b", place]) - 1
            assert await read(readers["late"], streams[place], last) == [end]
            if place != PLAIN:
                taken = await readers["late"].resume(_name(place).replace("owner", "ses_owner"))
                assert [message.text for message in taken.messages if message.role == "assistant"] == texts_of(
                    seen["b", place]
                )


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_a_sent_end_ends_the_stream_everywhere(nats: NatsServer, postgres_dsn: str, tmp_path: Path) -> None:
    """The node is killed immediately, before its trace is shipped. Other nodes do not end the turn again."""
    cluster = {"nats": nats.url, "lease_seconds": LEASE}
    async with node_engine("b", postgres_dsn, tmp_path, cluster=cluster) as reader:
        await connected(reader)
        with owner(nats, postgres_dsn, tmp_path, "ended", 0) as process:
            stream_id = await stream_of(process)
            seen = await read(reader, stream_id)
            assert await anyio.to_thread.run_sync(process.wait) == -signal.SIGKILL
        check(seen)
        assert seen[-1] == TurnComplete("completed")
        taken = await reader.resume("ses_ended")
        assert [message.text for message in taken.messages if message.role == "assistant"] == SPOKEN


@pytest.mark.deep("another way to lose an owner")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_an_owner_that_wakes_up_late_is_ignored(nats: NatsServer, postgres_dsn: str, tmp_path: Path) -> None:
    """Another node has ended the turn. Current and later readers get that end."""
    cluster = {"nats": nats.url, "lease_seconds": LEASE}
    async with (
        node_engine("b", postgres_dsn, tmp_path, cluster=cluster) as reader,
        node_engine("c", postgres_dsn, tmp_path, cluster=cluster) as late,
    ):
        for engine in (reader, late):
            await connected(engine)
        with owner(nats, postgres_dsn, tmp_path, "sleeper", -20) as process:
            stream_id = await stream_of(process)
            seen = await read(reader, stream_id)
            check(seen)
            assert isinstance(seen[-1], TurnComplete)
            assert seen[-1].status == "outcome_unknown"
            process.send_signal(signal.SIGCONT)
            await anyio.to_thread.run_sync(lambda: process.communicate("", timeout=20))
            assert process.returncode == 0
            again = await read(late, stream_id)
            check(again)
            assert again[-1] == seen[-1]
            # Events that were being sent at the suspension can be included.
            assert again[: len(seen) - 2] == seen[:-2]


# A stream without frames and owner comes from the shared store.


on_server = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


async def a_turn(engine: Engine) -> tuple[str, list[str]]:
    """The id of a completed turn with a tool round, and the types of its events. Events of running tools are left
    out.
    """
    async with engine.session("s:m", tools=[ADD]).stream("Hi") as turn:
        types = [event.type async for event in turn]
    return turn.stream_id, [kind for kind in types if not kind.startswith("tool.") or "use" in kind]


async def test_a_stored_turn_has_the_events_of_its_messages(tmp_path: Path) -> None:
    """Each block is one delta, in the order of the turn. The session's id is not needed."""
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


async def test_an_end_that_another_node_has_published_stays(tmp_path: Path) -> None:
    """The owner's own end may be shipped later, but readers already have the published end."""
    async with keeping(tmp_path / "t.db", Say("Hi")) as engine:
        session = engine.session("s:m", tags={"owner": "ada"})
        async with session.stream("Hi") as turn:
            decided = SessionTurnCompleted(status="outcome_unknown", calls=1, attempts=1, error="gone")
            engine.bus.publish(decided, session_id=session.id, turn_id=turn.stream_id)
            await turn.message()
        await engine.flush()
        async with TraceStore(tmp_path / "t.db") as store:
            found = await stored_turn(store, turn.stream_id)
            assert (found.events[-1], found.owner) == (TurnComplete("outcome_unknown", "gone"), "ada")


async def test_without_content_the_store_has_no_stream(tmp_path: Path) -> None:
    """The end alone does not show the text of the turn."""
    async with Engine(models=keeping(tmp_path / "m.db", Say("Hi")).registry, store=tmp_path / "t.db") as engine:
        async with engine.session("s:m").stream("Hi") as turn:
            await turn.message()
        await engine.flush()
        async with TraceStore(tmp_path / "t.db") as store:
            assert await stored_turn(store, turn.stream_id) is None


@pytest.mark.deep("another way to lose an owner")
@on_server
async def test_an_abandoned_stream_is_read_from_the_store(
    nats: NatsServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """A new reader gets every event, and a reader of a part gets a reset. An unknown stream stays unknown."""
    cluster = {"nats": nats.url}
    async with node_engine("b", postgres_dsn, tmp_path, cluster=cluster) as reader:
        await connected(reader)
        owner = node_engine("a", postgres_dsn, tmp_path, CALLS_ADD, Say("Three"), cluster=cluster)
        async with owner:
            await connected(owner)
            stream_id, types = await a_turn(owner)
        nats.stop()
        nats.wipe()
        node = node_of(reader)
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
