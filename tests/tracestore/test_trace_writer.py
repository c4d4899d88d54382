"""The writer: it commits in batches, and loses no event that it can keep while the store fails."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from callboard import StoreState
from callboard.bus.actors.actor import Actor
from callboard.bus.actors.child import RestartPolicy
from callboard.bus.actors.supervisor import ChildSpec, Supervisor
from callboard.bus.bus import Bus
from callboard.bus.errors import StoreError
from callboard.bus.events.calls import LlmCallCompleted
from callboard.bus.events.envelope import Envelope, Event, UnknownEvent
from callboard.bus.events.operation import ActorStarted
from callboard.bus.events.sessions import (
    SessionConfigured,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
)
from callboard.bus.log import Log
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import Capture, Flush, TraceStore, TraceWriter, WriterCore, WriterOptions, codec
from callboard.tracestore.reports import after_failure, retry_delay
from callboard.tracestore.writing.content import CapturedMessage
from callboard.tracestore.writing.journal import Waiting
from callboard.tracestore.writing.overflow import (
    SpillFile,
    adopt_leftovers,
    journal_paths,
    leftovers,
    read_leftover,
    spill_path,
)

from .trace_making import Maker
from .writer_rig import DISK_FULL, QUICK, FakeSink, FakeSource, Rig, until


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_events_that_come_together_are_committed_together(tmp_path: Path) -> None:
    """One commit takes what came within its time, and never more than a batch."""
    rig = Rig(tmp_path, WriterOptions(batch_events=10))
    async with rig.running():
        rig.publish(25)
        await anyio.lowlevel.checkpoint()
        rig.publish(3)
        await until(lambda: len(rig.sink.seqs) == 28)
    assert rig.sink.seqs == list(range(1, 29))
    assert max(map(len, rig.sink.batches)) == 10


async def test_watchers_are_told_of_commits(rig: Rig) -> None:
    """When they are done, in order, and of each event once, however often the store fails before."""
    told: list[int] = []

    def watch(envelopes: Sequence[Envelope]) -> None:
        assert rig.sink.seqs[-len(envelopes) :] == [envelope.seq for envelope in envelopes]
        told.extend(envelope.seq for envelope in envelopes)

    rig.core.watch_commits(watch)
    async with rig.running():
        rig.publish(3)
        await until(lambda: len(told) == 3)
        rig.sink.failure = DISK_FULL
        rig.publish(20)
        await until(lambda: rig.core.state != "ok")
        assert len(told) == 3
        rig.sink.failure = None
        await until(lambda: len(told) == 23)
    assert told == list(range(1, 24))


@pytest.mark.parametrize("flushed", [True, False])
async def test_a_burst_is_taken_in_a_part_at_a_time(tmp_path: Path, flushed: bool) -> None:
    """Others on the loop have their turn meanwhile, however many messages the host's redaction must look at."""
    turn = 0
    looked_at: Counter[int] = Counter()

    def redact(message: Message) -> Message:
        looked_at[turn] += 1
        return message

    async def others() -> None:
        nonlocal turn
        while True:
            await anyio.lowlevel.checkpoint()
            turn += 1

    rig = Rig(tmp_path, WriterOptions(), Capture(redact))
    message = Message.user("Hello")
    rig.source.put(*(rig.make(SessionMessageAppended(position=n, message=message)) for n in range(1000)))
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        if flushed:
            await rig.core.flush()
        else:
            group.start_soon(rig.core.run)
            await until(lambda: len(rig.sink.seqs) == 1000)
        group.cancel_scope.cancel()
    assert rig.sink.seqs == list(range(1, 1001))
    assert max(looked_at.values()) <= 256


async def test_flush_returns_after_the_commit_of_all_before_it(rig: Rig) -> None:
    """Published before it, all of it is committed, with or without a pump; a hundred flushes share one commit."""
    rig.publish(3)
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(rig.core.flush)
    assert rig.sink.batches == [[1, 2, 3]]
    async with rig.running():
        rig.publish(2)
        await rig.core.flush()
        assert rig.sink.seqs == [1, 2, 3, 4, 5]
        await rig.core.flush()
    assert rig.core.statistics().committed == 5


async def test_the_pump_ends_with_its_subscription(rig: Rig) -> None:
    """A closed subscription is written to its end."""
    rig.publish(5)
    rig.source.close()
    with anyio.fail_after(5):
        await rig.core.run()
    assert rig.sink.seqs == [1, 2, 3, 4, 5]


async def test_a_flush_ends_while_events_keep_coming(rig: Rig) -> None:
    """A steady stream of events that somebody weighs meanwhile does not hold it up: only what was there before."""
    write = rig.sink.write

    async def and_more(envelopes: Sequence[Envelope], /) -> None:
        rig.publish(1)
        rig.core.statistics()  # as admission does for each turn
        await write(envelopes)

    rig.sink.write = and_more  # type: ignore[method-assign]
    rig.publish(3)
    with anyio.fail_after(5):
        await rig.core.flush()
    assert rig.sink.batches == [[1, 2, 3]]
    rig.sink.write = write  # type: ignore[method-assign]
    await rig.core.close()
    assert rig.sink.seqs == [1, 2, 3, 4]


async def test_a_passing_failure_is_retried(rig: Rig) -> None:
    """The batch waits, is tried again, and comes in order; both changes of state are published."""
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(2)
        await rig.until("retrying")
        rig.sink.failure = None
        await rig.until("ok")
    assert rig.sink.seqs == [1, 2]
    assert rig.path == ["retrying", "ok"]
    assert "disk is full" in rig.states[0].reason
    assert not rig.spill.exists()


async def test_a_lasting_failure_spills_and_recovers_in_order(rig: Rig) -> None:
    """Events go to a private file, are written back in order when the store recovers, and the file goes."""
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(3)
        await rig.until("spilling")
        rig.publish(300)
        await until(lambda: rig.core.statistics().spilled == 303)
        assert stat.S_IMODE(rig.spill.stat().st_mode) == 0o600
        with pytest.raises(StoreError, match="303 events are not committed"):
            await rig.core.flush()
        rig.sink.failure = None
        rig.publish(2)
        await rig.core.flush()
    assert rig.sink.seqs == list(range(1, 306))
    assert rig.path == ["retrying", "spilling", "ok"]
    assert rig.core.statistics().lost == 0
    assert not rig.spill.exists()


async def test_too_much_in_memory_spills_at_once(tmp_path: Path) -> None:
    """A flood during the first retry doesn't wait for the third."""
    rig = Rig(tmp_path, WriterOptions(first_retry=60, memory_events=4))
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(4)
        await rig.until("retrying")
        rig.publish(1)
        await rig.until("spilling")
    assert rig.core.statistics().spilled == 5


async def test_a_full_spill_file_drops_the_newest_and_counts_them(tmp_path: Path) -> None:
    """What is lost is known by number; what was kept comes through; a flush tells of the loss once."""
    rig = Rig(tmp_path, msgspec.structs.replace(QUICK, spill_after=1, spill_bytes=1000))
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(50)
        await rig.until("dropping")
        await until(lambda: rig.core.statistics().lost)
        lost = rig.core.statistics().lost
        assert 0 < lost < 50
        rig.sink.failure = None
        with pytest.raises(StoreError, match=f"{lost} events were lost"):
            await rig.core.flush()
        await rig.core.flush()
    statistics = rig.core.statistics()
    kept = 50 - lost
    assert rig.sink.seqs == list(range(1, kept + 1))
    assert (statistics.lost_first_seq, statistics.lost_last_seq) == (kept + 1, 50)
    assert rig.states[-1].current == "ok"
    assert rig.states[-1].lost == lost


async def test_a_spill_file_that_cannot_be_written_keeps_a_memoryful(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same full disk takes no spill file either: the oldest events stay in memory, the rest is counted."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(10)
        await until(lambda: rig.core.statistics().lost == 6)
        assert any("No space left" in change.reason for change in rig.states)
        rig.sink.failure = None
        await rig.until("ok")
    assert rig.sink.seqs == [1, 2, 3, 4]


async def test_one_bad_event_does_not_hold_up_the_others(rig: Rig) -> None:
    """An error that is no failure of the store is put down to an event, and only that one is lost."""
    plain = rig.sink.write

    async def picky(envelopes: Sequence[Envelope], /) -> None:
        if any(envelope.seq == 3 for envelope in envelopes):
            raise TypeError("unbindable")
        await plain(envelopes)

    rig.sink.write = picky  # type: ignore[method-assign]
    rig.publish(5)
    with pytest.raises(StoreError, match="1 events were lost"):
        await rig.core.flush()
    assert rig.sink.seqs == [1, 2, 4, 5]


@pytest.mark.parametrize("taken_away", [False, True])
async def test_closing_with_a_broken_store_spills(rig: Rig, taken_away: bool) -> None:
    """What can't be committed goes to the file, for the next start; what somebody deleted is counted as lost."""
    rig.sink.failure = DISK_FULL
    rig.publish(3)
    await rig.core.close()
    assert len(rig.spill.read_bytes().splitlines()) == 3
    rig.sink.failure = None
    if taken_away:
        rig.spill.unlink()
        rig.publish(1)
        with pytest.raises(StoreError, match="3 events were lost"):
            await rig.core.flush()
    else:
        await rig.core.close()
        assert not rig.spill.exists()
    assert rig.sink.seqs == ([4] if taken_away else [1, 2, 3])


async def test_what_is_lost_at_the_end_is_told_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is closed again when more has come while everything else stopped: then only that is told."""
    told: list[object] = []
    monkeypatch.setattr(Log, "error", lambda self, event, **fields: told.append((event, fields["events"])))
    rig.sink.failure = DISK_FULL
    rig.spill.mkdir()  # so that nothing can be spilled either
    for count in (3, 2):
        rig.publish(count)
        await rig.core.close()
    assert told == [("lost_at_close", 3), ("lost_at_close", 2)]


async def test_a_dead_process_s_spill_file_is_adopted(store: TraceStore, make: Maker) -> None:
    """What another run had to leave is written at the next start, torn last line or not; a live one's is left."""
    dead = SpillFile(store.path.with_name("trace.db.spill-run_dead.jsonl"), 10**6)
    dead.append([make.started(tags={"a": "b"}), make.completed()])
    dead.close()
    with dead.path.open("ab") as file:
        file.write(b'{"seq":3,"run_id":"run_te')
    alive = SpillFile(store.path.with_name("trace.db.spill-run_alive.jsonl"), 10**6)
    alive.append([make.started("other")])
    core = WriterCore.for_bus(store, bus := Bus())
    bus.publish(ActorStarted(actor="x"))
    bus.close()
    with anyio.fail_after(5):
        await core.run()
    assert not dead.path.exists()
    assert alive.path.exists()
    assert [row.request_id for row in await store.calls()] == ["req_1"]
    assert len(await store.events()) == 3
    alive.remove()


async def test_a_writer_that_is_cancelled_mid_commit_loses_nothing(store: TraceStore) -> None:
    """Cancelled at every moment of its work and started again, it has written each event once."""
    bus = Bus()
    core = WriterCore.for_bus(store, bus, options=WriterOptions(batch_events=3, batch_seconds=0))
    for pause in range(30):
        bus.publish(ActorStarted(actor=str(pause)))
        with anyio.move_on_after(pause * 0.0003):
            await core.run()
    await core.flush()
    assert [envelope.seq for envelope in await store.events()] == list(range(1, 31))


async def test_a_crash_of_the_actor_loses_nothing(store: TraceStore) -> None:
    """A new incarnation goes on with the same core; the pump's failure is the actor's crash."""
    bus = Bus()
    core = WriterCore.for_bus(store, bus)
    take = core._take
    crashes: list[int] = []

    def crash_once(limit: int | None = None) -> None:
        take(limit)
        if not crashes:
            crashes.append(1)
            raise RuntimeError("a bug in the pump")

    core._take = crash_once  # type: ignore[method-assign]
    policy = RestartPolicy(backoff_base=0.001)
    supervisor = Supervisor("root", bus=bus, policy=policy)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run)
        ref = await supervisor.start_child(ChildSpec("trace writer", lambda: TraceWriter(core)))
        with anyio.fail_after(5):
            while not crashes or not ref.running:
                bus.publish(ActorStarted(actor="x"))
                await anyio.sleep(0.005)
        await ref.ask(Flush())
        await supervisor.stop()
    await core.close()
    stored = await store.events()
    assert [envelope.seq for envelope in stored] == list(range(1, bus.last_seq + 1))
    assert {"actor.crashed", "actor.restarted", "actor.stopped"} <= {envelope.topic for envelope in stored}


async def test_an_actor_without_supervisor_is_just_behaviour() -> None:
    """TraceWriter is an Actor and refuses messages it doesn't know."""
    writer = TraceWriter(WriterCore(FakeSink(), FakeSource()))
    assert isinstance(writer, Actor)
    await writer.receive(Flush())
    with pytest.raises(TypeError, match="str"):
        await writer.receive("hello")


async def test_what_waits_is_weighed_by_what_it_refers_to(rig: Rig) -> None:
    """An event counts a fixed figure and the content it carries; committed, spilled or lost, it counts no more."""
    await rig.core.flush()
    assert rig.core.statistics().waiting_bytes == 0
    rig.publish(2)
    small = rig.core.statistics().waiting_bytes
    rig.source.put(rig.make(SessionMessageAppended(position=0, message=Message.user("x" * 50_000))))
    rig.sink.failure = DISK_FULL
    with pytest.raises(StoreError):
        await rig.core.flush()
    assert 50_000 < rig.core.statistics().waiting_bytes - small < 60_000
    rig.sink.failure = None
    await rig.core.flush()
    assert rig.core.statistics().waiting_bytes == 0
    rig.publish(3)
    rig.sink.failure = DISK_FULL
    await rig.core.close()  # which spills
    assert (rig.core.statistics().waiting_bytes, rig.core.statistics().spilled) == (0, 3)


# What follows from a failure of the store, and what waits in memory meanwhile, as plain values.


def envelopes(count: int) -> list[Envelope]:
    return [Envelope(seq, "run", 0, 0, ActorStarted(actor="a")) for seq in range(1, count + 1)]


@pytest.mark.parametrize(
    ("state", "failures", "may_spill", "then"),
    [
        ("ok", 1, True, "retrying"),
        ("ok", 9, True, "retrying"),
        ("retrying", 2, True, "retrying"),
        ("retrying", 3, True, "spilling"),
        ("retrying", 3, False, "spilling"),
        ("spilling", 9, True, "spilling"),
        ("dropping", 9, True, "spilling"),
        ("dropping", 9, False, "dropping"),
    ],
)
def test_a_failure_leads_to_one_state(state: StoreState, failures: int, may_spill: bool, then: StoreState) -> None:
    """After three in a row events are spilled; a file that was full may have room again, if there is one."""
    assert after_failure(state, failures, WriterOptions(spill_after=3), may_spill=may_spill) == then


def test_the_wait_doubles_up_to_the_longest() -> None:
    options = WriterOptions(first_retry=1.0, longest_retry=30.0)
    delays = [retry_delay(failures, options) for failures in (1, 2, 3, 4, 5, 6, 7, 10_000)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_what_waits_is_taken_from_either_end() -> None:
    """The oldest are stored, the newest dropped; an empty queue is never too much, and weighs nothing."""
    waiting = Waiting()
    assert not waiting.exceeds(0, 0)
    waiting.add(envelopes(5))
    assert waiting.exceeds(4, 10**6)
    assert waiting.exceeds(5, 1)
    assert not waiting.exceeds(5, 10**6)
    assert [waiting.drop_newest().seq, waiting.drop_newest().seq] == [5, 4]
    assert [envelope.seq for envelope in waiting.first(2)] == [1, 2]
    waiting.remove(waiting.first(2))
    assert (len(waiting), waiting.size > 0) == (1, True)
    waiting.remove(waiting.first())
    assert (len(waiting), waiting.size) == (0, 0)


# What is copied beside the database before an answer is handed over.


def copied(rig: Rig) -> list[int]:
    """The seqs that are in the journal, as whoever adopts it would read them."""
    paths = [path for path in journal_paths(rig.spill) if path.exists()]
    return sorted(envelope.seq for path in paths for envelope in read_leftover(path, 0, 10_000)[0])


async def test_what_is_secured_stands_beside_the_database_until_it_is_committed(tmp_path: Path) -> None:
    """All that was published before, once, however many answers are handed over; when committed, no longer."""
    rig = Rig(tmp_path)
    for _ in range(5):
        rig.publish(40)
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
        assert await adopt_leftovers(store.path, store.write, own_path=None, batch_events=7)
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
                assert await adopt_leftovers(store.path, store.write, own_path=None, batch_events=7)
            await store.write(events)

        assert await adopt_leftovers(store.path, overtaken, own_path=None, batch_events=2)
        assert [envelope.seq for envelope in await store.events()] == list(range(1, 7))


async def test_a_file_is_not_taken_up_where_the_store_is_what_is_missing(tmp_path: Path) -> None:
    """It is there for the next start."""
    file = SpillFile(spill_path(tmp_path / "trace.db", "run_test"), 10**6)
    file.append([Maker()(ActorStarted(actor="a"))])
    file.close()

    async def gone(events: Sequence[Envelope]) -> None:
        raise FileNotFoundError("trace.db.lock")

    assert not await adopt_leftovers(tmp_path / "trace.db", gone, own_path=None, batch_events=2)
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


@pytest.mark.parametrize("chosen", [[], *([n] for n in range(10)), list(range(10)), [0, 4, 1, 0]])
def test_lines_of_many_events_are_read_as_the_line_of_each(chosen: list[int]) -> None:
    """Encoded in one pass, or some with care; each is one line, and is stored as it would be alone."""
    make, events = Maker(), events_of_all_kinds()
    envelopes = [make(events[n], session_id="ses_1", tags={"who": "Zo\u00eb"}) for n in chosen]
    lines = codec.encode_lines(envelopes).splitlines(keepends=True)
    alone = [codec.encode_line(envelope) for envelope in envelopes]
    assert [codec.decode_line(line) for line in lines] == [codec.decode_line(line) for line in alone]
    texts = codec.encode_events(envelopes)
    assert texts == [codec.encode_event(events[n]).decode("utf-8", "replace") for n in chosen]
    assert "not to be stored" not in str(lines) + str(texts)


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
