"""Helpers of the local model's tests that inspect processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio


async def wait_until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110  (a process's end sets no event)
            await anyio.sleep(0.01)


def process_gone(pid: int) -> bool:
    """Whether a process has ended. A zombie process has ended, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def child_processes() -> set[int]:
    """This process's children, including zombies."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}
