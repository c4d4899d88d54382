"""Turns under way while the shared store is out of reach for longer than a lease; and nodes without a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from callboard.bus import SessionTakenOver
from callboard.engine import Cluster, Engine
from callboard.engine.watching.health import check_store
from callboard.tracestore import PostgresStore
from tests.support.cluster_engines import node_engine
from tests.support.engines import registry
from tests.support.postgres_server import own_server, why_not
from tests.support.scripted import Say

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

LEASE = 1.5


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


def held_after_the_first(gate: anyio.Event) -> Callable[[], Awaitable[None]]:
    steps = iter(range(99))

    async def pause() -> None:
        if next(steps):
            await gate.wait()

    return pause


@asynccontextmanager
async def lease_over(engine: Engine) -> AsyncIterator[None]:
    """The block is entered when the engine's lease is over."""
    with engine.bus.subscribe("nodes.lease_changed") as told:
        assert (await anext(aiter(told))).data.current == "over"  # type: ignore[attr-defined]
        yield


async def test_a_turn_outlives_a_lease_that_nobody_used(tmp_path: Path) -> None:
    """The store is back when the turn ends, and the session is still this node's."""
    gate = anyio.Event()
    with own_server() as server, server.database() as dsn:
        replies = (Say("One."), Say("Two", "three", pause=held_after_the_first(gate)))
        async with node_engine("a", dsn, tmp_path, *replies, cluster={"lease_seconds": LEASE}) as a:
            session = a.session("s:m")
            await session.send("Hi")
            async with session.stream("Go on") as turn:
                await anext(aiter(turn))
                server.stop("immediate")
                async with lease_over(a):
                    server.start()
                    gate.set()
                    assert (await turn.result()).status == "completed"
            assert [message.text for message in session.messages][-1] == "Twothree"


async def test_a_turn_that_can_not_ask_whose_its_session_is_has_an_unknown_outcome(tmp_path: Path) -> None:
    """It waits for a lease's length, and keeps what was said."""
    gate = anyio.Event()
    with own_server() as server, server.database() as dsn:
        replies = (Say("One."), Say("Two", "three", pause=held_after_the_first(gate)))
        async with node_engine("a", dsn, tmp_path, *replies, cluster={"lease_seconds": LEASE}) as a:
            session = a.session("s:m")
            await session.send("Hi")
            async with session.stream("Go on") as turn:
                await anext(aiter(turn))
                server.stop("immediate")
                async with lease_over(a):
                    gate.set()
                    with pytest.raises(SessionTakenOver, match="can't be asked") as lost:
                        await turn.result()
            assert lost.value.turn is not None
            assert lost.value.turn.status == "outcome_unknown"
            assert [message.text for message in session.messages][-1] == "Twothree"
        server.start()


async def test_nodes_whose_traces_are_on_the_server_share_sessions_too(postgres_dsn: str, tmp_path: Path) -> None:
    """Nothing is shipped: what was said is there when it is committed."""

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
            *("Hi", "One.", "And then?", "Two.", "And now?", "Three."),
        ]
    async with PostgresStore(postgres_dsn, path=tmp_path / "reader") as store:
        saved = await store.saved_session(session.id)
        assert saved is not None
        assert len(saved.messages) == 6
        assert [row.session_id for row in await store.sessions()] == [session.id]


async def test_the_doctor_lists_the_nodes_that_share_a_trace(postgres_dsn: str, tmp_path: Path) -> None:
    """From anywhere, by the server alone; and a node names the others."""
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


async def test_an_engine_that_captures_nothing_looks_into_the_shared_trace(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """What would be sent in another node's session can be asked anywhere."""
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        await a._runtime.host.share()
        cluster = Cluster(store=postgres_dsn, node="c")
        models, path = registry(Say("Two.")), tmp_path / "c.db"
        async with Engine(models=models, store=path, cluster=cluster) as c:
            seen = await c.preview(session.id, "And then?")
            assert seen.input_tokens == (await a.preview(session.id, "And then?")).input_tokens
