"""The adapter over a scripted server: emulated tools and limits; and TGI's messages API."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalResponse
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.tgi.adapter import TGIAdapter
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import TextBlock, ToolUseBlock
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason, UsageSource

from ...support.fake_http import HANG, FakeReply, FakeTransport
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wires.tgi import ask, body, details, end, token

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
LOOK = ToolDefinition(
    "look", "Look at it", {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
)


def answer(value: Json, status: int = 200, **headers: str) -> FakeReply:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return FakeReply(msgspec.json.encode(value), status=status, headers={**JSON, **named})


def generated(text: str, **headers: str) -> FakeReply:
    return answer({"generated_text": text, "details": details(input_length=None)}, **headers)


def made(*replies: FakeReply, **config: object) -> tuple[TGIAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    adapter = TGIAdapter(AdapterConfig(**config), transport=transport, clock=FakeClock())  # type: ignore[arg-type]
    return adapter, transport


def sent(transport: FakeTransport, number: int = -1) -> JsonObject:
    found: JsonObject = msgspec.json.decode(transport.requests[number].body)
    return found


async def test_a_plain_call() -> None:
    """The prompt's size stands in the head of a whole reply."""
    adapter, transport = made(generated(" Hi.", x_prompt_tokens="12"), api_key="hf_12345")
    response = await adapter.complete(ask())
    assert (response.text, response.stop_reason, response.model) == ("Hi.", StopReason.END_TURN, "tgi:any")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (12, 4, UsageSource.REPORTED)
    (request,) = transport.requests
    assert (request.method, request.url) == ("POST", "http://localhost:8080/generate")
    assert request.headers["authorization"] == "Bearer hf_12345"


@pytest.mark.parametrize("said", ["", "-1", "many", "9" * 30, "٣"])
async def test_a_head_that_makes_no_sense_is_none(said: str) -> None:
    """Then the prompt's size is estimated."""
    adapter, _ = made(generated("Hi.", x_prompt_tokens=said))
    assert (await adapter.complete(ask())).usage.source is UsageSource.ESTIMATED


async def test_a_prompt_that_was_not_counted_is_estimated_by_the_vocabulary_of_its_model() -> None:
    adapter, _ = made(generated("Hi."))
    request = ask(Message.user("人工智能正在改变企业做出决策的方式。" * 20), model="tgi:Qwen/Qwen3-8B")
    usage = (await adapter.complete(request)).usage
    assert usage.input_tokens == adapter.estimate_input_tokens(request.messages, model="Qwen/Qwen3-8B")
    assert usage.input_tokens != adapter.estimate_input_tokens(request.messages)


def decided(value: Json) -> FakeReply:
    return generated(msgspec.json.encode(value).decode())


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_is_called_by_a_grammar(streamed: bool) -> None:
    """The tools stand in the prompt, the reply is held to a call or an answer, and a warning says what it is."""
    adapter, transport = made(decided({"tool": "look", "arguments": {"at": 3}}))
    response: CanonicalResponse | None
    if streamed:
        stream = adapter.stream(ask(tools=(LOOK,)))
        last = check_stream([event async for event in stream])
        response = stream.response
        assert last.stop_reason is StopReason.TOOL_USE
    else:
        response = await adapter.complete(ask(tools=(LOOK,)))
    assert response is not None
    (use,) = response.tool_uses
    assert (use.name, use.input, response.stop_reason) == ("look", {"at": 3}, StopReason.TOOL_USE)
    assert [warning.code for warning in response.warnings if warning.code != "usage_estimated"] == [
        "tools_emulated"
    ]
    request = sent(transport)
    assert "- look: Look at it" in request["inputs"]
    kinds = request["parameters"]["grammar"]["value"]["anyOf"]
    assert [next(iter(kind["properties"])) for kind in kinds] == ["tool", "answer"]


async def test_an_answer_instead_of_a_call_is_text() -> None:
    """And a choice can be forced."""
    adapter, transport = made(decided({"answer": "Rain."}), decided({"tool": "look", "arguments": {}}))
    assert (await adapter.complete(ask(tools=(LOOK,)))).text == "Rain."
    await adapter.complete(ask(tools=(LOOK,), tool_choice=ToolChoice("named", "look")))
    assert sent(transport)["parameters"]["grammar"]["value"]["required"] == ["tool", "arguments"]


async def test_a_call_and_its_result_are_told_in_words() -> None:
    """The turn after a result asks for an answer, which streams."""
    reply = FakeReply(body(token(" It rains."), end(" It rains.", details())))
    adapter, transport = made(reply)
    history = (
        Message.user("How is it?"),
        Message.assistant([ToolUseBlock("tu_1", "look", {"at": 3})]),
        Message.tool_result("tu_1", "Rain"),
    )
    last = check_stream([event async for event in adapter.stream(ask(*history, tools=(LOOK,)))])
    assert last.final_content == (TextBlock("It rains."),)
    request = sent(transport)
    assert "grammar" not in request["parameters"]
    assert request["inputs"] == (
        "User: How is it?\nAssistant: I will use the tool look (at: 3).\n"
        "User: The tool look returned: Rain\n\nNow answer the question in plain words.\nAssistant:"
    )


async def test_the_servers_limits_are_asked_for_at_the_start() -> None:
    """Without an answer, cautious ones stand; nothing fails."""
    adapter, transport = made(answer({"model_id": "x", "max_input_tokens": 7000, "max_total_tokens": 8192}))
    await adapter.initialize()
    assert transport.requests[0].url.endswith("/info")
    can = adapter.get_capabilities("any")
    assert (can.max_context_tokens, can.max_output_tokens) == (8192, 8192)
    assert (can.supports_tools, can.supports_parallel_tool_calls, can.supports_images) == (True, False, False)
    for reply in (answer([]), answer({"max_total_tokens": "many"}), answer({}, 404), FakeReply(b"<html>"),
                  FakeReply(wait=HANG)):  # fmt: skip
        adapter, _ = made(reply)
        await adapter.initialize()
        assert adapter.get_capabilities("any").max_context_tokens == 4096


async def test_a_reply_gets_no_more_room_than_there_is() -> None:
    """Prompt and limit together must fit the server's window, however little the model would say."""
    adapter, transport = made(answer({"max_total_tokens": 1000}), generated("Hi."), generated("Hi."))
    await adapter.initialize()
    response = await adapter.complete(ask(max_output_tokens=1000))
    room = sent(transport)["parameters"]["max_new_tokens"]
    assert 900 < room < 1000
    assert "parameter_changed" in [warning.code for warning in response.warnings]
    await adapter.complete(ask(Message.user("word " * 2000), max_output_tokens=100))
    assert sent(transport)["parameters"]["max_new_tokens"] == 100  # too long in any case: the server says so


@pytest.mark.parametrize("options", [{"template": "x"}, {"templates": "plain"}, {"max_stop": "x"}], ids=str)
def test_options_that_make_no_sense(options: JsonObject) -> None:
    """Named at once."""
    with pytest.raises(ConfigurationError):
        made(options=options)


async def test_the_messages_api_is_chat_completions_with_quirks() -> None:
    """The schema goes as the format's value; a reply with a call ends with ``stop`` all the same."""
    function: JsonObject = {"name": "look", "arguments": '{"at":3}'}
    message: JsonObject = {
        "role": "assistant",
        "tool_calls": [{"id": "0", "type": "function", "function": function}],
    }
    usage: JsonObject = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    choice: JsonObject = {"index": 0, "message": message, "finish_reason": "stop"}
    transport = FakeTransport(answer({"id": "", "model": "m", "choices": [choice], "usage": usage}))
    adapter = OpenAICompatibleAdapter(
        AdapterConfig(base_url="http://localhost:8080", options={"quirks": "tgi"}), name="tgi", transport=transport
    )
    schema: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}}
    request = ask(tools=(LOOK,), output_schema=schema, parallel_tool_calls=True, reasoning_effort="low")
    response = await adapter.complete(request)
    assert response.stop_reason is StopReason.TOOL_USE
    assert response.tool_uses[0].input == {"at": 3}
    assert sent(transport)["response_format"] == {"type": "json_object", "value": schema}
    assert [warning.code for warning in response.warnings] == ["parameter_dropped"] * 2
