"""Background replies: one call that is sent once and resumed after every break.

    asking      the request is sent; it is never repeated, because each request is billed
    reading     the reply's id is known, and its stream is read
    broken      the connection is lost; the rest of the stream is requested after a wait
    looking     there is no stream: the reply is polled until it is complete, and read whole
    over        the reply is complete, failed, or was cancelled; or the wait was given up

A broken connection does not end the attempt. Only the provider or a cancellation does. Cancelling a call also
cancels the reply at the provider, which reports the billed usage. If the reader leaves or the process ends, the
reply can be resumed by its id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Self, TypeVar

import anyio
import msgspec

from callboard.bus.errors import (
    AdapterError,
    AuthError,
    CancelledError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    RequestTimeoutError,
)
from callboard.bus.log import Log
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import StopReason

from ..contract import AttemptAccepted, AttemptObserver, CanonicalRequest, CanonicalResponse
from ..http.attempts import was_not_processed
from ..http.call import HttpCall
from ..http.retry import PollPolicy, backoff_delay, is_passing
from ..http.stream import EventWait
from ..http.wire import HttpClient
from ..requests.history_target import WireCall
from ..transport.transport import HttpReply, close_reply, exchange, read_body, read_error_body
from .wires import BackgroundWire, NumberedNormaliser

T = TypeVar("T")

_log = Log("adapters.background")

WHOLE_TIME = 86_400.0
"""The default time limit of a background reply in seconds. The limits of other calls would be too short."""

POLLING = PollPolicy(first=1.0, longest=15.0)
"""The times of polls, and the longest time to wait for a connection."""

CANCEL_SECONDS = 4.0
"""Seconds for cancelling a call at the provider; the engine waits a little longer."""

_CANCEL_AGAIN = 0.25
"""Seconds between two cancellation requests."""


class BackgroundCall(HttpCall):
    """One call with all its attempts and connections."""

    def __init__(
        self,
        client: HttpClient,
        wire: BackgroundWire,
        request: CanonicalRequest,
        on_attempt: AttemptObserver | None,
        *,
        stream: bool,
    ) -> None:
        super().__init__(client, request, on_attempt, stream=stream)
        self._wire = wire
        self.response_id = request.response_id
        """The provider's id of the reply; empty until known."""
        self.left = False
        """Whether the reply is left at the provider, to be resumed later."""
        self.lost = False
        """Whether the request was sent but the outcome is unknown."""
        if request.timeout_seconds is None:
            self.timeout_seconds = WHOLE_TIME
        if request.response_id:
            self._next_reason = "taken_up"
        self._failing_since: float | None = None
        self._failures = 0
        self._cancelling = anyio.Lock()
        self._cancel_sent = False
        self._reply: HttpReply | None = None

    def prepare_attempt(self) -> None:
        super().prepare_attempt()
        self.response_id = self.request.response_id
        self.answered()

    async def write(self) -> WireCall:
        if self.request.response_id and not self.request.messages:  # resumed by its id only
            self.written = WireCall("", b"")
            return self.written
        written = await super().write()
        self.written = msgspec.structs.replace(written, once=True)
        return self.written

    # --- The whole reply ---

    async def complete(self) -> CanonicalResponse:
        try:
            while True:
                self.begin_attempt()
                try:
                    return await self._complete()
                except AdapterError as error:
                    await self._next_or_raise(error)
        except CancelledError as error:
            await self.cancel_at_provider()
            error.usage = self.usage_so_far()
            raise
        except AdapterError as error:
            await self._end_of(error)
            raise
        finally:
            self.ended = True

    async def _next_or_raise(self, error: AdapterError) -> None:
        """Wait for another attempt. Raise the error if a reply may be in progress, because another attempt would
        be billed.
        """
        if self.lost or self.request.response_id:
            self.identify(error)
            raise error
        await self.back_off_or_raise(error)

    async def _complete(self) -> CanonicalResponse:
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

    # --- The stream ---

    async def pieces(self) -> AsyncGenerator[list[StreamEvent]]:
        """The events of the reply in batches, until the reply ends or is cancelled."""
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
                if normaliser.announced or self.cancelled or self.out_of_time() or not normaliser.response_id:
                    raise self._unless_unknown(error) from error
                if isinstance(error, RequestTimeoutError):
                    self.answered()  # the connection was silent but intact
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
        reply = self._reply
        assert reply is not None
        chunk = await self.wait(reply.chunk, waits.remaining(), what="the next event")
        events = normaliser.close() if chunk is None else normaliser.feed(chunk)
        if normaliser.response_id and not self.response_id:
            self._note_id(normaliser.response_id)
        if normaliser.error is not None:
            raise normaliser.error
        return events

    async def _attach(self, normaliser: NumberedNormaliser) -> None:
        """Request the rest of the stream, after its last event. If the provider has no such stream, no reply is
        open afterwards.
        """
        restarted = normaliser.number is None and self.assembler.started
        while self.streamed and not restarted:
            try:
                reply = await self._open(self._wire.attach(self.response_id, normaliser.number))
                # the server has sent the reply itself, as for polling
                if "json" in reply.headers.get("content-type", ""):
                    await close_reply(reply)
                else:
                    self._reply = reply
                return
            except NotFoundError as error:
                await self._broken(self._gone(error))
            except InvalidRequestError:
                return  # the reply has no stream, or its events have expired
            except AdapterError as error:
                await self._broken(error)

    async def _missing(self, normaliser: NumberedNormaliser) -> list[StreamEvent]:
        """Poll a reply without a stream until the reply is complete, and return the missing events."""
        reply, body = await self._looked()
        self._reply = reply
        try:
            return normaliser.take_whole(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self.client.unreadable(body, reply.headers, error) from error

    def response_of_stream(self) -> CanonicalResponse | None:
        """The response after the stream; None if the stream never started."""
        if not self.assembler.complete or self.assembler.usage is None:
            return None
        return self.response(self.written or WireCall("", b""), self._reply)

    async def close_connection(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            await close_reply(reply)

    # --- One exchange ---

    async def _ask(self, written: WireCall, accept: str) -> HttpReply:
        """Send the request once."""
        request = await self.prepare_request(written, accept=accept)
        self.sent = True
        reply = await self._of_creation(lambda: self.client.transport.send(request))
        if reply.status < 300:
            self.key_was_taken()
            return reply
        raise self._unless_unknown(await self._error_of(reply))

    async def _of_creation(self, step: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self.wait(step, self.client.config.first_event_timeout, what="the reply")
        except CancelledError:
            raise
        except AdapterError as error:
            raise self._unless_unknown(error) from error

    def _unless_unknown(self, error: AdapterError) -> AdapterError:
        """Return the error, or OutcomeUnknownError if the request was sent and a reply may be in progress."""
        if self.response_id or self.cancelled or was_not_processed(error):
            return error
        message = f"{self.client.name}: the request was sent. Its reply may run in the background and be billed"
        unknown = OutcomeUnknownError(f"{message}: {error}", provider_status=error.provider_status)
        unknown.usage = self.usage_so_far()
        return unknown

    async def _question(self, call: WireCall) -> tuple[HttpReply, bytes]:
        request = await self.prepare_request(call)
        limit = self.client.config.first_event_timeout
        reply, body = await self.wait(
            lambda: exchange(self.client.transport, request), limit, what="the reply", over=request
        )
        if reply.status < 300:
            return reply, body
        error = self.client.error_of(body, reply)
        raise self._gone(error) if isinstance(error, NotFoundError) else error

    async def _error_of(self, reply: HttpReply) -> AdapterError:
        try:
            limit = self.client.config.first_event_timeout
            body = await self.wait(lambda: read_error_body(reply), limit, what="the error's body")
        finally:
            await close_reply(reply)
        return self.client.error_of(body, reply)

    def _gone(self, error: AdapterError) -> AdapterError:
        message = f"{self.client.name} does not have reply {self.response_id}, or no longer has it: {error}"
        return OutcomeUnknownError(message, provider_status=error.provider_status)

    def answered(self) -> None:
        """Reset the count of breaks, because the provider has answered."""
        self._failing_since, self._failures = None, 0

    async def _broken(self, error: AdapterError) -> None:
        """Wait before the next request."""
        if isinstance(error, CancelledError) or self.cancelled or self.out_of_time():
            raise error
        if isinstance(error, AuthError) and await self._has_new_key():  # the key was replaced
            return
        now = anyio.current_time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        unknown = isinstance(error, OutcomeUnknownError) or not is_passing(error)
        if unknown or now - self._failing_since >= POLLING.give_up_after:
            self.lost = True
            raise error
        hint = error.retry_after_seconds
        delay = backoff_delay(self._failures, POLLING.schedule(), self.client.clock.random())
        self._failures += 1
        await self._pause(delay if hint is None else min(hint, POLLING.give_up_after))

    async def _pause(self, seconds: float) -> None:
        await self.wait(lambda: anyio.sleep(seconds), what="another look")

    async def _open(self, call: WireCall) -> HttpReply:
        """The reply to the request for a stream. Raises its error."""
        request = await self.prepare_request(call, accept="text/event-stream")
        limit = self.client.config.first_event_timeout
        reply = await self.wait(lambda: self.client.transport.send(request), limit, what="the reply", over=request)
        if reply.status < 300:
            return reply
        raise await self._error_of(reply)

    def _note(self, body: bytes) -> bool:
        """Record the state of a reply. Return whether it has ended."""
        try:
            status = self._wire.status(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self._unless_unknown(self.client.unreadable(body, {}, error)) from error
        if not status.response_id:
            if status.done:
                return True
            raise self._unless_unknown(self.client.unreadable(body, {}, "it has no id"))
        self._note_id(status.response_id)
        return status.done

    def _note_id(self, response_id: str) -> None:
        self.response_id = response_id
        self.assembler.response_id = response_id
        self.report(AttemptAccepted(self.attempt, response_id))

    # --- Early end ---

    async def cancel(self, *, at_once: bool = False) -> None:
        """Cancel the call, and the reply at the provider. With `at_once`, the provider continues the reply."""
        self.left = self.left or at_once
        await super().cancel(at_once=True)

    async def cancelled_end(self) -> list[StreamEvent]:
        """End a cancelled stream with the usage that the provider reports. Idempotent."""
        if self.attempt == 0:
            self.assembler = self.new_assembler()
        await self.cancel_at_provider()
        self.assembler.abort(StopReason.CANCELLED, self.usage_so_far())
        return self.assembler.take()

    async def cancel_at_provider(self) -> None:
        """Cancel the reply at the provider and record its usage. A failure is only logged."""
        async with self._cancelling:
            if self._cancel_sent or self.left or not self.response_id or not self.sent:
                return
            self._cancel_sent = True
            with anyio.move_on_after(CANCEL_SECONDS) as scope:
                while True:
                    if await self._cancel_once():
                        break
                    await anyio.sleep(_CANCEL_AGAIN)
        if scope.cancelled_caught:
            _log.warning("background_not_cancelled", response_id=self.response_id, provider=self.client.name)

    async def _cancel_once(self) -> bool:
        current_key = self._key.known
        try:
            error = await self._asked_for_usage(self._wire.cancel(self.response_id))
            if error is None:
                return True
            if isinstance(error, AuthError) and current_key is not None and await self._key.replaced(current_key):
                return False
        except AdapterError as failure:
            return not is_passing(failure)
        if is_passing(error):
            return False
        try:  # the reply has ended and can't be cancelled
            await self._asked_for_usage(self._wire.look(self.response_id))
        except AdapterError:
            return False
        return True

    async def _asked_for_usage(self, call: WireCall) -> AdapterError | None:
        """Send a request about the reply, and record the usage in its answer. Return the provider's error."""
        key = self._key.known
        request = self.client.request(call, None if key is None else key.value)
        reply, body = await exchange(self.client.transport, request)
        if reply.status >= 300:
            return self.client.error_of(body, reply)
        try:
            self.assembler.usage = self._wire.usage(body, self.assembler) or self.assembler.usage
        except (msgspec.MsgspecError, UnicodeError) as error:
            _log.warning("background_unreadable", error, response_id=self.response_id)
        return None

    async def _end_of(self, error: AdapterError) -> None:
        """Cancel the reply of a call that has timed out, and add the reply's usage to the error."""
        if self.response_id and self.out_of_time():
            await self.cancel_at_provider()
            error.usage = self.usage_so_far()


class BackgroundStream:
    """A streamed reply; see `adapters.contract.AdapterStream` for its guarantees.

    If the reader leaves early, the provider continues the reply. Only the adapter's `cancel()` ends it.
    """

    def __init__(self, call: BackgroundCall) -> None:
        self._call = call
        self._pieces = call.pieces()
        self._ready: deque[StreamEvent] = deque()
        self._over = False
        self._response: CanonicalResponse | None = None
        call.on_cancel = self._cancelled_unread

    @property
    def response(self) -> CanonicalResponse | None:
        return self._response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._ready:
            if not await self._fill():
                raise StopAsyncIteration
        return self._ready.popleft()

    async def pump(self, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        while self._ready or await self._fill():
            if self._ready:
                ready = list(self._ready)
                self._ready.clear()
                sink(ready)

    async def _fill(self) -> bool:
        if self._over:
            return False
        try:
            self._ready += await anext(self._pieces)
        except StopAsyncIteration:
            self._over = True
            return False
        except BaseException:
            self._over = True
            raise
        self._response = self._call.response_of_stream()
        return True

    async def _cancelled_unread(self) -> None:
        """Cancel the reply of a call that was cancelled while no reader was active."""
        call = self._call
        if self._over or call.left:
            return
        self._over = True
        self._ready += await call.cancelled_end()
        self._response = call.response_of_stream()
        call.ended = True
        await self._pieces.aclose()

    async def aclose(self) -> None:
        """Close the socket. The provider continues an unfinished reply. Idempotent."""
        if not self._call.ended:
            await self._call.cancel(at_once=True)
            self._call.ended = True
        self._over = True
        self._ready.clear()
        await self._pieces.aclose()
        await self._call.close_connection()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
