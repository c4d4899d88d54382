"""From the Responses API's events to an assembler's.

Which item an event is about is said by `output_index`; where a server leaves that out, by `item_id` (which some
servers change from event to event, so it comes second); where neither helps, it is the last item that began.

Blocks keep the order of the items, not that of their first deltas. An item that was announced but has shown
nothing takes no place in the assembler yet, because a place would be an event, and an attempt that fails before
its first content can be repeated. So events of later items wait until every earlier item has shown something or is
over: `_head` is the first item that has done neither. At the end of the reply nothing waits any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.normaliser import SseNormaliser
from callboard.bus.errors import StreamError

from ..errors import error_in_reply
from ..quirks import Quirks
from .response import CUSTOM, TOOL_CALLS, OutputItem, Reply, custom_arguments
from .wire import (
    Event,
    Item,
    Part,
    Response,
    as_arguments,
    decode_event,
    elements,
    is_present,
    read,
    read_or_default,
)

Step: TypeAlias = Callable[[OutputItem, Event], None]


class ResponsesNormaliser(SseNormaliser):
    """Reads one streamed reply."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler)
        self._quirks = quirks
        self._reply = Reply(assembler, quirks)
        self._by_index: dict[int, OutputItem] = {}
        self._by_id: dict[str, OutputItem] = {}
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
        known = _DELTAS.get(kind) if kind is not None else None
        if known is not None:
            self._apply(self._find(event, known[0]), known[1], event)
        else:
            self._on_other(kind or name.decode("utf-8", "replace"), event, data)

    def _on_other(self, kind: str, event: Event, data: bytes) -> None:
        match kind:
            case "response.output_item.added":
                self._on_added(event)
            case "response.output_item.done":
                self._on_done(event)
            case "response.content_part.done":
                if read_or_default(Part, event.part).type in ("output_text", "refusal"):
                    self._apply(self._find(event, "message"), _part_done, event)
            case "response.created" | "response.in_progress" | "response.queued":
                self._reply.begin(read_or_default(Response, event.response))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._on_terminal(kind.removeprefix("response."), event)
            case "error":
                raise error_in_reply(msgspec.json.decode(data), self.assembler.provider)
            case _ if event.type is None and is_present(event.error):
                raise error_in_reply(msgspec.json.decode(data), self.assembler.provider)
            case _ if event.type is not None and kind not in _SAID_AGAIN:
                # progress of items that arrive whole, and what is not invented yet
                self.assembler.provider_event(kind, msgspec.json.decode(data))
            case _:
                pass

    # -- which item

    def _find(self, event: Event, kind: str) -> OutputItem:
        item: OutputItem | None = None
        if event.output_index is not None:
            item = self._by_index.get(event.output_index)
        elif event.item_id is not None and event.item_id in self._by_id:
            item = self._by_id[event.item_id]
        else:
            item = self._last_open(kind)
        if item is None or item.kind != kind:
            item = self._add(kind, event.output_index, event.item_id)
        return item

    def _last_open(self, kind: str) -> OutputItem | None:
        items = reversed(self._reply.items)
        return next((item for item in items if item.kind == kind and not item.is_done), None)

    def _add(self, kind: str, index: int | None, item_id: str | None) -> OutputItem:
        item = self._reply.add(kind)
        if index is not None:
            self._by_index[index] = item
        if item_id:
            self._by_id[item_id] = item
        return item

    def _announced(self, event: Event, wire: Item) -> OutputItem | None:
        """The item that an event with a whole item is about, if it began already."""
        kind = wire.type or "unknown"
        if event.output_index is not None:
            item = self._by_index.get(event.output_index)
        elif wire.id and wire.id in self._by_id:
            item = self._by_id[wire.id]
        else:
            item = self._last_open(kind)
        return item if item is not None and item.kind == kind else None

    # -- items

    def _on_added(self, event: Event) -> None:
        wire = read_or_default(Item, event.item)
        item = self._announced(event, wire) if event.output_index is not None or wire.id in self._by_id else None
        if item is None or item.is_done:
            item = self._add(wire.type or "unknown", event.output_index, wire.id)
        if item.kind in TOOL_CALLS:
            self._apply(item, _begin_call, event)

    def _on_done(self, event: Event) -> None:
        wire = read_or_default(Item, event.item)
        item = self._announced(event, wire)
        if item is None:
            item = self._add(wire.type or "unknown", event.output_index, wire.id)
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
        """Move on from items that have shown something, and let those that come next do what they waited with."""
        items = self._reply.items
        while self._head < len(items) and items[self._head].placed:
            self._head += 1
            self._release(self._head)

    def _release(self, number: int) -> None:
        for step, event in self._waiting.pop(number, ()):
            step(self._reply.items[number], event)

    # -- the end

    def _on_terminal(self, status: str, event: Event) -> None:
        response = read_or_default(Response, event.response)
        response.status = response.status or status
        self._reply.begin(response)
        output = elements(response.output)
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
        """End an item whose own end never came, with the response's copy of it if there is one in its place."""
        raw = output[item.number] if len(output) == len(self._reply.items) else msgspec.Raw()
        wire = read_or_default(Item, raw)
        if wire.type == item.kind:
            item.done(wire, raw)
        else:
            item.close()

    def on_end(self) -> None:
        raise StreamError("the stream ended before the response was complete")


def _text_delta(item: OutputItem, event: Event) -> None:
    item.text(event.content_index or 0, event.delta or "")


def _refusal_delta(item: OutputItem, event: Event) -> None:
    item.refusal(event.content_index or 0, event.delta or "")


def _reasoning_delta(item: OutputItem, event: Event) -> None:
    item.thinking("content", event.content_index or 0, event.delta or "")


def _summary_delta(item: OutputItem, event: Event) -> None:
    item.thinking("summary", event.summary_index or 0, event.delta or "")


def _arguments_delta(item: OutputItem, event: Event) -> None:
    item.arguments(event.delta or "")


def _arguments_done(item: OutputItem, event: Event) -> None:
    item.begin_call(Item(name=event.name))
    item.all_arguments(as_arguments(event.arguments))


def _custom_delta(item: OutputItem, event: Event) -> None:
    item.custom_input(event.delta or "")


def _custom_done(item: OutputItem, event: Event) -> None:
    item.begin_call(Item(name=event.name))
    item.all_arguments(custom_arguments(as_arguments(event.input)))


def _part_done(item: OutputItem, event: Event) -> None:
    item.part_done(event.content_index or 0, read_or_default(Part, event.part))


def _begin_call(item: OutputItem, event: Event) -> None:
    wire = read_or_default(Item, event.item)
    item.begin_call(wire)
    if item.kind != CUSTOM:  # which is announced with empty text, and that would already be an argument
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
"""Events that say what deltas and whole items say as well."""

_DELTAS: Mapping[str, tuple[str, Step]] = {
    "response.output_text.delta": ("message", _text_delta),
    "response.refusal.delta": ("message", _refusal_delta),
    "response.reasoning_summary_text.delta": ("reasoning", _summary_delta),
    "response.reasoning_text.delta": ("reasoning", _reasoning_delta),
    "response.function_call_arguments.delta": ("function_call", _arguments_delta),
    "response.function_call_arguments.done": ("function_call", _arguments_done),
    "response.custom_tool_call_input.delta": (CUSTOM, _custom_delta),
    "response.custom_tool_call_input.done": (CUSTOM, _custom_done),
}
