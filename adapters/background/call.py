"""One call whose reply the provider makes in the background: asked for once, and taken up after every break.

    asking      the request is sent; it is never sent twice, for each time would be paid
    reading     the reply's id is known, and its stream is read
    broken      the connection is lost; after a wait the stream is asked for behind its last event
    looking     there is no stream (any more): the reply is looked at until it is over, and read whole
    over        the reply is whole, or failed, or was cancelled at the provider; or we gave up asking

A break is no failure of the attempt: the provider goes on, and so does the attempt. Only the provider's own word
ends it, or our own: a cancelled call is cancelled at the provider, too, which tells what it will bill. A call
whose reader leaves, or whose process ends, leaves its reply behind, to be taken up by its id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from callboard.bus.errors import (
    AdapterError,
    CancelledError,
    InvalidRequestError,
    NotFoundError,
    RequestTimeoutError,
)
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import StopReason

from ..contract import AttemptObserver, CanonicalRequest, CanonicalResponse
from ..http.client import HttpClient
from ..http.retry import backoff_delay
from ..http.stream import EventWait
from ..http.wire_call import WireCall
from ..transport.transport import HttpReply, close_reply, read_body
from .exchanges import POLLING, BackgroundExchanges
from .wire import BackgroundWire, NumberedNormaliser


class BackgroundCall(BackgroundExchanges):
    """One call over all its attempts and connections."""

    def __init__(
        self,
        client: HttpClient,
        wire: BackgroundWire,
        request: CanonicalRequest,
        on_attempt: AttemptObserver | None,
        *,
        stream: bool,
    ) -> None:
        super().__init__(client, wire, request, on_attempt, stream=stream)
        self._reply: HttpReply | None = None

    # -- the whole reply

    async def complete(self) -> CanonicalResponse:
        """The reply, once it is whole.

        Raises:
            AdapterError: The call failed, or was cancelled.
        """
        try:
            while True:
                self.begin_attempt()
                try:
                    return await self._whole()
                except AdapterError as error:
                    await self._next_or_raise(error)
        except CancelledError as error:
            await self.tell_cancel()
            error.usage = self.usage_so_far()
            raise
        except AdapterError as error:
            await self._end_of(error)
            raise
        finally:
            self.ended = True

    async def _next_or_raise(self, error: AdapterError) -> None:
        """Wait for another attempt. Raises the error where none may follow: a reply may still be under way."""
        if self.lost or self.request.response_id:
            self.identify(error)
            raise error
        await self.back_off_or_raise(error)

    async def _whole(self) -> CanonicalResponse:
        written = self.written or await self.write()
        if self.response_id:
            self.sent = True
            reply, body = await self._looked()
        else:
            reply = await self._ask(written, "application/json")
            try:
                body = await self._of_creation(lambda: read_body(reply))
            finally:
                await close_reply(reply)
            if not self._note(body):
                reply, body = await self._looked()
        self.read_whole(body, reply)
        self.first_event(reply.headers)
        return self.response(written, reply)

    async def _looked(self) -> tuple[HttpReply, bytes]:
        """The reply when it is over."""
        looks, request = 0, self._wire.look(self.response_id)
        schedule = POLLING.schedule()
        while True:
            try:
                reply, body = await self._question(request)
                if self._wire.status(body).done:
                    return reply, body
                self.answered()
            except (msgspec.MsgspecError, UnicodeError) as error:
                await self._broken(self.client.unreadable(b"", {}, error))
                continue
            except AdapterError as error:
                await self._broken(error)
                continue
            await self._pause(backoff_delay(looks, schedule, self.client.clock.random()))
            looks += 1

    # -- the stream

    async def pieces(self) -> AsyncGenerator[list[StreamEvent]]:
        """The events of the reply, as they come together. It ends when the reply does, also by cancelling.

        Raises:
            AdapterError: The call failed.
        """
        delivered = False
        try:
            while True:
                try:
                    self.begin_attempt()
                    async for events in self._followed():
                        if events and not delivered:
                            delivered = True
                            self.first_event({} if self._reply is None else self._reply.headers)
                        if events:
                            yield events
                    return
                except CancelledError:
                    raise
                except AdapterError as error:
                    if delivered:
                        self.identify(error)
                        raise
                    await self._next_or_raise(error)
        except CancelledError:
            yield await self.cancelled_end()
        except AdapterError as error:
            await self._end_of(error)
            if delivered:
                self.assembler.abort(StopReason.ERROR, self.usage_so_far())
                error.content, error.usage = self.assembler.final_content, self.assembler.usage
                yield self.assembler.take()
            raise
        finally:
            self.ended = True
            await self.close_connection()

    async def _followed(self) -> AsyncGenerator[list[StreamEvent]]:
        """The events of one attempt, over all its connections."""
        written = self.written or await self.write()
        normaliser = self._wire.normaliser(self.assembler)
        if self.response_id:
            normaliser.response_id = self.response_id
            self.sent = True
            await self._attach(normaliser)
        else:
            self._reply = await self._ask(written, "text/event-stream")
            if "json" in self._reply.headers.get("content-type", ""):
                opened = self._reply
                body = await self._of_creation(lambda: read_body(opened))
                self._note(body)
                await self.close_connection()
        waits = EventWait(self.client.config.stream_read_timeout)
        while not normaliser.finished:
            if self._reply is None:
                yield await self._missing(normaliser)
                return
            try:
                events = await self._read(normaliser, waits)
            except AdapterError as error:
                await self.close_connection()
                if normaliser.told or self.cancelled or self.out_of_time() or not normaliser.response_id:
                    raise self._unless_unknown(error) from error
                if isinstance(error, RequestTimeoutError):
                    self.answered()  # it was only silent
                else:
                    await self._broken(error)
                normaliser.reopen()
                waits = EventWait(self.client.config.stream_read_timeout)
                await self._attach(normaliser)
                continue
            if events:
                self.answered()
            yield events

    async def _read(self, normaliser: NumberedNormaliser, waits: EventWait) -> list[StreamEvent]:
        """The next piece of the stream."""
        reply = self._reply
        assert reply is not None
        chunk = await self.wait(reply.chunk, waits.left(), what="the next event")
        events = normaliser.close() if chunk is None else normaliser.feed(chunk)
        if normaliser.response_id and not self.response_id:
            self._known(normaliser.response_id)
        if normaliser.error is not None:
            raise normaliser.error
        return events

    async def _attach(self, normaliser: NumberedNormaliser) -> None:
        """Ask for the stream behind its last event. No reply is open afterwards if there is no stream."""
        began_anew = normaliser.number is None and self.assembler.started
        while self.streamed and not began_anew:
            try:
                reply = await self._open(self._wire.attach(self.response_id, normaliser.number))
                if "json" in reply.headers.get("content-type", ""):  # the reply itself, which is looked at
                    await close_reply(reply)
                else:
                    self._reply = reply
                return
            except NotFoundError as error:
                await self._broken(self._gone(error))
            except InvalidRequestError:
                return  # it was made without a stream, or its events are no longer kept
            except AdapterError as error:
                await self._broken(error)

    async def _missing(self, normaliser: NumberedNormaliser) -> list[StreamEvent]:
        """What is missing of a reply without a stream."""
        reply, body = await self._looked()
        self._reply = reply
        try:
            return normaliser.take_whole(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self.client.unreadable(body, reply.headers, error) from error

    def response_of_stream(self) -> CanonicalResponse | None:
        """The response, once the stream is over; None if it never began."""
        if not self.assembler.complete or self.assembler.usage is None:
            return None
        return self.response(self.written or WireCall("", b""), self._reply)

    async def close_connection(self) -> None:
        """Close the reply that is read, if there is one."""
        reply, self._reply = self._reply, None
        if reply is not None:
            await close_reply(reply)
