"""An adapter for Parley, a provider that does not exist: the worked example of docs/adding-a-provider.md.

A request has turns of the user, the model and the tools. A reply has parts; a streamed reply has server-sent
events whose kind is in the field `on`. The wire only translates. HttpAdapter waits, retries, cancels and counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from callboard import (
    AdapterCapabilities,
    CallWarning,
    CanonicalRequest,
    Json,
    JsonObject,
    Message,
    OverloadedError,
    QuotaExceededError,
    Role,
    StopReason,
    TextBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    WarningCode,
)
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.errors import build_error, read_error_value
from callboard.adapters.http.wire import ChatWire
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.server_sent_events import SseNormaliser
from callboard.adapters.requests.history import fit_history
from callboard.adapters.requests.history_target import FittedHistory, Target, ToolIdRule, WireCall
from callboard.adapters.requests.settings import check_demands, merge_own_options

ERROR_CODES = {"too_busy": OverloadedError, "out_of_credit": QuotaExceededError}
STOPS = {"done": StopReason.END_TURN, "asks": StopReason.TOOL_USE, "limit": StopReason.MAX_TOKENS}


class Tokens(msgspec.Struct):
    """The tokens of a reply. Parley includes the cached tokens in `in`, so they are subtracted: Callboard's counts
    are disjoint.
    """

    out: int
    taken: int = msgspec.field(name="in")
    cached: int = 0

    def usage(self) -> TokenUsage:
        return TokenUsage(max(self.taken - self.cached, 0), self.out, cached_input_tokens=self.cached)


class Event(msgspec.Struct):
    """An event of a stream, or a part of a complete reply. Its fields depend on `on`."""

    on: str
    text: str = ""
    ref: str = ""
    tool: str = ""
    json: str = ""
    id: str = ""
    model: str = ""
    why: str = ""
    tokens: Tokens | None = None
    fault: Json = None


class Reply(msgspec.Struct):
    """A complete reply."""

    id: str
    model: str
    parts: list[Event]
    why: str
    tokens: Tokens | None = None


def understand(event: Event, assembler: Assembler) -> bool:
    """Process one event. Returns True at the end of the reply. Unknown kinds of events are ignored."""
    match event.on:
        case "open":
            assembler.response_id, assembler.model = event.id, event.model or assembler.model
        case "text":
            assembler.text("text", event.text, implicit_end=True)
        case "ask":
            assembler.tool_start(event.ref, event.tool, raw={"id": event.ref}, implicit_end=True)
        case "with":
            assembler.tool_arguments(event.ref, event.json)
        case "close":
            usage = event.tokens.usage() if event.tokens is not None else None
            assembler.finish(STOPS.get(event.why, StopReason.PROVIDER_SPECIFIC), event.why, usage)
            return True
        case "fault":
            raise build_error(read_error_value(event.fault), codes=ERROR_CODES, provider=assembler.provider)
    return False


class ParleyNormaliser(SseNormaliser):
    """Reads a streamed reply. A stream without `close` ends with an error, which the base class raises."""

    def on_event(self, name: bytes, data: bytes) -> None:
        self.finished = understand(msgspec.json.decode(data, type=Event), self.assembler)


class ParleyWire(ChatWire):
    """The protocol of Parley."""

    default_name = "parley"
    default_base_url = "https://api.parley.example"
    error_codes = ERROR_CODES
    capabilities = AdapterCapabilities(
        supports_tools=True, supports_streaming_tool_calls=True, supports_parallel_tool_calls=True
    )

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {"x-parley-key": key} if key else {}

    def normaliser(self, assembler: Assembler) -> ParleyNormaliser:
        return ParleyNormaliser(assembler)

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        reply = msgspec.json.decode(body, type=Reply)
        understand(Event("open", id=reply.id, model=reply.model), assembler)
        for part in reply.parts:
            understand(part, assembler)
            if part.on == "ask":
                understand(Event("with", ref=part.ref, json=part.json), assembler)
        understand(Event("close", why=reply.why, tokens=reply.tokens), assembler)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        check_demands(request, self.capabilities, self.name)
        ids = ToolIdRule(max_length=40)
        history = fit_history(request, Target(provider=self.name, tool_ids=ids, accepts_images=False))
        history.log()
        body: JsonObject = {
            "model": request.wire_model,
            "limit": request.max_output_tokens,
            "live": stream,
            "turns": [write_turn(message, history) for message in history.messages],
        }
        if history.system:
            body["system"] = history.system
        if request.tools:
            body["tools"] = [
                {"tool": tool.name, "about": tool.description, "takes": tool.input_schema}
                for tool in request.tools
            ]
        if request.tool_choice is not None:
            body["choice"] = request.tool_choice.tool_name or request.tool_choice.mode
        merge_own_options(body, request, "parley", self.name, protected={"model", "live"})
        dropped = [name for name in ("temperature", "top_p", "seed") if getattr(request, name) is not None]
        warnings = [
            CallWarning(WarningCode.PARAMETER_DROPPED, f"{name} was not sent: Parley has none") for name in dropped
        ]
        all_warnings = (*history.warnings, *warnings)
        return WireCall("/v1/parley", msgspec.json.encode(body), warnings=all_warnings, losses=history.losses)


class ParleyAdapter(HttpAdapter):
    """The adapter for Parley."""

    wire_type = ParleyWire


def write_turn(message: Message, history: FittedHistory) -> JsonObject:
    """One message of the fitted history."""
    if message.role is Role.TOOL:
        return {"by": "tools", "answers": list(write_answers(message, history))}
    turn: JsonObject = {"by": "model" if message.role is Role.ASSISTANT else "user"}
    turn["text"] = "".join(block.text for block in message.content if isinstance(block, TextBlock))
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    if calls:
        turn["asks"] = [
            {"ref": history.tool_ids[call.id], "tool": call.name, "with": call.input} for call in calls
        ]
    return turn


def write_answers(message: Message, history: FittedHistory) -> Iterator[JsonObject]:
    """The tool results of one round."""
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            yield {"ref": history.tool_ids[block.tool_use_id], "text": block.text, "failed": block.is_error}
