"""The shipper of one trace file: it executes the steps of its `ShippingPlan`, and reports its state."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import StoreError
from callboard.bus.events import Event
from callboard.bus.events.operation import StoreShippingChanged
from callboard.bus.log import Log

from ..prices.table import PriceTable
from ..reports import Delivered
from ..sql.connection import Unstorable
from ..sqlite.store import TraceStore
from .marks import Mark, RegisteredFiles, Turn, check_shipping, first_mark, mark_path, write_mark
from .shipment import START, Origin, Position, Reading, Shipment, Target
from .source import Recent, Source

# The decisions of a shipper, without any work

State: TypeAlias = Literal["asking", "shipping", "resting", "retrying"]


class ShippingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes and time limits of a shipper."""

    batch_events: int = 5000
    """The number of events in a transaction of the target."""
    look_seconds: float = 0.5
    """Seconds after which the file is checked again when everything is shipped."""
    ask_seconds: float = 60.0
    """Seconds after which an idle target is queried again."""
    first_retry: float = 0.5
    """The wait after a first failure, in seconds. It doubles with each further failure."""
    longest_retry: float = 30.0
    """The longest wait after a failure, in seconds."""


class Ask(msgspec.Struct, frozen=True):
    """Request the target's position, and pass it to `ShippingPlan.confirmed`."""


class Send(msgspec.Struct, frozen=True):
    """Read and send the events after a position, and report the result to the `ShippingPlan`."""

    after: Position
    limit: int


class Pause(msgspec.Struct, frozen=True):
    """Wait for some seconds, or until `ShippingPlan.wake`."""

    seconds: float


Step: TypeAlias = Ask | Send | Pause


class ShippingPlan:
    """The position of a shipper, and its next step. Times are in seconds of any monotonic clock."""

    def __init__(self, options: ShippingOptions) -> None:
        self._options = options
        self._until = 0.0
        self._ask_at = 0.0
        self._limit = options.batch_events
        self.state: State = "asking"
        self.position = START
        self.failures = 0
        """The number of failures in a row."""

    def next(self, now: float) -> Step:
        if self.state in ("resting", "retrying"):
            if now < self._until:
                return Pause(self._until - now)
            self.state = "shipping" if self.state == "resting" and now < self._ask_at else "asking"
        if self.state == "asking":
            self._ask_at = now + self._options.ask_seconds
            return Ask()
        return Send(self.position, self._limit)

    def confirmed(self, position: Position) -> None:
        """Record the target's position: it has all events up to it."""
        self.position, self.state = position, "shipping"

    def sent(self, position: Position) -> None:
        """Record that the target has committed all events up to a position."""
        self.position, self.failures = position, 0
        self._limit = min(self._options.batch_events, self._limit * 2)

    def nothing_left(self, now: float) -> None:
        self.state, self.failures = "resting", 0
        self._until = now + self._options.look_seconds

    def unstorable(self, events: int, last: Position) -> bool:
        """Record that the target permanently refuses an event. Smaller batches then find this event."""
        if events > 1:
            self._limit = max(1, min(events, self._limit) // 2)
            return False
        self.sent(last)
        return True

    def failed(self, now: float) -> float:
        """Record that the target or the file could not be used. Return the seconds until the next attempt."""
        self.failures += 1
        options = self._options
        wait = min(options.first_retry * 2.0 ** min(self.failures - 1, 30), options.longest_retry)
        self.state, self._until = "retrying", now + wait
        return wait

    def wake(self) -> None:
        """Make the next step check the file now, because a caller waits. A pause after a failure does not end."""
        if self.state == "resting":
            self._until = 0.0


_log = Log("tracestore.shipping")

ShippingState: TypeAlias = Literal["shipping", "retrying"]

_MARK_SECONDS = 1.0
"""Seconds after which the mark is written again during long sending."""

_LOG_FROM = 1000
"""The number of waiting events from which their number is logged. The number is logged again each time it has
doubled.
"""


class ShippingStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a shipper."""

    state: ShippingState
    """``shipping``, or ``retrying`` while the shared store or the file can't be used."""
    target: str
    """The name of the shared store, without user and password."""
    shipped: int
    """The number of events that this shipper has sent."""
    behind: int
    """The number of waiting events at the last check."""
    passed_over: int
    """The number of events that the shared store can't store."""
    failures: int
    """The number of failures in a row."""
    reason: str
    """The text of the last failure."""


class TraceShipper:
    """Copies a trace file to a shared store, in batches, while other processes write the file. Events are
    identified by (run, seq).

    A batch is one transaction of the shared store: its events, their rows, captured content, and the position. So
    a batch may be sent any number of times, by any number of shippers. If a file has several shippers, one of them
    works, and the others wait until it ends.

    Args:
        path: The trace file.
        to: The shared store: its DSN, or a target.
        clock: The clock for times and ids.
        options: The sizes and time limits.
        on_change: Called when shipping starts to fail, and when it works again.
        prices: The prices for calls of dead processes. Their files are shipped, too.
        adopts: The folder where shippers of this machine register their files. The files of dead shippers are
            shipped, too. With None, no other file is shipped.
        recent: The last batches that this process wrote to the file. They are not read again.

    Raises:
        StoreError: The DSN is invalid, or the driver is not installed.
    """

    checks = staticmethod(check_shipping)

    def __init__(
        self,
        path: Path | str,
        to: str | Target,
        *,
        clock: Clock = SYSTEM_CLOCK,
        options: ShippingOptions = ShippingOptions(),  # noqa: B008 (frozen)
        on_change: Callable[[Event], object] | None = None,
        prices: PriceTable | None = None,
        adopts: Path | None = None,
        recent: Recent | None = None,
    ) -> None:
        self._source = Source(Path(path).expanduser(), recent)
        self._target = receiver(to, clock) if isinstance(to, str) else to
        self._clock = clock
        self._options = options
        self._on_change = on_change or (lambda event: None)
        self._course = ShippingPlan(options)
        self._turn = Turn(self._source.path, self._target.name)
        self._files = (
            None if adopts is None else RegisteredFiles(adopts, self._source.path, self._target.name, prices)
        )
        self._mark: Mark | None = None
        self._mark_at = 0.0  # the time of the next write
        self._ahead: Reading | None = None  # read while the previous shipment was being stored
        self._erased = 0  # the number of the file's last deletion that the target has repeated
        self._open_runs: set[str] = set()
        self._state: ShippingState = "shipping"
        self._reason = ""
        self._shipped = self._behind = self._logged = self._passed_over = 0
        self._requested = self._served = 0  # counters of the requests to ship everything: made, and fulfilled
        self._wake = anyio.Event()
        self._changed = anyio.Event()

    @classmethod
    def beside(
        cls,
        writer: TraceStore,
        to: str,
        *,
        clock: Clock,
        on_change: Callable[[Event], object],
        prices: PriceTable,
        adopts: Path,
    ) -> TraceShipper:
        """A shipper of the file that this process writes. The shipper takes the last batches from memory."""
        recent = Recent()
        writer.tell(recent.keep)
        return cls(writer.path, to, clock=clock, on_change=on_change, prices=prices, adopts=adopts, recent=recent)

    @property
    def path(self) -> Path:
        """The trace file."""
        return self._source.path

    def statistics(self) -> ShippingStatistics:
        """A snapshot."""
        return ShippingStatistics(
            self._state,
            self._target.name,
            self._shipped,
            self._behind,
            self._passed_over,
            self._course.failures,
            self._reason,
        )

    async def run(self) -> None:
        """Ship until cancelled. If the shared store or the file fails, wait and try again."""
        while True:
            seconds = await self._step()
            if seconds:
                if self._files is not None and self._course.state == "resting" and self._files.due():
                    await self._adopt()
                await self._pause(seconds)

    async def ship(self) -> int:
        """Ship all events that are in the file now, even if another shipper is running.

        Returns:
            The number of events that were sent.

        Raises:
            StoreError: The shared store or the file can't be used now.
        """
        before = self._shipped
        self._requested += 1
        mine = self._requested
        self._course.wake()
        while self._served < mine:
            await self._step(at_once=True)
            if self._course.state == "retrying":
                raise StoreError(self._reason)
        return self._shipped - before

    async def shipped(self, seconds: float) -> bool:
        """Wait until the present events of the file are in the shared store, while `run` runs in another task.

        Returns:
            False if the shared store can't be used, or if the wait took longer than `seconds`.
        """
        self._requested += 1
        mine = self._requested
        self._course.wake()
        self._wake.set()
        with anyio.move_on_after(seconds):
            while self._served < mine and self._state == "shipping":
                await self._changed.wait()
        return self._served >= mine

    async def finish(self, seconds: float) -> bool:
        """Ship the remaining events within `seconds`, and close everything.

        Returns:
            Whether the whole file is in the shared store.
        """
        done = False
        try:
            if self._state == "shipping":
                with anyio.move_on_after(seconds):
                    await self.ship()
                    done = True
                    if self._files is not None:
                        self._files.done()
        except (StoreError, OSError) as error:
            _log.warning("not_all_shipped", file=str(self.path), error=str(error))
        finally:
            await self.close()
        return done

    async def close(self) -> None:
        """Close the file and the shared store. Closing twice is harmless."""
        self._turn.give_up()
        with anyio.CancelScope(shield=True):
            await self._source.close()
            await self._target.close()

    # --- Steps ---

    async def _step(self, *, at_once: bool = False) -> float:
        """Do the next step. Return the seconds to wait before the following step."""
        step = self._course.next(anyio.current_time())
        if isinstance(step, Pause):
            return step.seconds
        if not (at_once or self._requested > self._served or self._turn.take()):
            self._source.recent.forget()
            return self._options.look_seconds
        requested = self._requested
        try:
            if isinstance(step, Ask):
                await self._ask()
            else:
                if await self._send(step):
                    await self._end_runs()
                    self._course.nothing_left(anyio.current_time())
                    self._served = requested
                    self._behind = 0
                self._become("shipping", "")
        except (StoreError, OSError) as error:
            self._course.failed(anyio.current_time())
            await self._note_failure(str(error))
        self._changed.set()
        self._changed = anyio.Event()
        return 0.0

    async def _ask(self) -> None:
        if self._mark is None:
            self._mark = first_mark(self.path, self._target.name, self._clock)
        if self._files is not None:
            self._files.register()
        await self._target.open()
        position = await self._source.confirmed(await self._target.position(self._origin))
        self._erased = 0 if position == START else await self._target.erased(self._origin)
        self._open_runs = set(await self._target.open_runs(self._origin))
        self._course.confirmed(position)

    async def _send(self, step: Send) -> bool:
        """Send the events after a position. Returns whether all events are sent."""
        reading = await self._read(step)
        if reading.erasures:
            await self._target.erase(self._origin, reading.erasures)
            self._erased = reading.erasures[-1].number
            self._keep_mark(at_once=True)
            return False
        shipment = reading.shipment
        if shipment is None:
            return True
        try:
            position = await self._take(shipment, step.limit)
        except Unstorable as error:
            if len(shipment) == 1:
                await self._target.pass_over(self._origin, shipment)
            if self._course.unstorable(len(shipment), shipment.last):
                self._passed_over += 1
                _log.error("event_unstorable", event=shipment.last.event, file=str(self.path), error=str(error))
            return False
        if position.event <= shipment.after.event:  # nothing was stored
            if await self._source.confirmed(position) == position:
                _log.warning("store_fell_back", target=self._target.name, file=str(self.path))
                await self._ask()
                return False
            # The target's position belongs to another file with the same name, such as a copy. So ship this file
            # from its start.
            position = await self._target.take(self._origin, msgspec.structs.replace(shipment, after=START))
        await self._sent(shipment, position)
        return shipment.is_all

    async def _sent(self, shipment: Shipment, position: Position) -> None:
        if position != shipment.last and await self._source.confirmed(position) != position:
            position = shipment.last
        self._course.sent(position)
        self._shipped += len(shipment)
        self._open_runs |= {run.run_id for run in shipment.runs.values()}
        self._keep_mark(at_once=shipment.is_all)

    async def _read(self, step: Send) -> Reading:
        ahead, self._ahead = self._ahead, None
        shipment = None if ahead is None else ahead.shipment  # deletions are not read ahead
        is_next = shipment is not None and shipment.after == step.after and len(shipment) <= step.limit
        if ahead is not None and is_next:
            return ahead
        return await self._source.read(step.after, step.limit, self._erased)

    async def _take(self, shipment: Shipment, limit: int) -> Position:
        """Send a shipment to the target, and read the next one concurrently."""
        failure: StoreError | Unstorable | None = None
        async with anyio.create_task_group() as group:
            if not shipment.is_all:
                group.start_soon(self._read_ahead, shipment.last, limit)
            try:
                position = await self._target.take(self._origin, shipment)
            except (StoreError, Unstorable) as error:
                failure = error
        if failure is not None:
            self._ahead = None  # the batch that was read ahead would be outdated when it is needed
            raise failure
        return position

    async def _read_ahead(self, after: Position, limit: int) -> None:
        with contextlib.suppress(StoreError, OSError):  # on failure, it is read again later
            self._ahead = await self._source.read(after, limit, self._erased)

    async def _end_runs(self) -> None:
        if self._open_runs:
            endings = await self._source.endings(self._open_runs)
            if endings:
                await self._target.end_runs(endings)
                self._open_runs -= endings.keys()

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._wake.wait()
        if self._wake.is_set():
            self._wake = anyio.Event()

    # --- Reporting ---

    @property
    def _origin(self) -> Origin:
        assert self._mark is not None
        return Origin(self._mark.origin, socket.gethostname(), str(self.path))

    def _keep_mark(self, *, at_once: bool) -> None:
        """Record the target's position.

        During long sending this is skipped most times, because the mark may be old.
        """
        assert self._mark is not None
        self._mark = msgspec.structs.replace(
            self._mark,
            position=self._course.position,
            erased=self._erased,
            shipped_us=self._clock.now_us(),
            failing="",
        )
        if at_once or anyio.current_time() >= self._mark_at:
            write_mark(mark_path(self.path, self._target.name), self._mark)
            self._mark_at = anyio.current_time() + _MARK_SECONDS

    async def _note_failure(self, reason: str) -> None:
        self._reason = reason
        with contextlib.suppress(StoreError, OSError):
            self._behind = await self._source.behind(self._course.position)
        if self._state == "shipping" or self._behind >= max(_LOG_FROM, 2 * self._logged):
            self._logged = self._behind
            self._become("retrying", reason, again=True)

    def _become(self, state: ShippingState, reason: str, *, again: bool = False) -> None:
        previous, self._state = self._state, state
        if previous == state and not again:
            return
        self._reason = reason
        level = _log.info if state == "shipping" else _log.warning
        level("shipping_state", current=state, target=self._target.name, reason=reason, behind=self._behind)
        if self._mark is not None:
            self._mark = msgspec.structs.replace(self._mark, failing=reason)
            try:
                write_mark(mark_path(self.path, self._target.name), self._mark)
            except OSError as error:
                _log.warning("mark_not_written", error=str(error))
        self._on_change(
            StoreShippingChanged(
                previous=previous, current=state, target=self._target.name, reason=reason, behind=self._behind
            )
        )

    def use_delivered(self, delivered: Delivered) -> None:
        """Set a function for lost calls. It returns the output of a call that readers in other processes have."""
        if self._files is not None:
            self._files.delivered = delivered

    async def _adopt(self) -> None:
        assert self._files is not None
        for path in self._files.found():
            other = TraceShipper(path, self._target, clock=self._clock, options=self._options)
            try:
                if await self._files.take_over(path, other._turn):
                    await other.ship()
                    self._files.forget(path)
                    _log.info("file_adopted", file=str(path), events=other._shipped)
            except (StoreError, OSError) as error:
                _log.warning("file_not_adopted", file=str(path), error=str(error))
            finally:
                other._turn.give_up()
                await other._source.close()


def receiver(dsn: str, clock: Clock = SYSTEM_CLOCK) -> Target:
    """The receiver of the shared store at a DSN. Raises StoreError."""
    from ..postgres.receiver import Receiver

    return Receiver(dsn, clock=clock)
