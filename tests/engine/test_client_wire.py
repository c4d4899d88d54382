"""A client's own body through the engine: the request to the provider, and the reply to the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from callboard import AdapterConfig, Clock, Engine, ProviderAdapter
from callboard.adapters import CanonicalRequest, CanonicalResponse, Message, TextBlock
from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport, failing
from callboard.adapters.contract import WireRequest
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.engine import Budget, BudgetExceededError
from callboard.engine.middleware import Cache, CallOutcome, EventFilter, LogCalls, Middleware, MiddlewareLike, Next
from callboard.engine.operations.batch_plan import digest_of
from tests.support.engines import model as listed
from tests.support.engines import serving
from tests.support.scripted import adapter_type
from tests.support.wires import AnthropicWire, ChatWire

pytestmark = pytest.mark.anyio

BODY: JsonObject = {
    "model": "mine", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "of_tomorrow": 1,
}  # fmt: skip
MESSAGES, CHAT = AnthropicWire(), ChatWire()
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Provider:
    """A provider of the Messages API with `a:m`, and a provider of Chat Completions with `b:m`."""

    def __init__(self, *replies: FakeReply, others: Sequence[FakeReply] = ()) -> None:
        self.transport, self.other = FakeTransport(*replies), FakeTransport(*others)
        self.heard: list[tuple[str, bytes]] = []

    @asynccontextmanager
    async def engine(
        self, *layers: MiddlewareLike, chain: Sequence[str] = (), **more: Any
    ) -> AsyncIterator[Engine]:
        def make_a(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
            return AnthropicAdapter(config, name=name, transport=self.transport, clock=clock)

        def make_b(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
            return OpenAICompatibleAdapter(config, name=name, transport=self.other, clock=clock)

        entry = listed("a:m", **more.pop("entry", {}))
        models = serving(entry, listed("b:m"), a=adapter_type(make_a), b=adapter_type(make_b))
        async with Engine(models=models, middleware=layers, **{"trace": False, **more}) as engine:
            yield engine

    def request(self, **more: Any) -> CanonicalRequest:
        body = more.pop("body", BODY)
        fields: dict[str, Any] = {
            "model": "a:m",
            "max_output_tokens": 9,
            "request_id": "",
            "max_retries": 0,
            **more,
        }
        wire = WireRequest(protocol="anthropic", body=body, on_event=lambda *event: self.heard.append(event))
        return CanonicalRequest(messages=(Message.user("Hi"),), wire=wire, **fields)

    async def ask(self, engine: Engine, *, streamed: bool, **more: Any) -> str:
        """The text of the canonical reply."""
        if not streamed:
            return (await engine.complete(self.request(**more))).text
        async with engine.stream(self.request(**more)) as stream:
            return "".join([text async for text in stream.text_stream])

    def body(self, number: int = -1) -> JsonObject:
        return msgspec.json.decode(self.transport.requests[number].body, type=dict[str, Json])


def hello(*, streamed: bool) -> FakeReply:
    return MESSAGES.streamed("Hello") if streamed else MESSAGES.whole("Hello")


# -- Layers of middleware.


async def shouting(request: CanonicalRequest, next: Next) -> CallOutcome:
    """Change the request."""
    return await next(msgspec.structs.replace(request, temperature=0.1))


async def labelled(request: CanonicalRequest, next: Next) -> CallOutcome:
    """Change only fields that the body does not have."""
    return await next(msgspec.structs.replace(request, max_retries=0, timeout_seconds=9.0))


async def reworded(request: CanonicalRequest, next: Next) -> CallOutcome:
    """Change the reply."""
    outcome = await next(request)
    response: CanonicalResponse = msgspec.structs.replace(outcome.response, content=(TextBlock("Bye"),))
    return CallOutcome(response=response, cost=outcome.cost)


async def patient(request: CanonicalRequest, next: Next) -> CallOutcome:
    """Call twice."""
    await next(request)
    return await next(request)


class Filtered(Middleware):
    """Filters events, and keeps all of them."""

    def events(self, request: CanonicalRequest) -> EventFilter:
        return lambda events: events


# -- The body, the raw reply and the trace.


@both_ways
@pytest.mark.parametrize("layers", [(), (LogCalls(), labelled)], ids=["bare", "observed"])
async def test_the_body_is_sent_and_the_client_gets_the_raw_reply(
    layers: tuple[MiddlewareLike, ...], streamed: bool
) -> None:
    """The body stays the same with middleware that changes no field of it."""
    provider = Provider(hello(streamed=streamed))
    async with provider.engine(*layers) as engine:
        assert await provider.ask(engine, streamed=streamed) == "Hello"
    assert provider.body() == {**BODY, "model": "m"} | ({"stream": True} if streamed else {})
    assert len(provider.heard) == (len(MESSAGES.chunks("Hello")) if streamed else 1)


@pytest.mark.parametrize(("layers", "entry", "own", "reply", "streamed"), [
    ([shouting], {}, False, "Hello", False), ([shouting], {}, False, "Hello", True),
    ([Filtered()], {}, True, "Hello", False), ([Filtered()], {}, True, "Hello", True),
    ([reworded], {}, True, "Bye", False), ([], {"prompt_addendum": "Be brief."}, False, "Hello", False),
])  # fmt: skip
async def test_the_client_gets_no_raw_reply_of_a_changed_call(
    layers: list[MiddlewareLike], entry: dict[str, Any], own: bool, reply: str, streamed: bool
) -> None:
    """A request that middleware or the model's addendum changed is sent from its canonical form. If only events or
    the reply are changed, the client's own body is sent.
    """
    provider = Provider(hello(streamed=streamed))
    async with provider.engine(*layers, entry=entry) as engine:
        assert await provider.ask(engine, streamed=streamed) == reply
    assert ("of_tomorrow" in provider.body()) is own
    assert provider.body().get("temperature") == (0.1 if layers == [shouting] else None)
    assert ("Be brief." in str(provider.body().get("system"))) is bool(entry)
    assert provider.heard == []


async def test_the_client_gets_the_raw_reply_of_the_last_call() -> None:
    provider = Provider(MESSAGES.whole("Hello"), MESSAGES.whole("Again"))
    async with provider.engine(patient) as engine:
        assert await provider.ask(engine, streamed=False) == "Again"
    assert [data for _, data in provider.heard] == [msgspec.json.encode(MESSAGES.body("Again", 0, "end"))]


async def test_a_cached_reply_is_canonical_and_answers_the_same_body_only() -> None:
    provider = Provider(MESSAGES.whole("Hello"), MESSAGES.whole("Other"))
    async with provider.engine(Cache()) as engine:
        assert await provider.ask(engine, streamed=False) == "Hello"
        assert await provider.ask(engine, streamed=False, body={**BODY, "stream": False}) == "Hello"
        assert len(provider.heard) == 1
        assert await provider.ask(engine, streamed=False, body={**BODY, "of_tomorrow": 2}) == "Other"


@both_ways
async def test_a_fallback_of_another_protocol_gets_the_canonical_request(streamed: bool) -> None:
    """The client gets no part of the failed call."""
    other = CHAT.streamed("Hello") if streamed else CHAT.whole("Hello")
    provider = Provider(failing(500, b"{}"), others=[other])
    async with provider.engine(entry={"fallback": ("b:m",)}) as engine:
        assert await provider.ask(engine, streamed=streamed) == "Hello"
    assert provider.body()["of_tomorrow"] == 1
    assert b"of_tomorrow" not in provider.other.requests[0].body
    assert provider.heard == []


@pytest.mark.parametrize("model", ["a:m", "b:m"])
async def test_a_limit_above_the_models_own_is_lowered_for_another_protocol(model: str) -> None:
    """A client uses the limits of its own vendor's models."""
    provider = Provider(hello(streamed=False), others=[CHAT.whole("Hello")])
    body: JsonObject = {**BODY, "max_tokens": 200_000}
    async with provider.engine() as engine:
        response = await engine.complete(provider.request(model=model, max_output_tokens=200_000, body=body))
        if model == "a:m":
            assert provider.body()["max_tokens"] == 200_000
        else:
            assert msgspec.json.decode(provider.other.requests[0].body)["max_completion_tokens"] == 16_384
        assert [warning.code for warning in response.warnings] == (
            [] if model == "a:m" else [WarningCode.PARAMETER_CHANGED]
        )


@pytest.mark.parametrize("room", [100_000, 50_000], ids=["much", "little"])
async def test_a_body_without_a_limit_is_sent_if_the_budget_has_room_for_the_longest_reply(room: int) -> None:
    """The body has no other limit. Without that room the canonical request is sent with the engine's limit."""
    provider = Provider(hello(streamed=False))
    body: JsonObject = {name: value for name, value in BODY.items() if name != "max_tokens"}
    async with provider.engine(budgets=[Budget(max_tokens=room)]) as engine:
        assert await provider.ask(engine, streamed=False, body=body, default_output_limit=True) == "Hello"
    assert ("of_tomorrow" in provider.body()) is (room > 64_000)
    assert ("max_tokens" in provider.body()) is (room < 64_000)
    assert len(provider.heard) == (1 if room > 64_000 else 0)


async def test_a_body_without_a_limit_is_refused_if_the_budget_has_no_room_for_any_reply() -> None:
    provider = Provider()
    async with provider.engine(budgets=[Budget(max_tokens=100)]) as engine:
        with pytest.raises(BudgetExceededError):
            await provider.ask(engine, streamed=False, default_output_limit=True)


async def test_the_digest_of_a_batch_does_not_depend_on_the_listener() -> None:
    """The function that receives the raw reply is not part of the request."""
    provider = Provider()
    assert digest_of([provider.request()]) == digest_of([provider.request()])
