"""OpenAI's SDK with the Responses API as the client of a gateway over each other provider: there and back."""

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
from openai.types.responses import Response

from callboard.adapters.conformance import CALLS, http_kit
from callboard.bus.values.base import Json, JsonObject
from tests.gateway.scripted_providers import Scripted, ScriptedProvider, serving, stream, whole
from tests.support.canonical_requests import PNG
from tests.support.wires import WIRES, Wire, anthropic, chat, gemini

from .responses_cases import APPLY_PATCH, PATCH

ANTHROPIC, CHAT, GEMINI = WIRES[0], WIRES[2], WIRES[3]
OTHERS = (ANTHROPIC, CHAT, GEMINI)
MODEL = "gpt-5-codex"
TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "parameters": {"type": "object", "properties": {key: {} for key in given}},
        "strict": False,
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
        self.kinds: list[str] = []
        """The types of the events of the last stream."""

    def says(self, text: str, calls: int, stop: str, thought: str = "", *, streamed: bool) -> None:
        """Script the provider's next reply."""
        if streamed:
            events = (
                self.wire.events(text, calls, stop, thought) if thought else self.wire.events(text, calls, stop)
            )
            self.provider.says(stream(self.wire, *(event for _, event in events)))
        else:
            self.provider.says(whole(self.wire.body(text, calls, stop, thought)))

    async def ask(self, asked: Any, *, streamed: bool, **fields: Any) -> Response:
        """A reply. Of a stream it is what its last event has, which must be what the items before it said."""
        responses: Any = self.sdk.responses
        given = {"model": MODEL, "input": asked, **fields}
        if not streamed:
            raw = await responses.with_raw_response.create(**given)
            self.warnings = raw.headers.get("x-callboard-warnings", "")
            reply: Response = raw.parse()
            return reply
        raw = await responses.with_raw_response.create(**given, stream=True)
        self.warnings = raw.headers.get("x-callboard-warnings", "")
        events = [event async for event in raw.parse()]
        self.kinds = [event.type for event in events]
        last: Response = events[-1].response
        items = [event.item for event in events if event.type == "response.output_item.done"]
        assert items == last.output
        return last

    @property
    def sent(self) -> Any:
        """The body of the provider's last request."""
        return self.provider.asked[-1]

    def check_sent(self) -> None:
        """The provider would take the last request."""
        body = msgspec.json.encode(self.sent)
        assert self.wire.faults(body) == self.wire.judged(body) == []


@asynccontextmanager
async def client(wire: Wire) -> AsyncIterator[Client]:
    async with serving(wire, MODEL) as (url, provider):
        async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=20) as sdk:
            yield Client(sdk, provider, wire)


def user(content: Any) -> JsonObject:
    return {"role": "user", "content": content}


def back(reply: Response) -> list[Any]:
    """The items of a reply, as a client sends them back."""
    return [item.model_dump(exclude_none=True) for item in reply.output]


def calls_of(reply: Response) -> list[Any]:
    return [item for item in reply.output if item.type in ("function_call", "custom_tool_call")]


@each_provider
@both_ways
async def test_text(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("It is warm.", 0, "end", streamed=streamed)
        reply = await found.ask("How is it?", streamed=streamed, instructions="Be brief.", temperature=0.5)
    assert (reply.output_text, reply.status, reply.model) == ("It is warm.", "completed", MODEL)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.input_tokens_details.cached_tokens) == (12, 4)
    assert (reply.usage.output_tokens, reply.usage.total_tokens) == (7, 19)
    assert reply.instructions == "Be brief."
    assert "How is it?" in str(found.sent)
    assert "Be brief." in str(found.sent)
    assert not streamed or found.kinds.count("response.output_text.delta") > 1
    found.check_sent()


@each_provider
@both_ways
async def test_parallel_tools_over_three_turns(wire: Wire, streamed: bool) -> None:
    items: list[Any] = [user("Look around.")]
    async with client(wire) as found:
        for turn in range(3):
            found.says("I will.", 2, "tools", streamed=streamed)
            reply = await found.ask(items, streamed=streamed, tools=TOOLS, store=False)
            calls = calls_of(reply)
            assert [(call.name, msgspec.json.decode(call.arguments)) for call in calls] == list(CALLS)
            assert len({call.call_id for call in calls}) == 2
            items += back(reply)
            items += [
                {"type": "function_call_output", "call_id": call.call_id, "output": f"result {turn}"}
                for call in calls
            ]
        found.says("Done.", 0, "end", streamed=streamed)
        reply = await found.ask(items, streamed=streamed, tools=TOOLS, store=False)
        assert reply.output_text == "Done."
    calls_sent, results_sent = wire.ids(found.sent)
    assert len(calls_sent) == len(set(calls_sent)) == 6
    assert results_sent == calls_sent
    found.check_sent()
    told = str(found.sent)
    assert [told.count(f"result {turn}") for turn in range(3)] == [2, 2, 2]
    assert told.count("I will.") == 3
    assert "Does read_file." in told


@each_provider
@both_ways
async def test_a_stored_reply_is_continued(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("I will.", 1, "tools", streamed=streamed)
        reply = await found.ask("Look around.", streamed=streamed, tools=TOOLS)
        (call,) = calls_of(reply)
        found.says("Done.", 0, "end", streamed=streamed)
        output: JsonObject = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
        again = await found.ask([output], streamed=streamed, tools=TOOLS, previous_response_id=reply.id)
        assert (again.output_text, again.previous_response_id) == ("Done.", reply.id)
        kept = await found.sdk.responses.retrieve(reply.id)
        assert kept.output == reply.output
    calls, results = wire.ids(found.sent)
    assert len(calls) == 1
    assert results == calls
    assert "Look around." in str(found.sent)
    found.check_sent()


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The providers call the client's free-form tool."""
    for module in (anthropic, chat, gemini, http_kit):
        monkeypatch.setattr(module, "CALLS", [("apply_patch", {"input": PATCH})])


@pytest.mark.usefixtures("patches")
@each_provider
@both_ways
async def test_a_free_form_tool(wire: Wire, streamed: bool) -> None:
    """The provider has a function with one text. The client has its own tool, whose text grows."""
    async with client(wire) as found:
        found.says("I edit.", 1, "tools", streamed=streamed)
        reply = await found.ask("Edit.", streamed=streamed, tools=[APPLY_PATCH], store=False)
        (call,) = calls_of(reply)
        assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", PATCH)
        if streamed:
            assert "response.custom_tool_call_input.delta" in found.kinds
            assert "response.function_call_arguments.delta" not in found.kinds
        assert "start: patch" in str(found.sent)  # the grammar, in words
        output: JsonObject = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."}
        found.says("Edited.", 0, "end", streamed=streamed)
        again = await found.ask(
            [user("Edit."), *back(reply), output], streamed=streamed, tools=[APPLY_PATCH], store=False
        )
        assert again.output_text == "Edited."
    calls, results = wire.ids(found.sent)
    assert len(calls) == 1
    assert results == calls
    assert "*** Update File: a.py" in str(found.sent)
    found.check_sent()


@each_provider
@both_ways
async def test_thinking(wire: Wire, streamed: bool) -> None:
    """The reasoning is shown, and its secret comes back to the provider, though the client never has it."""
    fields: dict[str, Any] = {"tools": TOOLS, "store": False, "include": ["reasoning.encrypted_content"]}
    fields |= {"reasoning": {"effort": "high", "summary": "auto"}, "streamed": streamed}
    async with client(wire) as found:
        found.says("Yes.", 1, "tools", "Let me think.", streamed=streamed)
        reply = await found.ask([user("Sure?")], **fields)
        summaries = [part.text for item in reply.output if item.type == "reasoning" for part in item.summary]
        assert (summaries, reply.output_text) == (["Let me think."], "Yes.")
        assert not any(secret in str(back(reply)) for secret in wire.secrets)
        (call,) = calls_of(reply)
        output: JsonObject = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        found.says("Still yes.", 0, "end", streamed=streamed)
        reply = await found.ask([user("Sure?"), *back(reply), output], **fields)
        assert reply.output_text == "Still yes."
    found.check_sent()
    if wire is ANTHROPIC:
        assert "Let me think." in str(found.sent)
        assert str(ANTHROPIC.secrets[0]) in str(found.sent)


@each_provider
async def test_images_and_documents_go_in(wire: Wire) -> None:
    data, page = b64encode(PNG).decode(), b64encode(b"A page of May.").decode()
    image: Json = {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "low"}
    file = {"filename": "a.txt", "file_data": f"data:text/plain;base64,{page}"}
    document: Json = {"type": "input_file", **file}
    async with client(wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        content = [image, document, {"type": "input_text", "text": "What is this?"}]
        reply = await found.ask([user(content)], streamed=False)
    assert reply.output_text == "A cat."
    assert data in str(found.sent)
    assert page in str(found.sent) or "A page of May." in str(found.sent)
    found.check_sent()


@each_provider
async def test_an_image_in_a_tools_output_goes_in(wire: Wire) -> None:
    data = b64encode(PNG).decode()
    image: Json = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    call: Json = {"type": "function_call", "call_id": "call_1", "name": CALLS[0][0], "arguments": "{}"}
    async with client(wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        output: Json = {"type": "function_call_output", "call_id": "call_1", "output": [image]}
        await found.ask([user("Look."), call, output], streamed=False, tools=TOOLS)
    assert data in str(found.sent)
    found.check_sent()


@both_ways
async def test_an_image_comes_out(streamed: bool) -> None:
    """Of these providers' models, Gemini's alone make any."""
    data = b64encode(PNG).decode()
    body: Any = GEMINI.body("Here.", 0, "end")
    body["candidates"][0]["content"]["parts"].append({"inlineData": {"mimeType": "image/png", "data": data}})
    async with client(GEMINI) as found:
        found.provider.says(stream(GEMINI, body) if streamed else whole(body))
        reply = await found.ask("Draw a cat.", streamed=streamed)
    (image,) = [item for item in reply.output if item.type == "image_generation_call"]
    assert (image.result, image.status, reply.output_text) == (data, "completed", "Here.")


class City(pydantic.BaseModel):
    name: str
    people: int | None


@each_provider
@both_ways
async def test_structured_output(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says('{"name":"Rome","people":3}', 0, "end", streamed=streamed)
        if streamed:
            async with found.sdk.responses.stream(model=MODEL, input="Which?", text_format=City) as events:
                parsed = (await events.get_final_response()).output_parsed
        else:
            parsed = (await found.sdk.responses.parse(model=MODEL, input="Which?", text_format=City)).output_parsed
    assert parsed == City(name="Rome", people=3)
    assert "people" in str(found.sent)
    found.check_sent()


def refusal_of(wire: Wire) -> Any:
    body: Any = wire.body("I can't.", 0, "end")
    match wire.name:
        case "anthropic":
            return {**body, "stop_reason": "refusal"}
        case "openai_compatible":
            body["choices"][0]["message"] |= {"content": None, "refusal": "I can't."}
        case _:
            body["candidates"][0]["finishReason"] = "SAFETY"
    return body


@each_provider
async def test_a_refusal(wire: Wire) -> None:
    async with client(wire) as found:
        found.provider.says(whole(refusal_of(wire)))
        reply = await found.ask("Do harm.", streamed=False)
    parts = [part for item in reply.output if item.type == "message" for part in item.content]
    if wire is GEMINI:  # its filter ended the reply
        assert reply.incomplete_details is not None
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "content_filter")
    else:
        assert reply.status == "completed"
        assert parts[-1].type == "refusal"


@each_provider
@both_ways
async def test_a_reply_that_reaches_its_limit(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("It is", 0, "length", streamed=streamed)
        reply = await found.ask("Hi", streamed=streamed, max_output_tokens=20)
    assert reply.incomplete_details is not None
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert reply.output_text == "It is"


@each_provider
async def test_a_cut_stream(wire: Wire) -> None:
    """The client has what came, and then an error of the server."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "warm" in str(event) or "is " in str(event))
    async with client(wire) as found:
        found.provider.says(stream(wire, *events[: half + 1], ends="cut"))
        said = ""
        reply = await found.sdk.responses.create(model=MODEL, input="Hi", stream=True)
        with pytest.raises(openai.APIError):
            async for event in reply:
                said += event.delta if event.type == "response.output_text.delta" else ""
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
            await found.ask("Hi", streamed=streamed)
    assert (failed.value.status_code, failed.value.code) == (status, code)
    assert failed.value.response.headers.get("retry-after") == (None if condition == "overflow" else "7")


@each_provider
async def test_a_client_that_leaves_in_mid_stream(wire: Wire) -> None:
    """The provider's connection is closed, so that it stops."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "It" in str(event))
    async with client(wire) as found:
        found.provider.says(Scripted(wire.stream(*events[: half + 1]), kind="text/event-stream", ends="never"))
        reply = await found.sdk.responses.create(model=MODEL, input="Hi", stream=True)
        async for event in reply:
            if event.type == "response.output_text.delta":
                break
        await reply.close()
        await asyncio.wait_for(found.provider.left.wait(), 5)


@each_provider
@both_ways
async def test_what_another_protocol_has_no_word_for_is_in_the_warnings(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        await found.ask("Hi", streamed=streamed, truncation="auto", tools=[{"type": "web_search"}])
    assert "truncation" in found.warnings
    assert "web_search" in found.warnings
    found.check_sent()


@each_provider
@both_ways
async def test_tools_with_names_that_a_provider_refuses(wire: Wire, streamed: bool) -> None:
    name = "1.tool/of:a server"
    tool: JsonObject = {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    space: JsonObject = {"type": "namespace", "name": "mcp__docs", "tools": [{**tool, "name": "find it"}]}
    call: JsonObject = {"type": "function_call", "call_id": "call_1", "name": name, "arguments": "{}"}
    other: JsonObject = {**call, "call_id": "call_2", "name": "find it", "namespace": "mcp__docs"}
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "done"} for call_id in ("call_1", "call_2")
    ]
    async with client(wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        await found.ask([user("Hi"), call, other, *outputs], streamed=streamed, tools=[tool, space])
    found.check_sent()
    assert str(found.sent).count("tool_1_tool_of_a_server_") >= 2
    assert str(found.sent).count("mcp__docs__find_it_") >= 2
