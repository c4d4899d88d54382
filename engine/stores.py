"""The choice of a store by its address. All other parts of the engine only use a `Store`.

The names of `tracestore` load PostgreSQL and shipping only when they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, urlsplit, urlunsplit

import anyio.to_thread
import msgspec

from callboard import tracestore
from callboard.bus import Bus, ConfigurationError, StoreError
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.tracestore import PriceTable, Store
from callboard.tracestore.home import home_folder

if TYPE_CHECKING:
    from callboard.tracestore import PostgresStore, TraceShipper


# --- Addresses of database servers ---

SCHEMES = ("postgresql://", "postgres://")

_SECRET = ("password", "secret", "scram_client_key", "scram_server_key")
"""Parts of parameter names whose values are secret."""

_UNREADABLE = (
    "the address of the store can't be read (it is not shown, because it may hold a password). "
    "Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE. In names and passwords, write / : @ ? # % "
    "as %2F %3A %40 %3F %23 %25"
)


class StoreAddress(msgspec.Struct, frozen=True):
    """A PostgreSQL database, as a URL that libpq reads. As text it has no password."""

    dsn: str

    def __post_init__(self) -> None:
        """Refuse an address that libpq would read differently.

        libpq's own errors quote parts of such an address, which may be part of a password.
        """
        parts = _parts(self.dsn)
        access, _, hosts = parts.netloc.rpartition("@")
        port_wrong = any(port and not port.isdecimal() for port in map(_port, hosts.split(",")))
        rest = f"{parts.path}?{parts.query}"
        query_wrong = any("=" not in word for word in parts.query.split("&") if word)
        if "@" in access or "@" in rest or "#" in self.dsn or port_wrong or query_wrong:
            raise ConfigurationError(_UNREADABLE)

    def __repr__(self) -> str:
        return f"StoreAddress({self.name!r})"

    def __str__(self) -> str:
        parts = _parts(self.dsn)
        access, at, hosts = parts.netloc.rpartition("@")
        user = access.partition(":")[0]
        query = "&".join(word for word in parts.query.split("&") if not _is_secret(word))
        shown = SplitResult("postgresql", f"{user}{at if user else ''}{hosts}", parts.path, query, "")
        text = urlunsplit(shown)
        return text if "://" in text else text.replace("postgresql:", "postgresql://", 1)

    @property
    def name(self) -> str:
        """The address without its password, for display."""
        return str(self)


TracePlace: TypeAlias = Path | StoreAddress
"""Where a trace is: a file, or a database on a server."""


def is_address(text: str) -> bool:
    """Whether a text is meant as an address and not as a path."""
    return text.startswith(SCHEMES)


def _parts(dsn: str) -> SplitResult:
    try:
        parts = urlsplit(dsn)
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    if not is_address(dsn) or not dsn.isprintable() or " " in dsn:
        raise ConfigurationError(_UNREADABLE)
    return parts


def _port(host: str) -> str:
    """The port of one host. IPv6 hosts are in brackets."""
    return host.rpartition("]")[2].partition(":")[2]


def _is_secret(parameter: str) -> bool:
    name = parameter.partition("=")[0].lower()
    return "%" in name or any(part in name for part in _SECRET)


def place_of(trace: Path | str | None) -> TracePlace:
    """The place that a path or an address means; without one, the default file."""
    if trace is None:
        return home_folder() / "trace.db"
    return StoreAddress(trace) if isinstance(trace, str) and is_address(trace) else Path(trace)


def store_for(store: Store | Path | str | None, clock: Clock) -> Store:
    """The store of an engine: the host's own, the one at a path or an address, or the default file."""
    return store_to_write(place_of(store), clock) if store is None or isinstance(store, Path | str) else store


def store_to_read(place: TracePlace, *, take_in: bool = True) -> Store:
    """A read-only store for an existing trace. It is not open yet."""
    if isinstance(place, StoreAddress):
        return tracestore.PostgresStore.open_readonly(place.dsn, take_in=take_in)
    return tracestore.TraceStore.open_readonly(place, take_in=take_in)


def place_to_read(store: Store | None) -> TracePlace | Store | None:
    """The path of a store's file, for reading over a separate connection. For any other store, the store
    itself.
    """
    return store.path if isinstance(store, tracestore.TraceStore) else store


def server_store(store: Store) -> PostgresStore | None:
    """The store, if its trace is on a server and not in a file of this machine."""
    return store if isinstance(store, tracestore.PostgresStore) else None


def store_to_write(place: TracePlace, clock: Clock = SYSTEM_CLOCK) -> Store:
    """The store of a trace, not yet open. If the trace does not exist, opening creates it."""
    if isinstance(place, StoreAddress):
        return tracestore.PostgresStore(place.dsn, clock=clock)
    return tracestore.TraceStore(place, clock=clock)


async def existing_store(place: TracePlace) -> Store:
    """The store of an existing trace, not yet open. It never creates a trace."""
    if isinstance(place, StoreAddress):
        async with store_to_read(place):
            return store_to_write(place)
    if not await anyio.to_thread.run_sync(place.exists):
        raise StoreError(f"no trace file at {place}")
    return store_to_write(place)


def shipper_for(store: Store | None, ship_to: str, bus: Bus, clock: Clock, prices: PriceTable) -> TraceShipper:
    if not isinstance(store, tracestore.TraceStore):
        raise ConfigurationError("ship_to copies a trace file to a server. The store must be a file")
    dsn = StoreAddress(ship_to).dsn
    adopts = home_folder() / "shipping"
    return tracestore.TraceShipper.beside(
        store, dsn, clock=clock, on_change=bus.publish, prices=prices, adopts=adopts
    )
