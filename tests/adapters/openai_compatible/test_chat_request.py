"""Chat Completions requests: the body, the quirks of each server, and marks of the prompt cache."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.openai_compatible.messages import keep_latest
from callboard.adapters.providers.openai_compatible.quirks import HOSTS, QUIRKS, Quirks, choose_quirks, quirks_name
from callboard.adapters.providers.openai_compatible.request import build_body, schema_name
from callboard.adapters.requests.content import encode_json
from callboard.adapters.requests.history_target import BuiltRequest
from callboard.bus.errors import ConfigurationError, InvalidRequestError, UnsupportedToolChoiceError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ImageBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition

from ...support.fake_http import FakeTransport
from ...support.json_values import json_objects
from ...support.wires.chat import ChatWire, ask, reply
from ...support.wires.reading import read_whole

Plain = dict[str, Any]
DEFAULT = QUIRKS["default"]
ALL = AdapterCapabilities(
    supports_images=True, supports_tools=True, supports_structured_output=True, supports_thinking=True
)
PNG = b"\x89PNG\r\n\x1a\n"
LOOK = ToolDefinition(
    "look", "Look at it", {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
)


def built(
    request: CanonicalRequest,
    quirks: Quirks = DEFAULT,
    capabilities: AdapterCapabilities = ALL,
    *,
    provider: str = "openai_compatible",
    stream: bool = False,
) -> BuiltRequest:
    return build_body(request, quirks, capabilities, provider, stream=stream)


def written(request: CanonicalRequest, quirks: Quirks = DEFAULT, **options: bool) -> Plain:
    return built(request, quirks, **options).body  # type: ignore[arg-type]


def wire_messages(*messages: Message, quirks: Quirks = DEFAULT, **changes: object) -> list[Plain]:
    wire: list[Plain] = msgspec.convert(written(ask(*messages, **changes), quirks)["messages"], list[Plain])
    return wire


LOOKED = (
    Message.user("Go"), Message.assistant([ToolUseBlock("tu_1", "look", {})]), Message.tool_result("tu_1", "seen"),
)  # fmt: skip


def codes(body: BuiltRequest) -> list[str]:
    return [warning.code for warning in body.warnings]


def test_system_texts_may_have_to_be_the_users() -> None:
    wire = wire_messages(Message.user("U"), system_prompt="P", quirks=Quirks(system_role="user"))
    assert wire[0] == {"role": "user", "content": "P"}


def test_images_of_results_follow_in_the_next_users_message() -> None:
    wire = wire_messages(
        Message.user("Go"),
        Message.assistant([ToolUseBlock("tu_1", "look", {})]),
        Message.tool_result("tu_1", [ImageBlock(data=PNG)]),
        Message.user("And?"),
    )
    assert wire[1]["content"] is None
    assert [part["type"] for part in wire[3]["content"]] == ["text", "image_url", "text"]


def test_unsupported_tool_choices() -> None:
    """If the server ignores choices, forcing raises an error and `none` leaves the tools out. A parameter for
    parallel calls is an error of OpenAI without tools.
    """
    ollama = QUIRKS["ollama"]
    for choice in (ToolChoice("required"), ToolChoice("named", "look")):
        with pytest.raises(UnsupportedToolChoiceError):
            built(ask(tools=(LOOK,), tool_choice=choice), ollama)
    assert "tools" not in written(ask(tools=(LOOK,), tool_choice=ToolChoice("none")), ollama)
    assert "parallel_tool_calls" not in written(ask(parallel_tool_calls=False))


SCHEMA: JsonObject = {
    "title": "A city!", "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
    "additionalProperties": False,
}  # fmt: skip


def test_the_schema_is_in_the_text_with_json_mode() -> None:
    in_words = written(ask(output_schema=SCHEMA), QUIRKS["deepseek"])
    assert in_words["response_format"] == {"type": "json_object"}
    assert '"name"' in json.dumps(in_words["messages"][0]).replace("\\", "")
    assert schema_name({"title": "日本"}) == "response"


@pytest.mark.parametrize(("name", "model", "effort", "refused"), [
    ("openai", "o3", None, {"temperature", "top_p", "frequency_penalty", "presence_penalty", "stop"}),
    ("openai", "gpt-5.6", "none", set()),
    ("openai", "gpt-4o", None, set()),
    ("xai", "grok-4-fast-reasoning", None, {"frequency_penalty", "presence_penalty", "stop"}),
    ("xai", "grok-4-fast-non-reasoning", None, set()),
])  # fmt: skip
def test_settings_that_a_reasoning_model_refuses(
    name: str, model: str, effort: str | None, refused: set[str]
) -> None:
    """Each unsupported setting is left out with its own warning. The rest is sent."""
    asked: Plain = {"temperature": 0.5, "top_p": 0.5, "frequency_penalty": 0.1, "presence_penalty": 0.1, "seed": 7}
    body = built(
        ask(**asked, stop_sequences=("END",), reasoning_effort=effort, model=f"{name}:{model}"), QUIRKS[name]
    )
    assert {"stop", *asked} - body.body.keys() == refused
    assert {warning.message.split()[0] for warning in body.warnings} == refused


def test_a_tool_call_cannot_be_forced_during_reasoning() -> None:
    """DeepSeek refuses it during reasoning and accepts it without."""
    forced = {"tools": (LOOK,), "tool_choice": ToolChoice("required")}
    with pytest.raises(UnsupportedToolChoiceError, match="while it reasons"):
        built(ask(**forced, reasoning_effort="high"), QUIRKS["deepseek"])
    assert built(ask(**forced, reasoning_effort="none"), QUIRKS["deepseek"]).body["tool_choice"] == "required"


def thought(text: str, **data: Json) -> ThinkingBlock:
    return ThinkingBlock(text, provider_raw=ProviderRaw("openai_compatible", data))


def test_a_message_that_steers_a_tool_loop_does_not_end_it() -> None:
    """The reasoning of the earlier calls is sent back, and nothing is lost."""
    history = (
        Message.user("Go"),
        Message.assistant([thought("a"), ToolUseBlock("tu_1", "look", {})]),
        Message.tool_result("tu_1", "seen"),
        Message(Role.USER, (TextBlock("More"),), steers=True),
        Message(Role.USER, (TextBlock("and more"),), steers=True),
        Message.assistant([thought("b"), ToolUseBlock("tu_2", "look", {})]),
        Message.tool_result("tu_2", "seen"),
    )
    made = built(ask(*history), QUIRKS["deepseek"])
    echoes = [m.get("reasoning_content") for m in msgspec.convert(made.body["messages"], list[Plain])]
    assert echoes == [None, "a", None, None, "b", None]
    assert codes(made) == []


def test_a_server_that_replays_nothing_gets_no_reasoning() -> None:
    called = Message.assistant([thought("a"), ToolUseBlock("tu_1", "look", {})])
    history = (Message.user("Go"), called, Message.tool_result("tu_1", "seen"))
    for replays, sent in (("tool_loop", "a"), ("nothing", None)):
        quirks = msgspec.structs.replace(DEFAULT, replays=replays)
        assert wire_messages(*history, quirks=quirks)[1].get("reasoning_content") == sent


def test_moonshot_gets_a_text_for_a_blank_result() -> None:
    """Other servers get the unchanged result."""
    history = (*LOOKED[:2], Message.tool_result("tu_1", " "))
    assert wire_messages(*history, quirks=QUIRKS["moonshot"])[-1]["content"] == "(no output)"
    assert wire_messages(*history)[-1]["content"] == " "


@given(json_objects(4))
@settings(max_examples=50, deadline=None)
def test_tool_arguments_survive_the_round_trip(arguments: JsonObject) -> None:
    """Any JSON is equal after it was written as text and read again."""
    history = (Message.user("Go"), Message.assistant([ToolUseBlock("tu_1", "look", arguments)]), Message.user("?"))
    body = msgspec.json.decode(encode_json(written(ask(*history))))
    back = read_whole(ChatWire("default"), reply("tool_calls", tool_calls=body["messages"][1]["tool_calls"]))
    assert [block.input for block in back.reply.tool_uses] == [arguments]


def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        encode_json({"a": object()})  # type: ignore[dict-item]


# -- The server of an address, its endpoint, and the choice of a configuration.


@pytest.mark.parametrize(("base_url", "name", "endpoint"), [
    (None, "openai", "https://api.openai.com/v1/chat/completions"),
    ("https://api.openai.com/v1/", "openai", "https://api.openai.com/v1/chat/completions"),
    ("https://api.groq.com", "groq", "https://api.groq.com/openai/v1/chat/completions"),
    ("https://generativelanguage.googleapis.com/v1beta", "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"),
    ("https://mine.openai.azure.com/openai/v1", "azure",
        "https://mine.openai.azure.com/openai/v1/chat/completions"),
    ("https://mine.openai.azure.com/openai/deployments/x", "azure",
        "https://mine.openai.azure.com/openai/deployments/x/chat/completions?api-version=2024-10-21"),
    ("http://127.0.0.1:8080", "default", "http://127.0.0.1:8080/v1/chat/completions"),
    ("http://proxy.test/openai/v1", "default", "http://proxy.test/openai/v1/chat/completions"),
    ("http://proxy.test/llm/v4", "default", "http://proxy.test/llm/v4/chat/completions"),
])  # fmt: skip
def test_addresses(base_url: str | None, name: str, endpoint: str) -> None:
    """An address with or without its version leads to the same endpoint."""
    adapter = OpenAICompatibleAdapter(AdapterConfig(base_url=base_url), transport=FakeTransport())
    assert adapter.wire.quirks == QUIRKS[name]
    assert adapter.base_url + adapter.wire.path == endpoint


def test_the_host_table_names_quirks_that_exist() -> None:
    """Every host has a known name."""
    assert set(HOSTS.values()) <= set(QUIRKS)
    assert quirks_name("http://[broken") == "default"


def test_single_fields_can_be_set() -> None:
    """An object replaces fields of its base, and `tools` replaces the field of that name."""
    quirks = choose_quirks({"quirks": {"base": "groq", "max_stop": 2}, "tools": "emulate"}, "http://x.test")
    assert (quirks.max_stop, quirks.path, quirks.tools) == (2, QUIRKS["groq"].path, "emulate")


@pytest.mark.parametrize("options", [
    {"quirks": "unheard-of"}, {"quirks": 7}, {"quirks": {"max_stop": "many"}}, {"quirks": {"unheard_of": 1}},
    {"quirks": {"fixed_sampling": "("}}, {"tools": "perhaps"},
])  # fmt: skip
def test_wrong_options_are_configuration_errors(options: dict[str, Json]) -> None:
    with pytest.raises(ConfigurationError, match="quirks"):
        choose_quirks(options, "http://x.test")


def test_a_path_can_be_given() -> None:
    """Some endpoints are at unusual paths."""
    config = AdapterConfig(base_url="http://x.test", options={"path": "/chat"})
    assert OpenAICompatibleAdapter(config, transport=FakeTransport()).wire.path == "/chat"


# -- Marks of the prompt cache in Chat Completions: at most the last four, and none on an empty text.


MARK: JsonObject = {"cache_control": {"type": "ephemeral"}}


def text(said: str, marked: bool = True) -> JsonObject:
    return {"type": "text", "text": said, **(MARK if marked else {})}


def marks(value: Json) -> list[str]:
    """The marked texts and ids, in order."""
    if isinstance(value, list):
        return [found for entry in value for found in marks(entry)]
    if not isinstance(value, dict):
        return []
    own = (
        [str(value.get("text") or value.get("tool_call_id") or value.get("id"))]
        if "cache_control" in value
        else []
    )
    return own + [found for inner in value.values() for found in marks(inner)]


def user(*texts: str) -> JsonObject:
    return {"role": "user", "content": [text(each) for each in texts]}


BODIES: list[tuple[str, JsonObject, list[str]]] = [
    ("few", {"messages": [user("a"), user("b")]}, ["a", "b"]),
    ("many", {"messages": [user(each) for each in "abcdef"]}, ["c", "d", "e", "f"]),
    ("many in one message", {"messages": [user(*"abcdef")]}, ["c", "d", "e", "f"]),
    ("the system's stay", {"messages": [{**user("s"), "role": "system"}, *map(user, "abcdef")]},
     ["s", "d", "e", "f"]),
    ("tools count", {"tools": [{"id": "t", **MARK}], "messages": [user(each) for each in "abcd"]},
     ["t", "b", "c", "d"]),
    ("an empty text", {"messages": [user(""), user("a", " \n")]}, ["a"]),
    ("results and calls", {"messages": [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **MARK}]},
        {"role": "tool", "tool_call_id": "r1", "content": "ok", **MARK}, *map(user, "abc"),
    ]}, ["r1", "a", "b", "c"]),
    ("too many of the system's", {"messages": [{**user(*"abcdef"), "role": "system"}]}, ["c", "d", "e", "f"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "left"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_the_last_marks_are_kept(body: JsonObject, left: list[str]) -> None:
    """The oldest of the conversation are dropped first, then the oldest of the system text."""
    messages = body["messages"]
    assert isinstance(messages, list)
    copy = {**body, "messages": list(messages)}
    keep_latest(copy)
    assert marks(copy) == left


def test_the_mark_of_the_whole_body_counts() -> None:
    """OpenRouter accepts one mark for the whole request."""
    body: JsonObject = {"messages": [user(each) for each in "abcd"], **MARK}
    keep_latest(body)
    assert marks(body["messages"]) == ["b", "c", "d"]


def test_the_hosts_blocks_are_not_changed() -> None:
    """Messages that lose a mark are copied."""
    first = user("a")
    keep_latest({"messages": [first, *map(user, "bcde")]})
    assert marks(first) == ["a"]
