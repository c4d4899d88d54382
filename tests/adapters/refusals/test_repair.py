"""Refused requests are repaired for one more attempt. The providers' replies are quoted from issues and
recordings.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import AttemptReport, CanonicalRequest, CanonicalResponse
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.repair import Edit, Repair, with_repairs
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.errors import AdapterError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

from ...support.fake_http import HANG, FakeReply, FakeTransport, failing, request
from ...support.virtual_time import FakeClock
from ...support.wires import WIRES
from ...support.wires import anthropic as a
from ..http.test_http_adapter import read, written

pytestmark = pytest.mark.anyio

CLAUDE = WIRES[0]

BOUND = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
    'conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
FIXED = (
    "messages.3.content.11: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
)
FIXED += "modified. These blocks must remain as they were in the original response."


def make(name: str, *replies: FakeReply, **options: Json) -> tuple[HttpAdapter, FakeTransport]:
    kind: Callable[..., HttpAdapter] = {
        "anthropic": AnthropicAdapter,
        "gemini": GeminiAdapter,
        "openai": OpenAIAdapter,
        "openai_compatible": OpenAICompatibleAdapter,
    }[name]
    transport = FakeTransport(*replies)
    variable = "OPENAI_API_KEY" if name == "openai_compatible" else None
    config = AdapterConfig(api_key="sk-secret-0123456789", options=options, api_key_env=variable)
    return kind(config, transport=transport, clock=FakeClock(randomness=0.0)), transport


def own(name: str, **data: Json) -> ProviderRaw:
    return ProviderRaw(name, data)


def conversation(name: str, **changes: object) -> CanonicalRequest:
    """Reasoning, a tool call with its result, and a second question, with that provider's data."""
    reasoning: JsonObject = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA", "summary": []}
    call = ToolUseBlock("tu_1", "read", {"path": "a"}, provider_raw=own(name, id="call_1"))
    fields: dict[str, object] = {
        "model": f"{name}:test-model",
        "messages": (Message.user("Read it."), Message.assistant((ThinkingBlock("Hm.", "c2ln",
            own(name, **reasoning)), TextBlock("I read."), call)), Message.tool_result("tu_1", "the file's text"),
            Message.user("And now?")),
        **changes,
    }  # fmt: skip
    return request(**fields)


def refused(message: str, status: int = 400, **fields: Json) -> bytes:
    error: JsonObject = {"type": "invalid_request_error", "message": message, **fields}
    return msgspec.json.encode({"type": "error", "error": error})


def repair_of(
    name: str, asked: CanonicalRequest, message: str, status: int = 400, done: tuple[str, ...] = (), **fields: Json
) -> Repair | None:
    adapter, _ = make(name)
    reply = failing(status)
    error = adapter.client.error_of(refused(message, **fields), reply)
    return adapter.wire.repair(asked, adapter.write_request(asked, stream=False), error, done)


def body_after(name: str, asked: CanonicalRequest, message: str, **fields: Json) -> JsonObject:
    """The body after the repair. Without a repair, the test fails."""
    found = repair_of(name, asked, message, **fields)
    assert found is not None
    adapter, _ = make(name)
    body: JsonObject = msgspec.json.decode(
        with_repairs(adapter.write_request(found.request, stream=False), (found,)).body
    )
    return body


# -- reasoning


@pytest.mark.parametrize(("name", "message", "status", "code"), [
    ("anthropic", "messages.1.content.0: Invalid `signature` in `thinking` block", 400, None),
    ("anthropic", BOUND, 400, None),
    ("anthropic", FIXED, 400, None),
    ("anthropic", "messages.0.content.0.thinking: each thinking block must contain thinking", 400, None),
    ("openai", "The encrypted content gAAA...c90= could not be verified.", 400, "invalid_encrypted_content"),
    ("openai", "The encrypted content gAAA...c90= could not be verified.", 400, None),
    ("openai",
        "Item with id 'rs_04962823ecde' not found. Items are not persisted when `store` is set to false. Try "
        "again with `store` set to true, or remove this item from your input.", 404, None),
    ("openai", "Item 'rs_1a' of type 'reasoning' was provided without its required following item.", 400, None),
    ("openai",
        "Item 'fc_1a' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1a'.", 400,
        None),
])  # fmt: skip
def test_reasoning_that_is_not_accepted_back_is_left_out(
    name: str, message: str, status: int, code: str | None
) -> None:
    found = repair_of(name, conversation(name), message, status, code=code)
    assert found is not None
    assert (found.kind, found.edits) == ("signature", ())
    assert [block for message in found.request.messages for block in message.content] == [
        block
        for message in conversation(name).messages
        for block in message.content
        if not isinstance(block, ThinkingBlock)
    ]
    assert found.warning.code == "reasoning_refused"
    assert "1 blocks" in found.warning.message


def test_reasoning_of_others_never_went_along_and_is_no_reason_to_try_again() -> None:
    thought = ThinkingBlock("Hm.", "sig", own("openai", type="reasoning"))
    asked = request(
        messages=(Message.user("Hi"), Message.assistant((thought, TextBlock("Ho"))), Message.user("?"))
    )
    assert repair_of("anthropic", asked, BOUND) is None


def test_a_message_that_was_nothing_but_reasoning_goes() -> None:
    only = Message.assistant((RedactedThinkingBlock("x", own("anthropic")),))
    asked = request(messages=(Message.user("Hi"), only, Message.user("?")))
    found = repair_of("anthropic", asked, BOUND)
    assert found is not None
    assert [message.role for message in found.request.messages] == [Role.USER, Role.USER]


# -- parameters


@pytest.mark.parametrize(("name", "message", "fields", "sent", "left"), [
    ("anthropic", "`temperature` is deprecated for this model.", {}, {"temperature": 1}, {}),
    ("anthropic", "temperature is deprecated for this model.", {}, {"temperature": 1}, {}),
    ("anthropic", "context_management: Extra inputs are not permitted", {}, {"context_management": {}}, {}),
    ("anthropic", "`temperature` and `top_p` cannot both be specified for this model. Please use only one.", {},
        {"temperature": 0.5, "top_p": 0.5}, {"temperature": 0.5}),
    ("anthropic", "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium.",
        {}, {"output_config": {"effort": "xhigh"}}, {}),
    ("anthropic", '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.', {},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}}, {}),
    ("anthropic", "adaptive thinking is not supported on this model", {}, {"thinking": {"type": "adaptive"}}, {}),
    ("openai", "Unsupported parameter: 'temperature' is not supported with this model.",
        {"param": "temperature", "code": "unsupported_parameter"}, {"temperature": 1}, {}),
    ("openai", "Your organization must be verified to generate reasoning summaries. Please go to: somewhere.",
        {"param": "reasoning.summary", "code": "unsupported_value"},
        {"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning": {"effort": "low"}}),
    ("openai",
        "Unsupported value: 'low' is not supported with the 'gpt-test' model. Supported values are: 'medium'.",
        {"param": "text.verbosity", "code": "unsupported_value"}, {"text": {"verbosity": "low"}}, {}),
    ("openai", "Unknown parameter: 'speed'.", {"param": "speed"}, {"speed": 1}, {}),
    ("openai_compatible", "Unrecognized request argument supplied: seed", {}, {"seed": 1}, {}),
    ("openai_compatible", "property 'store' is unsupported, did you mean 'stop'?", {}, {"store": True}, None),
    ("openai_compatible", "property 'seed' is unsupported, did you mean 'stop'?", {}, {"seed": 1}, {}),
    ("openai_compatible", "Argument not supported on this model: presencePenalty", {}, {"presence_penalty": 1},
        {}),
    ("openai_compatible", "Model grok-4-1-fast does not support parameter presencePenalty.", {},
        {"presence_penalty": 1}, {}),
    ("openai_compatible",
        '[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted","input":1}]', {},
        {"seed": 1}, {}),
])  # fmt: skip
def test_a_parameter_that_the_provider_refuses_is_left_out(
    name: str, message: str, fields: JsonObject, sent: JsonObject, left: JsonObject | None
) -> None:
    """Other fields stay. `left` is the rest of the sent fields, and None if there is no repair."""
    asked = request(model=f"{name}:test-model", provider_options={name: sent})
    if left is None:
        assert repair_of(name, asked, message, **fields) is None
        return
    before: JsonObject = msgspec.json.decode(make(name)[0].write_request(asked, stream=False).body)
    assert sent.items() <= before.items()
    assert (
        body_after(name, asked, message, **fields)
        == {key: value for key, value in before.items() if key not in sent} | left
    )


def test_a_model_that_always_reasons_gets_no_setting_against_it() -> None:
    """The other settings of the reply stay."""
    thinking: Json = {"thinkingConfig": {"thinkingBudget": 0}, "topK": 3}
    asked = request(model="gemini:gemini-2.5-pro", provider_options={"gemini": {"generationConfig": thinking}})
    body = body_after("gemini", asked, "Budget 0 is invalid. This model only works in thinking mode.")
    assert body["generationConfig"] == {"maxOutputTokens": 64, "topK": 3}


def test_a_parameter_with_two_names_gets_its_other_one() -> None:
    said = "property 'max_completion_tokens' is unsupported, did you mean 'max_tokens'?"
    after = body_after("openai_compatible", request(), said)
    assert after["max_tokens"] == 64
    assert "max_completion_tokens" not in after


@pytest.mark.parametrize("said", [
    ("'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : "
        "property 'reasoning_content' is unsupported)]"),
    ("messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is unsupported"
        "\nmessages.3.assistant.reasoning_content: property "
        "'messages.3.assistant.reasoning_content' is unsupported"),
], ids=["groq", "cerebras"])  # fmt: skip
def test_a_server_that_refuses_reasoning_gets_none(said: str) -> None:
    """Groq and Cerebras are behind an address that the quirk table does not have."""
    thought = ThinkingBlock("Hm", provider_raw=ProviderRaw("openai_compatible", {}))
    called = Message.assistant([thought, ToolUseBlock("tu_1", "look", {})])
    asked = request(messages=(Message.user("Go"), called, Message.tool_result("tu_1", "seen")))
    config = AdapterConfig(api_key="k", base_url="https://gateway.test")
    adapter = OpenAICompatibleAdapter(config, transport=FakeTransport())
    sent = adapter.write_request(asked, stream=False)
    assert b'"reasoning_content":"Hm"' in sent.body
    error = adapter.client.error_of(refused(said), failing(400))
    found = adapter.wire.repair(asked, sent, error, ())
    assert found is not None
    again = with_repairs(adapter.write_request(found.request, stream=False), (found,))
    assert b"reasoning_content" not in again.body


def test_a_model_with_tools_only_without_reasoning_gets_no_reasoning() -> None:
    said = (
        "Function tools with reasoning_effort are not supported for gpt-5.6-sol in /v1/chat/completions. To use "
        "function tools, use /v1/responses or set reasoning_effort to 'none'."
    )
    assert body_after("openai_compatible", request(), said, param="reasoning_effort")["reasoning_effort"] == "none"


@pytest.mark.parametrize(("name", "message", "fields"), [
    ("anthropic", "tools: Extra inputs are not permitted", {}),
    ("anthropic", "output_config.format: Extra inputs are not permitted", {}),
    ("anthropic", "output_config: Extra inputs are not permitted", {}),
    ("anthropic", "messages.0.content.0.text.text: Extra inputs are not permitted", {}),
    ("openai", "Unsupported parameter: 'store' is not supported.", {"param": "store"}),
    ("openai", "Unknown parameter: 'text.format'.", {"param": "text.format", "code": "unknown_parameter"}),
    ("openai", "Unknown parameter: 'nowhere'.", {"param": "nowhere", "code": "unknown_parameter"}),
    ("openai_compatible", "'messages[0].role' does not support 'system'", {"code": "unsupported_value"}),
])  # fmt: skip
def test_what_makes_the_reply_another_one_or_is_not_there_is_never_left_out(
    name: str, message: str, fields: JsonObject
) -> None:
    schema: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
    assert repair_of(name, request(output_schema=schema), message, **fields) is None


def test_a_refused_key_is_removed_from_blocks_but_not_from_host_data() -> None:
    """A property or an argument with that name belongs to the host."""
    marked: Json = {"type": "ephemeral"}
    schema: JsonObject = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    tools: Json = [{"name": "t", "input_schema": schema, "cache_control": marked}]
    call = ToolUseBlock("tu_1", "t", {"cache_control": "x"})
    asked = request(
        messages=(Message.user("Hi"), Message.assistant((call,)), Message.tool_result("tu_1", "done")),
        provider_options={"anthropic": {"tools": tools, "cache_control": marked}},
    )
    after = body_after("anthropic", asked, "tools.0.custom.cache_control: Extra inputs are not permitted")
    assert after["tools"] == [{"name": "t", "input_schema": schema}]
    assert b'"input":{"cache_control":"x"}' in msgspec.json.encode(after)
    assert msgspec.json.encode(after).count(b"cache_control") == 2


# -- tool calls and results


@pytest.mark.parametrize(("name", "message"), [
    ("openai", "No tool output found for function call tu_1."),
    ("openai", "No tool call found for function call output with call_id tu_1."),
    ("openai_compatible",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'. The following tool_call_ids did not have response messages: call_1"),
    ("openai_compatible",
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."),
    ("gemini", "Please ensure that the number of function response parts is equal to the number of function "
        "call parts of the function call turn."),
    ("gemini", "Please ensure that function call turn comes immediately after a user turn or after a function "
        "response turn."),
    ("gemini", "Function call is missing a thought_signature in functionCall parts. Say more."),
    ("anthropic",
        "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: call_1. Each "
        "`tool_use` block must have a corresponding `tool_result` block in the next message."),
])  # fmt: skip
def test_a_refused_tool_exchange_becomes_text(name: str, message: str) -> None:
    """The model then has the result and does not request it again. The reasoning about the call is removed,
    too.
    """
    asked = conversation(name)
    if name == "openai":
        assert make(name)[0].write_request(asked, stream=False).tool_ids == {"tu_1": "call_1"}
        message = message.replace("tu_1", "call_1")
    found = repair_of(name, asked, message)
    assert found is not None
    assert found.kind == "tool_pairs"
    said = TextBlock('The tool read was called with {"path":"a"} and answered:')
    assert found.request.messages == (
        Message.user("Read it."),
        Message.assistant("I read."),
        Message.user((said, TextBlock("the file's text"))),
        Message.user("And now?"),
    )


def test_only_the_named_exchange_becomes_text() -> None:
    """Other exchanges of the same message stay calls and results, and pictures stay pictures."""
    first, second = ToolUseBlock("tu_1", "look", {}), ToolUseBlock("tu_2", "read", {})
    picture = ImageBlock(url="https://example.test/a.png")
    results = (
        ToolResultBlock("tu_1", (TextBlock("seen"), picture), is_error=True),
        ToolResultBlock("tu_2", "text"),
    )
    search = OpaqueBlock("tool_search_call", own("openai", type="tool_search_call", call_id="tu_1"))
    asked = request(
        model="openai:m",
        messages=(Message.user("Go"), Message.assistant((search, first, second)), Message(Role.TOOL, results)),
    )
    found = repair_of("openai", asked, "No tool output found for tool search call tu_1.")
    assert found is not None
    said = TextBlock("The tool look was called with {} and failed:")
    assert found.request.messages == (
        Message.user("Go"),
        Message.assistant((second,)),
        Message.user((said, TextBlock("seen"), picture)),
        Message(Role.TOOL, results[1:]),
    )


def test_an_exchange_that_is_not_in_the_request_is_no_reason_to_try_again() -> None:
    assert repair_of("openai", conversation("openai"), "No tool output found for function call call_9.") is None


# -- texts that must not count as a complaint


@pytest.mark.parametrize("name", ["anthropic", "gemini", "openai", "openai_compatible"])
@pytest.mark.parametrize("quoted", [
    "Invalid value: 'messages.1.content.0: Invalid `signature` in `thinking` block'",
    "The prompt says: Unsupported parameter: 'temperature' is not supported with this model.",
    "Invalid schema for 'temperature: Extra inputs are not permitted'",
    'Bad text "No tool output found for function call call_1."',
    "`temperature` is deprecated for this model. " + "x" * 5000,
])  # fmt: skip
def test_what_an_error_only_quotes_changes_nothing(name: str, quoted: str) -> None:
    asked = conversation(name, provider_options={name: {"temperature": 1}})
    assert repair_of(name, asked, quoted) is None


@pytest.mark.parametrize("status", [401, 403, 413, 429, 500, 503])
def test_only_a_refused_request_is_mended(status: int) -> None:
    assert repair_of("anthropic", conversation("anthropic"), BOUND, status) is None


UNSUPPORTED = (
    "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default is supported."
)
INNER = msgspec.json.encode({"error": {"message": UNSUPPORTED}}).decode()
NO_FALLBACK = "\n\nLiteLLM: model group 'gpt' failed with the error above. No fallback was attempted."


def cold(name: str) -> CanonicalRequest:
    return request(provider_options={name: {"temperature": 0}})


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai_compatible"])
@pytest.mark.parametrize("message", [
    ("litellm.UnsupportedParamsError: gpt-5 doesn't support temperature=0.0 while reasoning is active. Only "
        "temperature=1 is supported unless reasoning_effort resolves to 'none'. To drop unsupported params set "
        f"`litellm.drop_params = True`{NO_FALLBACK}"),
    ("litellm.UnsupportedParamsError: groq does not support parameters: ['temperature'], for model=x. To drop "
        f"these, set `litellm.drop_params=True` or for proxy:{NO_FALLBACK}"),
])  # fmt: skip
def test_parameters_that_litellm_refuses_are_left_out(name: str, message: str) -> None:
    """The proxy checks parameters before it calls the provider, with the same text on each protocol."""
    found = repair_of(name, cold(name), message)
    assert found is not None
    assert found.edits == (Edit(("temperature",)),)


@pytest.mark.parametrize("message", [
    f"litellm.BadRequestError: OpenAIException - {UNSUPPORTED}{NO_FALLBACK}",
    f"litellm.BadRequestError: litellm.BadRequestError: OpenAIException - {UNSUPPORTED}{NO_FALLBACK}",
    f"litellm.BadRequestError: OpenAIException - {UNSUPPORTED}. Received Model Group=gpt\nAvailable=None",
    f"litellm.BadRequestError: OpenAIException - {INNER}{NO_FALLBACK}",
    f"litellm.BadRequestError: OpenAIException - b'{INNER}'{NO_FALLBACK}",
])  # fmt: skip
def test_a_complaint_in_litellms_words_counts(message: str) -> None:
    """The proxy adds its own text before and after the provider's, or quotes the body."""
    found = repair_of("openai_compatible", cold("openai_compatible"), message)
    assert found is not None
    assert found.edits == (Edit(("temperature",)),)
    quoted = message.replace("Unsupported value", "You wrote: Unsupported value")
    assert repair_of("openai_compatible", cold("openai_compatible"), quoted) is None


def test_a_complaint_inside_a_gateways_own_error_counts() -> None:
    """A complaint that is only quoted there does not count."""
    for said, repaired in ((BOUND, True), (f"Quoted: {BOUND}", False)):
        inner = msgspec.json.encode({"type": "error", "error": {"message": said}}).decode()
        found = repair_of("anthropic", conversation("anthropic"), f"Provider returned error: {inner}")
        assert (found is not None) is repaired


# -- in a call


def bad(message: str) -> FakeReply:
    return FakeReply(refused(message), status=400, headers={"content-type": "application/json"})


def good() -> FakeReply:
    return FakeReply(
        msgspec.json.encode(CLAUDE.body("Hello", 0, "end")), headers={"content-type": "application/json"}
    )


async def ask(
    adapter: HttpAdapter, asked: CanonicalRequest, *, stream: bool
) -> tuple[CanonicalResponse | None, AdapterError | None, list[object]]:
    reports: list[AttemptReport] = []
    if not stream:
        try:
            return await adapter.complete(asked, on_attempt=reports.append), None, written(reports)
        except AdapterError as error:
            return None, error, written(reports)
    opened = adapter.stream(asked, on_attempt=reports.append)
    _, failure = await read(opened)
    return opened.response, failure, written(reports)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repair_is_a_separate_attempt_and_not_a_retry(stream: bool) -> None:
    """Each kind is repaired once, in any order. The response names the repairs, the attempts are reported, and the
    caller's request is not changed.
    """
    adapter, transport = make("anthropic", bad("`temperature` is deprecated for this model."), bad(BOUND), good())
    asked = conversation("anthropic", provider_options={"anthropic": {"temperature": 0.5}}, max_retries=0)
    before = msgspec.json.encode(asked)
    response, error, reports = await ask(adapter, asked, stream=stream)
    assert error is None
    assert response is not None
    assert response.text == "Hello"
    assert [warning.code for warning in response.warnings] == ["request_repaired", "reasoning_refused"]
    assert reports == [
        (1, "first"), (1, "InvalidRequestError", 0.0), (2, "repair"),
        (2, "InvalidRequestError", 0.0), (3, "repair"), (3, "first event"),
    ]  # fmt: skip
    bodies: list[JsonObject] = [msgspec.json.decode(sent.body) for sent in transport.requests]
    assert ["temperature" in body for body in bodies] == [True, False, False]
    assert [b'"thinking"' in sent.body for sent in transport.requests] == [True, True, False]
    assert transport.all_closed
    assert msgspec.json.encode(asked) == before


async def test_the_same_complaint_again_is_final() -> None:
    adapter, transport = make("anthropic", bad(BOUND), bad(BOUND))
    response, error, reports = await ask(adapter, conversation("anthropic"), stream=False)
    assert response is None
    assert isinstance(error, InvalidRequestError)
    assert reports == [(1, "first"), (1, "InvalidRequestError", 0.0), (2, "repair")]
    assert len(transport.requests) == 2


async def test_a_retry_after_a_repair_sends_the_mended_request() -> None:
    adapter, transport = make("anthropic", bad(BOUND), failing(500), good())
    response, error, reports = await ask(adapter, conversation("anthropic", max_retries=1), stream=True)
    assert error is None
    assert response is not None
    pairs = [report for report in reports if isinstance(report, tuple) and len(report) == 2]
    assert pairs[:3] == [(1, "first"), (2, "repair"), (3, "retry")]
    assert transport.requests[1].body == transport.requests[2].body != transport.requests[0].body
    assert len(response.warnings) == 1


async def test_repairs_can_be_switched_off() -> None:
    adapter, _ = make("anthropic", bad(BOUND), repair=False)
    _, error, reports = await ask(adapter, conversation("anthropic"), stream=False)
    assert isinstance(error, InvalidRequestError)
    assert reports == [(1, "first")]


async def test_nothing_is_repaired_once_output_was_delivered() -> None:
    started = CLAUDE.stream(a.message_start(), *a.text(0, "Hel")[:2])
    adapter, transport = make("anthropic", FakeReply(started, b"event: error\ndata: " + refused(BOUND) + b"\n\n"))
    _, error, reports = await ask(adapter, conversation("anthropic"), stream=True)
    assert error is not None
    assert error.content == (TextBlock("Hel"),)
    assert len(transport.requests) == 1
    assert reports == [(1, "first"), (1, "first event")]


async def test_a_complaint_at_the_start_of_a_stream_is_mended_too() -> None:
    failed = b"event: error\ndata: " + refused(BOUND) + b"\n\n"
    adapter, _ = make("anthropic", FakeReply(failed), good())
    response, error, _ = await ask(adapter, conversation("anthropic"), stream=True)
    assert error is None
    assert response is not None


async def test_a_call_whose_time_is_up_is_not_repaired() -> None:
    late = FakeReply(HANG, status=400)
    adapter, transport = make("anthropic", late)
    _, error, _ = await ask(adapter, conversation("anthropic", timeout_seconds=1.0, max_retries=0), stream=False)
    assert error is not None
    assert len(transport.requests) == 1
