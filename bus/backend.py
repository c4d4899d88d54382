"""The library that runs this task, asyncio or trio, and the signal to wait for there."""

from __future__ import annotations

import asyncio
from typing import Protocol

import anyio


def on_asyncio() -> bool:
    """Whether the running task is asyncio's; trio as a guest of an asyncio loop is not."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class Signal(Protocol):
    """A flag that tasks wait for until another task sets it, once and for all."""

    def set(self) -> None: ...
    async def wait(self) -> object: ...


def new_signal() -> Signal:
    """A signal that is not set. The task that waits must make it.

    On asyncio it is asyncio's own event. The event of anyio costs 2 µs more for every wait, and each call and each
    token that comes alone is waited for a few times.
    """
    return asyncio.Event() if on_asyncio() else anyio.Event()
