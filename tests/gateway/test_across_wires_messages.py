"""Anthropic's SDK as the client of a gateway over each other provider: the whole way, there and back."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types.beta import BetaMessage

from callboard.adapters.conformance import CALLS
from callboard.bus.values.base import Json
from tests.gateway.scripted_providers import Scripted, ScriptedProvider, serving, stream, whole
from tests.support.canonical_requests import PNG
from tests.support.wires import WIRES, Wire

RESPONSES, CHAT, GEMINI = OTHERS = WIRES[1:4]
MODEL = "claude-opus-4-6"
TOOLS: list[Any] = [
    {
        "name": name,
        "description": f"Does {name}.",
        "input_schema": {"type": "object", "properties": {key: {} for key in given}},
        "cache_control": {"type": "ephemeral"},
    }
    for name, given in CALLS
]

HI: list[Any] = [{"role": "user", "content": "Hi"}]

each_provider = pytest.mark.parametrize("wire", OTHERS, ids=lambda wire: wire.name)
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Client:
    """The SDK, over a gateway."""

    def __init__(self, sdk: anthropic.AsyncAnthropic, provider: ScriptedProvider, wire: Wire) -> None:
        self.sdk = sdk
        self.provider = provider
        self.wire = wire
        self.warnings = ""
        """The header with the warnings of the last reply."""

    def says(self, text: str, calls: int, stop: str, thought: str = "", *, streamed: bool) -> None:
        """Script the provider's next reply."""
        if streamed:
            events = (
                self.wire.events(text, calls, stop, thought) if thought else self.wire.events(text, calls, stop)
            )
            self.provider.says(stream(self.wire, *(event for _, event in events)))
        else:
            self.provider.says(whole(self.wire.body(text, calls, stop, thought)))

    async def ask(self, messages: list[Any], *, streamed: bool, **fields: Any) -> BetaMessage:
        given: dict[str, Any] = {"model": MODEL, "max_tokens": 2000, "messages": messages, **fields}
        if not streamed:
            raw = await self.sdk.beta.messages.with_raw_response.create(**given)
            self.warnings = raw.headers.get("x-callboard-warnings", "")
            whole_message: BetaMessage = await raw.parse()
            return whole_message
        async with self.sdk.beta.messages.stream(**given) as found:
            self.warnings = found.response.headers.get("x-callboard-warnings", "")
            message: BetaMessage = await found.get_final_message()
            return message

    @property
    def sent(self) -> Any:
        """The body of the provider's last request."""
        return self.provider.asked[-1]


@asynccontextmanager
async def client(wire: Wire) -> AsyncIterator[Client]:
    async with serving(wire, MODEL) as (url, provider):
        async with anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0, timeout=20) as sdk:
            yield Client(sdk, provider, wire)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def reply(message: BetaMessage) -> dict[str, Any]:
    """The reply, as a client sends it back."""
    return {"role": "assistant", "content": [block.to_dict() for block in message.content]}


def text(message: BetaMessage) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def is_well_formed(found: Client) -> bool:
    sent = msgspec.json.encode(found.sent)
    assert found.wire.judged(sent) == []
    assert found.wire.faults(sent) == []
    return True


@each_provider
@both_ways
async def test_text(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("It is warm.", 0, "end", streamed=streamed)
        message = await found.ask([user(said("How is it?"))], streamed=streamed, system="Be brief.")
    assert (text(message), message.stop_reason, message.model) == ("It is warm.", "end_turn", MODEL)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 4, 7)
    assert "How is it?" in str(found.sent)
    assert "Be brief." in str(found.sent)
    assert found.warnings == ""
    assert is_well_formed(found)


@each_provider
@both_ways
async def test_parallel_tools_over_three_turns(wire: Wire, streamed: bool) -> None:
    messages: list[Any] = [user(said("Look around."))]
    async with client(wire) as found:
        for turn in range(3):
            found.says("I will.", 2, "tools", streamed=streamed)
            message = await found.ask(messages, streamed=streamed, tools=TOOLS)
            calls = [block for block in message.content if block.type == "tool_use"]
            assert [(call.name, call.input) for call in calls] == list(CALLS)
            assert len({call.id for call in calls}) == 2
            assert (message.stop_reason, text(message)) == ("tool_use", "I will.")
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": f"result {turn} of {call.name}"}
                for call in calls
            ]
            messages += [reply(message), user(*results, said("Go on."))]
        found.says("Done.", 0, "end", streamed=streamed)
        assert text(await found.ask(messages, streamed=streamed, tools=TOOLS)) == "Done."
    calls_sent, results_sent = wire.ids(found.sent)
    assert len(calls_sent) == len(set(calls_sent)) == 6
    assert results_sent == calls_sent
    told = str(found.sent)
    assert [told.count(f"result {turn}") for turn in range(3)] == [2, 2, 2]
    assert "Does read_file." in told
    assert "cache_control" in found.warnings
    assert is_well_formed(found)


@each_provider
@both_ways
async def test_thinking_with_signatures(wire: Wire, streamed: bool) -> None:
    """The client has a signature for each thought, and the provider gets its own one back."""
    thinking = {"type": "adaptive"}
    async with client(wire) as found:
        found.says("Yes.", 0, "end", "Let me think.", streamed=streamed)
        message = await found.ask([user(said("Sure?"))], streamed=streamed, thinking=thinking)
        thoughts = [block for block in message.content if block.type == "thinking"]
        assert [block.thinking for block in thoughts] == ["Let me think."]
        assert all(block.signature for block in thoughts)
        assert text(message) == "Yes."
        found.says("Still yes.", 0, "end", streamed=streamed)
        history = [user(said("Sure?")), reply(message), user(said("Really?"))]
        assert text(await found.ask(history, streamed=streamed, thinking=thinking)) == "Still yes."
    sent = str(found.sent)
    assert all(secret in sent for secret in wire.secrets)
    assert "callboard" not in sent
    assert is_well_formed(found)


@each_provider
@both_ways
async def test_images_and_documents_go_in(wire: Wire, streamed: bool) -> None:
    """Servers of Chat Completions accept texts as documents, and only OpenAI's own accepts PDFs."""
    reads_pdfs = wire is not CHAT
    page = b"%PDF-1.7 a page" if reads_pdfs else b"A page."
    source = (
        {"type": "base64", "media_type": "application/pdf", "data": b64encode(page).decode()}
        if reads_pdfs
        else {"type": "text", "media_type": "text/plain", "data": page.decode()}
    )
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": b64encode(PNG).decode()},
    }
    async with client(wire) as found:
        found.says("A cat.", 0, "end", streamed=streamed)
        asked = user(picture, {"type": "document", "source": source, "title": "Page"}, said("What is this?"))
        assert text(await found.ask([asked], streamed=streamed)) == "A cat."
    assert b64encode(PNG).decode() in str(found.sent)
    assert (b64encode(page).decode() if reads_pdfs else page.decode()) in str(found.sent)
    assert is_well_formed(found)


@each_provider
async def test_an_image_in_a_result_goes_in(wire: Wire) -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": b64encode(PNG).decode()},
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": CALLS[0][0], "input": CALLS[0][1]}
    async with client(wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [said("Here:"), picture]}
        history = [user(said("Look")), {"role": "assistant", "content": [call]}, user(result)]
        assert text(await found.ask(history, streamed=False, tools=TOOLS)) == "A cat."
    assert b64encode(PNG).decode() in str(found.sent)
    assert is_well_formed(found)


def image_of(wire: Wire) -> Any:
    """A reply with an image."""
    body: Any = wire.body("Here.", 0, "end")
    data = b64encode(PNG).decode()
    match wire.name:
        case "openai":
            item: Json = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": data}
            body["output"] = [*body["output"], item]
        case "gemini":
            body["candidates"][0]["content"]["parts"].append(
                {"inlineData": {"mimeType": "image/png", "data": data}}
            )
        case _:
            body["choices"][0]["message"]["images"] = [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
            ]
    return body


@each_provider
async def test_an_image_comes_out_in_words(wire: Wire) -> None:
    """The wire has no place for it. The client may go on with its history."""
    async with client(wire) as found:
        found.provider.says(whole(image_of(wire)))
        message = await found.ask([user(said("Draw a cat."))], streamed=False)
        assert "Here." in text(message)
        assert "image" in text(message)
        found.says("A cat.", 0, "end", streamed=False)
        history = [user(said("Draw a cat.")), reply(message), user(said("What is it?"))]
        assert text(await found.ask(history, streamed=False)) == "A cat."
    assert "The model made an image" not in str(found.sent)
    assert is_well_formed(found)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}


@each_provider
@both_ways
async def test_structured_output(wire: Wire, streamed: bool) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    async with client(wire) as found:
        found.says('{"name":"Rome","people":3}', 0, "end", streamed=streamed)
        message = await found.ask([user(said("Which?"))], streamed=streamed, output_config=config)
    assert msgspec.json.decode(text(message)) == {"name": "Rome", "people": 3}
    assert "people" in str(found.sent)
    assert is_well_formed(found)


def refusal_of(wire: Wire) -> Any:
    body: Any = wire.body("I can't.", 0, "end")
    match wire.name:
        case "openai":
            body["output"][0]["content"] = [{"type": "refusal", "refusal": "I can't."}]
        case "gemini":
            body["candidates"][0]["finishReason"] = "SAFETY"
        case _:
            body["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I can't."}
    return body


@each_provider
async def test_a_refusal(wire: Wire) -> None:
    async with client(wire) as found:
        found.provider.says(whole(refusal_of(wire)))
        message = await found.ask([user(said("Do harm."))], streamed=False)
    assert (message.stop_reason, text(message)) == ("refusal", "I can't.")


@each_provider
async def test_a_cut_stream(wire: Wire) -> None:
    """The client has what came, and then an error. The open block has no end."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "warm" in str(event) or "is " in str(event))
    kinds: list[str] = []
    words = ""
    async with client(wire) as found:
        found.provider.says(stream(wire, *events[: half + 1], ends="cut"))
        with pytest.raises(anthropic.APIStatusError) as failed:
            async with found.sdk.beta.messages.stream(model=MODEL, max_tokens=9, messages=HI) as streamed:
                async for event in streamed:
                    kinds.append(event.type)
                    if event.type == "text":
                        words += event.text
    assert "It is warm.".startswith(words)
    assert words
    assert "content_block_stop" not in kinds
    assert failed.value.type in ("api_error", "overloaded_error")


ERRORS = [
    ("rate limit", 429, "rate_limit_error"),
    ("overload", 529, "overloaded_error"),
    ("overflow", 400, "invalid_request_error"),
]


@each_provider
@both_ways
@pytest.mark.parametrize(("condition", "status", "kind"), ERRORS, ids=[condition for condition, *_ in ERRORS])
async def test_errors(wire: Wire, streamed: bool, condition: str, status: int, kind: str) -> None:
    refused, body = wire.error_body(condition)
    async with client(wire) as found:
        found.provider.says(whole(body, refused, retry_after="7"))
        with pytest.raises(anthropic.APIStatusError) as failed:
            await found.ask([user(said("Hi"))], streamed=streamed)
    assert (failed.value.status_code, failed.value.type) == (status, kind)
    assert failed.value.response.headers.get("retry-after") == (None if condition == "overflow" else "7")
    if condition == "overflow":
        assert "prompt is too long" in str(failed.value)


@each_provider
async def test_a_client_that_leaves_in_mid_stream(wire: Wire) -> None:
    """The provider's connection is closed, so that it stops."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "It" in str(event))
    async with client(wire) as found:
        found.provider.says(Scripted(wire.stream(*events[: half + 1]), kind="text/event-stream", ends="never"))
        async with found.sdk.beta.messages.stream(model=MODEL, max_tokens=9, messages=HI) as streamed:
            async for event in streamed:
                if event.type == "text":
                    break
        await asyncio.wait_for(found.provider.left.wait(), 5)


@each_provider
async def test_tokens_are_counted_without_the_provider(wire: Wire) -> None:
    async with client(wire) as found:
        counted = await found.sdk.beta.messages.count_tokens(model=MODEL, messages=HI, tools=TOOLS)
        assert counted.input_tokens > 10
        assert found.provider.asked == []
