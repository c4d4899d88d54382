"""Work that a command does on an engine of its own."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from callboard.adapters import CallWarning
from callboard.engine import Engine, load_registry

from .harmless import note

T = TypeVar("T")


def on_engine(
    arguments: argparse.Namespace,
    work: Callable[[Engine], Awaitable[T]],
    *,
    make: Callable[[], Engine] | None = None,
) -> T:
    """The result of some work on an engine with the configuration of ``--models-file``.

    Args:
        arguments: The arguments of the command.
        work: The work.
        make: Makes another engine than the usual one.

    Raises:
        ConfigurationError: The configuration is wrong.
    """
    registry = load_registry(arguments.models_file)

    async def run() -> T:
        async with Engine(models=registry) if make is None else make() as engine:
            return await work(engine)

    return anyio.run(run)


def tell_warnings(warnings: Iterable[CallWarning]) -> None:
    """Write the warnings of a call to stderr."""
    for warning in warnings:
        note(f"{warning.code}: {warning.message}")
