"""The bridge at work: from the trace writer's commits to the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio
import msgspec

from callboard.bus import Envelope, Log, StoreError
from callboard.tracestore import Store

from .outgoing import Outgoing, Read, Rest, Send
from .page import PAGE_EVENTS, Page, encode_page, pages_of

_log = Log("engine.bridge")

MOST_BYTES = 256 * 1024
"""The size of a page's lines at most. Readers have some dozens of pages in memory."""

HEAD_BYTES = 1024
"""The room in a message for all that is no line."""


class EventBroker(Protocol):
    """What a bridge needs of the broker."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        ...

    @property
    def most_bytes(self) -> int:
        """The bytes of a message at most."""
        ...

    async def publish(self, run_id: str, message_id: str, data: bytes) -> bool:
        """Have a message kept, once for each id. False if that isn't certain. It never raises."""
        ...


class BridgeStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a bridge."""

    sent: int
    """The `seq` up to which the broker has everything."""
    committed: int
    """The `seq` of the last event that is known to be committed."""
    waiting_bytes: int
    """The bytes that wait in memory to go out."""
    is_behind: bool
    """Whether events wait in the trace alone."""
    failures: int
    """The number of failures in a row."""


class EventBridge:
    """The way out of one run's events. It is a part of a node, see `engine.nodes.part`.

    Args:
        run_id: The run.
        store: The trace that the events are committed to.
        broker: Where they go out.
        content: Whether what was said goes out with them.
        behind: Whether events may have been committed before `committed` was called for the first time.
    """

    name = "bridge"

    def __init__(
        self, run_id: str, store: Store, broker: EventBroker, *, content: bool = False, behind: bool = False
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._broker = broker
        self._content = content
        self._course = Outgoing(behind=behind)
        self._more = anyio.Event()

    def committed(self, envelopes: Sequence[Envelope]) -> None:
        """Take events that were committed just now, in their order. Those of other runs are not sent."""
        course = self._course
        new = [each for each in envelopes if each.seq > course.last and each.run_id == self._run_id]
        if not new:
            return
        if course.is_behind:
            course.note(new[-1].seq)
        else:
            course.add(self._pages(new))
        self._more.set()

    def connected(self) -> None:
        """The broker is back."""
        self._course.connected()
        self._more.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            if self._more.is_set():
                self._more = anyio.Event()
            rest = await self._step()
            if rest is not None:
                with anyio.move_on_after(rest.seconds):
                    await self._more.wait()

    async def drain(self) -> None:
        """Send what is left, as long as the broker takes it."""
        seconds: float | None = 0.0
        while seconds is not None:
            rest = await self._step()
            seconds = 0.0 if rest is None else rest.seconds
            await anyio.sleep(seconds or 0.0)

    async def close(self) -> None:
        """Nothing is held."""

    def statistics(self) -> BridgeStatistics:
        """A snapshot."""
        course = self._course
        return BridgeStatistics(
            course.cursor, course.committed, course.waiting_bytes, course.is_behind, course.failures
        )

    async def _step(self) -> Rest | None:
        """Do what is next. Returns the rest to take, if there is nothing to do now."""
        step = self._course.next(anyio.current_time(), connected=self._broker.connected)
        match step:
            case Send(page=page):
                await self._send(page)
            case Read(after=after):
                await self._read(after)
            case Rest():
                return step
        return None

    async def _send(self, page: Page) -> None:
        message = encode_page(page)
        if len(message) > self._broker.most_bytes:  # it was made before the broker said what it takes
            message = encode_page(msgspec.structs.replace(page, lines=None))
        if await self._broker.publish(page.run_id, page.message_id, message):
            self._course.acknowledged(page)
        else:
            self._course.failed(anyio.current_time())

    async def _read(self, after: int) -> None:
        try:
            envelopes = await self._store.run_events(self._run_id, after, PAGE_EVENTS)
        except (StoreError, OSError) as error:
            _log.warning("events_not_read", error=str(error))
            self._course.failed(anyio.current_time())
        else:
            self._course.read(self._pages(envelopes))

    def _pages(self, envelopes: Sequence[Envelope]) -> list[Page]:
        most = min(MOST_BYTES, self._broker.most_bytes - HEAD_BYTES)
        return pages_of(self._run_id, self._course.last, envelopes, content=self._content, most_bytes=most)
