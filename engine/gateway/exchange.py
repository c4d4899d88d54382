"""One request of a client, from its model's name to the bytes of the reply.

    read      the client's wire has read the request
    running   a turn of the engine runs; it is routed, traced and priced like all turns
    answered  the first event has arrived; status and headers are sent
    over      the turn has ended, or the client disconnected and the call was cancelled

The client's wire writes the reply. If the serving provider uses the same protocol as the client, the provider's
own bytes are sent instead, see `streams.PassedReply`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import add
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec

from callboard.adapters import (
    AdapterError,
    AuthError,
    CallWarning,
    CanonicalRequest,
    CanonicalResponse,
    MessageComplete,
    MessageStart,
    TokenUsage,
)
from callboard.adapters.contract import RateLimitInfo, WireRequest
from callboard.adapters.requests.content import content_of_provider
from callboard.bus import CallboardError, ConfigurationError, Cost, Log
from callboard.bus.values.base import JsonObject

from ..conversation.turn import Turn, run_turn
from ..generation.arguments import turn_of
from ..runtime.runtime import Runtime
from .failures import BadRequest, Failure, failure_of, may_retry
from .http import (
    ClientGone,
    GatewayLimits,
    Headers,
    Incoming,
    RateHeaders,
    StreamedAnswer,
    answer,
    header,
    passed_rates,
    provider_rates,
    rate_headers,
    retry_headers,
)
from .streams import ClientTooSlow, PassedReply, StreamWriter, TurnEvents
from .wire import ClientRequest, ClientWire, ReplyInfo, ReplyWriter

MOST_WARNING_BYTES = 2048
"""The maximum length of the header with warnings, in bytes."""

_log = Log("gateway")

T = TypeVar("T")


class Serving(NamedTuple):
    """The common objects of all requests of a gateway."""

    runtime: Runtime
    limits: GatewayLimits
    cancels: bool
    """Whether the call is cancelled if its client disconnects."""


def models_of(runtime: Runtime, name: str) -> tuple[str, ...]:
    """The models for a client's model name, in order. Raises BadRequest."""
    models = runtime.registry.serving(name)
    if models == (name,):
        try:
            runtime.registry.resolve(name)
        except ConfigurationError:
            raise unknown_model(name) from None
    return models


def unknown_model(name: str) -> BadRequest:
    return BadRequest(f"the model {name[:200]!r} does not exist", kind="not_found", param="model")


class Exchange:
    def __init__(
        self,
        serving: Serving,
        wire: ClientWire,
        client_request: ClientRequest,
        canonical: CanonicalRequest,
        request: Incoming,
    ) -> None:
        runtime = serving.runtime
        self.wire = wire
        self.client_request = client_request
        self.request = request
        self.response: CanonicalResponse | None = None
        """The complete reply; None until it has succeeded."""
        self.failure: Failure | None = None
        """The error of a failed call."""
        self.on_reply: list[Callable[[], Awaitable[object]]] = []
        """Functions to await after a successful reply, before the client gets its last bytes."""
        self.body = client_request.body
        """The request's body, for a provider with the client's protocol."""
        self.tags: Mapping[str, str] = {}
        """The tags of the call."""
        self.more_headers: Headers = []
        """More headers for the answer."""
        self.revoked: anyio.Event | None = None
        """An event that is set when the client's key is revoked. It cancels the call."""
        self._provider_headers: Mapping[str, str] = {}
        self._provider_rates: RateHeaders | None = None
        self.session_id = canonical.session_id
        """The session id of the conversation."""
        self._runtime = runtime
        self._limits = serving.limits
        self._cancels = serving.cancels
        self._gone = False
        self._stopped: Failure | None = None
        message_id = runtime.clock.new_id("msg")
        self.id = message_id.removeprefix("msg_")
        """The reply's id, without a prefix."""
        self.passed = PassedReply(wire.protocol, client_request, self._served_model, is_array=self._is_array())
        """The provider's own bytes of the reply."""
        models = models_of(runtime, client_request.model)
        sent = msgspec.structs.replace(
            canonical,
            request_id=f"req_{self.id}",
            message_id=message_id,
            model=models[0],
        )
        self._canonical = sent
        self._models = models if len(models) > 1 else None

    @cached_property
    def turn(self) -> Turn:
        sent = WireRequest(
            protocol=self.wire.protocol,
            body=self.body,
            headers=self.client_request.headers,
            refers_to=self.client_request.refers_to,
            on_event=self.passed.take_in,
            on_headers=self._take_headers,
        )
        request = msgspec.structs.replace(self._canonical, wire=sent)
        return turn_of(
            self._runtime, request, tags=self.tags, streamed=self.client_request.stream, model=self._models
        )

    def _take_headers(self, headers: Mapping[str, str], limits: RateLimitInfo | None) -> None:
        self._provider_headers = headers
        self._provider_rates = None if limits is None else provider_rates(limits, self._runtime.clock.now_us())

    def _rates(self) -> Headers:
        """The headers with rate limits: the client's limits, or the provider's limits if the client has none. If
        the reply is passed through, the provider's headers are unchanged.
        """
        if self.passed.has_content or self._speaks_client:
            headers = passed_rates(self._provider_headers)
        elif self._provider_rates is not None:
            headers = rate_headers(self.wire.name, self._provider_rates)
        else:
            return []
        names = {name for name, _ in self.more_headers}
        return [each for each in headers if each[0] not in names]

    def _is_array(self) -> bool:
        return self.client_request.stream and not self.wire.stream_type(self.client_request).startswith(
            "text/event-stream"
        )

    def _served_model(self) -> str:
        """The provider's name of the model that serves now."""
        route = self.turn.route
        return "" if route is None else route.option.named.entry.wire_name

    @property
    def request_id(self) -> str:
        """The id of the call that made the reply, or the id of the latest call."""
        if self.response is not None:
            return self.response.request_id
        call = self.turn.call
        return f"req_{self.id}" if call is None else call.request.request_id

    @property
    def usage(self) -> TokenUsage | None:
        """The tokens of all calls; None if there was no call."""
        usages = self.turn.spending.usages
        return reduce(add, usages) if usages else None

    def summary(self) -> dict[str, Any]:
        """The values for a `ServedRequest`."""
        route = self.turn.route
        return {
            "model": self.client_request.model,
            "served_by": "" if route is None else route.decision.model,
            "nano_usd": self.turn.cost.nano_usd,
            "request_id": self.request_id,
        }

    async def answer(self) -> None:
        watches = [asyncio.ensure_future(self._until_gone())]
        if self.revoked is not None:
            watches.append(asyncio.ensure_future(self._until_revoked(self.revoked)))
        try:
            await (self._stream() if self.client_request.stream else self._send_complete())
        finally:
            for watch in watches:
                watch.cancel()

    async def _until_gone(self) -> None:
        """Cancel the call when the client disconnects, unless calls should complete."""
        receive = self.request.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._cancels:
            self._cancel()

    async def _until_revoked(self, revoked: anyio.Event) -> None:
        await revoked.wait()
        self._stopped = Failure(kind="authentication", message="the API key was revoked")
        self._cancel()

    def _cancel(self) -> None:
        with contextlib.suppress(CallboardError):
            self.turn.cancel()

    # --- Whole replies ---

    async def complete(self) -> None:
        """Make the call, and wait for the whole reply. Raises the exceptions of `Session.send`."""
        try:
            await run_turn(self.turn)
        except Exception as error:
            self._failure_of(error)
            raise
        await self._have(self.turn.steps[-1].response)

    async def _have(self, response: CanonicalResponse) -> None:
        self.response = response
        for keep in self.on_reply:
            await keep()

    async def _send_complete(self) -> None:
        try:
            await self.complete()
        except Exception as error:
            if not self._gone:
                await self._fail(error)
            return
        assert self.response is not None
        if self._gone:
            return
        headers = [*self._headers(self._warnings(self.response.warnings)), *self._rates()]
        headers += cost_header(self.turn.cost)
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await answer(self.request.send, 200, self.whole_body(), headers)
        except TimeoutError:
            self._give_up(f"it read nothing for {self._limits.write_seconds:g} seconds")

    def whole_body(self) -> bytes:
        """The body of the whole reply. Call it after the reply has succeeded."""
        if self.passed.body:
            return self.passed.document()
        return msgspec.json.encode(self._written())

    def stored_body(self) -> JsonObject:
        """The body of the whole reply, to store. For a stream, the same as without streaming."""
        passed = self.passed.body or self.passed.final
        if not passed:
            return self._written()
        found: JsonObject = msgspec.json.decode(passed)
        document = found if self.passed.body else found.get("response")
        return {**document, "model": self.client_request.model} if isinstance(document, dict) else found

    def _written(self) -> JsonObject:
        assert self.response is not None
        return self.wire.write_reply(self.client_request, self.info(), self.own_words(self.response))

    # --- Streams ---

    async def _stream(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        unread = False

        def give_up(why: str) -> None:
            nonlocal unread
            unread = True
            self._give_up(why)
            task.cancel()

        out = StreamedAnswer(self.request.send, self._limits, self._ping, give_up)
        out.headers = [(b"content-type", self.wire.stream_type(self.client_request).encode()), *_STREAM_HEADERS]
        out.headers += self._headers(())
        events = TurnEvents(self._runtime, self.turn)
        writer = StreamWriter(self.passed, self.new_writer, self.own_words)
        try:
            try:
                await self._deliver(events, writer, out)
            except ClientGone:
                self._gone = True
            except ClientTooSlow as error:
                self._give_up(str(error))
            except Exception as error:
                await self._fail_stream(error, writer, out)
        except asyncio.CancelledError:
            if not unread:
                raise
            task.uncancel()
        finally:
            out.close()
            await events.aclose()

    async def _deliver(self, events: TurnEvents, writer: StreamWriter, out: StreamedAnswer) -> None:
        """Send the events of a reply as they arrive. Raises the turn's exception, or ClientTooSlow."""
        await events.start()
        while batch := await events.take():
            if self._gone:
                continue  # continue to the turn's end
            if not writer.started:
                start = next((event for event in batch if isinstance(event, MessageStart)), None)
                if start is None:
                    continue  # the end of a turn that failed before its reply
                if not out.started:
                    warnings = warnings_header(self._warnings(start.warnings))
                    out.headers = [*out.headers, *warnings, *self._rates()]
            if data := writer.write(batch):
                await out.write(data)
        response = self.turn.steps[-1].response
        await self._have(response)
        if not self._gone:
            await out.end(writer.finish(response))

    async def _fail_stream(self, error: Exception, writer: StreamWriter, out: StreamedAnswer) -> None:
        if self._gone:
            return
        if out.started:
            await out.end(writer.fail(self._failure_of(error)))
        else:
            out.close()
            await self._fail(error)

    def _ping(self) -> bytes:
        return self.new_writer().ping()

    def new_writer(self) -> ReplyWriter:
        return self.wire.writer(self.client_request, self.info())

    # --- Both ---

    def info(self) -> ReplyInfo:
        route = self.turn.route
        return ReplyInfo(
            id=self.id,
            model=self.client_request.model,
            created=self._runtime.clock.now_us() // 1_000_000,
            input_tokens=0 if route is None else route.option.estimated_tokens or 0,
        )

    @property
    def _speaks_client(self) -> bool:
        """Whether the serving provider uses the client's protocol."""
        route = self.turn.route
        return route is not None and route.option.speaks_client

    def own_words(self, reply: T) -> T:
        """A response or an event. If the provider uses the client's protocol, the protocol's name is set on its
        opaque data.
        """
        route, known_as = self.turn.route, self.wire.protocol
        if route is None or not route.option.speaks_client:
            return reply
        name = route.option.named.entry.adapter
        match reply:
            case CanonicalResponse(content=content):
                own_content = content_of_provider(content, name, known_as)
                return msgspec.structs.replace(reply, provider=known_as, content=own_content)
            case MessageComplete(final_content=content):
                return msgspec.structs.replace(reply, final_content=content_of_provider(content, name, known_as))
            case MessageStart():
                return msgspec.structs.replace(reply, provider=known_as)
            case _:
                return reply

    def _warnings(self, warnings: Sequence[CallWarning]) -> Sequence[CallWarning]:
        """The warnings of a reply. If the provider uses another protocol, they include the losses."""
        return warnings if self.passed.has_content else (*self.client_request.losses, *warnings)

    def _headers(self, warnings: Iterable[CallWarning]) -> Headers:
        request_id = self.request_id
        return [
            (b"x-callboard-call-id", request_id.encode()),
            *id_headers(request_id),
            *self.more_headers,
            *warnings_header(warnings),
        ]

    def _failure_of(self, error: Exception) -> Failure:
        if self.failure is None:
            request_id = self.request_id
            if self._stopped is not None:
                self.failure = msgspec.structs.replace(self._stopped, request_id=request_id)
            else:
                self.failure = failure_of(error, request_id)
                if isinstance(error, AdapterError) and not isinstance(error, AuthError) and self._speaks_client:
                    self.failure = msgspec.structs.replace(self.failure, details=error.provider_details)
        return self.failure

    async def _fail(self, error: Exception) -> None:
        failure = self._failure_of(error)
        headers = self._headers(())
        if isinstance(error, AdapterError) and error.request_id:  # the error ended an attempt
            headers += self._rates()
        await send_failure(self.request, self.wire, failure, headers, may_retry=may_retry(error))

    def _give_up(self, why: str) -> None:
        """Close the connection of a client that does not read."""
        self._gone = True
        self.request.abort()
        _log.warning("client_given_up", request_id=self.request_id, why=why)


# --- Headers and failures ---

_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Headers that keep proxies from buffering a stream."""


def id_headers(request_id: str) -> Headers:
    """The id of a request, under the names that the SDKs read."""
    return [(b"request-id", request_id.encode()), (b"x-request-id", request_id.encode())]


async def send_failure(
    request: Incoming,
    wire: ClientWire,
    failure: Failure,
    headers: Headers,
    *,
    status: int | None = None,
    may_retry: bool | None = None,
) -> None:
    """Answer with a failure, in the form of the client's wire."""
    wire_status, body = wire.write_failure(failure)
    if failure.allow:
        headers = [*headers, (b"allow", ", ".join(failure.allow).encode())]
    headers = [*headers, *retry_headers(failure, may_retry=may_retry if (status or wire_status) >= 429 else None)]
    await answer(request.send, status or wire_status, msgspec.json.encode(body), headers)


def cost_header(cost: Cost) -> Headers:
    """The header with a reply's cost in US dollars, exact to the nano-dollar; empty if it is unknown."""
    if cost.nano_usd is None:
        return []
    return [(b"x-callboard-cost-usd", b"%d.%09d" % divmod(cost.nano_usd, 1_000_000_000))]


def warnings_header(warnings: Iterable[CallWarning]) -> Headers:
    """The header with the warnings, cut at a maximum length."""
    text = "; ".join(f"{warning.code}: {warning.message}" for warning in warnings)
    if not text:
        return []
    if len(text) > MOST_WARNING_BYTES:
        text = f"{text[: MOST_WARNING_BYTES - 3]}..."
    return [header(b"x-callboard-warnings", text)]
