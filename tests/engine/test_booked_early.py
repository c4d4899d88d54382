"""What an engine books for calls that did not come to their end: in the error, in the events, in the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from callboard.adapters import AdapterConfig, CanonicalRequest, Message, StopReason, TokenUsage, UsageSource
from callboard.adapters.providers.scripted import ScriptedAdapter, ScriptedReply
from callboard.adapters.usage.unfinished import NOTHING_USED
from callboard.bus import AdapterError, CancelledError, Cost, CostSource, LlmCallFailed, Lossless, ServerError
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.streams.events import MessageStart, StreamEvent, TextDelta
from callboard.engine import Engine
from tests.support.engines import running, serving
from tests.support.scripted import Say, adapter_type
from callboard.tracestore import PriceRow, PriceTable

pytestmark = pytest.mark.anyio

PRICES = PriceTable([PriceRow(model="s:*", input=1_000_000, output=100_000_000)])
SAID = "word " * 200


def failures(events: list[object]) -> list[LlmCallFailed]:
    return [event for event in events if isinstance(event, LlmCallFailed)]


class Unmetered:
    """An adapter of somebody else's: it knows nothing of usage, and is crude."""

    def __init__(self, config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self._inner = ScriptedAdapter(config, name=name, clock=clock, replies=["never"])
        self.capabilities = self._inner.capabilities
        self.get_capabilities = self._inner.get_capabilities
        self.estimate_input_tokens = self._inner.estimate_input_tokens

    async def complete(self, request: CanonicalRequest, **_: object) -> object:
        raise LookupError("a bug")

    def stream(self, request: CanonicalRequest, **_: object) -> _Crashing:
        return _Crashing(request.message_id)

    async def cancel(self, request_id: str) -> bool:
        return False

    async def close(self) -> None:
        pass


class _Crashing:
    response = None

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id

    async def __aenter__(self) -> _Crashing:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        yield MessageStart(self._message_id, "m", "s")
        yield TextDelta(SAID, 0, self._message_id)
        await anyio.sleep(1)
        raise LookupError("a bug")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_adapter_that_crashes_and_counts_nothing_is_booked_by_estimate(streamed: bool) -> None:
    """What was sent, and what had come; and the meter had said the same."""
    async with Engine(models=serving(s=adapter_type(Unmetered)), trace=False, prices=PRICES) as engine:
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        stream = engine.stream("s:m", "Hi") if streamed else None
        with pytest.raises(AdapterError, match="a bug") as caught:
            if stream is None:
                await engine.generate("s:m", "Hi")
            else:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        meter = stream.usage_so_far.usage
        (end,) = failures([envelope.data for envelope in events.take()])
        usage = caught.value.usage
        assert usage is not None
        assert (usage, caught.value.cost) == (end.usage, end.cost)
        assert usage.source is UsageSource.ESTIMATED
        assert usage.input_tokens > 0
        assert (usage.output_tokens > 100) is streamed
        assert not streamed or meter == usage


async def test_what_failed_attempts_used_is_in_the_turn_s_cost() -> None:
    """Each attempt has usage and cost in its event, and no sum leaves one out."""

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ScriptedAdapter:
        broken = ScriptedReply("a part", usage=TokenUsage(700, 1), stop=StopReason.ERROR)
        fine = ScriptedReply("Fine.", usage=TokenUsage(10, 5))
        return ScriptedAdapter(config, name=name, clock=clock, replies=[broken, broken, fine])

    async with Engine(models=serving(s=adapter_type(make)), trace=False, prices=PRICES) as engine:
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        result = await engine.generate("s:m", "Hi")
        failed = failures([envelope.data for envelope in events.take()])
    assert [end.will_retry for end in failed] == [True, True]
    for end in failed:
        assert end.usage is not None
        assert (end.usage.input_tokens, end.usage.source) == (700, UsageSource.PARTIAL)
        assert end.cost is not None
    nano = [end.cost.nano_usd for end in failed if end.cost is not None]
    assert result.total_cost.nano_usd == sum(each or 0 for each in nano) + 10 * 1_000 + 5 * 100_000


async def test_a_call_that_is_refused_has_no_usage_and_costs_nothing() -> None:
    """Its error says so: a provider bills nothing for an error that it answers with."""
    async with running(Say(fails=ServerError("busy", provider_status=503)), prices=PRICES) as (engine, _):
        with pytest.raises(ServerError) as caught:
            await engine.generate("s:m", "Hi")
        assert caught.value.usage is None
        assert caught.value.cost is not None
        assert (caught.value.cost.usd, caught.value.cost.reason) == (
            0,
            "a provider bills nothing for an error that it answers with",
        )


async def test_a_call_that_is_cancelled_before_it_is_sent_costs_nothing() -> None:
    """It waited for its slot: nothing was sent, and that is known; the meter says the same."""
    held = anyio.Event()
    async with running(Say("Fine.", pause=held.wait), Say("never"), prices=PRICES) as (engine, events):
        first, second = engine.session("s:m"), engine.session("s:m")
        caught: list[CancelledError] = []

        async def waits() -> None:
            with pytest.raises(CancelledError) as cancelled:
                await second.send("Hi")
            caught.append(cancelled.value)

        async with anyio.create_task_group() as group:
            group.start_soon(first.send, "Hi")
            await anyio.sleep(1)
            slots = engine._runtime.adapters["s"].slots
            while slots.try_acquire():
                pass
            group.start_soon(waits)
            await anyio.sleep(1)
            await second.cancel()
            await anyio.sleep(1)
            held.set()
        (error,) = caught
        (end,) = failures([envelope.data for envelope in events.take()])
        assert error.usage == NOTHING_USED
        assert error.cost == end.cost == Cost(0, CostSource.COMPUTED, None, "nothing was sent")
        assert end.usage is None


async def test_the_message_of_a_cancelled_turn_has_what_it_used_and_cost() -> None:
    async with running(Say(SAID, SAID, pause=lambda: anyio.sleep(2)), prices=PRICES) as (engine, _):
        session = engine.session("s:m")
        async with anyio.create_task_group() as group:

            async def cancelled() -> None:
                with pytest.raises(CancelledError):
                    async with session.stream("Hi") as turn:
                        await turn.message()

            group.start_soon(cancelled)
            await anyio.sleep(3)
            await session.cancel()
        kept: Message = session.messages[-1]
        assert kept.text == SAID
        assert kept.metadata is not None
        assert kept.metadata.usage.source is UsageSource.PARTIAL  # the script says its usage at its start
        assert kept.metadata.usage.output_tokens > 100
        assert kept.metadata.cost.nano_usd is not None
        assert kept.metadata.cost.nano_usd > 100 * 100_000
