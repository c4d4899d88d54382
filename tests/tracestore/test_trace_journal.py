"""What is copied beside the database before an answer is handed over."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard.bus.events.calls import LlmCallCompleted
from callboard.bus.events.envelope import Envelope, Event, UnknownEvent
from callboard.bus.events.operation import ActorStarted
from callboard.bus.events.sessions import (
    SessionConfigured,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
)
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import TraceStore, WriterOptions, codec
from callboard.tracestore.writing.captured import CapturedMessage
from callboard.tracestore.writing.spill import (
    SpillFile,
    adopt_leftovers,
    journal_paths,
    leftovers,
    read_leftover,
    spill_path,
)
from tests.support.virtual_time import runs_on
from tests.tracestore.trace_making import Maker
from tests.tracestore.writer_rig import DISK_FULL, Rig

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


def copied(rig: Rig) -> list[int]:
    """The seqs that are in the journal, as whoever adopts it would read them."""
    paths = [path for path in journal_paths(rig.spill) if path.exists()]
    return sorted(envelope.seq for path in paths for envelope in read_leftover(path, 0, 10_000)[0])


async def test_what_is_secured_stands_beside_the_database_until_it_is_committed(tmp_path: Path) -> None:
    """All that was published before, in its order; and when it is committed, no longer."""
    rig = Rig(tmp_path)
    rig.publish(200)
    await rig.core.secure()
    assert copied(rig) == list(range(1, 201))
    await rig.core.flush()
    assert rig.sink.seqs == list(range(1, 201))
    assert copied(rig) == []
    await rig.core.close()
    assert os.listdir(tmp_path) == []


async def test_what_comes_during_a_commit_outlives_that_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two files, the one that the commit covers is emptied, and the other one stays."""
    rig = Rig(tmp_path)
    write = rig.sink.write

    async def slowly(envelopes: Sequence[Envelope]) -> None:
        rig.publish(3)
        await rig.core.secure()
        assert copied(rig) == [1, 2, 3, 4, 5]
        await write(envelopes)

    rig.publish(2)
    await rig.core.secure()
    with monkeypatch.context() as patch:
        patch.setattr(rig.sink, "write", slowly)
        await rig.core.flush()
    assert copied(rig) == [3, 4, 5]
    await rig.core.flush()
    assert copied(rig) == []


async def test_nothing_is_copied_twice(tmp_path: Path) -> None:
    """However many answers are handed over between two commits."""
    rig = Rig(tmp_path)
    for _ in range(5):
        rig.publish(3)
        await rig.core.secure()
    assert copied(rig) == list(range(1, 16))


async def test_events_that_were_secured_are_committed_without_others_coming(tmp_path: Path) -> None:
    """A writer that waits for something to come finds what a caller took from its source."""
    rig = Rig(tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(rig.core.run)
        await anyio.sleep(1)
        rig.publish()
        await rig.core.secure()
        await anyio.sleep(1)
        assert rig.sink.seqs == [1]
        group.cancel_scope.cancel()


async def test_a_journal_that_cannot_be_written_holds_nobody_up_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is handed over, the statistics say why it is not safe; later ones are when there is room."""
    rig = Rig(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        rig.publish()
        await rig.core.secure()
        assert "No space left on device" in str(rig.core.statistics().unsecured)
    await anyio.sleep(2)
    rig.publish()
    await rig.core.secure()
    assert rig.core.statistics().unsecured is None
    assert copied(rig) == [1, 2]


async def test_a_journal_is_bounded(tmp_path: Path) -> None:
    """While the store fails it takes no more than a spill file does."""
    rig = Rig(tmp_path, WriterOptions(spill_bytes=1000))
    rig.publish(50)
    await rig.core.secure()
    assert "1,000 bytes" in str(rig.core.statistics().unsecured)
    assert sum(path.stat().st_size for path in journal_paths(rig.spill) if path.exists()) <= 1000


async def test_what_was_secured_when_all_failed_is_there_at_the_next_start(tmp_path: Path) -> None:
    """A store that fails till the end, and no room to spill: what the journal has isn't lost."""
    rig = Rig(tmp_path, WriterOptions(spill_bytes=10_000))
    rig.sink.failure = DISK_FULL
    rig.publish(20)
    await rig.core.secure()
    await rig.core.close()
    async with TraceStore(tmp_path / "trace.db") as store:
        assert await adopt_leftovers(store.path, store.write, own=None, batch_events=7)
        assert [envelope.seq for envelope in await store.events()] == list(range(1, 21))


async def test_a_file_that_another_process_takes_up_meanwhile_is_taken_up(tmp_path: Path) -> None:
    """Two that start at once both find it; whoever comes later to it finds what it held in the store."""
    file = SpillFile(spill_path(tmp_path / "trace.db", "run_test"), 10**6)
    make = Maker()
    file.append([make(ActorStarted(actor=f"a{n}")) for n in range(6)])
    file.close()
    async with TraceStore(tmp_path / "trace.db") as store:

        async def overtaken(events: Sequence[Envelope]) -> None:
            if leftovers(store.path):
                assert await adopt_leftovers(store.path, store.write, own=None, batch_events=7)
            await store.write(events)

        assert await adopt_leftovers(store.path, overtaken, own=None, batch_events=2)
        assert [envelope.seq for envelope in await store.events()] == list(range(1, 7))


async def test_a_file_is_not_taken_up_where_the_store_is_what_is_missing(tmp_path: Path) -> None:
    """It is there for the next start."""
    file = SpillFile(spill_path(tmp_path / "trace.db", "run_test"), 10**6)
    file.append([Maker()(ActorStarted(actor="a"))])
    file.close()

    async def gone(events: Sequence[Envelope]) -> None:
        raise FileNotFoundError("trace.db.lock")

    assert not await adopt_leftovers(tmp_path / "trace.db", gone, own=None, batch_events=2)
    assert leftovers(tmp_path / "trace.db")


async def test_files_of_one_run_are_taken_up_in_the_order_of_their_events(tmp_path: Path) -> None:
    """Whatever their names and times say: what was spilled first, then what was copied."""
    database, make = tmp_path / "trace.db", Maker()
    events = [make(ActorStarted(actor=f"a{n}")) for n in range(6)]
    spill = spill_path(database, "run_test")
    for path, part in zip((spill, *reversed(journal_paths(spill))), (0, 2, 4), strict=True):
        file = SpillFile(path, 10**6)
        file.append(events[part : part + 2])
        file.close()
    os.utime(spill)
    found = [envelope.seq for path in leftovers(database) for envelope in read_leftover(path, 0, 9)[0]]
    assert found == [1, 2, 3, 4, 5, 6]


async def test_a_run_that_left_an_empty_spill_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk let the file be made and nothing be written: the next start finds no lost run."""
    async with TraceStore(tmp_path / "trace.db") as store:
        store.hold_run("run_test")
        await store.write([Maker()(ActorStarted(actor="a"))])
        spill = SpillFile(spill_path(store.path, "run_test"), 10**6)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(os, "pwrite", full)
            spill.append([Maker()(ActorStarted(actor="b"))])
        assert spill.path.exists()
    async with TraceStore(tmp_path / "trace.db") as store:
        ((ending,),) = (await store.sql("SELECT ending FROM runs")).rows
        assert ending == "closed"
        assert await store.close_lost_runs() == []
    spill.close()
    assert not spill.path.exists()


class Walked(Event, frozen=True, kw_only=True, tag="host.walked"):
    """A host's event that has changed its form."""

    SCHEMA = 2
    metres: int


def events_of_all_kinds() -> list[Event]:
    """Those that are stored as they are, those that aren't, and those that need care."""
    strange = TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tok\xffens":\n 7}'))
    make = Maker()
    return [
        SessionTurnStarted(model="openai:gpt-5"),
        SessionMessageAppended(position=0, message=Message.user("not to be stored")),
        CapturedMessage(position=1, message=Message.assistant("to be stored")),
        SessionConfigured(history=1),
        make.started().data,
        make.completed().data,
        make.completed(usage=strange).data,
        SessionTurnCompleted(status="failed", calls=1, cost_nano_usd=None, error="half a pair: \ud83d"),
        UnknownEvent(topic="host.unheard_of", raw=msgspec.Raw(b'{\n "a": 1\n}')),
        Walked(metres=5),
    ]


@pytest.mark.parametrize("chosen", [*([n] for n in range(10)), list(range(10))])
def test_lines_of_many_events_are_read_as_the_line_of_each(chosen: list[int]) -> None:
    """Whether they were encoded in one pass, or some of them needed care; each is one line."""
    make, events = Maker(), events_of_all_kinds()
    envelopes = [make(events[n], session_id="ses_1", tags={"who": "Zo\u00eb"}) for n in chosen]
    lines = codec.encode_lines(envelopes).splitlines(keepends=True)
    assert [codec.decode_line(line) for line in lines] == [
        codec.decode_line(codec.encode_line(envelope)) for envelope in envelopes
    ]
    assert b"not to be stored" not in b"".join(lines)


@pytest.mark.parametrize("chosen", [[], *([n] for n in range(10)), list(range(10)), [0, 4, 1, 0]])
def test_many_events_are_stored_as_each_is(chosen: list[int]) -> None:
    """Whether they were encoded in one pass, or some of them needed care."""
    make, events = Maker(), events_of_all_kinds()
    texts = codec.encode_events([make(events[n]) for n in chosen])
    assert texts == [codec.encode_event(events[n]).decode("utf-8", "replace") for n in chosen]
    assert "not to be stored" not in "".join(texts)


async def test_what_a_provider_sent_in_several_lines_is_one_line_of_a_file(tmp_path: Path) -> None:
    """Gemini's usage is told with line breaks in it: the end of its calls is not lost with the process."""
    make, path = Maker(), tmp_path / "trace.db.spill-run_test.jsonl"
    usage = TokenUsage(7, 1, raw=msgspec.Raw(b'{\n  "promptTokenCount": 7\n}'))
    file = SpillFile(path, 10**6)
    file.append([make.started(), make.completed(usage=usage)])
    (_, ended), _ = file.peek(9)
    file.remove()
    assert isinstance(ended.data, LlmCallCompleted)
    assert ended.data.usage.raw is not None
    assert msgspec.json.decode(ended.data.usage.raw) == {"promptTokenCount": 7}
