"""What the decisions about Gemini's Interactions API claim is so: samples of the SDK's types go through it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.bus.errors import InvalidRequestError
from callboard.bus.streams.events import ProviderBlock
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import DocumentBlock, ImageBlock, OpaqueBlock, ProviderRaw, TextBlock
from callboard.bus.values.messages import Message, ToolDefinition
from scripts.wire_coverage import DECISIONS, SINGLE, deep_fields, fields, kinds, read_coverage

from ...support.fake_http import ask
from ...support.sdk_samples import sample
from ...support.wires import WIRES
from ...support.wires import interactions as i
from ...support.wires.reading import read, read_whole

COVERAGE = read_coverage(DECISIONS / "gemini_interactions.toml")
WIRE = WIRES[6]
LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}})


def claimed(part: str, verdict: str, words: str = "") -> list[tuple[str, str]]:
    """The types and fields of a part with that verdict, and with these words in its reason."""
    return [
        (of, field)
        for (where, of, field), row in COVERAGE.rows.items()
        if (where, row.verdict) == (part, verdict) and row.how.startswith(words)
    ]


def body_of(*messages: Message, **changes: object) -> JsonObject:
    asked = ask(*(messages or (Message.user("Hi"),)), **{"model": "gemini:gemini-3-flash", **changes})
    adapter = GeminiAdapter(AdapterConfig(options={"api": "interactions"}))
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    return body


def at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value[key]
    return value


def nested(path: str, value: Json) -> JsonObject:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def sample_of(part: str, kind: str) -> JsonObject:
    [of] = kinds(COVERAGE, part)[kind]
    value = sample(of)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("field", [field for _, field in claimed("request", "options")])
def test_a_request_field_that_is_optional_is_sent_as_the_host_gives_it(field: str) -> None:
    [of] = kinds(COVERAGE, "request")[SINGLE]
    value = sample(deep_fields(of)[field])
    assert at(body_of(provider_options={"gemini": nested(field, value)}), field) == value


def test_a_reply_in_the_background_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="background"):
        body_of(provider_options={"gemini": {"background": True}})


@pytest.mark.parametrize("kind", [of for of, field in claimed("tool", "options") if field == "type"])
def test_every_kind_of_tool_can_be_offered_beside_ours(kind: str) -> None:
    tool = sample_of("tool", kind)
    assert body_of(tools=(LOOK,), provider_options={"gemini": {"tools": [tool]}})["tools"][1:] == [tool]  # type: ignore[index, call-overload]


def test_a_tools_fields_for_the_provider_are_sent_with_it() -> None:
    for _, field in claimed("tool", "options", "`ToolDefinition"):
        value = sample_of("tool", "function")[field]
        tool = msgspec.structs.replace(LOOK, provider_options={"gemini": {field: value}})
        assert body_of(tools=(tool,))["tools"][0][field] == value  # type: ignore[index, call-overload]


@pytest.mark.parametrize("kind", [of for of, field in claimed("step", "reported") if field == "type"])
def test_no_step_of_a_reply_disappears(kind: str) -> None:
    """Whole or streamed; and it goes back as it came."""
    step = sample_of("step", kind)
    whole = read_whole(WIRE, i.interaction(step))
    streamed = read(WIRE, i.start(0, **step), i.stop(0), i.completed())
    assert whole.said == streamed.said == [{kind: step}]
    assert [event.raw for event in streamed.events if isinstance(event, ProviderBlock)] == [step]
    own = OpaqueBlock(kind, ProviderRaw("gemini", step))
    assert body_of(Message.user("Hi"), Message.assistant([own, TextBlock("So.")]))["input"][1] == step  # type: ignore[index, call-overload]


@pytest.mark.parametrize("kind", ["audio", "document", "image", "video"])
def test_media_of_a_reply_go_back_as_they_came(kind: str) -> None:
    step: JsonObject = {"type": "model_output", "content": [sample_of("content", kind)]}
    [block] = read_whole(WIRE, i.interaction(step)).content
    assert isinstance(block, OpaqueBlock | ImageBlock)
    assert block.provider_raw is not None
    raw = msgspec.structs.replace(block.provider_raw, provider="gemini", model=None)
    own = msgspec.structs.replace(block, provider_raw=raw)
    assert body_of(Message.user("Hi"), Message.assistant([own]), Message.user("So?"))["input"][1] == step  # type: ignore[index, call-overload]


@pytest.mark.parametrize(("kind", "field"), claimed("content", "options"))
def test_what_a_host_says_of_a_medium_is_sent_with_it(kind: str, field: str) -> None:
    value = sample_of("content", kind)[field.partition(".")[0]]
    film = DocumentBlock(
        data=b"x", media_type="video/mp4", provider_raw=ProviderRaw("gemini", {field.partition(".")[0]: value})
    )
    [step] = body_of(Message.user([film]))["input"]  # type: ignore[misc]
    assert step["content"][0][field.partition(".")[0]] == value  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "kind", [of for of, field in claimed("delta", "reported", "`ProviderBlock`") if field == "type"]
)
def test_no_delta_disappears(kind: str) -> None:
    """In a step of its own kind, which it makes whole; media are pieces of what the model says."""
    delta = sample_of("delta", kind)
    reading = read(WIRE, i.event("step.delta", index=0, delta=delta), i.completed())
    assert reading.said == [{kind: delta}]


def test_what_a_reply_says_beside_its_steps_is_in_the_details() -> None:
    [of] = kinds(COVERAGE, "reply")[SINGLE]
    about = {name: sample(fields(of)[name]) for _, name in claimed("reply", "reported")}
    step: JsonObject = {"type": "model_output", "content": [{"type": "text", "text": "Hi"}]}
    assert read_whole(WIRE, i.interaction(step, **about)).reply.provider_details == about
