"""Where a call goes while a provider, a model or an adapter is in trouble, and until it is tried again."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters import AdapterCapabilities, AdapterConfig, AdapterError, AuthError, NotFoundError, RateLimitError
from callboard.bus import Candidate, ConfigurationError, NoModelAvailable
from callboard.engine import Engine
from tests.support.engines import serving
from tests.support.scripted import CAPABILITIES, Say, adapter_type, scripted_type

from .routed_engines import rig, routing_of

pytestmark = pytest.mark.anyio


async def test_an_unavailable_model_is_skipped_until_one_call_probes_it() -> None:
    """A refused key sends all calls on to the fallback, until the long cool-down is over."""
    a = [Say(fails=AuthError("x", provider_status=401)), Say("a is back")]
    async with rig(a=a, b=[Say("1"), Say("2")]) as at:
        session = at.engine.session(["a:m", "b:m"])
        assert (await session.send("x")).text == "1"
        assert at.engine.availability.state("a") == "unavailable"
        at.calls()
        message = await session.send("x")
        assert message.text == "2"
        assert at.calls() == [("started", "b:m"), ("completed", "b:m")]
        assert routing_of(message).candidates[0] == Candidate("a:m", "unavailable (key refused)")
        at.clock.advance(601)
        assert (await session.send("x")).text == "a is back"
        assert at.engine.availability.state("a") == "available"
        at.calls()
        changes = [e.data.current for e in at.seen if e.topic == "provider.availability_changed"]  # type: ignore[attr-defined]
        assert changes == ["unavailable", "probing", "available"]


async def test_while_one_call_probes_the_others_go_elsewhere() -> None:
    """Two turns in the same tick don't both probe."""
    slow = Say("probe", pause=lambda: anyio.sleep(5))
    async with rig(a=[Say(fails=AuthError("x")), slow], b=[Say("1"), Say("2")]) as at:
        await at.engine.session(["a:m", "b:m"]).send("x")
        at.clock.advance(601)
        texts: list[str] = []

        async def send() -> None:
            texts.append((await at.engine.session(["a:m", "b:m"]).send("x")).text)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            group.start_soon(send)
        assert texts == ["2", "probe"]


async def test_a_session_that_names_one_model_is_never_refused() -> None:
    """Unavailable or not, the call goes out: it is the probe."""
    async with rig(a=[Say(fails=AuthError("x")), Say("back")]) as at:
        session = at.engine.session("a:m")
        with pytest.raises(AuthError):
            await session.send("x")
        assert at.engine.availability.state("a", "a:m") == "unavailable"
        assert (await session.send("x")).text == "back"
        assert at.engine.availability.state("a", "a:m") == "available"


async def test_a_chain_of_unavailable_models_is_refused_with_the_reasons() -> None:
    """Nothing is sent, and the error says which model is unavailable and why."""
    async with rig(a=[Say(fails=AuthError("x"))], b=[Say(fails=AuthError("x"))]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with pytest.raises(AuthError):
            await session.send("x")
        at.calls()
        with pytest.raises(NoModelAvailable, match=r"a:m: unavailable \(key refused\); b:m: unavailable"):
            await session.send("x")
        assert at.calls() == []


async def test_a_refusal_says_when_the_first_candidate_may_be_tried_again() -> None:
    """The least of the waits of those that could serve; one that waits for provider and model waits for both."""
    async with rig(a=[Say(fails=AuthError("x")), Say("back")], b=[Say(fails=NotFoundError("x"))]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with pytest.raises(NotFoundError):
            await session.send("x")
        at.clock.advance(60)
        now_us = at.clock.now_us()
        for change in at.engine.availability.crashed("b", now_us):  # for 30 s, while its model waits 540 s
            at.engine.bus.publish(change)
        with pytest.raises(NoModelAvailable) as caught:
            await session.send("x")
        assert caught.value.retry_after_seconds == pytest.approx(540)
        at.clock.advance(540)
        assert (await session.send("x")).text == "back"


async def test_while_all_candidates_are_being_probed_nobody_knows_when() -> None:
    """A probe's end is not known beforehand, so the refusal names no time."""
    gate = anyio.Event()
    a = [Say(fails=AuthError("x")), Say("a", pause=gate.wait)]
    b = [Say(fails=AuthError("x")), Say("b", pause=gate.wait)]
    async with rig(a=a, b=b) as at:
        session, other = at.engine.session(["a:m", "b:m"]), at.engine.session(["a:m", "b:m"])
        with pytest.raises(AuthError):
            await session.send("x")
        at.clock.advance(601)
        async with anyio.create_task_group() as group:
            group.start_soon(session.send, "x")
            group.start_soon(other.send, "x")
            await anyio.sleep(1)
            with pytest.raises(NoModelAvailable, match="being probed") as caught:
                await at.engine.session(["a:m", "b:m"]).send("x")
            assert caught.value.retry_after_seconds is None
            gate.set()


async def test_a_rate_limited_model_comes_after_those_that_are_ready() -> None:
    """Until the pause that the provider asked for is over, the chain begins with the next."""
    a = [Say(fails=RateLimitError("slow down", retry_after_seconds=30)), Say("a")]
    async with rig(a=a, b=[Say("1"), Say("2")]) as at:
        session = at.engine.session(["a:m", "b:m"])
        assert (await session.send("x")).text == "1"
        message = await session.send("x")
        assert message.text == "2"
        assert routing_of(message).candidates[0] == Candidate("a:m", "degraded (rate_limit: RateLimitError)")
        at.clock.advance(31)
        assert (await session.send("x")).text == "a"


async def test_an_adapter_that_does_not_start_is_a_reason_to_fall_back() -> None:
    """It makes its provider unavailable, and the turn goes on elsewhere."""
    registry = serving(a=adapter_type(DoesNotStart), b=scripted_type(Say("b")))
    async with Engine(models=registry, trace=False) as engine:
        assert (await engine.session(["a:m", "b:m"]).send("x")).text == "b"
        assert [(r.provider, r.state, r.reason) for r in engine.availability.snapshot()] == [
            ("a", "unavailable", "adapter_crashed")
        ]
        with pytest.raises(AdapterError, match="adapter 'a' does not start: RuntimeError: no luck"):
            await engine.session("a:m").send("x")


async def test_an_adapter_that_cannot_even_be_made_is_passed_over() -> None:
    """Whatever its constructor raises is a mistake in the configuration, told with the adapter's name."""
    registry = serving(a=adapter_type(CannotBeMade), b=scripted_type(Say("b")))
    async with Engine(models=registry, trace=False) as engine:
        assert (await engine.session(["a:m", "b:m"]).send("x")).text == "b"
        with pytest.raises(ConfigurationError, match="adapter 'a' can't be made: KeyError: 'region'"):
            await engine.session("a:m").send("x")


async def test_an_adapter_at_its_restart_limit_is_unavailable_until_a_probe_starts_it_afresh() -> None:
    """The supervisor gives up, the table says adapter_crashed, and the probe finds a new actor."""
    async with rig(a=[Say("1"), Say("2")], b=[Say("b")]) as at:
        session = at.engine.session(["a:m", "b:m"])
        await session.send("x")
        ref = at.engine._runtime.adapters["a"].ref
        for _ in range(5):
            ref.tell("nonsense")  # which crashes the actor
            await anyio.sleep(5.5)
        assert not ref.running
        (row,) = at.engine.availability.snapshot()
        assert (row.provider, row.state, row.reason) == ("a", "unavailable", "adapter_crashed")
        assert (await session.send("x")).text == "b"
        at.clock.advance(31)
        assert (await session.send("x")).text == "2"
        assert ref.running
        assert at.engine.availability.snapshot() == ()


class CannotBeMade:
    """An adapter that misses an option."""

    def __init__(self, config: AdapterConfig, **others: object) -> None:
        raise KeyError("region")


class DoesNotStart:
    """An adapter whose server can't be had."""

    capabilities = CAPABILITIES

    def __init__(self, config: AdapterConfig, **others: object) -> None:
        self.name = "a"

    async def initialize(self) -> None:
        raise RuntimeError("no luck")

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return CAPABILITIES

    def estimate_input_tokens(self, *parts: object, **others: object) -> int:
        return 1

    async def close(self) -> None:
        pass
