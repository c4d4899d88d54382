"""Content without a canonical form is kept unchanged in its place. Metadata of a text stays with the text."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest

from callboard.adapters.contract import AdapterCapabilities
from callboard.adapters.requests.history import MADE_BY_MODEL
from callboard.bus.streams.events import ProviderEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role
from callboard.bus.values.usage import StopReason

from ...support.fake_http import FakeTransport
from ...support.virtual_time import FakeClock
from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import responses as r
from ...support.wires.reading import asked, read, read_pieces, read_whole
from .cases import CHAT, CLAUDE, GEMINI, RESPONSES, Case, check, table

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

CITED: JsonObject = {"type": "char_location", "cited_text": "x", "document_index": 0}
CITED_TOO: JsonObject = {**CITED, "cited_text": "y"}
FOUND: JsonObject = {"type": "web_search_result", "url": "https://x.test", "page_age": None}
SEARCH: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}}
RESULT: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}
HOLOGRAM: JsonObject = {"type": "hologram", "parts": ["a", "b"], "caption": "cd", "depth": 2}
COMPACTED: JsonObject = {"type": "compaction", "content": "So far: nothing."}
BARE_CALL: JsonObject = {"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {}}
WEB: JsonObject = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
NOTE: JsonObject = {
    "type": "url_citation", "url": "https://x.test", "start_index": 0, "end_index": 5, "title": "E",
}  # fmt: skip
NOTED = r.message(content=[{"type": "output_text", "text": "Hello", "annotations": [NOTE]}], phase="commentary")
PARTS: dict[str, JsonObject] = {
    "executableCode": {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "c2ln"},
    "codeExecutionResult": {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
    "inlineData": {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
    "toolCall": {"thoughtSignature": "c2ln", "toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {}}},
    "hologram": {"hologram": {"depth": 3}},
}
SHOWN = ("image", b"\x89PNG\r\n\x1a\n", {"inlineData": {"mimeType": "image/png"}})
PAINTED: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
UNPAINTED: Json = {"type": "image_url", "image_url": {}}


TOKEN: JsonObject = {"token": "Hel", "logprob": -0.1, "bytes": [72], "top_logprobs": []}
ANOTHER: JsonObject = {**TOKEN, "token": "lo"}
LIKELY = r.message(content=[{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": [TOKEN]}])
CHAT_NOTE: JsonObject = {"type": "url_citation", "url_citation": {"url": "https://x.test", "title": "E"}}


def likely(text: str, *tokens: JsonObject) -> JsonObject:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": list(tokens), "refusal": None}}
    return {**c.chunk(), "choices": [choice]}


def claude(*events: JsonObject) -> list[JsonObject]:
    return [a.message_start(), *events, *a.ending()]


def grounded(*queries: str) -> JsonObject:
    return {"webSearchQueries": list(queries)}


@table(
    Case(CLAUDE, "citations before their text", claude(a.start(0, "text", text="", citations=[]),
         a.delta(0, "citations_delta", citation=CITED), a.delta(0, "text_delta", text="x it is"),
         a.delta(0, "citations_delta", citation=CITED_TOO), a.stop(0), *a.text(1, "plain")), ["x it is", "plain"],
         kept=[{"citations": [CITED, CITED_TOO]}, None]),
    Case(CLAUDE, "server tools", claude(a.start(0, "server_tool_use", id="srvtoolu_1", name="web_search",
         input={}),
         *[a.delta(0, "input_json_delta", partial_json=part) for part in ("", '{"q', '": "x"}')], a.stop(0),
         a.start(1, "web_search_tool_result", tool_use_id="srvtoolu_1", content=[FOUND]),
         a.stop(1), *a.text(2, "So.")), [{"server_tool_use": SEARCH}, {"web_search_tool_result": RESULT}, "So."]),
    Case(CLAUDE, "a server tool without arguments", claude(a.start(0, "server_tool_use", id="s",
         name="code_execution", input={}), a.delta(0, "input_json_delta", partial_json=""), a.stop(0)),
         [{"server_tool_use": BARE_CALL}]),
    Case(CLAUDE, "a compaction", claude(a.start(0, "compaction", content=None),
         a.delta(0, "compaction_delta", content="So far: nothing."), a.stop(0)), [{"compaction": COMPACTED}]),
    Case(CLAUDE, "kinds of the future", claude(a.event("weather_report", delta=["odd"], index="north"),
         a.start(0, "hologram", parts=["a"], caption="c", depth=1),
         a.delta(0, "hologram_delta", parts=["b"], caption="d", depth=2, extra=None), a.stop(0),
         a.start(1, "text", text=""), a.delta(1, "emphasis_delta", strength=9), a.delta(1, "text_delta",
         text="Hi"),
         a.stop(1)), [{"hologram": HOLOGRAM}, "Hi"], warnings=["unknown_event", "unknown_delta"]),
    Case(CLAUDE, "citations of a kind of the future", claude(a.start(0, "quotation", text="x"),
         *[a.delta(0, "citations_delta", citation=cited) for cited in (CITED, CITED_TOO)], a.stop(0)),
         [{"quotation": {"type": "quotation", "text": "x", "citations": [CITED, CITED_TOO]}}]),
    Case(RESPONSES, "a search", [r.CREATED, r.added(0, WEB), r.event("web_search_call.searching", output_index=0,
         item_id="ws_1"), r.done(0, WEB), r.added(1, r.message("Hi")), r.text_delta(1, "Hi"),
         r.done(1, r.message("Hi")), r.ending()], [{"web_search_call": WEB}, "Hi"], StopReason.END_TURN),
    Case(RESPONSES, "phase and citations", [r.CREATED, r.added(0, NOTED), r.text_delta(0, "Hello"),
         r.done(0, NOTED), r.ending()], ["Hello"], kept=[{"phase": "commentary", "annotations": [NOTE]}]),
    Case(RESPONSES, "probabilities", [r.CREATED, r.added(0, LIKELY), r.text_delta(0, "Hello"),
         r.done(0, LIKELY), r.ending()], ["Hello"], kept=[{"logprobs": [TOKEN]}]),
    Case(CHAT, "probabilities and citations", [
         likely("Hel", TOKEN), likely("lo", ANOTHER), c.chunk(annotations=[CHAT_NOTE]), c.STOP, c.DONE],
         ["Hello"], kept=[{"logprobs": [TOKEN, ANOTHER], "annotations": [CHAT_NOTE]}]),
    Case(CHAT, "probabilities of two texts", [
         likely("A", TOKEN), c.chunk(images=[PAINTED]), likely("B", ANOTHER), c.STOP, c.DONE],
         ["A", ("image", b"\0", UNPAINTED), "B"],
         kept=[{"logprobs": [TOKEN]}, UNPAINTED, {"logprobs": [ANOTHER]}]),
    Case(CHAT, "an image", [c.chunk(content="Look:", images=[PAINTED], audio={"data": ""}), c.STOP, c.DONE],
         ["Look:", ("image", b"\0", UNPAINTED)]),
    Case(GEMINI, "parts", [g.chunk(g.text("So"), *PARTS.values()), g.chunk(g.text("then")), g.END],
         ["So", *[{kind: part} if kind != "inlineData" else SHOWN for kind, part in PARTS.items()], "then"]),
    Case(GEMINI, "what is about the reply", [
         g.chunk(g.text("A"), groundingMetadata=grounded("a"), logprobsResult={"chosenCandidates": [1]}),
         g.chunk(g.text("B"), groundingMetadata=grounded("a", "b"), logprobsResult={"chosenCandidates": [2]}),
         g.chunk(finish="STOP", usage=g.USAGE, groundingMetadata={}, citationMetadata=None)],
         ["AB", {"groundingMetadata": {"groundingMetadata": grounded("a", "b")}},
          {"logprobsResult": {"logprobsResult": {"chosenCandidates": [1, 2]}}}]),
)  # fmt: skip
def test_content_that_is_not_canonical_is_kept(case: Case) -> None:
    """The content is complete and in its place, for any form of its pieces."""
    check(case)


@pytest.mark.parametrize(("begun", "fields", "warned"), [
    ("text", {"type": "emphasis_delta", "strength": 9}, "unknown_delta"),
    ("tool_use", {"type": "emphasis_delta", "text": "x"}, "unknown_delta"),
    # a known delta with an unknown value
    ("text", {"type": "emphasis_delta", "text": {"strength": 9}}, "unknown_event"),
    (None, {"type": "emphasis_delta", "strength": 9}, "stray_delta"),
    (None, {"type": "input_json_delta", "partial_json": "{}"}, "stray_delta"),
])  # fmt: skip
def test_a_delta_without_a_block_is_delivered_unchanged(
    begun: str | None, fields: JsonObject, warned: str
) -> None:
    """All such deltas together cause one warning."""
    delta = a.event("content_block_delta", index=0, delta=fields)
    around = ([a.start(0, begun, id="toolu_1", name="f", input={})], [a.stop(0)]) if begun else ([], [])
    reading = read(CLAUDE, a.message_start(), *around[0], delta, delta, *around[1], *a.text(1, "Hi"), *a.ending())
    told = [(event.kind, event.raw) for event in reading.events if isinstance(event, ProviderEvent)]
    assert told == [(fields["type"], delta)] * 2
    assert reading.warnings.count(warned) == 1
    assert reading.said[-1] == "Hi"


def test_a_delta_that_is_known_and_broken_ends_the_stream() -> None:
    broken = a.delta(0, "text_delta", text={"strength": 9})
    events = [a.message_start(), a.start(0, "text", text=""), broken, *a.ending()]
    assert read_pieces(CLAUDE, [CLAUDE.stream(*events)]).error is not None


def test_after_a_fallback_the_reply_has_the_second_model() -> None:
    """A stream starts with the requested model and ends with the second one. The place of the change is kept."""
    change: JsonObject = {
        "type": "fallback", "from": {"model": "claude-asked"}, "to": {"model": "claude-served"},
        "trigger": {"type": "refusal", "category": "bio"},
    }  # fmt: skip
    content: list[Json] = [{"type": "text", "text": "A"}, change, {"type": "text", "text": "B"}]
    started = {"type": "content_block_start", "index": 1, "content_block": change}
    begun = a.message_start(model="claude-asked")
    for reading in (
        read(CLAUDE, begun, *a.text(0, "A"), started, a.stop(1), *a.text(2, "B"), *a.ending()),
        read_whole(CLAUDE, {**CLAUDE.body("", 0, "end"), "content": content}),
    ):
        assert reading.said == ["A", {"fallback": change}, "B"]
        assert reading.reply.model == "anthropic:claude-served"


def test_the_last_report_of_a_changed_prompt_replaces_the_first() -> None:
    """An empty list replaces it, too, because after a fallback it describes another model."""
    changes: Json = [{"type": "thinking_dropped", "reason": "prefix_mismatch"}]
    begun = a.message_start(input_transformations=changes)
    for last, said in ((None, {"input_transformations": changes}), ([], {})):
        end, over = a.ending()
        reading = read(CLAUDE, begun, *a.text(0, "Hi"), {**end, "input_transformations": last}, over)
        assert reading.reply.provider_details == said


CONTAINER: JsonObject = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
CALL: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


@pytest.mark.parametrize(("reason", "kept"), [("tool_use", True), ("pause_turn", True), ("end_turn", False)])
def test_the_container_of_a_paused_reply_is_kept(reason: str, kept: bool) -> None:
    """The tools wait in the container. The container arrives with the start or the end of the message."""
    body = {**a.message_start(container=CONTAINER)["message"], "content": [CALL], "stop_reason": reason}
    for reading in (
        read(CLAUDE, a.message_start(), *a.tool(0, "f", "toolu_1"), *a.ending(reason, container=CONTAINER)),
        read(CLAUDE, a.message_start(container=CONTAINER), *a.tool(0, "f", "toolu_1"), *a.ending(reason)),
        read_whole(CLAUDE, body),
    ):
        found = [block.provider_raw.data for block in reading.content if isinstance(block, OpaqueBlock)]
        assert found == [{**CONTAINER, "type": "container"}] * kept


# -- An image of a model is sent back to that model as its own, and to any other model as an image of the user.


BYTES = b"\x89PNG\r\n\x1a\nmade"
BASE64 = b64encode(BYTES).decode()
PART: JsonObject = {"inlineData": {"mimeType": "image/png", "data": BASE64}, "thoughtSignature": "c2ln"}
ITEM: JsonObject = {
    "type": "image_generation_call", "id": "ig_1", "status": "completed", "result": BASE64,
    "revised_prompt": "A cat.",
}  # fmt: skip
LINK: JsonObject = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}, "index": 0}
STREAMS: dict[Wire, list[JsonObject | str | bytes]] = {
    GEMINI: [g.chunk(g.text("Look:"), PART), g.END],
    RESPONSES: [
        r.CREATED, r.added(0, r.message("Look:")), r.text_delta(0, "Look:"), r.done(0, r.message("Look:")),
        r.added(1, {**ITEM, "result": None, "status": "in_progress"}),
        r.event("response.image_generation_call.partial_image", output_index=1, partial_image_b64="AA=="),
        r.done(1, ITEM), r.ending(),
    ],
    CHAT: [c.chunk(content="Look:", images=[LINK]), c.STOP, c.DONE],
}  # fmt: skip
WHOLE: dict[Wire, Json] = {
    GEMINI: g.chunk(g.text("Look:"), PART, finish="STOP", usage=g.USAGE),
    RESPONSES: r.response(output=[r.message("Look:"), ITEM]),
    CHAT: c.reply(content="Look:", images=[LINK]),
}
OWN: dict[Wire, JsonObject] = {GEMINI: PART, RESPONSES: ITEM}
"""The form in which the image is sent back to its own model."""

SHOWN_IMAGE: dict[Wire, JsonObject] = {
    GEMINI: {"inlineData": {"mimeType": "image/png", "data": BASE64}},
    RESPONSES: {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"},
    CHAT: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
    CLAUDE: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}},
}
"""The form in which the user shows the image."""

makers = pytest.mark.parametrize("maker", STREAMS, ids=lambda wire: wire.name)
readers = pytest.mark.parametrize("reader", SHOWN_IMAGE, ids=lambda wire: wire.name)


def made_by(wire: Wire) -> tuple[ContentBlock, ...]:
    return read_whole(wire, WHOLE[wire]).reply.content


def body_of(wire: Wire, *messages: Message, **changes: object) -> tuple[JsonObject, list[str]]:
    """The body of a request with these messages, and its warnings."""
    call = wire.make(FakeTransport(), FakeClock()).write_request(  # type: ignore[attr-defined]
        asked(wire, messages=messages, **changes), stream=False
    )
    return msgspec.json.decode(call.body), [warning.message for warning in call.warnings]


def within(value: Json, wanted: JsonObject) -> bool:
    """Whether a value has an object with at least these fields at any depth."""
    if isinstance(value, dict):
        here = all(key in value and value[key] == kept for key, kept in wanted.items())
        return here or any(within(inner, wanted) for inner in value.values())
    return isinstance(value, list) and any(within(inner, wanted) for inner in value)


def drawn(*said: ContentBlock) -> tuple[Message, ...]:
    return Message.user("Draw."), Message.assistant(said), Message.user("More.")


@makers
def test_a_made_image_is_the_same_streamed_and_whole_and_goes_back_as_it_came(maker: Wire) -> None:
    streamed = read(maker, *STREAMS[maker]).reply.content
    text, image = made_by(maker)
    assert streamed == (text, image)
    assert isinstance(image, ImageBlock)
    assert (image.data, image.media_type) == (BYTES, "image/png")
    assert image.provider_raw is not None
    assert BASE64.encode() not in msgspec.json.encode(image.provider_raw.data), "the bytes are kept once"
    if maker in OWN:
        body, warnings = body_of(maker, *drawn(text, image))
        assert within(body, OWN[maker])
        assert not warnings
        assert MADE_BY_MODEL not in str(body)


@makers
@readers
def test_every_other_model_is_shown_it_by_the_user(maker: Wire, reader: Wire) -> None:
    """A signature is bound to its model. A model without image support gets a note."""
    said = made_by(maker)
    if maker is reader and maker in OWN:
        image = said[1]
        assert isinstance(image, ImageBlock)
        assert image.provider_raw is not None
        raw = msgspec.structs.replace(image.provider_raw, model="another")
        body, _ = body_of(maker, *drawn(msgspec.structs.replace(image, provider_raw=raw)))
        assert within(body, SHOWN_IMAGE[maker])
        return
    body, warnings = body_of(reader, *drawn(*said))
    assert within(body, SHOWN_IMAGE[reader])
    assert MADE_BY_MODEL in str(body)
    assert any("an image of another model is sent as an image of the user" in warning for warning in warnings)
    assert "c2ln" not in str(body), "what came with it stays with its provider"
    blind = AdapterCapabilities(supports_tools=True, supports_system_prompt=True)
    images = [block for block in said if isinstance(block, ImageBlock)]
    body, warnings = body_of(reader, *drawn(*images), capabilities=blind)
    assert BASE64 not in str(body)
    assert "(image left out: not supported here)" in str(body)
    assert any("does not accept images" in warning for warning in warnings)


def test_an_image_next_to_a_call_follows_the_calls_result() -> None:
    """Results must come directly after the call."""
    picture = ImageBlock(data=BYTES)
    said = Message.assistant([TextBlock("So."), picture, ToolUseBlock("tu_1", "look", {})])
    answer = Message(Role.TOOL, (ToolResultBlock("tu_1", "Seen."),))
    body, _ = body_of(CLAUDE, Message.user("Draw."), said, answer, Message.user("More."))
    messages = body["messages"]
    assert isinstance(messages, list)
    kinds = [part["type"] for part in messages[2]["content"]]  # type: ignore[index,call-overload,union-attr]
    assert kinds == ["tool_result", "text", "image", "text"]


def test_what_is_no_image_is_kept_as_it_came() -> None:
    for part in (
        {"inlineData": {"mimeType": "audio/wav", "data": BASE64}},
        {"inlineData": {"mimeType": "image/png", "data": "%%%"}},
        {**PART, "thought": True},
    ):
        [block] = read_whole(GEMINI, g.chunk(part, finish="STOP", usage=g.USAGE)).said
        assert block == {"inlineData": part}
