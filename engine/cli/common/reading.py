"""Reading the trace that a command is about."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio

from callboard.bus import ConfigurationError, StoreError
from callboard.tracestore import Store

from ...opening import store_to_read
from ...store_address import TracePlace
from .arguments import chosen_trace

T = TypeVar("T")


def from_trace(
    arguments: argparse.Namespace,
    read: Callable[[Store], Awaitable[T]],
    *,
    opened: Callable[[TracePlace], Store] | None = None,
) -> T:
    """The result of a query of the chosen trace.

    Args:
        arguments: The options that name the trace.
        read: The query.
        opened: How the trace is opened, if it exists; None only reads.

    Raises:
        StoreError: The trace can't be read, or there is none.
    """

    async def work() -> T:
        place = chosen_trace(arguments)
        if opened is not None and isinstance(place, Path) and not place.exists():
            raise StoreError(f"there is no trace file at {place}")
        async with (opened or store_to_read)(place) as store:
            return await read(store)

    return anyio.run(work)


async def price_version(store: Store, under: str | None) -> str | None:
    """The whole price version that begins as ``--under`` says; None if it says none.

    Raises:
        ConfigurationError: The trace knows no such version, or several.
    """
    if under is None:
        return None
    known = [table.version for table in await store.price_tables()]
    fitting = [version for version in known if version.startswith(under)]
    if len(fitting) != 1:
        raise ConfigurationError(
            f"--under {under}: {'several' if fitting else 'no'} price versions begin so; "
            f"the trace knows {', '.join(known) or 'none'}"
        )
    return fitting[0]
