"""A program with a node that starts a turn and is killed during the turn. If the node's name starts with "plain",
the turn has no session.

The program prints the ids of its session and its stream. When its log has `dies_at` events and they are sent, it
kills itself with SIGKILL. If the number is negative, it stops itself, runs on after SIGCONT, and ends with its
input. If the number is 0, it kills itself as soon as the turn has a result.
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
    """A reply with thinking, text and a tool call, and a reply with text."""
    first, second = Say(), Say()
    calls = (ScriptedCall("add", {"a": 1, "b": 2}),)
    first.reply = ScriptedReply(thinking=THINKING, text=TEXT, calls=calls, signature="sig", pace=PACE)
    second.reply = ScriptedReply(text=AFTER, pace=10 * PACE)  # so that the program dies before the turn's end
    return [first, second]


async def main(nats: str, dsn: str, folder: str, name: str, dies_at: int, lease: float) -> None:
    """Run the node."""
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
