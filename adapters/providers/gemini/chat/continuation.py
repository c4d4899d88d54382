"""A reply that reached the provider's limit for one request, and the request that goes on with it. Pure.

Such a reply ends with the reason CONTINUATION and a token, which becomes its last block. The request that goes on
has the same contents as the one before, without what the reply said, and the token. The rest comes as a reply of
its own, which may end in the same way. Once anything is said behind such a reply, it is a reply like any other.
"""

from __future__ import annotations

import msgspec

from callboard.adapters.contract import CanonicalRequest
from callboard.bus.values.content import OpaqueBlock
from callboard.bus.values.messages import Message, Role

FINISH_REASON = "CONTINUATION"
KIND = "continuationToken"
"""The token's name in a reply and in a request, and the kind of its block."""


def take_up(request: CanonicalRequest, provider: str) -> tuple[CanonicalRequest, str | None]:
    """The request as it is to be written, and the token with which a reply goes on.

    Args:
        request: The request. Replies at its end that wait to go on are left out.
        provider: The adapter's name. Another's token, or that of another model, says nothing here.
    """
    messages, token = request.messages, None
    while messages and (found := _token(messages[-1], provider, request.wire_model)) is not None:
        messages, token = messages[:-1], token or found
    return (request if token is None else msgspec.structs.replace(request, messages=messages)), token


def _token(message: Message, provider: str, model: str) -> str | None:
    last = message.content[-1] if message.role is Role.ASSISTANT and message.content else None
    if not isinstance(last, OpaqueBlock) or last.kind != KIND:
        return None
    raw = last.provider_raw
    token = raw.data.get(KIND) if raw.provider == provider and raw.model in (None, model) else None
    return token if isinstance(token, str) and token else None
