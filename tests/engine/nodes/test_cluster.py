"""The options of a cluster, the life of a node's parts in its engine, and the errors of a wrong setup."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import anyio
import pytest

from callboard.adapters import CanonicalRequest
from callboard.bus import ConfigurationError, NodeBrokerChanged
from callboard.engine import Check, Cluster, Engine
from callboard.engine.cli.command_line import main
from callboard.engine.nodes import node
from callboard.engine.nodes.broker import check_broker
from tests.support.cluster_engines import node_of
from tests.support.engines import keeping, registry, serving
from tests.support.nats_server import NatsServer, why_no_nats
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
def test_wrong_options_of_a_cluster_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Cluster(**wrong)
    assert "p@ss" not in str(refused.value)


def test_the_trace_is_shipped_to_the_store_of_the_cluster() -> None:
    cluster = Cluster(store=STORE)
    assert cluster.ships_to(None, from_file=True) == STORE
    assert cluster.ships_to(STORE, from_file=True) == STORE
    assert cluster.ships_to(None, from_file=False) is None
    assert Cluster(nats="nats://h").ships_to(None, from_file=True) is None
    with pytest.raises(ConfigurationError, match="Leave out ship_to"):
        cluster.ships_to("postgresql://u@elsewhere/d", from_file=True)


class Recorder:
    """A part that records its calls."""

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
    node_of(engine).parts = [part]
    return engine, part


async def test_parts_start_with_the_engine_and_end_in_two_steps(tmp_path: Path) -> None:
    """A part drains after the turns end, while the trace is open. It closes after everything else."""
    engine, part = engine_with(tmp_path)
    async with engine:
        await engine.session("s:m").send("Hi")
        await part.up.wait()
    assert part.said == ["run", "stopped", "drain, store open", "close, store closed"]


async def test_a_part_that_crashes_is_restarted(tmp_path: Path) -> None:
    engine, part = engine_with(tmp_path, fails=1)
    async with engine:
        with anyio.fail_after(10):
            await part.up.wait()
    assert part.said[:3] == ["run", "run", "stopped"]


async def test_a_part_that_hangs_delays_the_end_for_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is cancelled, and the other steps follow."""
    monkeypatch.setattr(node, "PART_SECONDS", 0.01)
    engine, part = engine_with(tmp_path, stuck=True)
    with anyio.fail_after(10):
        async with engine:
            await part.up.wait()
    assert part.said[-2:] == ["drain, store open", "close, store closed"]


async def test_a_sent_call_has_a_row_if_the_node_dies(tmp_path: Path) -> None:
    """The file of a process that dies during the request has a row for the call, so the shared sums include the
    call.
    """
    (alive := tmp_path / "alive").mkdir()
    dead = tmp_path / "dead"

    class Dying(ScriptedAdapter):
        def say(self, request: CanonicalRequest) -> Say:
            copytree(alive, dead)  # The copy is the folder that a kill would leave.
            return super().say(request)

    models = serving(s=scripted_type(Say("One."), base=Dying))
    async with keeping(alive / "a.db", models=models, cluster=Cluster(nats="nats://127.0.0.1:1")) as engine:
        await engine.generate("s:m", "Hi")
    async with keeping(dead / "a.db") as after:
        await after._runtime.host.settle()
        await after.store.close_lost_runs()
        (call,) = await after.store.calls()
    assert (call.status, call.error_class) == ("failed", "process_lost")


# Checks of the other parts of a cluster, with advice.


with_nats = pytest.mark.skipif(why_no_nats() is not None, reason=why_no_nats() or "")


async def named(engine: Engine, prefix: str) -> list[Check]:
    report = await engine.health(offline=True)
    return [check for check in report.checks if check.name.startswith(prefix)]


@with_nats
async def test_the_health_report_has_the_broker_and_the_sent_events(server: NatsServer, tmp_path: Path) -> None:
    """If the broker is down, the report names the parts that continue."""
    engine = Engine(models=registry(Say("Hello.")), store=tmp_path / "trace.db", cluster=Cluster(nats=server.url))
    async with engine:
        with anyio.fail_after(10):
            while not (await named(engine, "broker"))[0].ok:  # noqa: ASYNC110 (a turn can end before it is ok)
                await anyio.sleep(0.01)
        await engine.session("s:m").send("Hi")
        await engine.flush()
        node = node_of(engine)
        with anyio.fail_after(10):
            while node.bridge.statistics().sent < node.bridge.statistics().committed:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        (broker,) = await named(engine, "broker")
        assert broker.ok
        assert "MB of this cluster's events, and " in broker.detail
        (events,) = await named(engine, "node:events")
        assert (events.ok, events.detail) == (True, f"{node.bridge.statistics().sent} sent")
        (streams,) = await named(engine, "node:streams")
        sent = node.frames.sender.statistics().frames  # type: ignore[union-attr]
        assert sent > 0
        assert streams.detail == f"0 open, {sent} frames sent (0.0 MB); 0 of other nodes read here"
        changes = engine.bus.subscribe("nodes.broker_changed")
        server.stop()
        assert (await anext(changes)).data == NodeBrokerChanged(
            broker=server.url.removeprefix("nats://"), current="away"
        )
        (broker,) = await named(engine, "broker")
        assert not broker.ok
        assert "calls, traces, accounting and sessions continue" in broker.fix


@with_nats
async def test_the_check_of_an_unusable_broker_has_no_password(server: NatsServer) -> None:
    port = server.port
    server.stop()
    (check,) = await check_broker(f"nats://user:secret@127.0.0.1:{port}", "callboard")
    assert not check.ok
    assert "secret" not in repr(check)
    server.start(jetstream=False)
    (check,) = await check_broker(server.url, "callboard")
    assert not check.ok
    assert "JetStream is off" in check.detail


@with_nats
def test_the_doctor_checks_a_broker(server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--offline", "--nats", server.url, "--cluster", "other"])
    assert "no events of this cluster yet" in capsys.readouterr().out
