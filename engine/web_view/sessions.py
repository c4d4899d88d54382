"""The screens *Session* and *Stream*."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import (
    CallboardError,
    MessageComplete,
    ProviderBlock,
    ProviderEvent,
    SessionModelChanged,
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
from callboard.tracestore import CallFilter, CallRow, SessionRow

from .access import EventStream, Refused, Visitor, answer, as_json, body_of, frame
from .calls import attempt_in_brief, block_seen, message_seen, trees_seen, turns_seen
from .subject import Subject

# --- The screen "Session" ---
# It shows messages, model changes and calls, and a preview of the request for another provider.


MOST_SESSIONS = 300
MOST_MESSAGES = 500
MOST_TURNS = 10
"""The maximum number of turns that have a waterfall, the latest ones."""


class Preview(msgspec.Struct, forbid_unknown_fields=True):
    """A page's request for a preview."""

    session_id: str
    model: str
    content: str = "…"  # the text of the next turn


async def sessions(subject: Subject, request: Request) -> Response:
    """The open sessions, and the sessions of the trace. The latest session is first."""
    if subject.engine is not None and not subject.engine.closed:
        return answer(await subject.engine.sessions(limit=MOST_SESSIONS))
    async with subject.reading() as store:
        return answer([_listed(row) for row in await store.sessions(MOST_SESSIONS)])


def _listed(row: SessionRow) -> dict[str, object]:
    return {
        "session_id": row.session_id,
        "name": row.name,
        "model": row.model or "",
        "tags": row.tags,
        "open": False,
        "stored": row,
    }


async def session(subject: Subject, request: Request) -> Response:
    """One session: its captured content, its model changes, and its calls."""
    session_id = request.path_params["id"]
    visitor: Visitor = request.state.visitor
    await subject.flush()
    async with subject.reading() as store:
        saved = await store.saved_session(session_id)
        calls = await store.calls(CallFilter(session_id=session_id), 200)
        swaps = await store.events(session_id=session_id, topic=SessionModelChanged.topic_of(), limit=200)
        latest = list({row.turn_id: row for row in calls if row.turn_id is not None}.values())[:MOST_TURNS]
        turns = await turns_seen(store, latest)
        trees = await trees_seen(store, latest, MOST_TURNS)
    if saved is None and not calls:
        raise Refused(404, "unknown session")
    content = "content" in visitor.scopes
    messages, setup = ((), None) if saved is None else (saved.messages[-MOST_MESSAGES:], saved.setup)
    return answer(
        {
            "session_id": session_id,
            "name": None if saved is None else saved.name,
            "tags": _tags(calls) if saved is None else saved.tags,
            "messages": [message_seen(each, content) for each in messages],
            "shown": content,
            "system_prompt": setup.system_prompt if content and setup is not None else None,
            "missing": () if saved is None else saved.missing,
            "swaps": [{"ts_us": each.ts_us, **msgspec.to_builtins(each.data)} for each in swaps],
            "calls": [attempt_in_brief(row) for row in calls],
            "turns": turns,
            "trees": trees,
        }
    )


def _tags(calls: Sequence[CallRow]) -> dict[str, str]:
    """The tags of a session without captured content: the tags of its latest call, with the call's origin."""
    if not calls:
        return {}
    origin = calls[0].origin
    return {**({} if origin is None else {"origin": origin}), **calls[0].tags}


async def models(subject: Subject, request: Request) -> Response:
    """The models to choose from."""
    if subject.engine is None:
        return answer([])
    found = subject.engine.models()
    return answer([{"id": each.id, "provider": each.provider, "state": each.state} for each in found])


async def preview(subject: Subject, request: Request) -> Response:
    """The request that would be sent to a model. Nothing is sent."""
    preview_request = await body_of(request, Preview)
    if not subject.shows_live_content:
        raise Refused(403, "content is not shown: the engine does not capture it unchanged")
    engine = await subject.started()
    return answer(
        await engine.preview(
            preview_request.session_id, preview_request.content or "…", model=preview_request.model or None
        )
    )


# --- The screen "Stream" ---


EVERY_SECONDS = 0.05
"""Seconds between two batches of a stream for one page."""


async def streams(subject: Subject, request: Request) -> Response:
    """The streams to which a reader can attach, with their readers."""
    if subject.engine is None:
        return answer([])
    return answer(subject.engine.streams.streams()[:500])


async def stream(subject: Subject, request: Request) -> Response:
    """The events of a stream after the last event that the page has, in batches."""
    if subject.engine is None:
        raise Refused(404, "streams exist only in the process that runs the turn. This view shows a trace")
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
    return EventStream(_batches(reader, shown))


def _next_seq(request: Request, stream_id: str) -> int:
    """The position from which to continue, as sent by the page, or by the browser when it reconnects."""
    last = request.headers.get("last-event-id") or request.query_params.get("after", "")
    if not last:
        return 0
    of, _, seq = last.rpartition(":")
    if of != stream_id or not seq.isdecimal() or len(seq) > 18:
        raise Refused(400, "not a valid position in this stream")
    return int(seq) + 1


async def _batches(reader: StreamReader[TurnEvent], shown: bool) -> AsyncGenerator[bytes]:
    async with reader:
        yield frame("shown", b"true" if shown else b"false")
        try:
            while batch := await reader.take():
                yield frame("events", as_json(_as_seen(batch, shown)), reader.frame_id)
        except CallboardError as error:  # in a cluster, only the first read detects a missing stream
            yield frame("gone", as_json({"error": str(error)}))
        else:
            yield frame("end", b"{}", reader.frame_id)


def _as_seen(events: Sequence[TurnEvent | StreamReset[TurnEvent]], shown: bool) -> list[object]:
    return [
        _of_reset(event, shown) if isinstance(event, StreamReset) else serialized(event, shown) for event in events
    ]


def _of_reset(event: StreamReset[TurnEvent], shown: bool) -> object:
    snapshot = [serialized(each, shown) for each in event.snapshot]
    return {"type": event.type, "snapshot": snapshot, "next_seq": event.next_seq}


def serialized(event: TurnEvent, shown: bool) -> object:
    """An event for a page: complete, or without content."""
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
    """The end of a message. It has the content only if the deltas were folded before the page connected."""
    content = [block_seen(block) for block in event.final_content] if shown else ()
    return {
        "type": event.type,
        "message_id": event.message_id,
        "stop_reason": event.stop_reason,
        "raw_stop_reason": event.raw_stop_reason,
        "usage": msgspec.structs.replace(event.usage, raw=None),
        "final_content": content,
    }
