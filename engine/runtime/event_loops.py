"""The event loop of an engine, and the errors for a caller from elsewhere."""

from __future__ import annotations

import asyncio

from callboard.bus import CallboardError, WrongLoop


def require_asyncio() -> None:
    """Check that an event loop of asyncio's kind runs.

    Raises:
        CallboardError: No such event loop runs here.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CallboardError(
            "no event loop of asyncio or uvloop runs here, which an engine needs (adapters, bus and streams run "
            "on trio, too): call this in a coroutine, or take generate_sync(), stream_sync() and run_sync()"
        ) from None


def require_loop(own: asyncio.AbstractEventLoop, instead: str = "") -> None:
    """Check that no other event loop than this one runs.

    Args:
        own: The event loop that may run.
        instead: A hint for the error's text, if there is another way.

    Raises:
        WrongLoop: Another event loop runs here.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return  # nothing can be waited for here, so nothing can go wrong
    if running is not own:
        raise WrongLoop(
            "this engine belongs to another event loop; make one engine for each, or use it from its own loop"
            + (f"; {instead}" if instead else "")
        )
