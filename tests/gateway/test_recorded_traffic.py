"""Traffic through a vendor's SDK and the gateway equals traffic through the SDK alone.

A provider of the client's protocol plays recordings. The provider gets the request that the SDK sends. The SDK
makes the same objects of the reply, including each event of a stream. The tables list the exceptions.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types
from openai.lib.streaming.chat import ChatCompletionStreamState

from callboard.bus.values.base import JsonObject
from tests.support.json_values import differences
from tests.support.recordings import FOLDER, PROTOCOLS, needs_recordings
from tests.support.wires import WIRES, Wire

from .scripted_providers import EVENTS, JSON, Scripted, ScriptedProvider, serving_models
from .vendors_sdks import CLIENTS, alone

HERE = Path(__file__).parent
BY_NAME = {wire.name: wire for wire in WIRES}

HEADERS = {
    "authorization": "the gateway has its own key", "x-api-key": "the gateway has its own key",
    "x-goog-api-key": "the gateway has its own key", "host": "of the connection",
    "connection": "of the connection", "accept": "of the connection", "accept-encoding": "of the connection",
    "content-length": "blanks in JSON, and the fields below",
    "user-agent": "names the program that sends the request, which is the gateway",
    "x-goog-api-client": "names the program that sends the request, which is the gateway",
    "x-server-timeout": "the gateway has its own times",
}  # fmt: skip
"""Headers that differ, with the reasons. Headers named ``x-stainless-…`` describe the SDK and differ, too."""

FIELDS = {"stream_options": "the gateway asks for the usage, else the price of a stream is unknown"}
"""Fields of a body that differ, with the reasons."""

LEFT_OUT = {
    "background": "the gateway stores the reply and answers at once, under an id of its own",
    "previous_response_id": "the gateway has the earlier reply, and sends the whole conversation",
}
"""Fields of the Responses API for which the gateway stores state. Other tests cover them."""


class Exchange(NamedTuple):
    """A recorded request, and its reply."""

    id: str
    body: JsonObject
    """The body with the model, also for Gemini."""
    reply: Scripted
    streamed: bool
    is_reply: bool = True
    """Whether the reply is valid for the protocol. The gateway turns any other into an error."""


# --- The SDKs ---


def split(method: Callable[..., object], body: JsonObject) -> dict[str, Any]:
    """The arguments of an SDK's method that produce a body."""
    known = inspect.signature(method).parameters
    named = {name: value for name, value in body.items() if name in known and name != "stream"}
    return {**named, "extra_body": {name: body[name] for name in body.keys() - named.keys() - {"stream"}}}


async def ask_chat(sdk: openai.AsyncOpenAI, body: JsonObject, streamed: bool) -> list[Any]:
    """Send a body with the SDK. Some servers send usage that was not requested: that chunk is left out."""
    create: Any = sdk.chat.completions.create
    if not streamed:
        return [await create(**split(create, body))]
    chunks = [chunk async for chunk in await create(**split(create, body), stream=True)]
    if "stream_options" not in body:
        chunks = [chunk for chunk in chunks if chunk.choices or not chunk.usage]
    state: Any = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    return [*chunks, state.current_completion_snapshot]


async def ask_responses(sdk: openai.AsyncOpenAI, body: JsonObject, streamed: bool) -> list[Any]:
    create: Any = sdk.responses.create
    if not streamed:
        return [await create(**split(create, body))]
    return [event async for event in await create(**split(create, body), stream=True)]


async def ask_messages(sdk: anthropic.AsyncAnthropic, body: JsonObject, streamed: bool) -> list[Any]:
    messages: Any = sdk.beta.messages
    betas = ["of-tomorrow-2030-01-01"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old models cause it
        if not streamed:
            return [await messages.create(**split(messages.create, body), betas=betas)]
        async with messages.stream(**split(messages.stream, body), betas=betas) as events:
            return [*[event async for event in events], await events.get_final_message()]


async def ask_gemini(sdk: genai.Client, body: JsonObject, streamed: bool) -> list[Any]:
    sent = {name: value for name, value in body.items() if name != "model"}
    settings = types.GenerateContentConfig(http_options=types.HttpOptions(extra_body=sent))
    given: dict[str, Any] = {"model": body["model"], "contents": "Hi", "config": settings}
    if not streamed:
        return [await sdk.aio.models.generate_content(**given)]
    return [chunk async for chunk in await sdk.aio.models.generate_content_stream(**given)]


ASK: Mapping[str, Callable[[Any, JsonObject, bool], Awaitable[list[Any]]]] = {
    "anthropic": ask_messages, "openai": ask_responses, "openai_compatible": ask_chat, "gemini": ask_gemini,
}  # fmt: skip


class Refusal(NamedTuple):
    """An SDK's exception."""

    kind: str
    status: int | None
    text: str

    def is_told_by(self, other: object) -> bool:
        """Whether the other exception is the same. Type and code are those of the client's wire, and ids are the
        gateway's.

        Servers have their own codes and fields, such as llama.cpp's ``exceed_context_size_error``.
        """
        return isinstance(other, Refusal) and self[:2] == other[:2] and self.text in other.text


async def asked(wire: Wire, sdk: Any, exchange: Exchange) -> list[Any] | Refusal:
    """Return the objects that an SDK makes of a reply."""
    try:
        found = await ASK[wire.name](sdk, exchange.body, exchange.streamed)
    except (openai.APIError, anthropic.APIError, genai_errors.APIError) as error:
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        body: Any = getattr(error, "body", None) or getattr(error, "details", None)
        inner = body.get("error", body) if isinstance(body, dict) else {"message": str(error)}
        return Refusal(type(error).__name__, status if isinstance(status, int) else None, inner["message"])
    return [plain(each) for each in found]


def plain(value: Any) -> Any:
    """An SDK's object as JSON, without the headers of its reply. Errors of some servers are texts."""
    if not hasattr(value, "model_dump"):
        return value
    return value.model_dump(mode="json", exclude={"sdk_http_response"}, warnings=False)


# --- The comparison ---


def sent(provider: ScriptedProvider, at: int) -> JsonObject:
    """A request without the differences in the tables. Gemini's adapter uses one version of the API for all
    models.
    """
    head, body = provider.heads[at], provider.asked[at]
    headers: JsonObject = {
        name: value
        for name, value in head.headers.items()
        if name not in HEADERS and not name.startswith("x-stainless-")
    }
    target = re.sub("^/v1(beta)?/models", "/models", head.target)
    return {"target": target, "headers": headers, "body": {key: body[key] for key in body if key not in FIELDS}}


async def changed_by_the_gateway(wire: Wire, exchanges: Sequence[Exchange]) -> dict[str, set[str]]:
    """The differences that are in no table, by exchange."""
    models = {str(exchange.body["model"]): str(exchange.body["model"]) for exchange in exchanges}
    kind, found = CLIENTS[wire.name], {}
    async with serving_models(wire, models) as (url, provider):
        sdks = [kind(address, provider, wire).sdk for address in (provider.url, url)]
        async with alone(sdks[0]) as direct, alone(sdks[1]) as through:
            provider.repeats = True
            for exchange in exchanges:
                provider.replies[:] = [exchange.reply]
                first = len(provider.asked)
                expected = await asked(wire, direct, exchange)
                assert len(provider.asked) == first + 1, exchange.id
                got = await asked(wire, through, exchange)
                wrong = set[str]()
                if len(provider.asked) == first + 1:
                    wrong.add(f"no request: {got}")
                else:  # a third request can be a repair after a refusal
                    wrong |= set(differences(sent(provider, first), sent(provider, first + 1)))
                if isinstance(expected, Refusal):
                    wrong |= set() if expected.is_told_by(got) else {f"{got} for {expected}"}
                elif exchange.is_reply:
                    wrong |= set(differences(expected, got, "reply"))
                if wrong:
                    found[exchange.id] = wrong
    return found


# --- A sample that always runs ---


def of_cassettes(wire: Wire) -> Iterator[Exchange]:
    """Recorded replies of the local model."""
    file = {"openai_compatible": "chat", "openai": "responses", "anthropic": "messages"}.get(wire.name)
    if file is None:
        return
    path = HERE.parents[1] / "cassettes" / "local" / f"{file}.json"
    for place, exchange in enumerate(json.loads(path.read_text(encoding="utf-8"))["exchanges"]):
        body, reply = exchange["request"]["body"], exchange["reply"]
        data = "".join(reply["chunks"]).encode()
        kind = reply["headers"].get("content-type", JSON)
        yield Exchange(f"{file} {place}", body, Scripted(data, reply["status"], kind), body.get("stream") is True)


def of_programs(wire: Wire) -> Iterator[Exchange]:
    """Requests of popular programs, with replies of all kinds of blocks."""
    programs = {"anthropic": "claude", "openai": "codex", "openai_compatible": "opencode", "gemini": "gemini"}
    sent = json.loads((HERE / "clients" / f"{programs[wire.name]}.json").read_text(encoding="utf-8"))
    model = re.search("models/(.*):", sent["path"])
    body = sent["body"] if model is None else {**sent["body"], "model": model[1]}
    whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    events = [event for _, event in wire.events("It is warm.", 2, "tools", "Let me think.")]
    yield Exchange("streamed", body, Scripted(wire.stream(*events), kind=EVENTS), True)
    reply = json.dumps(wire.body("It is warm.", 2, "tools", "Let me think.")).encode()
    yield Exchange("whole", whole, Scripted(reply), False)
    for condition in ("rate limit", "overflow"):
        status, refusal = wire.error_body(condition)
        yield Exchange(condition, whole, Scripted(json.dumps(refusal).encode(), status), False)


@pytest.mark.parametrize("wire", WIRES[:4], ids=lambda wire: wire.name)
async def test_the_gateway_changes_nothing(wire: Wire) -> None:
    assert await changed_by_the_gateway(wire, [*of_cassettes(wire), *of_programs(wire)]) == {}


# --- All recorded traffic ---

OF_CONNECTION = frozenset(
    {"content-type", "content-length", "content-encoding", "transfer-encoding", "connection"}
)


def recorded(file: str) -> Iterator[Exchange]:
    with (FOLDER / f"{file}.jsonl").open(encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            body: JsonObject = case["request_body"]
            if file == "gemini":
                body = {**body, "model": case["path"].rpartition("/")[2].partition(":")[0]}
            headers = {name.lower(): value for name, value in case["response_headers"].items()}
            kind = headers.get("content-type", JSON)
            kept = {name: value for name, value in headers.items() if name not in OF_CONNECTION}
            reply = Scripted(case["response_body"].encode(), case["response_status"], kind, kept)
            streamed = case["request_streamed"] or case["streamed"]
            if not any(body.get(name) for name in LEFT_OUT):
                yield Exchange(case["id"], body, reply, streamed, not case["oracle"].get("must_not_succeed"))


@needs_recordings
@pytest.mark.deep("all recorded traffic; the draw above is always tried")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", PROTOCOLS)
async def test_the_gateway_changes_nothing_of_recorded_traffic(file: str) -> None:
    assert await changed_by_the_gateway(BY_NAME[PROTOCOLS[file]], list(recorded(file))) == {}
