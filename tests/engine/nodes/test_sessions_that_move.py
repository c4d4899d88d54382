"""Sessions that move between nodes: released, requested, and refused while a turn runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread
import pytest

from callboard.bus import (
    AdmissionError,
    CallboardError,
    NodeLeaseChanged,
    SessionBusy,
    SessionTakenOver,
    SessionTurnCompleted,
)
from callboard.engine import Engine
from callboard.tracestore import PostgresStore, TraceShipper, TraceStore
from callboard.tracestore.nodes import NodeInfo

from ...support.cluster_engines import node_engine, node_of
from ...support.engines import registry
from ...support.nats_server import own_nats_server, why_no_nats
from ...support.postgres_server import own_server, why_not
from ...support.present import present
from ...support.programs import started
from ...support.scripted import Say

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def texts(session: Any) -> list[str]:
    return [message.text for message in session.messages]


async def test_a_session_of_a_closed_node_is_resumed_on_another_node(postgres_dsn: str, tmp_path: Path) -> None:
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m", system_prompt="Be brief.")
        await session.send("Hi")
    async with node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b:
        with anyio.fail_after(10):  # a lease lasts for 15 s
            resumed = await b.resume(session.id)
        assert resumed.system_prompt == "Be brief."
        assert texts(resumed) == ["Hi", "One."]
        await resumed.send("And then?")
        assert node_of(b).epoch_of(session.id) == 2
    async with node_engine("c", postgres_dsn, tmp_path, Say("Three.")) as c:
        again = await c.resume(session.id)
        assert texts(again) == ["Hi", "One.", "And then?", "Two."]
    async with PostgresStore(postgres_dsn, path=tmp_path / "p") as store:
        assert [row.session_id for row in await store.sessions()] == [session.id]


async def test_an_idle_session_is_handed_over(postgres_dsn: str, tmp_path: Path) -> None:
    """The owner is running. The owner's next turn raises SessionTakenOver."""
    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Four.")) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b,
    ):
        session = a.session("s:m")
        await session.send("Hi")
        with anyio.fail_after(5):
            there = await b.resume(session.id)
        await there.send("And then?")
        with pytest.raises(SessionTakenOver, match="another node"):
            await session.send("Still mine?")
        with anyio.fail_after(5):
            back = await a.resume(session.id)
        assert texts(back) == ["Hi", "One.", "And then?", "Two."]
        await back.send("And now?")
        with pytest.raises(SessionTakenOver):
            await there.send("Mine?")
    async with PostgresStore(postgres_dsn, path=tmp_path / "p") as store:
        saved = await store.saved_session(session.id)
        assert [message.text for message in saved.messages][-1] == "Four."
        assert saved.missing == ()
        assert [row.session_id for row in await store.sessions()] == [session.id]


async def test_a_session_with_a_running_turn_is_not_handed_over(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callboard.engine.nodes import ownership

    monkeypatch.setattr(ownership, "HANDOVER_SECONDS", 0.3)
    limiter, steps = anyio.Event(), iter(range(99))

    async def pause() -> None:
        if next(steps):
            await limiter.wait()

    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Two", "three", pause=pause)) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b,
    ):
        session = a.session("s:m")
        await session.send("Hi")
        async with session.stream("Go on") as turn:
            await anext(aiter(turn))
            with pytest.raises(SessionBusy, match="node a"):
                await b.resume(session.id)
            limiter.set()
            assert (await turn.result()).text == "Twothree"


async def test_a_session_without_a_handle_is_released(postgres_dsn: str, tmp_path: Path) -> None:
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        name = session.id
        del session
        node = node_of(a)
        with anyio.fail_after(10):
            while node.epoch_of(name):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        owner = await node.ownership.tables.owner(name)
        assert owner.released


async def test_a_session_that_is_open_here_is_not_resumed_twice(postgres_dsn: str, tmp_path: Path) -> None:
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        with pytest.raises(CallboardError, match="already open"):
            await a.resume(session.id)
        with pytest.raises(CallboardError, match="has no stored messages"):
            await a.resume("ses_unknown")
        node = node_of(a)
        assert await node.ownership.tables.owner("ses_unknown") is None
        assert node.epoch_of(session.id) == 1


async def test_a_session_is_listed_and_deleted_on_any_node(postgres_dsn: str, tmp_path: Path) -> None:
    """Another node's session can't be deleted. Later messages of a deleted session are not stored in it."""
    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Two.")) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Three.")) as b,
    ):
        session = a.session("s:m", name="talk")
        await session.send("Hi")
        while not await a._runtime.host.share():  # it waits for 5 s at most
            pass
        (found,) = await b.sessions()
        assert (found.session_id, found.open, found.name) == (session.id, False, "talk")
        with pytest.raises(SessionBusy, match="node a"):
            await b.delete_session(session.id)
        there = await b.resume(session.id)
        assert await b.delete_session(session.id)
        assert await b.sessions() == []
        with pytest.raises(SessionTakenOver):
            await session.send("Still there?")
        await there.send("Again")
        assert texts(there) == ["Again", "Three."]
    async with PostgresStore(postgres_dsn, path=tmp_path / "p") as store:
        saved = await store.saved_session(session.id)
        assert [message.text for message in saved.messages] == ["Again", "Three."]
        assert not await store.saved_session("ses_unknown")


async def test_a_deleted_session_has_no_owner(postgres_dsn: str, tmp_path: Path) -> None:
    """The owner deletes a session, and another node deletes a released one."""
    async with node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Two.")) as a:
        held, left = a.session("s:m"), a.session("s:m")
        for session in (held, left):
            await session.send("Hi")
        assert await a.delete_session(held.id)
    async with node_engine("b", postgres_dsn, tmp_path) as b:
        assert await b.delete_session(left.id)
        node = node_of(b)
        assert [await node.ownership.tables.owner(session.id) for session in (held, left)] == [None, None]


@pytest.mark.deep("a wait for the length of a lease")
async def test_without_the_shared_store_the_owner_continues_until_its_lease_ends(tmp_path: Path) -> None:
    """After that, turns are refused with advice, and calls without a session continue."""
    with own_server() as server, server.database() as dsn:
        replies = [Say(f"{number}.") for number in range(9)]
        async with node_engine("a", dsn, tmp_path, *replies, cluster={"lease_seconds": 2.0}) as a:
            session = a.session("s:m")
            with a.bus.subscribe("nodes.lease_changed") as changes:
                await session.send("Hi")
                server.stop("immediate")
                await session.send("Still the owner?")
                over = (await anext(aiter(changes))).data
                assert isinstance(over, NodeLeaseChanged)
                assert over.current == "over"
                with pytest.raises(AdmissionError, match="Calls without a session continue"):
                    await session.send("And now?")
                assert (await a.generate("s:m", "Hello")).text
                with pytest.raises(AdmissionError):
                    await a.session("s:m").send("A new one?")
                (lease,) = [check for check in (await a.health(offline=True)).checks if check.name == "node:lease"]
                assert not lease.ok
                server.start()
                back = (await anext(aiter(changes))).data
                assert isinstance(back, NodeLeaseChanged)
                assert back.current == "held"
                await session.send("And now?")
            assert len(session.messages) == 6
            checks = {check.name: check for check in (await a.health(offline=True)).checks}
            assert checks["node:lease"].ok
            assert checks["node:lease"].detail.startswith("a owns 1 ")
            assert checks["node:others"].detail == "no other node is alive"
            statistics = a.statistics().node
            assert (statistics.name, statistics.lives, statistics.sessions) == ("a", True, 1)


@pytest.mark.deep("another way to open a session")
async def test_a_session_is_opened_by_its_id_on_any_node(postgres_dsn: str, tmp_path: Path) -> None:
    """The first node creates the session. Each further node continues it and is its owner from then on."""
    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Three.")) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b,
    ):
        first = await a.open_session("tenant/x", model="s:m", system_prompt="Be brief.")
        with anyio.fail_after(5):
            empty = await b.open_session("tenant/x", model="s:m")
        assert (empty.messages, empty.system_prompt) == ((), "Be brief.")
        with pytest.raises(SessionTakenOver):
            await first.send("Mine?")
        with anyio.fail_after(5):
            first = await a.open_session("tenant/x", model="s:m")
        await first.send("Hi")
        with anyio.fail_after(5):
            there = await b.open_session("tenant/x", model="s:m")
        await there.send("And then?")
        with anyio.fail_after(5):
            back = await a.open_session("tenant/x", model="s:m")
        assert texts(back) == ["Hi", "One.", "And then?", "Two."]
        assert await a.open_session("tenant/x") is not back
        assert texts(await a.open_session("tenant/x")) == texts(back)


async def test_two_nodes_that_open_one_id_concurrently_have_one_session(postgres_dsn: str, tmp_path: Path) -> None:
    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("One.")) as b,
    ):
        found: dict[str, Any] = {}

        async def begin(name: str, engine: Any) -> None:
            found[name] = await engine.open_session("x", model="s:m")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(begin, "a", a)
                group.start_soon(begin, "b", b)
        owned = [engine for engine in (a, b) if node_of(engine).epoch_of("x")]
        assert len(owned) == 1
        assert (await found["a" if owned[0] is a else "b"].send("Hi")).text == "One."


async def test_a_session_that_died_with_its_node_is_not_created_again(postgres_dsn: str, tmp_path: Path) -> None:
    """No message was shared, so the history is unknown. After a deletion the id can be used."""
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        node = node_of(a)
        tables = node.ownership.tables
        await tables.renew(NodeInfo(node="run_gone", name="gone", lease_seconds=0.05), 0)
        await tables.claim("x", "run_gone")
        with anyio.fail_after(10):
            while present(await tables.owner("x")).lives:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        for _ in range(2):
            with pytest.raises(CallboardError, match="node gone, which died"):
                await a.open_session("x", model="s:m")
        await a.delete_session("x")
        assert (await a.open_session("x", model="s:m")).messages == ()


async def test_a_session_without_stored_messages_is_not_created_again(postgres_dsn: str, tmp_path: Path) -> None:
    """The shared trace has its calls, from an engine without content."""
    async with Engine(
        models=registry(Say("One.")), store=PostgresStore(postgres_dsn, path=tmp_path / "p")
    ) as plain:
        await plain.session("s:m", session_id="x").send("Hi")
    async with node_engine("a", postgres_dsn, tmp_path) as a:
        for _ in range(2):
            with pytest.raises(CallboardError, match="its messages are not stored"):
                await a.open_session("x", model="s:m")


# Nodes in processes of their own that are killed or suspended, and the next owners of their sessions.

NODE = "from tests.support.cluster_node import main; main()"
LEASE = 2.0
with_nats = pytest.mark.skipif(why_no_nats() is not None, reason=str(why_no_nats()))


@pytest.fixture
def nats() -> Iterator[str]:
    with own_nats_server() as server:
        yield server.url


class Node:
    """A node in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines: IO[str] = process.stdout
        self.text = ""

    async def word(self, kind: str) -> str:
        """The next line of that kind. Lines with text before that line are collected."""
        while line := await anyio.to_thread.run_sync(self._lines.readline):
            said, _, rest = line.rstrip("\n").partition(" ")
            if said == "text":
                self.text += rest
            if said == kind:
                return rest
        raise AssertionError(f"the node ended without the line {kind}: {self._errors()}")

    async def streams(self, pieces: int) -> None:
        for _ in range(pieces):
            await self.word("text")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def _errors(self) -> str:
        return self.process.stderr.read() if self.process.stderr is not None else ""


@contextmanager
def node_at_work(dsn: str, nats: str, folder: Path) -> Iterator[Node]:
    with started(NODE, dsn, nats, folder, LEASE) as process:
        try:
            yield Node(process)
        finally:
            process.kill()


def other(dsn: str, nats: str | None, folder: Path, *replies: Say) -> Engine:
    return node_engine("b", dsn, folder, *replies, cluster={"nats": nats, "lease_seconds": LEASE})


async def turns_ended(dsn: str, folder: Path, session_id: str) -> list[str]:
    async with PostgresStore(dsn, path=folder / "reader") as store:
        events = await store.events(session_id=session_id, topic="session.turn_completed", limit=None)
        return [event.data.status for event in events if isinstance(event.data, SessionTurnCompleted)]


@with_nats
async def test_a_session_continues_after_its_node_was_killed(postgres_dsn: str, nats: str, tmp_path: Path) -> None:
    """The lease ends before the session continues. The delivered text is kept, and no request is repeated. The
    lost call counts the tokens of the text that the session's next owner keeps.
    """
    with node_at_work(postgres_dsn, nats, tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, nats, tmp_path, Say("Three.")) as engine:
            await node.streams(20)
            node.send(signal.SIGKILL)
            node.process.wait()
            with anyio.fail_after(LEASE + 15):
                session = await engine.resume(session_id)
            said = [message.text for message in session.messages]
            assert said[:3] == ["Hi", "One.", "Go on"]
            assert len(said) == 4
            assert said[3].startswith("w0 w1 w2 ")
            assert node.text.replace(" ", "").startswith(said[3].replace(" ", "")[:40])
            kept = session.messages[3].metadata.usage
            assert kept.source == "partial"
            # The file of the dead node arrives late and changes nothing.
            async with TraceStore(tmp_path / "a.db") as file:
                await file.close_lost_runs(delivered=node_of(engine).delivered)
                (lost,) = [call for call in await file.calls() if call.status == "failed"]
            assert (lost.error_class, lost.usage.output_tokens) == ("process_lost", kept.output_tokens)
            assert kept.output_tokens > 0
            await session.send("And now?")
    shipper = TraceShipper(tmp_path / "a.db", postgres_dsn)
    await shipper.ship()
    await shipper.close()
    async with PostgresStore(postgres_dsn, path=tmp_path / "reader") as store:
        saved = await store.saved_session(session_id)
        assert [message.text for message in saved.messages] == [*said, "And now?", "Three."]
        assert [row.session_id for row in await store.sessions()] == [session_id]
        calls = await store.calls()
    ends = await turns_ended(postgres_dsn, tmp_path, session_id)
    assert sorted(ends) == ["completed", "completed", "outcome_unknown"]
    assert sorted(call.status for call in calls) == ["completed", "completed", "failed"]
    assert len({(call.request_id, call.attempt) for call in calls}) == 3


@pytest.mark.deep("another way to lose a node")
async def test_without_a_broker_a_session_continues_without_unshipped_messages(
    postgres_dsn: str, tmp_path: Path
) -> None:
    with node_at_work(postgres_dsn, "", tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, None, tmp_path, Say("Three.")) as engine:
            await node.streams(60)  # This takes more than a second, so the earlier messages are shipped.
            node.send(signal.SIGKILL)
            with anyio.fail_after(LEASE + 15):
                session = await engine.resume(session_id)
            assert [message.text for message in session.messages] == ["Hi", "One."]
            await session.send("And now?")
    assert await turns_ended(postgres_dsn, tmp_path, session_id) == ["completed", "outcome_unknown", "completed"]


@pytest.mark.deep("another way to lose a node")
@with_nats
async def test_a_node_that_wakes_up_late_writes_nothing(postgres_dsn: str, nats: str, tmp_path: Path) -> None:
    """The turn of that node ends with SessionTakenOver, and with the status that other nodes have."""
    with node_at_work(postgres_dsn, nats, tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, nats, tmp_path, Say("Three.")) as engine:
            await node.streams(20)
            node.send(signal.SIGSTOP)
            with anyio.fail_after(LEASE + 15):
                session = await engine.resume(session_id)
            await session.send("And now?")
            said = [message.text for message in session.messages]
            node.send(signal.SIGCONT)
            with anyio.fail_after(10):
                assert await node.word("ended") == "SessionTakenOver outcome_unknown"
                await anyio.to_thread.run_sync(node.process.wait)
    ends = await turns_ended(postgres_dsn, tmp_path, session_id)
    assert sorted(ends) == ["completed", "completed", "outcome_unknown"]
    async with PostgresStore(postgres_dsn, path=tmp_path / "reader") as store:
        saved = await store.saved_session(session_id)
        assert [message.text for message in saved.messages] == said


@with_nats
async def test_an_owner_receives_the_request_for_its_session(
    postgres_dsn: str, nats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a broker the owner would have to poll."""
    from callboard.engine.nodes import ownership

    monkeypatch.setattr(ownership, "LOOK_SECONDS", 3600.0)
    lasting = {"nats": nats, "lease_seconds": 300.0}
    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), cluster=lasting) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Two."), cluster=lasting) as b,
    ):
        session = a.session("s:m")
        await session.send("Hi")
        with anyio.fail_after(10):
            there = await b.resume(session.id)
        assert (await there.send("And then?")).text == "Two."
