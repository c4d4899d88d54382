"""Section 8.3, messages and content: each provider gets them in its own form."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import msgspec
import pytest

from callboard import (
    AudioBlock,
    CapabilityError,
    DocumentBlock,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    TextBlock,
    Tool,
    ToolDefinition,
)
from callboard.adapters.conformance import TOOLS

from ..support.wires.wire import Wire
from .providers import ANTHROPIC, Asked, answering, asking, each_provider, holds
from .recorded import Exchange, exchanges, most_agree, play, recorded
from .rows import row

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\nof a test"
PDF = b"%PDF-1.7 of a test"
WAV = b"RIFF\0\0\0\0WAVEof a test"
ADDRESS = "https://pictures.test/linked.png"


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def image_of(data: bytes) -> dict[str, Json]:
    """The image in the form of each provider."""
    return {
        "openai": {"type": "input_image", "image_url": f"data:image/png;base64,{base64(data)}"},
        "anthropic": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": base64(data)},
        },
        "gemini": {"inlineData": {"mimeType": "image/png", "data": base64(data)}},
    }


LINKED: dict[str, Json] = {
    "openai": {"type": "input_image", "image_url": ADDRESS},
    "anthropic": {"type": "image", "source": {"type": "url", "url": ADDRESS}},
    "gemini": {"fileData": {"mimeType": "image/png", "fileUri": ADDRESS}},
}
WORDS: dict[str, Json] = {
    "openai": {"type": "input_text", "text": "What do you see?"},
    "anthropic": {"type": "text", "text": "What do you see?"},
    "gemini": {"text": "What do you see?"},
}


@each_provider
@row("8.3.1")
@row("8.4.1")
@row("8.4.2")
@row("8.9.1")
async def test_text_is_sent_and_received_unchanged(wire: Wire) -> None:
    """A prompt, and a conversation of several messages in order, arrive with every character."""
    async with asking(wire, wire.whole("Très bien ☃ 🎭"), wire.whole("Да")) as at:
        first = await at.engine.generate(at.model, "Ça va? ☃ 🎭")
        again = await at.engine.generate(at.model, messages=[*first.messages, Message.user("И?")])
        assert (first.text, first.status, first.stop_reason) == ("Très bien ☃ 🎭", "completed", "end_turn")
        assert (first.usage.total_input_tokens, first.usage.output_tokens) == (12, 7)
        assert again.text == "Да"
        sent = str(at.body()[wire.history])
        places = [sent.index(text) for text in ("Ça va? ☃ 🎭", "Très bien ☃ 🎭", "И?")]
        assert places == sorted(places)


@each_provider
@pytest.mark.parametrize(
    "how", [pytest.param("bytes", marks=row("8.9.3")), pytest.param("address", marks=row("8.9.4")), "file"]
)
@row("8.3.2")
@row("8.3.7")
async def test_an_image_is_sent_with_its_text(wire: Wire, how: str, tmp_path: Path) -> None:
    """The image is sent as an address or as bytes. A file is read when the block is made."""
    path = tmp_path / "picture.png"
    path.write_bytes(PNG)
    image = {"bytes": ImageBlock(data=PNG), "address": ImageBlock(url=ADDRESS), "file": ImageBlock.from_path(path)}
    path.unlink()
    async with asking(wire, wire.whole("A dot.")) as at:
        shown = [TextBlock("What do you see?"), image[how], TextBlock("What do you see?")]
        assert (await at.engine.generate(at.model, shown)).text == "A dot."
        (message,) = at.body()[wire.history]
        parts = message.get("content", message.get("parts"))
        picture = LINKED[wire.name] if how == "address" else image_of(PNG)[wire.name]
        wanted = [WORDS[wire.name], picture, WORDS[wire.name]]
        assert [holds(part, want) for part, want in zip(parts, wanted, strict=True)] == [True] * 3


@recorded
@each_provider
@row("8.3.2")
@row("8.3.7")
@row("8.9.3")
async def test_images_are_written_as_another_client_wrote_them(wire: Wire) -> None:
    """Recorded requests with images as bytes and as addresses: Callboard writes the same images and reads the
    replies.
    """
    found = exchanges(
        wire, lambda exchange: exchange.ok and not exchange.streamed and bool(images(exchange.asked))
    )

    async def check(at: Asked, exchange: Exchange) -> None:
        shown = [block for block, _ in images(exchange.asked)]
        response = await at.engine.generate(at.model, [TextBlock("?"), *shown], max_tool_rounds=0)
        assert response.text == exchange.oracle["final_text"]
        for _, part in images(exchange.asked):
            assert holds(at.body(), part), exchange.case["id"]

    await play(wire, found, check)


def images(body: Json) -> list[tuple[ImageBlock, Json]]:
    """The images in a recorded request, each with the part that Callboard's request must have."""
    match body:
        case {"type": "input_image", "image_url": str(url)} | {
            "type": "image",
            "source": {"type": "url", "url": url},
        }:
            return [
                (ImageBlock(url=url), {name: value for name, value in body.items() if name in ("type", "source")})
            ]
        case {"type": "image", "source": {"type": "base64", "data": data, "media_type": kind}}:
            return [(ImageBlock(url=f"data:{kind};base64,{data}"), {"type": "image", "source": body["source"]})]
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}} if kind.startswith("image/"):
            usual = data.replace("-", "+").replace("_", "/")  # the recorded data is in URL-safe base64
            wanted = {"inlineData": {"mimeType": kind, "data": usual}}
            return [(ImageBlock(url=f"data:{kind};base64,{data}"), wanted)]
        case dict():
            return [found for value in body.values() for found in images(value)]
        case list():
            return [found for value in body for found in images(value)]
        case _:
            return []


DOCUMENTS: dict[str, Json] = {
    "openai": {"type": "input_file", "file_data": f"data:application/pdf;base64,{base64(PDF)}"},
    "anthropic": {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
        "data": base64(PDF)}},
    "gemini": {"inlineData": {"mimeType": "application/pdf", "data": base64(PDF)}},
}  # fmt: skip


@each_provider
@row("8.3.3")
async def test_a_document_is_sent(wire: Wire) -> None:
    async with asking(wire, wire.whole("It is short.")) as at:
        await at.engine.generate(at.model, [TextBlock("Well?"), DocumentBlock(data=PDF, name="report.pdf")])
        assert holds(at.body(), DOCUMENTS[wire.name])


@each_provider
@row("8.3.3")
async def test_audio_is_sent_or_refused_before_anything_is_sent(wire: Wire) -> None:
    """Gemini is the only of the three providers that accepts audio."""
    async with asking(wire, wire.whole("A bell.")) as at:
        if wire.name == "gemini":
            await at.engine.generate(at.model, [TextBlock("Well?"), AudioBlock(data=WAV)])
            assert holds(at.body(), {"inlineData": {"mimeType": "audio/wav", "data": base64(WAV)}})
        else:
            with pytest.raises(CapabilityError, match="does not accept audio"):
                await at.engine.generate(at.model, [TextBlock("Well?"), AudioBlock(data=WAV)])
            assert at.transport.requests == []


THINKING = {"type": "thinking", "thinking": "Hm ☃", "signature": ANTHROPIC.secrets[0]}
HIDDEN = {"type": "redacted_thinking", "data": ANTHROPIC.secrets[1]}


@pytest.mark.parametrize("streamed", [False, True])
@row("8.3.5", of="anthropic")
@row("8.3.6", of="anthropic")
@row("8.5.3", of="anthropic")
@row("8.5.4", of="anthropic")
async def test_thinking_is_sent_back_unchanged(streamed: bool) -> None:
    """The text with its signature and the redacted block come before the call that followed them, plain and
    streamed.
    """

    wire = ANTHROPIC
    body = wire.reasoned("Hm ☃", "Let me see.", 1, "tools")
    called = wire.stream_of(*streaming(body)) if streamed else wire._reply_with(body)
    done = wire.streamed("Done.") if streamed else wire.whole("Done.")
    async with asking(wire, called, done) as at:
        session = at.engine.session(at.model, tools=[Tool(TOOLS[0], answering)])
        if streamed:
            async with session.stream("Go", reasoning_effort="high") as turn:
                await turn.message()
        else:
            await session.send("Go", reasoning_effort="high")
        said = at.body()["messages"][1]["content"]
        assert said[:2] == [THINKING, HIDDEN]
        assert [block["type"] for block in said[2:]] == ["text", "tool_use"]


def streaming(body: JsonObject) -> list[bytes]:
    """The body of a reply as stream events. Each block is in one delta, and the signature is a separate delta."""
    events: list[JsonObject] = [{"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}]
    for index, block in enumerate(body["content"]):
        place = {"index": index}
        match block:
            case {"type": "thinking"}:
                start, deltas = (
                    {"type": "thinking", "thinking": "", "signature": ""},
                    [{"type": "thinking_delta", "thinking": block["thinking"]},
                        {"type": "signature_delta", "signature": block["signature"]}],
                )  # fmt: skip
            case {"type": "text"}:
                start, deltas = {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
            case {"type": "tool_use"}:
                start = {**block, "input": {}}
                words = msgspec.json.encode(block["input"]).decode()
                deltas = [{"type": "input_json_delta", "partial_json": words}]
            case _:
                start, deltas = block, []
        events.append({"type": "content_block_start", **place, "content_block": start})
        events += [{"type": "content_block_delta", **place, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", **place})
    end = {"stop_reason": body["stop_reason"]}
    events += [{"type": "message_delta", "delta": end, "usage": body["usage"]}, {"type": "message_stop"}]
    return [ANTHROPIC.write_event(event["type"], event) for event in events]


@recorded
@pytest.mark.parametrize(
    ("kind", "feature"), [("thinking", "thinking"), ("redacted_thinking", "redacted_thinking")]
)
@row("8.3.5", of="anthropic")
@row("8.3.6", of="anthropic")
@row("8.5.4", of="anthropic")
async def test_recorded_thinking_is_sent_back_unchanged(kind: str, feature: str) -> None:
    """The next request of a session with tools has each block of the recorded reply unchanged."""
    found = exchanges(
        ANTHROPIC,
        lambda each: (
            each.ok and not each.streamed and feature in each.features and "server_tools" not in each.tags
        ),
    )

    async def check(exchange: Exchange) -> None:
        came = msgspec.json.decode(exchange.case["response_body"])["content"]
        async with asking(ANTHROPIC, exchange.reply(), ANTHROPIC.whole("Done.")) as at:
            session = at.engine.session(
                f"anthropic:{exchange.asked['model']}", tools=[Tool(ToolDefinition("none"))]
            )
            await session.send("?", reasoning_effort="high")
            await session.send("And?", reasoning_effort="high")
            sent = at.body()["messages"][1]["content"]
        blocks = [[block for block in each if block["type"] == kind] for each in (came, sent)]
        assert blocks[0] == blocks[1] != [], exchange.case["id"]

    await most_agree(found, check)
