"""The gateway's replies to clients of Chat Completions, which Callboard's adapter reads again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from callboard.adapters import CanonicalResponse
from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS, Quirks
from callboard.adapters.providers.openai_compatible.request import build_body
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.requests.content import encode_json
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.chat_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest, ReplyInfo

from ..support.fake_http import FakeReply
from ..support.recordings import CountingClock
from ..support.wires import WIRES
from ..support.wires.reading import read_pieces, read_reply

INFO = ReplyInfo(id="1", model="gpt-5", created=1_700_000_000)
PROVIDER = "openai_compatible"
CHAT = WIRES[2]
ABLE = AdapterCapabilities(
    supports_images=True, supports_audio=True, supports_documents=True, supports_thinking=True,
    supports_tools=True, supports_structured_output=True, supports_parallel_tool_calls=True,
)  # fmt: skip


class Reply(NamedTuple):
    """A reply, and the events of its stream."""

    response: CanonicalResponse
    events: list[StreamEvent]


def asked(**body: Json) -> ClientRequest:
    """A client's request with these fields."""
    given: JsonObject = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], **body}
    return WIRE.read_request(given, {})


def adapters_body(request: CanonicalRequest, quirks: Quirks = QUIRKS["default"]) -> dict[str, Any]:
    """The body that the adapter sends, as JSON."""
    body = build_body(request, quirks, ABLE, PROVIDER, stream=False).body
    decoded: dict[str, Any] = msgspec.json.decode(encode_json(body))
    return decoded


def new_assembler(provider: str = PROVIDER) -> Assembler:
    return Assembler(
        message_id="msg_1", provider=provider, requested_model="gpt-5", clock=CountingClock(),
        estimate_usage=lambda text: TokenUsage(output_tokens=len(text)),
    )  # fmt: skip


def response_of(assembler: Assembler) -> CanonicalResponse:
    assert assembler.stop_reason is not None
    assert assembler.usage is not None
    return CanonicalResponse(
        request_id="req_1", model=assembler.model, provider=assembler.provider, content=assembler.final_content,
        stop_reason=assembler.stop_reason, raw_stop_reason=assembler.raw_stop_reason, usage=assembler.usage,
        provider_details=assembler.details,
    )  # fmt: skip


def reply_from(assembler: Assembler, stop: StopReason, raw: str | None, usage: TokenUsage) -> Reply:
    """The reply of an assembler, with the events of its stream."""
    assembler.finish(stop, raw, usage)
    return Reply(response_of(assembler), assembler.take())


def written(request: ClientRequest, response: CanonicalResponse) -> bytes:
    """The complete reply as bytes."""
    return msgspec.json.encode(WIRE.write_reply(request, INFO, response))


def streamed(request: ClientRequest, reply: Reply) -> list[bytes]:
    """The streamed reply in the pieces of the writer."""
    writer = WIRE.writer(request, INFO)
    return [writer.start(), *map(writer.write, reply.events), writer.finish(reply.response)]


def chunks_of(stream: bytes) -> list[JsonObject]:
    """The data of a stream's events, without the end mark."""
    lines = [line[6:] for line in stream.split(b"\n\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]


def read_body(body: bytes) -> CanonicalResponse:
    """Read a complete reply with the adapter."""
    return read_reply(CHAT, FakeReply(body, headers={"content-type": "application/json"}), streamed=False).reply


def read_stream(pieces: Iterable[bytes]) -> CanonicalResponse:
    """Read a streamed reply with the adapter. Raises the adapter's error."""
    found = read_pieces(CHAT, pieces)
    if found.error is not None:
        raise found.error
    return found.reply


def in_general(content: Sequence[ContentBlock]) -> list[JsonObject]:
    """The content without ids and without data of a provider."""
    blocks: list[JsonObject] = [msgspec.to_builtins(block) for block in content]
    return [{name: block[name] for name in block if name not in ("id", "provider_raw")} for block in blocks]


_PIECES = st.lists(st.text('ab "\\\n☃', min_size=1, max_size=4), min_size=1, max_size=3)
_ARGUMENTS = st.dictionaries(st.text("ab", max_size=2), st.none() | st.text('a"\\☃\n', max_size=5), max_size=2)


@st.composite
def replies(draw: st.DrawFn, tool: str = "read") -> Reply:
    """Replies in the order of the protocol: reasoning, text, calls."""
    assembler = new_assembler("anthropic")
    if draw(st.booleans()):
        for piece in draw(_PIECES):
            assembler.thinking("r", piece, implicit_end=True)
    has_text = draw(st.booleans())
    if has_text:
        for piece in draw(_PIECES):
            assembler.text("t", piece, implicit_end=True)
    calls = draw(st.integers(0 if has_text else 1, 3))
    for at in range(calls):
        assembler.tool_start(at, tool, raw={"id": f"toolu_{at}"})
        arguments = json.dumps(draw(_ARGUMENTS if tool == "read" else st.builds(dict, input=st.text('ü\n"\\😀a'))))
        cut = draw(st.integers(0, len(arguments)))
        for piece in filter(None, (arguments[:cut], arguments[cut:])):
            assembler.tool_arguments(at, piece)
        assembler.end(at)
    counts = draw(st.lists(st.integers(1, 50), min_size=4, max_size=4))
    usage = TokenUsage(
        input_tokens=counts[0], output_tokens=counts[1], cached_input_tokens=counts[2],
        cache_creation_input_tokens=counts[3], reasoning_tokens=counts[1] // 2,
    )  # fmt: skip
    stop = StopReason.TOOL_USE if calls else draw(st.sampled_from([StopReason.END_TURN, StopReason.MAX_TOKENS]))
    return reply_from(assembler, stop, None, usage)
