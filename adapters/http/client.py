"""One adapter's way to its provider's server: its address, key and connections, and its calls in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol
from weakref import ref

import anyio
import msgspec

from callboard.bus.errors import AdapterError, AuthError, CallboardError
from callboard.bus.values.base import Json
from callboard.bus.values.usage import TokenUsage

from ..contract import RateLimitInfo
from ..health import AdapterHealth, AdapterStatistics, CountingTransport, failed, probe
from ..keys import Keyring, KnownKey
from ..refusals.classify import error_without_status, find_error
from ..refusals.words import not_of_protocol, origin
from ..transport.headers import masked_headers
from ..transport.http1.connection import WaitScopes
from ..transport.opening import HttpTransport
from ..transport.transport import HttpReply, HttpRequest, Transport, exchange
from .wire import ChatWire
from .wire_call import WireCall


class RunningCall(Protocol):
    """A call of any kind that is under way."""

    ended: bool
    """Whether nothing will be waited for again."""

    async def cancel(self, *, at_once: bool = False) -> None:
        """End the call; see `HttpAttempts.cancel`."""

    def usage_so_far(self) -> TokenUsage | None:
        """What the current attempt has used, if it ended here; None if nothing is known of it."""


class RunningCalls:
    """A register that keeps no call alive, so a stream that its reader dropped without closing it is gone.

    The entries of calls that are gone stay until so many are there. A `WeakValueDictionary` takes each out with a
    callback of its own, which costs more than all else that a call does here.
    """

    def __init__(self) -> None:
        self._calls: dict[str, ref[RunningCall]] = {}
        self._look_at = 64

    def __iter__(self) -> Iterator[RunningCall]:
        """The calls that have not ended."""
        found = [entry() for entry in self._calls.values()]
        return iter([call for call in found if call is not None and not call.ended])

    def add(self, request_id: str, call: RunningCall) -> None:
        """Add a call. It takes the place of an earlier one of its id."""
        if len(self._calls) >= self._look_at:
            self._calls = {name: entry for name, entry in self._calls.items() if entry() is not None}
            self._look_at = max(64, 2 * len(self._calls))
        self._calls[request_id] = ref(call)

    def get(self, request_id: str) -> RunningCall | None:
        """The call of an id, also if it has ended; None if it is gone."""
        entry = self._calls.get(request_id)
        return None if entry is None else entry()


HEALTH_SECONDS = 5.0

_NO_KEY = KnownKey(None, 0)


class HttpClient:
    """What all calls of one adapter share. `running` holds the calls under way, by the ids of their requests."""

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
        """What must not be seen of the keys that are known by now."""
        return self.keys.secrets

    def is_own(self, request: HttpRequest) -> bool:
        """Whether a request goes over connections of our own."""
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
        """The HTTP request of a call, with the headers that all requests of the adapter have."""
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
        """The exception that an error reply means. It says where the reply comes from, unless that is plain."""
        error = self.wire.error_of(body, reply)
        error.args = (f"{error}{origin(reply.status, reply.headers, body, self.wire.base_url)}",)
        return error

    def unreadable(self, body: bytes, headers: Mapping[str, str], why: object) -> AdapterError:
        """The exception for a reply, or the beginning of one, that is none of the protocol.

        Some servers send an error of another shape than their protocol's, with status 200: then it is that error.
        """
        error = find_error(body)
        if error is not None:
            return error_without_status(error, self.wire.error_codes, self.name)
        return not_of_protocol(self.name, body, headers, self.wire.base_url, why)

    async def look_up(self, call: WireCall, seconds: float) -> Json:
        """The server's JSON answer to a question beside the calls, which is sent once.

        No call fails for want of it: None is returned if no JSON comes within `seconds`, or an error comes.
        Nothing is raised, but for cancellation.
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
        """What a reply's headers say of the provider's limits."""
        return self.wire.rate_limit(masked_headers(headers, self.secrets))

    async def health_check(self) -> AdapterHealth:
        """Whether the provider answers and takes the key: one GET, repeated only with a new key.

        The GET takes 5 seconds at most, or the timeout of a call if that is shorter. A server that has no such
        page is reachable all the same. Nothing is raised, but for cancellation.
        """
        call = self.wire.health_request()
        if call is None:
            if self.keys.own.known != _NO_KEY:
                return AdapterHealth(True, f"not asked: {self.name} has nothing to ask that costs nothing")
            return AdapterHealth(False, "no key", f"Set a key of {self.name}.")
        seconds = min(self.config.timeout_seconds, HEALTH_SECONDS)
        health = AdapterHealth(False, f"no key came within {seconds:g} s", "See what its function waits for.")
        key = self.keys.own
        with anyio.move_on_after(seconds):
            try:
                known = await key.get()
                request = self.request(call, known.value, connect_timeout=seconds)
                health = await probe(self.transport, request, seconds)
                if health.key_refused and await key.replaced(known):
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
        """A snapshot of the calls and connections."""
        transport = self.transport
        return AdapterStatistics(
            calls=len([*self.running]),
            transport=transport.statistics() if isinstance(transport, CountingTransport) else None,
        )

    async def close(self) -> None:
        """Cancel what runs, and release all connections. Idempotent."""
        for call in self.running:
            if not call.ended:  # while an earlier one was cancelled
                await call.cancel(at_once=True)
        await self.transport.aclose()
