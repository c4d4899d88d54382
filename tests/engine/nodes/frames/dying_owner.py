"""A program with a node that starts a turn and is killed in the middle of it. The node of a name that begins with
"plain" has no session.

It prints the ids of its session and its stream. When its log has so many events, and they have gone out, it kills
itself with SIGKILL. With a negative number it stops itself, goes on when it is continued, and ends with its input.
With 0 it kills itself as soon as it has the turn's result, before anything else happens.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from callboard.adapters.providers.scripted import ScriptedCall, ScriptedReply
from callboard.engine import Cluster
from tests.support.cluster_engines import node_of
from tests.support.engines import keeping
from tests.support.scripted import ADD, Say

THINKING = tuple(f"thought {number}. " for number in range(8))
TEXT = tuple(f"word {number} " for number in range(24))
AFTER = tuple(f"then {number} " for number in range(8))
PACE = 0.004


def replies() -> list[Say]:
    """A reply that thinks, speaks and calls a tool, and one that speaks."""
    first, second = Say(), Say()
    calls = (ScriptedCall("add", {"a": 1, "b": 2}),)
    first.reply = ScriptedReply(thinking=THINKING, text=TEXT, calls=calls, signature="sig", pace=PACE)
    second.reply = ScriptedReply(text=AFTER, pace=PACE)
    return [first, second]


async def main(nats: str, dsn: str, folder: str, name: str, dies_at: int, lease: float) -> None:
    """Be the node."""
    cluster = Cluster(nats=nats, store=dsn, node=name, lease_seconds=lease)
    engine = keeping(Path(folder) / f"{name}.db", *replies(), cluster=cluster)
    await engine.start()
    node = node_of(engine)
    assert node.broker is not None
    assert node.frames is not None
    while not node.broker.connected:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    session = engine.session("s:m", tools=[ADD], session_id=f"ses_{name}")
    plain = name.startswith("plain")
    begun = engine.stream("s:m", "What is it?", tools=[ADD]) if plain else session.stream("What is it?")
    async with begun as turn:
        turn.detach()
        sys.stdout.write(f"{session.id} {turn.stream_id}\n")
        sys.stdout.flush()
        if not dies_at:
            await turn.result()
            os.kill(os.getpid(), signal.SIGKILL)
        reader = engine.attach(turn.stream_id)
        count = 0
        async for _ in reader:
            count += 1
            if count == abs(dies_at):
                node.frames.sender.flush()
                await node.broker.drain()
                os.kill(os.getpid(), signal.SIGKILL if dies_at > 0 else signal.SIGSTOP)
    await asyncio.to_thread(sys.stdin.read)
    await engine.aclose()


def run() -> None:
    _, *texts, dies_at, lease = sys.argv
    asyncio.run(main(*texts, int(dies_at), float(lease)))
