"""Whole replies as streams, and the continuation of a reply that broke off."""

from __future__ import annotations

import copy
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
from callboard.bus.values.base import Json, JsonObject
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
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ..contract import AttemptObserver, CanonicalRequest, CanonicalResponse, ProviderAdapter
from .assembler import Assembler, Key
from .block import ReplyBlock


def looks_like_events(body: bytes) -> bool:
    """Whether a body starts like server-sent events. The content type is ignored."""
    return body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(
        (b"data:", b"data ", b"data{", b"event:", b"error:", b"id:", b"retry:", b":")
    )


def without_done_mark(body: bytes) -> bytes:
    """Remove the end mark of a stream from a whole JSON body, because some gateways append it."""
    if not body.startswith(b"{") or not body.rstrip().endswith(b"[DONE]"):
        return body
    return body[: body.rindex(b"[DONE]")].rstrip().removesuffix(b"data:")


class WholeStream:
    """A stream over a whole reply; see `adapters.contract.AdapterStream`.

    No event is delivered before the reply is complete, so a failure is an exception without events.
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
            self._ready = deque()  # the call was never sent
        elif self._response is None:
            await self._adapter.cancel(self._request.request_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def whole_events(response: CanonicalResponse, message_id: str) -> list[StreamEvent]:
    """The events of a response in stream form, each block in one piece."""
    return [
        MessageStart(message_id, response.model.partition(":")[2], response.provider, response.warnings),
        *content_events(message_id, response.content),
        MessageComplete(
            response.content, response.stop_reason, response.raw_stop_reason, response.usage, message_id
        ),
    ]


def content_events(message_id: str, content: Sequence[ContentBlock]) -> Iterator[StreamEvent]:
    """The events of a message's blocks, each in one piece. Blocks without events are skipped."""
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
    """Convert a snapshot for a new reader: each block of a whole message becomes one delta."""
    bare = False  # only the start of the message was seen
    for event in snapshot:
        if isinstance(event, MessageComplete) and bare:
            yield from content_events(event.message_id, event.final_content)
        yield event
        bare = isinstance(event, MessageStart)


# --- Continuing a broken reply ---


class ContinuedAssembler(Assembler):
    """Reads the rest of a broken reply. Its usage covers only the rest. `continued` makes it."""

    _before: str
    _echo: str
    _shown: str
    _space: str
    _joins: bool

    def text(self, key: Key, fragment: str, *, implicit_end: bool = False, raw: JsonObject | None = None) -> None:
        if fragment and (self._echo or self._space):
            fragment = self._without_overlap(fragment)
        super().text(key, fragment, implicit_end=implicit_end, raw=raw)

    def _without_overlap(self, fragment: str) -> str:
        """Return the new part of a fragment; empty while the fragment may repeat earlier text."""
        if self._echo:
            fragment, self._shown = self._shown + fragment, ""
            if self._echo.startswith(fragment) and fragment != self._echo:
                self._shown = fragment
                return ""
            fragment = fragment.removeprefix(self._echo)
            self._echo = ""
        common = 0
        while common < min(len(self._space), len(fragment)) and self._space[common] == fragment[common]:
            common += 1
        self._space = self._space[common:] if common == len(fragment) else ""
        return fragment[common:]

    def _fragment(self, key: Key, kind: str, fragment: str, implicit_end: bool) -> ReplyBlock:
        if self._joins and kind == "text" and self._open is not None:
            self._joins = False
            self._open.implicit_end = implicit_end
            self._by_key[key] = self._open
        return super()._fragment(key, kind, fragment, implicit_end)  # type: ignore[arg-type]

    def _admit(self, block: ReplyBlock) -> None:
        self._end_beginning()
        super()._admit(block)

    def _end_beginning(self) -> None:
        if self._joins and self._open is not None:
            self._open.ended = True
        self._joins = False

    def partial_text(self) -> str:
        return super().partial_text()[len(self._before) :] + self._shown

    @property
    def received(self) -> bool:
        return bool(self.partial_text()) or bool(self._waiting_blocks) or self.usage is not None


def text_alone(assembler: Assembler) -> str | None:
    """The text of a reply so far; None if it has other content or provider data."""
    blocks = [*assembler._done, *([assembler._open] if assembler._open is not None else [])]
    if assembler._waiting_blocks or any(block.kind != "text" or block.raw is not None for block in blocks):
        return None
    return "".join(part for block in blocks for part in block.parts)


def continued(broken: Assembler, *, echoes: bool) -> ContinuedAssembler:
    """Return an assembler for the rest of a reply that broke off in its text."""
    partial_text = text_alone(broken)
    assert partial_text is not None
    rest = ContinuedAssembler.__new__(ContinuedAssembler)
    rest.__dict__.update(broken.__dict__)
    beginning = partial_text.rstrip()
    rest._before, rest._shown, rest._joins = partial_text, "", True
    rest._echo = beginning if echoes else ""
    rest._space = partial_text[len(beginning) :]
    rest.warnings = list(broken.warnings)
    rest._ready, rest._waiting_blocks, rest._by_key = [], [], {}
    rest._done = copy.copy(broken._done)
    rest._open = None if broken._open is None else broken._open.copy()
    rest.usage = None
    rest.response_id = rest.stop_reason = rest.raw_stop_reason = None
    return rest
