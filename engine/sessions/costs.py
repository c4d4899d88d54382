"""The current costs of a session's calls, and how its messages come to show them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters import Message
from callboard.bus import Cost
from callboard.tracestore import CallFilter, Store


async def costs_of(store: Store, session_id: str) -> dict[str, Cost]:
    """The current costs of a session's calls, by request id."""
    rows = await store.calls(CallFilter(session_id=session_id), limit=None)
    return {row.request_id: row.cost for row in rows if row.cost is not None}


def reprice_messages(history: list[Message], costs: Mapping[str, Cost]) -> int:
    """Replace the costs of a history's messages in place. Messages themselves are frozen.

    Returns:
        The number of messages that changed.
    """
    changed = 0
    for position, message in enumerate(history):
        metadata = message.metadata
        cost = costs.get(metadata.request_id or "") if metadata is not None else None
        if metadata is not None and cost is not None and cost != metadata.cost:
            priced = msgspec.structs.replace(metadata, cost=cost)
            history[position] = msgspec.structs.replace(message, metadata=priced)
            changed += 1
    return changed
