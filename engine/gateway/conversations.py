"""Conversations of clients: their sessions, the parts of replies that a client's wire can't carry, and stored
Responses.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters import CanonicalRequest, ContentBlock, Message
from callboard.bus.values.base import Json, JsonObject, ShortRepr

from ..engine import Engine
from .wire import ClientRequest


class Conversation(ShortRepr, frozen=True, kw_only=True):
    """A client's request, as part of its conversation."""

    client: str
    """The client's name; empty for a gateway without keys."""
    request: CanonicalRequest
    """The request to make. Its session id is set, and its history has what was kept here of earlier replies."""
    chain: bytes
    """A hash of the history and the session's mark."""

    @property
    def session_id(self) -> str:
        """The session of the conversation, for the trace and for the provider's prompt cache."""
        return self.request.session_id


class StoredResponse(ShortRepr, frozen=True, kw_only=True):
    """A reply that a client asked to store, with the conversation up to it."""

    id: str
    """The id as the client has it, ``resp_…``."""
    body: JsonObject
    """The body as the client got it."""
    items: tuple[Json, ...] = ()
    """The conversation in the client's wire: all input items of all requests so far, and all output items."""
    messages: tuple[Message, ...] = ()
    """The same conversation in the canonical form, the reply included."""
    input_items: int = 0
    """The number of items at the end of `items`, before the output, that this request brought."""
    session_id: str = ""
    """The session of the conversation."""
    created_us: int = 0
    """The time in microseconds since the epoch; set when it is stored."""


class Conversations:
    """The conversations of one gateway.

    Replies are kept in memory, and in the trace store if it keeps content unredacted. Both are bounded, and the
    oldest go first. Deleted content is deleted here, too.

    Args:
        engine: The engine.
        max_bytes: The bytes that are kept in memory.
        max_count: The number of entries that are kept in memory.
    """

    def __init__(self, engine: Engine, *, max_bytes: int = 64 * 1024 * 1024, max_count: int = 50_000) -> None: ...

    async def recognise(
        self, client: str, asked: ClientRequest, *, earlier: StoredResponse | None = None
    ) -> Conversation:
        """Find the conversation of a request, and put kept blocks into its history.

        The session is that of `earlier`, that of the client's hint, or that of the longest known part of the
        history. Otherwise it is a new one.

        Args:
            client: The client's name; empty for a gateway without keys.
            asked: The request.
            earlier: The stored reply that the request continues. Its messages go before those of the request.
        """
        raise NotImplementedError

    async def keep(self, conversation: Conversation, content: Sequence[ContentBlock]) -> None:
        """Keep what the client can't send back of a reply. Call it once, when the reply has ended.

        A store that can't be written is logged, and costs nothing else.
        """

    async def store(self, client: str, response: StoredResponse) -> None:
        """Store a reply under its id, for this client only."""

    async def stored(self, client: str, response_id: str) -> StoredResponse:
        """A stored reply.

        Raises:
            ClientRefused: ``not_found``: this client has no such reply.
        """
        raise NotImplementedError

    async def delete(self, client: str, response_id: str) -> None:
        """Delete a stored reply.

        Raises:
            ClientRefused: ``not_found``: this client has no such reply.
        """
