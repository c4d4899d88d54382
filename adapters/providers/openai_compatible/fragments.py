"""Fragments of a streamed reply: tool calls, reasoning in tags, and searches.

A call starts with a new index, or with a new id and a name. A later id without a name is ignored. Names are never
joined. A fragment without an index belongs to the call with the fragment's id, or to the last call if no id
matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage

from ...replies.assembler import Assembler
from ...replies.block import overlap, parse_object
from ...requests.settings import CUSTOM, INPUT
from .wire import WireFunction, WireMessage, WireToolCall


@dataclass(slots=True)
class _Call:
    """A tool call in progress. It is started in the assembler when it has a name."""

    key: int
    index: int | None
    id: str = ""
    name: str = ""
    extra: Json = None
    size: int = 0  # the number of received characters of the arguments
    waiting: list[str] = field(default_factory=list)  # arguments before the name
    batch: int = -1  # the number of the delta in which the call started
    free_form: bool = False


class ToolCalls:
    """Reads the calls of one reply into the assembler. Call `read()` for each piece, and `complete()` at the
    end.
    """

    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._batch = 0

    def read(self, message: WireMessage) -> None:
        self._batch += 1
        calls = message.tool_calls or []
        if isinstance(calls, WireToolCall):
            calls = [calls]
        for position, fragment in enumerate(calls):
            if fragment is not None:
                self._fragment(fragment, position if len(calls) > 1 else None)
        legacy = message.function_call
        if legacy is not None and (legacy.name or (legacy.arguments and -1 in self._by_index)):
            self._fragment(WireToolCall(index=-1, function=legacy), None)

    def complete(self) -> None:
        for call in self._calls:
            if call.free_form:
                self._arguments(call, _TAIL if call.size else _HEAD + _TAIL)
            if not call.name:
                self.assembler.warn(
                    WarningCode.NAMELESS_TOOL_CALL,
                    f"a tool call without a name was dropped ({call.id or call.key})",
                )

    def _fragment(self, fragment: WireToolCall, position: int | None) -> None:
        function, custom = fragment.function, fragment.custom
        if custom is not None and function is not None and not (custom.name or custom.input):
            custom = None  # Snowflake sends the fields of all kinds, and only one is not empty
        if custom is not None:
            function = WireFunction(custom.name)
        name = function.name if function is not None and isinstance(function.name, str) else ""
        arguments = _fragment_text(function.arguments) if function is not None else ""
        wire_id = _id_text(fragment.id)
        index = _index(fragment.index)
        call = self._find(index, wire_id, name, position)
        if call is None:
            call = _Call(len(self._calls), index, batch=self._batch)
            self._calls.append(call)
            if index is not None:
                self._by_index[index] = call
        late = (wire_id and not call.id) or (fragment.extra_content and call.extra is None)
        if late:
            call.id = call.id or wire_id
            call.extra = call.extra or fragment.extra_content
        if custom is not None:
            call.free_form = True
            arguments = self._free_form(call, _fragment_text(custom.input))
        if name and not call.name:
            self._begin(call, name)
        elif late:
            self.assembler.block_raw(call.key, _call_raw(call))
        if arguments:
            self._arguments(call, arguments)

    def _free_form(self, call: _Call, text: str) -> str:
        """Read a piece of the text that is the only argument of a free-form call."""
        if not text:
            return ""
        return (_HEAD if not call.size else "") + msgspec.json.encode(text).decode()[1:-1]

    def _find(self, index: int | None, wire_id: str, name: str, position: int | None) -> _Call | None:
        """The call that a fragment continues; None if the fragment starts a call."""
        call = self._by_id(wire_id, index, name)
        if call is not None:
            return call
        if index is not None:
            current = self._by_index.get(index)
        elif name or position is None or position >= len(self._calls):
            current = self._calls[-1] if self._calls else None
        else:
            current = self._calls[position]
        if current is None or not name or not current.name:
            return current
        if wire_id:
            # a call may get its id late; but if the call already has arguments or another id, this is a new call
            late = not current.id and not current.size and self._may_be(current, name)
            return current if late else None
        return None if self._is_another(current, name) else current

    def _by_id(self, wire_id: str, index: int | None, name: str) -> _Call | None:
        if not wire_id:
            return None
        for call in reversed(self._calls):
            if call.id == wire_id and index in (None, call.index) and self._may_be(call, name):
                return call
        return None

    def _may_be(self, call: _Call, name: str) -> bool:
        """Whether a fragment with a name can belong to a call: the call has no name yet, or the same name came in
        an earlier delta.
        """
        return not name or not call.name or (name == call.name and call.batch != self._batch)

    def _is_another(self, current: _Call, name: str) -> bool:
        """Whether a name without an id starts a new call, or repeats the current one."""
        if not self._may_be(current, name):
            return True
        if self.assembler.resends_arguments(current.key):
            return False
        return current.size > 0 and parse_object(self.assembler.block_text(current.key)) is not None

    def _begin(self, call: _Call, name: str) -> None:
        call.name = name
        self.assembler.tool_start(call.key, name, raw=_call_raw(call), implicit_end=True)
        waiting, call.waiting = call.waiting, []
        for text in waiting:
            self.assembler.tool_arguments(call.key, text)

    def _arguments(self, call: _Call, text: str) -> None:
        if not call.name:
            call.waiting.append(text)
        else:
            self.assembler.tool_arguments(call.key, text)
        call.size += len(text)


_HEAD, _TAIL = f'{{"{INPUT}":"', '"}'


def _call_raw(call: _Call) -> JsonObject:
    raw: JsonObject = {"id": call.id}
    if call.free_form:
        raw["type"] = CUSTOM
    if call.extra:
        raw["extra_content"] = call.extra
    return raw


def _fragment_text(arguments: Json) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def _id_text(value: Json) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _index(value: Json) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return (
        int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 6 else None
    )


# --- Reasoning in tags ---


class ThinkTags:
    """Finds ``<think>…</think>`` at the start of streamed text.

    `feed()` and `flush()` return pairs: whether a text is reasoning, and the text. Text that may be the start of a
    tag is held back. Tags after the start of the reply are ordinary text.

    Args:
        opened: Whether the reply starts inside the tags.
    """

    _OPEN = "<think>"
    _CLOSE = "</think>"

    def __init__(self, *, opened: bool) -> None:
        self._undecided = ""
        self._opened = opened
        self._state = "start"

    def feed(self, text: str) -> list[tuple[bool, str]]:
        if self._state == "text":
            return [(False, text)]
        return list(self._read(self._undecided + text))

    def flush(self) -> list[tuple[bool, str]]:
        """The held text, at the end of the reply."""
        undecided, self._undecided = self._undecided, ""
        thinking = self._state == "thinking" or (self._state == "start" and self._opened)
        return [(thinking, undecided)] if undecided and self._state != "gap" else []

    def _read(self, text: str) -> Iterator[tuple[bool, str]]:
        self._undecided = ""
        if self._state == "start":
            start = text.lstrip()
            if len(start) < len(self._OPEN) and self._OPEN.startswith(start):
                self._undecided = text
                return
            inside = start.startswith(self._OPEN)
            self._state = "thinking" if inside or self._opened else "text"
            text = start[len(self._OPEN) :] if inside else text
        if self._state == "thinking":
            thought, found, rest = text.partition(self._CLOSE)
            if not found:
                cut = overlap(text, self._CLOSE)
                self._undecided = text[len(text) - cut :]
                thought = text[: len(text) - cut]
            if thought:
                yield True, thought
            if not found:
                return
            self._state, text = "gap", rest
        if self._state == "gap":
            text = text.lstrip()  # drop the blank lines between reasoning and answer
            self._state = "text" if text else "gap"
        if text:
            yield False, text


class Searches:
    """Counts the searches of one reply. A streamed reply may contain a tool several times, with the same index."""

    def __init__(self) -> None:
        self._cites = False
        self._ran: set[str] = set()

    def note(self, message: WireMessage) -> None:
        self._cites = self._cites or any(_kind(one) == "url_citation" for one in _list(message.annotations))
        for place, tool in enumerate(_list(message.executed_tools)):
            if isinstance(tool, dict) and _kind(tool) == "search":
                self._ran.add(str(tool.get("index", place)))

    def added_to(self, usage: TokenUsage | None) -> TokenUsage | None:
        """Add the searches to the usage's details, unless the usage or the server's cost already includes them."""
        searches = len(self._ran) or int(self._cites)
        if usage is None or not searches or usage.reported_cost_nano_usd is not None:
            return usage
        details = usage.details or {}
        if "web_search" in details:
            return usage
        return msgspec.structs.replace(usage, details={**details, "web_search": searches})


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _kind(value: Json) -> Json:
    return value.get("type") if isinstance(value, dict) else None
