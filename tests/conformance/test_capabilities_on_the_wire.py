"""A model never receives new or old content that it does not support by its configuration.

The table covers all wires and all capabilities that affect a request. New content is refused before any network
access. Each loss of old content is reported, and the history itself does not change.
"""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.call import HttpCall
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.tgi.adapter import TGIAdapter
from callboard.adapters.replies.whole import WholeStream
from callboard.adapters.requests.history_target import WireCall
from callboard.adapters.requests.settings import merge_options
from callboard.bus.errors import CapabilityError, InvalidRequestError
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
from callboard.bus.values.messages import Message, ToolDefinition

from ..support.fake_http import FakeTransport, request

pytestmark = pytest.mark.anyio

WIRES: Mapping[str, Callable[..., HttpAdapter]] = {
    "anthropic": AnthropicAdapter, "openai": OpenAIAdapter, "openai_compatible": OpenAICompatibleAdapter,
    "gemini": GeminiAdapter, "ollama": OllamaAdapter, "tgi": TGIAdapter,
}  # fmt: skip
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
    """The request that the adapter writes for a call."""
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


@pytest.mark.parametrize("wire", WIRES)
async def test_old_media_are_dropped_if_the_model_does_not_support_them(wire: str) -> None:
    """The model's flag and its supported media types decide. The loss is a warning, or an error if the host wants
    none. Images of results are dropped, too.
    """
    for kind, medium in MEDIA.items():
        history = (Message.user((medium,)), Message.assistant("I see."), Message.user("And?"))
        types = f"accepted_{kind.removesuffix('s')}_media_types"
        for can in (without(kind), without(**{types: ("text/none",)})):
            wire_call = await sent(wire, asking(*history, capabilities=can))
            assert MARKS[kind] not in wire_call.body
            assert losses(wire_call) == 1
        options: Json = {"history": {"on_loss": "error"}}
        with pytest.raises(CapabilityError, match="without a loss"):
            await sent(wire, asking(*history, capabilities=without(kind), provider_options=options))
    result = Message.tool_result("tu_1", [MEDIA["images"]])
    wire_call = await sent(wire, asking(*CALLED[:2], result, *CALLED[3:], capabilities=without("images")))
    assert MARKS["images"] not in wire_call.body
    assert losses(wire_call) + (wire == "tgi") >= 1  # its tools become text before the history is fitted


@pytest.mark.parametrize("wire", WIRES)
async def test_new_media_are_refused_if_the_model_does_not_support_them(wire: str) -> None:
    """An adapter without an engine refuses them by its own capabilities."""
    adapter = adapter_of(wire)
    for kind, medium in MEDIA.items():
        new = Message.user((medium,))
        said = asking(Message.user("Hi"), Message.assistant("Ho"), new, capabilities=without(kind))
        with pytest.raises(CapabilityError, match=f"does not accept {kind}"):
            await sent(wire, said)
        if not getattr(adapter.get_capabilities("some-model"), f"supports_{kind}"):
            with pytest.raises(CapabilityError, match=f"does not accept {kind}"):
                await sent(wire, asking(new))
        elif (wire, kind) != ("openai_compatible", "documents") or "application/pdf" in str(adapter.capabilities):
            assert MARKS[kind] in (await sent(wire, asking(new))).body


CALLED = (
    Message.user("Look."),
    Message.assistant((ToolUseBlock("tu_1", "look", {"at": "it"}),)),
    Message.tool_result("tu_1", "a cat"),
    Message.assistant("A cat."),
    Message.user("And?"),
)
TOOL_WORDS = (
    b"tool_calls", b"tool_use", b"function_call", b"functionCall", b"functionResponse", b'"tool"',
    b"tool_call_id",
)  # fmt: skip


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "tgi"])
async def test_old_calls_become_text_if_the_model_does_not_support_tools(wire: str) -> None:
    """The call and its result stay in the history as text. A model with tools gets the same history as calls."""
    wire_call = await sent(wire, asking(*CALLED, capabilities=without("tools", "tool_choice")))
    assert not [word for word in TOOL_WORDS if word in wire_call.body]
    assert b"The tool look was called with" in wire_call.body
    assert b"a cat" in wire_call.body
    assert losses(wire_call) == 1
    native = await sent(wire, asking(*CALLED, capabilities=ALL))
    assert [word for word in TOOL_WORDS if word in native.body]
    assert losses(native) == 0


@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai_compatible", "gemini", "ollama"])
async def test_reasoning_does_not_go_back_to_a_model_that_has_none(wire: str) -> None:
    reasoning: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2lnbmVk"}
    call = ToolUseBlock("tu_1", "look", {}, provider_raw=ProviderRaw(wire, {"id": "c1", "after": "rs_1"}))
    thought = ThinkingBlock("Deeply hidden.", "c2lnbmVk", ProviderRaw(wire, reasoning))
    history = (
        Message.user("Look."), Message.assistant((thought, call)), Message.tool_result("tu_1", "a cat"),
    )  # fmt: skip
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


# -- Details of a request that a server refuses are not sent, on each wire that could have them.


BOOLEANS: JsonObject = {
    "type": "object",
    "properties": {"any": True, "none": False, "list": {"type": "array", "items": True}},
    "anyOf": [True, {"type": "object"}, False],
    "additionalProperties": False,
}


def body_of(wire: str, **fields: object) -> JsonObject:
    messages = cast("tuple[Message, ...]", fields.pop("messages", (Message.user("Hi"),)))
    wire_call = adapter_of(wire).write_request(asking(*messages, **fields), stream=False)
    return cast("JsonObject", msgspec.json.decode(wire_call.body))


def test_ollama_gets_no_boolean_subschemas() -> None:
    """Neither tools nor the schema of the reply have boolean subschemas. The host's schema stays."""
    before = msgspec.json.encode(BOOLEANS)
    body = body_of("ollama", tools=(ToolDefinition("f", "", BOOLEANS),), output_schema=BOOLEANS)
    folded = {
        "type": "object", "properties": {"any": {}, "list": {"type": "array", "items": {}}},
        "additionalProperties": False,
    }  # fmt: skip
    assert body["format"] == {**folded, "anyOf": [{}, {"type": "object"}]}
    tools = cast("list[dict[str, JsonObject]]", body["tools"])
    assert tools[0]["function"]["parameters"] == folded
    assert msgspec.json.encode(BOOLEANS) == before


def test_gemini_gets_seeds_of_32_bits() -> None:
    """A larger seed is left out with a warning."""
    for seed, kept in ((2**31 - 1, True), (-(2**31), True), (2**31, False), (-(2**31) - 1, False)):
        wire_call = adapter_of("gemini").write_request(asking(Message.user("Hi"), seed=seed), stream=False)
        config = msgspec.json.decode(wire_call.body)["generationConfig"]
        assert config.get("seed") == (seed if kept else None)
        assert [warning.code for warning in wire_call.warnings] == ([] if kept else ["parameter_dropped"])


def test_gemini_gets_no_empty_part_where_the_model_spoke_last() -> None:
    body = body_of("gemini", messages=(Message.user("Count."), Message.assistant("One, two,")))
    contents = cast("list[dict[str, list[dict[str, str]]]]", body["contents"])
    assert all(part["text"] for turn in contents for part in turn["parts"])
    assert contents[-1]["role"] == "user"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "openai"])
def test_a_request_without_a_message_is_refused_by_the_adapter(wire: str) -> None:
    """Only Responses supports a request without a message."""
    for messages in ((), (Message.user(" "),)):
        with pytest.raises(InvalidRequestError):
            body_of(wire, messages=messages)


@pytest.mark.parametrize(("wire", "path", "longest"), [
    ("openai", ("user",), 64),
    ("openai_compatible", ("user",), 64),
    ("anthropic", ("metadata", "user_id"), 256),
])  # fmt: skip
def test_a_long_id_of_a_user_becomes_a_digest(wire: str, path: tuple[str, ...], longest: int) -> None:
    """The digest is the same for each call. A short id is not changed."""

    def user(text: str) -> str:
        value: Json = body_of(wire, user=text)
        for key in path:
            assert isinstance(value, dict)
            value = value[key]
        return str(value)

    assert user("u" * longest) == "u" * longest
    assert user("u" * (longest + 1)) == user("u" * (longest + 1)) != user("v" * (longest + 1))
    assert len(user("u" * 1000)) <= longest


EMPTY: list[ContentBlock] = [
    ImageBlock(data=b"", media_type="image/png"),
    ImageBlock(url="data:image/png;base64,"),
    AudioBlock(data=b"", media_type="audio/wav"),
    DocumentBlock(data=b"", media_type="application/pdf"),
]


@pytest.mark.parametrize("wire", WIRES)
async def test_media_without_content_are_not_sent(wire: str) -> None:
    """New media without content are refused, and old ones are dropped."""
    for block in EMPTY:
        with pytest.raises(CapabilityError):
            await sent(wire, asking(Message.user((block,)), capabilities=ALL))
        history = (Message.user((block,)), Message.assistant("Nothing."), Message.user("And?"))
        wire_call = await sent(wire, asking(*history, capabilities=ALL))
        assert (b"base64" in wire_call.body, b'"data"' in wire_call.body) == (False, False)
        assert losses(wire_call) == 1


# -- Fields of a host are added to the engine's, with one rule on all wires. An unknown effort is an error.


NATIVE = [wire for wire in WIRES if wire != "tgi"]


def body_with_options(adapter: HttpAdapter, *, stream: bool = False, **fields: object) -> JsonObject:
    asked = asking(Message.user("Hi"), **fields)
    return cast("JsonObject", msgspec.json.decode(adapter.write_request(asked, stream=stream).body))


@pytest.mark.parametrize("wire", NATIVE)
def test_tools_that_are_no_list_are_an_error(wire: str) -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        body_with_options(
            adapter_of(wire), tools=(LOOK,), provider_options={wire: {"tools": {"type": "web_search"}}}
        )


def test_stream_options_keep_the_usage() -> None:
    """A host can add other stream options."""
    adapter = adapter_of("openai_compatible")
    options: Json = {"openai_compatible": {"stream_options": {"include_obfuscation": False}}}
    body = body_with_options(adapter, stream=True, provider_options=options)
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    with pytest.raises(InvalidRequestError, match="include_usage"):
        without: Json = {"openai_compatible": {"stream_options": {"include_usage": False}}}
        body_with_options(adapter, stream=True, provider_options=without)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
_bodies = st.dictionaries(st.sampled_from("abc"), _values, max_size=3)


@given(_bodies, _bodies)
def test_merging_keeps_the_adapters_fields_and_changes_no_object(ours: JsonObject, theirs: JsonObject) -> None:
    body, before, said = copy.deepcopy(ours), copy.deepcopy(ours), copy.deepcopy(theirs)
    inner = {name: value for name, value in body.items() if isinstance(value, dict)}
    try:
        merge_options(body, theirs)
    except InvalidRequestError:
        return
    assert theirs == said
    assert all(inner[name] == before[name] for name in inner)
    assert body.keys() == ours.keys() | theirs.keys()
    assert all(body[name] == ours[name] for name in ours.keys() - theirs.keys())
    again = copy.deepcopy(body)
    merge_options(again, theirs)
    assert again == body


def test_two_things_of_different_type_are_not_mixed() -> None:
    body: JsonObject = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "meta": {"a": {"b": 1}}}
    merge_options(body, {"thinking": {"type": "disabled"}, "meta": {"a": {"c": 2}}})
    assert body == {"thinking": {"type": "disabled"}, "meta": {"a": {"b": 1, "c": 2}}}
