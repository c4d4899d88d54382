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


# --- Chat Completions ---

over_others_of_chat = over(ANTHROPIC, RESPONSES, GEMINI)


def chat_call(**call: Any) -> list[Any]:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", **call}]}
    return [
        {"role": "user", "content": "Hi"},
        message,
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]


@over_others_of_chat
@both_ways
async def test_what_no_other_protocol_has_is_in_chats_warnings(wire: Wire, streamed: bool) -> None:
    async with client_of(ChatClient, wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        await found.ask([found.user("Hi")], streamed=streamed, logit_bias={"1": 5}, n=2)
    assert "logit_bias" in found.warnings
    assert "n is not sent" in found.warnings
    found.check_sent()


@over_others_of_chat
async def test_a_tool_of_chat_with_a_name_that_a_provider_refuses(wire: Wire) -> None:
    function = {"name": "1.tool/of:a server", "arguments": "{}"}
    tool = {"name": function["name"], "parameters": {"type": "object", "properties": {}}}
    async with client_of(ChatClient, wire) as found:
        found.says("Hi", 0, "end", streamed=False)
        history = chat_call(type="function", function=function)
        await found.ask(history, tools=[{"type": "function", "function": tool}])
    assert str(found.sent).count("t1_tool_of_a_server") >= 2
    found.check_sent()


@over_others_of_chat
async def test_a_free_form_tool_of_chat(wire: Wire) -> None:
    """Only OpenAI's protocols have such tools. Other providers get a function with one text, and the grammar as
    text.
    """
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "SELECT .*"}}
    tool = {"name": "sql", "description": "Runs a query.", "format": grammar}
    async with client_of(ChatClient, wire) as found:
        found.says("One.", 0, "end", streamed=False)
        history = chat_call(type="custom", custom={"name": "sql", "input": "SELECT 1"})
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


@pytest.mark.parametrize("form", [openai.omit, "float", "base64"], ids=["own", "float", "base64"])
async def test_embeddings(form: Any) -> None:
    """A client of Chat Completions gets vectors of a Gemini model."""
    async with client_of(ChatClient, GEMINI, "gemini-embedding-001") as found:
        found.provider.says(whole({"embeddings": [{"values": [0.5, -1.0]}, {"values": [0.0, 2.0]}]}))
        reply = await found.sdk.embeddings.create(
            model=found.model, input=["a", "b"], encoding_format=form, dimensions=2
        )
    vectors: list[Any] = [item.embedding for item in reply.data]
    assert vectors == (["AAAAPwAAgL8=", "AAAAAAAAAEA="] if form == "base64" else [[0.5, -1.0], [0.0, 2.0]])
    assert reply.model == found.model
    assert str(found.sent).count("outputDimensionality") == 2


@both_ways
async def test_images_by_their_own_endpoint(streamed: bool) -> None:
    """A client of Chat Completions gets images of a Gemini model."""
    async with client_of(ChatClient, GEMINI, "gemini-2.5-flash-image") as found:
        found.provider.says(whole(image_of(GEMINI)))
        asked: dict[str, Any] = {"model": found.model, "prompt": "A cat."}
        if streamed:
            events = await found.sdk.images.generate(**asked, stream=True)
            assert [event.b64_json async for event in events] == [PICTURE]
        else:
            assert [image.b64_json for image in (await found.sdk.images.generate(**asked)).data] == [PICTURE]
    assert "A cat." in str(found.sent)


# --- Responses ---

over_others_of_responses = over(ANTHROPIC, CHAT, GEMINI)


@over_others_of_responses
@both_ways
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


@over_others_of_responses
@pytest.mark.parametrize("fields", [{"conversation": "conv_1"}, {"prompt": {"id": "pmpt_1"}}])
async def test_a_request_with_data_stored_at_openai_is_refused(wire: Wire, fields: dict[str, Any]) -> None:
    """Without OpenAI's stored history or prompt, a reply would be wrong."""
    async with client_of(ResponsesClient, wire) as found:
        with pytest.raises(openai.BadRequestError, match=f"'{next(iter(fields))}' names data"):
            await found.sdk.responses.create(model=found.model, input="Go on.", **fields)
    assert found.provider.asked == []


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the providers call the client's free-form tool."""
    for module in (anthropic, chat, gemini, http_kit):
        monkeypatch.setattr(module, "CALLS", [("apply_patch", {"input": PATCH})])


@pytest.mark.usefixtures("patches")
@over_others_of_responses
@both_ways
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


@over_others_of_responses
async def test_an_image_in_a_tools_output_goes_in(wire: Wire) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}
    call = {"type": "function_call", "call_id": "call_1", "name": CALLS[0][0], "arguments": "{}"}
    async with client_of(ResponsesClient, wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        output = {"type": "function_call_output", "call_id": "call_1", "output": [image]}
        await found.ask([found.user("Look."), call, output], **found.tools)
    assert PICTURE in str(found.sent)
    found.check_sent()


async def test_an_image_comes_out_of_a_stream() -> None:
    async with client_of(ResponsesClient, GEMINI) as found:
        found.provider.says(stream(GEMINI, image_of(GEMINI)))
        said = await found.ask("Draw a cat.", streamed=True)
    assert (said.text, said.images) == ("Here.", [PICTURE])


@over_others_of_responses
@both_ways
async def test_a_reply_that_reaches_its_limit(wire: Wire, streamed: bool) -> None:
    async with client_of(ResponsesClient, wire) as found:
        found.says("It is", 0, "length", streamed=streamed)
        said = await found.ask("Hi", streamed=streamed, max_output_tokens=20)
    assert (said.native.status, said.finish, said.text) == ("incomplete", "max_output_tokens", "It is")


@over_others_of_responses
@both_ways
async def test_what_no_other_protocol_has_is_in_responses_warnings(wire: Wire, streamed: bool) -> None:
    async with client_of(ResponsesClient, wire) as found:
        found.says("Hi", 0, "end", streamed=streamed)
        await found.ask("Hi", streamed=streamed, truncation="auto", tools=[{"type": "web_search"}])
    assert "truncation" in found.warnings
    assert "web_search" in found.warnings
    found.check_sent()


@over_others_of_responses
async def test_tools_of_responses_with_names_that_a_provider_refuses(wire: Wire) -> None:
    name = "1.tool/of:a server"
    tool = {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    space = {"type": "namespace", "name": "mcp__docs", "tools": [{**tool, "name": "find it"}]}
    call = {"type": "function_call", "call_id": "call_1", "name": name, "arguments": "{}"}
    other = {**call, "call_id": "call_2", "name": "find it", "namespace": "mcp__docs"}
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "done"} for call_id in ("call_1", "call_2")
    ]
    async with client_of(ResponsesClient, wire) as found:
        found.says("Hi", 0, "end", streamed=False)
        await found.ask([found.user("Hi"), call, other, *outputs], tools=[tool, space])
    assert str(found.sent).count("tool_1_tool_of_a_server_") >= 2
    assert str(found.sent).count("mcp__docs__find_it_") >= 2
    found.check_sent()


# --- Messages ---


@over(RESPONSES, CHAT, GEMINI)
async def test_an_image_in_a_result_goes_in(wire: Wire) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": CALLS[0][0], "input": CALLS[0][1]}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [picture()]}
    async with client_of(MessagesClient, wire) as found:
        found.says("A cat.", 0, "end", streamed=False)
        answers = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        assert (await found.ask([found.user("Look"), *answers], **found.tools)).text == "A cat."
    assert PICTURE in str(found.sent)
    found.check_sent()


@over(RESPONSES, CHAT, GEMINI)
async def test_tokens_are_counted_without_the_provider(wire: Wire) -> None:
    async with client_of(MessagesClient, wire) as found:
        count = found.sdk.beta.messages.count_tokens
        counted = await count(model=found.model, messages=[found.user("Hi")], **found.tools)
    assert counted.input_tokens > 10
    assert found.provider.asked == []


# --- Gemini ---

over_others_of_gemini = over(ANTHROPIC, RESPONSES, CHAT)


@over_others_of_gemini
@both_ways
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


@over_others_of_gemini
async def test_thoughts_are_only_for_clients_that_ask(wire: Wire) -> None:
    async with client_of(GeminiClient, wire) as found:
        found.says("Yes.", 0, "end", "Let me think.", streamed=True)
        said = await found.ask([found.user("Sure?")], streamed=True)
    assert (said.text, said.thoughts) == ("Yes.", "")


@over_others_of_gemini
@both_ways
async def test_a_list_as_structured_output(wire: Wire, streamed: bool) -> None:
    """Other providers need an object at the root. The client gets the list that it asked for."""
    form = {"response_mime_type": "application/json", "response_schema": list[City]}
    async with client_of(GeminiClient, wire) as found:
        found.says('{"value": [{"name":"Rome","people":null}]}', 0, "end", streamed=streamed)
        said = await found.ask([found.user("Which?")], streamed=streamed, **form)
    assert said.text.strip() == '[{"name":"Rome","people":null}]'
    assert streamed or said.native[0].parsed == [City(name="Rome", people=None)]
    found.check_sent()


@over(*WIRES[:4])
async def test_a_stream_without_alt_is_one_array(wire: Wire) -> None:
    """The form is that of Google's own address, also if the provider's events are passed on unchanged."""
    async with client_of(GeminiClient, wire) as found, httpx.AsyncClient() as http:
        found.says("It is warm.", 0, "end", streamed=True)
        address = f"{found.url}/v1beta/models/{found.model}:streamGenerateContent"
        answer = await http.post(address, json={"contents": [{"parts": [{"text": "Hi"}]}]})
    assert answer.headers["content-type"].startswith("application/json")
    chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in msgspec.json.decode(answer.content)]
    assert "".join(chunk.text or "" for chunk in chunks) == "It is warm."


@pytest.mark.parametrize("query", ["alt=sse", "alt=SSE", "$alt=sse"])
async def test_a_stream_with_alt_is_events(query: str) -> None:
    async with client_of(GeminiClient, GEMINI) as found, httpx.AsyncClient() as http:
        found.says("It is warm.", 0, "end", streamed=True)
        address = f"{found.url}/v1beta/models/{found.model}:streamGenerateContent?{query}"
        answer = await http.post(address, json={"contents": [{"parts": [{"text": "Hi"}]}]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith("data: {")


async def test_cached_content_of_gemini_is_no_others_to_read() -> None:
    async with client_of(GeminiClient, CHAT) as found:
        with pytest.raises(genai_errors.ClientError, match="'cachedContent' names data"):
            await found.sdk.aio.models.generate_content(
                model=found.model, contents="Go on.", config={"cached_content": "cachedContents/1"}
            )
    assert found.provider.asked == []


@over_others_of_gemini
@both_ways
async def test_losses_are_in_a_header(wire: Wire, streamed: bool) -> None:
    search = types.Tool(google_search=types.GoogleSearch())
    async with client_of(GeminiClient, wire) as found:
        found.says("Yes.", 0, "end", streamed=streamed)
        await found.ask([found.user("Sure?")], streamed=streamed, top_k=3, tools=[search])
    for name in ("topK", "the tool googleSearch"):
        assert f"{name} is not sent to another protocol" in found.warnings


@over_others_of_gemini
async def test_models_and_tokens(wire: Wire) -> None:
    async with client_of(GeminiClient, wire) as found:
        models = found.sdk.aio.models
        listed = [model.name async for model in await models.list(config={"query_base": True})]
        counted = await models.count_tokens(model=found.model, contents="How is it?")
        with pytest.raises(genai_errors.ClientError) as failed:
            await models.generate_content(model="nothing", contents="Hi")
    assert f"models/{found.model}" in listed
    assert counted.total_tokens
    assert (failed.value.code, failed.value.status) == (404, "NOT_FOUND")
