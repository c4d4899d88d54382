"""The broker's stream of recent events: written with acknowledgements, and read in order.

The stream is for readers that were disconnected for a short time. If it has lost events, or dropped them because
of age or size, they are in the shared store.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

import anyio
import msgspec

from callboard.bus import Log

from .broker import Broker

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig


_log = Log("engine.broker")

EVENTS_SECONDS = 24 * 3600
"""Seconds for which events are kept."""

EVENTS_BYTES = 1024 * 1024 * 1024
"""The maximum size of the stored events, in bytes. Above it, the oldest are dropped."""

DEDUPLICATED_SECONDS = 120
"""Seconds during which the broker detects repeated messages. Readers drop later repetitions."""

ACK_SECONDS = 2.0
"""The maximum number of seconds to wait for an acknowledgement or an answer."""

PULLED = 64
"""The number of messages in one request. No more messages wait for a reader."""

PULL_SECONDS = 30.0
"""Seconds after which a request for messages expires at the broker."""

HEARTBEAT_SECONDS = 2.0
"""Seconds between heartbeats while the broker has no messages. If two heartbeats are missing, the reader starts
again.
"""

HEADS_SECONDS = 10.0
"""The maximum number of seconds to read the last messages of all runs. The broker sends heartbeats without end if
it has counted a message and then dropped it.
"""

FORGOTTEN_SECONDS = 300.0
"""Seconds after which the broker drops an inactive reader."""

_ID = "Nats-Msg-Id"


class StreamPosition(msgspec.Struct, frozen=True):
    stream: str
    """The id of the stream. If the stream is deleted and created again, it has another id."""
    sequence: int
    """The number of the message before the position."""


class RetainedMessage(msgspec.Struct, frozen=True):
    position: StreamPosition
    data: bytes


class BrokerEvents:
    """The events of one cluster at the broker."""

    def __init__(self, broker: Broker, cluster: str) -> None:
        self._broker = broker
        self._stream = f"callboard_{cluster}_events"
        self._prefix = f"callboard.{cluster}.events"

    @property
    def connected(self) -> bool:
        return self._broker.connected

    @property
    def most_bytes(self) -> int:
        return self._broker.most_bytes

    async def publish(self, run_id: str, message_id: str, data: bytes) -> bool:
        """Store a message at the broker, and wait for the broker's confirmation. It never raises."""
        from nats.errors import Error
        from nats.js.errors import NoStreamResponseError

        jetstream = self._broker.jetstream
        if jetstream is None:
            return False
        subject, headers = f"{self._prefix}.{run_id}", {_ID: message_id}
        try:
            await jetstream.publish(subject, data, timeout=ACK_SECONDS, headers=headers)
        except NoStreamResponseError:
            with suppress(Error, OSError, TimeoutError):
                await self._prepare()
            return False
        except (Error, OSError, TimeoutError) as error:
            _log.debug("not_kept", subject=subject, error=f"{type(error).__name__}: {error}")
            return False
        return True

    async def heads(self) -> tuple[StreamPosition | None, list[str]]:
        """The current end of the stream, and the id of each run's last message. It never raises."""
        from nats.errors import Error
        from nats.js.api import ConsumerConfig, DeliverPolicy

        try:
            end = await self._end()
            runs, last = f"{self._prefix}.>", DeliverPolicy.LAST_PER_SUBJECT
            config = ConsumerConfig(deliver_policy=last, filter_subject=runs, headers_only=True)
            async with self._pulling(config) as (pull, waiting):
                with anyio.fail_after(HEADS_SECONDS):
                    headers = [(await pull.next()).headers or {} for _ in range(waiting)]
        except (Error, OSError, TimeoutError) as error:
            _log.debug("heads_not_read", error=f"{type(error).__name__}: {error}")
            return None, []
        return end, [headers[_ID] for headers in headers if _ID in headers]

    async def read(self, after: StreamPosition | datetime | None) -> AsyncIterator[RetainedMessage]:
        """The messages of the stream in order, without end."""
        from nats.errors import Error
        from nats.js.api import ConsumerConfig, DeliverPolicy

        try:
            end = await self._end()
            config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
            if isinstance(after, datetime):
                config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=after)
            elif after is not None and after.stream == end.stream and after.sequence <= end.sequence:
                first = after.sequence + 1
                config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)
            async with self._pulling(config) as (pull, _):
                while True:
                    message = await pull.next()
                    sequence = message.metadata.sequence.stream
                    yield RetainedMessage(StreamPosition(end.stream, sequence), message.data)
        except (Error, TimeoutError) as error:
            raise OSError(f"can't read events from the broker: {type(error).__name__}: {error}") from error

    # --- Helpers ---

    @property
    def _jetstream(self) -> JetStreamContext:
        if (jetstream := self._broker.jetstream) is None:
            raise OSError("the broker can't be reached")
        return jetstream

    async def _end(self) -> StreamPosition:
        from nats.js.errors import NotFoundError

        jetstream = self._jetstream
        try:
            info = await jetstream.stream_info(self._stream)
        except NotFoundError:
            await self._prepare()
            info = await jetstream.stream_info(self._stream)
        return StreamPosition(str(info.created), info.state.last_seq)

    async def _prepare(self) -> None:
        """Create the stream at the broker, if it does not exist."""
        from nats.js.api import DiscardPolicy, StreamConfig

        await self._jetstream.add_stream(
            StreamConfig(
                name=self._stream,
                subjects=[f"{self._prefix}.>"],
                max_age=EVENTS_SECONDS,
                max_bytes=EVENTS_BYTES,
                discard=DiscardPolicy.OLD,
                duplicate_window=DEDUPLICATED_SECONDS,
            )
        )

    @asynccontextmanager
    async def _pulling(self, config: ConsumerConfig) -> AsyncIterator[tuple[_Pull, int]]:
        """A reader of the stream, and the number of messages that waited for the reader when it started."""
        from nats.errors import Error
        from nats.js.api import AckPolicy

        client, jetstream = self._broker.client, self._jetstream
        assert client is not None
        config = config.evolve(
            ack_policy=AckPolicy.NONE, mem_storage=True, num_replicas=1, inactive_threshold=FORGOTTEN_SECONDS
        )
        consumer = await jetstream.add_consumer(self._stream, config)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        try:
            yield _Pull(client, subscription, inbox, f"{self._stream}.{consumer.name}"), consumer.num_pending or 0
        finally:
            with suppress(Error, OSError, TimeoutError), anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await subscription.unsubscribe()
                await jetstream.delete_consumer(self._stream, consumer.name)


class _Pull:
    """A reader at the broker. It requests more messages when all requested messages have arrived."""

    def __init__(self, client: Client, subscription: Subscription, inbox: str, consumer: str) -> None:
        self._client = client
        self._subscription = subscription
        self._inbox = inbox
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{consumer}"
        self._expected = 0

    async def next(self) -> Msg:
        """The next message. Raises TimeoutError if the broker is silent, and OSError if the broker sends no more
        messages.
        """
        while True:
            if self._expected <= 0:
                await self._ask()
            message = await self._subscription.next_msg(timeout=2.5 * HEARTBEAT_SECONDS)
            match (message.headers or {}).get("Status"):
                case None:
                    self._expected -= 1
                    return message
                case "100":
                    pass  # a heartbeat
                case "404" | "408":
                    self._expected = 0  # the request has ended
                case status:
                    raise OSError(f"the broker stopped sending: {status}")

    async def _ask(self) -> None:
        request = {
            "batch": PULLED,
            "expires": int(PULL_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)
        self._expected = PULLED


# --- The broker for frames ---


FRAMES_SECONDS = 600
"""Seconds for which the broker keeps frames."""

FRAMES_BYTES = 256 * 1024 * 1024
"""The maximum size of the frames that the broker stores, in bytes. Above it, the oldest are dropped."""

FETCHED = 256
"""The number of frames that are fetched in one request."""

FETCH_SECONDS = 2.0
"""The maximum number of seconds to wait for stored frames."""


class BrokerFrames:
    """Sends and stores frames at the broker. `subject` is the pattern of the subjects of all frames to store."""

    def __init__(self, broker: Broker, cluster: str, subject: str) -> None:
        self._broker = broker
        self._stream = f"callboard_{cluster}_streams"
        self._subject = subject
        self._callbacks: list[Callable[[], None]] = []
        self._back = asyncio.Event()
        self.publish = broker.publish
        self.listen = broker.listen
        self.subscribe = broker.subscribe
        self.request = broker.request
        self.drain = broker.drain
        self.let_go = broker.let_go
        broker.on_reconnect(self._back.set)

    @property
    def connected_seconds(self) -> float:
        return self._broker.connected_seconds

    @property
    def most_bytes(self) -> int:
        return self._broker.most_bytes

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call a function whenever the broker is reachable again and can store frames."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Create the stream for frames after each reconnection, because it may have been deleted."""
        while True:
            await self._back.wait()
            self._back.clear()
            await self._prepare()
            for callback in self._callbacks:
                callback()

    async def stored_frames(self, subject: str) -> AsyncIterator[bytes]:
        """The frames that the broker has stored, in the order in which they were sent."""
        from nats.errors import Error
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        jetstream = self._broker.jetstream
        if jetstream is None:
            raise OSError("the broker can't be reached")
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            inactive_threshold=10.0,
        )
        try:
            consumer = await jetstream.pull_subscribe(subject, stream=self._stream, config=config)
            try:
                pending = (await consumer.consumer_info()).num_pending or 0
                while pending > 0:
                    messages = await consumer.fetch(min(pending, FETCHED), timeout=FETCH_SECONDS)
                    pending -= len(messages)
                    for message in messages:
                        yield message.data
            finally:
                await consumer.unsubscribe()
        except (Error, TimeoutError) as error:
            raise OSError(f"can't request frames from the broker: {error}") from error

    async def forget(self, subject: str) -> None:
        """Delete the stored frames of a subject that were sent before now.

        While the broker is unreachable, this does nothing: frames expire later.
        """
        from nats.errors import Error

        jetstream = self._broker.jetstream
        if jetstream is None:
            return
        try:
            await jetstream.purge_stream(self._stream, subject=subject)
        except (Error, TimeoutError) as error:
            _log.warning("frames_not_forgotten", error=f"{type(error).__name__}: {error}")

    async def _prepare(self) -> None:
        from nats.errors import Error
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

        jetstream = self._broker.jetstream
        if jetstream is None:
            return
        config = StreamConfig(
            name=self._stream,
            subjects=[self._subject],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.MEMORY,
            max_age=FRAMES_SECONDS,
            max_bytes=FRAMES_BYTES,
            discard=DiscardPolicy.OLD,
            num_replicas=1,
        )
        try:
            await jetstream.add_stream(config)
        except (Error, TimeoutError) as error:  # JetStream is disabled, or has a stream of another version
            _log.warning("frames_not_kept", stream=self._stream, error=f"{type(error).__name__}: {error}")
