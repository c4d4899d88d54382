"""The questions of the checks, and their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.content import ContentBlock, TextBlock, ToolUseBlock

from ..config import RetryPolicy
from ..contract import AdapterStream, CanonicalRequest, CanonicalResponse
from .http_kit import HttpKit
from .invariants import require
from .kit import CALLS, Kit, NotShown, Says, Stage

PATIENCE_SECONDS = 30.0
"""The virtual time in seconds within which a cancelled call or a closed adapter must have ended. Connections may
be closed in order."""

SOON = RetryPolicy(base_delay=0.01, jitter=False)
"""For attempts whose waits are not what is checked."""


@contextmanager
def within(what: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Say what hangs, if it takes longer than so many seconds."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise AssertionError(f"{what} hangs")


@dataclass
class Heard:
    """The events of a stream, and its exception."""

    events: list[StreamEvent] = field(default_factory=list)
    """The events."""
    error: AdapterError | None = None
    """The exception that followed them; None if there was none."""


async def listen(stream: AsyncIterator[StreamEvent]) -> Heard:
    """Read a stream to its end. Only an AdapterError may end it otherwise."""
    heard = Heard()
    try:
        async for event in stream:
            heard.events.append(event)
    except AdapterError as error:
        heard.error = error
    return heard


async def hear(at: Stage, request: CanonicalRequest | None = None) -> Heard:
    """All of a request's stream."""
    return await listen(at.adapter.stream(request or at.request()))


async def hear_well(at: Stage, request: CanonicalRequest | None = None) -> list[StreamEvent]:
    """All of a stream that must not fail."""
    heard = await hear(at, request)
    require(heard.error is None, f"the stream raised {heard.error!r}")
    return heard.events


async def first_event(stream: AdapterStream) -> StreamEvent:
    """The first event of a stream that must have one."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise AssertionError("the stream has no events") from None


async def failure(at: Stage, *, streamed: bool, request: CanonicalRequest | None = None) -> AdapterError:
    """The AdapterError of a call that must fail before anything is delivered."""
    if streamed:
        heard = await hear(at, request)
        require(
            not heard.events, f"a call that failed before its reply has no events, and here are {heard.events}"
        )
        if heard.error is None:
            raise AssertionError("stream() raised nothing")
        return heard.error
    try:
        response = await at.adapter.complete(request or at.request())
    except AdapterError as error:
        return error
    raise AssertionError(f"complete() returned {response!r}")


def content_in_short(content: Sequence[ContentBlock]) -> list[object]:
    """The content without ids and opaque data."""
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
    """What a scene without a thought comes to."""
    said: list[object] = [scene.text] if scene.text else []
    return said + [(name, given, False) for name, given in CALLS[: scene.calls]]


def in_short(response: CanonicalResponse) -> tuple[list[object], str]:
    """Content and stop reason."""
    return content_in_short(response.content), str(response.stop_reason)


def with_one_id(events: Sequence[StreamEvent]) -> list[bytes]:
    """Events as JSON, with the ids of tool calls, which each stream makes anew, numbered."""
    numbers: dict[str, str] = {}
    texts: list[bytes] = []
    for event in events:
        text = msgspec.json.encode(event).decode()
        for block in getattr(event, "final_content", ()):
            if isinstance(block, ToolUseBlock):
                numbers.setdefault(block.id, f"call {len(numbers)}")
        own = getattr(event, "tool_use_id", None)
        if own:
            numbers.setdefault(own, f"call {len(numbers)}")
        for found, number in numbers.items():
            text = text.replace(found, number)
        texts.append(text.encode())
    return texts


# -- what a check needs of its kit


def over_http(kit: Kit) -> HttpKit:
    """The kit, if its adapter speaks HTTP."""
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
        raise NotShown("the provider takes no key")


def waiting(kit: Kit) -> None:
    """Skip the check if time is real: it would take minutes."""
    if kit.real_time:
        raise NotShown("it waits for minutes, which needs virtual time")


def calling(at: Stage, calls: int = 1) -> None:
    """Skip the check if the model makes no (or not that many) tool calls."""
    if not at.capabilities.supports_tools:
        raise NotShown("supports_tools is False")
    if calls > 1 and not at.capabilities.supports_parallel_tool_calls:
        raise NotShown("supports_parallel_tool_calls is False")


async def replies(kit: Kit) -> list[Says]:
    """The replies that this adapter's models can give."""
    async with kit.stage() as at:
        tools, parallel = at.capabilities.supports_tools, at.capabilities.supports_parallel_tool_calls
    possible = [Says("Hello, ☃!"), Says("Once upon a", stop="length"), Says("")]
    if tools:
        possible += [Says("", calls=1, stop="tools"), Says("Let me look.", calls=1, stop="tools")]
    if tools and parallel:
        possible += [Says("", calls=2, stop="tools"), Says("Let me look.", calls=2, stop="tools")]
    return possible


async def longest(kit: Kit) -> Says:
    """The reply with the most in it."""
    return (await replies(kit))[-1]
