"""The list of sessions: open ones, and stored ones."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.tracestore import SessionRow

from ..routing.model_choice import in_words
from ..runtime.runtime import Runtime


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is open here, stored, or both."""

    session_id: str
    """The session's id."""
    name: str | None
    """The session's name, for people."""
    model: str
    """The model of its next turn, in words."""
    tags: dict[str, str]
    """The tags of its calls."""
    open: bool
    """Whether it is open here."""
    stored: SessionRow | None = None
    """Its row in the trace; None if nothing of it is there yet."""


async def listed(runtime: Runtime, limit: int | None, tags: Mapping[str, str] | None = None) -> list[SessionInfo]:
    """The sessions with these tags that are open, then those of the trace, the latest first."""
    wanted = dict(tags or {}).items()
    await runtime.host.start()
    live = {name: state for name, state in runtime.sessions.states.items() if wanted <= state.tags.items()}
    rows: dict[str, SessionRow] = {}
    if runtime.store is not None:
        await runtime.host.flush()
        node = runtime.node
        store = runtime.store if node is None or node.ownership is None else await node.shared_trace()
        rows = {row.session_id: row for row in await store.sessions(limit, tags=tags)}
    found = [
        SessionInfo(
            session_id=state.id,
            name=state.name,
            model=in_words(state.model),
            tags=state.tags,
            open=True,
            stored=rows.pop(state.id, None),
        )
        for state in live.values()
    ]
    found += [
        SessionInfo(
            session_id=row.session_id, name=row.name, model=row.model or "", tags=row.tags, open=False, stored=row
        )
        for row in rows.values()
    ]
    return found[:limit]
