"""Events of the Responses API for an assembler, and background responses.

An event's kind and `output_index` identify its item. The index comes first, because some servers change ids from
event to event. If the index is missing or shared, `item_id` is used, and at a call's end `call_id`. If nothing
matches, the event belongs to the last open item of the kind. Blocks keep the order of the items. An announced item
without content emits nothing, so that an attempt without content can be retried. Events of later items wait for
`_head`, the first such item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from callboard.bus.errors import AdapterError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import TokenUsage

from ...contract import CanonicalRequest
from ...operations.wires import BackgroundStatus
from ...replies.assembler import Assembler
from ...replies.server_sent_events import SseDecoder, SseNormaliser
from ...requests.history_target import WireCall, get
from ...requests.settings import joined_options
from .data import CODES, OPTIONS, Quirks, error_in_reply
from .response import CUSTOM, TOOL_CALLS, OutputItem, Reply, custom_arguments
from .wire import (
    Event,
    Item,
    Part,
    Response,
    as_arguments,
    decode_event,
    is_present,
    read,
    read_or_default,
    read_usage,
)

Step: TypeAlias = Callable[[OutputItem, Event], None]


class ResponsesNormaliser(SseNormaliser):
    error_codes = CODES

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler)
        self._quirks = quirks
        self._reply = Reply(assembler, quirks)
        # Valid until an item starts or ends.
        self._latest: tuple[str, int | None, str | None, OutputItem] | None = None
        self._head = 0
        self._waiting: dict[int, list[tuple[Step, Event]]] = {}

    def on_event(self, name: bytes, data: bytes) -> None:
        try:
            event = decode_event(data)
        except msgspec.ValidationError:
            event = read(Event, data)
        except msgspec.DecodeError:
            if data.strip() == b"[DONE]":
                self.on_end()
                return
            raise
        kind = event.type
        delta = _DELTAS.get(kind) if kind is not None else None
        if delta is not None:
            self._apply(self._find(event, delta[0]), delta[1], event)
        else:
            self._on_other(kind or name.decode("utf-8", "replace"), event, data)

    def _on_other(self, kind: str, event: Event, data: bytes) -> None:
        match kind:
            case "response.output_item.added":
                self._on_added(event)
            case "response.output_item.done":
                self._on_done(event)
            case "response.content_part.done":
                part, place = read_or_default(Part, event.part), event.content_index or 0
                if part.type in ("output_text", "refusal"):
                    item = self._find(event, "message")
                    self._apply(item, lambda item, _: item.part_done(place, part), event)
            case "response.created" | "response.in_progress" | "response.queued":
                self._reply.begin(read_or_default(Response, event.response))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._on_terminal(kind.removeprefix("response."), event)
            case "error":
                raise error_in_reply(msgspec.json.decode(data), self.assembler.provider)
            case _ if event.type is None and is_present(event.error):
                raise error_in_reply(msgspec.json.decode(data), self.assembler.provider)
            case _ if event.type is not None and kind not in _SAID_AGAIN:
                # these events report the progress of items that arrive whole, or are unknown
                self.assembler.provider_event(kind, msgspec.json.decode(data))
            case _:
                pass

    # --- Finding an item ---

    def _find(self, event: Event, kind: str) -> OutputItem:
        index, item_id = event.output_index, event.item_id
        latest = self._latest  # each event has a fresh copy of the id, so a comparison is cheaper than its hash
        if latest is not None and latest[2] == item_id and latest[1] == index and latest[0] == kind:
            return latest[3]
        item = self._at(kind, index, item_id) if index is not None else None
        item = item or self._of_id(kind, item_id)
        if item is None and index is None:
            item = self._last_open(kind)
        item = item or self._add(kind, index, item_id)
        self._latest = kind, index, item_id, item
        return item

    def item_of(self, wire: Item, index: int | None) -> OutputItem:
        """The started item that a whole item completes, or a new item."""
        return self._announced(wire, index) or self._add(wire.type or "unknown", index, wire.id, wire.call_id)

    def _announced(self, wire: Item, index: int | None, *, ended: bool = True) -> OutputItem | None:
        kind = wire.type or "unknown"
        item = self._at(kind, index, wire.id) if index is not None else None
        if item is None or (item.call_id and wire.call_id and item.call_id != wire.call_id):
            same = [each for each in self._of_kind(kind) if wire.call_id and each.call_id == wire.call_id]
            if same and (ended or index is None):
                return same[-1]
        if item is None:
            item = self._of_id(kind, wire.id)
            if item is not None and item.is_done and index is not None:
                item = None
        if item is not None and item.call_id and wire.call_id and item.call_id != wire.call_id:
            return None
        return item

    def _at(self, kind: str, index: int, item_id: str | None) -> OutputItem | None:
        """The item of a kind at an index. If several items share the index, the item with the id is used, or else
        the last open item.
        """
        items = [item for item in self._of_kind(kind) if item.index == index]
        if len(items) < 2:
            return items[0] if items else None
        named = [item for item in items if item_id and item.wire_id == item_id]
        still_open = [item for item in items if not item.is_done]
        return (named or still_open or items)[-1]

    def _of_id(self, kind: str, item_id: str | None) -> OutputItem | None:
        items = self._of_kind(kind) if item_id else []
        return next((item for item in reversed(items) if item.wire_id == item_id), None)

    def _of_kind(self, kind: str) -> list[OutputItem]:
        return [item for item in self._reply.items if item.kind == kind]

    def _last_open(self, kind: str) -> OutputItem | None:
        items = reversed(self._reply.items)
        return next((item for item in items if item.kind == kind and not item.is_done), None)

    def _add(self, kind: str, index: int | None, item_id: str | None, call_id: str | None = None) -> OutputItem:
        self._latest = None
        item = self._reply.add(kind)
        item.index, item.wire_id, item.call_id = index, item_id, call_id
        return item

    # --- Items ---

    def _on_added(self, event: Event) -> None:
        wire = read_or_default(Item, event.item)
        item = self._announced(wire, event.output_index, ended=False)
        if item is None or (item.is_done and not (wire.call_id and item.call_id == wire.call_id)):
            item = self._add(wire.type or "unknown", event.output_index, wire.id, wire.call_id)
        elif not item.is_done:
            item.call_id = item.call_id or wire.call_id
        if item.kind in TOOL_CALLS:
            self._apply(item, _begin_call, event)

    def _on_done(self, event: Event) -> None:
        wire = read_or_default(Item, event.item)
        self._latest = None
        kind = wire.type or "unknown"
        item = self._announced(wire, event.output_index)
        if item is None:
            item = self._last_open(kind)
            if item is not None and not _may_be(item, event, wire):
                item = None
        if item is None:
            item = self._add(kind, event.output_index, wire.id, wire.call_id)
        self._apply(item, _finish_item, event)

    def _apply(self, item: OutputItem, step: Step, event: Event) -> None:
        if item.number > self._head and not self._quirks.late_ends:
            self._advance()
            if item.number > self._head:
                self._waiting.setdefault(item.number, []).append((step, event))
                return
        step(item, event)
        if self._waiting:
            self._advance()

    def _advance(self) -> None:
        """Skip items that have content, and emit the held content of later items."""
        items = self._reply.items
        while self._head < len(items) and items[self._head].placed:
            self._head += 1
            self._release(self._head)

    def _release(self, number: int) -> None:
        for step, event in self._waiting.pop(number, ()):
            step(self._reply.items[number], event)

    # --- The end ---

    def _on_terminal(self, status: str, event: Event) -> None:
        response = read_or_default(Response, event.response)
        response.status = response.status or status
        self._reply.begin(response)
        output = response.output or []
        for number, item in enumerate(self._reply.items):
            self._release(number)
            if not item.is_done:
                self._finish_from(item, output)
        if not self._reply.items:
            for raw in output:
                wire = read_or_default(Item, raw)
                self._reply.add(wire.type or "unknown").done(wire, raw)
        self._reply.finish(response)
        self.finished = True

    def _finish_from(self, item: OutputItem, output: list[msgspec.Raw]) -> None:
        """End an item without an end event, with the copy of the item in the response.

        The copy is found by the item's ids, or by its position if no id matches.
        """
        raw = output[item.number] if len(output) == len(self._reply.items) else msgspec.Raw()
        named = [each for each in output if self._is_named(item, read_or_default(Item, each))]
        if len(named) == 1:
            raw = named[0]
        wire = read_or_default(Item, raw)
        if wire.type == item.kind:
            item.done(wire, raw)
        else:
            item.close()

    @staticmethod
    def _is_named(item: OutputItem, copy: Item) -> bool:
        same_id = item.wire_id is not None and copy.id == item.wire_id
        same_call = item.call_id is not None and copy.call_id == item.call_id
        return copy.type == item.kind and (same_id or same_call)

    def on_end(self) -> None:
        raise StreamError("the stream ended before the response was complete")


def _may_be(item: OutputItem, event: Event, wire: Item) -> bool:
    """Whether a whole item may complete an open item, if index and id don't match exactly."""
    if event.output_index is None and not wire.id:
        return True
    other_call = item.call_id and wire.call_id and item.call_id != wire.call_id
    other_id = item.wire_id and wire.id and item.wire_id != wire.id
    return not other_call and not other_id and item.index is not None and item.placed


def _arguments_done(item: OutputItem, event: Event) -> None:
    item.begin_call(Item(name=event.name))
    item.all_arguments(as_arguments(event.arguments))


def _custom_done(item: OutputItem, event: Event) -> None:
    item.begin_call(Item(name=event.name))
    item.all_arguments(custom_arguments(as_arguments(event.input)))


def _begin_call(item: OutputItem, event: Event) -> None:
    wire = read_or_default(Item, event.item)
    item.begin_call(wire)
    if item.kind != CUSTOM:  # the empty text of the announcement would be taken as the argument
        item.all_arguments(as_arguments(wire.arguments))


def _finish_item(item: OutputItem, event: Event) -> None:
    item.done(read_or_default(Item, event.item), event.item)


_SAID_AGAIN = frozenset(
    {
        "response.content_part.added",
        "response.output_text.done",
        "response.output_text.annotation.added",
        "response.refusal.done",
        "response.reasoning_text.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
    }
)
"""Events that only repeat deltas or whole items."""

_DELTAS: Mapping[str, tuple[str, Step]] = {
    "response.output_text.delta": (
        "message",
        lambda item, event: item.text(event.content_index or 0, event.delta or ""),
    ),
    "response.refusal.delta": (
        "message",
        lambda item, event: item.refusal(event.content_index or 0, event.delta or ""),
    ),
    "response.reasoning_summary_text.delta": (
        "reasoning",
        lambda item, event: item.thinking("summary", event.summary_index or 0, event.delta or ""),
    ),
    "response.reasoning_text.delta": (
        "reasoning",
        lambda item, event: item.thinking("content", event.content_index or 0, event.delta or ""),
    ),
    "response.function_call_arguments.delta": (
        "function_call",
        lambda item, event: item.arguments(event.delta or ""),
    ),
    "response.function_call_arguments.done": ("function_call", _arguments_done),
    "response.custom_tool_call_input.delta": (CUSTOM, lambda item, event: item.custom_input(event.delta or "")),
    "response.custom_tool_call_input.done": (CUSTOM, _custom_done),
}


# --- Background responses ---

_UNDER_WAY = frozenset({"queued", "in_progress"})


class _Head(msgspec.Struct, gc=False):
    sequence_number: int | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


class ResponsesInBackground:
    def __init__(self, provider: str, quirks: Quirks) -> None:
        self._provider = provider
        self._quirks = quirks

    def wanted(self, request: CanonicalRequest) -> bool:
        if request.response_id:
            return True
        if request.wire is not None and request.wire.protocol == OPTIONS:
            return self._quirks.background and request.wire.body.get("background") is True
        if request.background:
            return self._quirks.background
        if OPTIONS not in request.provider_options and self._provider not in request.provider_options:
            return False
        try:
            return joined_options(request, OPTIONS, self._provider).get("background") is True
        except AdapterError:
            return False  # the same error is raised when the request is written

    def attach(self, response_id: str, after: int | None) -> WireCall:
        behind = "" if after is None else f"&starting_after={after}"
        return get(f"{_path(response_id)}?stream=true{behind}")

    def look(self, response_id: str) -> WireCall:
        return get(_path(response_id))

    def cancel(self, response_id: str) -> WireCall:
        return WireCall(f"{_path(response_id)}/cancel", b"")

    def status(self, body: bytes) -> BackgroundStatus:
        response = read(Response, body)
        return BackgroundStatus(response.id or "", response.status not in _UNDER_WAY)

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        response = read(Response, body)
        fees = Reply(assembler, self._quirks).fees
        for raw in response.output or ():
            item = read_or_default(Item, raw)
            fees.note(item.type or "unknown", item)
        counts = fees.counts(response.tool_usage, response.usage)
        return read_usage(response.usage, response.service_tier, fees=counts, tool_usage=response.tool_usage)

    def normaliser(self, assembler: Assembler) -> NumberedResponses:
        return NumberedResponses(assembler, self._quirks)


class NumberedResponses(ResponsesNormaliser):
    """Reads one reply over any number of connections; see `NumberedNormaliser`."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler, quirks)
        self.response_id = ""
        self.number: int | None = None
        self.announced = False

    def is_repeated(self, data: bytes) -> bool:
        number = _number_of(data)
        return number is not None and self.number is not None and number <= self.number

    def on_event(self, name: bytes, data: bytes) -> None:
        number = _number_of(data)
        if number is not None and self.number is not None and number <= self.number:
            return
        try:
            super().on_event(name, data)
        except AdapterError:
            self.announced = True
            raise
        finally:
            self.response_id = self.response_id or self.assembler.response_id or ""
        if number is not None:
            self.number = number

    def close(self) -> list[StreamEvent]:
        if not self.finished and self.error is None:  # an incomplete event is dropped
            self.error = StreamError("the stream ended before the response was complete")
        return self.assembler.take()

    def reopen(self) -> None:
        self._decoder = SseDecoder()
        self.error = None

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        response = read(Response, body)
        if self.assembler.raw is not None:
            self.assembler.raw.body(body)
        self._reply.begin(response)
        for index, raw in enumerate(response.output or ()):
            wire = read_or_default(Item, raw)
            item = self.item_of(wire, index)
            self._release(item.number)
            item.done(wire, raw)
        try:
            self._reply.finish(response)
        except AdapterError:
            self.announced = True
            raise
        self.finished = True
        return self.assembler.take()


def _number_of(data: bytes) -> int | None:
    try:
        return _decode_head(data).sequence_number
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _path(response_id: str) -> str:
    return f"/v1/responses/{quote(response_id, safe='')}"
