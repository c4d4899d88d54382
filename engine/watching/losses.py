"""The loss report of a request: what its model would not see, or would see in another form. Pure.

The adapters report what they leave out of a history or change in it, and which settings they can't send. A call
gets those as warnings. A report adds what no call warns of, because it was never meant for this model: the fields
that a host or another provider attached to a block, a tool or a request. It says of each loss where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from callboard.adapters import (
    CallWarning,
    CanonicalRequest,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from callboard.adapters.requests.fitted import Loss, block_type
from callboard.adapters.requests.history import OPTIONS as HISTORY
from callboard.bus.values.json import Json
from callboard.bus.values.warning_codes import WarningCode

_OF_REQUEST = frozenset(
    {
        WarningCode.PARAMETER_DROPPED,
        WarningCode.PARAMETER_CHANGED,
        WarningCode.TEMPERATURE_LOWERED,
        WarningCode.STOP_SEQUENCE_DROPPED,
        WarningCode.TURN_ADDED,
        WarningCode.TOOL_NOT_STRICT,
        WarningCode.TOOLS_LEFT_OUT,
        WarningCode.TOOLS_EMULATED,
        WarningCode.SCHEMA_AS_TOOL,
        WarningCode.SCHEMA_AS_INSTRUCTION,
        WarningCode.SCHEMA_HINDERS_TOOLS,
    }
)
"""Warnings of settings, tools and schemas that are sent otherwise, or not at all."""

_NO_CONTENT = frozenset({"id", "item_id", "call_id", "after", "type", "status", "start", "emulated"})
"""Fields by which a provider knows its own block again. They tell a model nothing."""

_DIRECT: Json = {"type": "direct"}
"""The caller of a tool that the model called itself, as every model does."""


Place: TypeAlias = tuple[int, int, int | None]
"""The positions of a message, of a block in it, and of a part in a block."""
AnyPlace: TypeAlias = Place | tuple[int | None, None, None]
"""A place that may be known by its message alone, or not at all."""


class RequestLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a conversation or of its settings that a model would not see, or would see in another form."""

    what: str
    """The kind of a block (``thinking``, ``opaque.web_search_call``), a field of a block (``text.citations``), a
    field of the options (``provider_options.openai.tools``), or the code of the warning about a setting
    (``parameter_dropped``)."""
    reason: str
    """The reason, in words."""
    message: int | None = None
    """The position of its message in `Session.messages`, from 0; the message that is still to be said comes after
    them. None for what is in no message."""
    message_id: str = ""
    """The id of that message; empty if it has none."""
    block: int | None = None
    """The position of its block in the message, from 0; None if the loss is of the message as a whole."""
    part: int | None = None
    """The position in the content of a tool's result, from 0, if it is in one."""
    tool: str | None = None
    """The name of the tool that it is a field of."""


class Reader(msgspec.Struct, frozen=True):
    """What a model's adapter reads of the fields that are meant for single providers."""

    provider: str
    """The adapter's name."""
    names: Collection[str]
    """The names under which it takes options: its own, and that of its protocol."""
    media_fields: Collection[str] | None = None
    """The fields of media that its protocol has a place for, see `ChatWire.media_fields`; None if that is unknown.
    """


def report(
    messages: Sequence[Message],
    request: CanonicalRequest,
    reader: Reader,
    losses: Iterable[Loss],
    warnings: Iterable[CallWarning],
) -> tuple[RequestLoss, ...]:
    """What a request loses, in the order of the conversation, and then what is in no message.

    Args:
        messages: The conversation, as the session has it.
        request: The request that was made of it, with as many messages.
        reader: The adapter that would write it.
        losses: The losses of the history that the adapter reports.
        warnings: All warnings of the request.
    """
    places = _Places(messages, request.messages)
    found = list(dict.fromkeys(places.of(loss) for loss in losses))
    gone = {(loss.message, loss.block, loss.part) for loss in found if loss.block is not None}
    found += places.refused()
    found += [each for each in places.fields(reader) if (each.message, each.block, each.part) not in gone]
    in_messages = sorted(
        (each for each in found if each.message is not None),
        key=lambda each: (each.message, -1 if each.block is None else each.block, each.part or 0),
    )
    return (
        *in_messages,
        *(each for each in found if each.message is None),
        *_of_options(request, reader.names),
        *(_of_warning(warning) for warning in warnings if warning.code in _OF_REQUEST),
    )


class _Places:
    """Where the blocks of a conversation are."""

    def __init__(self, messages: Sequence[Message], sent: Sequence[Message]) -> None:
        self._messages = messages
        self._sent = sent
        self._by_identity: dict[int, list[Place]] = {}  # a host may say the same block more than once
        self._found: Counter[tuple[int, str]] = Counter()
        self._by_id = {message.id: number for number, message in enumerate(messages) if message.id}
        for place, block in _blocks(messages):
            self._by_identity.setdefault(id(block), []).append(place)

    def of(self, loss: Loss) -> RequestLoss:
        """A loss with its place. One of a block that was rewritten on the way has that of its message."""
        known = self._by_identity.get(id(loss.block), []) if loss.block is not None else []
        place: AnyPlace = (self._by_id.get(loss.message_id), None, None)
        if known:
            again = self._found[id(loss.block), loss.reason]
            self._found[id(loss.block), loss.reason] += 1
            place = known[min(again, len(known) - 1)]
        what = loss.block_type
        if isinstance(loss.block, OpaqueBlock) and what == block_type(loss.block):
            what = f"{what}.{loss.block.kind}"
        return self._at(place, what, loss.reason)

    def refused(self) -> Iterator[RequestLoss]:
        """The reasoning that is not sent because the provider has refused it before."""
        for number, (message, sent) in enumerate(zip(self._messages, self._sent, strict=True)):
            if message is sent:
                continue
            kept = {id(block) for block in sent.content}
            for position, block in enumerate(message.content):
                if id(block) in kept:
                    continue
                reasons = isinstance(block, ThinkingBlock | RedactedThinkingBlock)
                what = block_type(block) if reasons else f"{block_type(block)}.signature"
                yield self._at((number, position, None), what, "the provider refused it in this conversation")

    def fields(self, reader: Reader) -> Iterator[RequestLoss]:
        """The fields of blocks that the reader is not given."""
        for place, block in _blocks(self._messages):
            kind = block_type(block)
            raw: ProviderRaw | None = block.provider_raw
            if raw is not None and raw.provider != reader.provider:
                for name in _telling(raw.data):
                    yield self._at(place, f"{kind}.{name}", f"it belongs to {raw.provider}")
            for name in _media_fields(block):
                if reader.media_fields is not None and name not in reader.media_fields:
                    yield self._at(place, name, "this protocol has no such field")

    def _at(self, place: AnyPlace, what: str, reason: str) -> RequestLoss:
        message, block, part = place
        message_id = "" if message is None else self._messages[message].id or ""
        return RequestLoss(
            what=what, reason=reason, message=message, message_id=message_id, block=block, part=part
        )


def _blocks(messages: Sequence[Message]) -> Iterator[tuple[Place, ContentBlock]]:
    """All blocks and the parts of results, with their places."""
    for number, message in enumerate(messages):
        for position, block in enumerate(message.content):
            yield (number, position, None), block
            if isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
                for part, inner in enumerate(block.content):
                    yield (number, position, part), inner


def _telling(data: Mapping[str, Json]) -> Iterator[str]:
    for name, value in data.items():
        if name not in _NO_CONTENT and value not in (None, "", [], {}, _DIRECT):
            yield name


def _media_fields(block: ContentBlock) -> Iterator[str]:
    match block:
        case ImageBlock(detail=str()):
            yield "image.detail"
        case DocumentBlock(name=str(name)) if name:
            yield "document.name"
        case _:
            pass


def _of_options(request: CanonicalRequest, names: Collection[str]) -> Iterator[RequestLoss]:
    """The options of the request and of its tools that are for others."""
    taken = {*names, HISTORY}
    for place, options in [
        (None, request.provider_options),
        *((tool.name, tool.provider_options or {}) for tool in request.tools),
    ]:
        for name, fields in options.items():
            for field in fields if name not in taken and isinstance(fields, Mapping) else ():
                what = f"provider_options.{name}.{field}"
                yield RequestLoss(what=what, reason=f"it is for {name} alone", tool=place)


def _of_warning(warning: CallWarning) -> RequestLoss:
    return RequestLoss(what=warning.code, reason=warning.message)
