"""TGI's text endpoint and messages API: requests, stop sequences, emulated tools and limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest, CanonicalResponse
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.tgi.adapter import (
    TEMPLATES,
    PromptTemplate,
    StopTrimmer,
    TGIAdapter,
    choose_template,
    write_request,
)
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.errors import ConfigurationError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ImageBlock, ProviderRaw, TextBlock, ThinkingBlock
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import StopReason, UsageSource

from ...support.fake_http import HANG, FakeReply, FakeTransport, pieces
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wires import WIRES
from ...support.wires import chat as c
from ...support.wires import tgi as t
from ...support.wires.reading import read, read_pieces, read_whole
from ...support.wires.tgi import ask, body, details, end, token

pytestmark = [pytest.mark.anyio, pytest.mark.more("streams arrive byte by byte, too")]

Plain = dict[str, Any]
TALK = (Message.user("Hello"), Message.assistant("Hi."), Message.user([TextBlock("And"), TextBlock("now?")]))


PLAIN = TEMPLATES["plain"]


def wired(
    request: CanonicalRequest, template: PromptTemplate = PLAIN, *, max_stop: int = 4, stream: bool = False
) -> WireCall:
    return write_request(request, provider="tgi", template=template, max_stop=max_stop, stream=stream)


def written(request: CanonicalRequest, template: PromptTemplate = PLAIN, **options: Any) -> Plain:
    body: Plain = msgspec.json.decode(wired(request, template, **options).body)
    return body


def parameters(request: CanonicalRequest, **options: Any) -> Plain:
    found: Plain = written(request, **options)["parameters"]
    return found


def codes(request: CanonicalRequest, **options: Any) -> list[str]:
    return [warning.code for warning in wired(request, **options).warnings]


@pytest.mark.parametrize(("name", "expected"), [
    ("plain", "Be brief.\n\nUser: Hello\nAssistant: Hi.\nUser: And\n\nnow?\nAssistant:"),
    ("chatml", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nAnd\n\nnow?<|im_end|>\n<|im_start|>assistant\n"),
    ("llama3", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnd\n\nnow?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"),
])  # fmt: skip
def test_prompts_by_template(name: str, expected: str) -> None:
    """The prompts have the form in which the models were trained."""
    assert written(ask(*TALK, system_prompt="Be brief."), TEMPLATES[name])["inputs"] == expected


def test_a_custom_template() -> None:
    """Fields replace those of a base. The text of a message is never used as a pattern."""
    own = choose_template({"base": "plain", "user": "Q: {text}\n", "reply": "A:", "stop": ["\nQ:"]})
    request = ask(Message.user("{text} {x}"), stop_sequences=("END",))
    assert written(request, own)["inputs"] == "Q: {text} {x}\nA:"
    assert written(request, own)["parameters"]["stop"] == ["\nQ:", "END"]


@pytest.mark.parametrize("option", ["mistral", 3, None, {"base": "x"}, {"usr": "x"}, {"stop": "x"}], ids=str)
def test_templates_that_are_none(option: Json) -> None:
    with pytest.raises(ConfigurationError, match=r"options\.template"):
        choose_template(option)


def test_only_text_is_sent() -> None:
    """Older images, and reasoning of other models, are reported as lost."""
    image = ImageBlock(url="https://example.com/a.png")
    thought = ThinkingBlock("Hm.", provider_raw=ProviderRaw("ollama", {}))
    past = ask(Message.user([image, TextBlock("?")]), Message.assistant([thought, TextBlock("So.")]), TALK[0])
    assert codes(past) == ["content_dropped"] * 2
    assert written(past)["inputs"] == "User: ?\nAssistant: So.\nUser: Hello\nAssistant:"


@pytest.mark.parametrize(("changes", "expected"), [
    ({"temperature": 0.0}, {"do_sample": False}),
    ({"temperature": 0.7}, {"do_sample": True, "temperature": 0.7}),
    ({"top_p": 0.9}, {"top_p": 0.9}),
    ({"top_p": 1.0}, {}),
    ({"seed": 7, "frequency_penalty": 0.5}, {"seed": 7, "frequency_penalty": 0.5}),
    ({"reasoning_effort": "none"}, {}),
])  # fmt: skip
def test_sampling_in_the_server_s_form(changes: Plain, expected: JsonObject) -> None:
    """There is no warning, because the meaning is the same."""
    request = ask(**changes)
    sent = parameters(request)
    for name in ("max_new_tokens", "details", "return_full_text", "stop"):
        del sent[name]
    assert sent == expected
    assert codes(request) == []


@pytest.mark.parametrize("changes", [
    {"presence_penalty": 1.0}, {"verbosity": "low"}, {"user": "u"}, {"reasoning_effort": "high"},
], ids=str)  # fmt: skip
def test_unsupported_settings_are_left_out_with_a_warning(changes: Plain) -> None:
    """These settings only tune the reply."""
    assert codes(ask(**changes)) == ["parameter_dropped"]
    assert parameters(ask(**changes)) == parameters(ask())


def test_the_templates_stops_come_first() -> None:
    """Otherwise the model would also write the user's text. Sequences above the server's limit are left out."""
    request = ask(stop_sequences=("A", "B", "", "C", "D"))
    assert parameters(request)["stop"] == ["\nUser:", "A", "B", "C"]
    assert codes(request) == ["parameter_dropped"]
    assert codes(request, max_stop=5) == []


def test_a_host_cannot_switch_off_details() -> None:
    """Without details, the reply has no usage."""
    with pytest.raises(InvalidRequestError, match="'details'"):
        wired(ask(provider_options={"tgi": {"details": False}}))


@settings(max_examples=60)
@given(
    st.text(min_size=1, max_size=12).filter(lambda text: text.strip() and "User:" not in text),
    st.integers(0, 2000),
)
def test_a_reply_survives_the_round_trip(text: str, cut: int) -> None:
    """The next prompt has the model's text unchanged, except for the space before it."""
    data = body(*map(token, text), end(text, details()))
    said = read_pieces(WIRES[5], pieces(data, [1 + cut % (len(data) - 1)])).reply.text
    sent = written(ask(Message.user("Hi"), Message.assistant(said), Message.user("And?")))["inputs"]
    assert sent == f"User: Hi\nAssistant: {text.lstrip()}\nUser: And?\nAssistant:"


# -- TGI leaves a stop sequence at the end of the text.


TGI = WIRES[5]


@pytest.mark.parametrize(("asked", "generated", "reason", "text", "expected"), [
    ((), "Hi.\nUser:", "stop_sequence", "Hi.", StopReason.END_TURN),
    (("END",), "Hi.END", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
    (("END", "DEND"), "Hi.DEND", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
    (("END",), "Hi.END", "length", "Hi.END", StopReason.MAX_TOKENS),
    (("END",), "Hi.EN", "eos_token", "Hi.EN", StopReason.END_TURN),
    (("END",), "Hi. ENDEAVOUR", "eos_token", "Hi. ENDEAVOUR", StopReason.END_TURN),
    (("END",), "Hi.", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
    ((), "Hi.", "tired", "Hi.", StopReason.PROVIDER_SPECIFIC),
    (("END",), "END", "stop_sequence", "", StopReason.STOP_SEQUENCE),
])  # fmt: skip
def test_stop_sequences_are_not_part_of_the_text(
    asked: tuple[str, ...], generated: str, reason: str, text: str, expected: StopReason
) -> None:
    """The tokens can divide a sequence anywhere. Plain and streamed replies are the same."""
    last = t.end(generated, t.details(reason))
    for reading in (
        read(TGI, *map(t.token, generated), last, stop_sequences=asked),
        read(TGI, t.token(generated), last, stop_sequences=asked),
        read_whole(TGI, {"generated_text": generated, "details": t.details(reason)}, stop_sequences=asked),
    ):
        reply = reading.reply
        assert (reply.text, reply.stop_reason, reply.raw_stop_reason) == (text, expected, reason)


def test_a_stop_sequence_is_recognised_without_details() -> None:
    """A stop sequence of the template ends the text."""
    assert read_whole(TGI, {"generated_text": "Hi\nUser:"}).reply.stop_reason is StopReason.END_TURN


@given(
    st.lists(st.text(alphabet="abX\n", max_size=4), max_size=8),
    st.lists(st.text(alphabet="abX\n", min_size=1, max_size=4), max_size=4),
    st.booleans(),
)
def test_trimming_only_removes_the_stop_sequence(parts: list[str], stops: list[str], stopped: bool) -> None:
    """The delivered text plus the sequence are the whole text. No sequence is left at the end."""
    trimmer = StopTrimmer(stops)
    shown = "".join(trimmer.feed(part) for part in parts)
    rest, stop = trimmer.finish(stopped=stopped)
    text = "".join(parts)
    assert shown + rest + (stop or "") == text
    ends = [one for one in stops if text.endswith(one)]
    assert stop == (max(ends, key=len) if stopped and ends else None)


# -- The adapter over a scripted server: emulated tools and limits; and TGI's messages API.


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
    """The head of a plain reply has the prompt's size."""
    adapter, transport = made(generated(" Hi.", x_prompt_tokens="12"), api_key="hf_12345")
    response = await adapter.complete(ask())
    assert (response.text, response.stop_reason, response.model) == ("Hi.", StopReason.END_TURN, "tgi:any")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (12, 4, UsageSource.REPORTED)
    (request,) = transport.requests
    assert (request.method, request.url) == ("POST", "http://localhost:8080/generate")
    assert request.headers["authorization"] == "Bearer hf_12345"


@pytest.mark.parametrize("said", ["", "-1", "many", "9" * 30, "٣"])
async def test_an_invalid_head_is_ignored(said: str) -> None:
    """The prompt's size is then estimated."""
    adapter, _ = made(generated("Hi.", x_prompt_tokens=said))
    assert (await adapter.complete(ask())).usage.source is UsageSource.ESTIMATED


def decided(value: Json) -> FakeReply:
    return generated(msgspec.json.encode(value).decode())


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_is_called_by_a_grammar(streamed: bool) -> None:
    """The tools are in the prompt, the grammar allows a call or a text, and a warning reports the emulation."""
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


async def test_the_servers_limits_are_requested_at_the_start() -> None:
    """Without a reply, careful defaults apply, and nothing fails."""
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


async def test_the_limit_of_a_reply_fits_the_window() -> None:
    """Prompt and limit together must fit the server's window, even for a short reply."""
    adapter, transport = made(answer({"max_total_tokens": 1000}), generated("Hi."), generated("Hi."))
    await adapter.initialize()
    response = await adapter.complete(ask(max_output_tokens=1000))
    room = sent(transport)["parameters"]["max_new_tokens"]
    assert 900 < room < 1000
    assert "parameter_changed" in [warning.code for warning in response.warnings]
    await adapter.complete(ask(Message.user("word " * 2000), max_output_tokens=100))
    # the prompt is too long in any case, and the server reports it
    assert sent(transport)["parameters"]["max_new_tokens"] == 100


@pytest.mark.parametrize("options", [{"template": "x"}, {"templates": "plain"}, {"max_stop": "x"}], ids=str)
def test_options_that_make_no_sense(options: JsonObject) -> None:
    with pytest.raises(ConfigurationError):
        made(options=options)


async def test_the_messages_api_is_chat_completions_with_quirks() -> None:
    """The schema is the format's value. The table of servers has the rest."""
    transport = FakeTransport(answer(c.reply(content="Hi")))
    config = AdapterConfig(base_url="http://localhost:8080", options={"quirks": "tgi"})
    adapter = OpenAICompatibleAdapter(config, name="tgi", transport=transport)
    schema: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await adapter.complete(ask(output_schema=schema))
    assert sent(transport)["response_format"] == {"type": "json_object", "value": schema}
