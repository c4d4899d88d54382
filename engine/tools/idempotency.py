"""The key by which another system knows that a tool's call was made before.

A key is made of the things that a call keeps over every restart: its session, the message that made it, and its id
within that message. A provider may give the id of a call again in a later reply; a message's id is given once.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from callboard.adapters import Message, Role

_NAMESPACE = uuid.UUID("7d0d3b0e-58a7-5b0c-9a44-0c1f6a2f6c15")
"""The namespace of all keys. Another one would change each key of a call that waits for its approval now."""


def idempotency_key(session_id: str | None, messages: Sequence[Message], tool_call_id: str) -> str:
    """The key of a call, a UUID of 36 characters.

    Args:
        session_id: The id of the session; None if the call belongs to no session.
        messages: The conversation, in which the last reply is the message that made the call.
        tool_call_id: The id of the call.
    """
    made_by = ""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role is Role.ASSISTANT:
            made_by = messages[place].id or f"#{place}"
            break
    parts = (session_id or "", made_by, tool_call_id)
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))
