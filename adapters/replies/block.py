"""One block of a reply: fragments, events and content; and the JSON of a call's arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from callboard.bus.streams.events import (
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock

from ..requests.content import repair_json

# --- Arguments as JSON text ---


def parse_object(text: str) -> JsonObject | None:
    """Parse a JSON object; None for anything else. Raw control characters are accepted."""
    if not text.lstrip().startswith("{"):
        return None
    value = _parse(text)
    return value if isinstance(value, dict) else None


class Arguments(NamedTuple):
    """The arguments of a call, read from their text."""

    value: JsonObject | None
    unwrapped: bool = False
    """Whether the text was a JSON string that contains the object."""


def parse_arguments(text: str) -> Arguments:
    """Parse the arguments of a call. A JSON string that contains an object is unwrapped once."""
    if text.lstrip().startswith('"'):
        inner = _parse(text)
        value = parse_object(inner) if isinstance(inner, str) else None
        return Arguments(value, value is not None)
    return Arguments(parse_object(text))


def is_whole(text: str) -> bool:
    return text.strip() == "null" or _parse(text) is not None


def overlap(text: str, mark: str) -> int:
    """The number of characters at the end of a text that may start or be a mark."""
    return next((size for size in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


_VALUES = ("value", "value or end")
# The patterns of broken JSON are strings. Compiling them during the import would slow it, and few processes use
# them.
_TOKEN = r'[ \t\r\n]+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![.eE\d])|true|false|null|[{}\[\],:]'
_CUT_STRING = r'"(?:[^"\\]|\\.)*\\?\Z'
_CUT_NUMBER = r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d*)?)?\Z"


def may_become_json(text: str) -> bool:
    """Whether a text is a JSON value, or the start of a JSON value."""
    expected, closers = "value", ""
    at, token_at = 0, re.compile(_TOKEN, re.DOTALL).match
    while at < len(text):
        found = token_at(text, at)
        if found is None:
            return _may_become_token(text[at:], expected)
        at = found.end()
        token = text[found.start()]
        if token in " \t\r\n":
            continue
        if token in "{[" and expected in _VALUES:
            closers += "}" if token == "{" else "]"
            expected = "key or end" if token == "{" else "value or end"
        elif token in "}]" and closers.endswith(token) and expected in ("key or end", "value or end", "comma"):
            closers = closers[:-1]
            expected = "comma" if closers else "nothing"
        elif token == "," and expected == "comma":
            expected = "key" if closers[-1] == "}" else "value"
        elif token == ":" and expected == "colon":
            expected = "value"
        elif token == '"' and expected in ("key", "key or end"):
            expected = "colon"
        elif token not in "{}[],:" and expected in _VALUES:
            expected = "comma" if closers else "nothing"
        else:
            return False
    return True


def _may_become_token(rest: str, expected: str) -> bool:
    if re.match(_CUT_STRING, rest, re.DOTALL):
        return expected in (*_VALUES, "key", "key or end")
    cut = any(word.startswith(rest) for word in ("true", "false", "null")) or re.match(_CUT_NUMBER, rest)
    return bool(cut) and expected in _VALUES


def _parse(text: str) -> Json:
    try:
        value: Json = json.loads(repair_json(text.encode()), strict=False, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return value


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# --- Growing arguments ---

Meaning: TypeAlias = Literal["either", "pieces", "so_far"]
"""What a server's fragments contain: the next piece, all arguments so far, or still undecided."""


class GrowingArguments:
    """The arguments of one call. `add` returns a fragment's new text. `settle` returns text that was held back."""

    __slots__ = ("_doubtful", "_meaning", "_size", "parts")

    def __init__(self, meaning: Meaning = "either") -> None:
        self.parts: list[str] = []
        """The text that is certain, in pieces."""
        self._meaning: Meaning = meaning
        self._size = 0
        self._doubtful = ""  # the fragment that is either a piece, or all arguments so far

    def copy(self) -> GrowingArguments:
        twin = GrowingArguments(self._meaning)
        twin.parts, twin._size, twin._doubtful = list(self.parts), self._size, self._doubtful
        return twin

    @property
    def text(self) -> str:
        """The text of the arguments, as if no more fragments followed."""
        return "".join(self.parts) + self._best_guess()

    @property
    def resent(self) -> bool:
        """Whether each chunk of the server has all arguments so far."""
        return self._meaning == "so_far"

    def add(self, fragment: str) -> str:
        size = len(fragment)
        if 0 < size < self._size and not self._doubtful and self._meaning != "so_far":  # the usual piece
            self.parts.append(fragment)
            self._size += size
            return fragment
        if self._doubtful:
            return self._decide(fragment)
        if size < self._size or not self._size or self._meaning == "pieces":
            if self._meaning == "so_far" and fragment and "".join(self.parts).startswith(fragment):
                return ""  # the server repeated an earlier state
            return self._keep(fragment)
        return self._compare(fragment)

    def settle(self) -> str:
        """Return the held text. Call this when no more fragments follow."""
        rest = self._best_guess()
        self._doubtful = ""
        return self._keep(rest)

    def _keep(self, text: str) -> str:
        if text:
            self.parts.append(text)
            self._size += len(text)
        return text

    def _compare(self, fragment: str) -> str:
        before = "".join(self.parts)
        if not before.strip() or not fragment.startswith(before):
            return self._keep(fragment)
        if self._meaning == "so_far":
            return self._keep(fragment[self._size :])
        if is_whole(before):
            # some gateways send the whole arguments again at the end
            repeated = fragment.strip() == before.strip()
            return "" if repeated else self._keep(fragment)
        as_piece, as_whole = may_become_json(before + fragment), may_become_json(fragment)
        if as_piece and as_whole:
            self._doubtful = fragment
            return ""
        if as_piece:
            self._meaning = "pieces"
            return self._keep(fragment)
        self._meaning = "so_far"
        return self._keep(fragment[self._size :])

    def _decide(self, fragment: str) -> str:
        if not fragment:
            return ""
        doubtful, self._doubtful = self._doubtful, ""
        self._meaning = "so_far" if fragment.startswith(doubtful) and may_become_json(fragment) else "pieces"
        first = doubtful[self._size :] if self._meaning == "so_far" else doubtful
        return self._keep(first) + self.add(fragment)

    def _best_guess(self) -> str:
        """The new text of an undecided fragment, if no other fragment follows."""
        if not self._doubtful:
            return ""
        pieces = parse_arguments("".join(self.parts) + self._doubtful).value is not None
        if pieces and parse_arguments(self._doubtful).value is None:
            return self._doubtful
        return self._doubtful[self._size :]


# --- Blocks ---

CleanInput: TypeAlias = Callable[[str, JsonObject], JsonObject]
"""Converts the arguments that a model sent for a tool."""


class ReplyBlock(msgspec.Struct):
    message_id: str
    kind: Literal["text", "thinking", "tool", "whole"]
    implicit_end: bool
    """Whether the block may end without an end from the provider."""
    index: int = -1  # assigned when the block opens
    """The place of the block in the message; -1 until it is open."""
    parts: list[str] = msgspec.field(default_factory=list)
    """The fragments in their order, emitted and held."""
    signature: str | None = None
    raw: JsonObject | None = None  # becomes provider_raw
    tool_id: str = ""
    tool_name: str = ""
    arguments: GrowingArguments | None = None
    """The arguments of a tool call. `parts` contains the pieces that are certain."""
    unwrapped: bool = False
    """Whether the arguments were a JSON string that contains the object."""
    final_input: JsonObject | None = None
    """The arguments of a tool call, if sent as an object."""
    whole: ContentBlock | None = None  # for kind "whole"
    whole_raw: Json = None
    ended: bool = False  # reported by the provider, possibly before the block opens
    incomplete: bool = False  # reported by the provider: the call must not be executed
    closed: bool = False
    content: ContentBlock | None = None  # set when closed
    """The content of the block after its close. None before, and for a block without content."""

    def __post_init__(self) -> None:
        if self.arguments is not None:
            self.parts = self.arguments.parts

    def copy(self) -> ReplyBlock:
        arguments = None if self.arguments is None else self.arguments.copy()
        return msgspec.structs.replace(self, parts=list(self.parts), arguments=arguments)

    @property
    def text(self) -> str:
        """All fragments joined. For a call, the arguments received so far."""
        return "".join(self.parts) if self.arguments is None else self.arguments.text

    def written(self) -> list[str]:
        """The fragments that the model wrote. Arguments that were sent as an object are converted to JSON."""
        if self.parts or not self.final_input:
            return self.parts
        return [msgspec.json.encode(self.final_input).decode()]

    def may_be_complete(self) -> bool:
        """Whether a later block may end this block."""
        if not self.implicit_end:
            return False
        return self.kind != "tool" or parse_arguments(self.text).value is not None

    def open(self, index: int) -> list[StreamEvent]:
        self.index = index
        match self.kind:
            case "tool":
                started: StreamEvent = ToolUseStart(self.tool_id, self.tool_name, index, self.message_id)
                return [started, *map(self.delta, self.parts)]
            case "whole":
                return [ProviderBlock(self.tool_name, self.whole_raw, index, self.message_id)]
            case _:
                return [*map(self.delta, self.parts)]

    def delta(self, fragment: str) -> StreamEvent:
        match self.kind:
            case "text":
                return TextDelta(fragment, self.index, self.message_id)
            case "tool":
                return ToolUseInputDelta(self.tool_id, fragment, self.index, self.message_id)
            case _:
                return ThinkingDelta(fragment, None, self.index, self.message_id)

    def close(
        self, raw: Callable[[JsonObject], ProviderRaw], clean_input: CleanInput | None, *, cut_off: bool
    ) -> list[StreamEvent]:
        """Close the block, and make its `content`."""
        self.closed = True
        match self.kind:
            case "text":
                self.content = TextBlock("".join(self.parts), None if self.raw is None else raw(self.raw))
            case "thinking":
                self.content = ThinkingBlock("".join(self.parts), self.signature, raw(self.raw or {}))
                if self.signature is not None:
                    return [ThinkingDelta("", self.signature, self.index, self.message_id)]
            case "tool":
                rest = "" if self.arguments is None else self.arguments.settle()
                self.content = call = self._call(raw(self.raw or {}), clean_input, cut_off)
                waited = [self.delta(rest)] if rest else []
                return [*waited, ToolUseEnd(call.id, call.input, call.incomplete, self.index, self.message_id)]
            case "whole":
                self.content = self.whole
        return []

    def _call(self, raw: ProviderRaw, clean_input: CleanInput | None, cut_off: bool) -> ToolUseBlock:
        text = "".join(self.parts)
        parsed = self.final_input
        if parsed is None:
            parsed, self.unwrapped = parse_arguments(text)
        cut_off = cut_off or self.incomplete
        if parsed is None and not text.strip() and not cut_off:
            parsed = {}  # a call without arguments
        final: JsonObject = parsed or {}
        if parsed and clean_input is not None:
            final = clean_input(self.tool_name, parsed)
        return ToolUseBlock(
            id=self.tool_id,
            name=self.tool_name,
            input=final,
            raw_arguments=text if parsed is None and text else None,
            incomplete=cut_off or parsed is None,
            provider_raw=raw,
        )
