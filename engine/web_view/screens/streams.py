"""*Stream*: a reply as it comes, from any place in it; and the readers of each stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import (
    CallboardError,
    MessageComplete,
    ProviderBlock,
    ProviderEvent,
    StreamReader,
    StreamReset,
    TextDelta,
    ThinkingDelta,
    ToolProgress,
    ToolUseEnd,
    ToolUseInputDelta,
    TurnEvent,
    UnknownStream,
    UserMessage,
)

from ..answers import EventStream, Refused, answer, as_json, frame
from ..sign_in import Visitor
from ..subject import Subject
from .rows import block_seen

EVERY_SECONDS = 0.05
"""The time between two lots of a stream for one page."""

_builtins = msgspec.to_builtins


async def streams(subject: Subject, request: Request) -> Response:
    """The streams that can be attached to, with their readers."""
    if subject.engine is None:
        return answer([])
    return answer(subject.engine.streams.streams()[:500])


async def stream(subject: Subject, request: Request) -> Response:
    """The events of one stream, from behind the last one that the page has, in lots.

    Raises:
        Refused: There is no such stream, or no engine.
    """
    if subject.engine is None:
        raise Refused(404, "streams live in the process that runs the turn; this shows a trace")
    stream_id = request.path_params["id"]
    visitor: Visitor = request.state.visitor
    shown = subject.shows_live_content and "content" in visitor.scopes
    try:
        reader = subject.engine.attach(
            stream_id,
            from_seq=_next_seq(request, stream_id),
            coalesce=True,
            min_interval=EVERY_SECONDS,
            any_owner=True,
        )
    except (UnknownStream, ValueError) as error:
        raise Refused(404, str(error)) from None
    return EventStream(_lots(reader, shown))


def _next_seq(request: Request, stream_id: str) -> int:
    """The place to go on from, which the page says as its browser does when it comes back."""
    last = request.headers.get("last-event-id") or request.query_params.get("after", "")
    if not last:
        return 0
    of, _, seq = last.rpartition(":")
    if of != stream_id or not seq.isdecimal() or len(seq) > 18:
        raise Refused(400, "that is no place in this stream")
    return int(seq) + 1


async def _lots(reader: StreamReader[TurnEvent], shown: bool) -> AsyncIterator[bytes]:
    async with reader:
        yield frame("shown", b"true" if shown else b"false")
        try:
            while lot := await reader.take():
                yield frame("events", as_json(_as_seen(lot, shown)), reader.frame_id)
        except CallboardError as error:  # in a cluster it is found out when it is read
            yield frame("gone", as_json({"error": str(error)}))
        else:
            yield frame("end", b"{}", reader.frame_id)


def _as_seen(events: Sequence[TurnEvent | StreamReset[TurnEvent]], shown: bool) -> list[object]:
    return [_of_reset(event, shown) if isinstance(event, StreamReset) else seen(event, shown) for event in events]


def _of_reset(event: StreamReset[TurnEvent], shown: bool) -> object:
    snapshot = [seen(each, shown) for each in event.snapshot]
    return {"type": event.type, "snapshot": snapshot, "next_seq": event.next_seq}


def seen(event: TurnEvent, shown: bool) -> object:
    """An event as a page may see it: as it is, or without anything that was said.

    Args:
        event: The event.
        shown: Whether what is said may be shown.
    """
    if isinstance(event, MessageComplete):
        return _end(event, shown)
    if shown:
        return event
    fields: dict[str, object] = {"type": event.type}
    for name in ("content_block_index", "message_id", "tool_use_id", "tool_name", "is_error", "latency_ms"):
        if hasattr(event, name):
            fields[name] = getattr(event, name)
    match event:
        case TextDelta() | ThinkingDelta():
            return {**fields, "characters": len(event.text)}
        case ToolUseInputDelta():
            return {**fields, "characters": len(event.partial_json)}
        case ToolUseEnd():
            return {**fields, "incomplete": event.incomplete}
        case UserMessage() | ToolProgress() | ProviderBlock() | ProviderEvent():
            return fields
        case _:
            return event


def _end(event: MessageComplete, shown: bool) -> dict[str, object]:
    """The end of a message. Its deltas have said the content, unless a page comes after they were folded."""
    content = [block_seen(block) for block in event.final_content] if shown else ()
    return {
        "type": event.type,
        "message_id": event.message_id,
        "stop_reason": event.stop_reason,
        "raw_stop_reason": event.raw_stop_reason,
        "usage": msgspec.structs.replace(event.usage, raw=None),
        "final_content": content,
    }
