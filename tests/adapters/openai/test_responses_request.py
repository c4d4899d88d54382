"""Requests on the wire. Each depends only on the canonical request."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.providers.openai.adapter import OpenAIAdapter, build_request
from callboard.adapters.providers.openai.data import COMPATIBLE, OPENAI, QUIRKS, Quirks, find_model
from callboard.adapters.requests.history_target import BuiltRequest
from callboard.bus.errors import CapabilityError, ConfigurationError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import DocumentBlock, OpaqueBlock, ProviderRaw, ToolUseBlock
from callboard.bus.values.messages import Message, Role, ToolDefinition

from ...support.fake_http import FakeReply, FakeTransport, ask, failing
from ...support.judges import responses_faults
from ...support.virtual_time import run_virtual
from ...support.wires import WIRES
from ...support.wires.reading import Reading
from ...support.wires.reading import read_whole as read_body
from ...support.wires.responses import call, message, reasoning, response

WEATHER = ToolDefinition(
    "weather",
    "The weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
SEARCH: JsonObject = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}


def request(*messages: Message, **fields: object) -> CanonicalRequest:
    said = messages or (Message.user("Hi"),)
    return ask(*said, **{"model": "openai:gpt-test", "max_output_tokens": 1000, **fields})


def read_whole(*output: Json) -> Reading:
    """Read a reply with these items."""
    return read_body(WIRES[1], response(output=list(output)), model="openai:gpt-test")


def build(asked: CanonicalRequest, quirks: Quirks = OPENAI, *, stream: bool = False) -> BuiltRequest:
    return build_request(asked, provider="openai", quirks=quirks, stream=stream)


def body(asked: CanonicalRequest, quirks: Quirks = OPENAI) -> JsonObject:
    return build(asked, quirks).body


def items(*messages: Message, quirks: Quirks = OPENAI, model: str = "openai:gpt-test") -> list[JsonObject]:
    found = body(request(*messages, model=model), quirks)["input"]
    assert isinstance(found, list)
    return [item for item in found if isinstance(item, dict)]


def tools(asked: CanonicalRequest, quirks: Quirks = OPENAI) -> list[JsonObject]:
    found = msgspec.json.encode(body(asked, quirks)["tools"])
    return msgspec.json.decode(found, type=list[JsonObject])


def codes(asked: CanonicalRequest, quirks: Quirks = OPENAI) -> list[str]:
    return [warning.code for warning in build(asked, quirks).warnings]


def test_empty_input_is_an_empty_user_message() -> None:
    """The API refuses an empty input."""
    assert items(Message.user(" ")) == [{"role": "user", "content": ""}]


def test_invalid_names_of_the_model_are_made_valid() -> None:
    """A dot in a name would be refused when the call is sent back."""
    made_up = ToolUseBlock("tu_1", "multi_tool_use.parallel", {}, incomplete=True)
    assert items(Message.assistant([made_up]))[0]["name"] == "multi_tool_use_parallel"


def replay(*output: Json) -> list[JsonObject]:
    """The items of a reply that was read and written again."""
    return items(Message.user("?"), Message.assistant(read_whole(*output).content), Message.user("!"))[1:-1]


def test_reasoning_is_sent_back_with_the_item_after_it() -> None:
    """The reasoning item is unchanged, and the item that followed it has its own id."""
    item = reasoning("Why", status=None)
    said = {
        "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
        "content": [{"type": "output_text", "text": "Hello", "annotations": []}], "phase": "final_answer",
    }  # fmt: skip
    assert replay(item, message("Hello", phase="final_answer")) == [reasoning("Why"), said]
    thought, made, answer = replay(item, call("f", '{"a":1}'))
    assert (thought["id"], made["id"], made["call_id"]) == ("rs_1", "fc_1", "call_1")
    assert answer["call_id"] == "call_1"


def test_plain_reasoning_is_sent_back_and_empty_reasoning_is_dropped() -> None:
    """Servers of open models need the id. Without content and encryption, the item is dropped, and so are the ids
    after it.
    """
    plain: JsonObject = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
    }
    thought, said = replay(plain, message("Hello"))
    assert (thought, said["id"]) == (plain, "msg_1")
    (bare, *_) = replay({"type": "reasoning", "id": "rs_1", "summary": []}, call("f", "{}"))
    assert (bare["type"], "id" in bare) == ("function_call", False)


def test_every_replayed_item_has_what_the_vendors_type_requires() -> None:
    """A message of another provider without an id gets one. Ids are distinct and the same in each request."""
    nameless: JsonObject = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]}
    history = (
        Message.user("?"),
        Message.assistant("Foreign."),
        Message.user("?"),
        Message.assistant(read_whole(nameless, message("Hello", item_id="msg_7")).content),
        Message.user("?"),
        Message.assistant(read_whole(reasoning("Why"), message("Hello"), call("f", "{}")).content),
        Message.user("!"),
    )
    for model in ("openai:gpt-test", "openai:gpt-4o"):
        sent = body(request(*history, model=model))
        assert responses_faults(sent) == []
        found = items(*history, model=model)
        messages = [item for item in found if item.get("role") == "assistant"]
        assert all(str(item["id"]).startswith("msg_") and item["status"] == "completed" for item in messages)
        assert len({str(item["id"]) for item in messages}) == len(messages) == 3
        assert found[:3] == items(*history[:3], model=model)


@pytest.mark.parametrize(("output", "kept"), [
    ([SEARCH], True),
    ([{"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}], True),
    ([{"type": "mcp_approval_request", "id": "m"}], False),
    ([{"type": "invented", "id": "i"}], False),
    ([{"type": "tool_search_call", "call_id": None}, {"type": "tool_search_output", "call_id": None}], True),
    ([{"type": "tool_search_call", "call_id": "c", "execution": "client"}], False),
    ([{"type": "shell_call", "call_id": "c"}, {"type": "shell_call_output", "call_id": "c"}], True),
    ([{"type": "shell_call", "call_id": "c"}, {"type": "shell_call_output", "call_id": "d"}], False),
])  # fmt: skip
def test_opaque_items_are_sent_back_if_they_are_valid(output: list[JsonObject], kept: bool) -> None:
    """Self-contained items and complete pairs are sent back unchanged. An item without its output is dropped."""
    content = read_whole(*output, message("Hello")).content
    asked = request(Message.user("?"), Message.assistant(content))
    found = body(asked)["input"]
    assert isinstance(found, list)
    assert found[1:-1] == (output if kept else [])
    assert codes(asked) == ([] if kept else ["content_dropped"] * len(output))


def test_reasoning_of_another_model_is_dropped_with_dependent_ids_and_items() -> None:
    """Without its reasoning, an item with an id is refused. Back at its own model, everything is sent again."""
    content = read_whole(reasoning("Why"), SEARCH, message("Hello")).content
    history = (Message.user("?"), Message(Role.ASSISTANT, content, id="msg_7"), Message.user("!"))
    thought, searched, said = items(*history)[1:-1]
    assert (thought["id"], searched, said["id"]) == ("rs_1", SEARCH, "msg_1")
    (alone,) = items(*history, model="openai:gpt-other")[1:-1]
    assert alone["id"] != "msg_1"
    losses = build(request(*history, model="openai:gpt-other")).history.losses
    assert [(loss.block_type, loss.message_id) for loss in losses] == [("thinking", "msg_7"), ("opaque", "msg_7")]


def test_reasoning_is_never_sent_before_the_item_of_another() -> None:
    """If the reasoning lost its own item, the next reply's item would be taken for it."""
    cut = read_whole(reasoning("Why")).content
    later = read_whole(reasoning("Then", number=2), message("Hello", item_id="msg_2")).content
    replies = (Message(Role.ASSISTANT, cut, id="msg_cut"), Message(Role.ASSISTANT, later, id="msg_later"))
    found = items(Message.user("?"), *replies, Message.user("!"))
    assert [item.get("id") for item in found] == [None, "rs_2", "msg_2", None]
    bare = items(Message.user("?"), Message.assistant([*cut, later[-1]]), Message.user("!"))
    assert [item.get("type") for item in bare] == [None, "message", None]
    assert bare[1]["id"] != "msg_2"


def test_reasoning_before_a_dropped_item_is_dropped_too() -> None:
    """The item after the reasoning can't be sent back, so the reasoning is dropped too."""
    foreign = OpaqueBlock("server_tool_use", ProviderRaw("anthropic", {"type": "server_tool_use"}))
    thought = read_whole(reasoning("Why")).content[0]
    asked = request(Message.user("?"), Message.assistant([thought, foreign]), Message.user("!"))
    assert len(items(*asked.messages)) == 2
    assert codes(asked) == ["content_dropped"] * 2


def test_tools_are_strict_if_nothing_is_lost() -> None:
    """Strict mode is explicit: on for OpenAI, off for others, and off with a warning for unsupported schemas."""
    (tool,) = tools(request(tools=(WEATHER,)))
    properties = {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}}
    strict = {
        "type": "object", "properties": properties, "required": ["city", "days"], "additionalProperties": False,
    }  # fmt: skip
    assert (tool["parameters"], tool["strict"]) == (strict, True)
    (tool,) = tools(request(tools=(WEATHER,)), COMPATIBLE)
    assert (tool["parameters"], tool["strict"]) == (WEATHER.input_schema, False)
    free = ToolDefinition("free", input_schema={"type": "object", "properties": {"x": {"type": "object"}}})
    assert codes(request(tools=(free,))) == ["tool_not_strict"]
    (tool,) = tools(request(tools=(free,)))
    assert tool["strict"] is False
    with pytest.raises(InvalidRequestError, match=r"'free'.*properties\.x.*strict=False"):
        body(request(tools=(msgspec.structs.replace(free, strict=True),)))


@pytest.mark.parametrize(("model", "effort", "sent"), [
    ("gpt-4o", None, True),
    ("my-deployment", None, True),
    ("o3-mini", None, False),
    ("gpt-5", None, False),
    ("gpt-5-mini-2025-08-07", None, False),
    ("openai/gpt-5", "low", False),
    ("gpt-5.1", None, True),
    ("gpt-5.4", "none", True),
    ("gpt-5.4", "high", False),
    ("gpt-5.6", None, False),
    ("gpt-5.6", "none", True),
])  # fmt: skip
def test_sampling_during_reasoning(model: str, effort: str | None, sent: bool) -> None:
    """Models refuse sampling parameters during reasoning. They are left out with a warning."""
    asked = request(model=model, reasoning_effort=effort, temperature=0.5, top_p=0.9)
    assert ("temperature" in body(asked), "top_p" in body(asked)) == (sent, sent)
    assert codes(asked) == ([] if sent else ["parameter_dropped"] * 2)


def test_llama_cpp_gets_only_supported_fields() -> None:
    """The request has typed assistant items, one place for system texts, no least output, and no schema, which the
    server would ignore.
    """
    llama = QUIRKS["llama.cpp"]
    asked = request(Message.user("a"), Message.assistant("b"), Message.user("c"), reasoning_effort="low")
    assert body(asked, llama) == {
        "model": "gpt-test",
        "input": [
            {"role": "user", "content": "a"},
            {"type": "message", "role": "assistant", "id": "msg_000000000000000000000001", "status": "completed",
             "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"role": "user", "content": "c"},
        ],
        "max_output_tokens": 1000,
    }  # fmt: skip
    sent = body(request(Message.developer("d"), Message.user("u"), system_prompt="S", max_output_tokens=3), llama)
    assert (sent["instructions"], sent["max_output_tokens"]) == ("S\n\nd", 3)
    with pytest.raises(CapabilityError):
        body(request(output_schema={"type": "object"}), llama)
    assert codes(request(Message.user([DocumentBlock(data=b"%PDF-1")])), COMPATIBLE) == []


# -- Portable settings, the prompt cache's key, and facts about the models, on the Responses API.


def build_model(model: str = "gpt-test", quirks: Quirks = OPENAI, **changes: object) -> BuiltRequest:
    asked = ask(Message.user("Hi"), model=f"openai:{model}", **changes)
    built = build_request(asked, provider="openai", quirks=quirks, stream=False)
    assert responses_faults(built.body) == []
    return built


def test_verbosity_is_next_to_the_replys_form() -> None:
    schema: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
    text = build_model(verbosity="high", output_schema=schema).body["text"]
    assert isinstance(text, dict)
    assert text.keys() == {"format", "verbosity"}


@pytest.mark.parametrize(
    ("model", "effort", "summary"),
    [("gpt-5.5", "low", "auto"), ("gpt-5.5", "none", None), ("gpt-of-tomorrow", "low", None)],
)
def test_effort_asks_for_a_summary_where_the_model_is_known_to_give_one(
    model: str, effort: str, summary: str | None
) -> None:
    reasoning = build_model(model, reasoning_effort=effort).body["reasoning"]
    assert isinstance(reasoning, dict)
    assert reasoning.get("summary") == summary
    assert build_model("gpt-5.5").body.get("reasoning") is None
    assert build_model("gpt-5.5", COMPATIBLE, reasoning_effort="low").body["reasoning"] == {"effort": "low"}


def test_a_model_that_returns_no_summary_is_asked_once() -> None:
    said = "Your organization must be verified to generate reasoning summaries. Please go to the settings."
    refusal = {"error": {"message": said, "type": "invalid_request_error", "param": "reasoning.summary"}}
    body = msgspec.json.encode(response(output=[message("Hi")]))
    replies = [failing(400, msgspec.json.encode(refusal)), FakeReply(body), FakeReply(body)]
    transport = FakeTransport(*replies)
    adapter = OpenAIAdapter(AdapterConfig(api_key="sk-test"), transport=transport)

    async def asked_twice() -> None:
        for _ in range(2):
            reply = await adapter.complete(ask(Message.user("Hi"), model="openai:gpt-5.5", reasoning_effort="low"))
            assert reply.text == "Hi"

    run_virtual(asked_twice)
    sent = [msgspec.json.decode(one.body)["reasoning"] for one in transport.requests]
    assert sent == [{"effort": "low", "summary": "auto"}, {"effort": "low"}, {"effort": "low"}]


def test_servers_that_are_only_compatible_know_the_older_name_and_no_cache_key() -> None:
    body = build_model(quirks=COMPATIBLE, user="u_1", session_id="ses_1").body
    assert body["user"] == "u_1"
    assert not {"safety_identifier", "prompt_cache_key"} & body.keys()


def test_the_calls_of_a_session_share_a_key_of_the_prompt_cache_which_is_not_its_id() -> None:
    first, again, other = (
        build_model(session_id=name).body["prompt_cache_key"] for name in ("ses_1", "ses_1", "ses_2")
    )
    assert first == again != other
    assert isinstance(first, str)
    assert len(first) <= 64
    assert "ses_1" not in first
    assert "prompt_cache_key" not in build_model().body


def test_the_cache_key_can_be_chosen_or_left_out() -> None:
    own = build_model(session_id="ses_1", provider_options={"openai": {"prompt_cache_key": "mine"}})
    assert own.body["prompt_cache_key"] == "mine"
    off = build_model(session_id="ses_1", provider_options={"openai": {"auto_cache": False}})
    assert not {"prompt_cache_key", "auto_cache"} & off.body.keys()


@pytest.mark.parametrize("name", ["gpt-6.3-sol", "gpt-7", "gpt-7.3-luna", "gpt-12"])
def test_a_newer_name_inherits_the_newest_row(name: str) -> None:
    assert find_model(name) is find_model("gpt-6.2-sol")


@pytest.mark.parametrize(("name", "efforts"), [
    ("gpt-5.7", ("none", "low", "medium", "high", "xhigh", "max")),
    ("gpt-5.1-2025-11-13", ("none", "low", "medium", "high")),
    ("gpt-6.1-terra", ("none", "low", "medium", "high", "xhigh", "max")),
    ("gpt-6.1-sol", ("low", "medium", "high", "xhigh", "max")),
    ("gpt-7-chat", ("medium",)),
    ("openai/gpt-4o-mini", ()),
])  # fmt: skip
def test_a_family_is_known_by_its_names_beginning(name: str, efforts: tuple[str, ...]) -> None:
    row = find_model(name)
    assert row is not None
    assert row.efforts == efforts


def test_what_is_no_such_model_is_not_guessed_at() -> None:
    assert find_model("gpt-oss-120b") is None
    assert find_model("llama-4") is None


def adapter(base_url: str | None = None, **options: Json) -> OpenAIAdapter:
    return OpenAIAdapter(AdapterConfig(api_key="sk-secret", base_url=base_url, options=options))


def test_quirks_by_name_and_by_address() -> None:
    """OpenAI's own hosts are recognised. Others count as compatible only. A wrong name is an error."""
    assert adapter().wire.quirks == OPENAI
    assert adapter(base_url="https://my.openai.azure.com/openai/v1/").wire.quirks == OPENAI
    assert adapter(base_url="https://openrouter.ai/api/v1").wire.quirks == COMPATIBLE
    assert not adapter(quirks="llama.cpp").capabilities.supports_structured_output
    with pytest.raises(ConfigurationError, match=r"llama\.cpp"):
        adapter(quirks="nonsense")
