"""Small things in a request that one server or another refuses are not sent, on any wire where they could be."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from callboard.adapters.schemas.sanitizer import without_booleans
from callboard.bus.errors import CapabilityError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import AudioBlock, ContentBlock, DocumentBlock, ImageBlock
from callboard.bus.values.messages import Message, ToolDefinition

from .test_capabilities_on_the_wire import ALL, WIRES, adapter_of, asking, losses, sent

pytestmark = pytest.mark.anyio

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


def test_boolean_subschemas_become_objects_and_the_hosts_schema_stays() -> None:
    before = msgspec.json.encode(BOOLEANS)
    assert without_booleans(BOOLEANS) == {
        "type": "object",
        "properties": {"any": {}, "list": {"type": "array", "items": {}}},
        "anyOf": [{}, {"type": "object"}],
        "additionalProperties": False,
    }
    assert msgspec.json.encode(BOOLEANS) == before


def test_ollama_gets_no_boolean_subschemas() -> None:
    """Neither in its tools nor in the form of the reply."""
    tool = ToolDefinition("f", "", BOOLEANS)
    body = body_of("ollama", tools=(tool,), output_schema=BOOLEANS)
    assert body["format"] == without_booleans(BOOLEANS)
    tools = cast("list[dict[str, JsonObject]]", body["tools"])
    folded = {name: value for name, value in without_booleans(BOOLEANS).items() if name != "anyOf"}
    assert tools[0]["function"]["parameters"] == folded


@pytest.mark.parametrize("seed", [2**31 - 1, -(2**31), 2**31, -(2**31) - 1])
def test_gemini_gets_seeds_of_32_bits(seed: int) -> None:
    """A larger one is left out, and said to be."""
    kept = abs(seed + 0.5) < 2**31
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
@pytest.mark.parametrize("messages", [(), (Message.user(" "),)])
def test_a_request_without_a_message_is_refused_here(wire: str, messages: tuple[Message, ...]) -> None:
    """Responses alone have a form for it."""
    with pytest.raises(InvalidRequestError):
        body_of(wire, messages=messages)


@pytest.mark.parametrize(
    ("wire", "path", "longest"),
    [
        ("openai", ("user",), 64),
        ("openai_compatible", ("user",), 64),
        ("anthropic", ("metadata", "user_id"), 256),
    ],
)
def test_a_long_id_of_a_user_becomes_a_digest(wire: str, path: tuple[str, ...], longest: int) -> None:
    """The same one from call to call; a short one goes as it is."""

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


@pytest.mark.parametrize("block", EMPTY)
@pytest.mark.parametrize("wire", WIRES)
async def test_media_without_content_are_not_sent(wire: str, block: ContentBlock) -> None:
    """New ones are refused, old ones stay behind."""
    with pytest.raises(CapabilityError):
        await sent(wire, asking(Message.user((block,)), capabilities=ALL))
    history = (Message.user((block,)), Message.assistant("Nothing."), Message.user("And?"))
    wire_call = await sent(wire, asking(*history, capabilities=ALL))
    assert b"base64" not in wire_call.body
    assert b'"data"' not in wire_call.body
    assert losses(wire_call) == 1
