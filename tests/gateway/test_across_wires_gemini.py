"""The SDK of Gemini as the client of a gateway over each other provider: the whole way, there and back."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pydantic
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types

from callboard.adapters.conformance import CALLS
from callboard.bus.values.base import Json
from tests.gateway.scripted_providers import Scripted, ScriptedProvider, serving, stream, whole
from tests.support.canonical_requests import PNG
from tests.support.wires import WIRES, Wire

OTHERS = WIRES[:3]
MODEL = "gemini-2.5-pro"
FUNCTIONS = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name=name, description=f"Does {name}.", parameters_json_schema={
                "type": "object", "properties": {key: {} for key in given}})
            for name, given in CALLS
        ]
    )
]  # fmt: skip
THINKING = types.ThinkingConfig(include_thoughts=True, thinking_budget=8192)

each_provider = pytest.mark.parametrize("wire", OTHERS, ids=lambda wire: wire.name)
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Client:
    """The SDK, over a gateway."""

    def __init__(self, sdk: genai.Client, provider: ScriptedProvider, wire: Wire, url: str) -> None:
        self.url = url
        self.sdk = sdk
        self.provider = provider
        self.wire = wire

    def says(self, text: str, calls: int, stop: str, thought: str = "", *, streamed: bool) -> None:
        """Script the provider's next reply."""
        if streamed:
            events = (
                self.wire.events(text, calls, stop, thought) if thought else self.wire.events(text, calls, stop)
            )
            self.provider.says(stream(self.wire, *(event for _, event in events)))
        else:
            self.provider.says(whole(self.wire.body(text, calls, stop, thought)))

    async def ask(self, contents: Any, *, streamed: bool, **config: Any) -> list[types.GenerateContentResponse]:
        """The chunks of a reply; one for a reply that is not streamed."""
        settings = types.GenerateContentConfig(**config)
        models = self.sdk.aio.models
        if not streamed:
            return [await models.generate_content(model=MODEL, contents=contents, config=settings)]
        found = await models.generate_content_stream(model=MODEL, contents=contents, config=settings)
        return [chunk async for chunk in found]

    @property
    def sent(self) -> Any:
        """The body of the provider's last request."""
        return self.provider.asked[-1]


@asynccontextmanager
async def client(wire: Wire) -> AsyncIterator[Client]:
    async with serving(wire, MODEL) as (url, provider):
        sdk = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, timeout=20_000))
        try:
            yield Client(sdk, provider, wire, url)
        finally:
            await sdk.aio.aclose()
            sdk.close()


def parts(chunks: Sequence[types.GenerateContentResponse]) -> list[types.Part]:
    return [part for chunk in chunks for part in _content(chunk).parts or ()]


def _content(chunk: types.GenerateContentResponse) -> types.Content:
    assert chunk.candidates
    return chunk.candidates[0].content or types.Content()


def text(chunks: Sequence[types.GenerateContentResponse]) -> str:
    return "".join(part.text or "" for part in parts(chunks) if not part.thought)


def finish(chunks: Sequence[types.GenerateContentResponse]) -> str:
    candidates = chunks[-1].candidates
    assert candidates
    reason = candidates[0].finish_reason
    assert reason is not None
    return reason.value


@each_provider
@both_ways
async def test_text(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("It is warm.", 0, "end", streamed=streamed)
        chunks = await found.ask("How is it?", streamed=streamed, system_instruction="Be brief.", temperature=0.5)
    assert (text(chunks), finish(chunks)) == ("It is warm.", "STOP")
    assert len(chunks) > 1 or not streamed
    usage = chunks[-1].usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (12, 4)
    assert (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0) == 7
    assert usage.total_token_count == 19
    assert {chunk.model_version for chunk in chunks} == {MODEL}
    sent = str(found.sent)
    assert "How is it?" in sent
    assert "Be brief." in sent
    assert wire.judged(msgspec.json.encode(found.sent)) == []


@each_provider
@both_ways
async def test_parallel_tools_over_three_turns(wire: Wire, streamed: bool) -> None:
    contents: list[Any] = [types.UserContent("Look around.")]
    async with client(wire) as found:
        for turn in range(3):
            found.says("I will.", 2, "tools", streamed=streamed)
            chunks = await found.ask(contents, streamed=streamed, tools=FUNCTIONS)
            calls = [part.function_call for part in parts(chunks) if part.function_call]
            assert [(call.name, call.args) for call in calls] == list(CALLS)
            assert len({call.id for call in calls}) == 2
            assert finish(chunks) == "STOP"
            contents += [_content(chunk) for chunk in chunks if _content(chunk).parts]
            results = [_result(call, turn) for call in calls]
            contents.append(types.Content(role="user", parts=results))
        found.says("Done.", 0, "end", streamed=streamed)
        chunks = await found.ask(contents, streamed=streamed, tools=FUNCTIONS)
        assert text(chunks) == "Done."
    calls_sent, results_sent = wire.ids(found.sent)
    assert len(calls_sent) == len(set(calls_sent)) == 6
    assert results_sent == calls_sent
    assert wire.faults(msgspec.json.encode(found.sent)) == wire.judged(msgspec.json.encode(found.sent)) == []
    told = str(found.sent)
    assert [told.count(f"result {turn}") for turn in range(3)] == [2, 2, 2]
    assert "Does read_file." in told


def _result(call: types.FunctionCall, turn: int) -> types.Part:
    response = {"output": f"result {turn} of {call.name}"}
    return types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))


@each_provider
@both_ways
async def test_thinking(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says("Yes.", 0, "end", "Let me think.", streamed=streamed)
        chunks = await found.ask("Sure?", streamed=streamed, thinking_config=THINKING)
        thoughts = "".join(part.text or "" for part in parts(chunks) if part.thought)
        assert (thoughts, text(chunks)) == ("Let me think.", "Yes.")
        found.says("Still yes.", 0, "end", streamed=streamed)
        history = [types.UserContent("Sure?"), *map(_content, chunks), types.UserContent("Really?")]
        assert text(await found.ask(history, streamed=streamed, thinking_config=THINKING)) == "Still yes."
    assert all(secret in str(found.sent) for secret in wire.secrets[:1])
    assert wire.faults(msgspec.json.encode(found.sent)) == wire.judged(msgspec.json.encode(found.sent)) == []


@each_provider
@both_ways
async def test_reasoning_comes_back_with_its_call(wire: Wire, streamed: bool) -> None:
    """A client that drops thoughts, as Gemini CLI does, and ids, sends none of it back. It was kept here."""
    async with client(wire) as found:
        found.says("", 2, "tools", "Let me think.", streamed=streamed)
        chunks = await found.ask("Look.", streamed=streamed, tools=FUNCTIONS, thinking_config=THINKING)
        calls = [part.function_call for part in parts(chunks) if part.function_call]
        for call in calls:
            call.id = None
        said = [types.Part(function_call=call) for call in calls]
        results = [_result(call, 1) for call in calls]
        found.says("Done.", 0, "end", streamed=streamed)
        history = [types.UserContent("Look."), types.ModelContent(said), types.Content(role="user", parts=results)]
        await found.ask(history, streamed=streamed, tools=FUNCTIONS, thinking_config=THINKING)
    secrets = wire.secrets[:1] or ("Let me think.",)
    assert [secret in str(found.sent) for secret in secrets] == [True]
    calls_sent, results_sent = wire.ids(found.sent)
    assert results_sent == calls_sent
    assert wire.faults(msgspec.json.encode(found.sent)) == wire.judged(msgspec.json.encode(found.sent)) == []


@each_provider
async def test_thoughts_are_only_for_clients_that_ask(wire: Wire) -> None:
    async with client(wire) as found:
        found.says("Yes.", 0, "end", "Let me think.", streamed=True)
        chunks = await found.ask("Sure?", streamed=True)
    assert [part.text for part in parts(chunks) if part.text] == ["Ye", "s."]


@each_provider
async def test_images_and_documents_go_in(wire: Wire) -> None:
    """Servers of Chat Completions take texts as documents, and only OpenAI's own takes PDFs."""
    reads_pdfs = wire.name != "openai_compatible"
    page = b"%PDF-1.7 a page" if reads_pdfs else b"A page."
    document = types.Part.from_bytes(data=page, mime_type="application/pdf" if reads_pdfs else "text/plain")
    image = types.Part.from_bytes(data=PNG, mime_type="image/png")
    async with client(wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        assert text(await found.ask([image, document, "What is this?"], streamed=False)) == "A cat."
    assert b64encode(PNG).decode() in str(found.sent)
    assert (b64encode(page).decode() if reads_pdfs else page.decode()) in str(found.sent)
    assert wire.judged(msgspec.json.encode(found.sent)) == []


def image_of(wire: Wire) -> Any:
    """A reply with an image."""
    body: Any = wire.body("Here.", 0, "end")
    data = b64encode(PNG).decode()
    if wire.name == "openai":
        item: Json = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": data}
        body["output"] = [*body["output"], item]
    else:
        body["choices"][0]["message"]["images"] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        ]
    return body


@pytest.mark.parametrize("wire", OTHERS[1:], ids=lambda wire: wire.name)
async def test_images_come_out(wire: Wire) -> None:
    """Anthropic's models make none."""
    async with client(wire) as found:
        found.provider.says(whole(image_of(wire)))
        chunks = await found.ask("Draw a cat.", streamed=False)
    images = [part.inline_data for part in parts(chunks) if part.inline_data]
    assert [(image.mime_type, image.data) for image in images] == [("image/png", PNG)]
    assert text(chunks) == "Here."


class City(pydantic.BaseModel):
    name: str
    people: int | None


@each_provider
@both_ways
async def test_structured_output(wire: Wire, streamed: bool) -> None:
    async with client(wire) as found:
        found.says('{"name":"Rome","people":3}', 0, "end", streamed=streamed)
        chunks = await found.ask(
            "Which?", streamed=streamed, response_mime_type="application/json", response_schema=City
        )
    assert City.model_validate_json(text(chunks)) == City(name="Rome", people=3)
    if not streamed:
        assert chunks[0].parsed == City(name="Rome", people=3)
    assert "people" in str(found.sent)
    assert wire.judged(msgspec.json.encode(found.sent)) == []


@each_provider
@both_ways
async def test_a_list_as_structured_output(wire: Wire, streamed: bool) -> None:
    """Other providers need an object at the root; the client asked for a list and gets one."""
    async with client(wire) as found:
        found.says('{"value": [{"name":"Rome","people":null}]}', 0, "end", streamed=streamed)
        chunks = await found.ask(
            "Which?", streamed=streamed, response_mime_type="application/json", response_schema=list[City]
        )
    assert text(chunks).strip() == '[{"name":"Rome","people":null}]'
    if not streamed:
        parsed: Any = chunks[0].parsed
        assert parsed == [City(name="Rome", people=None)]
    assert wire.judged(msgspec.json.encode(found.sent)) == []


def refusal_of(wire: Wire) -> Any:
    body: Any = wire.body("I can't.", 0, "end")
    match wire.name:
        case "anthropic":
            return {**body, "stop_reason": "refusal"}
        case "openai":
            body["output"][0]["content"] = [{"type": "refusal", "refusal": "I can't."}]
        case _:
            body["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I can't."}
    return body


@each_provider
async def test_a_refusal(wire: Wire) -> None:
    async with client(wire) as found:
        found.provider.says(whole(refusal_of(wire)))
        chunks = await found.ask("Do harm.", streamed=False)
    assert (finish(chunks), text(chunks)) == ("SAFETY", "I can't.")


@each_provider
async def test_a_cut_stream(wire: Wire) -> None:
    """The client has what came, and then an error of the server."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "warm" in str(event) or "is " in str(event))
    async with client(wire) as found:
        found.provider.says(stream(wire, *events[: half + 1], ends="cut"))
        said = ""
        settings = types.GenerateContentConfig()
        reply: Any = await found.sdk.aio.models.generate_content_stream(
            model=MODEL, contents="Hi", config=settings
        )
        with pytest.raises(genai_errors.APIError) as failed:
            async for chunk in reply:
                said += chunk.text or ""
    assert "It is warm.".startswith(said)
    assert said
    assert failed.value.code in (500, 503)


ERRORS = [
    ("rate limit", 429, "RESOURCE_EXHAUSTED"),
    ("overload", 503, "UNAVAILABLE"),
    ("overflow", 400, "INVALID_ARGUMENT"),
]


@each_provider
@both_ways
@pytest.mark.parametrize(("condition", "code", "status"), ERRORS, ids=[condition for condition, *_ in ERRORS])
async def test_errors(wire: Wire, streamed: bool, condition: str, code: int, status: str) -> None:
    refused, body = wire.error_body(condition)
    async with client(wire) as found:
        found.provider.says(whole(body, refused, retry_after="7"))
        with pytest.raises(genai_errors.APIError) as failed:
            await found.ask("Hi", streamed=streamed)
    error = failed.value
    assert (error.code, error.status) == (code, status)
    details: Any = error.details
    delays = [one["retryDelay"] for one in details["error"].get("details", ()) if "RetryInfo" in one["@type"]]
    assert delays == ([] if condition == "overflow" else ["7s"])
    if condition == "overflow":
        assert "exceeds the maximum number of tokens" in str(error.message)


@each_provider
async def test_a_client_that_leaves_in_mid_stream(wire: Wire) -> None:
    """The provider's connection is closed, so that it stops."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "It" in str(event))
    async with client(wire) as found:
        found.provider.says(Scripted(wire.stream(*events[: half + 1]), kind="text/event-stream", ends="never"))
        settings = types.GenerateContentConfig()
        reply: Any = await found.sdk.aio.models.generate_content_stream(
            model=MODEL, contents="Hi", config=settings
        )
        async for chunk in reply:
            assert chunk.text
            break
        await reply.aclose()
        await found.sdk.aio.aclose()
        await asyncio.wait_for(found.provider.left.wait(), 5)


@pytest.mark.parametrize("wire", WIRES[:4], ids=lambda wire: wire.name)
async def test_a_stream_without_alt_is_one_array(wire: Wire) -> None:
    """As at Google's own address, also where the provider's events are passed on as they are."""
    async with client(wire) as found, httpx.AsyncClient() as http:
        found.says("It is warm.", 0, "end", streamed=True)
        address = f"{found.url}/v1beta/models/{MODEL}:streamGenerateContent"
        answer = await http.post(address, json={"contents": [{"parts": [{"text": "Hi"}]}]})
    assert answer.headers["content-type"].startswith("application/json")
    said = [part.get("text", "") for chunk in answer.json() for part in _parts_of(chunk)]
    assert "".join(said) == "It is warm."


def _parts_of(chunk: Any) -> Any:
    return chunk["candidates"][0]["content"]["parts"] if "candidates" in chunk else ()


@each_provider
@both_ways
async def test_losses_are_in_a_header(wire: Wire, streamed: bool) -> None:
    search = types.Tool(google_search=types.GoogleSearch())
    async with client(wire) as found:
        found.says("Yes.", 0, "end", streamed=streamed)
        chunks = await found.ask("Sure?", streamed=streamed, top_k=3, tools=[search])
    headers: Any = chunks[0].sdk_http_response
    for name in ("topK", "the tool googleSearch"):
        assert f"{name} is not sent to another protocol" in headers.headers["x-callboard-warnings"]


@each_provider
async def test_models_and_tokens(wire: Wire) -> None:
    async with client(wire) as found:
        listed = [model.name async for model in await found.sdk.aio.models.list(config={"query_base": True})]
        counted = await found.sdk.aio.models.count_tokens(model=MODEL, contents="How is it?")
        with pytest.raises(genai_errors.ClientError) as failed:
            await found.sdk.aio.models.generate_content(model="nothing", contents="Hi")
    assert f"models/{MODEL}" in listed
    assert counted.total_tokens
    assert (failed.value.code, failed.value.status) == (404, "NOT_FOUND")
