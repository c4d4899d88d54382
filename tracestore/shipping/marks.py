"""A machine's record of shipping: a small file next to the trace file.

It contains the name of the file in the shared store, and the store's last known position. Only reports use that
position: the true one is in the shared store. If the record is lost, the trace file gets a new name in the store
and is sent again, which is harmless.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

import anyio
import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import StoreError

from ..prices.table import PriceTable
from ..reports import Check, Delivered
from ..sqlite.files import HeldFile, escaped, remove_quietly
from ..sqlite.store import TraceStore
from ..store import Store
from ..writing.overflow import adopt_leftovers
from .shipment import Position
from .source import Source


class Mark(msgspec.Struct, frozen=True):
    """The record of shipping one trace file to one target."""

    origin: str
    """The name of the trace file in the target."""
    target: str
    """The name of the target, without any password."""
    position: Position = Position()
    """The last known position in the target. All events up to it were there."""
    erased: int = 0
    """The number of the file's last deletion that the target has repeated."""
    shipped_us: int = 0
    """The time of the last shipment, in microseconds UTC."""
    failing: str = ""
    """The reason why nothing can be shipped now; empty if there is no problem."""


def mark_path(trace: Path, target: str) -> Path:
    return trace.with_name(f"{trace.name}.shipped-{_short(target)}.json")


def read_mark(path: Path) -> Mark | None:
    """Read the mark in a file; None if there is no readable mark."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def write_mark(path: Path, mark: Mark) -> None:
    """Replace the last mark. Raises OSError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(mark))
    finally:
        os.close(descriptor)
    os.replace(draft, path)


def first_mark(trace: Path, target: str, clock: Clock) -> Mark:
    """Read the mark of a trace file for a target. If there is none, exactly one process creates it."""
    path = mark_path(trace, target)
    found = read_mark(path)
    if found is not None and found.target == target:
        return found
    mark = Mark(clock.new_id("trace"), target)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(msgspec.json.encode(mark))
    draft.chmod(0o600)
    try:
        if path.exists():  # the mark is damaged, or belongs to another target with the same short name
            os.replace(draft, path)
            return mark
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        return read_mark(path) or mark
    finally:
        remove_quietly(draft)


def marks(trace: Path) -> list[Mark]:
    paths = sorted(trace.parent.glob(f"{escaped(trace.name)}.shipped-*.json"))
    return [mark for mark in map(read_mark, paths) if mark is not None]


def forget_mark(trace: Path, target: str) -> bool:
    """Stop shipping the file to a target. Return whether the file was ever shipped there."""
    turn = Turn(trace, target)
    if not turn.take():
        raise StoreError(f"a program is shipping {trace} to {target}. Stop it first")
    try:
        path = mark_path(trace, target)
        existed = path.exists()
        remove_quietly(path)
        return existed
    finally:
        turn.give_up()


class Turn:
    """The lock for shipping a trace file to a target. It only prevents that work is done twice."""

    def __init__(self, trace: Path, target: str) -> None:
        self._path = trace.with_name(f"{trace.name}.shipper-{_short(target)}.lock")
        self._file: HeldFile | None = None
        self._has = False

    def take(self) -> bool:
        """Take the lock if no other process has it.

        Returns whether this process has the lock. A folder without write access needs no lock.
        """
        if self._has:
            return True
        try:
            if self._file is None:
                self._file = HeldFile(self._path, os.O_RDWR | os.O_CREAT)
            self._has = self._file.try_lock()
        except OSError:
            return True
        return self._has

    def give_up(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._has = None, False


def _short(target: str) -> str:
    import hashlib

    return hashlib.sha256(target.encode()).hexdigest()[:12]


class Backlog(msgspec.Struct, frozen=True):
    """The events of a trace file that one shared store lacks."""

    target: str
    """The name of the shared store, without user and password."""
    behind: int
    erasures: int
    shipped_us: int
    """The time at which events were last sent, in microseconds UTC; 0 if never."""
    failing: str
    """The reason why nothing can be sent; empty if there is no problem."""


async def backlogs(trace: Path) -> list[Backlog]:
    """Return the waiting events of a trace file, for each of its shared stores."""
    found = []
    source = Source(trace)
    try:
        for mark in marks(trace):
            behind = await source.behind(mark.position)
            erasures = await source.erasures_behind(mark.erased)
            found.append(Backlog(mark.target, behind, erasures, mark.shipped_us, mark.failing))
    finally:
        await source.close()
    return found


# --- Finding files of dead shippers ---
#
# Each shipper registers its trace file in a folder of the machine. If the process dies, another shipper to the
# same store finds that the lock is free. That shipper writes the events that the dead process left, ends the
# process's runs, and ships the file.


_LOOK_SECONDS = 30.0
_BATCH_EVENTS = 256


class Registered(msgspec.Struct, frozen=True):
    file: str
    target: str


class RegisteredFiles:
    """The machine's folder of registered files, for one shipper."""

    def __init__(self, folder: Path, own_path: Path, target: str, prices: PriceTable | None) -> None:
        self._folder = folder
        self._own_path = own_path.absolute()
        self._target = target
        self._prices = prices
        self.delivered: Delivered | None = None
        """A function that returns how much output of a lost call readers in other processes have."""
        self._look_at = 0.0

    def register(self) -> None:
        """Register the file of this shipper. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._place(self._own_path)
        if not place.exists():
            draft = place.with_suffix(".tmp")
            draft.write_bytes(msgspec.json.encode(Registered(str(self._own_path), self._target)))
            draft.replace(place)

    def done(self) -> None:
        """Record that this shipper's own file is completely shipped and has ended."""
        self.forget(self._own_path)

    def forget(self, path: Path) -> None:
        """Remove the registration of a file that needs no more work."""
        remove_quietly(self._place(path))

    def due(self) -> bool:
        if anyio.current_time() < self._look_at:
            return False
        self._look_at = anyio.current_time() + _LOOK_SECONDS
        return True

    def found(self) -> list[Path]:
        """The files of other shippers to the same store. Their processes may run or be dead."""
        found = []
        for place in sorted(self._folder.glob("*.json")):
            try:
                entry = msgspec.json.decode(place.read_bytes(), type=Registered)
            except (OSError, msgspec.MsgspecError):
                continue
            path = Path(entry.file)
            if entry.target != self._target or path == self._own_path:
                continue
            if path.exists():
                found.append(path)
            else:
                remove_quietly(place)
        return found

    async def take_over(self, path: Path, turn: Turn) -> bool:
        """Write the events that a dead process left into its trace file, and end the process's runs."""
        if not turn.take():
            return False
        async with TraceStore(path) as store:
            await take_over(store, self._prices, self.delivered)
        return True

    def _place(self, path: Path) -> Path:
        import hashlib

        name = hashlib.sha256(f"{self._target}\n{path.absolute()}".encode()).hexdigest()[:16]
        return self._folder / f"{name}.json"


async def take_over(store: Store, prices: PriceTable | None, delivered: Delivered | None = None) -> None:
    """Write the events that dead processes left into an open trace file, and end their runs. Raises StoreError."""
    if not await adopt_leftovers(store.path, store.write, own_path=None, batch_events=_BATCH_EVENTS):
        raise StoreError(f"files of crashed processes next to {store.path} can't be written now")
    await store.close_lost_runs(prices, delivered)


async def check_shipping(trace: Path) -> list[Check]:
    """Check the progress of shipping a file to each of its shared stores, without a connection to a store."""
    try:
        found = await backlogs(trace)
    except StoreError as error:
        return [Check("store:shipping", False, str(error), "Make the trace file readable.")]
    checks = []
    for each in found:
        last = f", last at {datetime.fromtimestamp(each.shipped_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
        erasures = f" and {each.erasures:,} deletions" if each.erasures else ""
        last = last if each.shipped_us else ", never reached"
        detail = f"{each.behind:,} events{erasures} wait for {each.target}{last}"
        if each.failing:
            fix = "Correct that problem. The waiting events are in the trace file and are then sent automatically."
            checks.append(Check("store:shipping", False, f"{detail}: {each.failing}", fix))
        else:
            waits = each.behind or each.erasures
            fix = "To send them, run a program with ship_to, or `callboard ship`." if waits else ""
            checks.append(Check("store:shipping", True, detail, fix))
    return checks
