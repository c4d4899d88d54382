"""The trace files of a machine that are shipped to a shared store, so that nobody's are forgotten.

Each shipper of a machine says which file it ships, by a small file in a folder of the machine. When its process
died, another shipper to the same store finds the file with its turn free. It writes what the dead process left
beside the file, ends its runs, and ships the file.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec

from callboard.bus.errors import StoreError

from ..prices.table import PriceTable
from ..sql.lost_runs import Delivered
from ..sqlite.files import remove_quietly
from ..sqlite.store import TraceStore
from ..writing.adoption import adopt_leftovers
from .marks import Turn

_LOOK_SECONDS = 30.0
_BATCH_EVENTS = 256


class Registered(msgspec.Struct, frozen=True):
    """The trace file of a shipper of this machine."""

    file: str
    """The path of the trace file."""
    target: str
    """The name of the shared store."""


class LookForFiles:
    """The folder of the machine, as one shipper sees it.

    Args:
        folder: The folder, made when it is needed.
        own: The trace file of this shipper.
        target: The name of the shared store.
        prices: The prices for calls of dead processes.
    """

    def __init__(self, folder: Path, own: Path, target: str, prices: PriceTable | None) -> None:
        self._folder = folder
        self._own = own.absolute()
        self._target = target
        self._prices = prices
        self.delivered: Delivered | None = None
        """Returns the output that readers in other processes have of a lost call."""
        self._look_at = 0.0

    def register(self) -> None:
        """Say that this shipper ships its file. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._place(self._own)
        if not place.exists():
            draft = place.with_suffix(".tmp")
            draft.write_bytes(msgspec.json.encode(Registered(str(self._own), self._target)))
            draft.replace(place)

    def done(self) -> None:
        """All of the own file is shipped, and nothing more comes."""
        self.forget(self._own)

    def forget(self, path: Path) -> None:
        """Nothing is left to do for a file."""
        remove_quietly(self._place(path))

    def due(self) -> bool:
        """Whether it is time to look for files."""
        if anyio.current_time() < self._look_at:
            return False
        self._look_at = anyio.current_time() + _LOOK_SECONDS
        return True

    def found(self) -> list[Path]:
        """The files of other shippers, living and dead ones, to the same store."""
        found = []
        for place in sorted(self._folder.glob("*.json")):
            try:
                entry = msgspec.json.decode(place.read_bytes(), type=Registered)
            except (OSError, msgspec.MsgspecError):
                continue
            path = Path(entry.file)
            if entry.target != self._target or path == self._own:
                continue
            if path.exists():
                found.append(path)
            else:
                remove_quietly(place)
        return found

    async def take_over(self, path: Path, turn: Turn) -> bool:
        """Write into a file whatever its dead process left beside it, and end the process's runs.

        Args:
            path: The file.
            turn: The turn at it, which is ours afterwards.

        Returns:
            False if its shipper lives.

        Raises:
            StoreError: The file can't be written.
        """
        if not turn.take():
            return False
        async with TraceStore(path) as store:
            await take_over(store, self._prices, self.delivered)
        return True

    def _place(self, path: Path) -> Path:
        import hashlib

        name = hashlib.sha256(f"{self._target}\n{path.absolute()}".encode()).hexdigest()[:16]
        return self._folder / f"{name}.json"


async def take_over(store: TraceStore, prices: PriceTable | None, delivered: Delivered | None = None) -> None:
    """Write into an open trace file what dead processes left beside it, and end their runs. Raises StoreError."""
    if not await adopt_leftovers(store.path, store.write, own=None, batch_events=_BATCH_EVENTS):
        raise StoreError(f"what dead processes left beside {store.path} can't be written now")
    await store.close_lost_runs(prices, delivered)
