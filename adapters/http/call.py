"""One conversation call over HTTP: its attempts, requests and replies."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio
import msgspec

from callboard.bus.errors import AdapterError, InvalidRequestError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import TokenUsage, UsageSource

from ..contract import AttemptObserver, CanonicalRequest, CanonicalResponse, RateLimitInfo
from ..replies.assembler import Assembler
from ..replies.server_sent_events import reads_server_sent_events
from ..replies.whole import continued, looks_like_events, text_alone, without_done_mark
from ..requests.content import repair_body
from ..requests.estimate import at_most, estimate_tokens
from ..requests.history_target import WireCall
from ..transport.transport import HttpReply, close_reply, exchange, masked, masked_headers, read_error_body
from .attempts import HttpAttempts, value_or
from .errors import error_without_status, find_error
from .fidelity import EventRelay, RawKept
from .repair import Repair, with_repairs
from .wire import ChatWire, HttpClient


class HttpCall(HttpAttempts):
    """One call with all its attempts.

    `request` includes all repairs, which `repairs` lists. `written` is the next attempt's request; None before the
    first attempt and after a repair. `assembler` reads the current attempt's reply. `on_drain` is set while a
    cancelled call may still be read for its usage. Its argument is True if a reader is active.
    """

    reply_headers: Mapping[str, str] = {}
    """The headers of the current attempt's reply, if the attempt has failed."""
    repairs: tuple[Repair, ...] = ()
    on_drain: Callable[[bool], Awaitable[None]] | None = None
    broken: Assembler | None = None
    """The assembler of the reply that broke off, while later attempts continue it."""

    def __init__(
        self, client: HttpClient, request: CanonicalRequest, on_attempt: AttemptObserver | None, *, stream: bool
    ) -> None:
        super().__init__(client, request, on_attempt)
        self.wire = client.wire
        self.request = request
        self.streamed = stream
        self.assembler: Assembler
        self.written: WireCall | None = None
        self._whole_request = request
        self._drain_seconds = value_or(request.drain_for_usage, client.config.drain_for_usage)
        self._message_id = request.message_id or client.clock.new_id("msg")

    def new_assembler(self) -> Assembler:
        assembler = Assembler(
            message_id=self._message_id,
            provider=self.client.name,
            requested_model=self.request.wire_model,
            clock=self.client.clock,
            # a partial, because a bound method would create a reference cycle
            estimate_usage=partial(_estimated_usage, self.wire, self.request),
            request=self.request,
        )
        if self.request.include_raw:
            assembler.raw = RawKept()
        if self.request.wire is not None:
            sent = self.wire.client_request(self.request)
            if sent is not None and sent.on_event is not None:
                hides = self.wire.hides(sent, stream=self.streamed)
                assembler.relay = EventRelay(sent.on_event, self.client.keys, hides)
        return assembler

    def prepare_attempt(self) -> None:
        if self.reply_headers:
            self.reply_headers = {}
        if self.broken is None:
            self.assembler = self.new_assembler()
        else:
            self.assembler = continued(self.broken, echoes=self.wire.echoes_beginning)
            if self._next_reason == "retry":
                self._next_reason = "continued"

    # --- Sending ---

    async def complete_once(self) -> CanonicalResponse:
        """Make one attempt without a stream, and return the response."""
        written = self.written or await self.write()
        client = self.client
        request = await self.prepare_request(written)
        self.sent = True
        reply, body = await self.wait(lambda: exchange(client.transport, request), what="the reply", over=request)
        try:
            if reply.status >= 300:
                raise client.error_of(body, reply)
            self.key_was_taken()
            self.read_whole(body, reply)
        except AdapterError:
            self.reply_headers = reply.headers
            raise
        self.first_event(reply.headers)
        return self.response(written, reply)

    def first_event(self, headers: Mapping[str, str]) -> None:
        super().first_event(headers)
        self._report_headers(headers, self.rate_limit)
        if self.assembler.relay is not None:
            self.assembler.relay.deliver()

    def identify(self, error: AdapterError) -> None:
        super().identify(error)
        if not self._first_event_reported:
            self._report_headers(self.reply_headers, self.client.rate_limit(self.reply_headers))

    def _report_headers(self, headers: Mapping[str, str], limits: RateLimitInfo | None) -> None:
        sent = self.request.wire
        if sent is not None and sent.on_headers is not None:
            sent.on_headers(masked_headers(headers, self.client.secrets), limits)

    async def send(self) -> tuple[WireCall, HttpReply]:
        """Send the request of a stream. The caller closes the reply. Raises AdapterError."""
        written = self.written or await self.write()
        client, limit = self.client, self.client.config.first_event_timeout
        request = await self.prepare_request(written, accept="text/event-stream")
        self.sent = True
        reply = await self.wait(lambda: client.transport.send(request), limit, what="the reply", over=request)
        if reply.status < 300:
            self.key_was_taken()
            return written, reply
        try:
            body = await self.wait(lambda: read_error_body(reply), limit, what="the error's body")
        finally:
            await close_reply(reply)
        self.reply_headers = reply.headers
        raise client.error_of(body, reply)

    async def write(self) -> WireCall:
        """Return the request on the wire. It is written once and reused until a repair."""
        wire, model = self.wire, self.request.wire_model
        if wire.is_unknown(model):
            await self.wait(
                lambda: wire.learn_model(model, self.client.look_up), what="the server's facts about the model"
            )
        try:
            written = wire.write(self._informed(), stream=self.streamed)
            if self.repairs:
                written = with_repairs(written, self.repairs)
        except (UnicodeError, msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"{wire.name}: the request can't be written as JSON: {error}") from error
        self.written = written
        self.assembler.known_warnings = written.warnings
        return written

    def _informed(self) -> CanonicalRequest:
        """Return the request with capabilities. They are the wire's if the caller gave none."""
        request = self.request
        if request.capabilities is not None:
            return request
        return msgspec.structs.replace(request, capabilities=self.wire.get_capabilities(request.wire_model))

    def continue_reply(self) -> bool:
        """Let the next attempt continue the reply that broke off. Return False if this is impossible."""
        if self.broken is None:
            self._whole_request = self.request
        rest = None
        if not self.out_of_time():
            rest = _request_for_rest(self.wire, self._whole_request, text_alone(self.assembler))
        if rest is None:
            return False
        self.request, self.written, self.broken = rest, None, self.assembler
        return True

    def repair_request(self, error: AdapterError) -> bool:
        """Repair the request, if the error shows how and the repair was not tried before. Returns whether it was
        repaired.
        """
        if self.written is None or self.client.config.options.get("repair") is False or self.out_of_time():
            return False
        done = [repair.kind for repair in self.repairs]
        found = self.wire.repair(self.request, self.written, error, done)
        if found is None:
            return False
        repaired = found.request
        if repaired is not self.request and repaired.wire is not None:
            repaired = msgspec.structs.replace(repaired, wire=None)  # the client's own body is not repaired
        self.request = repaired
        self.repairs += (found,)
        self.written = None
        return True

    # --- Reading ---

    def read_whole(self, body: bytes, reply: HttpReply) -> list[StreamEvent]:
        """Read a whole reply, including JSON that needs repair and unrequested events.

        Return the new events. Raises AdapterError or StreamError.
        """
        wire, assembler = self.wire, self.assembler
        body = without_done_mark(body)
        if looks_like_events(body):
            events = self._read_events(body)
            if events is not None:
                return events
        if assembler.raw is not None:
            assembler.raw.body(body)
        if assembler.relay is not None:
            if self.streamed:
                assembler.relay.stop()
            else:
                assembler.relay.body(body)
        try:
            try:
                body.decode()  # checked before any content is accepted, because msgspec does not check raw parts
                wire.read_reply(body, reply.headers, assembler)
            except (msgspec.DecodeError, UnicodeDecodeError):
                repaired = repair_body(body)
                if repaired is None:
                    raise
                wire.read_reply(repaired.text, reply.headers, assembler)
                assembler.replaced(repaired.replaced)
        except StreamError as error:
            found = find_error(body)
            if found is None:
                raise
            raise error_without_status(found, wire.error_codes, self.client.name) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self.client.unreadable(body, reply.headers, error) from error
        if not assembler.complete:
            raise self.client.unreadable(body, reply.headers, "it has no message")
        return assembler.take()

    def _read_events(self, body: bytes) -> list[StreamEvent] | None:
        """Read a whole body of server-sent events; None if the protocol has none."""
        if self.assembler.relay is not None:  # the client expects one body, not events
            self.assembler.relay.stop()
        normaliser = self.wire.normaliser(self.assembler)
        if not reads_server_sent_events(normaliser):
            return None
        events = [*normaliser.feed(body), *normaliser.close()]
        if normaliser.error is not None:
            raise normaliser.error
        return events

    def response(self, written: WireCall, reply: HttpReply | None) -> CanonicalResponse:
        assembler, client = self.assembler, self.client
        assert assembler.usage is not None
        assert assembler.stop_reason is not None
        hidden = client.secrets
        headers = reply.headers if reply is not None else {}
        response_id = assembler.response_id
        provider_request_id = headers.get("request-id") or headers.get("x-request-id")
        return CanonicalResponse(
            request_id=self.request.request_id,
            model=f"{client.name}:{masked(assembler.model, hidden)}",
            provider=client.name,
            content=assembler.final_content,
            stop_reason=assembler.stop_reason,
            raw_stop_reason=assembler.raw_stop_reason,
            provider_details=assembler.details,
            usage=assembler.usage,
            latency_ms=self.elapsed_ms(),
            response_id=None if response_id is None else masked(response_id, hidden),
            warnings=written.warnings + tuple(assembler.warnings),
            rate_limit=self.rate_limit if self._first_event_reported else client.rate_limit(headers),
            provider_request_id=None if provider_request_id is None else masked(provider_request_id, hidden),
            raw=None if assembler.raw is None else assembler.raw.reply(hidden),
        )

    @property
    def received(self) -> bool:
        return self.sent and self.assembler.received

    def _count_used(self) -> TokenUsage:
        return self.assembler.usage_so_far()

    async def cancel(self, *, at_once: bool = False) -> None:
        if self.on_drain is None or self._drain_seconds <= 0 or at_once:
            await super().cancel(at_once=at_once)
            return
        if not self.cancelled:
            self.cancelled = self.draining = True
            self._deadline = min(self._deadline or math.inf, anyio.current_time() + self._drain_seconds)
            if self._scope is not None:
                self._scope.deadline = min(self._scope.deadline, self._deadline)
            await self.on_drain(self._scope is not None)


def _estimated_usage(wire: ChatWire, request: CanonicalRequest, output: str) -> TokenUsage:
    """Estimate the usage of a reply without reported usage."""
    return TokenUsage(
        input_tokens=wire.estimate_input_tokens(
            request.messages, request.tools, request.system_prompt, model=request.model
        ),
        output_tokens=estimate_tokens(output, wire.token_rates(request.model)),
        source=UsageSource.ESTIMATED,
    )


def _request_for_rest(wire: ChatWire, request: CanonicalRequest, received: str | None) -> CanonicalRequest | None:
    """A request for the rest of a broken reply; None if the reply can't be continued."""
    if received is None or not request.continue_broken or request.output_schema is not None:
        return None
    if wire.client_request(request) is not None:
        return None
    choice = request.tool_choice
    if (choice is not None and choice.mode in ("required", "named")) or not wire.takes_beginning(request):
        return None
    remaining = request.max_output_tokens - at_most(estimate_tokens(received, wire.token_rates(request.model)))
    if remaining < 1:
        return None
    beginning = received.rstrip()
    if not beginning:
        return request
    messages = (*request.messages, Message.assistant(beginning))
    return msgspec.structs.replace(request, messages=messages, max_output_tokens=remaining, has_beginning=True)
