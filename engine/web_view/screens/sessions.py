"""*Session*: its messages and swaps of models, its calls, and what another provider would be sent."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import SessionModelChanged
from callboard.tracestore import CallFilter, SavedSession, SessionRow

from ..access import body_of
from ..answers import Refused, answer
from ..sign_in import Visitor
from ..subject import Subject
from .rows import attempt_in_brief, message_seen, turns_seen

MOST_SESSIONS = 300
MOST_MESSAGES = 500
MOST_TURNS = 10
"""The number of turns, the latest ones, whose waterfall is shown."""


class Preview(msgspec.Struct, forbid_unknown_fields=True):
    """What a page asks for."""

    session_id: str
    """The session."""
    model: str
    """The model that would be asked."""
    content: str = "…"
    """The text that the next turn would say."""


async def sessions(subject: Subject, request: Request) -> Response:
    """The sessions that are open here, and those of the trace, the latest first."""
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
    """One session: what was captured of it, its swaps, and its calls.

    Raises:
        Refused: There is no such session.
    """
    session_id = request.path_params["id"]
    visitor: Visitor = request.state.visitor
    await subject.flush()
    async with subject.reading() as store:
        saved = await store.saved_session(session_id)
        calls = await store.calls(CallFilter(session_id=session_id), 200)
        swaps = await store.events(session_id=session_id, topic=SessionModelChanged.topic_of(), limit=200)
        latest = list({row.turn_id: row for row in calls if row.turn_id is not None}.values())[:MOST_TURNS]
        turns = await turns_seen(store, latest)
    if saved is None and not calls:
        raise Refused(404, "the trace has no such session")
    content = "content" in visitor.scopes
    return answer(
        {
            "session_id": session_id,
            "name": None if saved is None else saved.name,
            "tags": {} if saved is None else saved.tags,
            "messages": _messages(saved, content),
            "shown": content,
            "system_prompt": _prompt(saved) if content else None,
            "missing": () if saved is None else saved.missing,
            "swaps": [{"ts_us": each.ts_us, **msgspec.to_builtins(each.data)} for each in swaps],
            "calls": [attempt_in_brief(row) for row in calls],
            "turns": turns,
        }
    )


def _prompt(saved: SavedSession | None) -> str | None:
    return None if saved is None or saved.setup is None else saved.setup.system_prompt


def _messages(saved: SavedSession | None, content: bool) -> list[object]:
    return [] if saved is None else [message_seen(each, content) for each in saved.messages[-MOST_MESSAGES:]]


async def models(subject: Subject, request: Request) -> Response:
    """The models that can be asked for, for the choice of another one."""
    if subject.engine is None:
        return answer([])
    found = subject.engine.models()
    return answer([{"id": each.id, "provider": each.provider, "state": each.state} for each in found])


async def preview(subject: Subject, request: Request) -> Response:
    """The request that a model would be sent. Nothing is sent.

    Raises:
        Refused: What is said is not shown here.
    """
    asked = await body_of(request, Preview)
    if not subject.shows_live_content:
        raise Refused(403, "what is said is not shown here: the engine does not capture it as it is")
    engine = await subject.started()
    return answer(await engine.preview(asked.session_id, asked.content or "…", model=asked.model or None))
