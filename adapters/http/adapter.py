"""What all HTTP providers share, and what each of them adds.

A provider's adapter subclasses HttpAdapter and says, in pure functions, what goes over its wire: how a request
is written, how a reply is read (whole and streamed), how an error is classified. What waits is in `http_call`
(attempts, time limits, cancelling) and `http_stream` (the reader's iterator).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from weakref import WeakValueDictionary

import anyio
import msgspec

from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import AdapterError, CallboardError, InvalidRequestError, StreamError
from bus.values.json import Json
from bus.values.messages import Message, ToolDefinition
from bus.values.usage import TokenUsage, UsageSource

from ..contract import (
    AdapterCapabilities,
    AdapterConfig,
    AdapterStream,
    AttemptObserver,
    CanonicalRequest,
    CanonicalResponse,
    RateLimitInfo,
)
from ..health import AdapterHealth, AdapterStatistics, CountingTransport, probe
from ..refusals.classify import ErrorType, build_error, read_error
from ..refusals.repair import Repair, RepairRules, edited, find_repair
from ..refusals.strange_replies import not_of_protocol, origin
from ..replies.assembler import Assembler
from ..replies.broken_json import mend_body
from ..replies.normaliser import StreamNormaliser
from ..replies.whole import WholeStream
from ..requests.settings import SharedOptions, read_options
from ..transport.addresses import checked_base_url, normalise_base_url
from ..transport.header_values import with_clean_headers
from ..transport.key_masking import hide_in_logs, masked, masked_headers, secrets
from ..transport.key_owner import check_key_goes_home
from ..transport.transport import (
    HttpReply,
    HttpRequest,
    HttpxTransport,
    Transport,
    close_reply,
    exchange,
    read_error_body,
)
from ..usage.estimate import estimate_request, estimate_tokens, rates_for
from ..usage.rates import TokenRates
from .attempts import HttpAttempts
from .call import HttpCall
from .stream import HttpStream
from .wire_call import WireCall

HEALTH_SECONDS = 5.0


class HttpAdapter(ABC):
    """Base of the adapters that speak HTTP; see the module's text.

    `config.options["repair"]`: false to send no refused request again, mended; see `repair`.

    options_type: what `config.options` may hold; None leaves that to the adapter. protocol_of_many: many vendors
    speak it, so a key needs a `base_url`.
    name: of the provider, as it stands before the colon of a model's name; a configuration that uses one protocol
    for several providers gives each its own. transport: replaces the network (cassettes, tests).
    """

    default_name: str
    default_base_url: str
    capabilities: AdapterCapabilities
    error_codes: Mapping[str, ErrorType] = {}
    repair_rules: RepairRules = RepairRules()
    options_type: type[SharedOptions] | None = None
    protocol_of_many = False

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name or self.default_name
        self.config = with_clean_headers(config, self.name)
        self.secrets = secrets(self.config)
        self.clock = clock
        given = config.base_url
        if not given and (self.secrets or config.api_key or config.api_key_env):
            check_key_goes_home(
                self.name, config.api_key_env, self.default_base_url, of_many=self.protocol_of_many
            )
        if self.options_type is not None:
            read_options(config.options, self.options_type, name=self.name, type_name=self.default_name)
        self.base_url = checked_base_url(given, self.name) if given else normalise_base_url(self.default_base_url)
        self._transport = transport or HttpxTransport()
        hide_in_logs(self, self.secrets)
        self.running: WeakValueDictionary[str, HttpAttempts] = WeakValueDictionary()

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

    async def prepare(self, call: HttpCall) -> None:  # noqa: B027 (most need nothing)
        """Find out, under `call.wait`, what the request can't be written without. For most that is nothing."""

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """What the reply's headers say about limits."""
        return None

    def repair(
        self, request: CanonicalRequest, wire: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """How to mend a request that was refused; None if the error is final. Pure.

        done: the kinds of repair that were tried in this call.
        """
        rules = self.repair_rules
        return find_repair(request, wire.body, wire.tool_ids, error, rules, provider=self.name, done=done)

    def health_request(self) -> WireCall:
        """A GET that costs nothing and wants the key: the list of models."""
        return WireCall("/v1/models", b"")

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
        return estimate_request(messages, tools, system_prompt, self._token_rates(model))

    def _token_rates(self, model: str | None) -> TokenRates:
        """The rates of this protocol, server and model; the protocol is the adapter's own name for it."""
        return rates_for(self.default_name, self.base_url, model or "")

    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        call = HttpCall(self, request, on_attempt, stream=False)
        try:
            while True:
                call.begin_attempt()
                try:
                    return await self._complete_once(call)
                except AdapterError as error:
                    await call.back_off_or_raise(error)
        finally:
            call.ended = True

    async def _complete_once(self, call: HttpCall) -> CanonicalResponse:
        wire = await self._written(call)
        request = self._request(call, wire)
        call.sent = True
        reply, body = await call.wait(lambda: exchange(self._transport, request), what="the reply")
        if reply.status >= 300:
            raise self.error_of(body, reply, call.request.request_id)
        self.read_whole(body, call.assembler, reply)
        call.first_event()
        return self.response_of(call, wire, reply)

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        if request.capabilities is not None and not request.capabilities.supports_streaming:
            return WholeStream(self, request, request.message_id or self.clock.new_id("msg"), on_attempt)
        return HttpStream(self, HttpCall(self, request, on_attempt, stream=True))

    async def cancel(self, request_id: str) -> bool:
        call = self.running.get(request_id)
        if call is None or call.ended:
            return False
        await call.cancel()
        return True

    def usage_so_far(self, request_id: str) -> TokenUsage | None:
        """See `adapters.contract.MeteredAdapter`."""
        call = self.running.get(request_id)
        return None if call is None else call.usage_so_far()

    async def health_check(self) -> AdapterHealth:
        """Whether the provider answers and takes the key: one GET, never repeated, bounded to 5 s
        or to the timeout of a call, if that is shorter.

        A server that has no such page is reachable all the same. Never raises, but for cancellation.
        """
        seconds = min(self.config.timeout_seconds, HEALTH_SECONDS)
        return await probe(self._transport, self._question(self.health_request(), seconds), seconds)

    async def look_up(self, wire: WireCall, seconds: float) -> Json:
        """What the server says to a question of `wire`: a POST if it has a body, else a GET; sent once.

        None if it says nothing that is JSON within `seconds`, or answers with an error. Never raises, but for
        cancellation: what is asked here is good to know, and no call fails for want of it.
        """
        request = self._question(wire, min(self.config.connect_timeout, seconds))
        with anyio.move_on_after(seconds):
            try:
                reply, body = await exchange(self._transport, request)
                return msgspec.json.decode(body) if reply.status < 300 else None
            except (CallboardError, msgspec.DecodeError, UnicodeError, RecursionError):
                return None
        return None

    def _question(self, wire: WireCall, connect_timeout: float) -> HttpRequest:
        headers = {
            "accept": "application/json",
            **({"content-type": "application/json"} if wire.body else {}),
            "user-agent": "callboard",
            **self.auth_headers(),
            **wire.headers,
            **self.config.extra_headers,
        }
        method = "POST" if wire.body else "GET"
        return HttpRequest(method, self.base_url + wire.path, headers, wire.body, connect_timeout)

    def statistics(self) -> AdapterStatistics:
        """A snapshot."""
        transport = self._transport
        return AdapterStatistics(
            calls=sum(not call.ended for call in list(self.running.values())),
            transport=transport.statistics() if isinstance(transport, CountingTransport) else None,
        )

    async def close(self) -> None:
        for call in list(self.running.values()):
            if not call.ended:
                await call.cancel(at_once=True)
        await self._transport.aclose()

    # -- one attempt

    async def send(self, call: HttpCall) -> tuple[WireCall, HttpReply]:
        """Send the request of a stream; raise what an error reply means. The caller closes the reply."""
        wire = await self._written(call)
        http = self._request(call, wire)
        limit = self.config.first_event_timeout
        call.sent = True
        reply = await call.wait(lambda: self._transport.send(http), limit, what="the reply")
        if reply.status < 300:
            return wire, reply
        try:
            body = await call.wait(lambda: read_error_body(reply), limit, what="the error's body")
        finally:
            await close_reply(reply)
        raise self.error_of(body, reply, call.request.request_id)

    def _request(self, call: HttpCall, wire: WireCall) -> HttpRequest:
        accept = "text/event-stream" if call.streamed else "application/json"
        return self.http_request(wire, accept=accept, on_resend=call.resend_observer())

    def http_request(self, wire: WireCall, *, accept: str, on_resend: Callable[[], object] | None) -> HttpRequest:
        """The request with the headers that all of this adapter's have."""
        return HttpRequest(
            wire.method,
            self.base_url + wire.path,
            {
                **({"content-type": "application/json"} if wire.body else {}),
                "accept": accept,
                "user-agent": "callboard",
                **self.auth_headers(),
                **wire.headers,
                **self.config.extra_headers,
            },
            wire.body,
            self.config.connect_timeout,
            wire.once,
            on_resend,
        )

    async def _written(self, call: HttpCall) -> WireCall:
        if call.wire is not None:
            return call.wire  # every attempt sends the same, but after a repair
        await self.prepare(call)
        try:
            wire = self.write_request(self._informed(call.request), stream=call.streamed)
            call.wire = self._mended(wire, call.repairs) if call.repairs else wire
            call.assembler.known_warnings = call.wire.warnings
            return call.wire
        except (UnicodeError, msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"{self.name}: the request can't be written as JSON: {error}") from error

    def _informed(self, request: CanonicalRequest) -> CanonicalRequest:
        """The request with what the model can do, also where nobody but this adapter knows it."""
        if request.capabilities is not None:
            return request
        return msgspec.structs.replace(request, capabilities=self.get_capabilities(request.wire_model))

    @staticmethod
    def _mended(wire: WireCall, repairs: Sequence[Repair]) -> WireCall:
        edits = [edit for repair in repairs for edit in repair.edits]
        return msgspec.structs.replace(
            wire,
            body=edited(wire.body, edits) if edits else wire.body,
            warnings=wire.warnings + tuple(repair.warning for repair in repairs),
        )

    def error_of(self, body: bytes, reply: HttpReply, request_id: str) -> AdapterError:
        """What an error reply means, and where it comes from if that isn't plainly the provider."""
        error = self._error(body, reply, request_id)
        error.args = (f"{error}{origin(reply.status, reply.headers, body, self.base_url)}",)
        return error

    def _error(self, body: bytes, reply: HttpReply, request_id: str) -> AdapterError:
        return build_error(
            read_error(body),
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            request_id=request_id,
            now_us=self.clock.now_us(),
        )

    def unreadable(self, body: bytes, headers: Mapping[str, str], why: object) -> StreamError:
        """The error for a reply, or the beginning of one, that is none of the protocol."""
        return not_of_protocol(self.name, body, headers, self.base_url, why)

    def read_whole(self, body: bytes, assembler: Assembler, reply: HttpReply) -> None:
        """`read_reply`, also of JSON that can be mended. Raises StreamError for what is none of the protocol."""
        try:
            try:
                body.decode()  # before anything is taken in: decoding does not look at what is kept raw
                self.read_reply(body, assembler)
            except (msgspec.DecodeError, UnicodeDecodeError):
                mended = mend_body(body)
                if mended is None:
                    raise
                self.read_reply(mended.text, assembler)
                assembler.replaced(mended.replaced)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self.unreadable(body, reply.headers, error) from error
        if not assembler.complete:
            raise self.unreadable(body, reply.headers, "it holds no message")

    def response_of(self, call: HttpCall, wire: WireCall, reply: HttpReply | None) -> CanonicalResponse:
        assembler = call.assembler
        assert assembler.usage is not None
        assert assembler.stop_reason is not None
        headers = masked_headers(reply.headers, self.secrets) if reply is not None else {}
        response_id = assembler.response_id
        return CanonicalResponse(
            request_id=call.request.request_id,
            model=f"{self.name}:{masked(assembler.model, self.secrets)}",
            provider=self.name,
            content=assembler.final_content,
            stop_reason=assembler.stop_reason,
            raw_stop_reason=assembler.raw_stop_reason,
            usage=assembler.usage,
            latency_ms=call.elapsed_ms(),
            response_id=None if response_id is None else masked(response_id, self.secrets),
            warnings=wire.warnings + tuple(assembler.warnings),
            rate_limit=self.rate_limit(headers),
            provider_request_id=headers.get("request-id") or headers.get("x-request-id"),
        )

    def estimate_usage(self, request: CanonicalRequest, output: str) -> TokenUsage:
        """Usage for a reply whose provider said nothing about it."""
        return TokenUsage(
            input_tokens=self.estimate_input_tokens(
                request.messages, request.tools, request.system_prompt, model=request.model
            ),
            output_tokens=estimate_tokens(output, self._token_rates(request.model)),
            source=UsageSource.ESTIMATED,
        )
