"""Nodes in processes of their own that are killed or suspended at work, and what becomes of their sessions."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
import pytest

from callboard.bus import SessionTurnCompleted
from callboard.engine import Engine
from callboard.tracestore import PostgresStore, TraceShipper, TraceStore
from tests.support.cluster_engines import node_engine
from tests.support.nats_server import own_nats_server, why_no_nats
from tests.support.postgres_server import why_not
from tests.support.programs import started
from tests.support.scripted import Say

NODE = "from tests.support.cluster_node import main; main()"
LEASE = 2.0

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
with_nats = pytest.mark.skipif(why_no_nats() is not None, reason=str(why_no_nats()))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


@pytest.fixture
def nats() -> Iterator[str]:
    with own_nats_server() as server:
        yield server.url


class Node:
    """A node at work in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines: IO[str] = process.stdout
        self.text = ""

    async def word(self, kind: str) -> str:
        """The next line of that kind; text is noted on the way."""
        while line := await anyio.to_thread.run_sync(self._lines.readline):
            said, _, rest = line.rstrip("\n").partition(" ")
            if said == "text":
                self.text += rest
            if said == kind:
                return rest
        raise AssertionError(f"it ended without saying {kind}: {self._errors()}")

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
async def test_a_session_goes_on_where_a_killed_node_was(postgres_dsn: str, nats: str, tmp_path: Path) -> None:
    """Within the lease and a second; with the text that had come, and without anything asked again."""
    with node_at_work(postgres_dsn, nats, tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, nats, tmp_path, Say("Three.")) as engine:
            await node.streams(20)
            node.send(signal.SIGKILL)
            with anyio.fail_after(LEASE + 1):
                session = await engine.resume(session_id)
            said = [message.text for message in session.messages]
            assert said[:3] == ["Hi", "One.", "Go on"]
            assert len(said) == 4
            assert said[3].startswith("w0 w1 w2 ")
            assert node.text.replace(" ", "").startswith(said[3].replace(" ", "")[:40])
            assert session.messages[3].metadata is not None
            assert session.messages[3].metadata.usage.source == "partial"
            await session.send("And now?")
    # The file of the dead node comes late, and changes nothing.
    async with TraceStore(tmp_path / "a.db") as file:
        await file.close_lost_runs()
    shipper = TraceShipper(tmp_path / "a.db", postgres_dsn)
    await shipper.ship()
    await shipper.close()
    async with PostgresStore(postgres_dsn, path=tmp_path / "reader") as store:
        saved = await store.saved_session(session_id)
        assert saved is not None
        assert [message.text for message in saved.messages] == [*said, "And now?", "Three."]
        assert [row.session_id for row in await store.sessions()] == [session_id]
        calls = await store.calls()
    ends = await turns_ended(postgres_dsn, tmp_path, session_id)
    assert sorted(ends) == ["completed", "completed", "outcome_unknown"]
    assert sorted(call.status for call in calls) == ["completed", "completed", "failed"]
    assert len({(call.request_id, call.attempt) for call in calls}) == 3


async def test_without_a_broker_what_was_not_shipped_is_missing_and_the_rest_goes_on(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """The stored history is what there is."""
    with node_at_work(postgres_dsn, "", tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, None, tmp_path, Say("Three.")) as engine:
            await node.streams(60)  # more than a second, in which what came before is shipped
            node.send(signal.SIGKILL)
            with anyio.fail_after(LEASE + 1):
                session = await engine.resume(session_id)
            assert [message.text for message in session.messages] == ["Hi", "One."]
            await session.send("And now?")
    assert await turns_ended(postgres_dsn, tmp_path, session_id) == ["completed", "outcome_unknown", "completed"]


@with_nats
async def test_a_killed_nodes_call_counts_the_output_that_readers_elsewhere_got(
    postgres_dsn: str, nats: str, tmp_path: Path
) -> None:
    """The call is counted with the tokens of the text that the next owner of the session keeps."""
    with node_at_work(postgres_dsn, nats, tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, nats, tmp_path) as engine:
            await node.streams(20)
            node.send(signal.SIGKILL)
            node.process.wait()
            session = await engine.resume(session_id)
            kept = session.messages[-1]
            assert kept.metadata is not None
            assert engine._runtime.node is not None
            async with TraceStore(tmp_path / "a.db") as file:
                await file.close_lost_runs(delivered=engine._runtime.node.delivered)
                (lost,) = [call for call in await file.calls() if call.status == "failed"]
    assert lost.error_class == "process_lost"
    assert lost.usage is not None
    assert lost.usage.output_tokens == kept.metadata.usage.output_tokens > 0


@with_nats
async def test_a_suspended_node_that_wakes_writes_nothing_more_into_the_session(
    postgres_dsn: str, nats: str, tmp_path: Path
) -> None:
    """Its turn ends with SessionTakenOver, and as everybody else has been told."""
    with node_at_work(postgres_dsn, nats, tmp_path) as node:
        session_id = await node.word("session")
        async with other(postgres_dsn, nats, tmp_path, Say("Three.")) as engine:
            await node.streams(20)
            node.send(signal.SIGSTOP)
            with anyio.fail_after(LEASE + 1):
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
        assert saved is not None
        assert [message.text for message in saved.messages] == said


@with_nats
async def test_an_owner_hears_that_its_session_is_waited_for(
    postgres_dsn: str, nats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not look for it, as it has to without a broker."""
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
