"""Free-form tools on both of OpenAI's protocols, and the own fields of tools."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.clock import Clock
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ProviderRaw, ToolUseBlock
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, tool

from ..support.fake_http import FakeReply, FakeTransport, ask
from ..support.judges import chat_faults, messages_faults, responses_faults
from ..support.scripted import adapter_type
from ..support.virtual_time import run_virtual
from ..support.wires import WIRES
from ..support.wires import chat as c
from ..support.wires import responses as r
from ..support.wires.reading import read, read_whole

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

CLAUDE, RESPONSES, CHAT, *_ = WIRES
OPENAI, COMPATIBLE = OpenAIAdapter(AdapterConfig()), OpenAICompatibleAdapter(AdapterConfig())
GRAMMAR: JsonObject = {"type": "grammar", "syntax": "lark", "definition": 'start: "SELECT " /.+/'}
SCHEMA: JsonObject = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
FREE: JsonObject = {"type": "custom", "format": GRAMMAR}
SQL = ToolDefinition("sql", "Runs a query.", SCHEMA, provider_options={"openai": FREE, "openai_compatible": FREE})
TEXT = 'SELECT "ü"\n\\ FROM t'
CALL: JsonObject = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "sql", "input": TEXT}
CHAT_CALL: JsonObject = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": TEXT}}


def body_of(adapter: HttpAdapter, asked: CanonicalRequest) -> JsonObject:
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    return body


def asked(model: str, *messages: Message, **fields: object) -> CanonicalRequest:
    return ask(*(messages or (Message.user("Hi"),)), **{"model": model, "tools": (SQL,), **fields})


def called(provider: str | None = None, **data: Json) -> tuple[Message, ...]:
    """A conversation in which the model of a provider, or an unknown one, called the tool."""
    raw = None if provider is None else ProviderRaw(provider, {"id": "call_1", "type": "custom", **data})
    return (
        Message.user("Hi"),
        Message.assistant([ToolUseBlock("tu_1", "sql", {"input": TEXT}, provider_raw=raw)]),
        Message.tool_result("tu_1", "3 rows"),
    )


def test_each_protocol_of_openai_offers_a_free_form_tool_with_its_grammar() -> None:
    choice = ToolChoice("named", "sql")
    body = body_of(OPENAI, asked("openai:gpt-6-sol", tool_choice=choice))
    assert body["tools"] == [{"type": "custom", "name": "sql", "description": "Runs a query.", "format": GRAMMAR}]
    assert body["tool_choice"] == {"type": "custom", "name": "sql"}
    assert responses_faults(body) == []
    body = body_of(COMPATIBLE, asked("openai_compatible:gpt-6-sol", tool_choice=choice))
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR["definition"]}}
    offered = {"name": "sql", "description": "Runs a query.", "format": grammar}
    assert body["tools"] == [{"type": "custom", "custom": offered}]
    assert body["tool_choice"] == {"type": "custom", "custom": {"name": "sql"}}
    assert chat_faults(body) == []


def test_anybody_else_is_offered_a_tool_with_one_argument() -> None:
    body = body_of(AnthropicAdapter(AdapterConfig()), asked("anthropic:claude-opus-5-5", *called("openai")))
    assert [offered["name"] for offered in body["tools"]] == ["sql"]
    assert "custom" not in msgspec.json.encode(body).decode()
    assert messages_faults(body) == []


@pytest.mark.parametrize("issuer", ["openai", "openai_compatible", "anthropic", None])
def test_each_protocol_of_openai_gets_every_call_as_a_free_form_one(issuer: str | None) -> None:
    body = body_of(OPENAI, asked("openai:gpt-6-sol", *called(issuer)))
    _, call, output = body["input"]
    assert (call["type"], call["input"], call["name"]) == ("custom_tool_call", TEXT, "sql")
    assert output == {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "3 rows"}
    assert responses_faults(body) == []
    body = body_of(COMPATIBLE, asked("openai_compatible:m", *called(issuer)))
    [call] = body["messages"][1]["tool_calls"]
    assert call == {"id": call["id"], "type": "custom", "custom": {"name": "sql", "input": TEXT}}
    assert body["messages"][2] == {"role": "tool", "tool_call_id": call["id"], "content": "3 rows"}
    assert chat_faults(body) == []


def test_a_call_with_other_arguments_is_sent_as_a_function_call() -> None:
    """The call may be older than the tool's free-form definition."""
    history = (Message.user("Hi"), Message.assistant([ToolUseBlock("tu_1", "sql", {"query": "x"})]))
    body = body_of(OPENAI, asked("openai:gpt-6-sol", *history))
    assert [item.get("type") for item in body["input"][1:]] == ["function_call", "function_call_output"]
    assert responses_faults(body) == []


@pytest.mark.parametrize("adapter", [OPENAI, COMPATIBLE])
def test_a_free_form_tool_with_other_arguments_is_refused(adapter: HttpAdapter) -> None:
    odd = msgspec.structs.replace(SQL, input_schema={"type": "object", "properties": {"query": {}}})
    with pytest.raises(InvalidRequestError, match="`input` must be its only argument"):
        adapter.write_request(asked(f"{adapter.name}:m", tools=(odd,)), stream=False)


def test_a_tools_own_fields_go_to_their_provider_alone() -> None:
    """Claude gets the type of a tool that it was trained on, and other models the tool's description."""
    later = ToolDefinition("look", "", SCHEMA, provider_options={"openai": {"defer_loading": True}})
    body = body_of(OPENAI, asked("openai:gpt-6-sol", tools=(later,)))
    assert body["tools"][0]["defer_loading"] is True
    assert responses_faults(body) == []
    body = body_of(COMPATIBLE, asked("openai_compatible:m", tools=(later,)))
    assert "defer_loading" not in msgspec.json.encode(body).decode()
    shell = ToolDefinition("bash", "Runs.", SCHEMA, provider_options={"anthropic": {"type": "bash_20250124"}})
    body = body_of(AnthropicAdapter(AdapterConfig()), asked("anthropic:claude-opus-5", tools=(shell,)))
    assert body["tools"] == [{"name": "bash", "type": "bash_20250124"}]
    [offered] = body_of(OPENAI, asked("openai:gpt-6-sol", tools=(shell,)))["tools"]
    assert (offered["type"], offered["description"]) == ("function", "Runs.")


@pytest.mark.parametrize("options", [{"openai": {"name": "other"}}, {"openai": 3}])
def test_a_tools_own_fields_are_an_object_that_does_not_rename_it(options: JsonObject) -> None:
    odd = ToolDefinition("look", "", SCHEMA, provider_options=options)
    with pytest.raises(InvalidRequestError, match="tool 'look'"):
        OPENAI.write_request(asked("openai:gpt-6-sol", tools=(odd,)), stream=False)


def check_call(block: object) -> None:
    assert isinstance(block, ToolUseBlock)
    assert (block.name, block.input, block.incomplete) == ("sql", {"input": TEXT}, False)
    assert block.provider_raw is not None
    assert block.provider_raw.data["id"] == "call_1"
    assert str(block.provider_raw.data["type"]).startswith("custom")


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_streamed_call_on_chat_is_read_in_any_pieces(size: int) -> None:
    """A function call after it stays apart."""
    head = c.tools({"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "sql", "input": ""}})
    more = [c.tools({"index": 0, "custom": {"input": TEXT[at : at + size]}}) for at in range(0, len(TEXT), size)]
    second = c.tools(c.tool(1, "call_2", "look", '{"x": 1}'))
    reading = read(CHAT, head, *more, second, c.chunk("tool_calls"), c.DONE)
    check_call(reading.content[0])
    assert reading.said[1:] == [("look", {"x": 1}, "call_2")]
    assert reading.reply.stop_reason is StopReason.TOOL_USE


def test_a_whole_call_is_read_and_one_without_any_text() -> None:
    check_call(*read_whole(RESPONSES, r.response(output=[CALL])).content)
    check_call(*read_whole(CHAT, c.reply("tool_calls", content=None, tool_calls=[CHAT_CALL])).content)
    empty: JsonObject = {**CHAT_CALL, "custom": {"name": "sql", "input": ""}}
    [block] = read_whole(CHAT, c.reply("tool_calls", content=None, tool_calls=[empty])).content
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.incomplete) == ({"input": ""}, False)


def as_reply(body: Json) -> FakeReply:
    return FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})


def entry(kind: type[HttpAdapter], name: str, transport: FakeTransport) -> AdapterEntry:
    def made(config: AdapterConfig, *, name: str, clock: Clock) -> HttpAdapter:
        return kind(config, name=name, clock=clock, transport=transport)

    config = AdapterConfig(api_key="sk-test", base_url="https://provider.test")
    return AdapterEntry(name=name, type=adapter_type(made), config=config)


def claude_says(*blocks: JsonObject) -> Json:
    usage: JsonObject = {"input_tokens": 1, "output_tokens": 1}
    reason = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(blocks),
            "stop_reason": reason, "usage": usage}  # fmt: skip


def test_a_session_with_a_free_form_tool_survives_swaps() -> None:
    """The tool is called on Responses, elsewhere, and on Responses again. Each provider gets its own form, and no
    call is lost.
    """
    given: list[str] = []

    @tool(provider_options={"openai": FREE, "chat": FREE})
    async def sql(input: str) -> str:
        """Run a query."""
        given.append(input)
        return f"{len(given)} rows"

    said = r.message("Done.")
    home = FakeTransport(
        as_reply(r.response(output=[CALL])), as_reply(r.response(output=[said])),
        as_reply(r.response(output=[said])),
    )  # fmt: skip
    abroad = FakeTransport(
        as_reply(
            claude_says({"type": "tool_use", "id": "toolu_1", "name": "sql", "input": {"input": "SELECT 2"}})
        ),
        as_reply(claude_says({"type": "text", "text": "Done."})),
    )
    chat = FakeTransport(
        as_reply(c.reply("tool_calls", content=None, tool_calls=[{**CHAT_CALL, "id": "call_9"}])),
        as_reply(c.reply(content="Done.")),
    )
    entries = {
        "openai": entry(OpenAIAdapter, "openai", home),
        "anthropic": entry(AnthropicAdapter, "anthropic", abroad),
        "chat": entry(OpenAICompatibleAdapter, "chat", chat),
    }
    models = {f"{name}:m": ModelEntry(id=f"{name}:m", adapter=name, wire_name="m") for name in entries}

    async def swap() -> None:
        async with Engine(models=ModelRegistry(entries, models), trace=False) as engine:
            session = engine.session("openai:m", tools=[sql])
            await session.send("one", max_output_tokens=64)
            session.model = "anthropic:m"
            await session.send("two", max_output_tokens=64)
            session.model = "chat:m"
            await session.send("three", max_output_tokens=64)
            session.model = "openai:m"
            last = await session.send("four", max_output_tokens=64)
            assert [warning for warning in last.warnings if warning.code == "content_dropped"] == []

    run_virtual(swap)
    assert given == [TEXT, "SELECT 2", TEXT]
    sent: JsonObject = msgspec.json.decode(home.requests[-1].body)
    assert responses_faults(sent) == []
    calls = [item for item in sent["input"] if str(item.get("type")).startswith("custom")]
    assert [call.get("input") or call["output"] for call in calls] == [
        TEXT, "1 rows", "SELECT 2", "2 rows", TEXT, "3 rows",
    ]  # fmt: skip
    assert messages_faults(msgspec.json.decode(abroad.requests[-1].body)) == []
    there: JsonObject = msgspec.json.decode(chat.requests[-1].body)
    assert chat_faults(there) == []
    kinds = [call["type"] for message in there["messages"] for call in message.get("tool_calls", [])]
    assert kinds == ["custom"] * 3
