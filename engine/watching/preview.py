"""A preview of a session's next request, and the parts of the history that its model would not get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.adapters import (
    CallWarning,
    CanonicalRequest,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    OpaqueBlock,
    ProviderAdapter,
    ProviderRaw,
    RedactedThinkingBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    UsageSource,
)
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.requests.history import OPTIONS as HISTORY
from callboard.adapters.requests.history_target import Loss, WireCall, block_type
from callboard.bus import CallboardError
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json

from ..calls.preparation import BorrowedAdapters
from ..conversation.models_and_tools import TurnModels
from ..conversation.options import DEFAULTS, TurnOptions, merged
from ..conversation.step import request_for
from ..conversation.turn_context import FirstIds, TurnContext
from ..routing.candidates import Route
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from ..sessions.open import SessionState

# --- The losses of a request ---
# Adapters warn about everything that they leave out or change. A loss report also lists fields that a host or
# another provider attached to a block, a tool or a request. Calls don't warn about these fields, because they were
# not meant for this model. Each loss includes its place.

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
"""Warnings about settings, tools and schemas that are changed or not sent."""

_NO_CONTENT = frozenset({"id", "item_id", "call_id", "after", "type", "status", "start", "emulated"})
"""Fields that mark a block as the provider's own. They contain nothing for a model."""

_DIRECT: Json = {"type": "direct"}
"""The value of `caller` for a tool that the model called itself, which is the normal case."""


Place: TypeAlias = tuple[int, int, int | None]
"""The positions of a message, of a block in it, and of a part in a block."""
AnyPlace: TypeAlias = Place | tuple[int | None, None, None]
"""A place, or only the index of a message, or nothing."""


class RequestLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a conversation or of its settings that a model would not get, or would get in another form."""

    what: str
    """The lost part: a kind of block, a field, or the code of a warning about a setting.

    Examples: ``thinking``, ``opaque.web_search_call``, ``text.citations``, ``provider_options.openai.tools``,
    ``parameter_dropped``.
    """
    reason: str
    """The reason, in words."""
    message: int | None = None
    """The index of the message in `Session.messages`, from 0.

    The new message has the index after the last message. None if the loss is in no message.
    """
    message_id: str = ""
    """The id of that message; empty if it has none."""
    block: int | None = None
    """The index of the block in the message, from 0; None if the loss concerns the whole message."""
    part: int | None = None
    """The index in the content of a tool's result, from 0, if it is in a result."""
    tool: str | None = None
    """The name of the tool, if a tool's field is lost."""


class Reader(msgspec.Struct, frozen=True):
    """The provider-specific fields that a model's adapter reads."""

    provider: str  # the adapter's name
    names: Collection[str]  # the names of its options: its own name, and the name of its protocol
    media_fields: Collection[str] | None = None  # as in `ChatWire.media_fields`; None if unknown


def report(
    messages: Sequence[Message],
    request: CanonicalRequest,
    reader: Reader,
    losses: Iterable[Loss],
    warnings: Iterable[CallWarning],
) -> tuple[RequestLoss, ...]:
    """The losses of a request: first those in messages, in the order of the conversation, then the others."""
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
        *(RequestLoss(what=each.code, reason=each.message) for each in warnings if each.code in _OF_REQUEST),
    )


class _Places:
    """The positions of the blocks in a conversation."""

    def __init__(self, messages: Sequence[Message], sent: Sequence[Message]) -> None:
        self._messages = messages
        self._sent = sent
        self._by_identity: dict[int, list[Place]] = {}  # A host may use the same block more than once.
        self._found: Counter[tuple[int, str]] = Counter()
        self._by_id = {message.id: number for number, message in enumerate(messages) if message.id}
        for place, block in _blocks(messages):
            self._by_identity.setdefault(id(block), []).append(place)

    def of(self, loss: Loss) -> RequestLoss:
        """A loss with its place. If a block was rewritten, the place is the place of its message."""
        places = self._by_identity.get(id(loss.block), []) if loss.block is not None else []
        place: AnyPlace = (self._by_id.get(loss.message_id), None, None)
        if places:
            again = self._found[id(loss.block), loss.reason]
            self._found[id(loss.block), loss.reason] += 1
            place = places[min(again, len(places) - 1)]
        what = loss.block_type
        if isinstance(loss.block, OpaqueBlock) and what == block_type(loss.block):
            what = f"{what}.{loss.block.kind}"
        return self._at(place, what, loss.reason)

    def refused(self) -> Iterator[RequestLoss]:
        """The reasoning that is not sent because the provider rejected it earlier."""
        for number, (message, sent) in enumerate(zip(self._messages, self._sent, strict=True)):
            if message is sent:
                continue
            sent_ids = {id(block) for block in sent.content}
            for position, block in enumerate(message.content):
                if id(block) in sent_ids:
                    continue
                reasons = isinstance(block, ThinkingBlock | RedactedThinkingBlock)
                what = block_type(block) if reasons else f"{block_type(block)}.signature"
                yield self._at(
                    (number, position, None), what, "the provider rejected it earlier in this conversation"
                )

    def fields(self, reader: Reader) -> Iterator[RequestLoss]:
        for place, block in _blocks(self._messages):
            kind = block_type(block)
            raw: ProviderRaw | None = block.provider_raw
            if raw is not None and raw.provider != reader.provider:
                for name in _named_fields(raw.data):
                    yield self._at(place, f"{kind}.{name}", f"only {raw.provider} accepts it")
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


def _named_fields(data: Mapping[str, Json]) -> Iterator[str]:
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
    """Options of the request and of its tools that are for other providers."""
    listed_names = {*names, HISTORY}
    for place, options in [
        (None, request.provider_options),
        *((tool.name, tool.provider_options or {}) for tool in request.tools),
    ]:
        for name, fields in options.items():
            for field in fields if name not in listed_names and isinstance(fields, Mapping) else ():
                what = f"provider_options.{name}.{field}"
                yield RequestLoss(what=what, reason=f"only {name} accepts it", tool=place)


# --- The preview of a request ---
# Nothing is sent or billed. As in a real turn, the model is routed, the history is fitted to it, and its adapter
# writes the request. The context policy may call a model, and middleware is the host's own code, so both are left
# out.


_IDS = FirstIds("req_preview", "msg_preview")


@runtime_checkable
class WritesRequests(Protocol):
    """An adapter that can show a request without sending it."""

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall: ...


class RequestPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it would be sent."""

    model: str
    """The model that would answer, ``provider:name``."""
    provider: str
    """The adapter's name."""
    path: str
    """The path below the provider's address; empty if the adapter can't show its requests."""
    body: str
    """The body of a streamed turn's request; empty if the adapter can't show its requests."""
    warnings: tuple[CallWarning, ...]
    """The warnings that the call would have, for example about lost parts of the history, or a prompt that is near
    the window's size.
    """
    losses: tuple[RequestLoss, ...]
    """The parts that this model would not get, or would get in another form, each with its place.

    They include the lost history and settings in `warnings`, and fields that are for other providers.
    """
    input_tokens: int | None
    """An estimate of the input tokens."""
    input_nano_usd: int | None
    """The cost of that input at the current prices, in nano-USD; None without a price."""
    refused: str | None = None
    """The reason why this model can't answer; None if the model can answer."""


def preview(
    runtime: Runtime, state: SessionState, model: Model | None, message: Message, turn_options: TurnOptions
) -> RequestPreview:
    """The request of a session's next turn with this content."""
    options = merged(DEFAULTS, state.options_for(model), turn_options, {"fallback": ()})
    turn = TurnContext(runtime, state, options, streamed=True)
    models = TurnModels(turn, model or state.model, (message,), BorrowedAdapters(runtime))
    named = models.plan.named[0]
    messages = (*state.messages, message)
    try:
        route = models.route_to(named.model, messages)
        request = request_for(turn, route, messages, _IDS, first=True)
        return _written(runtime, route, messages, request)
    except CallboardError as error:
        return RequestPreview(
            model=named.model,
            provider=named.entry.adapter,
            path="",
            body="",
            warnings=(),
            losses=(),
            input_tokens=None,
            input_nano_usd=None,
            refused=str(error),
        )


def _written(
    runtime: Runtime, route: Route, messages: tuple[Message, ...], request: CanonicalRequest
) -> RequestPreview:
    decision, option = route.decision, route.option
    adapter = runtime.adapters.consult(runtime.registry.adapter_of(option.named.entry))
    streamed = adapter.can_stream(request) if isinstance(adapter, HttpAdapter) else True
    call = adapter.write_request(request, stream=streamed) if isinstance(adapter, WritesRequests) else None
    warnings = (*option.warnings, *(call.warnings if call is not None else ()))
    losses = call.losses if call is not None else ()
    return RequestPreview(
        model=decision.model,
        provider=decision.provider,
        path=call.path if call is not None else "",
        body=call.body.decode("utf-8", "replace") if call is not None else "",
        warnings=warnings,
        losses=report(messages, request, _reader(adapter, decision.provider), losses, warnings),
        input_tokens=option.estimated_tokens,
        input_nano_usd=_input_cost(runtime, decision.model, option.estimated_tokens),
    )


def _reader(adapter: ProviderAdapter, provider: str) -> Reader:
    if not isinstance(adapter, HttpAdapter):
        return Reader(provider, (provider,))
    wire = adapter.wire
    return Reader(wire.name, (wire.name, wire.default_name), wire.media_fields)


def _input_cost(runtime: Runtime, model: str, tokens: int | None) -> int | None:
    if tokens is None:
        return None
    usage = TokenUsage(tokens, 0, source=UsageSource.ESTIMATED)
    return runtime.prices.price(model, usage, runtime.clock.now_us()).nano_usd
