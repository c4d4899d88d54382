"""Conversations of clients: their sessions, their stored Responses, and the parts of replies that a client can't
send back.

A client's hint selects the session of a conversation. Without a hint, the hash chain over the history does, see
`histories`. All entries are separate for each client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import anyio
import msgspec

from callboard.adapters import CanonicalRequest, ContentBlock, Message, Role, ToolUseBlock
from callboard.bus import SessionCreated
from callboard.bus.errors import StoreError
from callboard.bus.log import Log
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.tracestore import decode_json, encode_json
from callboard.tracestore.gateway import ConversationEntry, GatewayTables, KeptKind

from .clients import CLIENT_TAG, LOOK_US, ClientRefused, tables_of
from .histories import (
    Run,
    StoredReply,
    after_reply,
    chains,
    chosen,
    fingerprint,
    is_worth_keeping,
    put_in,
    replies_in,
    session_named,
)
from .wire import ClientRequest

if TYPE_CHECKING:
    from ..engine import Engine

STORED_ROWS = 100_000
"""The maximum number of conversation entries in a trace, for all gateways together. The oldest entries are removed
first.
"""

STORED_BYTES = 512 * 1024 * 1024
"""The maximum size of all conversation entries in bytes."""

TRIM_EVERY = 256
"""The number of entries that this process writes between two checks of these limits."""

LONGEST_CHAIN = 10_000
"""The maximum number of stored Responses in one conversation."""

ANNOUNCED = 10_000
"""The maximum number of sessions that this process remembers as published."""

_ENTRY_BYTES = 512
"""An estimate of an entry's memory in addition to its content."""

_log = Log("engine.gateway.conversations")


class Conversation(ShortRepr, frozen=True, kw_only=True):
    client: str
    """The client's name; empty for a gateway without keys."""
    request: CanonicalRequest
    """The request to make. It has the session id, and its history has the kept blocks of earlier replies."""
    chain: bytes = b""
    """The hash chain of the history; empty if the client sent the conversation's id."""

    @property
    def session_id(self) -> str:
        """The session id of the conversation, for the trace and for the provider's prompt cache."""
        return self.request.session_id


class StoredResponse(ShortRepr, frozen=True, kw_only=True):
    """A reply that was stored for a client, with its request."""

    id: str
    """The client's id of the reply, ``resp_…``."""
    body: JsonObject
    """The body that the client received."""
    items: tuple[Json, ...] = ()
    """The input items of the request, in the client's wire format, without those of earlier requests."""
    messages: tuple[Message, ...] = ()
    """The messages of the request, without earlier messages, followed by the reply."""
    previous_id: str = ""
    """The stored reply that the request continued; empty if it continued none."""
    session_id: str = ""
    """The session id of the conversation."""


class EarlierConversation(ShortRepr, frozen=True, kw_only=True):
    """A conversation up to a stored reply."""

    items: tuple[Json, ...]
    """All input and output items, in the client's wire format."""
    messages: tuple[Message, ...]
    """All messages, in the canonical form."""
    session_id: str
    """The session id of the conversation."""


# --- Memory ---


class _Entry(msgspec.Struct, frozen=True):
    session_id: str
    value: object
    size: int


class _Memory:
    """Entries by client, kind and key. The least recently used are dropped first."""

    def __init__(self, max_bytes: int, max_count: int) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._entries: OrderedDict[tuple[str, KeptKind, bytes], list[_Entry]] = OrderedDict()
        self._bytes = self._count = 0

    def add(self, client: str, kind: KeptKind, key: bytes, entry: _Entry) -> None:
        place = client, kind, key
        self._entries.setdefault(place, []).append(entry)
        self._entries.move_to_end(place)
        self._bytes += entry.size
        self._count += 1
        while self._bytes > self._max_bytes or self._count > self._max_count:
            self._drop(next(iter(self._entries)))

    def get(self, client: str, kind: KeptKind, key: bytes) -> list[_Entry]:
        place = client, kind, key
        found = self._entries.get(place)
        if found is None:
            return []
        self._entries.move_to_end(place)
        return found

    def drop(self, client: str, kind: KeptKind, key: bytes) -> bool:
        """Remove entries. Returns whether there were any."""
        place = client, kind, key
        return place in self._entries and self._drop(place)

    def _drop(self, place: tuple[str, KeptKind, bytes]) -> bool:
        gone = self._entries.pop(place)
        self._bytes -= sum(entry.size for entry in gone)
        self._count -= len(gone)
        return True

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = self._count = 0


# --- The conversations of a gateway ---


class Conversations:
    """The conversations of one gateway.

    Entries are kept in memory, and also in the trace store if it captures content without redaction. Both have a
    limit, and the oldest entries are removed first. When content is deleted from the store, it is deleted from
    memory within a second.
    """

    def __init__(self, engine: Engine, *, max_bytes: int = 64 * 1024 * 1024, max_count: int = 50_000) -> None:
        self._runtime = engine._runtime
        self._memory = _Memory(max_bytes, max_count)
        self._looked_us: int | None = None
        self._looking = anyio.Lock()
        self._forgotten: int | None = None
        self._written = 0
        self._announced: dict[str, None] = {}

    async def recognise(
        self, client: str, client_request: ClientRequest, *, earlier: EarlierConversation | None = None
    ) -> Conversation:
        """Find the conversation of a request, and put kept blocks into its history.

        The session is the session of `earlier`, of the client's hint, or of the longest known part of the history.
        If there is none of these, the session is new.
        """
        await self._look()
        messages = client_request.request.messages
        replies = replies_in(messages)
        chain = b""
        if earlier is not None:
            session_id = earlier.session_id
        elif client_request.session_hint:
            session_id = session_named("hint", client, client_request.session_hint)
        else:
            prefixes, chain = chains(client, messages, replies)
            session_id = await self._session_of(client, prefixes)
        messages = await self._restored(client, session_id, messages, replies)
        if earlier is not None:
            messages = (*earlier.messages, *messages)
        request = msgspec.structs.replace(client_request.request, messages=messages, session_id=session_id)
        return Conversation(client=client, request=request, chain=chain)

    async def keep(self, conversation: Conversation, content: Sequence[ContentBlock]) -> None:
        """Keep the parts of a reply that the client can't send back. Call it once, at the reply's end.

        This returns when other processes can find the parts. If the store can't be written, that is only logged.
        """
        client, session_id = conversation.client, conversation.session_id
        self._announce(conversation)
        reply = Message(Role.ASSISTANT, tuple(content))
        key = fingerprint([reply])
        if not key:
            return
        some: list[tuple[KeptKind, bytes, object, bytes]] = []
        if is_worth_keeping(content):
            entry = StoredReply(tuple(content))
            some.append(("reply", key, entry, encode_json(entry)))
        if conversation.chain:
            some.append(("chain", after_reply(conversation.chain, key), session_id, b""))
        await self._keep(client, session_id, some)

    # --- Stored Responses ---

    async def store(self, client: str, response: StoredResponse) -> None:
        """Store a reply under its id, for this client only."""
        body = encode_json(response)
        await self._keep(client, response.session_id, [("response", response.id.encode(), response, body)])

    async def stored(self, client: str, response_id: str) -> StoredResponse:
        await self._look()
        found = await self._found(client, "response", [response_id.encode("utf-8", "surrogatepass")])
        values = [entry.value for entries in found.values() for entry in entries]
        if not values or not isinstance(values[-1], StoredResponse):
            raise _unknown(response_id)
        return values[-1]

    async def earlier(self, client: str, response_id: str) -> EarlierConversation:
        """The conversation up to a stored reply."""
        last = await self.stored(client, response_id)
        steps = [last]
        while steps[-1].previous_id:
            if len(steps) > LONGEST_CHAIN:
                raise _unknown(response_id)
            steps.append(await self.stored(client, steps[-1].previous_id))
        steps.reverse()
        items: list[Json] = []
        for step in steps:
            output = step.body.get("output")
            items += [*step.items, *(output if isinstance(output, list) else ())]
        messages = tuple(message for step in steps for message in step.messages)
        return EarlierConversation(items=tuple(items), messages=messages, session_id=last.session_id)

    async def delete(self, client: str, response_id: str) -> None:
        key = response_id.encode("utf-8", "surrogatepass")
        had = self._memory.drop(client, "response", key)
        tables = await self._tables()
        if not (tables is not None and await tables.drop_kept(client, "response", key)) and not had:
            raise _unknown(response_id)

    # --- Helpers ---

    def _announce(self, conversation: Conversation) -> None:
        """Publish the session's model and client, once in each process."""
        session_id, client = conversation.session_id, conversation.client
        if session_id in self._announced:
            return
        self._announced[session_id] = None
        if len(self._announced) > ANNOUNCED:
            del self._announced[next(iter(self._announced))]
        tags = {CLIENT_TAG: client} if client else {}
        self._runtime.bus.publish(
            SessionCreated(model=conversation.request.model, tags=tags), session_id=session_id
        )

    async def _session_of(self, client: str, prefixes: Sequence[bytes]) -> str:
        """The session id of the last known part of a history."""
        for chain in reversed(prefixes):
            for entry in reversed(self._memory.get(client, "chain", chain)):
                return entry.session_id
        found = await self._found(client, "chain", prefixes)
        for chain in reversed(prefixes):
            for entry in reversed(found.get(chain, [])):
                return entry.session_id
        # The conversation started before this process, without a store. The next request must get the same id.
        if prefixes:
            return session_named("chain", client, prefixes[0].hex())
        return self._runtime.clock.new_id("ses")

    async def _restored(
        self, client: str, session_id: str, messages: tuple[Message, ...], replies: Sequence[Run]
    ) -> tuple[Message, ...]:
        """The history, with kept blocks in place of the client's versions."""
        places: dict[bytes, list[Run]] = {}
        for run in replies:
            if run.print:
                places.setdefault(run.print, []).append(run)
        found = await self._found(client, "reply", list(places), session_id)
        joined: dict[int, Message] = {}
        gone: set[int] = set()
        for key, entries in found.items():
            of_session: list[StoredReply] = []
            others: list[StoredReply] = []
            for entry in entries:
                if isinstance(entry.value, StoredReply):
                    (of_session if entry.session_id == session_id else others).append(entry.value)
            sent = [_calls(messages[run.first : run.end]) for run in places[key]]
            for run, reply in zip(places[key], chosen(of_session, others, sent), strict=True):
                if reply is not None:
                    joined[run.first] = put_in(reply, messages[run.first : run.end])
                    gone.update(range(run.first + 1, run.end))
        if not joined:
            return messages
        return tuple(joined.get(place, message) for place, message in enumerate(messages) if place not in gone)

    async def _found(
        self, client: str, kind: KeptKind, keys: Sequence[bytes], session_id: str | None = None
    ) -> dict[bytes, list[_Entry]]:
        """The entries for some keys, from memory. If they are not in memory, from the store."""
        found = {key: entries for key in keys if (entries := self._memory.get(client, kind, key))}
        missing = [key for key in keys if not _has(found.get(key), session_id)]
        try:
            tables = await self._tables() if missing else None
            rows = [] if tables is None else await tables.entries(client, kind, missing)
        except StoreError as error:
            _log.warning("kept_not_read", kind=kind, error=str(error))
            return found
        read: dict[bytes, list[_Entry]] = {}
        for row in rows:
            try:
                entry = _Entry(row.session_id, _decoded(kind, row), len(row.body) + _ENTRY_BYTES)
            except (ValueError, TypeError) as error:
                _log.warning("kept_not_understood", kind=kind, error=str(error))
            else:
                read.setdefault(row.key, []).append(entry)
        for key, entries in read.items():
            self._memory.drop(client, kind, key)
            for entry in entries:
                self._memory.add(client, kind, key, entry)
        return found | read

    async def _keep(
        self, client: str, session_id: str, some: Sequence[tuple[KeptKind, bytes, object, bytes]]
    ) -> None:
        for kind, key, value, body in some:
            self._memory.add(client, kind, key, _Entry(session_id, value, len(body) + _ENTRY_BYTES))
        now_us = self._runtime.clock.now_us()
        rows = [
            ConversationEntry(client=client, kind=kind, key=key, session_id=session_id, body=body, ts_us=now_us)
            for kind, key, _, body in some
        ]
        try:
            tables = await self._tables()
            if tables is None or not rows:
                return
            await tables.keep(rows)
            self._written += len(rows)
            if self._written >= TRIM_EVERY:
                self._written = 0
                await tables.trim_kept(STORED_ROWS, STORED_BYTES)
        except StoreError as error:
            _log.warning("kept_not_written", error=str(error))

    async def _tables(self) -> GatewayTables | None:
        """The gateway's tables in the store, if content is captured without redaction."""
        return await tables_of(self._runtime) if self._runtime.keeps_all_content else None

    async def _look(self) -> None:
        """Clear the memory if content was deleted from the store since the last check."""
        if self._is_fresh():
            return
        async with self._looking:
            if self._is_fresh():
                return
            try:
                tables = await tables_of(self._runtime)
                forgotten = None if tables is None else (await tables.changes()).forgotten
            except StoreError as error:
                _log.warning("deletions_not_read", error=str(error))
            else:
                if self._forgotten not in (None, forgotten):
                    self._memory.clear()
                self._forgotten = forgotten
            self._looked_us = self._runtime.clock.now_us()

    def _is_fresh(self) -> bool:
        looked = self._looked_us
        return looked is not None and 0 <= self._runtime.clock.now_us() - looked < LOOK_US


def _has(entries: Sequence[_Entry] | None, session_id: str | None) -> bool:
    """Whether there are entries. With a session, whether one of them belongs to it."""
    if not entries or session_id is None:
        return bool(entries)
    return any(entry.session_id == session_id for entry in entries)


def _calls(messages: Iterable[Message]) -> list[ToolUseBlock]:
    return [block for message in messages for block in message.tool_uses]


def _decoded(kind: KeptKind, row: ConversationEntry) -> object:
    match kind:
        case "reply":
            return msgspec.convert(decode_json(row.body), StoredReply)
        case "response":
            return msgspec.convert(decode_json(row.body), StoredResponse)
        case "chain":
            return row.session_id


def _unknown(response_id: str) -> ClientRefused:
    return ClientRefused("missing", f"there is no stored response {response_id[:200]!r}")
