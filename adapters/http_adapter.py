"""What all HTTP providers share: attempts, time limits, cancelling, and the order in which things happen.

A provider's adapter subclasses HttpAdapter and says, in pure functions, what goes over its wire: how a request
is written, how a reply is read (whole and streamed), how an error is classified. Everything that waits is here.

The life of a call: attempt → (wait → attempt)* → end. Each wait for the network, and each backoff, runs under a
cancel scope of its own that `cancel()` can reach; none is held across a `yield`, so a reader may leave at any
point. An attempt that fails before its first event leaves no trace in the stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakValueDictionary

import anyio
import msgspec

from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import AdapterError, CancelledError, InvalidRequestError, RequestTimeoutError, StreamError
from bus.messages import Message, ToolDefinition
from bus.stream_events import StreamEvent
from bus.usage import StopReason, TokenUsage, UsageSource

from .assembler import Assembler
from .classify import ErrorType, build_error, read_error
from .contract import (
    AdapterCapabilities,
    AdapterConfig,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptObserver,
    AttemptReport,
    AttemptStarted,
    CallWarning,
    CanonicalRequest,
    CanonicalResponse,
    RateLimitInfo,
)
from .estimate import TokenRates, estimate_request, estimate_tokens
from .normaliser import StreamNormaliser
from .retry import retry_delay
from .surrogates import mend_json
from .transport import HttpReply, HttpRequest, HttpxTransport, Transport, read_body

T = TypeVar("T")

ERROR_BODY_BYTES = 1024 * 1024
DRAIN_SECONDS = 0.25
"""How long a finished stream may take to end its body, so that its connection can be used again."""


class WireCall(msgspec.Struct, frozen=True):
    """A request as a provider wants it. path: below the base URL. body: JSON. warnings: what was left out."""

    path: str
    body: bytes
    headers: Mapping[str, str] = {}
    warnings: tuple[CallWarning, ...] = ()


class HttpAdapter(ABC):
    """Base of the adapters that speak HTTP; see the module's text.

    name: of the provider, as it stands before the colon of a model's name; a configuration that uses one protocol
    for several providers gives each its own. transport: replaces the network (cassettes, tests).
    """

    default_name: str
    default_base_url: str
    capabilities: AdapterCapabilities
    token_rates: TokenRates = TokenRates()
    error_codes: Mapping[str, ErrorType] = {}

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name or self.default_name
        self.config = config
        self.clock = clock
        self.base_url = normalise_base_url(config.base_url or self.default_base_url)
        self._transport = transport or HttpxTransport()
        self._calls: WeakValueDictionary[str, _Call] = WeakValueDictionary()

    # -- what a provider says

    @abstractmethod
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """The request on the wire. Raises CapabilityError or InvalidRequestError for what can't be said."""

    @abstractmethod
    def read_reply(self, body: bytes, assembler: Assembler) -> None:
        """Feed a whole reply to the assembler and finish it. Raises AdapterError, or msgspec's decoding errors."""

    @abstractmethod
    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        """What reads a streamed reply."""

    @abstractmethod
    def auth_headers(self) -> Mapping[str, str]:
        """The headers that carry the key; none if there is no key."""

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """What the reply's headers say about limits."""
        return None

    # -- the contract

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        return estimate_request(messages, tools, system_prompt, self.token_rates)

    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        call = _Call(self, request, on_attempt, stream=False)
        try:
            while True:
                call.begin_attempt()
                try:
                    return await self._complete_once(call)
                except AdapterError as error:
                    await call.back_off_or_raise(error)
        finally:
            call.ended = True

    async def _complete_once(self, call: _Call) -> CanonicalResponse:
        wire, reply = await self._send(call)
        try:
            body = await call.wait(lambda: read_body(reply), what="the reply's body")
        finally:
            await _close(reply)
        self._read_whole(body, call.assembler, reply)
        call.first_event()
        return self._response(call, wire, reply)

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> HttpStream:
        return HttpStream(self, _Call(self, request, on_attempt, stream=True))

    async def cancel(self, request_id: str) -> bool:
        call = self._calls.get(request_id)
        if call is None or call.ended:
            return False
        await call.cancel()
        return True

    async def close(self) -> None:
        for call in list(self._calls.values()):
            if not call.ended:
                await call.cancel()
        await self._transport.aclose()

    # -- one attempt

    async def _send(self, call: _Call) -> tuple[WireCall, HttpReply]:
        """Send the request; raise what an error reply means. The caller closes the reply."""
        wire = self._write(call)
        http = HttpRequest(
            "POST",
            self.base_url + wire.path,
            {
                "content-type": "application/json",
                "accept": "text/event-stream" if call.streamed else "application/json",
                "user-agent": "callboard",
                **self.auth_headers(),
                **wire.headers,
                **self.config.extra_headers,
            },
            wire.body,
            self.config.connect_timeout,
        )
        limit = self.config.first_event_timeout if call.streamed else None
        reply = await call.wait(lambda: self._transport.send(http), limit, what="the reply")
        if reply.status < 300:
            return wire, reply
        try:
            body = await call.wait(lambda: read_body(reply, ERROR_BODY_BYTES), limit, what="the error's body")
        finally:
            await _close(reply)
        raise self._error(body, reply, call.request.request_id)

    def _write(self, call: _Call) -> WireCall:
        try:
            return self.write_request(call.request, stream=call.streamed)
        except (UnicodeError, msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"{self.name}: the request can't be written as JSON: {error}") from error

    def _error(self, body: bytes, reply: HttpReply, request_id: str) -> AdapterError:
        error = build_error(
            read_error(body),
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            request_id=request_id,
            now_us=self.clock.now_us(),
        )
        return error

    def _read_whole(self, body: bytes, assembler: Assembler, reply: HttpReply) -> None:
        try:
            try:
                self.read_reply(body, assembler)
            except msgspec.DecodeError:
                mended = mend_json(body)
                if mended is body:
                    raise
                self.read_reply(mended, assembler)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            kind = reply.headers.get("content-type", "no content type")
            raise StreamError(f"{self.name}: the reply is none of its protocol ({kind}): {error}") from error
        if not assembler.complete:
            raise StreamError(f"{self.name}: the reply holds no message")

    def _response(self, call: _Call, wire: WireCall, reply: HttpReply | None) -> CanonicalResponse:
        assembler = call.assembler
        assert assembler.usage is not None
        assert assembler.stop_reason is not None
        headers: Mapping[str, str] = reply.headers if reply is not None else {}
        return CanonicalResponse(
            request_id=call.request.request_id,
            model=f"{self.name}:{assembler.model}",
            provider=self.name,
            content=assembler.final_content,
            stop_reason=assembler.stop_reason,
            raw_stop_reason=assembler.raw_stop_reason,
            usage=assembler.usage,
            latency_ms=call.elapsed_ms(),
            response_id=assembler.response_id,
            warnings=wire.warnings + tuple(assembler.warnings),
            rate_limit=self.rate_limit(headers),
            provider_request_id=headers.get("request-id") or headers.get("x-request-id"),
        )

    def estimate_usage(self, request: CanonicalRequest, output: str) -> TokenUsage:
        """Usage for a reply whose provider said nothing about it."""
        return TokenUsage(
            input_tokens=self.estimate_input_tokens(request.messages, request.tools, request.system_prompt),
            output_tokens=estimate_tokens(output, self.token_rates),
            source=UsageSource.ESTIMATED,
        )


class _Call:
    """The state of one call over all its attempts: its time limit, its cancel scope, its current assembler."""

    def __init__(
        self,
        adapter: HttpAdapter,
        request: CanonicalRequest,
        on_attempt: AttemptObserver | None,
        *,
        stream: bool,
    ) -> None:
        self.adapter = adapter
        self.request = request
        self.streamed = stream
        self.attempt = 0
        self.cancelled = False
        self.ended = False
        self.assembler: Assembler
        self.on_cancel: Callable[[], Awaitable[None]] | None = None
        self._on_attempt = on_attempt
        self._scope: anyio.CancelScope | None = None
        self._deadline: float | None = None
        self._started_ns = adapter.clock.monotonic_ns()
        self._first_event_told = False
        self._message_id = request.message_id or adapter.clock.new_id("msg")

    def new_assembler(self) -> Assembler:
        return Assembler(
            message_id=self._message_id,
            provider=self.adapter.name,
            requested_model=self.request.wire_model,
            clock=self.adapter.clock,
            estimate_usage=lambda output: self.adapter.estimate_usage(self.request, output),
            request=self.request,
        )

    def report(self, report: AttemptReport) -> None:
        if self._on_attempt is not None:
            self._on_attempt(report)

    def elapsed_ms(self) -> int:
        return (self.adapter.clock.monotonic_ns() - self._started_ns) // 1_000_000

    def begin_attempt(self) -> None:
        if self.attempt == 0:
            running = self.adapter._calls.get(self.request.request_id)
            if running is not None and not running.ended:
                raise InvalidRequestError(f"request_id {self.request.request_id!r} is already running")
            self.adapter._calls[self.request.request_id] = self
            self._deadline = anyio.current_time() + self.adapter.config.timeout_seconds
        if self.cancelled:
            raise self._cancelled_error()
        self.attempt += 1
        self._first_event_told = False
        self.assembler = self.new_assembler()
        self.report(AttemptStarted(self.attempt, "first" if self.attempt == 1 else "retry"))

    def first_event(self) -> None:
        if not self._first_event_told:
            self._first_event_told = True
            self.report(AttemptFirstEvent(self.attempt))

    async def wait(self, step: Callable[[], Awaitable[T]], limit: float | None = None, *, what: str) -> T:
        """Wait for the network, at most `limit` seconds and never beyond the call's own time.

        Raises CancelledError after `cancel()`, RequestTimeoutError when time is up.
        """
        assert self._deadline is not None
        if self.cancelled:
            raise self._cancelled_error()
        own = anyio.current_time() + limit if limit is not None else self._deadline
        with anyio.CancelScope(deadline=min(own, self._deadline)) as scope:
            self._scope = scope
            try:
                return await step()
            finally:
                self._scope = None
        if self.cancelled:
            raise self._cancelled_error()
        if own < self._deadline:
            raise RequestTimeoutError(f"{self.adapter.name}: no {what.removeprefix('the ')} within {limit:g} s")
        seconds = self.adapter.config.timeout_seconds
        raise RequestTimeoutError(f"{self.adapter.name}: the call took longer than {seconds:g} s", retryable=False)

    async def back_off_or_raise(self, error: AdapterError) -> None:
        """Wait before another attempt, or raise the error, complete with ids and without the key."""
        self.identify(error)
        config = self.adapter.config
        budget = self.request.max_retries if self.request.max_retries is not None else config.max_retries
        delay = retry_delay(error, self.attempt - 1, budget, config.retry, self.adapter.clock.random())
        if self.cancelled:
            raise self._cancelled_error() from error
        if delay is None:
            raise error
        assert self._deadline is not None
        if anyio.current_time() + delay >= self._deadline:
            raise error
        self.report(AttemptFailed(self.attempt, error, delay))
        await self.wait(lambda: anyio.sleep(delay), what="another attempt")

    def identify(self, error: AdapterError) -> None:
        error.request_id = self.request.request_id
        error.provider = self.adapter.name
        key = self.adapter.config.api_key
        if key:
            error.args = (str(error).replace(key, "***"),)
            error.provider_message = error.provider_message.replace(key, "***")
            for field in ("provider_code", "provider_param", "provider_request_id"):
                said = getattr(error, field)
                if said:
                    setattr(error, field, said.replace(key, "***"))

    def _cancelled_error(self) -> CancelledError:
        return CancelledError("the call was cancelled", request_id=self.request.request_id)

    async def cancel(self) -> None:
        self.cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        elif self.on_cancel is not None:
            await self.on_cancel()


class HttpStream:
    """A streamed reply; see `adapters.contract.AdapterStream` for what it promises."""

    def __init__(self, adapter: HttpAdapter, call: _Call) -> None:
        self._adapter = adapter
        self._call = call
        self._ready: deque[StreamEvent] = deque()
        self._failure: AdapterError | None = None
        self._reply: HttpReply | None = None
        self._wire: WireCall | None = None
        self._normaliser: StreamNormaliser | None = None
        self._delivered = False
        self._response: CanonicalResponse | None = None
        call.on_cancel = self._close_reply

    @property
    def response(self) -> CanonicalResponse | None:
        return self._response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._ready:
            return self._ready.popleft()
        try:
            while not self._ready:
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._call.ended:
                    await self._drain()
                    raise StopAsyncIteration
                await self._advance()
        except BaseException:
            self._call.ended = True
            await self._close_reply()
            raise
        return self._ready.popleft()

    async def _advance(self) -> None:
        """One step: an attempt begins, or a piece of the body is read."""
        try:
            if self._reply is None:
                self._call.begin_attempt()
                self._wire, self._reply = await self._adapter._send(self._call)
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
        if "json" not in reply.headers.get("content-type", "") or "ndjson" in reply.headers["content-type"]:
            self._normaliser = self._adapter.normaliser(self._call.assembler)
            return
        body = await self._call.wait(lambda: read_body(reply), what="the reply's body")
        self._adapter._read_whole(body, self._call.assembler, reply)
        self._deliver(self._call.assembler.take())
        self._succeed()

    async def _read(self, reply: HttpReply) -> None:
        config = self._adapter.config
        limit = config.stream_read_timeout if self._delivered else config.first_event_timeout
        normaliser = self._normaliser
        assert normaliser is not None
        chunk = await self._call.wait(reply.chunk, limit, what="the next event")
        self._deliver(normaliser.close() if chunk is None else normaliser.feed(chunk))
        if normaliser.error is not None:
            raise normaliser.error
        if normaliser.finished:
            self._succeed()

    def _deliver(self, events: list[StreamEvent]) -> None:
        if events:
            if not self._delivered:
                self._delivered = True
                self._call.first_event()
            self._ready.extend(events)

    def _succeed(self) -> None:
        assert self._wire is not None
        self._response = self._adapter._response(self._call, self._wire, self._reply)
        self._call.ended = True

    async def _fail(self, error: AdapterError) -> None:
        await self._close_reply()
        if not self._delivered:
            try:
                await self._call.back_off_or_raise(error)
            except CancelledError:
                self._end_early(StopReason.CANCELLED)
            except AdapterError as final:
                self._call.ended = True
                self._failure = final
            return
        self._call.identify(error)
        self._end_early(StopReason.ERROR)
        error.content, error.usage = self._call.assembler.final_content, self._call.assembler.usage
        self._failure = error

    def _end_early(self, reason: StopReason) -> None:
        """Close what is open in the stream, with whatever usage is known."""
        call = self._call
        call.ended = True
        if call.attempt == 0:  # cancelled before anything was sent
            call.assembler = call.new_assembler()
        call.assembler.abort(reason)
        self._ready.extend(call.assembler.take())
        if self._wire is not None:
            self._response = self._adapter._response(call, self._wire, self._reply)

    async def _drain(self) -> None:
        """Read what is left of a finished body, so that the connection can be used again; then close."""
        reply, normaliser = self._reply, self._normaliser
        if reply is not None and normaliser is not None and normaliser.finished and not self._call.cancelled:
            with anyio.move_on_after(DRAIN_SECONDS):
                try:
                    while await reply.chunk() is not None:
                        pass
                except AdapterError:
                    pass  # the reply is already whole
        await self._close_reply()

    async def _close_reply(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            await _close(reply)

    async def aclose(self) -> None:
        """Close the socket; an unfinished call is cancelled. Idempotent."""
        if not self._call.ended:
            await self._call.cancel()  # also reaches a read that another task waits in
            self._call.ended = True
        self._ready.clear()
        await self._close_reply()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _close(reply: HttpReply) -> None:
    """Close a reply whatever is being cancelled, but not for ever."""
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
        await reply.aclose()


def normalise_base_url(url: str) -> str:
    """A base URL without its trailing slash and version suffix; adapters add the version themselves."""
    url = url.rstrip("/")
    for suffix in ("/v1", "/v1beta"):
        url = url.removesuffix(suffix)
    return url.rstrip("/")
