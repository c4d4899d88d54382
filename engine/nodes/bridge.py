"""Sends committed events over the broker to other processes, in order."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import anyio
import msgspec

from callboard.bus import (
    Bus,
    ConfigurationError,
    Envelope,
    Log,
    SessionConfigured,
    SessionMessageAppended,
    StoreError,
    decode_envelope,
    encode_envelope,
)
from callboard.tracestore import Store
from callboard.tracestore.codec import encode_lines

from ..runtime.adapters import Host
from ..runtime.alone import Alone
from .broker import Broker
from .broker_streams import BrokerEvents

_log = Log("engine.bridge")

# --- Pages of events ---

PAGE_EVENTS = 256
"""The maximum number of events in a page. A commit has the same maximum."""


class Page(msgspec.Struct, frozen=True):
    run_id: str
    after: int
    """The `seq` of the event before the page; 0 if there is none."""
    last: int
    """The `seq` of the page's last event."""
    lines: bytes | None = None
    """The envelopes, one on each line; None if they were too large to send."""

    @property
    def message_id(self) -> str:
        """The id by which the broker detects a repeated page."""
        return f"{self.run_id}:{self.after}-{self.last}"

    def envelopes(self) -> list[Envelope] | None:
        """The events of the page; None if it contains none. Raises ValueError if they can't be read."""
        return None if self.lines is None else [decode_envelope(line) for line in self.lines.splitlines()]


class _Head(msgspec.Struct, frozen=True):
    run: str
    after: int
    last: int
    elsewhere: bool = False


_heads = msgspec.json.Decoder(_Head)


def encode_page(page: Page) -> bytes:
    head = _Head(page.run_id, page.after, page.last, page.lines is None)
    return msgspec.json.encode(head) + b"\n" + (page.lines or b"")


def decode_page(message: bytes) -> Page:
    """The page of a message. Raises ValueError if the message is not a page."""
    encoded, _, lines = message.partition(b"\n")
    try:
        head = _heads.decode(encoded)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a page of events: {error}") from error
    return Page(head.run, head.after, head.last, None if head.elsewhere else lines)


def pages_of(
    run_id: str, after: int, envelopes: Sequence[Envelope], *, content: bool, most_bytes: int
) -> list[Page]:
    pages: list[Page] = []
    parts = [envelopes[begin : begin + PAGE_EVENTS] for begin in range(0, len(envelopes), PAGE_EVENTS)]
    parts.reverse()
    while parts:
        part = parts.pop()
        lines: bytes | None = _lines(part, content=content)
        if len(lines or b"") > most_bytes:
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            lines = None
        pages.append(Page(run_id, after, part[-1].seq, lines))
        after = part[-1].seq
    return pages


def _lines(envelopes: Sequence[Envelope], *, content: bool) -> bytes:
    if content:
        return b"".join(encode_envelope(envelope) + b"\n" for envelope in envelopes)
    return encode_lines([_not_captured(envelope) for envelope in envelopes])


def _not_captured(envelope: Envelope) -> Envelope:
    """Mark an event as not captured, so that its line has no content."""
    event = envelope.data
    for kind in (SessionMessageAppended, SessionConfigured):
        if isinstance(event, kind) and type(event) is not kind:
            bare = kind(**{name: getattr(event, name) for name in kind.__struct_fields__})
            return msgspec.structs.replace(envelope, data=bare)
    return envelope


# --- The bridge's decisions ---

MOST_WAITING = 8 * 1024 * 1024
"""The maximum size of the pages that wait in memory, in bytes."""

FIRST_RETRY = 0.1
"""Seconds until a failed page is sent again. The time doubles with each further failure."""

LONGEST_RETRY = 5.0
"""The maximum time until a failed page is sent again, in seconds."""


class Send(msgspec.Struct, frozen=True):
    """An instruction to send a page. Report the result with `BridgeQueue.acknowledged` or `BridgeQueue.failed`."""

    page: Page


class Read(msgspec.Struct, frozen=True):
    """An instruction to read the events after a given one from the trace. Report the result with
    `BridgeQueue.read` or `BridgeQueue.failed`.
    """

    after: int
    """The `seq` of the event before the page."""


class Pause(msgspec.Struct, frozen=True):
    seconds: float | None
    """Seconds after which to continue even without new events; None for no limit."""


Step: TypeAlias = Send | Read | Pause


class BridgeQueue:
    """The progress of sending one run's events. Times are seconds of any monotonic clock.

    `behind` is whether events may have been committed before.
    """

    def __init__(self, *, behind: bool = False) -> None:
        self.cursor = 0
        """The `seq` up to which the broker has all events."""
        self.last = 0
        """The `seq` of the last event that waits or was sent."""
        self.committed = 0
        """The `seq` of the last event that is known to be committed."""
        self.failures = 0
        """The number of failures in a row."""
        self.is_behind = behind
        self._waiting: deque[Page] = deque()
        self.waiting_bytes = 0
        """The size of the waiting pages, in bytes."""
        self._retry_at = 0.0
        self._read_up_to = 0  # the value of `committed` when the trace was last read

    def next(self, now: float, *, connected: bool) -> Step:
        if not connected:
            return Pause(None)
        if not self._waiting and not self.is_behind:
            return Pause(None)
        if now < self._retry_at:
            return Pause(self._retry_at - now)
        if self._waiting:
            return Send(self._waiting[0])
        self._read_up_to = self.committed
        return Read(self.last)

    def add(self, pages: Sequence[Page]) -> None:
        """Add pages of newly committed events, while the queue is not behind."""
        self._enqueue(pages)
        self.committed = max(self.committed, self.last)
        if self.waiting_bytes > MOST_WAITING and len(self._waiting) > 1:
            self._fall_behind()

    def note(self, seq: int) -> None:
        """Record that events up to this number were committed while the queue is behind."""
        self.committed = max(self.committed, seq)

    def read(self, pages: Sequence[Page]) -> None:
        """Add the events in the trace after `last`. No pages means that there are none."""
        self._enqueue(pages)
        if self.last >= self.committed or (not pages and self.committed == self._read_up_to):
            self.is_behind = False

    def acknowledged(self, page: Page) -> None:
        self.failures, self._retry_at = 0, 0.0
        self.cursor = max(self.cursor, page.last)
        if self._waiting and self._waiting[0] == page:
            self._waiting.popleft()
            self.waiting_bytes -= len(page.lines or b"")

    def failed(self, now: float) -> None:
        """Record that the broker did not confirm the page, or that the trace can't be read."""
        self.failures += 1
        self._retry_at = now + min(FIRST_RETRY * 2.0 ** min(self.failures - 1, 20), LONGEST_RETRY)

    def connected(self) -> None:
        """Send all waiting pages immediately, because the broker is back."""
        self.failures, self._retry_at = 0, 0.0

    def _enqueue(self, pages: Sequence[Page]) -> None:
        for page in pages:
            self._waiting.append(page)
            self.waiting_bytes += len(page.lines or b"")
            self.last = page.last

    def _fall_behind(self) -> None:
        """Drop all waiting pages except the page that may have been sent. The dropped events are read from the
        trace later.
        """
        first = self._waiting[0]
        self._waiting = deque([first])
        self.waiting_bytes = len(first.lines or b"")
        self.last = first.last
        self.is_behind = True


# --- The bridge at work ---

MOST_BYTES = 256 * 1024
"""The maximum size of a page's lines, in bytes. Readers have some dozens of pages in memory."""

HEAD_BYTES = 1024
"""The number of bytes in a message for everything except the lines."""


class BridgeStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a bridge."""

    sent: int
    """The `seq` up to which the broker has all events."""
    committed: int
    """The `seq` of the last event that is known to be committed."""
    waiting_bytes: int
    """The number of bytes that wait in memory to be sent."""
    is_behind: bool
    """Whether some events that wait are only in the trace."""
    failures: int
    """The number of failures in a row."""


class EventBridge:
    """Sends one run's events. `behind` is whether events may have been committed before the first call of
    `committed`.
    """

    def __init__(
        self, run_id: str, store: Store, broker: BrokerEvents, *, content: bool = False, behind: bool = False
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._broker = broker
        self._content = content
        self._queue = BridgeQueue(behind=behind)
        self._more = anyio.Event()

    def committed(self, envelopes: Sequence[Envelope]) -> None:
        """Add newly committed events, in order. Events of other runs are not sent."""
        queue = self._queue
        new = [each for each in envelopes if each.seq > queue.last and each.run_id == self._run_id]
        if not new:
            return
        if queue.is_behind:
            queue.note(new[-1].seq)
        else:
            queue.add(self._pages(new))
        self._more.set()

    def connected(self) -> None:
        self._queue.connected()
        self._more.set()

    async def run(self) -> None:
        while True:
            if self._more.is_set():
                self._more = anyio.Event()
            rest = await self._step()
            if rest is not None:
                with anyio.move_on_after(rest.seconds):
                    await self._more.wait()

    async def drain(self) -> None:
        """Send the remaining events while the broker accepts them."""
        seconds: float | None = 0.0
        while seconds is not None:
            rest = await self._step()
            seconds = 0.0 if rest is None else rest.seconds
            await anyio.sleep(seconds or 0.0)

    def statistics(self) -> BridgeStatistics:
        queue = self._queue
        return BridgeStatistics(
            queue.cursor, queue.committed, queue.waiting_bytes, queue.is_behind, queue.failures
        )

    async def _step(self) -> Pause | None:
        """Do the next step. Returns how long to wait if there is nothing to do now."""
        step = self._queue.next(anyio.current_time(), connected=self._broker.connected)
        match step:
            case Send(page=page):
                await self._send(page)
            case Read(after=after):
                await self._read(after)
            case Pause():
                return step
        return None

    async def _send(self, page: Page) -> None:
        message = encode_page(page)
        if len(message) > self._broker.most_bytes:  # the page was made before the broker's limit was known
            message = encode_page(msgspec.structs.replace(page, lines=None))
        if await self._broker.publish(page.run_id, page.message_id, message):
            self._queue.acknowledged(page)
        else:
            self._queue.failed(anyio.current_time())

    async def _read(self, after: int) -> None:
        try:
            envelopes = await self._store.run_events(self._run_id, after, PAGE_EVENTS)
        except (StoreError, OSError) as error:
            _log.warning("events_not_read", error=str(error))
            self._queue.failed(anyio.current_time())
        else:
            self._queue.read(self._pages(envelopes))

    def _pages(self, envelopes: Sequence[Envelope]) -> list[Page]:
        most = min(MOST_BYTES, self._broker.most_bytes - HEAD_BYTES)
        return pages_of(self._run_id, self._queue.last, envelopes, content=self._content, most_bytes=most)


# --- The bridge of one engine ---

LAST_SECONDS = 2.0
"""Seconds for sending the remaining events at the end."""


class _BridgedRuntime(Protocol):
    @property
    def cluster(self) -> Alone: ...

    @property
    def host(self) -> Host: ...


class BridgedEngine(Protocol):
    """The parts of an `Engine` that a bridge uses."""

    @property
    def _runtime(self) -> _BridgedRuntime: ...

    @property
    def bus(self) -> Bus: ...

    @property
    def store(self) -> Store | None: ...

    async def flush(self) -> None: ...


class Bridge:
    """A context manager that sends the events of one engine to a broker.

    Events are sent after they were committed to the engine's trace, including events from before the context. If
    the broker is unreachable, no event is lost: they are sent after the reconnection. Events that were not sent
    before the end are in the shared store.

    Args:
        engine: The engine. The bridge starts it if needed.
        nats_url: The address of the broker, or several with commas between them.
        cluster: The name under which readers find the events.
        content: Whether message content is sent with them.

    Raises:
        ConfigurationError: The engine has no trace, or is in a cluster that already has a bridge.
    """

    def __init__(
        self, engine: BridgedEngine, nats_url: str, *, cluster: str = "callboard", content: bool = False
    ) -> None:
        if engine.store is None:
            raise ConfigurationError("events are sent after they are committed, and this engine keeps no trace")
        if engine._runtime.cluster.sends_events:
            raise ConfigurationError("an engine in a cluster with nats= sends its events automatically")
        self._engine = engine
        self._broker = Broker(nats_url, f"{socket.gethostname()}:{os.getpid()}")
        events = BrokerEvents(self._broker, cluster)
        self._bridge = EventBridge(engine.bus.run_id, engine.store, events, content=content, behind=True)
        self._broker.on_reconnect(self._bridge.connected)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        return self._broker.connected

    def statistics(self) -> BridgeStatistics:
        """A snapshot of the bridge."""
        return self._bridge.statistics()

    async def __aenter__(self) -> Self:
        await self._engine._runtime.host.watch_commits(self._bridge.committed)
        self._tasks = [asyncio.create_task(part.run()) for part in (self._broker, self._bridge)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            with suppress(StoreError):
                await self._engine.flush()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with anyio.move_on_after(LAST_SECONDS):
                await self._bridge.drain()
            await self._broker.close()
