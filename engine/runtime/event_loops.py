"""Which event loop an engine lives on, and what is said to whoever uses it from elsewhere."""

from __future__ import annotations

import asyncio

from bus import CallboardError, WrongLoop


def require_asyncio() -> None:
    """Raises CallboardError where no event loop of asyncio's kind runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CallboardError(
            "no event loop of asyncio or uvloop runs here, which an engine needs (adapters, bus and streams run "
            "on trio, too): call this in a coroutine, or take generate_sync(), stream_sync() and run_sync()"
        ) from None


def require_loop(own: asyncio.AbstractEventLoop, instead: str = "") -> None:
    """Raises WrongLoop where another event loop runs than this one. instead: what else to do, if there is."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return  # nothing can be waited for here, so nothing can go wrong
    if running is not own:
        raise WrongLoop(
            "this engine belongs to another event loop; make one engine for each, or use it from its own loop"
            + (f"; {instead}" if instead else "")
        )
