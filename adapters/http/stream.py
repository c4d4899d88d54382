"""A streamed reply over HTTP. The stream is an iterator.

    sending      no reply is open: the next step sends an attempt
    reading      a reply is open: the next step reads a piece of its body
    delivered    the same, after the first event: a failure from now on is final
    broken       the reply broke off after its first event, and another attempt continues it
    kept         the call was cancelled and its reply is read for its usage: no more events are delivered
    ended        the remaining events are delivered, then the failure if there is one

An attempt that fails before its first event is repeated. After the first event, another attempt may continue the
text, if the caller requests that. Otherwise the message is completed as an error, and the exception is raised. The
stream has no task: `__anext__` itself reads from the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import anyio
import msgspec

from callboard.bus.backend import current_time, time_source
from callboard.bus.errors import AdapterError, CancelledError, RequestTimeoutError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import StopReason

from ..config import AdapterConfig
from ..contract import CanonicalResponse
from ..replies.assembler import Assembler
from ..replies.server_sent_events import EventNormaliser, StreamNormaliser, reads_server_sent_events
from ..replies.whole import looks_like_events
from ..requests.history_target import WireCall
from ..transport.transport import MAX_REPLY_BYTES, HttpReply, close_reply, read_body, read_error_body, too_large
from .attempts import Limit
from .call import HttpCall
from .errors import EXCERPT_BYTES, error_without_status, find_error, is_page

KEPT_ALIVE = 5
"""The factor on the limit of silence while comments and pings arrive."""

SLOW_MACHINE_SECONDS = 300.0
"""Seconds of silence allowed for a local model: a CPU reads prompts slowly, and weights may have to be loaded
first.
"""


class EventWait:
    """The time until a stream's next event must arrive. The class has no timer: the caller reports how long each
    wait took.

    Args:
        limit: Seconds without any data.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._full_limit = Limit(limit, limit)
        self._silent = 0.0

    def event(self) -> None:
        self._silent = 0.0

    def sign_of_life(self, seconds: float) -> None:
        """Count a wait that ended with data other than an event."""
        self._silent += seconds

    def remaining(self) -> Limit:
        """The limit of the next wait. Raises RequestTimeoutError if none is left."""
        most = self._limit * KEPT_ALIVE
        remaining = most - self._silent
        if remaining >= self._limit:
            return self._full_limit
        if remaining <= 0:
            raise RequestTimeoutError(f"no next event within {most:g} s")
        return Limit(remaining, most)


def with_long_timeouts(config: AdapterConfig) -> AdapterConfig:
    """Lengthen the waits for events, unless the configuration sets its own."""
    default = AdapterConfig()
    longer = {
        field: SLOW_MACHINE_SECONDS
        for field in ("first_event_timeout", "stream_read_timeout")
        if getattr(config, field) == getattr(default, field)
    }
    return msgspec.structs.replace(config, **longer)


DRAIN_SECONDS = 0.25
"""Seconds that a finished stream may take to end its body, so that its connection can be reused."""


class WholeReply:
    """Reads a whole reply that is labelled as an event stream, see `StreamNormaliser`."""

    def __init__(self, call: HttpCall, reply: HttpReply) -> None:
        self.error: AdapterError | None = None
        self.finished = False
        self._call = call
        self._reply = reply
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        self._pieces.append(chunk)
        return []

    def close(self) -> list[StreamEvent]:
        try:
            events = self._call.read_whole(b"".join(self._pieces), self._reply)
        except AdapterError as error:
            self.error = error
            return self._call.assembler.take()
        self.finished = True
        return events


async def _beginning(reply: HttpReply) -> bytes:
    """The body up to its first non-blank piece; empty for an empty body."""
    pieces = b""
    while not pieces.strip():
        chunk = await reply.chunk()
        if chunk is None:
            break
        pieces += chunk
    return pieces


class HttpStream:
    """A streamed reply; see `adapters.contract.AdapterStream` for its guarantees."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._client = call.client
        self._ready: list[StreamEvent] = []
        self._failure: AdapterError | None = None
        self._reply: HttpReply | None = None
        self._sent: WireCall | None = None  # the request of the open reply
        self._normaliser: StreamNormaliser | None = None
        self._size = 0
        self._head = b""  # the start of the body, for the error message if it can't be read
        self._event_wait = EventWait(0.0)
        self._delivered = False
        self._response: CanonicalResponse | None = None
        # The assembler at the time of the cancellation, while the rest of the reply is read for its usage.
        self._before_switch: Assembler | None = None
        self._sink: Callable[[Sequence[StreamEvent]], object] | None = None  # the sink of the active pump
        self._drained: anyio.Event | None = None  # set while a task other than the reader's reads the rest
        call.on_cancel = self._close_reply

    @property
    def response(self) -> CanonicalResponse | None:
        return self._response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if not self._ready and not await self._fill():
            raise StopAsyncIteration
        return self._ready.pop(0)

    async def pump(self, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        self._sink = sink
        try:
            while self._ready or await self._fill():
                self._flush(sink)
        finally:
            self._sink = None

    def _flush(self, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        if self._ready:
            ready, self._ready = self._ready, []
            sink(ready)

    async def _fill(self) -> bool:
        """Read until there is an event. Return False at the end. Raises the call's error."""
        try:
            while not self._ready:
                if self._drained is not None:
                    await self._drained.wait()
                    continue
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._call.ended:
                    await self._drain()
                    return False
                await self._advance()
        except BaseException:
            self._call.ended = True
            await self._close_reply()
            raise
        return True

    async def _advance(self) -> None:
        """Start an attempt, or read the next piece of the body."""
        try:
            if self._reply is None:
                self._call.begin_attempt()
                self._sent, self._reply = await self._call.send()
                await self._open(self._reply)
            else:
                await self._read(self._reply)
        except CancelledError:
            self._end_early(StopReason.CANCELLED)
            await self._close_reply()
        except AdapterError as error:
            await self._fail(error)

    async def _open(self, reply: HttpReply) -> None:
        """Choose how to read the body: some servers answer a streamed request with a whole reply."""
        self._size, self._head = 0, b""
        self._event_wait = EventWait(self._client.config.first_event_timeout)
        if "json" not in reply.headers.get("content-type", "") or "ndjson" in reply.headers["content-type"]:
            if is_page(reply.headers):
                page = await self._call.wait(lambda: read_error_body(reply), what="the reply's body")
                raise self._client.unreadable(page, reply.headers, "it is a web page")
            self._read_as_events()
            return
        first = await self._call.wait(lambda: _beginning(reply), what="the reply's body")
        normaliser = self._call.wire.normaliser(self._call.assembler)
        if looks_like_events(first) and reads_server_sent_events(normaliser):
            self._read_as_events()
            self._take_in(first)
            return
        body = first + await self._call.wait(lambda: read_body(reply), what="the reply's body")
        if len(body) > MAX_REPLY_BYTES:
            raise too_large()
        self._deliver(self._call.read_whole(body, reply))
        self._succeed()

    def _read_as_events(self) -> None:
        self._normaliser = self._call.wire.normaliser(self._call.assembler)
        self._call.on_drain = self._read_on

    async def _read(self, reply: HttpReply) -> None:
        sink, limit = self._sink, self._event_wait.remaining()
        if sink is not None and self._delivered:
            await self._call.wait(lambda: self._read_all(reply, sink), limit, what="the next event", moves=True)
        else:
            began = current_time()
            self._take_in(await self._call.wait(reply.chunk, limit, what="the next event"))
            self._note_wait(current_time() - began)

    async def _read_all(self, reply: HttpReply, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        """Read to the end under one moving time limit. This costs less than a limit for each piece."""
        call, clock = self._call, time_source()
        began = clock()
        while True:
            self._take_in(await reply.chunk())
            if call.ended:
                return
            now = clock()
            self._note_wait(now - began)
            call.move_on(now, self._event_wait.remaining())
            began = now
            self._flush(sink)

    def _note_wait(self, seconds: float) -> None:
        if self._ready or self._before_switch is not None:
            self._event_wait.event()
        else:
            self._event_wait.sign_of_life(seconds)

    def _take_in(self, chunk: bytes | None) -> None:
        normaliser = self._normaliser
        assert normaliser is not None
        if chunk is not None:
            if not self._delivered:
                is_body = not self._head.strip() and chunk.lstrip()[:1] in (b"{", b"[")
                if is_body and reads_server_sent_events(normaliser) and self._reply is not None:
                    self._normaliser = normaliser = WholeReply(self._call, self._reply)
                if len(self._head) < EXCERPT_BYTES:
                    self._head += chunk[: EXCERPT_BYTES - len(self._head)]
            self._size += len(chunk)
            if self._size > MAX_REPLY_BYTES:
                raise too_large()
        events = normaliser.close() if chunk is None else normaliser.feed(chunk)
        if self._before_switch is not None:
            if normaliser.finished or normaliser.error is not None:
                self._end_early(StopReason.CANCELLED)
            return
        self._deliver(events)
        if normaliser.error is not None:
            raise self._explained(normaliser.error)
        if normaliser.finished:
            self._succeed()

    def _explained(self, error: AdapterError) -> AdapterError:
        """The normaliser's error, or an error outside of events.

        If no part of the body could be read, the error shows the start of the body.
        """
        reply, normaliser = self._reply, self._normaliser
        if type(error) is not StreamError:
            return error
        found = find_error(normaliser.other_lines) if isinstance(normaliser, EventNormaliser) else None
        if found is not None:
            return error_without_status(found, self._call.wire.error_codes, self._client.name)
        if self._delivered or reply is None:
            return error
        return self._client.unreadable(self._head, reply.headers, error)

    def _deliver(self, events: list[StreamEvent]) -> None:
        if events:
            if not self._delivered:
                self._delivered, self._head = True, b""
                self._event_wait = EventWait(self._client.config.stream_read_timeout)
                self._call.first_event({} if self._reply is None else self._reply.headers)
            self._ready.extend(events)

    def _succeed(self) -> None:
        assert self._sent is not None
        self._response = self._call.response(self._sent, self._reply)
        self._call.ended = True

    async def _read_on(self, being_read: bool) -> None:
        """Read the rest of a cancelled reply for its usage. The events that were delivered don't change.

        An active reader reads the rest. Without one, this task reads it, so that the call always ends.
        """
        self._before_switch = self._call.assembler.fork()
        if self._call.assembler.relay is not None:
            self._call.assembler.relay.stop()
        if being_read:
            return
        self._drained = anyio.Event()
        try:
            while not self._call.ended:
                await self._advance()
        finally:
            drained, self._drained = self._drained, None
            if not self._call.ended:
                self._end_early(StopReason.CANCELLED)
            await self._close_reply()
            drained.set()

    async def _fail(self, error: AdapterError) -> None:
        if self._reply is not None:
            self._call.reply_headers = self._reply.headers
        await self._close_reply()
        if self._before_switch is not None:
            self._end_early(StopReason.CANCELLED)
            return
        if not self._delivered:
            try:
                await self._call.back_off_or_raise(error)
            except CancelledError:
                self._end_early(StopReason.CANCELLED)
            except AdapterError as final:
                if self._call.broken is not None:  # the earlier attempt's events remain valid
                    self._end_early(StopReason.ERROR)
                    final.content = self._call.assembler.final_content
                self._call.ended = True
                self._failure = final
            return
        if self._call.request.continue_broken and await self._continues(error):
            return
        self._call.identify(error)
        self._end_early(StopReason.ERROR)
        error.content, error.usage = self._call.assembler.final_content, self._call.assembler.usage
        self._failure = error

    async def _continues(self, error: AdapterError) -> bool:
        """Try to continue a broken reply. Return True also if the call ended during the wait."""
        call = self._call
        before = call.request, call.written, call.broken
        if not call.continue_reply():
            return False
        try:
            await call.back_off_or_raise(error)
        except CancelledError:
            self._end_early(StopReason.CANCELLED)
        except AdapterError:
            call.request, call.written, call.broken = before
            return False
        self._delivered = False
        return True

    def _end_early(self, reason: StopReason) -> None:
        """Close the open blocks and the message, with the usage at this point."""
        call = self._call
        call.ended = True
        if call.attempt == 0:  # cancelled before anything was sent
            call.assembler = call.new_assembler()
        usage = call.usage_so_far()  # includes data that was read after the cancellation
        if self._before_switch is not None:
            call.assembler = self._before_switch
        call.assembler.abort(reason, usage)
        self._ready.extend(call.assembler.take())
        if self._sent is not None:
            self._response = call.response(self._sent, self._reply)

    async def _drain(self) -> None:
        """Read the rest of a finished body, so that the connection can be reused, then close the reply."""
        reply, normaliser = self._reply, self._normaliser
        if reply is not None and normaliser is not None and normaliser.finished and not self._call.cancelled:
            relays = isinstance(normaliser, EventNormaliser) and self._call.assembler.relay is not None
            with anyio.move_on_after(DRAIN_SECONDS) as scope:
                try:
                    while (chunk := await reply.chunk()) is not None and current_time() < scope.deadline:
                        if relays:
                            assert isinstance(normaliser, EventNormaliser)
                            normaliser.pass_on(chunk)
                except AdapterError:
                    pass  # the reply is already whole
        await self._close_reply()

    async def _close_reply(self) -> None:
        reply, self._reply = self._reply, None
        self._call.on_drain = None
        if self._call.ended:
            self._call.on_cancel = None  # breaks the reference cycle between call and stream
        if reply is not None:
            await close_reply(reply)

    async def aclose(self) -> None:
        """Cancel the call if it is unfinished, and close the socket. Idempotent."""
        if not self._call.ended:
            await self._call.cancel(at_once=True)  # this also ends a read in another task
            self._call.ended = True
        self._ready.clear()
        await self._close_reply()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
