"""From messages and deltas to content: one reader for whole replies and for streams.

A whole reply is a stream of one delta. `ReplyReader` takes what servers send, in all the ways they send it, and
tells the Assembler; it holds the rules that the wire doesn't state:

* A tool call begins where its index, or its id together with its name, is new. Later ids without a name are
  noise; names are never joined; a fragment without an index belongs to the call of its id, else to the last one.
* Reasoning that stands in two fields at once is read from one of them.
* The last usage that was seen counts, wherever it stood.
* A reply with tool calls stops for them, whatever its finish reason says, unless it was cut off at a limit.

Text, reasoning and calls may close each other (`implicit_end`): this protocol has no end marks for blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from adapters.assembler import Assembler, parse_object
from bus.errors import StreamError
from bus.json_types import Json, JsonObject
from bus.usage import StopReason, TokenUsage, UsageSource

from .errors import error_in_reply
from .quirks import Quirks
from .wire import WireChoice, WireMessage, WireReply, WireToolCall, decode_usage, groq_usage

STOP_REASONS: Mapping[str, StopReason] = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "eos": StopReason.END_TURN,
    "eos_token": StopReason.END_TURN,
    "tool_calls": StopReason.END_TURN,  # without any call; with calls the calls decide
    "function_call": StopReason.END_TURN,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "content_filter": StopReason.CONTENT_FILTER,
    "sensitive": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
}
"""Finish reasons by their lower-case name; any other is ``provider_specific``."""

_TEXT = "text"
_THINKING = "thinking"


@dataclass(slots=True)
class _Call:
    """A tool call as its fragments make it known. It begins for the assembler when it has a name."""

    key: int
    index: int | None
    id: str = ""
    name: str = ""
    extra: Json = None
    size: int = 0  # characters of arguments so far
    waiting: list[str] = field(default_factory=list)  # arguments that came before the name
    batch: int = -1  # the delta in which it began


class ReplyReader:
    """Reads one reply into an assembler: `chunk()` for each piece, `complete()` at the end."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        self.assembler = assembler
        self.finish_reason: str | None = None
        self.saw_choice = False
        self._model_known = False
        self._refused = False
        self._choice_index: Json = None
        self._tags = ThinkTags(opened=quirks.think_tags == "open") if quirks.think_tags != "off" else None
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._batch = 0
        self._thinking = 0  # number of the current block of opaque reasoning
        self._details: list[Json] | None = None  # of that block, growing
        self._wholes = 0

    def chunk(self, reply: WireReply) -> None:
        """A whole reply, or a chunk of one. Raises AdapterError for the error that it carries."""
        assembler = self.assembler
        if reply.id and isinstance(reply.id, str):
            assembler.response_id = reply.id
        if not self._model_known and isinstance(reply.model, str) and reply.model:
            self._model_known = True
            assembler.model = reply.model
        if reply.usage or reply.x_groq:
            self._usage(reply.usage)
            self._usage(groq_usage(reply.x_groq))
        for choice in reply.choices or ():
            if choice is not None:
                self._choice(choice)
        if reply.error:
            raise error_in_reply({"error": reply.error}, assembler.provider)

    def complete(self) -> None:
        """The reply is whole: finish the assembler."""
        assembler = self.assembler
        if self._tags is not None:
            self._tagged(self._tags.flush())
        for call in self._calls:
            if not call.name:
                assembler.warn(
                    "nameless_tool_call", f"a tool call without a name was dropped ({call.id or call.key})"
                )
        assembler.finish(self._stop_reason(), self.finish_reason)

    def _usage(self, raw: msgspec.Raw) -> None:
        usage = read_usage(raw)
        if usage is not None:
            self.assembler.usage = usage

    def _choice(self, choice: WireChoice) -> None:
        if not self.saw_choice:
            self._choice_index = choice.index
        elif choice.index != self._choice_index and None not in (choice.index, self._choice_index):
            return  # another answer to the same question (n > 1)
        message = choice.delta if choice.delta is not None else choice.message
        self.saw_choice = True
        if message is not None:
            self._message(message)
        if choice.usage:
            self._usage(choice.usage)
        if choice.finish_reason is not None and not self.finish_reason:
            reason = choice.finish_reason
            self.finish_reason = reason if isinstance(reason, str) else str(reason)
            self.assembler.raw_stop_reason = self.finish_reason
        if choice.error:
            raise error_in_reply({"error": choice.error}, self.assembler.provider)

    def _stop_reason(self) -> StopReason:
        reason = STOP_REASONS.get((self.finish_reason or "").lower(), StopReason.PROVIDER_SPECIFIC)
        if reason is StopReason.MAX_TOKENS:
            return reason
        if self.assembler.has_tool_use:
            return StopReason.TOOL_USE
        return StopReason.REFUSAL if self._refused and reason is StopReason.END_TURN else reason

    # -- a message or a delta, in the order in which a model speaks

    def _message(self, message: WireMessage) -> None:
        if message.reasoning_content or message.reasoning or message.reasoning_details:
            self._reasoning(message)
        if message.extra_content:
            self._extra(message.extra_content)
        content = message.content
        if isinstance(content, str):
            if content:
                self._text(content)
        elif content:
            self._parts(content)
        if message.refusal and isinstance(message.refusal, str):
            self._refused = True
            self._text(message.refusal)
        if message.tool_calls or message.function_call is not None:
            self._tool_calls(message)
        if message.images or message.audio:
            self._media(message)

    def _text(self, text: str) -> None:
        if self._tags is None:
            self._plain(text)
        else:
            self._tagged(self._tags.feed(text))

    def _plain(self, text: str) -> None:
        self._details = None
        self.assembler.text(_TEXT, text, implicit_end=True)

    def _tagged(self, pieces: list[tuple[bool, str]]) -> None:
        for is_thinking, piece in pieces:
            if is_thinking:
                self.assembler.thinking(_THINKING, piece, implicit_end=True)
            else:
                self._plain(piece)

    def _parts(self, parts: list[Json]) -> None:
        for part in parts:
            match part:
                case str():
                    self._text(part)
                case {"type": "thinking", "thinking": thinking}:
                    self.assembler.thinking(_THINKING, flatten(thinking), implicit_end=True)
                case {"type": "text" | "output_text", "text": str(text)}:
                    self._text(text)
                case {"type": "refusal", "refusal": str(text)}:
                    self._refused = True
                    self._text(text)
                case dict() if isinstance(kind := part.get("type"), str):
                    self._whole(kind, part)
                case _:
                    pass

    def _whole(self, kind: str, raw: JsonObject) -> None:
        self._details = None
        self._wholes += 1
        self.assembler.whole(("whole", self._wholes), kind, raw)

    def _media(self, message: WireMessage) -> None:
        """What models paint and say is outside our catalogue of blocks; it is kept as it came."""
        for image in message.images if isinstance(message.images, list) else ():
            if isinstance(image, dict):
                self._whole("image_url", image)
        audio = message.audio
        if isinstance(audio, dict) and (audio.get("data") or audio.get("transcript")):
            self._whole("audio", audio)

    # -- reasoning

    def _reasoning(self, message: WireMessage) -> None:
        text = flatten(message.reasoning_content) or flatten(message.reasoning)
        details = message.reasoning_details
        if not isinstance(details, list) or not details:
            if text:
                key = _THINKING if self._details is None else (_THINKING, self._thinking)
                self.assembler.thinking(key, text, implicit_end=True)
            return
        self._opaque(text or "".join(_detail_text(detail) for detail in details), details)

    def _opaque(self, text: str, details: list[Json]) -> None:
        """Reasoning with opaque parts, which go back as they came but for being one piece again."""
        if self._details is None:
            self._thinking += 1
            self._details = []
        key = (_THINKING, self._thinking)
        self.assembler.thinking(key, text, implicit_end=True, raw={"reasoning_details": self._details})
        for detail in details:
            if isinstance(detail, dict):
                _merge_detail(self._details, detail)
                signature = detail.get("signature")
                if isinstance(signature, str) and signature:
                    self.assembler.signature(key, signature)

    def _extra(self, extra: Json) -> None:
        """Gemini's signature of a whole message."""
        raw: JsonObject = {"extra_content": extra}
        match extra:
            case {"google": {"thought_signature": str(signature)}} if signature:
                self._thinking += 1
                key = (_THINKING, self._thinking)
                self.assembler.thinking(key, "", implicit_end=True, raw=raw)
                self.assembler.signature(key, signature)
            case _:
                pass

    # -- tool calls

    def _tool_calls(self, message: WireMessage) -> None:
        self._details = None
        self._batch += 1
        calls = message.tool_calls or []
        for position, fragment in enumerate(calls):
            if fragment is not None:
                self._fragment(fragment, position if len(calls) > 1 else None)
        legacy = message.function_call
        if legacy is not None and (legacy.name or (legacy.arguments and -1 in self._by_index)):
            self._fragment(WireToolCall(index=-1, function=legacy), None)

    def _fragment(self, fragment: WireToolCall, position: int | None) -> None:
        function = fragment.function
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
        if name and not call.name:
            self._begin(call, name)
        elif late:
            self.assembler.block_raw(call.key, _call_raw(call))
        if arguments:
            self._arguments(call, arguments)

    def _find(self, index: int | None, wire_id: str, name: str, position: int | None) -> _Call | None:
        """The call that a fragment continues, or None if it begins one."""
        known = self._by_id(wire_id, index, name)
        if known is not None:
            return known
        if index is not None:
            current = self._by_index.get(index)
        elif name or position is None or position >= len(self._calls):
            current = self._calls[-1] if self._calls else None
        else:
            current = self._calls[position]
        if current is None or not name or not current.name:
            return current
        if wire_id:
            # the same call may get its id late; a call with arguments, or another id, is another one
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
        """Whether a fragment of that name can belong to a call: not if the name differs or one delta has both."""
        return not name or not call.name or (name == call.name and call.batch != self._batch)

    def _is_another(self, current: _Call, name: str) -> bool:
        """A name without an id: a new call, or the name of the current one said again?"""
        if not self._may_be(current, name):
            return True
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
        elif len(text) == call.size and self._repeats(call, text):
            return
        else:
            self.assembler.tool_arguments(call.key, text)
        call.size += len(text)

    def _repeats(self, call: _Call, text: str) -> bool:
        """Some gateways say the whole arguments again at the end."""
        return text == self.assembler.block_text(call.key) and parse_object(text) is not None


class ThinkTags:
    """Finds ``<think>…</think>`` at the start of a text that comes in pieces.

    `feed()` and `flush()` give pairs (is it reasoning, text). Whatever may be the beginning of a tag is held back
    until it is decided. Tags later in the text are text. opened: the reply begins inside the tags.
    """

    _OPEN = "<think>"
    _CLOSE = "</think>"

    def __init__(self, *, opened: bool) -> None:
        self._held = ""
        self._opened = opened
        self._state = "start"

    def feed(self, text: str) -> list[tuple[bool, str]]:
        if self._state == "text":
            return [(False, text)]
        return list(self._read(self._held + text))

    def flush(self) -> list[tuple[bool, str]]:
        """What was held back, at the end of the reply."""
        held, self._held = self._held, ""
        thinking = self._state == "thinking" or (self._state == "start" and self._opened)
        return [(thinking, held)] if held and self._state != "gap" else []

    def _read(self, text: str) -> Iterator[tuple[bool, str]]:
        self._held = ""
        if self._state == "start":
            start = text.lstrip()
            if len(start) < len(self._OPEN) and self._OPEN.startswith(start):
                self._held = text
                return
            inside = start.startswith(self._OPEN)
            self._state = "thinking" if inside or self._opened else "text"
            text = start[len(self._OPEN) :] if inside else text
        if self._state == "thinking":
            thought, found, rest = text.partition(self._CLOSE)
            if not found:
                cut = _overlap(text, self._CLOSE)
                self._held = text[len(text) - cut :]
                thought = text[: len(text) - cut]
            if thought:
                yield True, thought
            if not found:
                return
            self._state, text = "gap", rest
        if self._state == "gap":
            text = text.lstrip()  # the blank lines between reasoning and answer belong to neither
            self._state = "text" if text else "gap"
        if text:
            yield False, text


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-size:])), 0)


def read_whole(reply: WireReply, assembler: Assembler, quirks: Quirks) -> None:
    """Feed a whole reply to the assembler and finish it. Raises AdapterError if it is none."""
    reader = ReplyReader(assembler, quirks)
    reader.chunk(reply)
    if not any(_says_something(choice) for choice in reply.choices or ()):
        raise StreamError(f"{assembler.provider}: the reply is no chat completion, it holds no message")
    reader.complete()


def _says_something(choice: WireChoice | None) -> bool:
    if choice is None:
        return False
    return choice.message is not None or choice.delta is not None or choice.finish_reason is not None


def read_usage(raw: msgspec.Raw) -> TokenUsage | None:
    """Token counts in disjoint buckets; None if nothing is reported.

    The prompt's count includes cache reads and writes. What the total has beyond prompt and completion is
    reasoning that some servers count nowhere else.
    """
    wire = decode_usage(raw)
    if wire is None:
        return None
    prompt, completion, total = (
        _count(n) for n in (wire.prompt_tokens, wire.completion_tokens, wire.total_tokens)
    )
    if prompt is None and completion is None:
        return None
    partial = total is None and (prompt is None or completion is None)
    if prompt is None:
        prompt = max(0, (total or 0) - (completion or 0))
    hidden = max(0, (total or 0) - prompt - (completion or 0))
    output = (completion or 0) + hidden
    cached = _first(
        _detail(wire.prompt_tokens_details, "cached_tokens"),
        _count(wire.prompt_cache_hit_tokens),
        _count(wire.cached_tokens),
    )
    written = _detail(wire.prompt_tokens_details, "cache_write_tokens") or 0
    reasoning = _first(
        _detail(wire.completion_tokens_details, "reasoning_tokens"),
        _count(wire.reasoning_tokens),
        none=hidden if hidden and completion is not None else None,
    )
    return TokenUsage(
        input_tokens=max(0, prompt - (cached or 0) - written),
        output_tokens=output,
        cached_input_tokens=cached or 0,
        cache_creation_input_tokens=written,
        reasoning_tokens=None if reasoning is None else min(reasoning, output),
        source=UsageSource.PARTIAL if partial else UsageSource.REPORTED,
        raw=msgspec.Raw(bytes(raw)),  # a copy, or the whole chunk would be kept alive
    )


def _first(*counts: int | None, none: int | None = None) -> int | None:
    """The first count that isn't zero or missing; else zero if any was there."""
    for count in counts:
        if count:
            return count
    return none if none is not None else next((count for count in counts if count is not None), None)


def _detail(details: Json, name: str) -> int | None:
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(value: Json) -> int | None:
    """A count of tokens: a number that is not negative, whatever its type."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return max(0, int(value))


def flatten(value: Json) -> str:
    """The text in a string, in a text part, or in a list of them."""
    match value:
        case str():
            return value
        case list():
            return "".join(flatten(part) for part in value)
        case {"text": text} | {"content": text}:
            return text if isinstance(text, str) else ""
        case _:
            return ""


def _detail_text(detail: Json) -> str:
    match detail:
        case {"text": str(text)} | {"summary": str(text)}:
            return text
        case _:
            return ""


def _merge_detail(details: list[Json], fragment: JsonObject) -> None:
    """Join a fragment to the last detail if it continues it: the same type and index, and text to add."""
    last = details[-1] if details else None
    same = isinstance(last, dict) and all(last.get(name) == fragment.get(name) for name in ("type", "index"))
    if not same or not isinstance(last, dict) or "data" in fragment:
        details.append(dict(fragment))
        return
    for name, value in fragment.items():
        old = last.get(name)
        if name in ("text", "summary") and isinstance(value, str) and isinstance(old, str):
            last[name] = old + value
        elif value is not None and value != "":
            last[name] = value


def _call_raw(call: _Call) -> JsonObject:
    raw: JsonObject = {"id": call.id}
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
