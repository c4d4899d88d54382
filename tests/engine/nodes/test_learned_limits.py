"""What one node learns of a provider's rate limits, all nodes act by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from callboard.adapters import AdapterConfig, RateLimitError, RateLimitWaitError
from callboard.engine import Cluster, Engine
from callboard.engine.models.entries import AdapterEntry
from callboard.engine.nodes.availability import TELL_SECONDS, LearnedLimits
from callboard.engine.rate_limits.account import Reading
from callboard.engine.rate_limits.gate import Headers, Lesson
from callboard.engine.rate_limits.rate_limits import RateLimits
from tests.support.engines import entry, serving
from tests.support.nats_server import own_nats_server, why_no_nats
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import run_virtual

ENTRY = AdapterEntry(name="s", type="scripted", config=AdapterConfig())


class Wire:
    """A broker whose messages arrive at once, at everybody."""

    def __init__(self) -> None:
        self.receivers: list[Callable[[str, bytes, str], None]] = []
        self.sent_at: list[float] = []

    def publish(self, subject: str, payload: bytes, /) -> bool:
        self.sent_at.append(anyio.current_time())
        for receive in self.receivers:
            receive(subject, payload, "")
        return True

    async def subscribe(self, _subject: str, receive: Callable[[str, bytes, str], None], /) -> object:
        self.receivers.append(receive)
        return self


class Host:
    """A node, and the limits of its engine."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.part = LearnedLimits(name, "c", wire)
        self.limits = RateLimits()
        self.part.share(self.limits)

    def goes(self) -> bool:
        """Whether a request would go at once. The first one makes the gate."""
        return self.limits.permit(ENTRY, "", "s:m", 0, (1, 0)).ask()


async def both(wire: Wire, say: Callable[[Host, Host], Awaitable[object]]) -> Host:
    """Two nodes at work, of which the first one learns something. Returns the second one."""
    one, other = Host(wire, "one"), Host(wire, "other")
    async with anyio.create_task_group() as group:
        for host in (one, other):
            group.start_soon(host.part.run)
        await anyio.sleep(0.01)
        await say(one, other)
        await anyio.sleep(2 * TELL_SECONDS)
        group.cancel_scope.cancel()
    return other


def refused(seconds: float) -> Lesson:
    return Lesson("s:m", pause_us=round(seconds * 1e6))


def left(requests: float) -> Lesson:
    return Lesson("s:m", Headers(Reading(10.0, requests, 60_000_000)), opens=True)


@pytest.mark.parametrize("used", [True, False])
def test_a_refusal_of_one_node_keeps_the_others_away(used: bool) -> None:
    """Also one that has not used the provider yet, and only for as long as was said."""

    async def work() -> None:
        async def say(one: Host, other: Host) -> None:
            if used:
                assert other.goes()
            one.part.note("s", "", refused(10.0))

        other = await both(Wire(), say)
        assert not other.goes()
        await anyio.sleep(8)
        assert not other.goes(), "whoever waits already goes first"
        (line,) = other.limits.queues("s")
        assert line.why == "probe"

    run_virtual(work)


def test_what_is_left_is_told_once_in_a_second() -> None:
    """However many replies say so; the last one counts."""

    async def work() -> None:
        wire = Wire()

        async def say(one: Host, _: Host) -> None:
            for number in range(20):
                one.part.note("s", "", left(20.0 - number))
                await anyio.sleep(0.1)

        other = await both(wire, say)
        assert [round(at, 1) for at in wire.sent_at] == [0.0, 1.0, 2.0]
        assert [other.goes() for _ in range(2)] == [True, False]

    run_virtual(work)


def test_a_refusal_is_told_at_once() -> None:
    """Though something was told a moment ago."""

    async def work() -> None:
        wire = Wire()

        async def say(one: Host, _: Host) -> None:
            for lesson in (left(5.0), left(4.0), refused(5.0)):
                one.part.note("s", "", lesson)
                await anyio.sleep(0.1)

        await both(wire, say)
        assert [round(at, 1) for at in wire.sent_at] == [0.0, 0.2]

    run_virtual(work)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.skipif(why_no_nats() is not None, reason=str(why_no_nats()))
async def test_an_engine_sends_nothing_to_a_provider_that_has_refused_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows when there is room again."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    config = AdapterConfig(max_wait_seconds=0)
    refusal = Say(fails=RateLimitError("slow down", retry_after_seconds=30.0, retryable=True, provider="s"))

    def node(reply: Say, nats: str) -> Engine:
        models = serving(s=entry("s", scripted_type(reply), config))
        return Engine(models=models, trace=False, cluster=Cluster(nats=nats))

    with own_nats_server() as server:
        async with node(refusal, server.url) as a, node(Say("Hello."), server.url) as b:
            for engine in (a, b):
                broker = engine._runtime.node.broker  # type: ignore[union-attr]
                assert broker is not None
                with anyio.fail_after(10):
                    while not broker.connected:  # noqa: ASYNC110
                        await anyio.sleep(0.005)
            with pytest.raises(RateLimitError, match="slow down"):
                await a.generate("s:m", "Hi")
            with anyio.fail_after(10):
                while not b._runtime.rate_limits._heard:  # noqa: ASYNC110
                    await anyio.sleep(0.005)
            with pytest.raises(RateLimitWaitError) as waits:
                await b.generate("s:m", "Hi")
            assert waits.value.retry_after_seconds is not None
            assert 20 < waits.value.retry_after_seconds <= 30
