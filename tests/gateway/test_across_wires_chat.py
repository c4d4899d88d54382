"""OpenAI's SDK with Chat Completions as the client of a gateway over each other provider: there and back."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai
import pydantic
import pytest

from callboard.adapters.conformance import CALLS
from callboard.bus.values.base import Json
from tests.gateway.scripted_providers import Scripted, ScriptedProvider, serving, stream, whole
from tests.support.canonical_requests import PNG
from tests.support.wires import WIRES, Wire

ANTHROPIC, RESPONSES, GEMINI = WIRES[0], WIRES[1], WIRES[3]
OTHERS = (ANTHROPIC, RESPONSES, GEMINI)
MODEL = "gpt-5"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {key: {} for key in given}},
        },
    }
    for name, given in CALLS
]

each_provider = pytest.mark.parametrize("wire", OTHERS, ids=lambda wire: wire.name)
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Client:
    """The SDK, over a gateway."""

    def __init__(self, sdk: openai.AsyncOpenAI, provider: ScriptedProvider, wire: Wire) -> None:
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

    async def ask(self, *messages: Json, streamed: bool, **fields: Any) -> dict[str, Any]:
        """The only choice of a reply, with the usage. A stream is joined as the SDK's users do."""
        create: Any = self.sdk.chat.completions.with_raw_response.create
        if streamed:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = await create(model=MODEL, messages=list(messages), **fields)
        self.warnings = raw.headers.get("x-callboard-warnings", "")
        if streamed:
            return joined([chunk.model_dump(exclude_none=True) async for chunk in raw.parse()])
        completion: dict[str, Any] = raw.parse().model_dump(exclude_none=True)
        (choice,) = completion["choices"]
        return {**choice, "usage": completion["usage"], "model": completion["model"]}

    @property
    def sent(self) -> Any:
        """The body of the provider's last request."""
        return self.provider.asked[-1]

    def check_sent(self) -> None:
        """The provider would take the last request."""
        body = msgspec.json.encode(self.sent)
        assert self.wire.faults(body) == self.wire.judged(body) == []


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice of a stream's chunks."""
    message: dict[str, Any] = {}
    choice: dict[str, Any] = {"message": message, "pieces": len(chunks)}
    for chunk in chunks:
        choice["model"] = chunk["model"]
        if "usage" in chunk:
            choice["usage"] = chunk["usage"]
        for each in chunk["choices"]:
            if "finish_reason" in each:
                choice["finish_reason"] = each["finish_reason"]
            _join(message, each["delta"])
    for call in message.get("tool_calls", ()):
        del call["index"]
    return choice


def _join(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        match value:
            case str() if name not in ("role", "id", "type"):
                message[name] = message.get(name, "") + value
            case dict():
                _join(message.setdefault(name, {}), value)
            case list() if name == "tool_calls":
                calls = message.setdefault(name, [])
                for call in value:
                    if call["index"] == len(calls):
                        calls.append({})
                    _join(calls[call["index"]], call)
            case list():
                message.setdefault(name, []).extend(value)
            case _:
                message[name] = value


@asynccontextmanager
async def client(wire: Wire, named: str | None = None) -> AsyncIterator[Client]:
    async with serving(wire, MODEL, named) as (url, provider):
        async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=20) as sdk:
            yield Client(sdk, provider, wire)


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


@each_provider
@both_ways
async def test_text(wire: Wire, streamed: bool) -> None:
    system: Json = {"role": "system", "content": "Be brief."}
    async with client(wire) as found:
        found.says("It is warm.", 0, "end", streamed=streamed)
        choice = await found.ask(system, user("How is it?"), streamed=streamed, temperature=0.5)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is warm.", "stop")
    assert choice.get("pieces", 9) > 3
    usage = choice["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (12, 4)
    assert (usage["completion_tokens"], usage["total_tokens"]) == (7, 19)
    assert choice["model"] == MODEL
    assert "How is it?" in str(found.sent)
    assert "Be brief." in str(found.sent)
    found.check_sent()


@each_provider
@both_ways
async def test_parallel_tools_over_three_turns(wire: Wire, streamed: bool) -> None:
    messages: list[Json] = [user("Look around.")]
    async with client(wire) as found:
        for turn in range(3):
            found.says("I will.", 2, "tools", streamed=streamed)
            choice = await found.ask(*messages, streamed=streamed, tools=TOOLS)
            calls = choice["message"]["tool_calls"]
            functions = [call["function"] for call in calls]
            assert [(one["name"], msgspec.json.decode(one["arguments"])) for one in functions] == list(CALLS)
            assert len({call["id"] for call in calls}) == 2
            assert choice["finish_reason"] == "tool_calls"
            messages.append(choice["message"])
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}"} for call in calls
            ]
        found.says("Done.", 0, "end", streamed=streamed)
        choice = await found.ask(*messages, streamed=streamed, tools=TOOLS)
        assert choice["message"]["content"] == "Done."
    calls_sent, results_sent = wire.ids(found.sent)
    assert len(calls_sent) == len(set(calls_sent)) == 6
    assert results_sent == calls_sent
    found.check_sent()
    told = str(found.sent)
    assert [told.count(f"result {turn}") for turn in range(3)] == [2, 2, 2]
    assert "Does read_file." in told


@each_provider
@both_ways
async def test_thinking(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("Yes.", 1, "tools", "Let me think.", streamed=streamed)
        choice = await found.ask(user("Sure?"), streamed=streamed, tools=TOOLS, reasoning_effort="high")
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == ("Let me think.", "Yes.")
        (call,) = message["tool_calls"]
        result: Json = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        found.says("Still yes.", 0, "end", streamed=streamed)
        history = (user("Sure?"), message, result)
        choice = await found.ask(*history, streamed=streamed, tools=TOOLS, reasoning_effort="high")
        assert choice["message"]["content"] == "Still yes."
    found.check_sent()
    assert wire.secrets[0] in str(found.sent)  # the signature, from the client or kept here


@each_provider
async def test_images_and_documents_go_in(wire: Wire) -> None:
    data, page = b64encode(PNG).decode(), b64encode(b"%PDF-1.7 a page").decode()
    image: Json = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}}
    document: Json = {
        "type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{page}"}
    }  # fmt: skip
    async with client(wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        content = [image, document, {"type": "text", "text": "What is this?"}]
        choice = await found.ask(user(content), streamed=False)
    assert choice["message"]["content"] == "A cat."
    assert data in str(found.sent)
    assert page in str(found.sent)
    found.check_sent()


def image_of(wire: Wire) -> Any:
    """A reply with an image."""
    body: Any = wire.body("Here.", 0, "end")
    data = b64encode(PNG).decode()
    if wire is RESPONSES:
        item: Json = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": data}
        body["output"] = [*body["output"], item]
    else:
        part: Json = {"inlineData": {"mimeType": "image/png", "data": data}}
        body["candidates"][0]["content"]["parts"].append(part)
    return body


@pytest.mark.parametrize("wire", OTHERS[1:], ids=lambda wire: wire.name)
async def test_images_come_out(wire: Wire) -> None:
    """Anthropic's models make none."""
    async with client(wire) as found:
        found.provider.says(whole(image_of(wire)))
        choice = await found.ask(user("Draw a cat."), streamed=False)
    (image,) = choice["message"]["images"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{b64encode(PNG).decode()}"
    assert choice["message"]["content"] == "Here."


class City(pydantic.BaseModel):
    name: str
    people: int | None


@each_provider
@both_ways
async def test_structured_output(wire: Wire, streamed: bool) -> None:
    rome = City(name="Rome", people=3)
    async with client(wire) as found:
        found.says('{"name":"Rome","people":3}', 0, "end", streamed=streamed)
        completions = found.sdk.chat.completions
        if streamed:
            async with completions.stream(
                model=MODEL, messages=[{"role": "user", "content": "Which?"}], response_format=City
            ) as events:
                parsed = (await events.get_final_completion()).choices[0].message.parsed
        else:
            reply = await completions.parse(
                model=MODEL, messages=[{"role": "user", "content": "Which?"}], response_format=City
            )
            parsed = reply.choices[0].message.parsed
    assert parsed == rome
    assert "people" in str(found.sent)
    found.check_sent()


def refusal_of(wire: Wire) -> Any:
    body: Any = wire.body("I can't.", 0, "end")
    match wire.name:
        case "anthropic":
            return {**body, "stop_reason": "refusal"}
        case "openai":
            body["output"][0]["content"] = [{"type": "refusal", "refusal": "I can't."}]
        case _:
            body["candidates"][0]["finishReason"] = "SAFETY"
    return body


@each_provider
async def test_a_refusal(wire: Wire) -> None:
    async with client(wire) as found:
        found.provider.says(whole(refusal_of(wire)))
        choice = await found.ask(user("Do harm."), streamed=False)
    message = choice["message"]
    if wire is GEMINI:  # its filter ended the reply
        assert (message["content"], choice["finish_reason"]) == ("I can't.", "content_filter")
    else:
        assert (message["refusal"], choice["finish_reason"]) == ("I can't.", "stop")


@each_provider
async def test_a_cut_stream(wire: Wire) -> None:
    """The client has what came, and then an error of the server."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "warm" in str(event) or "is " in str(event))
    async with client(wire) as found:
        found.provider.says(stream(wire, *events[: half + 1], ends="cut"))
        said = ""
        reply = await found.sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        with pytest.raises(openai.APIError):
            async for chunk in reply:
                said += chunk.choices[0].delta.content or ""
    assert said
    assert "It is warm.".startswith(said)


ERRORS: list[tuple[str, type[openai.APIStatusError], int, str]] = [
    ("rate limit", openai.RateLimitError, 429, "rate_limit_exceeded"),
    ("overload", openai.InternalServerError, 503, "server_is_overloaded"),
    ("overflow", openai.BadRequestError, 400, "context_length_exceeded"),
]


@each_provider
@both_ways
@pytest.mark.parametrize(
    ("condition", "error", "status", "code"), ERRORS, ids=[condition for condition, *_ in ERRORS]
)
async def test_errors(
    wire: Wire, streamed: bool, condition: str, error: type[openai.APIStatusError], status: int, code: str
) -> None:
    refused, body = wire.error_body(condition)
    async with client(wire) as found:
        found.provider.says(whole(body, refused, retry_after="7"))
        with pytest.raises(error) as failed:
            await found.ask(user("Hi"), streamed=streamed)
    assert (failed.value.status_code, failed.value.code) == (status, code)
    assert failed.value.response.headers.get("retry-after") == (None if condition == "overflow" else "7")


@each_provider
async def test_a_client_that_leaves_in_mid_stream(wire: Wire) -> None:
    """The provider's connection is closed, so that it stops."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "It" in str(event))
    async with client(wire) as found:
        found.provider.says(Scripted(wire.stream(*events[: half + 1]), kind="text/event-stream", ends="never"))
        reply = await found.sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        async for chunk in reply:
            if chunk.choices[0].delta.content:
                break
        await reply.close()
        await asyncio.wait_for(found.provider.left.wait(), 5)


@each_provider
@both_ways
async def test_what_another_protocol_has_no_word_for_is_in_the_warnings(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        await found.ask(user("Hi"), streamed=streamed, logit_bias={"1": 5}, n=2)
    assert "logit_bias" in found.warnings
    assert "n is not sent" in found.warnings
    found.check_sent()


@each_provider
@both_ways
async def test_a_tool_with_a_name_that_a_provider_refuses(wire: Wire, streamed: bool) -> None:
    name = "1.tool/of:a server"
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    async with client(wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        call: Json = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        await found.ask(
            user("Hi"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
            streamed=streamed,
            tools=[tool],
        )
    found.check_sent()
    assert str(found.sent).count("t1_tool_of_a_server") >= 2


@each_provider
@both_ways
async def test_a_free_form_tool(wire: Wire, streamed: bool) -> None:
    """Only OpenAI's protocols have such tools. Others get a function with one text."""
    tool = {"type": "custom", "custom": {"name": "sql", "description": "Runs a query."}}
    call: Json = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    async with client(wire) as found:
        found.says("One.", 0, "end", streamed=streamed)
        choice = await found.ask(
            user("Count."),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "1"},
            streamed=streamed,
            tools=[tool],
        )
    assert choice["message"]["content"] == "One."
    found.check_sent()
    assert "SELECT 1" in str(found.sent)
    assert ("custom_tool_call" in str(found.sent)) == (wire is RESPONSES)


@pytest.mark.parametrize("form", [openai.omit, "float", "base64"], ids=["own", "float", "base64"])
async def test_embeddings(form: Any) -> None:
    """Of Gemini's models."""
    async with client(GEMINI, "gemini-embedding-001") as found:
        found.provider.says(whole({"embeddings": [{"values": [0.5, -1.0]}, {"values": [0.0, 2.0]}]}))
        reply = await found.sdk.embeddings.create(
            model=MODEL, input=["a", "b"], encoding_format=form, dimensions=2
        )
    vectors: list[Any] = [item.embedding for item in reply.data]
    assert vectors == (["AAAAPwAAgL8=", "AAAAAAAAAEA="] if form == "base64" else [[0.5, -1.0], [0.0, 2.0]])
    assert reply.model == MODEL
    assert str(found.sent).count("outputDimensionality") == 2


@both_ways
async def test_images_by_their_own_endpoint(streamed: bool) -> None:
    """Of Gemini's models."""
    data = b64encode(PNG).decode()
    async with client(GEMINI, "gemini-2.5-flash-image") as found:
        found.provider.says(whole(image_of(GEMINI)))
        if streamed:
            events = await found.sdk.images.generate(model=MODEL, prompt="A cat.", stream=True)
            assert [event.b64_json async for event in events] == [data]
        else:
            reply = await found.sdk.images.generate(model=MODEL, prompt="A cat.")
            assert [image.b64_json for image in reply.data or []] == [data]
    assert "A cat." in str(found.sent)


async def test_tokens_in_place_of_text_are_refused_with_a_reason() -> None:
    async with client(GEMINI, "gemini-embedding-001") as found:
        with pytest.raises(openai.BadRequestError, match="Send the text itself"):
            await found.sdk.embeddings.create(model=MODEL, input=[1, 2, 3])
    assert found.provider.asked == []
