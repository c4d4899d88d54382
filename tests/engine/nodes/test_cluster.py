"""What a host says of a cluster, and how the parts of a node live with their engine."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import anyio
import pytest

from callboard.adapters import CanonicalRequest
from callboard.bus import ConfigurationError
from callboard.engine import Cluster, Engine
from callboard.engine.nodes import node
from tests.support.engines import keeping, registry, serving
from tests.support.scripted import Say, ScriptedAdapter, scripted_type

STORE = "postgresql://u@127.0.0.1:1/d"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"nats": "nats://h", "name": ""},
        {"nats": "nats://h", "name": "a.b"},
        {"nats": "nats://h", "name": "a b"},
        {"store": "trace.db"},
        {"store": "postgresql://u:p@ss@h/d"},
        {"store": STORE, "lease_seconds": 0},
        {"store": STORE, "frame_seconds": -1},
        {"store": STORE, "frame_bytes": 0},
    ],
    ids=str,
)
def test_a_cluster_that_can_not_be_is_refused(wrong: dict[str, Any]) -> None:
    """Before anything starts, and without the password."""
    with pytest.raises(ConfigurationError) as refused:
        Cluster(**wrong)
    assert "p@ss" not in str(refused.value)


def test_the_trace_is_shipped_to_the_store_of_the_cluster() -> None:
    """Where it is a file; and nowhere else."""
    cluster = Cluster(store=STORE)
    assert cluster.ships_to(None, from_file=True) == STORE
    assert cluster.ships_to(STORE, from_file=True) == STORE
    assert cluster.ships_to(None, from_file=False) is None
    assert Cluster(nats="nats://h").ships_to(None, from_file=True) is None
    with pytest.raises(ConfigurationError, match="Leave out ship_to"):
        cluster.ships_to("postgresql://u@elsewhere/d", from_file=True)


class Recorder:
    """A part that notes what happens to it."""

    name = "recorder"

    def __init__(self, engine: Engine, fails: int = 0, stuck: bool = False) -> None:
        self.said: list[str] = []
        self.engine = engine
        self.fails = fails
        self.stuck = stuck
        self.up = anyio.Event()

    async def run(self) -> None:
        self.said.append("run")
        if self.fails:
            self.fails -= 1
            raise RuntimeError("broken")
        self.up.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.said.append("stopped")

    async def drain(self) -> None:
        assert self.engine.store is not None
        self.said.append(f"drain, store {'open' if self.engine.store.is_open else 'closed'}")
        if self.stuck:
            await anyio.sleep_forever()

    async def close(self) -> None:
        assert self.engine.store is not None
        self.said.append(f"close, store {'open' if self.engine.store.is_open else 'closed'}")


def engine_with(tmp_path: Path, **options: Any) -> tuple[Engine, Recorder]:
    engine = Engine(models=registry(Say("Hello.")), store=tmp_path / "trace.db", cluster=Cluster(nats="nats://h"))
    part = Recorder(engine, **options)
    engine._runtime.node.parts = [part]
    return engine, part


async def test_parts_begin_with_the_engine_and_end_in_two_steps(tmp_path: Path) -> None:
    """Behind the turns, the trace still open; and at last, when everything else is over."""
    engine, part = engine_with(tmp_path)
    async with engine:
        await engine.session("s:m").send("Hi")
        await part.up.wait()
    assert part.said == ["run", "stopped", "drain, store open", "close, store closed"]


async def test_a_part_that_crashes_is_started_again(tmp_path: Path) -> None:
    """By its supervisor."""
    engine, part = engine_with(tmp_path, fails=1)
    async with engine:
        with anyio.fail_after(10):
            await part.up.wait()
    assert part.said[:3] == ["run", "run", "stopped"]


async def test_a_part_that_hangs_holds_the_end_up_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off, and what follows is done all the same."""
    monkeypatch.setattr(node, "PART_SECONDS", 0.01)
    engine, part = engine_with(tmp_path, stuck=True)
    with anyio.fail_after(10):
        async with engine:
            await part.up.wait()
    assert part.said[-2:] == ["drain, store open", "close, store closed"]


async def test_a_call_that_was_sent_is_on_record_whatever_becomes_of_the_node(tmp_path: Path) -> None:
    """What a process leaves that dies with the request under way has a row for it: nothing that was paid for is
    missing in the shared sums.
    """
    (alive := tmp_path / "alive").mkdir()
    dead = tmp_path / "dead"

    class Dying(ScriptedAdapter):
        def say(self, request: CanonicalRequest) -> Say:
            copytree(alive, dead)  # which is what a kill would leave
            return super().say(request)

    models = serving(s=scripted_type(Say("One."), base=Dying))
    async with keeping(alive / "a.db", models=models, cluster=Cluster(nats="nats://127.0.0.1:1")) as engine:
        await engine.generate("s:m", "Hi")
    async with keeping(dead / "a.db") as after:
        await after._runtime.host.settle()
        await after.store.close_lost_runs()
        (call,) = await after.store.calls()
    assert (call.status, call.error_class) == ("failed", "process_lost")
