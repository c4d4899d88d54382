"""An adapter of a minimal protocol with all features, for the conformance kit's scripted network."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.conformance.http_kit import HANG, FakeReply, FakeTransport, Step, failing, pieces
from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.errors import build_error, read_error_value
from callboard.adapters.http.wire import ChatWire
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.server_sent_events import SseNormaliser
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage

__all__ = [
    "CALL", "CALL_OVER", "DONE", "EVERYTHING", "HALF", "HANG", "HELLO", "MORE", "REST", "SIGNED", "TEXT",
    "THOUGHT", "THOUGHT_OVER", "USAGE", "WANTS_TOOL", "FakeReply", "FakeTransport", "Step", "ToyAdapter",
    "ToyWire", "ask", "failing", "pieces", "request", "sse", "understand", "whole",
]  # fmt: skip


class _ToyNormaliser(SseNormaliser):
    def on_event(self, name: bytes, data: bytes) -> None:
        self.finished = understand(msgspec.json.decode(data), self.assembler)


def understand(event: JsonObject, assembler: Assembler) -> bool:
    """Process one event of the toy protocol. Returns True at the end of the reply."""
    key = event.get("key", 0)
    match event["is"]:
        case "text":
            assembler.text(key, event["say"], implicit_end=True)
        case "thinking":
            assembler.thinking(key, event["say"])
        case "signature":
            assembler.signature(key, event["say"])
        case "tool":
            assembler.tool_start(key, event["name"], raw={"id": event["id"]})
        case "arguments":
            assembler.tool_arguments(key, event["say"])
        case "end":
            assembler.end(key)
        case "usage":
            assembler.usage = TokenUsage(event["input"], event["output"])
        case "error":
            raise build_error(read_error_value(event), provider="toy")
        case "done":
            assembler.finish(StopReason(event["stop"]), event["stop"])
            return True
    return False


class ToyWire(ChatWire):
    """A toy protocol: server-sent events of JSON with their kind in `is`. A plain reply is the list of the
    events.
    """

    default_name = "toy"
    default_base_url = "https://toy.test"
    capabilities = AdapterCapabilities(supports_tools=True)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        said = [message.text for message in request.messages]
        return WireCall("/v1/talk", msgspec.json.encode({"said": said, "stream": stream}))

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        for event in msgspec.json.decode(body, type=list[dict[str, Json]]):
            understand(event, assembler)

    def normaliser(self, assembler: Assembler) -> SseNormaliser:
        return _ToyNormaliser(assembler)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"x-api-key": key}


class ToyAdapter(HttpAdapter):
    """The adapter for the toy protocol."""

    wire_type = ToyWire


def sse(*events: JsonObject) -> bytes:
    """Events in the format of a streamed body."""
    return b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)


def whole(*events: JsonObject) -> FakeReply:
    """A reply that is not streamed."""
    return FakeReply(msgspec.json.encode(events), headers={"content-type": "application/json"})


TEXT = {"is": "text", "key": 0, "say": "Hel"}
MORE = {"is": "text", "key": 0, "say": "lo ☃"}
THOUGHT = {"is": "thinking", "key": "t", "say": "Let me see"}
SIGNED = {"is": "signature", "key": "t", "say": "c2ln"}
THOUGHT_OVER = {"is": "end", "key": "t"}
CALL = {"is": "tool", "key": 1, "name": "read_file", "id": "wire_1"}
HALF = {"is": "arguments", "key": 1, "say": '{"path": '}
REST = {"is": "arguments", "key": 1, "say": '"a.txt"}'}
CALL_OVER = {"is": "end", "key": 1}
USAGE = {"is": "usage", "input": 12, "output": 7}
DONE = {"is": "done", "stop": "end_turn"}
WANTS_TOOL = {"is": "done", "stop": "tool_use"}
HELLO = (TEXT, MORE, USAGE, DONE)
EVERYTHING = (THOUGHT, SIGNED, THOUGHT_OVER, TEXT, MORE, CALL, HALF, REST, CALL_OVER, USAGE, WANTS_TOOL)


def ask(*messages: Message, **changes: object) -> CanonicalRequest:
    """A request with these messages."""
    return request(**({"messages": messages} if messages else {}), **changes)


def request(**changes: object) -> CanonicalRequest:
    """A request to the toy model, which any adapter accepts."""
    fields: dict[str, object] = {
        "request_id": "req_1", "messages": (Message.user("Hello"),), "model": "toy:one", "max_output_tokens": 64,
        **changes,
    }  # fmt: skip
    return CanonicalRequest(**fields)  # type: ignore[arg-type]
