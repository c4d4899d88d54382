"""What is found about an engine's neighbours, and the remedy beside it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.bus import NodeBrokerChanged
from callboard.engine import Check, Cluster, Engine
from callboard.engine.cli.command_line import main
from callboard.engine.nodes.node import check_broker
from tests.support.engines import registry
from tests.support.nats_server import NatsServer, why_no_nats
from tests.support.scripted import Say

pytestmark = [pytest.mark.skipif(why_no_nats() is not None, reason=why_no_nats() or "")]


async def named(engine: Engine, prefix: str) -> list[Check]:
    report = await engine.health(offline=True)
    return [check for check in report.checks if check.name.startswith(prefix)]


async def test_an_engine_tells_of_its_broker_and_of_what_went_out(server: NatsServer, tmp_path: Path) -> None:
    """With what goes on while the broker is away."""
    engine = Engine(models=registry(Say("Hello.")), store=tmp_path / "trace.db", cluster=Cluster(nats=server.url))
    async with engine:
        with anyio.fail_after(10):
            while not (await named(engine, "broker"))[0].ok:  # noqa: ASYNC110 (a turn may be over before it is)
                await anyio.sleep(0.01)
        await engine.session("s:m").send("Hi")
        await engine.flush()
        node = engine._runtime.node
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


async def test_a_broker_that_can_not_be_used_is_told_without_its_password(server: NatsServer) -> None:
    """One that isn't there, and one that keeps no messages."""
    port = server.port
    server.stop()
    (check,) = await check_broker(f"nats://user:secret@127.0.0.1:{port}", "callboard")
    assert not check.ok
    assert "secret" not in repr(check)
    server.start(jetstream=False)
    (check,) = await check_broker(server.url, "callboard")
    assert not check.ok
    assert "JetStream is off" in check.detail


def test_the_doctor_looks_at_a_broker(server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Of whatever cluster is named."""
    main(["doctor", "--offline", "--nats", server.url, "--cluster", "other"])
    assert "no events of this cluster yet" in capsys.readouterr().out
