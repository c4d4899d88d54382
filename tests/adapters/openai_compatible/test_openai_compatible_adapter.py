"""What of a reply differs from server to server: who can stream, and what."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import ToolDefinition

from ...support.fake_http import FakeReply, FakeTransport
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wires.chat import DONE, STOP, ask, body, chunk, reply

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


def made(*replies: FakeReply, **config: object) -> OpenAICompatibleAdapter:
    fields: dict[str, object] = {"base_url": "http://127.0.0.1:9", **config}
    return OpenAICompatibleAdapter(
        AdapterConfig(**fields),  # type: ignore[arg-type]
        transport=FakeTransport(*replies),
        clock=FakeClock(),
    )


def whole(value: JsonObject, **headers: str) -> FakeReply:
    return FakeReply(msgspec.json.encode(value), headers={**JSON, **headers})


@pytest.mark.parametrize(
    ("streams", "tools", "whole_pieces"),
    [("always", 1, False), ("without tools", 0, False), ("without tools", 1, True), ("never", 0, True)],
)
async def test_what_a_server_can_not_stream_comes_in_whole_pieces(
    streams: str, tools: int, whole_pieces: bool
) -> None:
    """The plain call is made, and its reply has the same events as a stream's."""
    streamed = FakeReply(body([chunk(content="Hi"), STOP, DONE]))
    adapter = made(
        whole(reply(content="Hi")) if whole_pieces else streamed, options={"quirks": {"streams": streams}}
    )
    request = ask(tools=(ToolDefinition("look"),) * tools)
    stream = adapter.stream(request)
    events = [event async for event in stream]
    check_stream(events)
    assert [event.type for event in events] == ["message.start", "text.delta", "message.complete"]
    assert stream.response is not None
    assert stream.response.text == "Hi"
    assert isinstance(adapter.client.transport, FakeTransport)
    asked = msgspec.json.decode(adapter.client.transport.requests[0].body)
    assert asked.get("stream", False) is not whole_pieces
    can = adapter.capabilities
    assert can.supports_streaming is (streams != "never")
    assert can.supports_streaming_tool_calls is (streams == "always")
