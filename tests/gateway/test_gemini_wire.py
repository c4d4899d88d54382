"""Round trips of Gemini's clients with the adapter, the vendor's SDK and recorded traffic.

The adapter tests both directions. The gateway reads the requests that the adapter writes, and the adapter reads
the replies that the gateway writes. Each must stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from callboard.adapters import CanonicalRequest
from callboard.adapters.embeddings import EmbeddingRequest
from callboard.adapters.providers.gemini.adapter import GeminiEmbeddings
from callboard.bus import errors
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    TextBlock,
)
from callboard.bus.values.messages import Message, Role
from callboard.bus.values.usage import TokenUsage, UsageSource
from callboard.engine.gateway.embeddings import read_gemini, write_gemini
from callboard.engine.gateway.gemini_replies import WIRE
from tests.support.json_values import differences

from ..support.canonical_requests import canonical_requests
from ..support.fake_http import FakeReply
from ..support.recordings import FOLDER, needs_recordings
from ..support.wires.gemini import USAGE, call, chunk, text, thought
from ..support.wires.reading import read_pieces, read_reply
from .gemini_clients import (
    GEMINI,
    MODEL,
    PNG_TEXT,
    SIGNATURE,
    again,
    asks,
    own,
    read_written,
    signed_at_its_end,
    without_ids,
    written,
)

# -- The adapter


def joined(body: Any) -> Any:
    """A body with the model's adjacent plain texts joined, and without parts that a canonical request can drop.

    These parts are the name of a file, and a text of the model that is only white space.
    """
    contents: list[Any] = []
    for content in body["contents"]:
        parts: list[Any] = []
        for part in content["parts"]:
            last = parts[-1] if parts else None
            if "fileData" in part:
                part["fileData"].pop("displayName", None)
            if content["role"] == "model" and last is not None and last.keys() == part.keys() == {"text"}:
                parts[-1] = {"text": last["text"] + part["text"]}
            else:
                parts.append(part)
        if content["role"] == "model":
            parts = [part for part in parts if part.keys() != {"text"} or part["text"].strip()]
        if not parts:
            continue
        if contents and contents[-1]["role"] == content["role"] == "user":
            contents[-1]["parts"] += parts
        else:
            contents.append({**content, "parts": parts})
    return {**body, "contents": contents}


BLANK_BEFORE_A_TEXT = CanonicalRequest(
    request_id="",
    model=f"gemini:{MODEL}",
    messages=(Message(Role.ASSISTANT, (TextBlock(" ", own({"mediaResolution": {}})), TextBlock("Hi"))),),
    max_output_tokens=1,
)


@pytest.mark.deep
@pytest.mark.timeout(200)
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@example(BLANK_BEFORE_A_TEXT)
@given(canonical_requests([f"gemini:{MODEL}", "gemini:gemini-2.5-flash"]))
def test_the_adapters_requests_are_read_as_they_were(request: CanonicalRequest) -> None:
    try:
        body = written(request)
    except errors.AdapterError:
        assume(False)
    asked = WIRE.read_request(body, {}, model=request.wire_model)
    assert joined(again(asked)) == joined(body)


WORDS = st.text("ab ☃", min_size=1, max_size=6)
SIGNATURES = st.none() | st.sampled_from([SIGNATURE, "c2ln"])
OBJECTS = st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.integers(-3, 3) | WORDS, max_size=2)


def _ids(parts: list[JsonObject]) -> list[Json]:
    """The ids of calls. An adapter takes a second call with the same id for a repetition."""
    return [
        called["id"] for part in parts if isinstance(called := part.get("functionCall"), dict) and "id" in called
    ]


PARTS: st.SearchStrategy[list[JsonObject]] = st.lists(
    st.builds(text, WORDS, SIGNATURES)
    | st.builds(thought, WORDS, SIGNATURES)
    | st.builds(lambda name, signature, args: call(name, signature, args=args),
        st.sampled_from(["f", "g"]), SIGNATURES, OBJECTS)
    | st.builds(lambda name, number, args: call(name, None, id=f"c{number}", args=args),
        st.sampled_from(["f", "g"]), st.integers(0, 99), OBJECTS)
    | st.sampled_from([
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}, "thoughtSignature": "c2ln"},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
    ]),
    min_size=1, max_size=5,
).filter(lambda parts: len(ids := _ids(parts)) == len(set(ids)))  # fmt: skip
ABOUT = st.fixed_dictionaries(
    {},
    optional={"groundingMetadata": st.just({"webSearchQueries": ["x"],
        "groundingChunks": [{"web": {"uri": "https://x"}}]}),
        "citationMetadata": st.just({"citationSources": [{"uri": "https://x"}]}),
        "safetyRatings": st.just([{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]),
        "avgLogprobs": st.just(-0.5)},
)  # fmt: skip
FINISHES = st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])


@pytest.mark.deep
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(PARTS, FINISHES, ABOUT)
def test_the_adapters_replies_are_written_as_they_were(parts: list[Json], finish: str, about: JsonObject) -> None:
    body = chunk(
        *parts, finish=finish, usage={**USAGE, "cachedContentTokenCount": 4, "thoughtsTokenCount": 2}, **about
    )
    reading = read_pieces(GEMINI, [GEMINI.stream(body)])
    reply = reading.reply
    for found in read_written(asks(), reply, reading.events):
        assert signed_at_its_end(found.content) == signed_at_its_end(reply.content)
        assert (found.reply.stop_reason, found.reply.raw_stop_reason) == (reply.stop_reason, finish)
        assert found.reply.provider_details == reply.provider_details
        assert found.usage == msgspec.structs.replace(reply.usage, raw=found.usage.raw)
    assert without_ids(read_written(asks(), reply)[0].content) == without_ids(reply.content)


# -- Embeddings


def test_embeddings_are_read_and_written_as_the_adapter_does() -> None:
    embeddings = GeminiEmbeddings()
    request = EmbeddingRequest(
        request_id="", model="gemini:gemini-embedding-001", inputs=("a", "b"), dimensions=2, input_type="query"
    )
    body = msgspec.json.decode(embeddings.write(request, "gemini").body)
    asked = read_gemini(body, model="gemini-embedding-001", single=False)
    assert [msgspec.structs.replace(one, model=request.model) for one in asked.requests] == [request]
    reply = embeddings.read(msgspec.json.encode({"embeddings": [{"values": [0.5, 1]}, {"values": [0, 2]}]}), {})
    found = embeddings.read(msgspec.json.encode(write_gemini(asked, reply.vectors, TokenUsage(3))), {})
    assert (list(found.vectors), found.input_tokens) == (list(reply.vectors), 3)


def test_texts_with_other_settings_are_requests_of_their_own() -> None:
    def asks_for(said: str, **fields: Json) -> JsonObject:
        return {"model": "models/m", "content": {"parts": [{"text": said}]}, **fields}

    body: JsonObject = {
        "requests": [asks_for("a", task_type="RETRIEVAL_QUERY"), asks_for("b", taskType="RETRIEVAL_QUERY"),
            asks_for("c", title="T", taskType="RETRIEVAL_DOCUMENT")],
    }  # fmt: skip
    asked = read_gemini(body, model="models/m", single=False)
    assert [(one.inputs, one.input_type) for one in asked.requests] == [
        (("a", "b"), "query"),
        (("c",), "document"),
    ]
    assert asked.requests[1].provider_options == {"gemini": {"title": "T"}}
    assert [warning.message for warning in asked.losses] == [
        "title is not sent to another protocol: only this protocol has it"
    ]


def test_one_text_has_one_vector() -> None:
    from array import array

    asked = read_gemini({"content": {"parts": [{"text": "a"}]}}, model="m", single=True)
    assert write_gemini(asked, [array("f", [0.5])], TokenUsage(3))["embedding"] == {"values": [0.5]}


# -- Recorded traffic


def recorded() -> list[Mapping[str, Any]]:
    with (FOLDER / "gemini.jsonl").open("rb") as lines:
        return [msgspec.json.decode(line) for line in lines]


def name_of(case: Mapping[str, Any]) -> str:
    found: str = case["path"].rpartition("/")[2].partition(":")[0]
    return found


DIFFERENCES: Mapping[str, str] = {
    r"generationConfig(\.maxOutputTokens)?": "the adapter always sends a limit, here the default one",
    r"generationConfig\.thinkingConfig(\.includeThoughts)?": "the adapter asks for the thoughts of a request",
    r"generationConfig\.responseJsonSchema\..*": "the adapter writes a reference without siblings",
    r"systemInstruction\.role": "an instruction has no role",
    r"toolConfig(\.functionCallingConfig)?": "older models do not know the mode, or there is no function to call",
    r"tools.*": "functions come first, their schemas are JSON Schema, and no description is empty",
    r"contents": "successive contents of the model are one, and no content is empty",
    r"contents\[\]\.parts": "adjacent texts of the model are one",
    r"contents\[\]\.parts\[\]\.text": "a blank text is not sent",
    r"contents\[\]\.parts\[\]\.thoughtSignature": "a made-up signature is only sent where a model needs one",
    r"contents\[\]\.parts\[\]\.(inline|file)Data\.mimeType": "a media type has the wire's name, and is guessed",
    r"contents\[\]\.parts\[\]\.function(Call|Response)\.id": "a call has an id",
    r"contents\[\]\.parts\[\]\.functionResponse\.response\..*": "a result is one text",
}
"""Allowed differences between a recorded request and the adapter's request, with the reasons. They are the losses
of the canonical form. A provider of the same wire gets the original request.
"""


def plain(value: Json, key: str = "") -> Json:
    """A body with keys in camel case and base64 in its standard alphabet."""
    if isinstance(value, list):
        return [plain(item, key) for item in value]
    if isinstance(value, str) and key in ("data", "thoughtSignature"):
        return value.replace("-", "+").replace("_", "/").rstrip("=")
    if not isinstance(value, dict) or key in ("args", "response", "parametersJsonSchema", "responseJsonSchema"):
        return value
    renamed = {re.sub("_([a-z])", lambda found: found[1].upper(), name): inner for name, inner in value.items()}
    return {name: plain(inner, name) for name, inner in renamed.items()}


@needs_recordings
@pytest.mark.deep
def test_recorded_requests_go_through_the_canonical_form() -> None:
    unexplained: dict[str, str] = {}
    for case in recorded():
        asked = WIRE.read_request(case["request_body"], {}, model=name_of(case))
        try:
            sent = again(asked)
        except errors.InvalidRequestError:
            assert all(not part.get("text") for part in case["request_body"]["contents"][0]["parts"])
            continue
        for place in (each[1:] for each in differences(plain(case["request_body"]), plain(sent))):
            if not any(re.fullmatch(pattern, place) for pattern in DIFFERENCES):
                unexplained[place] = case["id"]
    assert unexplained == {}


@needs_recordings
@pytest.mark.deep
def test_recorded_tools_are_declared_unchanged() -> None:
    """Functions have their name and description. The provider's own tools are unchanged."""
    for case in recorded():
        asked = WIRE.read_request(case["request_body"], {}, model=name_of(case))
        tools: Any = plain(case["request_body"].get("tools") or [])
        tools = [tools] if isinstance(tools, dict) else tools
        declared = [each for tool in tools for each in tool.get("functionDeclarations", ())]
        found = [(tool.name, tool.description) for tool in asked.request.tools]
        assert found == [(each["name"], each.get("description", "")) for each in declared]
        rest = [{key: value for key, value in tool.items() if key != "functionDeclarations"} for tool in tools]
        only_geminis: Any = asked.request.provider_options.get("gemini", {})
        assert plain(only_geminis.get("tools", [])) == [tool for tool in rest if tool]


@needs_recordings
@pytest.mark.deep
@pytest.mark.timeout(300)
def test_recorded_replies_are_written_unchanged() -> None:
    """Replies are written as a whole, as events and as an array. A stream puts the signature of a text at its
    end.
    """
    read_of = 0
    for case in recorded():
        body = case["response_body"].encode()
        kind = {name.lower(): value for name, value in case["response_headers"].items()}["content-type"]
        given = FakeReply(body, status=case["response_status"], headers={"content-type": kind})
        reading = read_reply(GEMINI, given, streamed=case["streamed"], model=f"gemini:{name_of(case)}")
        if reading.error is not None:
            assert case["response_status"] >= 400
            continue
        read_of += 1
        reply = reading.reply
        for number, found in enumerate(read_written(asks(), reply, reading.events)):
            same = without_ids if number == 0 else signed_at_its_end
            assert in_shorter(same(found.content)) == in_shorter(same(reply.content)), case["id"]
            ends = (reply.stop_reason, reply.raw_stop_reason, reply.provider_details)
            assert (found.reply.stop_reason, found.reply.raw_stop_reason, found.reply.provider_details) == ends
            if reply.usage.source is UsageSource.REPORTED:
                assert counts(found.usage) == counts(reply.usage)
    assert read_of > 200


def counts(usage: TokenUsage) -> TokenUsage:
    """Usage without searches, whose number depends on the model's name."""
    return msgspec.structs.replace(usage, raw=None, details=None)


def in_shorter(content: Sequence[ContentBlock]) -> list[ContentBlock]:
    """Blocks without the model name of their data, which differs in these tests."""
    return [
        msgspec.structs.replace(block, provider_raw=msgspec.structs.replace(block.provider_raw, model=None))
        if block.provider_raw is not None
        else block
        for block in content
    ]
