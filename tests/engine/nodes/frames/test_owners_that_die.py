"""Readers on other nodes when the owner of their stream is killed: a prefix of what it said, and one end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from callboard.bus import (
    MessageComplete,
    MessageStart,
    StreamReset,
    TextDelta,
    ThinkingDelta,
    TurnComplete,
    TurnEvent,
)
from callboard.engine import Engine
from tests.support.cluster_engines import node_engine
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import why_not
from tests.support.programs import CHECKOUT

from .conftest import connected
from .dying_owner import AFTER, TEXT, THINKING

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

LEASE = 2.0
SPOKEN = ["".join(TEXT), "".join(AFTER)]

Seen = list[TurnEvent | StreamReset[TurnEvent]]


@contextmanager
def owner(nats: NatsServer, dsn: str, folder: Path, name: str, dies_at: int) -> Iterator[subprocess.Popen[str]]:
    """A node in a process of its own, which is gone after the block."""
    program = [sys.executable, "-m", "tests.engine.nodes.frames.dying_owner"]
    process = subprocess.Popen(
        [*program, nats.url, dsn, str(folder), name, str(dies_at), str(LEASE)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


PLAIN = 22


def _name(place: int) -> str:
    return f"plain{place}" if place == PLAIN else f"owner{place}"


def texts_of(seen: Seen) -> list[str]:
    """The text of each message that has any content."""
    texts: dict[str, str] = {}
    for event in seen:
        if isinstance(event, TextDelta | ThinkingDelta):
            texts.setdefault(event.message_id, "")
            texts[event.message_id] += event.text if isinstance(event, TextDelta) else ""
    return list(texts.values())


async def stream_of(process: subprocess.Popen[str]) -> str:
    line = await anyio.to_thread.run_sync(process.stdout.readline)
    return str(line.split()[1])


async def read(engine: Engine, stream_id: str, from_seq: int = 0) -> Seen:
    with anyio.fail_after(30):
        return [event async for event in engine.attach(stream_id, from_seq=from_seq)]


def check(seen: Seen) -> None:
    """The promises of a stream: its texts are beginnings of what was said, and everything has one end."""
    assert [type(event) for event in seen].count(TurnComplete) == 1
    assert isinstance(seen[-1], TurnComplete)
    starts = [event.message_id for event in seen if isinstance(event, MessageStart)]
    ends = [event for event in seen if isinstance(event, MessageComplete)]
    assert starts == [event.message_id for event in ends]
    thought = "".join(event.text for event in seen if isinstance(event, ThinkingDelta))
    assert "".join(THINKING).startswith(thought)
    for message_id, spoken, end in zip(starts, SPOKEN, ends, strict=False):
        text = "".join(e.text for e in seen if isinstance(e, TextDelta) and e.message_id == message_id)
        assert spoken.startswith(text)
        assert "".join(getattr(block, "text", "") for block in end.final_content).endswith(text)


async def test_readers_of_owners_that_are_killed_get_a_beginning_and_one_end(
    nats: NatsServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """Amid thinking, text and arguments, between a message and its tools, and before the end of the turn; and a
    turn without a session. Whoever resumes the session finds in it what the readers have read.
    """
    dies_at = [1, 5, 20, 22, 35, 37, 39, 45]
    seen: dict[tuple[str, int], Seen] = {}

    async def follow(name: str, engine: Engine, place: int, stream_id: str) -> None:
        seen[name, place] = await read(engine, stream_id)

    async with AsyncExitStack() as stack:
        readers = {}
        for name in ("b", "c", "late"):
            cluster = {"nats": nats.url, "lease_seconds": LEASE}
            engine = node_engine(name, postgres_dsn, tmp_path, cluster=cluster)
            readers[name] = await stack.enter_async_context(engine)
            await connected(readers[name])
        owners = {
            place: stack.enter_context(owner(nats, postgres_dsn, tmp_path, _name(place), place))
            for place in dies_at
        }
        streams = {place: await stream_of(process) for place, process in owners.items()}
        async with anyio.create_task_group() as group:
            for place, stream_id in streams.items():
                for name in ("b", "c"):
                    group.start_soon(follow, name, readers[name], place, stream_id)
        for place, process in owners.items():
            assert process.wait() == -9
            check(seen["b", place])
            assert seen["b", place] == seen["c", place]
            assert len(seen["b", place]) >= place
            end = seen["b", place][-1]
            assert isinstance(end, TurnComplete)
            assert end.status == "outcome_unknown"
            assert await read(readers["late"], streams[place]) == seen["b", place]
            last = len(seen["b", place]) - 1  # also to whoever goes on elsewhere behind the end of the message
            assert await read(readers["late"], streams[place], last) == [end]
            if place != PLAIN:
                taken = await readers["late"].resume(_name(place).replace("owner", "ses_owner"))
                assert [message.text for message in taken.messages if message.role == "assistant"] == texts_of(
                    seen["b", place]
                )


async def test_an_end_that_was_handed_over_is_everybody_s_end(
    nats: NatsServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """Though its node is killed in the same moment, before its trace is shipped: others end nothing anew."""
    cluster = {"nats": nats.url, "lease_seconds": LEASE}
    async with node_engine("b", postgres_dsn, tmp_path, cluster=cluster) as reader:
        await connected(reader)
        with owner(nats, postgres_dsn, tmp_path, "ended", 0) as process:
            stream_id = await stream_of(process)
            seen = await read(reader, stream_id)
            assert await anyio.to_thread.run_sync(process.wait) == -signal.SIGKILL
        check(seen)
        assert seen[-1] == TurnComplete("completed")
        taken = await reader.resume("ses_ended")
        assert [message.text for message in taken.messages if message.role == "assistant"] == SPOKEN


async def test_an_owner_that_slept_too_long_is_not_heard_any_more(
    nats: NatsServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """Its turn was ended meanwhile, for readers that were there and for those that come later."""
    cluster = {"nats": nats.url, "lease_seconds": LEASE}
    async with (
        node_engine("b", postgres_dsn, tmp_path, cluster=cluster) as reader,
        node_engine("c", postgres_dsn, tmp_path, cluster=cluster) as late,
    ):
        for engine in (reader, late):
            await connected(engine)
        with owner(nats, postgres_dsn, tmp_path, "sleeper", -20) as process:
            stream_id = await stream_of(process)
            seen = await read(reader, stream_id)
            check(seen)
            assert isinstance(seen[-1], TurnComplete)
            assert seen[-1].status == "outcome_unknown"
            process.send_signal(signal.SIGCONT)
            await anyio.to_thread.run_sync(lambda: process.communicate("", timeout=20))
            assert process.returncode == 0
            again = await read(late, stream_id)
            check(again)
            assert again[-1] == seen[-1]
            assert again[: len(seen) - 2] == seen[:-2]  # what was on its way when it fell asleep may be in it, too
