"""What a machine keeps about the shipping of a trace file, in a small file beside it: the name of the file in the
shared store, and how far the store was when it was last heard of.

Nothing depends on it but what people are told. The shared store itself says how far it is. A lost mark gives the
file a new name there, so that all of it is sent again, and changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import StoreError

from ..sqlite.files import HeldFile, escaped, remove_quietly
from .shipment import Position


class Mark(msgspec.Struct, frozen=True):
    """The mark of one trace file for one target."""

    origin: str
    """The name of the trace file in the target."""
    target: str
    """The name of the target, without any password."""
    position: Position = Position()
    """The position up to which everything was in the target."""
    erased: int = 0
    """The number of the last deletion in the file that the target had done."""
    shipped_us: int = 0
    """The time of that, in microseconds UTC."""
    failing: str = ""
    """The reason why nothing can be shipped now; empty while all is well."""


def mark_path(trace: Path, target: str) -> Path:
    """The place of a trace file's mark for a target."""
    return trace.with_name(f"{trace.name}.shipped-{_short(target)}.json")


def read_mark(path: Path) -> Mark | None:
    """The mark in a file; None if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def write_mark(path: Path, mark: Mark) -> None:
    """Put a mark in the place of the one before. Raises OSError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(mark))
    finally:
        os.close(descriptor)
    os.replace(draft, path)


def first_mark(trace: Path, target: str, clock: Clock) -> Mark:
    """The mark of a trace file for a target, made if there is none. Of several processes one makes it.

    Raises:
        OSError: It can't be made.
    """
    path = mark_path(trace, target)
    found = read_mark(path)
    if found is not None and found.target == target:
        return found
    mark = Mark(clock.new_id("trace"), target)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(msgspec.json.encode(mark))
    draft.chmod(0o600)
    try:
        if path.exists():  # damaged, or of another target with the same short name
            os.replace(draft, path)
            return mark
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        return read_mark(path) or mark
    finally:
        remove_quietly(draft)


def marks(trace: Path) -> list[Mark]:
    """The marks of a trace file for all targets."""
    paths = sorted(trace.parent.glob(f"{escaped(trace.name)}.shipped-*.json"))
    return [mark for mark in map(read_mark, paths) if mark is not None]


def forget_mark(trace: Path, target: str) -> bool:
    """The file is not shipped to a target any more. Returns whether it ever was.

    Raises:
        StoreError: A shipper is at work.
    """
    turn = Turn(trace, target)
    if not turn.take():
        raise StoreError(f"a program ships {trace} to {target}; end it first")
    try:
        path = mark_path(trace, target)
        known = path.exists()
        remove_quietly(path)
        return known
    finally:
        turn.give_up()


class Turn:
    """The lock of whoever ships a trace file to a target. Others wait, so that the work is not done twice.

    Two at once would do no harm.
    """

    def __init__(self, trace: Path, target: str) -> None:
        self._path = trace.with_name(f"{trace.name}.shipper-{_short(target)}.lock")
        self._file: HeldFile | None = None
        self._has = False

    def take(self) -> bool:
        """Whether it is ours, or was free. A folder that can't be written has no turns."""
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
        """Let another one have it."""
        if self._file is not None:
            self._file.close()
        self._file, self._has = None, False


def _short(target: str) -> str:
    import hashlib

    return hashlib.sha256(target.encode()).hexdigest()[:12]
