"""Stored responses: store, continue, show and delete them, and run replies in the background.

OpenAI stores a response unless the request has ``store: false``. Here the gateway itself stores it, for every
provider. A request that continues a stored response is sent with the whole conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from callboard.adapters import Message, Role
from callboard.bus import CallboardError
from callboard.bus.values.base import Json, JsonObject

from .conversations import Conversations, EarlierConversation, StoredResponse
from .exchange import Exchange
from .failures import BadRequest, Failure
from .http import Incoming
from .responses_items import is_reference
from .responses_output import ResponseObject, error_object
from .responses_requests import input_items, joined, with_tools_of
from .wire import ClientRequest, ClientWire

if TYPE_CHECKING:
    from ..conversation.turn import Turn
    from ..runtime.runtime import Runtime


class Continued(NamedTuple):
    """A request with the conversation that it continues."""

    client_request: ClientRequest
    earlier: EarlierConversation | None
    """The conversation before the request; None if the conversation is new."""
    items: Sequence[Json] = ()
    """The request's own items."""

    @property
    def body(self) -> JsonObject:
        """The body with the whole conversation, for a provider that doesn't have the stored response."""
        body = self.client_request.body
        return body if self.earlier is None else joined(self.earlier.items, (), body)


class _Running(NamedTuple):
    turn: Turn
    over: asyncio.Event


class StoredResponses:
    def __init__(self, runtime: Runtime, conversations: Conversations) -> None:
        self._runtime = runtime
        self._conversations = conversations
        self._in_progress: dict[tuple[str, str], _Running] = {}

    async def read(self, wire: ClientWire, client: str, body: JsonObject, request: Incoming) -> Continued:
        """Read a request that may continue a stored response. Raises BadRequest."""
        previous = body.get("previous_response_id")
        if body.get("background") is True and body.get("store") is False:
            raise BadRequest("Background mode requires 'store' to be true.", param="background")
        if previous and body.get("conversation"):
            raise BadRequest(
                "Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
                param="previous_response_id",
                code="mutually_exclusive_parameters",
            )
        items = input_items(body)
        if not isinstance(previous, str) or not previous:
            return Continued(wire.read_request(body, request.headers), None, items)
        try:
            earlier = await self._conversations.earlier(client, previous)
        except Exception as error:
            if getattr(error, "failure", None) is None:
                raise
            raise BadRequest(
                f"Previous response with id '{previous[:100]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        past = {item.get("id") for item in earlier.items if isinstance(item, dict)}
        new = [
            item
            for item in items
            if not (isinstance(item, dict) and is_reference(item) and item.get("id") in past)
        ]
        client_request = wire.read_request({**with_tools_of(earlier.items, body), "input": new}, request.headers)
        return Continued(msgspec.structs.replace(client_request, body=body), earlier, new)

    async def store(self, client: str, continued: Continued, exchange: Exchange) -> None:
        """Store the reply to a request, unless the client opted out."""
        if continued.client_request.body.get("store") is not False:
            await self._store(client, continued, exchange, exchange.stored_body())

    async def _store(self, client: str, continued: Continued, exchange: Exchange, body: JsonObject) -> None:
        response, previous = exchange.response, continued.client_request.body.get("previous_response_id")
        reply = () if response is None else (Message(Role.ASSISTANT, response.content),)
        await self._conversations.store(
            client,
            StoredResponse(
                id=str(body.get("id")),
                body=body,
                items=tuple(continued.items),
                messages=(*continued.client_request.request.messages, *reply),
                previous_id=previous if isinstance(previous, str) and continued.earlier is not None else "",
                session_id=exchange.session_id,
            ),
        )

    # --- Replies in the background ---

    async def begin(
        self, client: str, continued: Continued, exchanging: AbstractAsyncContextManager[Exchange]
    ) -> JsonObject:
        """Start a reply in the background, and return its current response object."""
        started: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                async with exchanging as exchange:
                    await self._make(client, continued, exchange, started)
            except Exception as error:
                if started.done():
                    raise
                started.set_exception(error)

        self._runtime.host.spawn(work, name="a response in the background")
        return await started

    async def _make(
        self, client: str, continued: Continued, exchange: Exchange, started: asyncio.Future[JsonObject]
    ) -> None:
        exchange.body = continued.body
        shown = ResponseObject(continued.client_request, exchange.info())
        body = _plain(shown.at("queued"))
        place, running = (client, str(body["id"])), _Running(exchange.turn, asyncio.Event())
        self._in_progress[place] = running
        final = shown.at("failed", error=error_object(_BROKEN))
        try:
            await self._store(client, continued, exchange, body)
            started.set_result(body)
            await exchange.complete()
            final = {**exchange.stored_body(), "id": body["id"], "background": True}
        except Exception:
            if exchange.turn.ended_as == "cancelled":
                final = shown.at("cancelled")
            elif exchange.failure is not None:
                final = shown.at("failed", error=error_object(exchange.failure))
        finally:
            await self._store(client, continued, exchange, _plain(final))
            del self._in_progress[place]
            running.over.set()

    async def cancel(self, client: str, response_id: str) -> JsonObject:
        """Cancel a reply in the background, and return its response object. Raises BadRequest or ClientRefused."""
        running = self._in_progress.get((client, response_id))
        stored = await self._conversations.stored(client, response_id)
        if running is None:
            if stored.body.get("background") is not True:
                raise BadRequest("Cannot cancel a synchronous response.")
            return stored.body
        try:
            running.turn.cancel()
        except CallboardError:
            return stored.body
        await running.over.wait()
        return (await self._conversations.stored(client, response_id)).body

    # --- Stored responses ---

    async def show(self, client: str, response_id: str) -> JsonObject:
        body = (await self._conversations.stored(client, response_id)).body
        if (client, response_id) in self._in_progress:
            return {**body, "status": "in_progress"}
        return body

    async def items(self, client: str, response_id: str, query: Mapping[str, str]) -> JsonObject:
        """The input items of a stored response, the newest first unless ``order=asc``."""
        earlier = await self._conversations.earlier(client, response_id)
        output = (await self._conversations.stored(client, response_id)).body.get("output")
        output_items = len(output) if isinstance(output, list) else 0
        sent = earlier.items[: len(earlier.items) - output_items]
        items: list[JsonObject] = [
            {"id": f"item_{place}", **item} for place, item in enumerate(sent) if isinstance(item, dict)
        ]
        if query.get("order") != "asc":
            items.reverse()
        after = next((place for place, item in enumerate(items) if item["id"] == query.get("after")), -1)
        items = items[after + 1 :]
        limit = query.get("limit", "20")
        shown = items[: min(max(int(limit), 1), 100) if limit.isdecimal() else 20]
        return {
            "object": "list",
            "data": list[Json](shown),
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(items) > len(shown),
        }

    async def delete(self, client: str, response_id: str) -> JsonObject:
        await self._conversations.delete(client, response_id)
        return {"id": response_id, "object": "response", "deleted": True}


def _plain(body: object) -> JsonObject:
    """A body as plain values, without encoded parts."""
    found: JsonObject = msgspec.json.decode(msgspec.json.encode(body))
    return found


_BROKEN = Failure(kind="server", message="the reply was interrupted")
