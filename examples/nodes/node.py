"""One node of a cluster: an engine that reads commands as lines of JSON and writes results as lines of JSON.

python -m examples.nodes.node NAME TRACE_FILE

The addresses of the cluster are in CLUSTER_NATS and CLUSTER_STORE. The commands:

    {"begin": ID, "ask": TEXT, "id": N}      a turn in a new session
    {"session": ID, "ask": TEXT, "id": N}    a turn in a session of any node
    {"read": STREAM_ID, "id": N}             read a stream to its end, wherever its turn runs

Each line of output has the command's id.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from callboard import CallboardError, Cluster, Engine, Session, TextDelta, TurnComplete, TurnOptions

MODEL = "story"
OPTIONS: TurnOptions = {"max_output_tokens": 160, "temperature": 0}
CONNECT_SECONDS = 10.0


class Node:
    """An engine and its open sessions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: dict[str, Session] = {}

    async def obey(self, command: Mapping[str, str | int]) -> None:
        """Run a command. An error is reported, and the node continues."""
        number = int(command["id"])
        try:
            if "read" in command:
                await self._read(number, str(command["read"]))
                return
            if "begin" in command:
                session = self._engine.session(MODEL, session_id=str(command["begin"]))
            else:
                session_id = str(command["session"])
                session = self._sessions.get(session_id) or await self._engine.resume(session_id)
            self._sessions[session.id] = session
            await ask(number, session, str(command["ask"]))
        except CallboardError as error:
            tell(number, error=f"{type(error).__name__}: {error}")

    async def _read(self, number: int, stream_id: str) -> None:
        async for event in self._engine.attach(stream_id):
            match event:
                case TextDelta(text=text):
                    tell(number, text=text)
                case TurnComplete(status=status):
                    tell(number, status=status)
                case _:
                    pass


async def ask(number: int, session: Session, text: str) -> None:
    """Run a turn and write its text."""
    tell(number, history=[[message.role, message.text] for message in session.messages])
    async with session.stream(text, **OPTIONS) as turn:
        tell(number, stream=turn.stream_id)
        async for piece in turn.text_stream:
            tell(number, text=piece)
        tell(number, status=(await turn.result()).status)


def tell(number: int, **what: object) -> None:
    """Write one line of output."""
    sys.stdout.write(json.dumps({"id": number, **what}) + "\n")
    sys.stdout.flush()


async def main(name: str, trace: Path) -> None:
    cluster = Cluster(
        nats=os.environ["CLUSTER_NATS"], store=os.environ["CLUSTER_STORE"], node=name, lease_seconds=5.0
    )
    async with Engine(store=trace, cluster=cluster, capture_content=True) as engine:
        node = Node(engine)
        tell(0, ready=os.getpid())
        async with anyio.create_task_group() as group:
            while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                group.start_soon(node.obey, json.loads(line))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]))
