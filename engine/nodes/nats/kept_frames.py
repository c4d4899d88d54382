"""The broker as frames need it: with a stream in the broker's memory that keeps them for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from callboard.bus import Log

from .broker import Broker

_log = Log("engine.broker")

KEPT_SECONDS = 600
"""Seconds for which the broker keeps frames."""

KEPT_BYTES = 256 * 1024 * 1024
"""The bytes of frames that the broker keeps at most. Above it, the oldest go."""

FETCHED = 256
"""The number of frames that are fetched at once."""

FETCH_SECONDS = 2.0
"""The longest wait for them."""


class KeptFrames:
    """The broker of frames.

    Args:
        broker: The connection.
        cluster: The cluster's name.
        subject: The subject of all frames that are to be kept.
    """

    def __init__(self, broker: Broker, cluster: str, subject: str) -> None:
        self._broker = broker
        self._stream = f"callboard_{cluster}_streams"
        self._subject = subject
        self._callbacks: list[Callable[[], None]] = []
        self._back = asyncio.Event()
        self.publish = broker.publish
        self.subscribe = broker.subscribe
        self.request = broker.request
        self.drain = broker.drain
        self.let_go = broker.let_go
        broker.on_reconnect(self._back.set)

    @property
    def connected_seconds(self) -> float:
        """Seconds for which the broker has been reached without a break; 0 if it can't be reached."""
        return self._broker.connected_seconds

    @property
    def most_bytes(self) -> int:
        """The bytes of a message at most."""
        return self._broker.most_bytes

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Have a function called whenever the broker is back, and has where to keep frames."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """See to the stream that keeps frames, whenever the broker is back: it may have been wiped."""
        while True:
            await self._back.wait()
            self._back.clear()
            await self._prepare()
            for callback in self._callbacks:
                callback()

    async def kept(self, subject: str) -> AsyncIterator[bytes]:
        """The frames that the broker has kept, in the order in which they were sent.

        Raises:
            OSError: The broker can't be asked.
        """
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
                left = (await consumer.consumer_info()).num_pending or 0
                while left > 0:
                    messages = await consumer.fetch(min(left, FETCHED), timeout=FETCH_SECONDS)
                    left -= len(messages)
                    for message in messages:
                        yield message.data
            finally:
                await consumer.unsubscribe()
        except (Error, TimeoutError) as error:
            raise OSError(f"the broker can't be asked for frames: {error}") from error

    async def forget(self, subject: str) -> None:
        """Have the broker keep no frame of a subject that was sent until now. While it is away, nothing is done:
        what it keeps goes after its time, or with the broker.
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
            max_age=KEPT_SECONDS,
            max_bytes=KEPT_BYTES,
            discard=DiscardPolicy.OLD,
            num_replicas=1,
        )
        try:
            await jetstream.add_stream(config)
        except (Error, TimeoutError) as error:  # JetStream is off, or another version's stream is there
            _log.warning("frames_not_kept", stream=self._stream, error=f"{type(error).__name__}: {error}")
