"""Fields that a host gives to a part of the system text, such as a breakpoint of the prompt's cache."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters import (
    AdapterConfig,
    AnthropicAdapter,
    GeminiAdapter,
    OpenAIAdapter,
    OpenAICompatibleAdapter,
)
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ProviderRaw, TextBlock
from callboard.bus.values.messages import Message, Role

from ...support.fake_http import ask

MARK: JsonObject = {"type": "ephemeral", "ttl": "1h"}
ADAPTERS: dict[str, HttpAdapter] = {
    "anthropic": AnthropicAdapter(AdapterConfig(api_key="k")),
    "openai_compatible": OpenAICompatibleAdapter(AdapterConfig(api_key="k", base_url="https://x.test")),
    "openai": OpenAIAdapter(AdapterConfig(api_key="k")),
    "gemini": GeminiAdapter(AdapterConfig(api_key="k")),
    "ollama": OllamaAdapter(AdapterConfig()),
}
IN_PARTS = ("anthropic", "openai_compatible")


def asked(name: str, of: str, **fields: object) -> CanonicalRequest:
    manual = TextBlock("The manual.", ProviderRaw(of, {"cache_control": MARK}))
    instructions = Message(Role.SYSTEM, (manual, TextBlock("Be brief.")))
    return ask(instructions, Message.user("Hi"), model=f"{name}:m", system_prompt="You sell screws.", **fields)


def written(name: str, of: str, **fields: object) -> tuple[WireCall, JsonObject]:
    call = ADAPTERS[name].write_request(asked(name, of, **fields), stream=False)
    return call, msgspec.json.decode(call.body)


def parts(*texts: str) -> list[JsonObject]:
    return [
        {"type": "text", "text": text} | ({"cache_control": MARK} if "manual" in text else {}) for text in texts
    ]


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_part_of_the_system_text_keeps_the_fields_that_the_host_gave_it(name: str) -> None:
    """The text then stands in parts, in its order, with what else has to be told at their end."""
    call, body = written(name, name)
    said = body["system"] if name == "anthropic" else body["messages"][0]["content"]
    assert said == parts("You sell screws.", "The manual.", "Be brief.")
    assert (call.losses, call.warnings) == ((), ())
    _, body = written("openai_compatible", "openai_compatible", output_schema={"type": "object"})
    assert body["messages"][0]["content"][-1]["text"] == "Reply with a JSON object."


@pytest.mark.parametrize("name", ADAPTERS)
def test_another_providers_fields_leave_the_system_text_one_string(name: str) -> None:
    call, _ = written(name, "another")
    assert "You sell screws.\\n\\nThe manual.Be brief." in call.body.decode()
    assert b"cache_control" not in call.body
    assert call.losses == ()


@pytest.mark.parametrize("name", sorted(ADAPTERS.keys() - set(IN_PARTS)))
def test_fields_that_have_no_place_in_a_system_text_are_a_loss(name: str) -> None:
    """Where the text is one string."""
    call, _ = written(name, name)
    assert b"cache_control" not in call.body
    assert [loss.reason for loss in call.losses] == [
        "the system text has no parts here, so that its fields can't go with it"
    ]
    assert "You sell screws.\\n\\nThe manual.Be brief." in call.body.decode()


def test_a_developers_message_keeps_its_fields() -> None:
    """Where the provider has that role, and elsewhere as a part of the system text."""
    for name, place in (("openai", "input"), ("anthropic", "system")):
        text = TextBlock("The manual.", ProviderRaw(name, {"cache_control": MARK}))
        request = ask(Message(Role.DEVELOPER, (text,)), Message.user("Hi"), model=f"{name}:m")
        body = msgspec.json.decode(ADAPTERS[name].write_request(request, stream=False).body)
        told = body[place] if name == "anthropic" else body[place][0]["content"]
        assert told[0]["cache_control"] == MARK
