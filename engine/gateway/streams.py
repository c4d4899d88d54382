"""The stream of one reply: its events, and their bytes for the client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from callboard.adapters import CanonicalResponse
from callboard.bus import TaskHandle
from callboard.bus.streams.events import StepFinish, StreamEvent, TurnComplete, TurnEvent, weigh_all

from ..conversation.results import Reply
from ..conversation.turn import Turn
from ..runtime.runtime import Runtime
from .passing import MOST_WAITING_BYTES, ClientTooSlow, PassedReply
from .wire import Failure, ReplyWriter

WEIGH_EVERY = 256
"""The number of waiting events from which their bytes are counted. Most streams never reach it."""


class TurnEvents:
    """The events of a turn, taken from its log when they are appended.

    With a slow client, a reader of the log would miss folded events, and bytes that were sent can't be changed.

    Args:
        runtime: The parts of the engine.
        turn: A turn that has not started.
    """

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self._runtime = runtime
        self._turn = turn
        self._task: TaskHandle[Reply] | None = None
        self._seq = 0
        self._arrived: list[TurnEvent] = []
        self._weighed = 0
        self._bytes = 0
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the turn."""
        self._task = await self._runtime.host.start_turn(self._turn)
        self._collect()

    def _collect(self) -> None:
        log = self._turn.log
        if self._bytes <= MOST_WAITING_BYTES:
            self._arrived += log.since(self._seq)
            if len(self._arrived) - self._weighed >= WEIGH_EVERY:
                self._bytes += weigh_all(self._arrived[self._weighed :])
                self._weighed = len(self._arrived)
        self._seq = log.next_seq
        if log.closed:
            self._closed = True
        else:
            log.notify(self._collect)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[TurnEvent]:
        """The events that have arrived, at least one. Empty after the successful end of the turn.

        Raises the turn's exception, or ClientTooSlow.
        """
        assert self._task is not None
        while not self._arrived:
            if self._closed:
                await self._task.wait()
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._bytes > MOST_WAITING_BYTES:
            raise ClientTooSlow
        arrived, self._arrived, self._weighed, self._bytes = self._arrived, [], 0, 0
        return arrived

    async def aclose(self) -> None:
        """Cancel the turn if it still runs, and wait for its end."""
        if self._task is None or self._task.done:
            return
        self._turn.cancel()
        with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
            await self._task.wait()


class StreamWriter:
    """Writes a stream: the provider's own bytes if they are passed through, else with the client's wire.

    Args:
        passed: The provider's own bytes of the reply.
        new_writer: Makes a writer of the client's wire.
        own_words: Converts an event or a response to the client's protocol.
    """

    def __init__(
        self, passed: PassedReply, new_writer: Callable[[], ReplyWriter], own_words: Callable[[Any], Any]
    ) -> None:
        self.started = False
        """Whether the reply has begun."""
        self._maybe_passed = passed
        self._new_writer = new_writer
        self._own_words = own_words
        self._passed: PassedReply | None = None
        self._writer: ReplyWriter | None = None

    def write(self, batch: Sequence[object]) -> bytes:
        """The bytes of some events. The first bytes include the reply's start. Raises ClientTooSlow."""
        start = b""
        if not self.started:
            self.started = True
            if self._maybe_passed.seen:
                self._passed = self._maybe_passed
            else:
                self._writer = self._new_writer()
                start = self._writer.start()
        if self._passed is not None:
            return self._passed.take()
        assert self._writer is not None
        write = self._writer.write
        # The turn has no tools to run and no steering messages.
        events: list[StreamEvent] = [
            self._own_words(event) for event in batch if not isinstance(event, StepFinish | TurnComplete)
        ]
        return start + (write(events[0]) if len(events) == 1 else b"".join(map(write, events)))

    def finish(self, response: CanonicalResponse) -> bytes:
        """The end of the reply."""
        if self._passed is not None:
            return self._passed.take() + self._passed.end
        start = b"" if self._writer is not None else self._begin()
        assert self._writer is not None
        return start + self._writer.finish(self._own_words(response))

    def fail(self, failure: Failure) -> bytes:
        """The end of a reply that failed after the status was sent."""
        if self._passed is not None:
            rest = self._passed.take()
            return rest if self._passed.failed else rest + self._new_writer().fail(failure)
        start = b"" if self._writer is not None else self._begin()
        assert self._writer is not None
        return start + self._writer.fail(failure)

    def _begin(self) -> bytes:
        self._writer = self._new_writer()
        return self._writer.start()
