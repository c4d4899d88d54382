"""What an engine asks of a model reaches the wire in a form that the provider takes."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from pydantic import BaseModel, Field

from callboard.adapters import (
    AdapterConfig,
    AnthropicAdapter,
    CapabilityError,
    GeminiAdapter,
    ImageBlock,
    Message,
    OllamaAdapter,
    OpenAIAdapter,
    OpenAICompatibleAdapter,
)
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus import AuthError, Json
from callboard.engine import Engine, NoObjectGeneratedError
from tests.support.engines import entry, model, serving
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


WIRES: dict[str, tuple[type[HttpAdapter], str]] = {
    "anthropic": (AnthropicAdapter, "max_tokens"),
    "openai": (OpenAIAdapter, "max_output_tokens"),
    "openai_compatible": (OpenAICompatibleAdapter, "max_tokens"),
    "gemini": (GeminiAdapter, "generationConfig.maxOutputTokens"),
    "ollama": (OllamaAdapter, "options.num_predict"),
}
"""Each wire's adapter, and where it has the limit of output tokens."""


async def limit_sent(wire: str, *, prompt: str = "Hi", asked: int | None = None, **said: object) -> Json:
    """The limit in what is sent to a model that models.yaml names and no table knows; None if there is none.

    Args:
        wire: A key of `WIRES`.
        prompt: What is asked.
        asked: The limit that the caller wants.
        said: What models.yaml says of the model.
    """
    kind, path = WIRES[wire]
    transport = FakeTransport(FakeReply(b"no reply", status=401))
    options = {"discover": False} if wire == "ollama" else {}

    def make(config: AdapterConfig, **_: object) -> HttpAdapter:
        return kind(config, name="a", transport=transport)

    config = AdapterConfig(max_retries=0, base_url="https://server.test", options=options)
    models = serving(model("a:m", **said), a=entry("a", adapter_type(make), config))
    async with Engine(models=models, trace=False) as engine:
        with pytest.raises(AuthError):
            await engine.generate("a:m", prompt, max_output_tokens=asked)
    value: Json = msgspec.json.decode(transport.requests[0].body)
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


@pytest.mark.parametrize("wire", WIRES)
async def test_a_declared_window_has_room_for_prompt_and_reply(wire: str) -> None:
    """Where nobody asks for a length, the default shrinks to what the prompt leaves of the window."""
    small = {"capabilities": {"max_context_tokens": 8192}}
    brief = await limit_sent(wire, **small)
    assert isinstance(brief, int)
    assert 8000 < brief < 8192
    long = await limit_sent(wire, prompt="word " * 4000, **small)
    assert isinstance(long, int)
    assert 2000 < long < brief - 3000


@pytest.mark.parametrize("wire", WIRES)
async def test_a_length_that_somebody_asks_for_is_sent(wire: str) -> None:
    """The caller, or models.yaml."""
    assert await limit_sent(wire, asked=16_384) == 16_384
    assert await limit_sent(wire, max_output_tokens=3000) == 3000


@pytest.mark.parametrize(("wire", "sent"), [("openai", None), ("openai_compatible", None), ("anthropic", 16_384)])
async def test_nothing_is_said_of_a_length_that_nobody_asked_for_and_nobody_knows(wire: str, sent: Json) -> None:
    """A server of 8,192 tokens would refuse our default; the Messages API insists on one."""
    assert await limit_sent(wire) == sent


def on_anthropic(*replies: FakeReply, **can: bool) -> tuple[Engine, FakeTransport]:
    """An engine with Anthropic's adapter, and its network.

    Args:
        replies: The replies of the network.
        can: The capabilities that models.yaml corrects of the model.
    """
    transport = FakeTransport(*replies)

    class Wired(AnthropicAdapter):
        def __init__(self, config: AdapterConfig, **_: object) -> None:
            super().__init__(config, name="a", transport=transport)

    wired = entry("a", adapter_type(Wired), AdapterConfig(max_retries=0))
    return Engine(models=serving(model("a:m", capabilities=can), a=wired), trace=False), transport


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
