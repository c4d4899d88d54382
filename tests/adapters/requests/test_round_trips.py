"""Round trips of replies; portable settings, videos and data URLs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AnthropicAdapter, OpenAIAdapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.requests.content import (
    film_type,
    media_bytes,
    media_type_of,
    read_data_url,
    write_data_url,
)
from callboard.adapters.requests.schemas import (
    describe,
    describe_constraints,
    fold_root,
    map_subschemas,
    moonshot_schema,
    move_to_description,
    normalise_schema,
    plain_schema,
)
from callboard.adapters.requests.settings import PORTABLE, write_settings
from callboard.bus.errors import CapabilityError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ResultPart,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition
from callboard.bus.values.usage import TokenUsage

from ...support.fake_http import FakeTransport, ask, request
from ...support.json_values import json_objects
from ...support.virtual_time import FakeClock
from ...support.wire_history import read_items, read_messages
from ...support.wires import chat
from ...support.wires.reading import asked

TEXT = st.text(min_size=1, max_size=12).filter(lambda text: bool(text.strip()) and not text.startswith("Error: "))
ARGUMENTS = json_objects(3)


class Side(ABC):
    """One protocol: the content of its replies, its capabilities, and the way to read its requests."""

    adapter: type[HttpAdapter]

    def __init__(self) -> None:
        self.made = self.adapter(AdapterConfig(api_key="k", base_url=self.adapter.wire_type.default_base_url))
        self.clock = FakeClock()

    @abstractmethod
    def reply(self, draw: st.DrawFn, number: int) -> list[JsonObject]:
        """The possible content of a reply: one block or item, or a few that belong together."""

    @abstractmethod
    def whole(self, content: list[JsonObject]) -> JsonObject:
        """The body of a reply with that content."""

    @abstractmethod
    def history(self, body: JsonObject) -> list[Message]:
        """The messages of a request."""

    @abstractmethod
    def document(self, draw: st.DrawFn) -> DocumentBlock: ...

    def read(self, content: list[JsonObject]) -> tuple[ContentBlock, ...]:
        assembler = Assembler(
            message_id="msg", provider=self.made.name, requested_model="m", clock=self.clock,
            estimate_usage=lambda text: TokenUsage(1, 1),
        )  # fmt: skip
        self.made.wire.read_reply(msgspec.json.encode(self.whole(content)), {}, assembler)
        assert assembler.warnings == [] or {warning.code for warning in assembler.warnings} == {"usage_estimated"}
        return assembler.final_content

    def send(self, messages: list[Message]) -> list[Message]:
        wire = self.made.write_request(
            request(messages=tuple(messages), model=f"{self.made.name}:m"), stream=False
        )
        assert wire.warnings == ()
        return self.history(msgspec.json.decode(wire.body))


class AnthropicSide(Side):
    adapter = AnthropicAdapter

    def reply(self, draw: st.DrawFn, number: int) -> list[JsonObject]:
        said: JsonObject = {"type": "text", "text": draw(TEXT)}
        match draw(st.integers(0, 6)):
            case 0:
                return [{"type": "thinking", "thinking": draw(st.text()), "signature": draw(TEXT)}, said]
            case 1:
                return [{"type": "redacted_thinking", "data": draw(TEXT)}, said]
            case 2:
                caller = draw(st.sampled_from([{}, {"caller": {"type": "direct"}}]))
                call = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": draw(ARGUMENTS)}
                return [{**call, **caller}]
            case 3:
                place = {"start_char_index": 0, "end_char_index": 1, "document_index": 0, "document_title": None}
                return [{**said, "citations": [{"type": "char_location", "cited_text": "a", **place}]}]
            case 4:
                found = {"type": "web_search_result_location", "cited_text": "a", "url": "https://x", "title": "t"}
                return [{**said, "citations": [{**found, "encrypted_index": draw(TEXT)}]}]
            case 5:
                used = f"srvtoolu_{number}"
                return [
                    {"type": "server_tool_use", "id": used, "name": "web_search", "input": draw(ARGUMENTS)},
                    {"type": "web_search_tool_result", "tool_use_id": used, "content": []},
                ]
            case _:
                return [said]

    def whole(self, content: list[JsonObject]) -> JsonObject:
        return {"content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}

    def history(self, body: JsonObject) -> list[Message]:
        return read_messages(body["messages"], self.read)

    def document(self, draw: st.DrawFn) -> DocumentBlock:
        name = draw(st.none() | st.just("a.pdf"))
        return draw(st.sampled_from([
            DocumentBlock(data=b"%PDF-1", name=name),
            DocumentBlock(url="https://x.test/a.pdf", name=name),
            DocumentBlock(data="a☃".encode(), media_type="text/plain", name=name),
        ]))  # fmt: skip


class ResponsesSide(Side):
    adapter = OpenAIAdapter

    def reply(self, draw: st.DrawFn, number: int) -> list[JsonObject]:
        item = self._item(draw, number)
        if "caller" in item:
            made = {"type": "program", "id": f"pr_{number}", "call_id": f"prog_{number}", "code": "f()"}
            return [{**made, "fingerprint": draw(TEXT)}, item]
        if item["type"] == "web_search_call" or not draw(st.booleans()):
            return [item]
        summary = [{"type": "summary_text", "text": text} for text in draw(st.lists(TEXT, max_size=2))]
        thought = {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": draw(TEXT)}
        return [thought, item]

    def _item(self, draw: st.DrawFn, number: int) -> JsonObject:
        call = {"call_id": f"call_{number}", "name": "f"}
        link = {"type": "url_citation", "start_index": 0, "end_index": 1, "url": "https://x", "title": "t"}
        match draw(st.integers(0, 4)):
            case 0:
                arguments = msgspec.json.encode(draw(ARGUMENTS)).decode()
                caller = draw(
                    st.sampled_from([{}, {"caller": {"type": "program", "caller_id": f"prog_{number}"}}])
                )
                return {"type": "function_call", "id": f"fc_{number}", **call, "arguments": arguments, **caller}
            case 1:
                return {"type": "custom_tool_call", "id": f"ctc_{number}", **call, "input": draw(st.text())}
            case 2:
                return {"type": "web_search_call", "id": f"ws_{number}", "status": "completed", "action": {}}
            case 3:
                content: list[Json] = [{"type": "refusal", "refusal": draw(TEXT)}]
            case _:
                content = [
                    {"type": "output_text", "text": text, "annotations": draw(st.sampled_from([[], [link]]))}
                    for text in draw(st.lists(TEXT, min_size=1, max_size=2))
                ]
        phase = draw(st.sampled_from([{}, {"phase": "commentary"}]))
        return {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content, **phase}

    def whole(self, content: list[JsonObject]) -> JsonObject:
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {"object": "response", "status": "completed", "output": content, "usage": usage}

    def history(self, body: JsonObject) -> list[Message]:
        return read_items(body["input"], self.read)

    def document(self, draw: st.DrawFn) -> DocumentBlock:
        return draw(st.sampled_from([
            DocumentBlock(data=b"%PDF-1", name="a.pdf"),
            DocumentBlock(url="https://x.test/a.pdf"),
            DocumentBlock(data=b"a,b", media_type="text/csv", name="a.csv"),
        ]))  # fmt: skip


SIDES = (AnthropicSide(), ResponsesSide())


def part(side: Side, draw: st.DrawFn) -> ResultPart:
    match draw(st.integers(0, 3)):
        case 0:
            return side.document(draw)
        case 1:
            return ImageBlock(data=b"\x89PNG\r\n\x1a\n" + draw(st.binary(max_size=3)))
        case 2:
            return ImageBlock(url="https://x.test/a.png")
        case _:
            return TextBlock(draw(TEXT))


@st.composite
def histories(draw: st.DrawFn, side: Side) -> list[Message]:
    """Turns of a session at one provider: the user's text, the reply, and the results of its calls."""
    messages: list[Message] = []
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message.user([part(side, draw) for _ in range(draw(st.integers(1, 2)))]))
        content: list[JsonObject] = []
        for _ in range(draw(st.integers(1, 4))):
            content += side.reply(draw, number)
            number += 1
        reply = Message(Role.ASSISTANT, side.read(content))
        messages.append(reply)
        results = []
        for call in reply.tool_uses:
            failed = draw(st.booleans())
            answer = draw(TEXT) if failed else (part(side, draw), part(side, draw))
            results.append(ToolResultBlock(call.id, answer, failed))
        if results:
            messages.append(Message(Role.TOOL, tuple(results)))
    return [*messages, Message.user("On")]


def plain(messages: list[Message]) -> list[Any]:
    """Messages whose calls have the wire's ids. Results that are only text become that text."""
    names = {call.id: call.provider_raw.data["id"] for m in messages for call in m.tool_uses if call.provider_raw}
    return [(message.role, [_plain(block, names) for block in message.content]) for message in messages]


def _plain(block: ContentBlock, names: dict[str, Any]) -> ContentBlock:
    match block:
        case ToolUseBlock():
            return msgspec.structs.replace(block, id=names[block.id])
        case ToolResultBlock():
            only_text = all(isinstance(inner, TextBlock) for inner in block.content)
            content = block.text if only_text else block.content
            return msgspec.structs.replace(
                block, tool_use_id=names.get(block.tool_use_id, block.tool_use_id), content=content
            )
        case _:
            return block


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.made.name)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_session_at_one_provider_survives_the_round_trip(side: Side, data: st.DataObject) -> None:
    """Every block keeps the provider's data, and no loss is reported."""
    history = data.draw(histories(side))
    assert plain(side.send(history)) == plain(history)


# -- Portable settings: written if a protocol has them, and otherwise dropped with a warning.


def test_every_portable_setting_is_a_field_of_a_request_that_is_empty_by_default() -> None:
    assert {name: getattr(request(), name) for name in PORTABLE} == dict.fromkeys(PORTABLE)


def test_an_unknown_verbosity_is_left_out_with_a_warning() -> None:
    body: JsonObject = {}
    (warning,) = write_settings(body, request(verbosity="chatty"), {"verbosity": "verbosity"}, "toy")
    assert body == {}
    assert warning.code == "parameter_dropped"
    assert "low, medium, high" in warning.message


# -- A document of unknown type whose address is that of a film is not sent to models without support for films.


FILMS = [
    ("https://www.youtube.com/watch?v=x", "video/mp4"), ("https://youtu.be/x", "video/mp4"),
    ("https://m.youtube.com/watch?v=x", "video/mp4"), ("https://x.test/a.MOV?size=1", "video/quicktime"),
    ("gs://x/a.avi", "video/avi"),
]  # fmt: skip
OTHERS = ["https://x.test/a.pdf", "https://x.test/report", "https://notyoutube.com/a", "https://[x/a.mp4", "mp4"]


def test_an_address_of_a_film_has_a_films_type() -> None:
    """Only a document without a type is taken for a film."""
    for url, media_type in FILMS:
        assert film_type(DocumentBlock(url=url)) == media_type
    assert [url for url in OTHERS if film_type(DocumentBlock(url=url)) is not None] == []
    url = "https://x.test/a.mp4"
    assert film_type(DocumentBlock(url=url, media_type="application/pdf")) is None
    assert film_type(AudioBlock(url=url)) is film_type(ImageBlock(url=url)) is None


@pytest.mark.parametrize("url", [FILMS[0][0], FILMS[3][0]])
@pytest.mark.parametrize("kind", [AnthropicAdapter, OpenAIAdapter])
def test_a_model_without_films_refuses_one_now_and_leaves_out_one_of_long_ago(
    kind: type[HttpAdapter], url: str
) -> None:
    adapter = kind(AdapterConfig())
    model = f"{adapter.name}:some-model"
    film = Message.user([DocumentBlock(url=url)])
    can = adapter.get_capabilities(model)
    with pytest.raises(CapabilityError, match="does not accept video/"):
        adapter.write_request(ask(film, model=model, capabilities=can), stream=False)
    later = [film, Message.assistant("A dog."), Message.user("Thanks.")]
    call = adapter.write_request(ask(*later, model=model, capabilities=can), stream=False)
    assert [loss.block for loss in call.losses] == list(film.content)
    assert url.encode() not in call.body


@pytest.mark.parametrize("url", [FILMS[0][0], FILMS[3][0]])
def test_gemini_takes_them_all(url: str) -> None:
    adapter = GeminiAdapter(AdapterConfig())
    model = f"{adapter.name}:gemini-3-flash"
    asked = ask(Message.user([DocumentBlock(url=url)]), model=model, capabilities=adapter.get_capabilities(model))
    call = adapter.write_request(asked, stream=False)
    assert not call.losses
    assert url.encode() in call.body


# -- Data URLs.


PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@pytest.mark.parametrize(("url", "found"), [
    ("data:image/png;base64,eA==", ("image/png", b"x")),
    ("DATA:Text/Plain;charset=utf-8,a%20b", ("text/plain", b"a b")),
    ("data:,x", ("", b"x")),
    ("data:image/jpeg;base64,_9j-4A==", ("image/jpeg", b"\xff\xd8\xfe\xe0")),
    ("data:image/jpeg;base64,/9j+\n4A==", ("image/jpeg", b"\xff\xd8\xfe\xe0")),
    ("data:image/png;base64,eA", None),
    ("data:image/png", None),
    ("https://x.test/a,b", None),
])  # fmt: skip
def test_reading(url: str, found: tuple[str, bytes] | None) -> None:
    """The result is type and bytes, or None."""
    assert read_data_url(url) == found


@pytest.mark.parametrize(("data", "true"), [
    (PNG, "image/png"),
    (b"\xff\xd8\xff\xe0" + bytes(8), "image/jpeg"),
    (b"GIF89a" + bytes(8), "image/gif"),
    (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    (b"neither of them", "image/bmp"),
])  # fmt: skip
def test_the_bytes_of_an_image_decide_its_type(data: bytes, true: str) -> None:
    """The label decides only if the type of the bytes is unknown. A data URL is read in the same way."""
    for block in (
        ImageBlock(data=data, media_type="IMAGE/BMP"),
        ImageBlock(url=write_data_url("image/bmp", data)),
    ):
        assert media_bytes(block) == (true, data)
        assert media_type_of(block) == true


def test_media_types_are_sent_without_parameters_and_capitals() -> None:
    """Parameters of audio stay, because they describe the samples."""
    text = DocumentBlock(data=b"x", media_type="Text/Plain; charset=utf-8")
    sound = AudioBlock(data=b"x", media_type="audio/pcm;rate=16000")
    assert (media_bytes(text), media_type_of(text)) == (("text/plain", b"x"), "text/plain")
    assert (media_bytes(sound), media_type_of(sound)) == (("audio/pcm;rate=16000", b"x"), "audio/pcm;rate=16000")


# -- Unions at the root of a schema: every wire sends one object, and the arguments keep their own schema.


S: JsonObject = {"type": "string"}
FILE: JsonObject = {
    "type": "object",
    "properties": {"kind": {"const": "file"}, "path": S},
    "required": ["kind", "path"],
}
PAGE: JsonObject = {
    "type": "object",
    "properties": {"kind": {"const": "page"}, "url": S},
    "required": ["kind", "url"],
}
EITHER: JsonObject = {"anyOf": [FILE, PAGE]}

FORMS: list[tuple[str, JsonObject, JsonObject]] = [
    ("anyOf", EITHER, {"properties": {"kind": S, "path": S, "url": S}, "required": ["kind"]}),
    ("oneOf", {"oneOf": [FILE, PAGE]}, {"required": ["kind"]}),
    ("allOf", {"allOf": [FILE, {"properties": {"note": S}}]}, {"required": ["kind", "path"]}),
    ("a union that demands one of two", {
        "type": "object", "properties": {"a": S, "b": S}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }, {"properties": {"a": S, "b": S}}),
    ("a reference", {"$ref": "#/$defs/F", "$defs": {"F": FILE}}, {"required": ["kind", "path"]}),
    ("a union of references", {"anyOf": [{"$ref": "#/$defs/F"}, {"$ref": "#/definitions/P"}],
                               "$defs": {"F": FILE}, "definitions": {"P": PAGE}}, {"required": ["kind"]}),
    ("a union within a union", {"anyOf": [{"oneOf": [FILE, PAGE]}, {"type": "object", "properties": {"kind": S}}]},
     {"properties": {"path": S, "url": S}}),
    ("an optional object", {"anyOf": [FILE, {"type": "null"}]}, {"required": ["kind", "path"]}),
    ("no object at all", {"anyOf": [S, {"type": "integer"}]}, {}),
    ("a schema that refers to itself", {"$ref": "#/$defs/A",
                                        "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, FILE]}}},
     {"required": ["kind", "path"]}),
]  # fmt: skip

UNIONS = {"anyOf", "oneOf", "allOf", "$ref"}


def at(body: Json, path: str) -> Any:
    for key in path.split("."):
        body = body[int(key)] if isinstance(body, list) else body[key]  # type: ignore[index,call-overload]
    return body


@pytest.mark.parametrize(("name", "schema", "expected"), FORMS, ids=[name for name, *_ in FORMS])
def test_a_schema_becomes_one_object(name: str, schema: JsonObject, expected: JsonObject) -> None:
    """The root has the type object, no union, and the properties of all alternatives. The field notes play it on
    each wire.
    """
    folded = fold_root(schema)
    found = folded.schema
    assert found["type"] == "object"
    assert not UNIONS & found.keys()
    assert bool(folded.warnings("tool 'look'")) is (name != "a reference")
    for key, value in expected.items():
        if key == "properties":
            assert found[key].keys() == value.keys() | ({"kind"} & found[key].keys())
        else:
            assert sorted(found[key]) == sorted(value)


@pytest.mark.parametrize("quirks", ["vllm", "sglang", "llama.cpp"])
def test_a_server_with_a_grammar_gets_the_union(quirks: str) -> None:
    """The server enforces the alternatives. Folding would lose this."""
    wire = chat.ChatWire(quirks)
    adapter = wire.make(FakeTransport(), FakeClock())
    assert isinstance(adapter, HttpAdapter)
    call = adapter.write_request(asked(wire, tools=(ToolDefinition("look", "", EITHER),)), stream=False)
    assert "anyOf" in at(msgspec.json.decode(call.body), "tools.0.function.parameters")
    assert call.warnings == ()


def test_a_discriminator_stays_a_choice() -> None:
    """The constants become one enum, and the description has the properties of each choice."""
    folded = fold_root(EITHER).schema
    assert at(folded, "properties.kind") == {"enum": ["file", "page"]}
    assert folded["description"] == "at least one of these forms: kind=file with path | kind=page with url"


def test_an_alternative_without_properties_requires_nothing() -> None:
    """Properties that only the other alternatives require are not required. A schema that allows nothing is no
    alternative.
    """
    assert "required" not in fold_root({"anyOf": [FILE, True]}).schema
    assert fold_root({"anyOf": [FILE, False]}).schema["required"] == ["kind", "path"]


def test_a_closed_union_stays_closed() -> None:
    """The folded schema has no other properties either, unless one alternative is open. A plain object is sent
    unchanged.
    """
    closed: JsonObject = {"additionalProperties": False}
    assert fold_root({"anyOf": [{**FILE, **closed}, {**PAGE, **closed}]}).schema["additionalProperties"] is False
    assert "additionalProperties" not in fold_root({"anyOf": [{**FILE, **closed}, PAGE]}).schema
    plain = fold_root(FILE)
    assert plain.schema is FILE
    assert plain.warnings("tool 'look'") == []


def test_moonshot_gets_a_type_for_each_property() -> None:
    """The type comes from the values or the keywords, or is all types. A type next to a union moves into its
    alternatives.
    """
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "any": {}, "unit": {"enum": ["m", None]}, "list": {"items": S}, "long": {"minLength": 3},
            "either": {"type": "string", "oneOf": [{"format": "date"}, {"type": "null"}]},
            "both": {"allOf": [{"type": "string"}, {"minLength": 1}]},
        },
    }  # fmt: skip
    found = at(moonshot_schema(schema), "properties")
    assert len(found["any"]["anyOf"]) == 6
    assert found["unit"]["type"] == ["string", "null"]
    assert found["list"]["type"] == "array"
    assert found["long"]["type"] == "string"
    assert found["either"] == {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
    assert found["both"] == {"type": "string", "minLength": 1}


# -- Schemas in the form of all targets, and constraints as text: supported parts are not changed.


def test_definitions_get_their_newer_name_and_references_follow() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/a"}, "b": {"type": "array", "items": {"$ref": "#/$defs/b"}}},
        "definitions": {"a": {"type": "object", "properties": {"again": {"$ref": "#/definitions/a"}}}},
        "$defs": {"b": {"anyOf": [{"$ref": "#/definitions/a"}, {"type": "null"}]}},
    }
    before = copy.deepcopy(schema)
    assert normalise_schema(schema) == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "array", "items": {"$ref": "#/$defs/b"}}},
        "$defs": {
            "a": {"type": "object", "properties": {"again": {"$ref": "#/$defs/a"}}},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
        },
    }
    assert schema == before, "the host's schema is not changed"


def test_what_only_tools_for_schemas_read_is_gone_everywhere() -> None:
    noise: JsonObject = {"$schema": "x", "$anchor": "x", "def": 1, "~standard": {}, "$comment": "x"}
    clean: JsonObject = {"type": "object", "properties": {"a": {"type": "string"}}, "$defs": {"d": {"const": 1}}}
    inside: JsonObject = {"properties": {"a": {"type": "string", **noise}}, "$defs": {"d": {"const": 1, **noise}}}
    assert normalise_schema({**clean, **noise, **inside}) == clean
    tool = ToolDefinition("look", "", {"type": "object", "$schema": "x", "properties": {"$schema": {}}})
    assert plain_schema(tool) == {"type": "object", "properties": {"$schema": {}}}


def test_names_of_properties_and_values_are_no_keywords() -> None:
    """Values of an enum, a constant or a default do not change either."""
    properties: JsonObject = {key: {"type": "string"} for key in ("$schema", "def", "definitions", "~x")}
    schema: JsonObject = {"type": "object", "properties": properties}
    assert normalise_schema(schema) == schema
    values: JsonObject = {"enum": [{"$schema": 1}], "const": {"def": 1}, "default": {"$ref": "#/definitions/a"}}
    assert normalise_schema(values) == values


def test_only_what_is_refused_moves_into_the_description() -> None:
    schema: JsonObject = {"type": "string", "minLength": 2, "format": "uri", "description": "Where"}
    moved = move_to_description(schema, lambda name, value: name == "format")
    assert moved == {"type": "string", "minLength": 2, "description": "Where (format: uri)"}
    assert move_to_description(schema, lambda name, value: False) is schema


def test_constraints_become_short_texts() -> None:
    said = describe_constraints(
        {"minLength": 2, "uniqueItems": True, "multipleOf": 0.5, "readOnly": False, "x-odd": [1]}
    )
    assert list(said) == ["at least 2 characters", "unique items", "a multiple of 0.5", "x-odd: [1]"]
    assert describe({"description": 7}, ["a"]) == {"description": "a"}
    assert describe({}, []) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "string", "#/definitions/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "$ref", "definitions", "$schema", "~x", "enum"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["type", "properties", "items", "definitions", "$defs", "not"]), json_values)
)
def test_no_json_makes_it_fail_and_twice_is_once(schema: dict[str, Json]) -> None:
    once = normalise_schema(schema)
    assert normalise_schema(once) == once
    assert map_subschemas(schema, lambda inner: inner) == schema
