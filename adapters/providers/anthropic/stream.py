"""Server-sent events of the Messages API, as canonical events.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

with `ping` anywhere, and `error` in place of all remaining events. Other servers deviate: blocks overlap, and
fields or whole events are missing. So blocks are found by index and may start without a start event. A block ends
at its stop event, at the message's end, or when a later block starts. Only `message_stop` completes a reply.
Unknown types are passed on with one warning each.
"""

from __future__ import annotations

import msgspec

from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject

from ...replies.assembler import Assembler
from ...replies.server_sent_events import SseNormaliser
from . import response
from .data import ERROR_CODES
from .response import (
    WireBlock,
    add_signature,
    begin_block,
    begin_message,
    end_block,
    error_in_reply,
    finish,
    keep_container,
    later_usage,
    note_details,
    read_usage,
    token_usage,
    wire_block,
)

_KNOWN_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)
_KNOWN_DELTAS = frozenset(
    {"text_delta", "input_json_delta", "citations_delta", "thinking_delta", "signature_delta"}
)
_MISSING_START: dict[str | None, str] = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}
"""The kind of block for a delta whose block start was not sent."""


class MessagesNormaliser(SseNormaliser):
    error_codes = ERROR_CODES

    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler)
        self._blocks: dict[int | float, WireBlock] = {}  # the open blocks by wire index
        self._index: int | float = 0  # the last started block, for events without an index
        self._keys = 0
        self._usage: JsonObject = {}
        self._output_reported = False
        self._stop_reason: object = None
        self._stop_details: Json = None
        self._container: Json = None
        self._warned: set[str] = set()

    def on_event(self, name: bytes, data: bytes) -> None:
        try:
            event = response.decode_event(data)
        except msgspec.DecodeError:
            if data.strip() == b"[DONE]":
                return  # an event of another protocol, sent by a proxy
            kind = _unknown_kind(data)
            if kind is None:
                raise
            self._on_unknown(kind, data)
            return
        if event.type == "content_block_delta":
            self._on_delta(event, data)
        else:
            self._on_rare_event(event.type or name.decode("utf-8", "replace"), event, data)

    def _on_rare_event(self, kind: str, event: response.Event, data: bytes) -> None:
        match kind:
            case "content_block_start":
                self._on_block_start(event)
            case "content_block_stop":
                state = self._blocks.pop(self._index if event.index is None else event.index, None)
                if state is not None:
                    end_block(self.assembler, state)
            case "message_start":
                self._on_message_start(event)
            case "message_delta":
                self._on_message_delta(event)
            case "message_stop":
                self._on_message_stop()
            case "content_block_delta":  # the type is only in the event's `event:` line
                self._on_delta(event, data)
            case "ping":
                pass
            case _ if kind == "error" or event.error != response.ABSENT:
                raise error_in_reply(response.decode_json(data), self.assembler.provider)
            case _:
                self._on_unknown(kind, data)

    def _on_unknown(
        self, kind: str, data: bytes, code: WarningCode = WarningCode.UNKNOWN_EVENT, place: str = ""
    ) -> None:
        self._warn_once(code, f"{kind}{place}")
        if kind:
            self.assembler.provider_event(kind, response.decode_json(data))

    # --- Messages ---

    def _on_message_start(self, event: response.Event) -> None:
        message = response.decode_reply(event.message) if event.message != response.ABSENT else response.Reply()
        usage = read_usage(message.usage)
        if self._keys:
            self._warn_once(WarningCode.REPEATED_START, "message_start")
            return  # the content has been delivered and can't be retracted
        begin_message(self.assembler, message)
        note_details(self.assembler, message, message)
        self._stop_reason, self._stop_details = message.stop_reason, message.stop_details
        self._container = message.container
        self._usage = usage
        self.assembler.usage = token_usage(usage)
        # some servers send whole blocks in `message_start`, without events for them
        for value in message.content or ():
            state = self._begin(value)
            if state is not None:
                end_block(self.assembler, state)

    def _on_message_delta(self, event: response.Event) -> None:
        usage = read_usage(event.usage)
        if usage:
            self._output_reported = self._output_reported or "output_tokens" in usage
            self._usage = later_usage(self._usage, usage)
            self.assembler.usage = token_usage(self._usage)
        if event.delta is not None:
            if event.delta.stop_reason is not None:
                self._stop_reason = event.delta.stop_reason
            if event.delta.stop_details is not None:
                self._stop_details = event.delta.stop_details
            if event.delta.container is not None:
                self._container = event.delta.container
            note_details(self.assembler, event.delta, event)

    def _on_message_stop(self) -> None:
        for state in self._blocks.values():
            end_block(self.assembler, state)
        self._blocks.clear()
        usage = token_usage(self._usage, final=self._output_reported)
        keep_container(self.assembler, self._container, self._stop_reason)
        finish(self.assembler, self._stop_reason, self._stop_details, usage)
        self.finished = True

    # --- Blocks ---

    def _begin(self, value: Json) -> WireBlock | None:
        state = wire_block(self._keys, value)
        if state is None:
            self._warn_once(WarningCode.UNKNOWN_CONTENT, "a content block without a type")
            return None
        self._keys += 1
        begin_block(self.assembler, state)
        return state

    def _on_block_start(self, event: response.Event) -> None:
        value = response.decode_json(event.content_block)
        index = event.index if event.index is not None else self._index + 1 if self._keys else 0
        former = self._blocks.pop(index, None)
        if former is not None:
            end_block(self.assembler, former)
        state = self._begin(value)
        if state is not None:
            self._index = index
            self._blocks[index] = state

    def _on_delta(self, event: response.Event, data: bytes) -> None:
        delta = event.delta
        if delta is None:
            return
        index = self._index if event.index is None else event.index
        state = self._blocks.get(index)
        if state is None:
            state = self._begin_unannounced(index, delta, data)
            if state is None:
                return
        if delta.type == "text_delta" and state.kind == "text":
            if delta.text is not None:
                self.assembler.text(state.key, delta.text, implicit_end=True)
        elif state.kept_whole:
            self._complete(state, delta, data)
        else:
            self._on_rare_delta(state, delta, data)

    def _begin_unannounced(self, index: int | float, delta: response.Delta, data: bytes) -> WireBlock | None:
        kind = _MISSING_START.get(delta.type)
        if kind is None:
            self._on_unknown(str(delta.type), data, WarningCode.STRAY_DELTA)
            return None
        state = self._begin({"type": kind})
        if state is not None:
            self._index = index
            self._blocks[index] = state
        return state

    def _on_rare_delta(self, state: WireBlock, delta: response.Delta, data: bytes) -> None:
        assembler = self.assembler
        match delta.type, state.kind:
            case "input_json_delta", "tool_use":
                assembler.tool_arguments(state.key, delta.partial_json or "")
            case "thinking_delta", "thinking":
                assembler.thinking(state.key, delta.thinking or "", implicit_end=True)
            case "signature_delta", "thinking":
                add_signature(assembler, state, delta.signature or "")
            case "citations_delta", "text":
                _cite(state, delta.citation)
                assembler.provider_event(
                    response.CITATION, {"block": assembler.place(state.key), "citation": delta.citation}
                )
            case "text_delta" | "thinking_delta", _:  # these deltas are emitted even in a block of another kind
                self._warn_once(WarningCode.MISPLACED_DELTA, f"{delta.type} in {state.kind}")
                if delta.text:
                    assembler.text(("stray text", state.key), delta.text, implicit_end=True)
                if delta.thinking:
                    assembler.thinking(("stray thinking", state.key), delta.thinking, implicit_end=True)
            case _:
                self._on_unknown(str(delta.type), data, WarningCode.UNKNOWN_DELTA, f" in {state.kind}")

    def _complete(self, state: WireBlock, delta: response.Delta, data: bytes) -> None:
        """Add a delta to a block that is kept unchanged: strings and lists grow, and other values are replaced."""
        if delta.type == "input_json_delta":
            state.input_json.append(delta.partial_json or "")
            return
        if delta.type == "citations_delta":
            _cite(state, delta.citation)
            return
        fields = response.decode_block_delta(data).delta
        for name, value in fields.items() if isinstance(fields, dict) else ():
            match state.block.get(name), value:
                case _, None:
                    pass
                case str(before), str(more) if name != "type":
                    state.block[name] = before + more
                case list(before), list(more):
                    state.block[name] = before + more
                case _ if name != "type":
                    state.block[name] = value

    def _warn_once(self, code: WarningCode, what: str) -> None:
        """Warn once about each kind of unexpected data, so that a long stream can't fill the warnings."""
        if what not in self._warned and len(self._warned) < 20:
            self._warned.add(what)
            self.assembler.warn(code, f"the provider sent {what[:100]}, which is unknown")


def _cite(state: WireBlock, citation: Json) -> None:
    if citation is None:
        return
    citations = state.block.get("citations")
    if isinstance(citations, list):
        citations.append(citation)
    else:
        state.block["citations"] = [citation]


def _unknown_kind(data: bytes) -> str | None:
    """The unknown type of an event that can't be decoded, or of its delta; None if both types are known."""
    event = response.decode_event_type(data)
    if not isinstance(event.type, str) or event.type not in _KNOWN_EVENTS:
        return str(event.type)
    kind = event.delta.get("type") if isinstance(event.delta, dict) else None
    if event.type != "content_block_delta" or not isinstance(kind, str) or kind in _KNOWN_DELTAS:
        return None
    return kind
