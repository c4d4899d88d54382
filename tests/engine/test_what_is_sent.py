"""What an engine asks of a model reaches the wire in a form that the provider takes."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from pydantic import BaseModel, Field

from adapters import AdapterConfig, AnthropicAdapter, CapabilityError, ImageBlock, Message
from bus.json_types import Json
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, NoObjectGeneratedError
from tests.support.fake_http import FakeReply, FakeTransport
from tests.support.scripted import adapter_type

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"
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


def on_anthropic(*replies: FakeReply, **can: bool) -> tuple[Engine, FakeTransport]:
    """An engine with Anthropic's adapter, and its network. can: what models.yaml corrects of the model."""
    transport = FakeTransport(*replies)

    class Wired(AnthropicAdapter):
        def __init__(self, config: AdapterConfig, **_: object) -> None:
            super().__init__(config, name="a", transport=transport)

    adapters = {"a": AdapterEntry(name="a", type=adapter_type(Wired), config=AdapterConfig(max_retries=0))}
    models = {"a:m": ModelEntry(id="a:m", adapter="a", wire_name="m", capabilities=can)}
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


async def test_what_models_yaml_says_of_a_model_holds_for_the_history_too() -> None:
    """New images are refused, and those of earlier turns, which another model saw, stay behind with a warning."""
    engine, transport = on_anthropic(said("Text only."), supports_images=False)
    image = ImageBlock(data=PNG, media_type="image/png")
    seen = (Message.user((image,)), Message.assistant("A cat."))
    async with engine:
        result = await engine.generate("a:m", messages=[*seen, Message.user("And?")])
        with pytest.raises(CapabilityError, match="takes no images"):
            await engine.generate("a:m", messages=[*seen, Message.user((image,))])
    assert [b'"image"' in sent.body for sent in transport.requests] == [False]
    assert (result.text, [warning.code for warning in result.warnings]) == ("Text only.", ["content_dropped"])
