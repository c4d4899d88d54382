"""A model's image is an image: it goes back to that model as its own, and to any other as the user's."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest

from callboard.adapters.contract import AdapterCapabilities
from callboard.adapters.requests.history import MADE_BY_MODEL
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role

from ...support.fake_http import FakeTransport
from ...support.virtual_time import FakeClock
from ...support.wires import Wire
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import responses as r
from ...support.wires.reading import asked, read, read_whole
from .cases import CHAT, CLAUDE, GEMINI, RESPONSES

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
"""How it goes back to its own model."""

SHOWN: dict[Wire, JsonObject] = {
    GEMINI: {"inlineData": {"mimeType": "image/png", "data": BASE64}},
    RESPONSES: {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"},
    CHAT: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
    CLAUDE: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}},
}
"""How the user shows it."""

makers = pytest.mark.parametrize("maker", STREAMS, ids=lambda wire: wire.name)
readers = pytest.mark.parametrize("reader", SHOWN, ids=lambda wire: wire.name)


def made_by(wire: Wire) -> tuple[ContentBlock, ...]:
    return read_whole(wire, WHOLE[wire]).reply.content


def body_of(wire: Wire, *messages: Message, **changes: object) -> tuple[JsonObject, list[str]]:
    """The body of a request with these messages, and what its warnings say."""
    call = wire.make(FakeTransport(), FakeClock()).write_request(  # type: ignore[attr-defined]
        asked(wire, messages=messages, **changes), stream=False
    )
    return msgspec.json.decode(call.body), [warning.message for warning in call.warnings]


def within(value: Json, wanted: JsonObject) -> bool:
    """Whether an object with at least these fields is anywhere in a value."""
    if isinstance(value, dict):
        here = all(key in value and value[key] == kept for key, kept in wanted.items())
        return here or any(within(inner, wanted) for inner in value.values())
    return isinstance(value, list) and any(within(inner, wanted) for inner in value)


@makers
def test_a_made_image_is_the_same_streamed_and_whole(maker: Wire) -> None:
    streamed = read(maker, *STREAMS[maker]).reply.content
    text, image = made_by(maker)
    assert streamed == (text, image)
    assert isinstance(image, ImageBlock)
    assert (image.data, image.media_type) == (BYTES, "image/png")
    assert image.provider_raw is not None
    assert BASE64.encode() not in msgspec.json.encode(image.provider_raw.data), "the bytes are kept once"


@pytest.mark.parametrize("maker", OWN, ids=lambda wire: wire.name)
def test_it_goes_back_to_its_own_model_as_it_came(maker: Wire) -> None:
    said = Message.assistant(made_by(maker))
    body, warnings = body_of(maker, Message.user("Draw."), said, Message.user("More."))
    assert within(body, OWN[maker])
    assert not warnings
    assert MADE_BY_MODEL not in str(body)


@makers
@readers
def test_every_other_model_is_shown_it_by_the_user(maker: Wire, reader: Wire) -> None:
    if maker is reader and maker in OWN:
        return
    said = Message.assistant(made_by(maker))
    body, warnings = body_of(reader, Message.user("Draw."), said, Message.user("More."))
    assert within(body, SHOWN[reader])
    assert MADE_BY_MODEL in str(body)
    assert any("a model's image goes to another as the user's" in warning for warning in warnings)
    assert "c2ln" not in str(body), "what came with it stays with its provider"


@pytest.mark.parametrize("maker", OWN, ids=lambda wire: wire.name)
def test_another_model_of_the_same_provider_is_another(maker: Wire) -> None:
    """Its signature, and the reasoning that led to it, are bound to the model."""
    image = made_by(maker)[1]
    assert isinstance(image, ImageBlock)
    assert image.provider_raw is not None
    raw = msgspec.structs.replace(image.provider_raw, model="another")
    foreign = Message.assistant([msgspec.structs.replace(image, provider_raw=raw)])
    body, _ = body_of(maker, Message.user("Draw."), foreign, Message.user("More."))
    assert within(body, SHOWN[maker])


@makers
@readers
def test_a_model_that_takes_no_images_is_told_of_it(maker: Wire, reader: Wire) -> None:
    """A reply of an image alone doesn't vanish."""
    if maker is reader and maker in OWN:
        return
    blind = AdapterCapabilities(supports_tools=True, supports_system_prompt=True)
    said = Message.assistant([block for block in made_by(maker) if isinstance(block, ImageBlock)])
    body, warnings = body_of(reader, Message.user("Draw."), said, Message.user("More."), capabilities=blind)
    assert BASE64 not in str(body)
    assert "(image left out: it can't be shown here)" in str(body)
    assert any("takes no images" in warning for warning in warnings)


def test_an_image_beside_a_call_follows_the_calls_result() -> None:
    """Results come directly behind the call."""
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
