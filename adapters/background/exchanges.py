"""What a background call asks of its provider: the reply itself, once; how it stands; and that it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import msgspec

from callboard.bus.errors import AdapterError, AuthError, CancelledError, NotFoundError, OutcomeUnknownError
from callboard.bus.log import Log
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import StopReason

from ..contract import AttemptAccepted, AttemptObserver, CanonicalRequest
from ..http.call import HttpCall
from ..http.client import HttpClient
from ..http.retry import backoff_delay
from ..http.single_reply import came_to_nothing
from ..http.wire_call import WireCall
from ..transport.transport import HttpReply, close_reply, exchange, read_error_body
from ..videos.waiting import PollPolicy, is_passing
from .wire import BackgroundWire

T = TypeVar("T")

_log = Log("adapters.background")

WHOLE_TIME = 86_400.0
"""Seconds for a reply in the background, unless the request says otherwise: the usual limit is for calls that end
with their connection."""

POLLING = PollPolicy(first=1.0, longest=15.0)
"""When a reply is looked at, and for how long breaks are waited out."""

CANCEL_SECONDS = 4.0
"""Seconds in which the provider is told that a call is cancelled; the engine waits a little longer than that."""

_CANCEL_AGAIN = 0.25
"""Seconds between two requests to end a reply."""


class BackgroundExchanges(HttpCall):
    """One call, as far as it is single requests and their answers."""

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
        """The provider's id of the reply; empty before it is known."""
        self.left = False
        """Whether the reply is left to the provider, to be taken up later."""
        self.lost = False
        """Whether the reply may still be made, but we could not learn what becomes of it."""
        if request.timeout_seconds is None:
            self.timeout_seconds = WHOLE_TIME
        if request.response_id:
            self._next_reason = "taken_up"
        self._failing_since: float | None = None
        self._failures = 0
        self._cancelling = anyio.Lock()
        self._cancel_told = False

    def prepare_attempt(self) -> None:
        super().prepare_attempt()
        self.response_id = self.request.response_id
        self.answered()

    async def write(self) -> WireCall:
        if self.request.response_id and not self.request.messages:  # whoever takes it up may know its id alone
            self.written = WireCall("", b"")
            return self.written
        written = await super().write()
        self.written = msgspec.structs.replace(written, once=True)
        return self.written

    # -- one exchange

    async def _ask(self, written: WireCall, accept: str) -> HttpReply:
        """Ask for the reply, once.

        Raises:
            OutcomeUnknownError: The request was sent, and nobody knows what became of it.
        """
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
        """The error; of a request that was sent and may be under way without our knowing it, another one."""
        if self.response_id or self.cancelled or came_to_nothing(error):
            return error
        said = (
            f"{self.client.name}: the request was sent, and its reply may be made in the background and be billed"
        )
        unknown = OutcomeUnknownError(f"{said}: {error}", provider_status=error.provider_status)
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
        said = f"{self.client.name} knows no reply {self.response_id} (any more): {error}"
        return OutcomeUnknownError(said, provider_status=error.provider_status)

    def answered(self) -> None:
        """The provider has answered, so that breaks count anew."""
        self._failing_since, self._failures = None, 0

    async def _broken(self, error: AdapterError) -> None:
        """Wait before the provider is asked again.

        Raises:
            AdapterError: Asking can't help, or never did for long. The reply is lost.
        """
        if isinstance(error, CancelledError) or self.cancelled or self.out_of_time():
            raise error
        if isinstance(error, AuthError) and await self._has_new_key():  # a key that was changed meanwhile
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
        """The reply to the question for a stream. Raises the error that it is."""
        request = await self.prepare_request(call, accept="text/event-stream")
        limit = self.client.config.first_event_timeout
        reply = await self.wait(lambda: self.client.transport.send(request), limit, what="the reply", over=request)
        if reply.status < 300:
            return reply
        raise await self._error_of(reply)

    def _note(self, body: bytes) -> bool:
        """Take note of the state of a reply. True if it is over."""
        try:
            status = self._wire.status(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self._unless_unknown(self.client.unreadable(body, {}, error)) from error
        if not status.response_id:
            if status.done:
                return True
            raise self._unless_unknown(self.client.unreadable(body, {}, "it has no id"))
        self._known(status.response_id)
        return status.done

    def _known(self, response_id: str) -> None:
        self.response_id = response_id
        self.assembler.response_id = response_id
        self.report(AttemptAccepted(self.attempt, response_id))

    # -- its end before its time

    async def cancel(self, *, at_once: bool = False) -> None:
        """End the call, and the reply with it. `at_once` leaves the reply to the provider."""
        self.left = self.left or at_once
        await super().cancel(at_once=True)

    async def cancelled_end(self) -> list[StreamEvent]:
        """End a cancelled stream, with what the provider says that it used. Idempotent."""
        if self.attempt == 0:
            self.assembler = self.new_assembler()
        await self.tell_cancel()
        self.assembler.abort(StopReason.CANCELLED, self.usage_so_far())
        return self.assembler.take()

    async def tell_cancel(self) -> None:
        """Have the provider end the reply, and learn what it used. It never fails, as there is nobody to tell."""
        async with self._cancelling:
            if self._cancel_told or self.left or not self.response_id or not self.sent:
                return
            self._cancel_told = True
            with anyio.move_on_after(CANCEL_SECONDS) as scope:
                while True:
                    if await self._told_cancel():
                        break
                    await anyio.sleep(_CANCEL_AGAIN)
        if scope.cancelled_caught:
            _log.warning("background_not_cancelled", response_id=self.response_id, provider=self.client.name)

    async def _told_cancel(self) -> bool:
        known = self._key.known
        call = self._wire.cancel(self.response_id)
        try:
            request = self.client.request(call, None if known is None else known.value)
            reply, body = await exchange(self.client.transport, request)
            if reply.status < 300:
                self._count(body)
                return True
            error = self.client.error_of(body, reply)
            if isinstance(error, AuthError) and known is not None and await self._key.replaced(known):
                return False
        except AdapterError as failure:
            return not is_passing(failure)
        if is_passing(error):
            return False
        return await self._ended_otherwise()

    async def _ended_otherwise(self) -> bool:
        """A reply that can't be cancelled is over: then the provider tells what it used."""
        known = self._key.known
        request = self.client.request(self._wire.look(self.response_id), None if known is None else known.value)
        try:
            reply, body = await exchange(self.client.transport, request)
            if reply.status < 300:
                self._count(body)
        except AdapterError:
            return False
        return True

    def _count(self, body: bytes) -> None:
        try:
            self.assembler.usage = self._wire.usage(body, self.assembler) or self.assembler.usage
        except (msgspec.MsgspecError, UnicodeError) as error:
            _log.warning("background_unreadable", error, response_id=self.response_id)

    async def _end_of(self, error: AdapterError) -> None:
        """A call whose own time is up ends its reply, too: nobody waits for it."""
        if self.response_id and self.out_of_time():
            await self.tell_cancel()
            error.usage = self.usage_so_far()
