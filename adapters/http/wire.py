"""A provider's protocol as pure functions: writing, reading, errors and counting.

`HttpAdapter` does the I/O; a `ChatWire` does none. To add a provider over HTTP, write a wire, and optionally the
wires of its embeddings, images and videos. An `HttpClient` holds the address, keys, connections and calls in
progress of one adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias
from weakref import ref

import anyio
import msgspec

from callboard.bus.backend import WaitScopes
from callboard.bus.clock import Clock
from callboard.bus.errors import AdapterError, AuthError, CallboardError
from callboard.bus.values.base import Json
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import TokenUsage

from ..batches import BatchWire
from ..config import AdapterConfig
from ..contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo, WireRequest
from ..health import AdapterHealth, AdapterStatistics, CountingTransport, failed, probe
from ..images import ImageWire
from ..keys import Keyring, KnownKey
from ..operations.wires import BackgroundWire, EmbeddingWire, VideoWire
from ..replies.assembler import Assembler
from ..replies.server_sent_events import StreamNormaliser
from ..requests import emulation
from ..requests.estimate import TokenRates, estimate_request, rates_for
from ..requests.history_target import WireCall, get
from ..requests.settings import SharedOptions, check_demands
from ..transport.connection_pool import HttpTransport
from ..transport.transport import HttpReply, HttpRequest, Transport, exchange, masked_headers
from .errors import ErrorType, build_error, error_without_status, find_error, not_of_protocol, origin, read_error
from .repair import Repair, RepairRules, find_repair

LookUp: TypeAlias = Callable[[WireCall, float], Awaitable[Json]]
"""A function that sends the server a query outside of calls, with a limit in seconds.

Returns None if no JSON arrives; never raises.
"""


class Endpoint(msgspec.Struct, frozen=True):
    """The configured server of a provider."""

    provider: str
    """The adapter's name, which is the prefix of its models' names."""
    base_url: str
    """The server's address, normalised."""
    config: AdapterConfig
    clock: Clock


class OtherWires(NamedTuple):
    """The wires of a provider's other operations; None if it lacks the operation."""

    embeddings: EmbeddingWire | None = None
    images: Callable[[str], ImageWire] | None = None
    """The wire of images for a model, by the model's name on the wire."""
    videos: VideoWire | None = None
    batches: BatchWire | None = None
    background: BackgroundWire | None = None


class ChatWire(ABC):
    """One provider's protocol for conversations. Implement four functions; the others have defaults.

    No function does I/O. A wire may cache the server's answers about its models.
    """

    default_name: str
    """The protocol's own name, and the adapter's name unless the configuration gives another."""
    default_base_url: str
    """The provider's own address."""
    capabilities: AdapterCapabilities
    """The capabilities of an unknown model."""
    error_codes: Mapping[str, ErrorType] = {}
    """The exception for each of the provider's error codes."""
    repair_rules: RepairRules = RepairRules()
    """The repairs for refused requests."""
    options_type: type[SharedOptions] | None = None
    """The type of `AdapterConfig.options`; None for a wire that validates the options itself."""
    protocol_of_many: bool = False
    """Whether many vendors use the protocol. A key is then accepted only together with a `base_url`."""
    long_timeouts: bool = False
    """Whether the models usually run on slow machines; see `with_long_timeouts`."""
    echoes_beginning: bool = False
    """Whether a reply that continues a given start may repeat that start."""
    media_fields: frozenset[str] = frozenset()
    """The fields of media that the protocol supports: ``image.detail``, ``document.name``."""
    emulates_tools: bool = False
    """Whether tools are emulated by constrained output; `write_request` then gets requests without tools."""
    client_protocol: str = ""
    """The `WireRequest.protocol` of bodies that the wire sends unchanged; empty if there is none."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.name = endpoint.provider
        self.config = endpoint.config
        self.base_url = endpoint.base_url

    # --- Requests and replies ---

    @abstractmethod
    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        """The headers that carry a key; none if there is no key.

        Args:
            key: The key of the attempt. It may differ from the key of the last attempt.
        """

    @abstractmethod
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """Write a request in the provider's format.

        Raises:
            CapabilityError: The request needs an ability that the model lacks.
            InvalidRequestError: The request can't be expressed in this protocol.
        """

    def write(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """Write a request. A client's own request is sent as it is. Otherwise tools are emulated if the wire needs
        that.

        Raises the errors of `write_request`.
        """
        sent = self.client_request(request) if request.wire is not None else None
        if sent is not None:
            return self.write_as_sent(sent, request.wire_model, stream=stream)
        emulated = emulation.emulate(request) if self.emulates_tools else None
        if emulated is None:
            return self.write_request(request, stream=stream)
        check_demands(request, request.capabilities, self.name)  # the emulated request has no tools
        call = self.write_request(emulated.request, stream=stream)
        return emulation.with_losses(call, request, self.name)

    def is_constrained(self, request: CanonicalRequest) -> bool:
        """Whether the reply will be an emulated call or answer for `emulation.read_response`."""
        emulated = emulation.emulate(request) if self.emulates_tools else None
        return emulated is not None and emulated.constrained

    def client_request(self, request: CanonicalRequest) -> WireRequest | None:
        """Return the client's own request if this wire sends it in place of the canonical request. Otherwise
        return None.
        """
        sent = request.wire
        if sent is None or sent.protocol != self.client_protocol:
            return None
        if self.emulates_tools and (request.tools or any(message.tool_uses for message in request.messages)):
            return None
        return sent

    def write_as_sent(self, sent: WireRequest, model: str, *, stream: bool) -> WireCall:
        """Write a client's own request, for a wire with a `client_protocol`."""
        raise NotImplementedError

    def hides(self, sent: WireRequest, *, stream: bool) -> Callable[[bytes], bool] | None:
        """A function that returns True for events that only `write_as_sent` requested; None if there are no such
        events.
        """
        return None

    @abstractmethod
    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        """Feed a whole reply to the assembler and finish it.

        Raises:
            AdapterError: The reply is an error.
            msgspec.MsgspecError: The reply does not follow the protocol.
        """

    @abstractmethod
    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        """A normaliser that reads a streamed reply into the assembler."""

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        return build_error(
            read_error(body),
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            now_us=self.endpoint.clock.now_us(),
        )

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """The provider's limits in a reply's headers."""
        return None

    def repair(
        self, request: CanonicalRequest, call: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """The repair of a rejected request; None if the error is final.

        Args:
            request: The request.
            call: The same request, as it was sent.
            error: The provider's error.
            done: The kinds of repair that were tried in this call.
        """
        return find_repair(
            request, call.body, call.tool_ids, error, self.repair_rules, provider=self.name, done=done
        )

    def health_request(self) -> WireCall | None:
        """A GET that needs the key and costs nothing; None if the provider has none."""
        return get("/v1/models")

    def other_wires(self) -> OtherWires:
        """The wires of the other operations, on the same server and with the same key."""
        return OtherWires()

    # --- Models ---

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities

    def can_stream(self, request: CanonicalRequest) -> bool:
        """Whether the server can stream the reply to this request."""
        return True

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """Whether the model can continue a reply that starts with the request's last message."""
        return False

    async def initialize(self, look_up: LookUp) -> None:  # noqa: B027 (most servers are asked nothing)
        """Request the data that writing requests depends on, when the adapter starts."""

    def is_unknown(self, model: str) -> bool:
        """Whether the model's capabilities are unknown, so that `learn_model` must run before a request is
        written.
        """
        return False

    async def learn_model(self, model: str, look_up: LookUp) -> None:  # noqa: B027 (most servers need no requests)
        """Request the model's capabilities from the server."""

    def token_rates(self, model: str | None) -> TokenRates:
        return rates_for(self.default_name, self.base_url, model or "")

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        """Estimate the input tokens of a request, from the text alone."""
        return estimate_request(messages, tools, system_prompt, self.token_rates(model))


class RunningCall(Protocol):
    ended: bool
    """Whether the call is over."""

    async def cancel(self, *, at_once: bool = False) -> None:
        """End the call; see `HttpAttempts.cancel`."""

    def usage_so_far(self) -> TokenUsage | None:
        """The usage of the current attempt, as if the attempt ended now; None if unknown."""


class RunningCalls:
    """The calls in progress, by weak references. So a stream that its reader drops is freed.

    Entries of freed calls are removed in bulk. A `WeakValueDictionary` would call a function for each, which costs
    more than all other work here.
    """

    def __init__(self) -> None:
        self._calls: dict[str, ref[RunningCall]] = {}
        self._look_at = 64

    def __iter__(self) -> Iterator[RunningCall]:
        found = [entry() for entry in self._calls.values()]
        return iter([call for call in found if call is not None and not call.ended])

    def add(self, request_id: str, call: RunningCall) -> None:
        """Add a call. It replaces an earlier call with the same id."""
        if len(self._calls) >= self._look_at:
            self._calls = {name: entry for name, entry in self._calls.items() if entry() is not None}
            self._look_at = max(64, 2 * len(self._calls))
        self._calls[request_id] = ref(call)

    def get(self, request_id: str) -> RunningCall | None:
        """The call with an id, even if it has ended; None if it was freed."""
        entry = self._calls.get(request_id)
        return None if entry is None else entry()


HEALTH_SECONDS = 5.0

_NO_KEY = KnownKey(None, 0)


class HttpClient:
    """The state that all calls of one adapter share. `running` contains the calls in progress by request id."""

    def __init__(self, wire: ChatWire, transport: Transport) -> None:
        self.wire = wire
        self.transport = transport
        self.name = wire.name
        self.config = wire.config
        self.clock = wire.endpoint.clock
        self.keys = Keyring(wire.name, wire.config)
        self.running = RunningCalls()
        self.wait_scopes = WaitScopes()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret parts of all known keys."""
        return self.keys.secrets

    def is_own(self, request: HttpRequest) -> bool:
        """Whether a request uses Callboard's own connections."""
        return isinstance(self.transport, HttpTransport) and self.transport.is_own(request.url)

    def request(
        self,
        call: WireCall,
        key: str | None,
        *,
        accept: str = "application/json",
        on_resend: Callable[[], object] | None = None,
        connect_timeout: float | None = None,
    ) -> HttpRequest:
        """The HTTP request of a call, with the adapter's common headers."""
        return HttpRequest(
            call.method,
            self.wire.base_url + call.path,
            {
                **({"content-type": "application/json"} if call.body else {}),
                "accept": accept,
                "user-agent": "callboard",
                **self.wire.auth_headers(key),
                **call.headers,
                **self.config.extra_headers,
            },
            call.body,
            self.config.connect_timeout if connect_timeout is None else connect_timeout,
            call.once,
            on_resend,
        )

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        """The exception for an error reply. The text names the origin of the reply if the provider did not send
        it.
        """
        error = self.wire.error_of(body, reply)
        error.args = (f"{error}{origin(reply.status, reply.headers, body, self.wire.base_url)}",)
        return error

    def unreadable(self, body: bytes, headers: Mapping[str, str], why: object) -> AdapterError:
        """The exception for a reply that does not follow the protocol.

        Some servers send an error in another protocol's form, with status 200. That error is then returned.
        """
        error = find_error(body)
        if error is not None:
            return error_without_status(error, self.wire.error_codes, self.name)
        return not_of_protocol(self.name, body, headers, self.wire.base_url, why)

    async def look_up(self, call: WireCall, seconds: float) -> Json:
        """The server's JSON answer to a query outside of calls, which is sent once.

        Returns None if no JSON arrives within `seconds`, or after an error. Raises only cancellation.
        """
        with anyio.move_on_after(seconds):
            try:
                key = (await self.keys.own.get()).value
                request = self.request(call, key, connect_timeout=min(self.config.connect_timeout, seconds))
                reply, body = await exchange(self.transport, request)
                return msgspec.json.decode(body) if reply.status < 300 else None
            except (CallboardError, msgspec.DecodeError, UnicodeError, RecursionError):
                return None
        return None

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """The provider's limits in a reply's headers."""
        return self.wire.rate_limit(masked_headers(headers, self.secrets))

    async def health_check(self) -> AdapterHealth:
        """Check with one GET that the provider answers and accepts the key. The GET is repeated only with a new
        key.

        The GET takes at most 5 seconds, or a call's timeout if that is shorter. A server that answers 404 counts
        as healthy. Raises only cancellation.
        """
        call = self.wire.health_request()
        if call is None:
            if self.keys.own.known != _NO_KEY:
                return AdapterHealth(True, f"not contacted: {self.name} has no free request for a health check")
            return AdapterHealth(False, "no key", f"Set a key of {self.name}.")
        seconds = min(self.config.timeout_seconds, HEALTH_SECONDS)
        health = AdapterHealth(False, f"no key was returned within {seconds:g} s", "Check why its function waits.")
        key = self.keys.own
        with anyio.move_on_after(seconds):
            try:
                api_key = await key.get()
                request = self.request(call, api_key.value, connect_timeout=seconds)
                health = await probe(self.transport, request, seconds)
                if health.key_refused and await key.replaced(api_key):
                    request = self.request(call, (await key.get()).value, connect_timeout=seconds)
                    health = await probe(self.transport, request, seconds)
            except AuthError as error:
                return failed(error)
        return health

    async def cancel(self, request_id: str) -> bool:
        """Stop a call; see `ProviderAdapter.cancel`."""
        call = self.running.get(request_id)
        if call is None or call.ended:
            return False
        await call.cancel()
        return True

    def usage_so_far(self, request_id: str) -> TokenUsage | None:
        """See `adapters.contract.MeteredAdapter`."""
        call = self.running.get(request_id)
        return None if call is None else call.usage_so_far()

    def statistics(self) -> AdapterStatistics:
        transport = self.transport
        return AdapterStatistics(
            calls=len([*self.running]),
            transport=transport.statistics() if isinstance(transport, CountingTransport) else None,
        )

    async def close(self) -> None:
        """Cancel all calls and release all connections. Idempotent."""
        for call in self.running:
            if not call.ended:  # the call may have ended while another call was being cancelled
                await call.cancel(at_once=True)
        await self.transport.aclose()
