"""The connection to NATS. The connection may be lost and restored at any time.

    connecting ──▶ connected ⇄ away ──▶ closed

Subscriptions may be made at any time, and apply from the next connection on. While the broker is unreachable,
messages are lost and `publish` returns False. A callback reports when the broker is reachable again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import ParseResult

import anyio

from callboard.bus import ConfigurationError, Log
from callboard.tracestore.reports import Check

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as NatsSubscription
    from nats.aio.transport import TcpTransport
    from nats.js import JetStreamContext
    from nats.js.api import StreamState


_log = Log("engine.broker")

RECONNECT_SECONDS = 0.25
"""Seconds between two attempts to reach the broker."""

PING_SECONDS = 5
"""Seconds between two pings. A broker that has not answered two pings is treated as unreachable."""

LET_GO_ROUNDS = 8
"""The maximum number of cycles of the event loop to wait until the client's task has written."""

MOST_WAITING = 16 * 1024 * 1024
"""The maximum number of bytes that may wait to be sent. Beyond it, messages are refused."""

Receiver: TypeAlias = Callable[[str, bytes, str], None]
"""Receives a message: its subject, its payload, and the subject for an answer, if any."""


class Subscription:
    def __init__(self, subject: str, receive: Receiver, subscriptions: set[Subscription]) -> None:
        self.subject = subject
        self.real: NatsSubscription | None = None
        self._receive = receive
        self._subscriptions = subscriptions

    async def take(self, message: Msg) -> None:
        try:
            self._receive(message.subject, message.data, message.reply)
        except Exception as error:  # an error in one message must not stop the others
            _log.error("message_not_taken", subject=message.subject, error=f"{type(error).__name__}: {error}")

    async def unsubscribe(self) -> None:
        """End the subscription. It never raises."""
        self._subscriptions.discard(self)
        real, self.real = self.real, None
        if real is not None:
            try:
                await real.unsubscribe()
            except Exception as error:
                _log.debug("not_unsubscribed", subject=self.subject, error=str(error))


class Broker:
    """The connection of one node to the broker, or to one of several, with commas between their addresses.

    `client` is the name of this client, for the broker's operators.
    """

    def __init__(self, url: str, client: str) -> None:
        if find_spec("nats") is None:
            raise ConfigurationError("a broker needs nats-py: pip install 'callboard[nats]'")
        self._servers = addresses_in(url)
        self._client_name = client
        self._client: Client | None = None
        self._subscriptions: set[Subscription] = set()
        self._callbacks: list[Callable[[], None]] = []
        self._watchers: list[Callable[[bool], None]] = []
        self._last_state: bool | None = None
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._more = asyncio.Event()
        self._reached = asyncio.Event()
        self.reconnects = 0
        self._connected_at: float | None = None

    async def run(self) -> None:
        """Connect, and send published messages, until cancelled. An unreachable broker is retried forever.

        The connection is kept until `close`, so that remaining messages can be sent at the end.
        """
        if self._client is None or self._client.is_closed:
            await self._connect()
        while True:
            await self._more.wait()
            self._more.clear()
            await self._send()

    async def drain(self) -> None:
        """Send all waiting messages. If the broker doesn't accept them within a second, they are dropped."""
        from nats.errors import Error

        if self._client is None or not self.connected:
            return
        try:
            await self._send()
            await self.arrived(1)
        except (Error, OSError, TimeoutError) as error:
            _log.warning("broker_not_flushed", error=f"{type(error).__name__}: {error}")

    async def arrived(self, seconds: int) -> None:
        """Wait until the broker has received all messages and subscriptions of the client."""
        if self._client is not None:
            await self._client.flush(seconds)
            # The client's first ping may be sent before waiting messages. A second ping follows them.
            await self._client.flush(seconds)

    async def reached(self) -> None:
        """Wait until the broker is connected."""
        while not self.connected:
            self._reached.clear()
            await self._reached.wait()

    async def let_go(self) -> None:
        """Wait until published messages were passed to the operating system.

        The operating system sends them even if this process dies. If the broker accepts nothing now, this returns
        immediately. It never raises.
        """
        if (client := self._client) is None or not self.connected:
            return
        await self._send()
        for _ in range(LET_GO_ROUNDS):
            if not client.pending_data_size:
                break
            await asyncio.sleep(0)  # the client writes in a separate task

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # --- Messages ---

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def connected_seconds(self) -> float:
        """Seconds of uninterrupted connection to the broker; 0 if it can't be reached."""
        since = self._connected_at
        return 0.0 if since is None or not self.connected else asyncio.get_running_loop().time() - since

    @property
    def most_bytes(self) -> int:
        """The maximum size of a message, in bytes."""
        return self._client.max_payload if self._client is not None and self._client.max_payload > 0 else 1 << 20

    def publish(self, subject: str, payload: bytes) -> bool:
        """Send a message, without waiting."""
        if not self.connected or self._waiting_bytes + len(payload) > MOST_WAITING:
            return False
        self._waiting.append((subject, payload))
        self._waiting_bytes += len(payload)
        self._more.set()
        return True

    def listen(self, subject: str, receive: Receiver) -> Subscription:
        """Receive the messages of a subject from the next connection on."""
        subscription = Subscription(subject, receive, self._subscriptions)
        self._subscriptions.add(subscription)
        return subscription

    async def subscribe(self, subject: str, receive: Receiver) -> Subscription:
        """Receive the messages of a subject from now on, also after a reconnection."""
        subscription = self.listen(subject, receive)
        if self._client is not None:
            await self._subscribe(self._client, subscription)
        return subscription

    async def request(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        """Send a message, and return the first answer.

        Returns None if there is no receiver, no answer in time, or no connection.
        """
        from nats.errors import Error

        if not self.connected or self._client is None:
            return None
        try:
            return (await self._client.request(subject, payload, timeout=seconds)).data
        except (Error, OSError, TimeoutError):
            return None

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call a function at each connection, including the first one."""
        self._callbacks.append(callback)

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call a function with True when the broker is reachable, and with False when it is unreachable."""
        self._watchers.append(callback)

    @property
    def jetstream(self) -> JetStreamContext | None:
        """nats-py's object for the broker's storage; None while the broker is unreachable."""
        return self._client.jetstream(timeout=2) if self._client is not None and self.connected else None

    @property
    def client(self) -> Client | None:
        """nats-py's connection; None while the broker is unreachable."""
        return self._client if self.connected else None

    # --- Helpers ---

    async def _connect(self) -> None:
        from nats.aio.client import Client

        client = Client()
        if not any("ws" in address.partition("://")[0] for address in self._servers):
            client._transport = closing_transport()
        try:
            await client.connect(
                self._servers,
                name=self._client_name,
                max_reconnect_attempts=-1,
                # the cast is safe, because nats-py accepts fractions
                reconnect_time_wait=cast("int", RECONNECT_SECONDS),
                ping_interval=PING_SECONDS,
                connect_timeout=2,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnect,
                reconnected_cb=self._on_reconnect,
                skip_subject_validation=True,
            )
            self._client = client
            for subscription in tuple(self._subscriptions):
                await self._subscribe(client, subscription)
        except BaseException:
            self._client = None
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await client.close()
            raise
        self._report()

    async def _subscribe(self, client: Client, subscription: Subscription) -> None:
        from nats.errors import Error

        try:
            subscription.real = await client.subscribe(subscription.subject, cb=subscription.take)
        except Error as error:
            raise OSError(f"can't subscribe at the broker: {error}") from error

    async def _send(self) -> None:
        from nats.errors import Error

        if (client := self._client) is None:
            return

        while self._waiting:
            subject, payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            try:
                await client.publish(subject, payload)
            except Error as error:
                _log.debug("not_published", subject=subject, error=str(error))

    async def _on_error(self, error: Exception) -> None:
        _log.debug("broker_error", error=f"{type(error).__name__}: {error}")
        if self._last_state is None:
            self._changed(connected=False)

    async def _on_disconnect(self) -> None:
        self._connected_at = None
        if self._client is None:
            return  # the connection was closed
        self._changed(connected=False)

    async def _on_reconnect(self) -> None:
        self.reconnects += 1
        self._report()

    def _changed(self, *, connected: bool) -> None:
        if self._last_state != connected:
            self._last_state = connected
            if connected:
                _log.info("broker_connected", servers=self.addresses)
            else:
                _log.warning("broker_unreachable", servers=self.addresses)
            for watcher in self._watchers:
                watcher(connected)

    @property
    def addresses(self) -> str:
        """The addresses of the broker, without passwords."""
        return _shown(self._servers)

    def _report(self) -> None:
        self._changed(connected=True)
        self._connected_at = asyncio.get_running_loop().time()
        self._reached.set()
        for callback in self._callbacks:
            callback()


def addresses_in(url: str) -> list[str]:
    return [address.strip() for address in url.split(",") if address.strip()]


def _shown(addresses: Sequence[str]) -> str:
    """Addresses without passwords."""
    return ", ".join(address.rpartition("@")[2].rpartition("//")[2] for address in addresses)


def closing_transport() -> TcpTransport:
    """A transport that closes its previous connection when it makes another."""
    from nats.aio.transport import TcpTransport

    class ClosingTransport(TcpTransport):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
            self.close()  # type: ignore[no-untyped-call]
            await super().connect(uri, buffer_size, connect_timeout)

        def __bool__(self) -> bool:
            return True  # otherwise nats-py would make its own transport

    return ClosingTransport()


# --- The check of a broker ---

ASK_SECONDS = 3.0
"""Seconds to wait for a broker's answer."""

_WITHOUT_BROKER = (
    "Until then, calls, traces, accounting and sessions continue. Readers on other nodes get events "
    "later, from the shared store. Events wait in the trace until the broker is back."
)


async def check_broker(url: str, cluster: str) -> list[Check]:
    """The check of the broker at an address. It creates nothing there."""
    servers = addresses_in(url)
    where = _shown(servers)
    if find_spec("nats") is None:
        return [Check("broker", False, "nats-py is not installed", "pip install 'callboard[nats]'")]
    from nats.aio.client import Client
    from nats.errors import Error

    failures: list[Exception] = []

    async def failed(error: Exception) -> None:
        failures.append(error)
        if len(failures) >= len(servers):
            raise error  # otherwise nats-py would retry forever

    client = Client()
    try:
        with anyio.fail_after(ASK_SECONDS):
            await client.connect(servers, allow_reconnect=False, connect_timeout=2, error_cb=failed)
            return [await _check_of(client, cluster)]
    except (Error, OSError, ValueError) as error:
        slow = isinstance(error, TimeoutError)
        found = f"no answer within {ASK_SECONDS:g} s" if slow else str(error) or type(error).__name__
        fix = f"Start it, or correct the address. {_WITHOUT_BROKER}"
        return [Check("broker", False, f"{where}: can't be reached: {found}", fix)]
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await client.close()


async def _check_of(client: Client, cluster: str) -> Check:
    from nats.errors import Error

    jetstream, place, version = client.jetstream(timeout=2), client.connected_url, client.connected_server_version
    where = "" if place is None else f"{place.hostname}:{place.port}"
    server = f"{where}: NATS {version.major}.{version.minor}.{version.patch}"
    try:
        await jetstream.account_info()
        events = await _stored_contents(jetstream, f"callboard_{cluster}_events")
        frames = await _stored_contents(jetstream, f"callboard_{cluster}_streams")
    except Error:
        fix = f"Start nats-server with -js, and give this user access to it. {_WITHOUT_BROKER}"
        return Check("broker", False, f"{server}, but it can't store messages: JetStream is off", fix)
    found = "no events of this cluster yet"
    if events is not None:
        found = f"{megabytes(events.bytes)} of this cluster's events"
    if frames is not None:
        size = megabytes(frames.bytes)
        found += f", and {frames.messages} frames of streams, which are kept for ten minutes ({size})"
    return Check("broker", True, f"{server} keeps {found}")


async def _stored_contents(jetstream: JetStreamContext, stream: str) -> StreamState | None:
    from nats.js.errors import NotFoundError

    try:
        return (await jetstream.stream_info(stream)).state
    except NotFoundError:
        return None


def megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"
