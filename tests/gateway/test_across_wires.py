"""Each vendor's SDK as the client of a gateway over each provider, and features of a single SDK."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import aclosing
from typing import Any

import httpx
import msgspec
import openai
import pytest
from google.genai import errors as genai_errors
from google.genai import types

from callboard.adapters.conformance import CALLS, http_kit
from tests.support.depth import quick_if
from tests.support.wires import WIRES, Wire, anthropic, chat, gemini

from .responses_cases import APPLY_PATCH, PATCH
from .scripted_providers import EVENTS, Scripted, serving, stream, whole
from .sdk_client import PICTURE, City, Client, picture
from .vendors_sdks import CLIENTS, ChatClient, GeminiClient, MessagesClient, ResponsesClient, client_of

PROVIDERS = {wire.name: wire for wire in WIRES[:4]}
FINISHES = {
    "openai_compatible": ("stop", "tool_calls"), "openai": ("completed", "completed"),
    "anthropic": ("end_turn", "tool_use"), "gemini": ("STOP", "STOP"),
}  # fmt: skip
"""For each protocol of the client, the finish reasons of a text and of a reply with calls."""

each_pair = pytest.mark.parametrize(
    ("kind", "wire"),
    quick_if([(kind, wire) for kind in CLIENTS.values() for wire in PROVIDERS.values()],
        lambda n: (n // len(PROVIDERS) + n) % 2 == 0, "all pairs of clients and providers", rows=True),
    ids=[f"{kind.protocol}-over-{wire}" for kind in CLIENTS.values() for wire in PROVIDERS],
)  # fmt: skip
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
each_pair_both_ways = pytest.mark.parametrize(
    ("kind", "wire", "streamed"),
    [pytest.param(kind, wire, streamed,
        marks=pytest.mark.deep("all pairs, in both forms") if (one + other + 2 * streamed) % 4 else (),
        id=f"{kind.protocol}-over-{wire.name}-{'streamed' if streamed else 'whole'}") for one,
        kind in enumerate(CLIENTS.values()) for other,
        wire in enumerate(PROVIDERS.values()) for streamed in (False, True)],
)  # fmt: skip
"""In a quick run, each client has plain replies of one provider and streams of another. All providers are
included.
"""


@each_pair_both_ways
async def test_text(kind: type[Client], wire: Wire, streamed: bool) -> None:
    async with client_of(kind, wire) as found:
        found.says("It is warm.", 0, "end", streamed=streamed)
        system = [] if found.brief else [{"role": "system", "content": "Be brief."}]
        asked = [*system, found.user("How is it?")]
        said = await found.ask(asked, streamed=streamed, **found.brief)
    assert (said.text, said.finish) == ("It is warm.", FINISHES[kind.protocol][0])
    if wire.name != kind.protocol:  # the same protocol has the provider's own numbers
        assert said.usage == (12, 4, 7)
    assert all(text in str(found.sent) for text in ("How is it?", "Be brief."))
    assert found.warnings == ""
    found.check_sent()


@each_pair_both_ways
async def test_parallel_tools_over_three_turns(kind: type[Client], wire: Wire, streamed: bool) -> None:
    async with client_of(kind, wire) as found:
        history = [found.user("Look around.")]
        for turn in range(3):
            found.says("I will.", 2, "tools", streamed=streamed)
            said = await found.ask(history, streamed=streamed, **found.tools)
            assert [call[1:] for call in said.calls] == list(CALLS)
            # the same protocol has the provider's own ids, which repeat in each turn
            if wire.name != kind.protocol:
                assert len({call[0] for call in said.calls}) == 2
            assert (said.text, said.finish) == ("I will.", FINISHES[kind.protocol][1])
            history += [*said.again, *found.results(said, f"result {turn}")]
        found.says("Done.", 0, "end", streamed=streamed)
        assert (await found.ask(history, streamed=streamed, **found.tools)).text == "Done."
    told = str(found.sent)
    assert [told.count(f"result {turn}") for turn in range(3)] == [2, 2, 2]
    assert "Does read_file." in told
    if wire.name != kind.protocol:
        assert told.count("I will.") == 3
        calls_sent, results_sent = wire.ids(found.sent)
        assert len(calls_sent) == len(set(calls_sent)) == 6
        assert results_sent == calls_sent
        assert ("cache_control" in found.warnings) == (kind.protocol == "anthropic")
        found.check_sent()


@each_pair_both_ways
async def test_thinking_with_signatures(kind: type[Client], wire: Wire, streamed: bool) -> None:
    """The client shows the reasoning. The provider gets the signature back, from the client or from the
    gateway.
    """
    async with client_of(kind, wire) as found:
        fields = {**found.tools, **found.thinks}
        found.says("Yes.", 1, "tools", "Let me think.", streamed=streamed)
        said = await found.ask([found.user("Sure?")], streamed=streamed, **fields)
        assert (said.thoughts, said.text) == ("Let me think.", "Yes.")
        found.says("Still yes.", 0, "end", streamed=streamed)
        history = [found.user("Sure?"), *said.again, *found.results(said, "done")]
        assert (await found.ask(history, streamed=streamed, **fields)).text == "Still yes."
    assert all(secret in str(found.sent) for secret in wire.secrets[:1])
    assert "callboard" not in str(found.sent)
    found.check_sent()


@each_pair_both_ways
async def test_images_and_documents_go_in(kind: type[Client], wire: Wire, streamed: bool) -> None:
    """Servers of Chat Completions accept documents as text. Only OpenAI's own server accepts PDFs."""
    is_text = wire.name == "openai_compatible"
    page, media_type = (b"A page.", "text/plain") if is_text else (b"%PDF-1.7 a page", "application/pdf")
    async with client_of(kind, wire) as found:
        found.says("A cat.", 0, "end", streamed=streamed)
        said = await found.ask([found.media(page, media_type)], streamed=streamed)
    assert said.text == "A cat."
    sent = str(found.sent)
    assert PICTURE in sent
    assert b64encode(page).decode() in sent or page.decode() in sent
    found.check_sent()


def image_of(wire: Wire) -> Any:
    """A reply with an image, for each provider except Anthropic."""
    body: Any = wire.body("Here.", 0, "end")
    match wire.name:
        case "openai":
            item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PICTURE}
            body["output"] = [*body["output"], item]
        case "gemini":
            part = {"inlineData": {"mimeType": "image/png", "data": PICTURE}}
            body["candidates"][0]["content"]["parts"].append(part)
        case _:
            url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
            body["choices"][0]["message"]["images"] = [url]
    return body


@each_pair
async def test_images_come_out(kind: type[Client], wire: Wire) -> None:
    """Anthropic's clients get a text about the image. The model never receives this text."""
    if wire.name == "anthropic":
        return
    async with client_of(kind, wire) as found:
        found.provider.says(whole(image_of(wire)))
        said = await found.ask([found.user("Draw a cat.")])
        if kind.protocol == "anthropic":
            assert said.text.startswith("Here.")
            assert "image" in said.text
            found.says("A cat.", 0, "end", streamed=False)
            await found.ask([found.user("Draw a cat."), *said.again, found.user("What is it?")])
            assert "The model made an image" not in str(found.sent)
            found.check_sent()
        else:
            assert (said.text, said.images) == ("Here.", [PICTURE])


@each_pair_both_ways
async def test_structured_output(kind: type[Client], wire: Wire, streamed: bool) -> None:
    async with client_of(kind, wire) as found:
        found.says('{"name":"Rome","people":3}', 0, "end", streamed=streamed)
        said = await found.ask([found.user("Which?")], streamed=streamed, **found.structured)
    assert City.model_validate_json(said.text) == City(name="Rome", people=3)
    assert "people" in str(found.sent)
    found.check_sent()


def refusal_of(wire: Wire) -> Any:
    body: Any = wire.body("I can't.", 0, "end")
    match wire.name:
        case "anthropic":
            body["stop_reason"] = "refusal"
        case "openai":
            body["output"][0]["content"] = [{"type": "refusal", "refusal": "I can't."}]
        case "gemini":
            body["candidates"][0]["finishReason"] = "SAFETY"
        case _:
            body["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I can't."}
    return body


@each_pair
async def test_a_refusal(kind: type[Client], wire: Wire) -> None:
    """OpenAI's protocols have a finish reason for Gemini's filter."""
    filtered = wire.name == "gemini"
    finishes = {
        "openai_compatible": "content_filter" if filtered else "stop",
        "openai": "content_filter" if filtered else "completed",
        "anthropic": "refusal",
        "gemini": "SAFETY",
    }
    async with client_of(kind, wire) as found:
        found.provider.says(whole(refusal_of(wire)))
        said = await found.ask([found.user("Do harm.")])
    assert (said.text, said.finish) == ("I can't.", finishes[kind.protocol])


def half_of(wire: Wire) -> list[Any]:
    """The events of a stream up to the middle of its text."""
    events = [event for _, event in wire.events("It is warm.", 0, "end")]
    half = next(at for at, event in enumerate(events) if "warm" in str(event) or "is " in str(event))
    return events[: half + 1]


@each_pair
async def test_a_cut_stream(kind: type[Client], wire: Wire) -> None:
    """The client gets the received text, and then an error. An open block has no end."""
    said = ""
    async with client_of(kind, wire) as found:
        found.provider.says(stream(wire, *half_of(wire), ends="cut"))
        with pytest.raises(found.error):
            async for text in found.deltas([found.user("Hi")]):
                said += text
    assert said
    assert "It is warm.".startswith(said)
    assert "content_block_stop" not in found.kinds


@each_pair
async def test_a_client_that_disconnects_during_a_stream(kind: type[Client], wire: Wire) -> None:
    """The gateway closes the provider's connection, so that the provider stops."""
    async with client_of(kind, wire) as found:
        found.provider.says(Scripted(wire.stream(*half_of(wire)), kind=EVENTS, ends="never"))
        async with aclosing(found.deltas([found.user("Hi")])) as deltas:
            assert await anext(deltas)
        await asyncio.wait_for(found.provider.left.wait(), 5)


OF_OPENAI = {
    "rate limit": (429, "rate_limit_exceeded", "7"),
    "overload": (503, "server_is_overloaded", "7"),
    "overflow": (400, "context_length_exceeded", None),
}
ERRORS = {
    "openai_compatible": OF_OPENAI,
    "openai": OF_OPENAI,
    "anthropic": {"rate limit": (429, "rate_limit_error", "7"), "overload": (529, "overloaded_error", "7"),
        "overflow": (400, "invalid_request_error", None)},
    "gemini": {"rate limit": (429, "RESOURCE_EXHAUSTED", "7"), "overload": (503, "UNAVAILABLE", "7"),
        "overflow": (400, "INVALID_ARGUMENT", None)},
}  # fmt: skip
"""The status, the code and the delay, by the client's protocol."""


@each_pair_both_ways
@pytest.mark.parametrize("conditions", [("overflow", "rate limit"), ("overload",)], ids=" ".join)
async def test_errors(kind: type[Client], wire: Wire, streamed: bool, conditions: tuple[str, ...]) -> None:
    """After a limit, the gateway would wait before it sends another request."""
    words = {"anthropic": "prompt is too long", "gemini": "exceeds the maximum number of tokens"}
    async with client_of(kind, wire) as found:
        for condition in conditions:
            refused, body = wire.error_body(condition)
            found.provider.says(whole(body, refused, retry_after="7"))
            with pytest.raises(found.error) as failed:
                await found.ask([found.user("Hi")], streamed=streamed)
            assert found.facts(failed.value) == ERRORS[kind.protocol][condition]
            assert condition != "overflow" or words.get(kind.protocol, "") in str(failed.value)


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_compatible": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "openai": ("/v1/responses", {"input": "Hi", "store": False}),
    "gemini": ("/v1beta/models/{}:generateContent", {"contents": [{"parts": [{"text": "Hi"}]}]}),
}


async def test_the_geography_of_anthropics_reply_is_no_service_tier() -> None:
    """The geography has its own price, so the engine stores it with the tier. No other API has a name for it."""
    wire = PROVIDERS["anthropic"]
    body: Any = wire.body("Hi", 0, "end")
    async with serving(wire, "m") as (url, provider), httpx.AsyncClient(base_url=url) as client:
        for path, asked in REQUESTS.values():
            for tier in ("standard", "priority"):
                body["usage"] |= {"service_tier": tier, "inference_geo": "us"}
                provider.says(whole(body))
                written = (await client.post(path.format("m"), json={"model": "m", **asked})).text
                assert "Hi" in written
                assert "geo-us" not in written
                assert ("priority" in written) == (tier == "priority")


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
        events = [event async for event in await found.sdk.images.generate(**asked, stream=True)]
        assert [(event.type, event.b64_json) for event in events] == [("image_generation.completed", PICTURE)]
        made = await found.sdk.images.generate(**asked)
        assert ([image.b64_json for image in made.data], made.output_format) == ([PICTURE], "png")
        assert made.created > 1_700_000_000
        assert made.usage.input_tokens == 12
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


# --- Messages ---


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
