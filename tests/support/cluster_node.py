"""A node in a process of its own, which tests kill or suspend while it streams.

It prints one line for its session, one for each piece of text, and one for the end of its turn.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from callboard.bus import CallboardError, TextDelta
from tests.support.cluster_engines import node_engine
from tests.support.scripted import Say

PIECES = tuple(f"w{number} " for number in range(2000))


async def _pause() -> None:
    await asyncio.sleep(0.02)


async def _run(dsn: str, nats: str, folder: Path, lease_seconds: float) -> None:
    replies = (Say("One."), Say(*PIECES, pause=_pause))
    cluster = {"nats": nats or None, "lease_seconds": lease_seconds}
    async with node_engine("a", dsn, folder, *replies, cluster=cluster) as engine:
        session = engine.session("s:m", system_prompt="Be brief.")
        await session.send("Hi")
        _say("session", session.id)
        try:
            async with session.stream("Go on") as turn:
                async for event in turn:
                    if isinstance(event, TextDelta):
                        _say("text", event.text)
        except CallboardError as error:
            _say("ended", type(error).__name__, "" if error.turn is None else error.turn.status)
        await engine.flush()


def _say(*words: str) -> None:
    print(*words, flush=True)  # noqa: T201


def main() -> None:
    """The arguments are the database, the broker (or nothing), the folder, and the seconds of a lease."""
    dsn, nats, folder, lease_seconds = sys.argv[1:]
    asyncio.run(_run(dsn, nats, Path(folder), float(lease_seconds)))
