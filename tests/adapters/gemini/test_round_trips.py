"""Round trips: a reply's content is sent back unchanged, and every history gives a valid request.

The vendor's SDK checks every body, because its types refuse unknown fields.
"""

from __future__ import annotations

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.gemini.request import build_request
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry

from ...support.fake_http import FakeReply, FakeTransport, ask, request
from ...support.judges import contents_faults
from ...support.scripted import adapter_type
from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires.gemini import USAGE, call, chunk, text, thought
from ...support.wires.reading import Reading
from ...support.wires.reading import read as read_stream
from ...support.wires.reading import read_whole as read_body

OLDER, NEWER = "gemini:gemini-2.5-flash", "gemini:gemini-3-flash-preview"
SIGNATURES = st.sampled_from(["c2ln", "c2lnMg=="])
WORDS = st.text("ab ☃", min_size=1, max_size=6)
SAID = WORDS.filter(lambda said: bool(said.strip()))
ARGUMENTS: st.SearchStrategy[JsonObject] = st.dictionaries(
    st.sampled_from(["x", "y"]), st.none() | st.integers(-3, 3) | WORDS | st.lists(WORDS, max_size=2), max_size=2
)


MODEL = "gemini-2.5-flash"


def read_whole(*parts: Json, **fields: Json) -> Reading:
    """Read a reply with these parts."""
    body = chunk(*parts, finish="STOP", usage=USAGE, **fields)
    return read_body(WIRES[3], body, model=f"gemini:{MODEL}")


def read(*chunks: JsonObject) -> Reading:
    return read_stream(WIRES[3], *chunks, model=f"gemini:{MODEL}")


def ours(**data: Json) -> ProviderRaw:
    return ProviderRaw("gemini", data, MODEL)


@st.composite
def signed_texts(draw: st.DrawFn) -> TextBlock:
    said = draw(SAID)
    cuts = sorted(draw(st.lists(st.integers(0, len(said)), min_size=2, max_size=2)))
    if draw(st.booleans()) or cuts[1] == 0:
        return TextBlock(said)
    piece: JsonObject = {"start": cuts[0], "end": cuts[1], "signature": draw(SIGNATURES)}
    return TextBlock(said, ours(signatures=[piece]))


@st.composite
def replies(draw: st.DrawFn) -> list[ContentBlock]:
    """The possible contents of a Gemini reply, as the adapter reads them."""
    blocks: list[ContentBlock] = []
    for number in range(draw(st.integers(0, 5))):
        match draw(st.sampled_from(["text", "thinking", "call", "code"])):
            case "text" if not (blocks and isinstance(blocks[-1], TextBlock)):
                blocks.append(draw(signed_texts()))
            case "thinking":
                blocks.append(ThinkingBlock(draw(st.just("") | WORDS), draw(SIGNATURES), ours()))
            case "call":
                raw: JsonObject = {"id": f"c{number}"}
                if draw(st.booleans()):
                    raw["thoughtSignature"] = draw(SIGNATURES)
                blocks.append(ToolUseBlock(f"tu_{number}", "go", draw(ARGUMENTS), provider_raw=ours(**raw)))
            case _:
                blocks.append(OpaqueBlock("executableCode", ours(executableCode={"code": draw(WORDS)})))
    return blocks


def without_ids(content: tuple[ContentBlock, ...]) -> list[ContentBlock]:
    return [
        msgspec.structs.replace(block, id="") if isinstance(block, ToolUseBlock) else block for block in content
    ]


def turn(content: list[ContentBlock], model: str) -> list[Json]:
    """The model's parts in the request after this reply."""
    asked = request(model=model, messages=(Message.user("Hi"), Message.assistant(content), Message.user("Go")))
    built = build_request(asked, provider="gemini")
    assert built.warnings == ()
    assert contents_faults(built.body) == []
    found = built.body["contents"]
    assert isinstance(found, list)
    parts = [item["parts"] for item in found if isinstance(item, dict) and item["role"] == "model"]
    return parts[0] if parts else []


@settings(max_examples=100)
@given(replies())
def test_a_reply_survives_the_round_trip(content: list[ContentBlock]) -> None:
    """Blocks that are written and read again are the same, plain and streamed, each with its own signature."""
    parts = turn(content, OLDER)
    expected = without_ids(tuple(content))
    assert without_ids(read_whole(*parts).content) == expected
    streamed = read(*[chunk(part) for part in parts], chunk(text(""), finish="STOP", usage=USAGE))
    assert without_ids(streamed.content) == expected


PARTS = st.one_of(
    st.builds(text, st.just("") | WORDS, st.none() | SIGNATURES),
    st.builds(thought, st.just("") | WORDS, st.none() | SIGNATURES),
    st.builds(
        lambda arguments, signature: call("go", signature, args=arguments), ARGUMENTS, st.none() | SIGNATURES
    ),
    st.just({"inlineData": {"mimeType": "image/png", "data": "eA=="}}),
    st.just({"thoughtSignature": "c2ln"}),
)


@settings(max_examples=100)
@given(st.lists(PARTS, max_size=6))
def test_every_signature_is_sent_back_in_its_own_part(parts: list[JsonObject]) -> None:
    """Signatures have the same order, each with its own content, next to any other parts."""

    def signed(found: list[Json]) -> list[tuple[str, Json, Json]]:
        return [
            (str(part["thoughtSignature"]), part.get("text") or "", "functionCall" in part)
            for part in found
            if isinstance(part, dict) and part.get("thoughtSignature")
        ]

    reply = read_whole(*parts)
    asked = request(model=OLDER, messages=(Message.user("Hi"), Message.assistant(reply.content)))
    found = build_request(asked, provider="gemini").body["contents"] if reply.content else []
    assert isinstance(found, list)
    back = found[1]["parts"] if len(found) > 1 and isinstance(found[1], dict) else []
    assert signed(back) == signed(list(parts))


# -- A reply that reached the provider's limit for one request is continued with its token only.


GEMINI = WIRES[3]
GEMINI_3 = "gemini:gemini-3-flash"
QUESTION = Message.user("Write a long book.")


def part(text: str, token: Json = "next") -> JsonObject:
    return g.chunk(g.text(text), finish="CONTINUATION", usage=g.USAGE, continuationToken=token)


def said(reply: Reading) -> Message:
    return Message.assistant(reply.content)


def body_of(*messages: Message, model: str = GEMINI_3, **changes: object) -> JsonObject:
    adapter = GeminiAdapter(AdapterConfig(), name=model.partition(":")[0])
    asked = ask(*messages, model=model, **changes)
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    assert contents_faults(body) == []
    return body


def paused(text: str, token: str = "next") -> Message:
    return said(read_body(GEMINI, part(text, token), model=GEMINI_3))


@pytest.mark.parametrize("streamed", [False, True])
def test_it_has_paused_and_holds_its_token(streamed: bool) -> None:
    reading = (
        read_stream(GEMINI, part("Once"), model=GEMINI_3)
        if streamed
        else read_body(GEMINI, part("Once"), model=GEMINI_3)
    )
    assert reading.reply.stop_reason is StopReason.PAUSE_TURN
    assert reading.reply.raw_stop_reason == "CONTINUATION"
    assert reading.said == ["Once", {"continuationToken": {"continuationToken": "next"}}]


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_it_did_not_end_well(token: Json) -> None:
    reply = read_body(GEMINI, part("Once", token), model=GEMINI_3).reply
    assert reply.stop_reason is StopReason.PROVIDER_SPECIFIC
    assert reply.text == "Once"


def test_tokens_during_a_stream_are_ignored_after_a_complete_reply() -> None:
    """A long reply has tokens while it streams."""
    reading = read_stream(GEMINI, g.chunk(g.text("Once"), continuationToken="half"), g.END, model=GEMINI_3)
    assert reading.reply.stop_reason is StopReason.END_TURN
    assert reading.said == ["Once"]
    assert reading.reply.provider_details == {"continuationToken": "half"}


def test_the_next_request_is_the_same_with_the_latest_token() -> None:
    first = body_of(QUESTION)
    assert body_of(QUESTION, paused("Once")) == {**first, "continuationToken": "next"}
    assert body_of(QUESTION, paused("Once"), paused(" upon", "last")) == {**first, "continuationToken": "last"}


def test_the_hosts_own_token_goes_before_it() -> None:
    own: JsonObject = {"gemini": {"continuationToken": "mine"}}
    assert body_of(QUESTION, paused("Once"), provider_options=own)["continuationToken"] == "mine"


@pytest.mark.parametrize("model", ["gemini:gemini-3-pro", "other:gemini-3-flash"])
def test_another_model_gets_the_text_without_the_token(model: str) -> None:
    """The token only belongs to its own model."""
    body = body_of(QUESTION, paused("Once"), model=model)
    assert "continuationToken" not in str(body)
    assert body["contents"][1]["parts"] == [{"text": "Once"}]  # type: ignore[index, call-overload]


def test_what_is_said_behind_it_ends_the_wait() -> None:
    body = body_of(QUESTION, paused("Once"), said(read_body(GEMINI, g.chunk(g.text(" upon"), finish="STOP"))))
    assert "continuationToken" not in str(body)
    body = body_of(QUESTION, paused("Once"), Message.user("Stop."))
    assert "continuationToken" not in str(body)
    assert [each["parts"] for each in body["contents"]] == [  # type: ignore[index, call-overload, union-attr]
        [{"text": "Write a long book."}], [{"text": "Once"}], [{"text": "Stop."}],
    ]  # fmt: skip


def test_a_session_continues_until_the_reply_is_complete() -> None:
    """Each part is a separate reply and step of the turn. The next calls read the parts as one conversation."""
    ending = g.chunk(g.text(" a time."), finish="STOP", usage=g.USAGE)
    bodies = [
        part("Once", "one"),
        part(" upon", "two"),
        ending,
        g.chunk(g.text("You are welcome."), finish="STOP"),
    ]
    transport = FakeTransport(
        *(FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"}) for body in bodies)
    )
    made = adapter_type(lambda config, *, name, clock: GeminiAdapter(config, name=name, transport=transport))
    entry = AdapterEntry(name="gemini", type=made, config=AdapterConfig(api_key="k"))
    models = {"gemini:m": ModelEntry(id="gemini:m", adapter="gemini", wire_name="gemini-3-flash")}

    async def go() -> tuple[Message, ...]:
        async with Engine(models=ModelRegistry({"gemini": entry}, models), trace=False) as engine:
            session = engine.session("gemini:m")
            assert (await session.send("Write.")).text == " a time."
            assert [message.text for message in session.messages[1:]] == ["Once", " upon", " a time."]
            await session.send("Thanks.")
            return session.messages

    messages = anyio.run(go)
    sent = [msgspec.json.decode(request.body) for request in transport.requests]
    assert [body.get("continuationToken") for body in sent] == [None, "one", "two", None]
    assert sent[0]["contents"] == sent[1]["contents"] == sent[2]["contents"]
    assert [each["parts"] for each in sent[3]["contents"]] == [
        [{"text": "Write."}], [{"text": "Once"}, {"text": " upon"}, {"text": " a time."}], [{"text": "Thanks."}],
    ]  # fmt: skip
    assert not any(isinstance(block, OpaqueBlock) for block in messages[3].content)
