"""Turns in progress while the shared store is unreachable for longer than a lease, and nodes without a file."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from callboard.bus import (
    Envelope,
    Event,
    Message,
    SessionConfigured,
    SessionCreated,
    SessionMessageAppended,
    SessionSetup,
    SessionTakenOver,
)
from callboard.bus.events.operation import NodeLeaseChanged
from callboard.engine import Cluster, Engine
from callboard.engine.watching.health import check_store
from callboard.tracestore import Capture, PostgresStore, SavedSession, TraceShipper, TraceStore
from callboard.tracestore.codec import decode_line, encode_event, encode_line
from callboard.tracestore.nodes import NodeInfo
from callboard.tracestore.postgres.nodes import PostgresOwnership, SharedDatabase

from ...support.cluster_engines import node_engine
from ...support.engines import registry
from ...support.postgres_server import own_server, why_not
from ...support.present import present
from ...support.scripted import Say

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
LEASE = 1.5


@pytest.mark.deep("a wait for the length of a lease")
@pytest.mark.parametrize("back", [True, False])
async def test_a_turn_outlives_a_lease_that_no_other_node_took(tmp_path: Path, back: bool) -> None:
    """If the store is back at the turn's end, this node keeps the session. Otherwise the outcome is unknown."""
    limiter, steps = anyio.Event(), iter(range(99))

    async def pause() -> None:
        if next(steps):
            await limiter.wait()

    with own_server() as server, server.database() as dsn:
        replies = (Say("One."), Say("Two", "three", pause=pause))
        async with node_engine("a", dsn, tmp_path, *replies, cluster={"lease_seconds": LEASE}) as a:
            session = a.session("s:m")
            await session.send("Hi")
            async with session.stream("Go on") as turn:
                await anext(aiter(turn))
                server.stop("immediate")
                async with lease_over(a):
                    if back:
                        server.start()
                    limiter.set()
                    if back:
                        assert (await turn.result()).status == "completed"
                    else:
                        with pytest.raises(SessionTakenOver, match="can't read from the shared store") as lost:
                            await turn.result()
                        assert present(lost.value.turn).status == "outcome_unknown"
            assert [message.text for message in session.messages][-1] == "Twothree"
        if not back:
            server.start()


@asynccontextmanager
async def lease_over(engine: Engine) -> AsyncIterator[None]:
    """Enter the block when the engine's lease has ended."""
    with engine.bus.subscribe("nodes.lease_changed") as changes:
        change = (await anext(aiter(changes))).data
        assert isinstance(change, NodeLeaseChanged)
        assert change.current == "over"
        yield


async def test_nodes_with_traces_on_the_server_share_sessions(postgres_dsn: str, tmp_path: Path) -> None:
    def node(name: str, *replies: Say) -> Engine:
        return Engine(
            models=registry(*replies),
            store=PostgresStore(postgres_dsn, path=tmp_path / name),
            capture_content=True,
            cluster=Cluster(store=postgres_dsn, node=name, lease_seconds=5.0),
        )

    async with node("a", Say("One."), Say("Three.")) as a, node("b", Say("Two.")) as b:
        session = a.session("s:m")
        await session.send("Hi")
        with anyio.fail_after(5):
            there = await b.resume(session.id)
        await there.send("And then?")
        with pytest.raises(SessionTakenOver):
            await session.send("Mine?")
        back = await a.resume(session.id)
        await back.send("And now?")
        assert [message.text for message in back.messages] == [
            *("Hi", "One.", "And then?", "Two.", "And now?", "Three.")
        ]
    async with PostgresStore(postgres_dsn, path=tmp_path / "reader") as store:
        saved = await store.saved_session(session.id)
        assert len(saved.messages) == 6
        assert [row.session_id for row in await store.sessions()] == [session.id]


async def test_the_doctor_lists_the_nodes_that_share_a_trace(postgres_dsn: str, tmp_path: Path) -> None:
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        async with node_engine("b", postgres_dsn, tmp_path, Say("One.")) as b:
            await b.session("s:m").send("Hi")
            (others,) = [each for each in (await b.health(offline=True)).checks if each.name == "node:others"]
            assert others.detail.startswith("a (1 sessions, ")
        checks = await check_store(PostgresStore(postgres_dsn, path=tmp_path / "reader"))
        (nodes,) = [each for each in checks if each.name == "store:nodes"]
        assert nodes.detail.startswith("a (callboard, 1 sessions, ")
        assert "b" not in nodes.detail.split("(", 1)[0]


async def test_an_engine_without_content_reads_the_shared_trace(postgres_dsn: str, tmp_path: Path) -> None:
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        while not await a._runtime.host.share():  # it waits for 5 s at most
            pass
        cluster = Cluster(store=postgres_dsn, node="c")
        models, path = registry(Say("Two.")), tmp_path / "c.db"
        async with Engine(models=models, store=path, cluster=cluster) as c:
            seen = await c.preview(session.id, "And then?")
            assert seen.input_tokens == (await a.preview(session.id, "And then?")).input_tokens


# Events of a former owner: the shared store refuses them for the session and stores them under another name.

CAPTURE = Capture(None)


class Says:
    """The events of one run."""

    def __init__(self, run_id: str, since_us: int = 1_795_000_000_000_000) -> None:
        self.run_id = run_id
        self.since_us = since_us
        self.seq = 0

    def created(self) -> Envelope:
        return self._envelope(SessionCreated(model="s:m"))

    def _envelope(self, data: Event, message_id: str | None = None) -> Envelope:
        self.seq += 1
        ts_us = self.since_us + self.seq
        found = Envelope(self.seq, self.run_id, ts_us, self.seq, data, session_id="s", message_id=message_id)
        return CAPTURE.apply(found)

    def setup(self, history: int, epoch: int, *, begins: bool = False, prompt: str = "P") -> Envelope:
        setup = SessionSetup(model="s:m", system_prompt=prompt)
        return self._envelope(SessionConfigured(history=history, setup=setup, begins=begins, epoch=epoch))

    def message(self, position: int, text: str, epoch: int, message_id: str | None = None) -> Envelope:
        name = message_id or f"msg_{self.run_id}_{position}"
        message = Message(Message.user(text).role, Message.user(text).content, id=name)
        return self._envelope(SessionMessageAppended(position=position, message=message, epoch=epoch), name)


class Shared:
    """A shared store, and hosts that write to it directly or ship a file."""

    def __init__(self, dsn: str, folder: Path, way: str) -> None:
        self.dsn = dsn
        self.folder = folder
        self.way = way
        self.database = SharedDatabase(dsn)
        self.ownership = PostgresOwnership(self.database)

    async def claim(self, run_id: str) -> int:
        """Claim the session for the run, whatever its owner."""
        found = await self.ownership.claim("s", run_id)
        return found.epoch  # type: ignore[union-attr]

    async def write(self, run_id: str, *envelopes: Envelope) -> None:
        if self.way == "direct":
            async with PostgresStore(self.dsn, path=self.folder / run_id) as store:
                await store.write(envelopes)
            return
        path = self.folder / f"{run_id}.db"
        async with TraceStore(path) as file:
            await file.write(envelopes)
        shipper = TraceShipper(path, self.dsn)
        await shipper.ship()
        await shipper.close()

    async def saved(self, session_id: str = "s") -> SavedSession | None:
        async with PostgresStore(self.dsn, path=self.folder / "reader") as store:
            return await store.saved_session(session_id)

    async def texts(self, session_id: str = "s") -> list[str] | None:
        saved = await self.saved(session_id)
        return None if saved is None else [message.text for message in saved.messages]


@pytest.fixture(params=["direct", "shipped"])
async def shared(request: pytest.FixtureRequest, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Shared]:
    place = Shared(postgres_dsn, tmp_path, request.param)
    yield place
    await place.database.close()


async def began(shared: Shared) -> tuple[Says, Says]:
    """Run A writes two messages in epoch 1, and run B claims the session for epoch 2."""
    a, b = Says("run_a"), Says("run_b")
    assert await shared.claim("run_a") == 1
    await shared.write("run_a", a.setup(0, 1, begins=True), a.message(0, "a0", 1), a.message(1, "a1", 1))
    assert await shared.claim("run_b") == 2
    return a, b


async def test_messages_of_a_former_owner_are_stored_under_another_name(shared: Shared) -> None:
    """A claim alone is enough to refuse messages of the former owner. No message is mixed in, and no message is
    lost.
    """
    a, b = await began(shared)
    await shared.write("run_a", a.message(2, "late", 1))
    assert await shared.texts() == ["a0", "a1"]
    await shared.write("run_b", b.setup(2, 2), b.message(2, "b2", 2))
    await shared.write("run_a", a.message(3, "later", 1))
    assert await shared.texts() == ["a0", "a1", "b2"]
    assert await shared.texts("s.run_a") == ["a0", "a1", "late", "later"]


async def test_an_owner_that_returns_continues_at_its_setup(shared: Shared) -> None:
    """The owner's earlier messages after that position are removed."""
    a, _ = await began(shared)
    assert await shared.claim("run_a") == 3
    await shared.write("run_a", a.setup(1, 3), a.message(1, "a1 again", 3))
    assert await shared.texts() == ["a0", "a1 again"]


async def test_a_run_that_owns_the_session_again_writes_nothing_under_its_old_claim(shared: Shared) -> None:
    """Run A owns the session, then run B, and then run A again. The session does not get the unsent message of A's
    first epoch.
    """
    a, b = await began(shared)
    unsaid = a.message(2, "of the first time", 1)
    await shared.write("run_b", b.setup(2, 2), b.message(2, "b2", 2))
    assert await shared.claim("run_a") == 3
    again, last = a.setup(3, 3), a.message(3, "a3", 3)
    await shared.write("run_a", unsaid, again, last)
    assert await shared.texts() == ["a0", "a1", "b2", "a3"]
    assert await shared.texts("s.run_a") == ["a0", "a1", "of the first time"]


async def test_a_message_that_the_next_owner_restored_is_no_conflict(shared: Shared) -> None:
    """The copy of the first owner arrives later and is the same. A longer copy is stored under another name."""
    a, b = await began(shared)
    await shared.write(
        "run_b", b.setup(2, 2), b.message(2, "asked", 2, "msg_x"), b.message(3, "half an ans", 2, "msg_y")
    )
    await shared.write("run_a", a.message(2, "asked", 1, "msg_x"))
    assert await shared.texts("s.run_a") is None
    await shared.write("run_a", a.message(3, "half an answer", 1, "msg_y"))
    assert await shared.texts() == ["a0", "a1", "asked", "half an ans"]
    assert (await shared.texts("s.run_a") or [])[-1] == "half an answer"


async def test_a_setup_of_a_former_owner_changes_nothing(shared: Shared) -> None:
    """The late setup is ignored even if it starts the session again."""
    a, b = await began(shared)
    await shared.write("run_b", b.setup(2, 2, prompt="B's"))
    await shared.write("run_a", a.setup(2, 1, prompt="late"), a.setup(0, 1, begins=True, prompt="new"))
    saved = await shared.saved()
    assert (saved.setup.system_prompt, len(saved.messages)) == ("B's", 2)
    assert await shared.saved("s.run_a") is None


async def test_messages_of_a_former_owner_are_refused_after_a_deletion(postgres_dsn: str, tmp_path: Path) -> None:
    """A new claim of the session's name gets the highest epoch so far."""
    shared = Shared(postgres_dsn, tmp_path, "direct")
    _, b = await began(shared)
    await shared.ownership.release("run_b", {"s": 2})
    async with PostgresStore(postgres_dsn, path=tmp_path / "other") as store:
        assert await store.delete_session("s")
    assert await shared.ownership.owner("s") is None
    assert await shared.claim("run_c") == 3
    c = Says("run_c")
    await shared.write("run_c", c.setup(0, 3, begins=True), c.message(0, "c0", 3))
    await shared.write("run_b", b.setup(1, 2), b.message(1, "late", 2))
    assert await shared.texts() == ["c0"]
    await shared.database.close()


async def test_messages_before_a_deletion_never_return(postgres_dsn: str, tmp_path: Path) -> None:
    """The file of a dead node may be shipped after the session has started again. Later messages are kept."""
    shared = Shared(postgres_dsn, tmp_path, "shipped")
    a, _ = await began(shared)
    async with PostgresStore(postgres_dsn, path=tmp_path / "other") as store:
        assert await store.delete_session("s")
    await shared.ownership.release("run_b", {"s": 2})
    await shared.write("run_a", a.message(2, "secret", 1))
    c = Says("run_c", since_us=time.time_ns() // 1000 + 10**9)
    await shared.claim("run_c")
    await shared.write("run_c", c.created(), c.setup(0, 3, begins=True), c.message(0, "c0", 3))
    await shared.write("run_c", c.message(1, "c1", 3))
    await shared.write("run_a", a.message(3, "secret, too", 1))
    assert await shared.texts() == ["c0", "c1"]
    assert await shared.saved("s.run_a") is None
    async with PostgresStore(postgres_dsn, path=tmp_path / "other") as store:
        assert [row.session_id for row in await store.sessions(None)] == ["s"]
    a.since_us = c.since_us
    await shared.write("run_a", a.message(4, "said later", 1))
    assert await shared.texts("s.run_a") == ["said later"]
    await shared.database.close()


async def test_an_engine_outside_takes_no_session_from_a_live_node(postgres_dsn: str, tmp_path: Path) -> None:
    """The engine can take a released session, and the node then writes nothing to that session."""
    shared = Shared(postgres_dsn, tmp_path, "direct")
    await shared.ownership.renew(NodeInfo(node="run_a"), 0)
    a, c = Says("run_a"), Says("run_c")
    await shared.claim("run_a")
    await shared.write("run_a", a.setup(0, 1, begins=True), a.message(0, "a0", 1))
    async with PostgresStore(postgres_dsn, path=tmp_path / "c") as store:
        assert not await store.claim_session("s", "run_c", 0, 1)
        await shared.ownership.release("run_a", {"s": 1})
        assert await store.claim_session("s", "run_c", 0, 1)
        await store.write([c.setup(1, 0), c.message(1, "c1", 0)])
    await shared.write("run_a", a.message(1, "late", 1))
    assert await shared.texts() == ["a0", "c1"]
    await shared.database.close()


def test_the_epoch_is_stored_in_a_cluster_and_survives_a_spill_file() -> None:
    says = Says("run_a")
    for epoch in (0, 7):
        for envelope in (says.setup(0, epoch), says.message(0, "Hi", epoch)):
            assert (b'"epoch":7' in encode_event(envelope.data)) is bool(epoch)
            assert (b'"epoch"' in encode_event(envelope.data)) is bool(epoch)
            again = decode_line(encode_line(envelope).rstrip(b"\n"))
            assert again == envelope
            assert again.data.epoch == epoch  # type: ignore[attr-defined]
