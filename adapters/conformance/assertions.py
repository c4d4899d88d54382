"""Helpers of the checks: make requests, read replies, and check the invariants of a stream."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import msgspec

from callboard.bus.errors import AdapterError
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
)
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import ended_well
from callboard.bus.values.usage import TokenUsage

from ..config import RetryPolicy
from ..contract import AdapterStream, CanonicalRequest, CanonicalResponse
from .http_kit import HttpKit
from .kit import CALLS, Kit, NotShown, Says, Stage

T = TypeVar("T")

# --- Invariants of a stream ---


def require(condition: object, message: str) -> None:
    """Raise an AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def check_stream(events: Sequence[StreamEvent]) -> MessageComplete:
    """Check every invariant of a stream.

    Returns:
        The last event.

    Raises:
        AssertionError: An invariant is broken.
    """
    last = check_order(events)
    check_indexes(events)
    check_blocks(events)
    check_usage(last.usage)
    return last


def check_order(events: Sequence[StreamEvent]) -> MessageComplete:
    """Check that `message.start` is first and `message.complete` last, that each occurs once, and that all events
    have the same id.
    """
    require(events, "the stream has no events")
    first, *middle, _ = events
    require(isinstance(first, MessageStart), f"the first event is not message.start: {first!r}")
    last = _last_of(events)
    again = [event for event in middle if isinstance(event, MessageStart | MessageComplete)]
    require(not again, f"a message must start and end once, but between its start and its end is {again}")
    ids = {event.message_id for event in events}
    require(len(ids) == 1, f"a message must have one id, but the ids are {sorted(ids)}")
    return last


def check_indexes(events: Sequence[StreamEvent]) -> None:
    """Check that indexes never decrease, and that each index is of a block in the final content."""
    last = _last_of(events)
    indexes = [index for event in events if (index := _index(event)) is not None]
    require(indexes == sorted(indexes), f"content_block_index decreases: {indexes}")
    size = len(last.final_content)
    wrong = [index for index in indexes if not 0 <= index < size]
    require(not wrong, f"content_block_index {wrong} has no block: the final content has {size}")


def check_blocks(events: Sequence[StreamEvent]) -> None:
    """Check that the events of each block add up to the block."""
    last = _last_of(events)
    inner = [event for event in events if _index(event) is not None]
    blocks = {index: list(block) for index, block in itertools.groupby(inner, _index)}
    for index, content in enumerate(last.final_content):
        try:
            _check_block(blocks.get(index, []), content, well=ended_well(last.stop_reason))
        except AssertionError as error:
            raise AssertionError(f"block {index} ({type(content).__name__}): {error}") from None
    ids = [block.id for block in last.final_content if isinstance(block, ToolUseBlock)]
    require(len(ids) == len(set(ids)), f"each tool call must have its own id, but the ids are {ids}")


def check_usage(usage: TokenUsage) -> None:
    """Check that no count is negative, and that no part exceeds its total."""
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_creation_1h_input_tokens,
    )
    require(min(counts) >= 0, f"a count is negative: {usage}")
    within = usage.cache_creation_1h_input_tokens <= usage.cache_creation_input_tokens
    require(within, f"the writes for an hour are part of all cache writes: {usage}")
    if usage.reasoning_tokens is not None:
        within = 0 <= usage.reasoning_tokens <= usage.output_tokens
        require(within, f"reasoning tokens are part of the output: {usage}")


def _last_of(events: Sequence[StreamEvent]) -> MessageComplete:
    last = events[-1]
    if not isinstance(last, MessageComplete):
        raise AssertionError(f"the last event is not message.complete: {last!r}")
    return last


def _index(event: StreamEvent) -> int | None:
    return None if isinstance(event, MessageStart | MessageComplete) else event.content_block_index


def _check_block(events: Sequence[StreamEvent], content: ContentBlock, *, well: bool) -> None:
    match content:
        case TextBlock():
            texts = [event.text for event in events if isinstance(event, TextDelta)]
            require(len(texts) == len(events), f"text must have only text.delta, but the events are {events}")
            require(texts and all(texts), f"text must have deltas with text, but the texts are {texts}")
            _same_text("its deltas", "".join(texts), content.text)
        case ThinkingBlock():
            deltas = [event for event in events if isinstance(event, ThinkingDelta)]
            require(
                len(deltas) == len(events), f"thinking must have only thinking.delta, but the events are {events}"
            )
            all_filled = all(delta.text or delta.signature is not None for delta in deltas)
            require(all_filled, f"each delta must have text or the signature: {deltas}")
            early = [delta for delta in deltas[:-1] if delta.signature is not None]
            require(not early, f"only the last delta may be signed, but there is {early}")
            _same_text("its deltas", "".join(delta.text for delta in deltas), content.text)
            signature = deltas[-1].signature if deltas else None
            require(signature == content.signature, f"signed {signature!r}, kept as {content.signature!r}")
        case ToolUseBlock():
            _check_tool(events, content, well=well)
        case OpaqueBlock() | RedactedThinkingBlock():
            match list(events):
                case [ProviderBlock(raw=raw)] if content.provider_raw is not None:
                    require(raw == content.provider_raw.data, f"{raw!r} is not {content.provider_raw.data!r}")
                case _:
                    raise AssertionError(
                        f"a block outside the catalogue must be one event, but the events are {events}"
                    )
        case ImageBlock():
            shown = len(events) == 1 and isinstance(events[0], ProviderBlock)
            require(shown, f"an image must be one provider event, but the events are {events}")
        case _:
            raise AssertionError(f"a model can't return {content!r}")


def _check_tool(events: Sequence[StreamEvent], content: ToolUseBlock, *, well: bool) -> None:
    match list(events):
        case [ToolUseStart() as start, *middle, ToolUseEnd() as end]:
            pass
        case _:
            raise AssertionError(
                f"a call must be start, fragments and end, but the events are {[event.type for event in events]}"
            )
    deltas = [event for event in middle if isinstance(event, ToolUseInputDelta)]
    require(len(deltas) == len(middle), f"between start and end of a call is {middle}")
    fragments = [delta.partial_json for delta in deltas]
    require(all(fragments), f"a fragment must not be empty: {fragments}")
    ids = {start.tool_use_id, end.tool_use_id, *(delta.tool_use_id for delta in deltas)}
    require(ids == {content.id}, f"the ids of its events are {sorted(ids)}, its own is {content.id}")
    require(start.tool_name == content.name, f"started as {start.tool_name!r}, ended as {content.name!r}")
    require(isinstance(end.final_input, dict), f"final_input is not an object: {end.final_input!r}")
    require(end.final_input == content.input, f"ended with {end.final_input}, kept as {content.input}")
    msgspec.json.encode(end.final_input)  # the input must be JSON, to be sent back
    if well:
        agree = end.incomplete == content.incomplete
        require(agree, f"incomplete is {end.incomplete} at its end and {content.incomplete} in the final content")
    else:
        require(content.incomplete, "the reply was cut off, but one of its calls is not marked as incomplete")
    if content.raw_arguments is not None:
        _same_text("its fragments", "".join(fragments), content.raw_arguments)
        require(content.incomplete, "invalid arguments must make the call incomplete")
        require(content.input == {}, f"invalid arguments became {content.input}")


def _same_text(what: str, found: str, expected: str) -> None:
    require(found == expected, f"{what} add up to {found!r} instead of {expected!r}")


PATIENCE_SECONDS = 30.0
"""The virtual time in seconds within which a cancelled call or a closed adapter must end."""

SOON = RetryPolicy(base_delay=0.01, jitter=False)
"""A retry policy with short waits, for checks that don't measure the waits."""


@contextmanager
def within(what: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Fail with the name of the step if the step takes longer than `seconds`."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise AssertionError(f"{what} hangs")


@dataclass
class StreamOutcome:
    """The events of a stream, and its exception."""

    events: list[StreamEvent] = field(default_factory=list)
    error: AdapterError | None = None
    """The exception after the events; None if there was none."""


async def listen(stream: AsyncIterator[StreamEvent], outcome: StreamOutcome | None = None) -> StreamOutcome:
    """Read a stream to its end, or to an AdapterError."""
    outcome = outcome or StreamOutcome()
    try:
        async for event in stream:
            outcome.events.append(event)
    except AdapterError as error:
        outcome.error = error
    return outcome


async def read_stream(at: Stage, request: CanonicalRequest | None = None) -> StreamOutcome:
    """Read a request's whole stream."""
    return await listen(at.adapter.stream(request or at.request()))


async def read_events(at: Stage, request: CanonicalRequest | None = None) -> list[StreamEvent]:
    """Read a whole stream that must not fail."""
    outcome = await read_stream(at, request)
    require(outcome.error is None, f"the stream raised {outcome.error!r}")
    return outcome.events


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    """Return the result and the time that it took, in seconds."""
    before = anyio.current_time()
    result = await work
    return result, anyio.current_time() - before


async def first_event(stream: AdapterStream) -> StreamEvent:
    """The first event of a stream that must have one."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise AssertionError("the stream has no events") from None


async def failure(at: Stage, *, streamed: bool, request: CanonicalRequest | None = None) -> AdapterError:
    """The AdapterError of a call that must fail before anything is delivered."""
    if streamed:
        outcome = await read_stream(at, request)
        require(
            not outcome.events,
            f"a call that failed before its reply must have no events, but the events are {outcome.events}",
        )
        if outcome.error is None:
            raise AssertionError("stream() raised nothing")
        return outcome.error
    try:
        response = await at.adapter.complete(request or at.request())
    except AdapterError as error:
        return error
    raise AssertionError(f"complete() returned {response!r}")


def content_in_short(content: Sequence[ContentBlock]) -> list[object]:
    """The content without ids and opaque data, for comparisons."""
    short: list[object] = []
    for block in content:
        match block:
            case TextBlock():
                short.append(block.text)
            case ToolUseBlock():
                short.append((block.name, block.input, block.incomplete))
            case _:
                short.append(type(block).__name__)
    return short


def expected_in_short(scene: Says) -> list[object]:
    """The expected content of a scene, without reasoning."""
    text: list[object] = [scene.text] if scene.text else []
    return text + [(name, arguments, False) for name, arguments in CALLS[: scene.calls]]


def in_short(response: CanonicalResponse) -> tuple[list[object], str]:
    """Return the content without ids, and the stop reason."""
    return content_in_short(response.content), str(response.stop_reason)


def with_one_id(events: Sequence[StreamEvent]) -> list[bytes]:
    """Events as JSON, for comparisons: the random ids of tool calls are replaced by numbers."""
    numbers: dict[str, str] = {}
    texts: list[bytes] = []
    for event in events:
        text = msgspec.json.encode(event).decode()
        for block in getattr(event, "final_content", ()):
            if isinstance(block, ToolUseBlock):
                numbers.setdefault(block.id, f"call {len(numbers)}")
        call_id = getattr(event, "tool_use_id", None)
        if call_id:
            numbers.setdefault(call_id, f"call {len(numbers)}")
        for found, number in numbers.items():
            text = text.replace(found, number)
        texts.append(text.encode())
    return texts


# --- Requirements on the kit ---


def over_http(kit: Kit) -> HttpKit:
    """Return the kit, or skip the check if the adapter does not use HTTP."""
    if not isinstance(kit, HttpKit):
        raise NotShown("the adapter is not over HTTP")
    return kit


def streaming(kit: Kit) -> None:
    """Skip the check if the adapter does not stream."""
    if not kit.streams:
        raise NotShown("the adapter does not stream")


def keyed(kit: Kit) -> None:
    """Skip the check if the provider has no keys."""
    if not kit.takes_key:
        raise NotShown("the provider needs no key")


def waiting(kit: Kit) -> None:
    """Skip the check if the kit runs in real time, because the check would take minutes."""
    if kit.real_time:
        raise NotShown("it waits for minutes and needs virtual time")


def calling(at: Stage, calls: int = 1) -> None:
    """Skip the check if the model makes fewer than `calls` tool calls in one reply."""
    if not at.capabilities.supports_tools:
        raise NotShown("supports_tools is False")
    if calls > 1 and not at.capabilities.supports_parallel_tool_calls:
        raise NotShown("supports_parallel_tool_calls is False")


async def replies(kit: Kit) -> list[Says]:
    """The replies that the models of this adapter can give."""
    async with kit.stage() as at:
        tools, parallel = at.capabilities.supports_tools, at.capabilities.supports_parallel_tool_calls
    possible = [Says("Hello, ☃!"), Says("Once upon a", stop="length"), Says("")]
    if tools:
        possible += [Says("", calls=1, stop="tools"), Says("Let me look.", calls=1, stop="tools")]
    if tools and parallel:
        possible += [Says("", calls=2, stop="tools"), Says("Let me look.", calls=2, stop="tools")]
    return possible


async def longest(kit: Kit) -> Says:
    """The reply with the most content."""
    return (await replies(kit))[-1]
