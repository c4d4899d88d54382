"""A stream for calls that can't be streamed: the plain call, its events in whole pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from callboard.bus.errors import CancelledError
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnEvent,
)
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.json import Json
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ..contract import AttemptObserver, CanonicalRequest, CanonicalResponse, ProviderAdapter


class WholeStream:
    """A stream over a whole reply. `adapters.contract.AdapterStream` describes the methods.

    No event is delivered before the reply is whole. So every failure comes as the exception alone.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        request: CanonicalRequest,
        message_id: str,
        on_attempt: AttemptObserver | None,
    ) -> None:
        self._adapter = adapter
        self._request = request
        self._message_id = message_id
        self._on_attempt = on_attempt
        self._ready: deque[StreamEvent] | None = None
        self._response: CanonicalResponse | None = None

    @property
    def response(self) -> CanonicalResponse | None:
        return self._response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._ready is None:
            self._ready = deque()
            self._ready.extend(await self._call())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def _call(self) -> list[StreamEvent]:
        request = self._request
        try:
            self._response = await self._adapter.complete(request, on_attempt=self._on_attempt)
        except CancelledError as error:
            usage = error.usage or TokenUsage(source=UsageSource.PARTIAL)
            return [
                MessageStart(self._message_id, request.wire_model, self._adapter.name),
                MessageComplete((), StopReason.CANCELLED, None, usage, self._message_id),
            ]
        return whole_events(self._response, self._message_id)

    async def aclose(self) -> None:
        if self._ready is None:
            self._ready = deque()  # nothing was asked for, and nothing will be
        elif self._response is None:
            await self._adapter.cancel(self._request.request_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def whole_events(response: CanonicalResponse, message_id: str) -> list[StreamEvent]:
    """The events of a response as a stream would have had them, each block in one piece."""
    return [
        MessageStart(message_id, response.model.partition(":")[2], response.provider, response.warnings),
        *content_events(message_id, response.content),
        MessageComplete(
            response.content, response.stop_reason, response.raw_stop_reason, response.usage, message_id
        ),
    ]


def content_events(message_id: str, content: Sequence[ContentBlock]) -> Iterator[StreamEvent]:
    """The events of a message's blocks, each in one piece. A block without events of its own has none here."""
    for index, block in enumerate(content):
        match block:
            case TextBlock():
                yield TextDelta(block.text, index, message_id)
            case ThinkingBlock() if block.text or block.signature is not None:
                yield ThinkingDelta(block.text, block.signature, index, message_id)
            case ToolUseBlock():
                text = block.raw_arguments or msgspec.json.encode(block.input).decode()
                yield ToolUseStart(block.id, block.name, index, message_id)
                yield ToolUseInputDelta(block.id, text, index, message_id)
                yield ToolUseEnd(block.id, block.input, block.incomplete, index, message_id)
            case RedactedThinkingBlock():
                raw: Json = block.provider_raw.data if block.provider_raw is not None else block.data
                yield ProviderBlock("redacted_thinking", raw, index, message_id)
            case OpaqueBlock():
                yield ProviderBlock(block.kind, block.provider_raw.data, index, message_id)
            case ImageBlock(provider_raw=ProviderRaw(data=data)):
                yield ProviderBlock("image", data, index, message_id)
            case _:
                pass


def spelled_out(snapshot: Sequence[TurnEvent]) -> Iterator[TurnEvent]:
    """A snapshot whose whole messages have their deltas again, each block in one piece."""
    bare = False  # the message has nothing but its start so far
    for event in snapshot:
        if isinstance(event, MessageComplete) and bare:
            yield from content_events(event.message_id, event.final_content)
        yield event
        bare = isinstance(event, MessageStart)
