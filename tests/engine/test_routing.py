"""The routing of a call, and fallbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
import pytest

from callboard.adapters import (
    AdapterCapabilities,
    AdapterConfig,
    AdapterError,
    AudioBlock,
    AuthError,
    CanonicalRequest,
    CapabilityError,
    ContextOverflowError,
    DocumentBlock,
    ImageBlock,
    InvalidRequestError,
    Message,
    NetworkError,
    NotFoundError,
    RateLimitError,
    ServerError,
    TextBlock,
    TextDelta,
    ToolChoice,
    ToolDefinition,
)
from callboard.bus import (
    CallboardError,
    Candidate,
    ConfigurationError,
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Lossless,
    NoModelAvailable,
    PromptTooLongError,
    RoutingDecision,
    Subscription,
)
from callboard.engine import Engine, ModelChoice, ModelDefaults, ModelEntry, Requirements, Tool
from callboard.engine.routing.model_choice import TurnRequirements, check, model_text
from callboard.tracestore import PriceRow, PriceTable

from ..support.engines import entry, model, requests_of, said, serving
from ..support.scripted import CAPABILITIES, Say, adapter_type, scripted_type
from ..support.virtual_time import FakeClock


@dataclass
class Rig:
    """An engine with one scripted adapter for each keyword, its events and its clock."""

    engine: Engine
    events: Subscription
    clock: FakeClock
    seen: list[Envelope] = field(default_factory=list)

    def calls(self) -> list[tuple[str, str]]:
        """The calls' events since the last call of this method, as the end of the topic and the model."""
        taken = self.events.take()
        self.seen += taken
        return [
            (envelope.topic.rpartition("_")[2], envelope.data.model)
            for envelope in taken
            if isinstance(envelope.data, LlmCallStarted | LlmCallCompleted | LlmCallFailed)
        ]

    def requests(self, provider: str) -> list[CanonicalRequest]:
        return requests_of(self.engine, provider)


@asynccontextmanager
async def rig(
    models: dict[str, ModelEntry] | None = None,
    prices: PriceTable | None = None,
    capabilities: dict[str, AdapterCapabilities] | None = None,
    **scripts: list[Say],
) -> AsyncIterator[Rig]:
    own = capabilities or {}
    adapters = {
        name: scripted_type(*replies, capabilities=own.get(name, CAPABILITIES))
        for name, replies in scripts.items()
    }
    clock = FakeClock()
    registry = serving(*(models or {}).values(), **adapters)
    engine = Engine(models=registry, trace=False, clock=clock, prices=prices or PriceTable.default())
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        yield Rig(engine, events, clock)


def routing_of(message: object) -> RoutingDecision:
    decision = message.metadata.routing
    return decision


def capable(**changes: object) -> AdapterCapabilities:
    return msgspec.structs.replace(CAPABILITIES, **changes)


# -- Capabilities.


TOOLS, FORCED = [ToolDefinition("t")], ToolChoice("required")
CACHES, LONG = Requirements(("prompt_caching",)), Requirements(min_context_tokens=20)


@pytest.mark.parametrize(
    ("lacking", "asked", "complaint"),
    [
        ({"supports_images": False}, {}, "does not accept images"),
        ({"accepted_image_media_types": ("image/png",)}, {}, "does not accept image/webp images, only image/png"),
        ({"supports_audio": False}, {}, "does not accept audio"),
        ({"accepted_audio_media_types": ("audio/wav",)}, {}, "does not accept audio/flac audio, only"),
        ({"supports_documents": False}, {}, "does not accept documents"),
        ({"supports_tool_choice": False}, {"tools": TOOLS, "tool_choice": FORCED}, "be forced to call a tool"),
        ({"supports_tools": False}, {"tools": TOOLS}, "can't call tools"),
        ({"supports_parallel_tool_calls": False}, {"tools": TOOLS, "parallel_tool_calls": True}, "in parallel"),
        ({"supports_structured_output": False}, {"output_schema": {}}, "does not support output schemas"),
        ({"supports_thinking": False}, {"reasoning_effort": "high"}, "not support reasoning, so effort 'high'"),
        ({"max_output_tokens": 10}, {"max_output_tokens": 11}, "at most 10 output tokens, not 11"),
        ({"supports_prompt_caching": False}, {"requires": (CACHES,)}, "lacks prompt_caching"),
        ({"max_context_tokens": 10}, {"requires": (LONG,)}, "has a window of 10 tokens, not 20"),
    ],
)
def test_a_missing_capability_is_refused_before_a_request(
    lacking: dict[str, object], asked: dict[str, object], complaint: str
) -> None:
    image = ImageBlock(data=b"x", media_type="image/webp")
    audio, document = AudioBlock(data=b"x", media_type="audio/flac"), DocumentBlock(data=b"%PDF-1.7")
    request = TurnRequirements(new=(Message.user([image, audio, document, TextBlock("?")]),), **asked)
    full = capable(
        supports_thinking=True, supports_prompt_caching=True, supports_audio=True, supports_documents=True
    )
    limit = request.max_output_tokens or 5
    about = {"model": "s:m", "provider": "s", "listed": True, "estimated_tokens": 5, "max_output_tokens": limit}
    assert check(request, full, **about) == ()  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match=complaint):
        check(request, msgspec.structs.replace(full, **lacking), **about)  # type: ignore[arg-type]


@pytest.mark.parametrize(("window", "outcome"), [(40, "passes"), (39, "warns"), (32, "warns"), (31, "refused")])
async def test_a_prompt_is_refused_only_if_it_is_certainly_too_long(window: int, outcome: str) -> None:
    """An estimate up to 25 % above the window is a warning, because the estimate may be wrong."""
    async with rig(s=[Say("1"), Say("2")], capabilities={"s": capable(max_context_tokens=window)}) as at:
        session = at.engine.session("s:m")
        session._state.messages.extend(_history(3))
        if outcome == "refused":
            with pytest.raises(CapabilityError, match="about 40 tokens for a window of 31"):
                await session.send("four messages of ten tokens each")
            assert at.calls() == []
            return
        await session.send("four messages of ten tokens each")
        at.calls()
        started = next(e.data for e in at.seen if isinstance(e.data, LlmCallStarted))
        completed = next(e.data for e in at.seen if isinstance(e.data, LlmCallCompleted))
        assert started.estimated_input_tokens == 40
        assert completed.warnings == (("prompt_near_window",) if outcome == "warns" else ())


def _history(messages: int) -> list[Message]:
    return [Message.user("x") if n % 2 == 0 else Message.assistant("y") for n in range(messages)]


async def test_a_session_and_a_turn_can_have_requirements() -> None:
    """`requires=` is checked in both places, like the needs of the request."""
    async with rig(s=[Say("ok")]) as at:
        session = at.engine.session("s:m", requires=Requirements(("images",)))
        assert (await session.send("x", requires=Requirements(min_context_tokens=1000))).text == "ok"
        with pytest.raises(CapabilityError, match="lacks thinking"):
            await session.send("x", requires=Requirements(("thinking",)))
        demanding = at.engine.session("s:m", requires=Requirements(("supports_thinking",)))
        with pytest.raises(CapabilityError, match="lacks thinking"):
            await demanding.send("x")
    with pytest.raises(CallboardError, match="unknown capability 'thinkng'; did you mean 'thinking'"):
        Requirements(("thinkng",))


async def test_the_configuration_sets_a_models_capabilities_and_defaults() -> None:
    changed = model(
        "s:m",
        capabilities={"supports_tools": False, "supports_thinking": True},
        defaults=ModelDefaults(max_output_tokens=77, temperature=0.5, effort="low"),
    )
    async with rig({"s:m": changed}, s=[Say("1"), Say("2")]) as at:
        with pytest.raises(CapabilityError, match="can't call tools"):
            await at.engine.session("s:m", tools=[Tool(ToolDefinition("t"))]).send("x")
        session = at.engine.session("s:m")
        await session.send("x")
        await session.send("x", max_output_tokens=5, temperature=0.0, reasoning_effort="high")
        asked = [(r.max_output_tokens, r.temperature, r.reasoning_effort) for r in at.requests("s")]
        assert asked == [(77, 0.5, "low"), (5, 0.0, "high")]


# -- Fallback.


@pytest.mark.parametrize(
    "kind", [ServerError, NetworkError, AuthError, RateLimitError, NotFoundError, AdapterError]
)
async def test_a_fallback_is_a_new_call_for_the_same_message(kind: type[AdapterError]) -> None:
    async with rig(a=[Say(fails=kind("x"))], b=[Say("from b")]) as at:
        session = at.engine.session("a:m", fallback=["b:m"])
        async with session.stream("Hi") as turn:
            types = [event.type async for event in turn]
        assert types.count("message.start") == 1
        assert at.calls() == [("started", "a:m"), ("failed", "a:m"), ("started", "b:m"), ("completed", "b:m")]
        calls = [e for e in at.seen if e.topic.startswith("llm.")]
        assert len({e.message_id for e in calls}) == 1
        assert calls[2].caused_by == calls[0].request_id != calls[2].request_id
        decision = routing_of(session.messages[-1])
        assert decision.candidates == (Candidate("a:m", f"failed: {kind.__name__}: x"), Candidate("b:m"))
        assert (decision.requested, decision.provider) == ("a:m", "b")
        assert [m.text for m in session.messages] == ["Hi", "from b"]


@pytest.mark.parametrize(
    ("reply", "kept"),
    [(Say("half", fails=ServerError("x")), "half"), (Say(fails=InvalidRequestError("bad")), None)],
    ids=["output was delivered", "the request is at fault"],
)
async def test_there_is_no_fallback_after_output_or_for_a_bad_request(reply: Say, kept: str | None) -> None:
    """The failure is raised. Output that a reader has can't be withdrawn, and a bad request fails everywhere."""
    async with rig(a=[reply], b=[Say("never")]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with pytest.raises((ServerError, InvalidRequestError)):
            await said(session, streamed=True)
        assert at.calls() == [("started", "a:m"), ("failed", "a:m")]
        assert (session.messages[-1].text if session.messages else None) == kept


async def test_a_missing_capability_is_an_error_of_the_first_model_and_skips_a_fallback() -> None:
    """The routing has the reason for which the fallback was skipped."""
    tool = Tool(ToolDefinition("t"))
    lame = {"b": capable(supports_tools=False)}
    replies = {"a": [Say(fails=ServerError("x"))], "b": [Say("never")], "c": [Say("from c")]}
    async with rig(capabilities=lame, **replies) as at:
        with pytest.raises(CapabilityError, match="b:m can't call tools"):
            await at.engine.session(["b:m", "c:m"], tools=[tool]).send("Hi")
        message = await at.engine.session(["a:m", "b:m", "c:m"], tools=[tool]).send("Hi")
        assert message.text == "from c"
        assert routing_of(message).candidates[1] == Candidate("b:m", "b:m can't call tools")


async def test_an_overflow_falls_back_only_to_a_larger_window() -> None:
    capabilities = {"b": capable(max_context_tokens=128_000), "c": capable(max_context_tokens=1_000_000)}
    async with rig(
        capabilities=capabilities, a=[Say(fails=ContextOverflowError("x"))], b=[], c=[Say("big")]
    ) as at:
        message = await at.engine.session(["a:m", "b:m", "c:m"]).send("Hi")
        assert message.text == "big"
        assert routing_of(message).candidates[1].rejected == "its window of 128000 tokens is not larger"
    capabilities = {"a": capable(max_context_tokens=10), "b": capable(max_context_tokens=20)}
    async with rig(capabilities=capabilities, a=[], b=[], c=[Say("big")]) as at:
        session = at.engine.session(["a:m", "b:m", "c:m"])
        session._state.messages.extend(_history(3))
        message = await session.send("Hi")
        assert message.text == "big"
        rejected = [candidate.rejected for candidate in routing_of(message).candidates]
        assert rejected[0] == "the prompt is too long for a:m: about 40 tokens for a window of 10"
        assert (rejected[1] or "").startswith("the prompt is too long for b:m")
        with pytest.raises(PromptTooLongError):
            await session.send("Hi", model="a:m")


async def test_if_every_fallback_fails_the_last_failure_is_raised() -> None:
    """The history does not change."""
    async with rig(a=[Say(fails=ServerError("a"))], b=[Say(fails=NetworkError("b"))]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with pytest.raises(NetworkError) as caught:
            await session.send("Hi")
        assert caught.value.turn is not None  # type: ignore[attr-defined]
        assert session.messages == ()


async def test_a_chain_of_the_configuration_is_the_default_of_a_call() -> None:
    chained = {"a:m": model("a:m", fallback=("b:m",)), "b:m": model("b:m", fallback=("c:m",))}
    fails = [Say(fails=ServerError("down"))]
    async with rig(chained, a=fails * 4, b=[Say("b"), *fails * 2], c=[]) as at:
        session = at.engine.session("a:m")
        assert (await session.send("x")).text == "b"
        for attempt in (
            session.send("x", fallback=()),
            at.engine.session(["a:m", "b:m"]).send("x"),
            at.engine.session("a:m", fallback=["b:m"]).send("x"),
        ):
            at.clock.advance(3600)
            with pytest.raises(ServerError):
                await attempt


async def test_a_chain_continues_with_the_chains_of_its_members_without_cycles() -> None:
    """The model's own fallbacks come first."""
    chained = {
        "a:m": model("a:m", fallback=("b:m", "c:m")),
        "b:m": model("b:m", fallback=("d:m", "a:m")),
        "d:m": model("d:m", fallback=("c:m", "d:m", "b:m")),
    }
    fails = [Say(fails=ServerError("down"))]
    async with rig(chained, a=fails[:], b=fails[:], c=fails[:], d=[Say("d")]) as at:
        message = await at.engine.session("a:m").send("x")
        assert message.text == "d"
        decision = routing_of(message)
        assert (decision.requested, decision.model) == ("a:m", "d:m")
        assert decision.candidates == (
            Candidate("a:m", "failed: ServerError: down"),
            Candidate("b:m", "failed: ServerError: down", fallback_of="a:m"),
            Candidate("c:m", "failed: ServerError: down", fallback_of="a:m"),
            Candidate("d:m", None, fallback_of="b:m"),
        )
        assert [name for end, name in at.calls() if end == "started"] == ["a:m", "b:m", "c:m", "d:m"]


async def test_a_turn_stays_with_the_model_that_replied_first() -> None:
    """After a fallback, the tool rounds of the turn use the same model."""

    async def done(arguments: object) -> str:
        return "done"

    tool = Tool(ToolDefinition("t"), done)  # type: ignore[arg-type]
    async with rig(a=[Say(fails=ServerError("x")), Say("a again")], b=[Say(calls=[("t", {})]), Say("b")]) as at:
        session = at.engine.session(["a:m", "b:m"], tools=[tool])
        assert (await session.send("Hi", tool_choice=ToolChoice("required"))).text == "b"
        forced = [request.tool_choice for request in at.requests("b")]
        assert forced == [ToolChoice("required"), None], "a fallback is forced, and a second round is not"
        assert (await session.send("Hi")).text == "a again"


async def test_a_model_with_a_missing_key_is_skipped_if_there_is_a_fallback() -> None:
    registry = serving(a=entry("a", scripted_type(), missing_key="A_KEY"), b=scripted_type(Say("b")))
    async with Engine(models=registry, trace=False) as engine:
        message = await engine.session(["a:m", "b:m"]).send("x")
        assert "A_KEY" in (routing_of(message).candidates[0].rejected or "")
        with pytest.raises(ConfigurationError, match="A_KEY"):
            await engine.session("a:m").send("x")


# -- The router's own choice.

DEARER, CHEAPER = (
    PriceRow(model="a:m", input=3_000_000, output=15_000_000),
    PriceRow(model="b:m", input=1, output=5),
)
PRICES = PriceTable.from_rows([DEARER, CHEAPER])


async def test_the_cheapest_capable_model_is_chosen() -> None:
    """Prices are compared for a nominal usage. Models without a price come last. Each rejection is recorded."""
    capabilities = {"lame": capable(supports_tools=False)}
    async with rig(
        prices=PRICES, capabilities=capabilities, free=[], a=[Say("a")], b=[Say("b"), Say("2")], lame=[]
    ) as at:
        tool = Tool(ToolDefinition("t"))
        choice = ModelChoice(requires=Requirements(("tools",)), prefer="cheapest")
        session = at.engine.session(choice, tools=[tool])
        message = await session.send("x")
        assert message.text == "b"
        decision = routing_of(message)
        assert (decision.requested, decision.resolved_by) == ("any model, cheapest", "choice")
        assert decision.candidates == (
            Candidate("free:m", "not needed: b:m has a higher rank"),
            Candidate("a:m", "not needed: b:m has a higher rank"),
            Candidate("b:m"),
            Candidate("lame:m", "lame:m can't call tools"),
        )
        assert model_text(session.model) == "any model, cheapest"
        first = await session.send("x", model=ModelChoice(among=("a:m", "b:m")))
        assert first.text == "a"


async def test_a_choice_without_a_capable_model_is_an_error_with_every_reason() -> None:
    async with rig(a=[], b=[]) as at:
        choice = ModelChoice(requires=Requirements(min_context_tokens=10_000_000))
        with pytest.raises(CapabilityError, match=r"a:m: a:m has a window of 128000.*b:m: b:m has a window"):
            await at.engine.session(choice).send("x")
        assert at.calls() == []


async def test_a_cancelled_call_has_no_fallback() -> None:
    async with rig(a=[Say("a", pause=anyio.sleep_forever)], b=[Say("never")]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with anyio.move_on_after(1):
            await session.send("x")
        async with session.stream("y", model="b:m") as turn:
            texts = [event.text async for event in turn if isinstance(event, TextDelta)]
        assert texts == ["never"]
        assert at.calls()[:2] == [("started", "a:m"), ("failed", "a:m")]


# Routing while a provider, a model or an adapter has problems, and its probes.


async def test_an_unavailable_model_is_skipped_until_one_call_probes_it() -> None:
    """After a refused key all calls use the fallback until the long cool-down ends."""
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


async def test_a_call_of_a_session_with_one_model_is_never_refused() -> None:
    async with rig(a=[Say(fails=AuthError("x")), Say("back")]) as at:
        session = at.engine.session("a:m")
        with pytest.raises(AuthError):
            await session.send("x")
        assert at.engine.availability.state("a", "a:m") == "unavailable"
        assert (await session.send("x")).text == "back"
        assert at.engine.availability.state("a", "a:m") == "available"


async def test_a_chain_of_unavailable_models_is_refused_with_the_reasons() -> None:
    async with rig(a=[Say(fails=AuthError("x"))], b=[Say(fails=AuthError("x"))]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with pytest.raises(AuthError):
            await session.send("x")
        at.calls()
        with pytest.raises(NoModelAvailable, match=r"a:m: unavailable \(key refused\); b:m: unavailable"):
            await session.send("x")
        assert at.calls() == []


async def test_a_refusal_has_the_time_of_the_first_possible_probe() -> None:
    """The time is the shortest wait of the candidates. A candidate waits for its provider and for its model."""
    async with rig(a=[Say(fails=AuthError("x")), Say("back")], b=[Say(fails=NotFoundError("x"))]) as at:
        session = at.engine.session(["a:m", "b:m"])
        with pytest.raises(NotFoundError):
            await session.send("x")
        at.clock.advance(60)
        now_us = at.clock.now_us()
        for change in at.engine.availability.crashed("b", now_us):  # The provider waits 30 s, and its model 540 s.
            at.engine.bus.publish(change)
        with pytest.raises(NoModelAvailable) as caught:
            await session.send("x")
        assert caught.value.retry_after_seconds == pytest.approx(540)
        at.clock.advance(540)
        assert (await session.send("x")).text == "back"


async def test_while_all_candidates_are_probed_a_refusal_has_no_time() -> None:
    """The end of a probe is unknown, so the error has no time."""
    gate = anyio.Event()
    a = [Say(fails=AuthError("x")), Say("a", pause=gate.wait)]
    async with rig(a=a, b=[Say(fails=AuthError("x")), Say("b", pause=gate.wait)]) as at:
        session, other = at.engine.session(["a:m", "b:m"]), at.engine.session(["a:m", "b:m"])
        with pytest.raises(AuthError):
            await session.send("x")
        at.clock.advance(601)
        probes = [asyncio.ensure_future(each.send("x")) for each in (session, other)]
        await anyio.sleep(1)
        with pytest.raises(NoModelAvailable, match="probe in progress") as caught:
            await at.engine.session(["a:m", "b:m"]).send("x")
        assert caught.value.retry_after_seconds is None
        gate.set()
        await asyncio.gather(*probes)


async def test_a_rate_limited_model_comes_after_those_that_are_ready() -> None:
    """Until the provider's pause ends, the chain starts with the next model."""
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
    """The adapter makes its provider unavailable. An adapter that can't be made falls back too."""
    registry = serving(
        a=adapter_type(DoesNotStart), c=adapter_type(CannotBeMade), b=scripted_type(*[Say("b")] * 2)
    )
    async with Engine(models=registry, trace=False) as engine:
        assert (await engine.session(["a:m", "b:m"]).send("x")).text == "b"
        known = [(r.provider, r.state, r.reason) for r in engine.availability.snapshot()]
        assert known == [("a", "unavailable", "adapter_crashed")]
        with pytest.raises(AdapterError, match="adapter 'a' failed to start: RuntimeError: no luck"):
            await engine.session("a:m").send("x")
        assert (await engine.session(["c:m", "b:m"]).send("x")).text == "b"
        with pytest.raises(ConfigurationError, match="adapter 'c' can't be created: KeyError: 'region'"):
            await engine.session("c:m").send("x")


async def test_an_adapter_at_its_restart_limit_is_unavailable_until_a_probe_restarts_it() -> None:
    """The state has the reason adapter_crashed, and the probe starts a new actor."""
    async with rig(a=[Say("1"), Say("2")], b=[Say("b")]) as at:
        session = at.engine.session(["a:m", "b:m"])
        await session.send("x")
        ref = at.engine._runtime.adapters["a"].ref
        for _ in range(5):
            ref.tell("nonsense")  # The actor crashes on this message.
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
    """An adapter with a missing option."""

    def __init__(self, config: AdapterConfig, **others: object) -> None:
        raise KeyError("region")


class DoesNotStart:
    """An adapter that fails to start."""

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
