"""Features of a single vendor's SDK, with a gateway and the other providers."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import openai
import pytest
from google.genai import errors as genai_errors
from google.genai import types

from callboard.adapters.conformance import CALLS, http_kit
from tests.support.wires import WIRES, Wire, anthropic, chat, gemini

from .responses_cases import APPLY_PATCH, PATCH
from .scripted_providers import stream, whole
from .sdk_client import PICTURE, City, picture
from .test_across_wires import both_ways, image_of
from .vendors_sdks import ChatClient, GeminiClient, MessagesClient, ResponsesClient, client_of

ANTHROPIC, RESPONSES, CHAT, GEMINI = WIRES[:4]


def over(*wires: Wire) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("wire", wires, ids=lambda wire: wire.name)


def in_turn(*wires: Wire) -> pytest.MarkDecorator:
    """Every second provider streams its replies."""
    rows = [(wire, number % 2 == 1) for number, wire in enumerate(wires)]
    return pytest.mark.parametrize(("wire", "streamed"), rows, ids=[wire.name for wire in wires])


SEARCH = types.Tool(google_search=types.GoogleSearch())


@both_ways
@pytest.mark.parametrize(("kind", "wire", "fields", "lost"), [
    (ChatClient, RESPONSES, {"logit_bias": {"1": 5}, "n": 2}, ("logit_bias", "n is not sent")),
    (ResponsesClient, GEMINI, {"truncation": "auto", "tools": [{"type": "web_search"}]},
     ("truncation", "web_search")),
    (GeminiClient, ANTHROPIC, {"top_k": 3, "tools": [SEARCH]},
     ("topK is not sent to another protocol", "the tool googleSearch is not sent")),
])  # fmt: skip
async def test_what_no_other_protocol_has_is_in_the_header_with_warnings(
    kind: Any, wire: Wire, fields: dict[str, Any], lost: tuple[str, str], streamed: bool
) -> None:
    async with client_of(kind, wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        await found.ask([found.user("Hi")], streamed=streamed, **fields)
    assert [words for words in lost if words not in found.warnings] == []
    found.check_sent()


@pytest.mark.parametrize(("kind", "wire", "name", "fields"), [
    (ResponsesClient, ANTHROPIC, "conversation", {"conversation": "conv_1"}),
    (ResponsesClient, CHAT, "prompt", {"prompt": {"id": "pmpt_1"}}),
    (GeminiClient, CHAT, "cachedContent", {"cached_content": "cachedContents/1"}),
])  # fmt: skip
async def test_a_request_with_data_stored_at_another_vendor_is_refused(
    kind: Any, wire: Wire, name: str, fields: dict[str, Any]
) -> None:
    """Without the stored history, prompt or content, a reply would be wrong."""
    async with client_of(kind, wire) as found:
        with pytest.raises(found.error, match=f"'{name}' names data") as failed:
            await found.ask([found.user("Go on.")], **fields)
    assert 400 in (getattr(failed.value, "status_code", 0), failed.value.code)
    assert found.provider.asked == []


@pytest.mark.parametrize(("kind", "wire"), [(ResponsesClient, ANTHROPIC), (MessagesClient, CHAT)])
async def test_an_image_in_a_result_of_a_tool_goes_in(kind: Any, wire: Wire) -> None:
    name, given = CALLS[0]
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}
    items: list[Any] = [
        {"type": "function_call", "call_id": "call_1", "name": name, "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [image]},
    ]
    if kind is MessagesClient:
        call = {"type": "tool_use", "id": "toolu_1", "name": name, "input": given}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [picture()]}
        items = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    async with client_of(kind, wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        assert (await found.ask([found.user("Look."), *items], **found.tools)).text == "A cat."
    assert PICTURE in str(found.sent)
    found.check_sent()


# --- Chat Completions ---


@over(ANTHROPIC, RESPONSES, GEMINI)
async def test_a_free_form_tool_of_chat(wire: Wire) -> None:
    """Only OpenAI's protocols have such tools. Other providers get a function with one text, and the grammar as
    text.
    """
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "SELECT .*"}}
    tool = {"name": "sql", "description": "Runs a query.", "format": grammar}
    async with client_of(ChatClient, wire) as found:
        found.says("One.", 0, "end", streamed=False)
        call = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
        history = [
            found.user("Hi"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ]
        assert (await found.ask(history, tools=[{"type": "custom", "custom": tool}])).text == "One."
    assert "SELECT 1" in str(found.sent)
    assert "SELECT .*" in str(found.sent)
    assert ("custom_tool_call" in str(found.sent)) == (wire is RESPONSES)
    found.check_sent()


@pytest.mark.parametrize("kind", [ChatClient, ResponsesClient])
async def test_the_sdk_parses_a_structured_output(kind: Any) -> None:
    async with client_of(kind, GEMINI) as found:
        found.says('{"name":"Rome","people":3}', 0, "end", streamed=False)
        asked: dict[str, Any] = {"model": kind.model}
        if kind is ChatClient:
            completions = found.sdk.chat.completions
            reply = await completions.parse(**asked, messages=[found.user("Which?")], response_format=City)
            parsed = reply.choices[0].message.parsed
        else:
            parsed = (await found.sdk.responses.parse(**asked, input="Which?", text_format=City)).output_parsed
    assert parsed == City(name="Rome", people=3)


async def test_embeddings() -> None:
    """A client of Chat Completions gets vectors of a Gemini model, in the form that it asks for."""
    floats, texts = [[0.5, -1.0], [0.0, 2.0]], ["AAAAPwAAgL8=", "AAAAAAAAAEA="]
    async with client_of(ChatClient, GEMINI, "gemini-embedding-001") as found:
        for form, expected in ((openai.omit, floats), ("float", floats), ("base64", texts)):
            found.provider.says(whole({"embeddings": [{"values": values} for values in floats]}))
            reply = await found.sdk.embeddings.create(
                model=found.model, input=["a", "b"], encoding_format=form, dimensions=2
            )
            assert [item.embedding for item in reply.data] == expected
    assert reply.model == found.model
    assert str(found.sent).count("outputDimensionality") == 2


async def test_images_by_their_own_endpoint() -> None:
    """A client of Chat Completions gets images of a Gemini model, whole and streamed."""
    async with client_of(ChatClient, GEMINI, "gemini-2.5-flash-image") as found:
        found.provider.says(*[whole(image_of(GEMINI))] * 2)
        asked: dict[str, Any] = {"model": found.model, "prompt": "A cat."}
        events = await found.sdk.images.generate(**asked, stream=True)
        assert [event.b64_json async for event in events] == [PICTURE]
        assert [image.b64_json for image in (await found.sdk.images.generate(**asked)).data] == [PICTURE]
    assert "A cat." in str(found.sent)


# --- Responses ---


@in_turn(ANTHROPIC, CHAT, GEMINI)
async def test_a_stored_reply_is_continued(wire: Wire, streamed: bool) -> None:
    async with client_of(ResponsesClient, wire) as found:
        found.says("I will.", 1, "tools", streamed=streamed)
        said = await found.ask("Look around.", streamed=streamed, **found.tools)
        found.says("Done.", 0, "end", streamed=streamed)
        fields = {**found.tools, "previous_response_id": said.native.id}
        again = await found.ask(found.results(said, "a.txt"), streamed=streamed, **fields)
        assert (again.text, again.native.previous_response_id) == ("Done.", said.native.id)
        assert (await found.sdk.responses.retrieve(said.native.id)).output == said.native.output
    calls, results = wire.ids(found.sent)
    assert len(calls) == 1
    assert results == calls
    assert "Look around." in str(found.sent)
    found.check_sent()


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the providers call the client's free-form tool."""
    for module in (anthropic, chat, gemini, http_kit):
        monkeypatch.setattr(module, "CALLS", [("apply_patch", {"input": PATCH})])


@pytest.mark.usefixtures("patches")
@in_turn(GEMINI, CHAT, ANTHROPIC)
async def test_a_free_form_tool_of_responses(wire: Wire, streamed: bool) -> None:
    """The provider has a function with one text. The client receives its own tool with a growing text."""
    fields: dict[str, Any] = {"streamed": streamed, "tools": [APPLY_PATCH], "store": False}
    async with client_of(ResponsesClient, wire) as found:
        found.says("I edit.", 1, "tools", streamed=streamed)
        said = await found.ask("Edit.", **fields)
        (call,) = [item for item in said.native.output if item.type == "custom_tool_call"]
        assert (call.name, call.input) == ("apply_patch", PATCH)
        if streamed:
            assert "response.custom_tool_call_input.delta" in found.kinds
            assert "response.function_call_arguments.delta" not in found.kinds
        assert "start: patch" in str(found.sent)  # the grammar is a text
        output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."}
        found.says("Edited.", 0, "end", streamed=streamed)
        assert (await found.ask([found.user("Edit."), *said.again, output], **fields)).text == "Edited."
    calls, results = wire.ids(found.sent)
    assert len(calls) == 1
    assert results == calls
    assert "*** Update File: a.py" in str(found.sent)
    found.check_sent()


async def test_an_image_comes_out_of_a_stream() -> None:
    async with client_of(ResponsesClient, GEMINI) as found:
        found.provider.says(stream(GEMINI, image_of(GEMINI)))
        said = await found.ask("Draw a cat.", streamed=True)
    assert (said.text, said.images) == ("Here.", [PICTURE])


# --- Messages ---


async def test_tokens_are_counted_without_the_provider() -> None:
    async with client_of(MessagesClient, RESPONSES) as found:
        count = found.sdk.beta.messages.count_tokens
        counted = await count(model=found.model, messages=[found.user("Hi")], **found.tools)
    assert counted.input_tokens > 10
    assert found.provider.asked == []


# --- Gemini ---


@in_turn(ANTHROPIC, RESPONSES, CHAT)
async def test_reasoning_is_added_to_its_call(wire: Wire, streamed: bool) -> None:
    """The client returns neither thoughts nor ids, like Gemini CLI. The gateway adds the stored reasoning."""
    async with client_of(GeminiClient, wire) as found:
        fields = {"streamed": streamed, **found.tools, **found.thinks}
        found.says("", 2, "tools", "Let me think.", streamed=streamed)
        said = await found.ask([found.user("Look.")], **fields)
        said = said._replace(calls=[(None, *call[1:]) for call in said.calls])
        calls = [
            types.Part(function_call=types.FunctionCall(name=name, args=given)) for _, name, given in said.calls
        ]
        found.says("Done.", 0, "end", streamed=streamed)
        await found.ask(
            [found.user("Look."), types.ModelContent(calls), *found.results(said, "result 1")], **fields
        )
    secrets = wire.secrets[:1] or ("Let me think.",)
    assert [secret in str(found.sent) for secret in secrets] == [True]
    calls_sent, results_sent = wire.ids(found.sent)
    assert results_sent == calls_sent
    found.check_sent()


@in_turn(CHAT, ANTHROPIC, RESPONSES)
async def test_a_list_as_structured_output(wire: Wire, streamed: bool) -> None:
    """Other providers need an object at the root. The client gets the list that it asked for."""
    form = {"response_mime_type": "application/json", "response_schema": list[City]}
    async with client_of(GeminiClient, wire) as found:
        found.says('{"value": [{"name":"Rome","people":null}]}', 0, "end", streamed=streamed)
        said = await found.ask([found.user("Which?")], streamed=streamed, **form)
    assert said.text.strip() == '[{"name":"Rome","people":null}]'
    assert streamed or said.native[0].parsed == [City(name="Rome", people=None)]
    found.check_sent()


@over(CHAT, GEMINI)
async def test_a_stream_is_events_with_alt_and_one_array_without_it(wire: Wire) -> None:
    """The array is the form of Google's own address, also if the provider's events are passed on unchanged."""
    async with client_of(GeminiClient, wire) as found, httpx.AsyncClient() as http:
        address = f"{found.url}/v1beta/models/{found.model}:streamGenerateContent"
        for query in ("", "?alt=sse", "?alt=SSE", "?$alt=sse"):
            found.says("It is warm.", 0, "end", streamed=True)
            answer = await http.post(address + query, json={"contents": [{"parts": [{"text": "Hi"}]}]})
            kind = "text/event-stream" if query else "application/json"
            assert answer.headers["content-type"].startswith(kind)
            if query:
                assert answer.text.startswith("data: {")
                continue
            chunks = map(types.GenerateContentResponse.model_validate, msgspec.json.decode(answer.content))
            assert "".join(chunk.text or "" for chunk in chunks) == "It is warm."


async def test_models_and_tokens() -> None:
    async with client_of(GeminiClient, ANTHROPIC) as found:
        models = found.sdk.aio.models
        listed = [model.name async for model in await models.list(config={"query_base": True})]
        counted = await models.count_tokens(model=found.model, contents="How is it?")
        with pytest.raises(genai_errors.ClientError) as failed:
            await models.generate_content(model="nothing", contents="Hi")
    assert f"models/{found.model}" in listed
    assert counted.total_tokens
    assert (failed.value.code, failed.value.status) == (404, "NOT_FOUND")
