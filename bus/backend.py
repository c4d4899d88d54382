"""Which library runs this task, and what to wait on there."""

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
    """What tasks wait for until another one sets it, once and for all."""

    def set(self) -> None: ...
    async def wait(self) -> object: ...


def new_signal() -> Signal:
    """Not set. To be made by the task that waits.

    On asyncio it is asyncio's own event: what anyio's puts around that costs 2 µs for every wait, and each call
    and each token that comes alone is waited for a few times.
    """
    return asyncio.Event() if on_asyncio() else anyio.Event()
