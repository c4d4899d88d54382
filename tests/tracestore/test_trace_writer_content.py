"""The writer and content: what spills of it, what is stored when the store recovers, and how much may wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from callboard.bus.bus import Bus
from callboard.bus.errors import StoreError
from callboard.bus.events.envelope import Envelope
from callboard.bus.events.sessions import SessionMessageAppended
from callboard.bus.values.content import ImageBlock, TextBlock
from callboard.bus.values.messages import Message
from callboard.tracestore import Capture, TraceStore, WriterCore, WriterOptions
from callboard.tracestore.writing.spill import SpillFile

from .trace_making import Maker
from .writer_rig import DISK_FULL, QUICK, FakeSource, Rig, until

pytestmark = pytest.mark.anyio

PICTURE = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)


SAID = [Message.user([TextBlock("My name is Bob"), PICTURE]), Message.assistant("Hi.\nBob")]


def appended(make: Maker) -> list[Envelope]:
    return [
        make(SessionMessageAppended(position=position, message=message), session_id="s")
        for position, message in enumerate(SAID)
    ]


def spilled_by(folder: Path, capture: Capture | None) -> Path:
    """The spill file of a writer whose store failed to the end."""
    rig = Rig(folder, capture=capture)
    rig.sink.failure = DISK_FULL
    rig.source.put(*appended(rig.make))
    anyio.run(rig.core.close)
    return rig.spill


def test_the_spill_file_has_content_only_if_it_is_captured(tmp_path: Path) -> None:
    """Without capture no byte of it reaches the disk; with it, what the hook made of it."""
    for name in ("off", "on"):
        (tmp_path / name).mkdir()
    off = spilled_by(tmp_path / "off", None).read_bytes()
    assert off.count(b"\n") == 2
    assert b"Bob" not in off
    seen: list[str] = []

    def redact(message: Message) -> Message:
        seen.append(message.text)
        return Message.user("I am somebody") if message.role == "user" else message

    on = spilled_by(tmp_path / "on", Capture(redact)).read_bytes()
    assert on.count(b"\n") == 2
    assert b"My name" not in on
    assert b"I am somebody" in on
    assert seen == [message.text for message in SAID], "each message was shown to the hook once"


async def test_spilled_content_is_stored_when_the_store_recovers(store: TraceStore, tmp_path: Path) -> None:
    """Media included, and the hook isn't asked again."""
    asked = 0

    def redact(message: Message) -> Message:
        nonlocal asked
        asked += 1
        return message

    class Flaky:
        failing = True

        async def write(self, envelopes: Sequence[Envelope], /) -> None:
            if self.failing:
                raise StoreError("disk full")
            await store.write(envelopes)

    sink, source = Flaky(), FakeSource()
    core = WriterCore(sink, source, spill_path=tmp_path / "x.jsonl", options=QUICK, capture=Capture(redact))
    async with anyio.create_task_group() as group:
        group.start_soon(core.run)
        source.put(*appended(Maker()))
        await until(lambda: core.state == "spilling" and core.statistics().spilled == 2)
        sink.failing = False
        await until(lambda: core.state == "ok")
        group.cancel_scope.cancel()
    assert await store.messages("s") == SAID
    assert asked == len(SAID)


async def test_a_dead_process_s_content_is_adopted_by_one_that_captures_none(
    store: TraceStore, make: Maker
) -> None:
    """It was asked for when it was said."""
    dead = SpillFile(store.path.with_name("trace.db.spill-run_dead.jsonl"), 10**6)
    dead.append([Capture().apply(envelope) for envelope in appended(make)])
    dead.close()
    core = WriterCore.for_bus(store, bus := Bus())
    bus.close()
    with anyio.fail_after(5):
        await core.run()
    assert await store.messages("s") == SAID


async def test_content_that_waits_is_bounded_in_bytes(tmp_path: Path) -> None:
    """A few large messages fill the memory as many small events do: first they spill, then the newest are lost."""
    large = [Message.user(str(number) * 100_000) for number in range(6)]
    options = WriterOptions(first_retry=60.0, memory_bytes=250_000, spill_bytes=250_000)
    rig = Rig(tmp_path, options, Capture())
    rig.sink.failure = DISK_FULL
    for position, message in enumerate(large):
        rig.source.put(rig.make(SessionMessageAppended(position=position, message=message), session_id="s"))
        with pytest.raises(StoreError):
            await rig.core.flush()
    statistics = rig.core.statistics()
    assert (statistics.state, statistics.spilled, statistics.lost) == ("dropping", 2, 2)
    assert (statistics.lost_first_seq, statistics.lost_last_seq) == (5, 6)
    assert statistics.waiting_bytes <= 250_000


def test_few_large_events_are_read_back_at_a_time(tmp_path: Path, make: Maker) -> None:
    """Whatever number is asked for, a spill file of large messages doesn't come into memory as a whole."""
    spill = SpillFile(tmp_path / "x.jsonl", 10**8)
    large = [SessionMessageAppended(position=n, message=Message.user(str(n) * 3_000_000)) for n in range(4)]
    spill.append([Capture().apply(make(event, session_id="s")) for event in large])
    found: list[int] = []
    while spill.waiting:
        batch, size = spill.peek(256)
        assert 0 < len(batch) <= 2
        found += [envelope.seq for envelope in batch]
        spill.discard(len(batch), size)
    assert found == [1, 2, 3, 4]
