"""What the configuration says that a model can't do is not sent to it, neither new nor in what came before.

The table is of all wires and all capabilities that show in a request. What is new is refused before any network;
of what came before, each loss is reported, and the history itself stays as it was.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.call import HttpCall
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.tgi.adapter import TGIAdapter
from callboard.adapters.replies.whole import WholeStream
from callboard.bus.errors import CapabilityError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ProviderRaw,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition

from ..support.fake_http import FakeTransport, request

pytestmark = pytest.mark.anyio

WIRES: Mapping[str, Callable[..., HttpAdapter]] = {
    "anthropic": AnthropicAdapter,
    "openai": OpenAIAdapter,
    "openai_compatible": OpenAICompatibleAdapter,
    "gemini": GeminiAdapter,
    "ollama": OllamaAdapter,
    "tgi": TGIAdapter,
}
OPTIONS: Mapping[str, JsonObject] = {
    "openai_compatible": {"quirks": {"base": "openai", "replays": "tool_loop"}},
    "ollama": {"discover": False},
}
ALL = AdapterCapabilities(
    **{name: True for name in AdapterCapabilities.__struct_fields__ if name.startswith("supports_")}  # type: ignore[arg-type]
)
IMAGE, SOUND, PDF = b"\x89PNG\r\n\x1a\n-image", b"RIFF-sound-", b"%PDF-1.7 document"
MEDIA: Mapping[str, ContentBlock] = {
    "images": ImageBlock(data=IMAGE, media_type="image/png"),
    "audio": AudioBlock(data=SOUND, media_type="audio/wav"),
    "documents": DocumentBlock(data=PDF, media_type="application/pdf"),
}
MARKS = {
    name: b64encode(data).rstrip(b"=")[:-1]
    for name, data in (("images", IMAGE), ("audio", SOUND), ("documents", PDF))
}
LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


def adapter_of(wire: str, name: str | None = None) -> HttpAdapter:
    config = AdapterConfig(api_key="k", base_url="https://server.test", options=OPTIONS.get(wire, {}))
    return WIRES[wire](config, name=name, transport=FakeTransport())


async def sent(wire: str, asked: CanonicalRequest) -> WireCall:
    """The request as the adapter writes it for a call."""
    return await written(adapter_of(wire), asked)


async def written(adapter: HttpAdapter, asked: CanonicalRequest) -> WireCall:
    call = HttpCall(adapter.client, asked, None, stream=False)
    call.prepare_attempt()
    return await call.write()


def without(*names: str, **limits: object) -> AdapterCapabilities:
    return msgspec.structs.replace(ALL, **dict.fromkeys((f"supports_{name}" for name in names), False), **limits)


def asking(*messages: Message, **fields: object) -> CanonicalRequest:
    return request(messages=messages, model="p:some-model", **fields)


def losses(wire: WireCall) -> int:
    return sum(warning.code == "content_dropped" for warning in wire.warnings)


@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.parametrize("wire", WIRES)
async def test_old_media_stay_behind_where_the_model_takes_none(wire: str, kind: str) -> None:
    """By its flag, and by the media types that it takes; the loss is a warning."""
    history = (Message.user((MEDIA[kind],)), Message.assistant("I see."), Message.user("And?"))
    types = f"accepted_{kind.removesuffix('s')}_media_types"
    for can in (without(kind), without(**{types: ("text/none",)})):
        wire_call = await sent(wire, asking(*history, capabilities=can))
        assert MARKS[kind] not in wire_call.body
        assert losses(wire_call) == 1


@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.parametrize("wire", WIRES)
async def test_new_media_are_refused_where_the_model_takes_none(wire: str, kind: str) -> None:
    """Also where the adapter is used alone, and its own word is that the model takes them not."""
    new = Message.user((MEDIA[kind],))
    with pytest.raises(CapabilityError, match="takes no"):
        await sent(wire, asking(Message.user("Hi"), Message.assistant("Ho"), new, capabilities=without(kind)))
    adapter = adapter_of(wire)
    supports = getattr(adapter.get_capabilities("some-model"), f"supports_{kind}")
    if not supports:
        with pytest.raises(CapabilityError, match="takes no"):
            await sent(wire, asking(new))
    elif (wire, kind) != ("openai_compatible", "documents") or "application/pdf" in str(adapter.capabilities):
        assert MARKS[kind] in (await sent(wire, asking(new))).body


@pytest.mark.parametrize("wire", WIRES)
async def test_old_images_of_results_stay_behind_as_well(wire: str) -> None:
    history = (
        Message.user("Look."),
        Message.assistant((ToolUseBlock("tu_1", "look", {}),)),
        Message.tool_result("tu_1", [ImageBlock(data=IMAGE, media_type="image/png")]),
        Message.assistant("A cat."),
        Message.user("And?"),
    )
    wire_call = await sent(wire, asking(*history, capabilities=without("images")))
    assert MARKS["images"] not in wire_call.body
    assert losses(wire_call) + (wire == "tgi") >= 1  # whose tools are told in words before the history is fitted


CALLED = (
    Message.user("Look."),
    Message.assistant((ToolUseBlock("tu_1", "look", {"at": "it"}),)),
    Message.tool_result("tu_1", "a cat"),
    Message.assistant("A cat."),
    Message.user("And?"),
)
TOOL_WORDS = (
    b"tool_calls",
    b"tool_use",
    b"function_call",
    b"functionCall",
    b"functionResponse",
    b'"tool"',
    b"tool_call_id",
)


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "tgi"])
async def test_old_calls_are_told_in_words_where_the_model_takes_no_tools(wire: str) -> None:
    """What was asked and what came of it stays known; with tools the same history goes as calls."""
    wire_call = await sent(wire, asking(*CALLED, capabilities=without("tools", "tool_choice")))
    assert not [word for word in TOOL_WORDS if word in wire_call.body]
    assert b"The tool look was called with" in wire_call.body
    assert b"a cat" in wire_call.body
    assert losses(wire_call) == 1
    native = await sent(wire, asking(*CALLED, capabilities=ALL))
    assert [word for word in TOOL_WORDS if word in native.body]
    assert losses(native) == 0


DEMANDS: Mapping[str, Mapping[str, object]] = {
    "tools": {"tools": (LOOK,)},
    "structured_output": {"output_schema": {"type": "object", "properties": {}}},
    "tool_choice": {"tools": (LOOK,), "tool_choice": ToolChoice("required")},
}


@pytest.mark.parametrize("capability", DEMANDS)
@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_demanded_and_lacking_is_refused(wire: str, capability: str) -> None:
    with pytest.raises(CapabilityError):
        await sent(wire, asking(Message.user("Hi"), capabilities=without(capability), **DEMANDS[capability]))


@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai_compatible", "gemini", "ollama"])
async def test_reasoning_does_not_go_back_to_a_model_that_has_none(wire: str) -> None:
    reasoning: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2lnbmVk"}
    call = ToolUseBlock("tu_1", "look", {}, provider_raw=ProviderRaw(wire, {"id": "c1", "after": "rs_1"}))
    thought = ThinkingBlock("Deeply hidden.", "c2lnbmVk", ProviderRaw(wire, reasoning))
    history = (
        Message.user("Look."),
        Message.assistant((thought, call)),
        Message.tool_result("tu_1", "a cat"),
    )
    thinks = await sent(wire, asking(*history, capabilities=ALL))
    assert b"Deeply hidden." in thinks.body or b"c2lnbmVk" in thinks.body
    wire_call = await sent(wire, asking(*history, capabilities=without("thinking")))
    assert b"Deeply hidden." not in wire_call.body
    assert b"c2lnbmVk" not in wire_call.body
    assert losses(wire_call) == 1


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "tgi"])
async def test_a_model_without_a_place_for_the_system_text_hears_it_from_the_user(wire: str) -> None:
    asked = asking(Message.user("Hi"), system_prompt="Be brief.", capabilities=without("system_prompt"))
    body: JsonObject = msgspec.json.decode((await sent(wire, asked)).body)
    assert not body.keys() & {"system", "instructions", "systemInstruction"}
    messages = body.get("messages") or body.get("input") or body.get("contents")
    assert isinstance(messages, list)
    first: Json = messages[0]
    assert isinstance(first, dict)
    assert first["role"] == "user"
    assert b"Be brief." in msgspec.json.encode(first)


async def test_a_model_whose_prompts_are_not_cached_gets_no_marks_for_a_cache() -> None:
    long = Message.user("word " * 9000)
    for wire, mark in (("anthropic", b"cache_control"), ("openai", b"prompt_cache_key")):
        asked = asking(
            long, Message.assistant("Yes."), long, session_id="ses_1", capabilities=without("prompt_caching")
        )
        if wire == "openai":
            adapter: HttpAdapter = OpenAIAdapter(AdapterConfig(api_key="k"), transport=FakeTransport())
        else:
            adapter = adapter_of(wire)
        assert mark not in (await written(adapter, asked)).body
        cached = msgspec.structs.replace(asked, capabilities=ALL)
        assert mark in (await written(adapter, cached)).body


@pytest.mark.parametrize("wire", WIRES)
def test_what_the_model_cannot_stream_is_asked_for_whole(wire: str) -> None:
    adapter = adapter_of(wire)
    assert isinstance(adapter.stream(asking(Message.user("Hi"), capabilities=without("streaming"))), WholeStream)
    assert not isinstance(adapter.stream(asking(Message.user("Hi"), capabilities=ALL)), WholeStream)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_loss_is_an_error_where_the_host_wants_none(wire: str) -> None:
    history = (Message.user((MEDIA["images"],)), Message.assistant("I see."), Message.user("And?"))
    options: Json = {"history": {"on_loss": "error"}}
    with pytest.raises(CapabilityError, match="without a loss"):
        await sent(wire, asking(*history, capabilities=without("images"), provider_options=options))
