"""What an engine asks of a model reaches the wire in a form that the provider takes."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from pydantic import BaseModel, Field

from adapters import AdapterConfig, AnthropicAdapter
from bus.json_types import Json
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, NoObjectGeneratedError
from tests.support.fake_http import FakeReply, FakeTransport
from tests.support.scripted import adapter_type

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


class Guess(BaseModel):
    """A guess."""

    number: Annotated[int, Field(ge=1, le=99)]


def said(text: str) -> FakeReply:
    """A whole reply of the Messages API."""
    content: list[Json] = [{"type": "text", "text": text}]
    usage: Json = {"input_tokens": 9, "output_tokens": 3}
    body: Json = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": usage}
    return FakeReply(msgspec.json.encode(body), headers=JSON)


def on_anthropic(*replies: FakeReply) -> tuple[Engine, FakeTransport]:
    """An engine with Anthropic's adapter, and its network."""
    transport = FakeTransport(*replies)

    class Wired(AnthropicAdapter):
        def __init__(self, config: AdapterConfig, **_: object) -> None:
            super().__init__(config, name="a", transport=transport)

    adapters = {"a": AdapterEntry(name="a", type=adapter_type(Wired), config=AdapterConfig(max_retries=0))}
    models = {"a:m": ModelEntry(id="a:m", adapter="a", wire_name="m")}
    return Engine(models=ModelRegistry(adapters, models), trace=False), transport


async def test_bounds_that_anthropic_refuses_are_checked_here_instead() -> None:
    """A pydantic `Field(ge=1, le=99)` makes no request that is refused, and a reply beyond it is no object."""
    engine, transport = on_anthropic(said('{"number": 7}'), said('{"number": 120}'))
    async with engine:
        result = await engine.generate_object("a:m", "Guess.", schema=Guess)
        with pytest.raises(NoObjectGeneratedError) as caught:
            await engine.generate_object("a:m", "Guess.", schema=Guess)
    assert result.output == Guess(number=7)
    assert caught.value.reason == "invalid"
    sent = transport.requests[0].body
    assert b'"minimum"' not in sent
    assert b"at most 99; at least 1" in sent
