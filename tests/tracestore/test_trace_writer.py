"""The writer commits in batches. While the store fails, it keeps as many events as possible."""

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
from callboard.bus.bus import Bus
from callboard.bus.child import ChildSpec, RestartPolicy
from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope, Event, UnknownEvent
from callboard.bus.events.calls import LlmCallCompleted
from callboard.bus.events.operation import ActorStarted
from callboard.bus.events.sessions import (
    SessionConfigured,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
)
from callboard.bus.log import Log
from callboard.bus.supervisor import Supervisor
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import Capture, Flush, TraceStore, TraceWriter, WriterCore, WriterOptions, codec
from callboard.tracestore.reports import after_failure, retry_delay
from callboard.tracestore.writing.content import CapturedMessage
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


def full(*_: object) -> int:
    """Fail as os.pwrite does on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_events_of_a_short_time_are_committed_together(tmp_path: Path) -> None:
    rig = Rig(tmp_path, WriterOptions(batch_events=10))
    async with rig.running():
        rig.publish(25)
        await anyio.lowlevel.checkpoint()
        rig.publish(3)
        await until(lambda: len(rig.sink.seqs) == 28)
    assert rig.sink.seqs == list(range(1, 29))
    assert max(map(len, rig.sink.batches)) == 10


async def test_observers_are_notified_of_commits(rig: Rig) -> None:
    """Observers get each event once, in order, after its commit. Earlier failures of the store do not matter."""
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
async def test_a_burst_is_taken_in_parts(tmp_path: Path, flushed: bool) -> None:
    """Other tasks run between parts of a large batch, for any number of messages in the host's redaction."""
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


async def test_a_flush_ends_while_events_keep_coming(rig: Rig) -> None:
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


async def test_a_failure_is_retried_and_a_lasting_one_spills_and_recovers_in_order(rig: Rig) -> None:
    """A private file holds the events until the store recovers. Each change of state is published."""
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(2)
        await rig.until("retrying")
        rig.sink.failure = None
        await rig.until("ok")
        assert (rig.sink.seqs, rig.path, rig.spill.exists()) == ([1, 2], ["retrying", "ok"], False)
        assert "disk is full" in rig.states[0].reason
        rig.sink.failure = DISK_FULL
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
    assert rig.sink.seqs == list(range(1, 308))
    assert rig.path[2:] == ["retrying", "spilling", "ok"]
    assert rig.core.statistics().lost == 0
    assert not rig.spill.exists()


async def test_a_full_memory_spills_immediately(tmp_path: Path) -> None:
    """If memory fills up during the first retry, events are spilled before the third."""
    rig = Rig(tmp_path, WriterOptions(first_retry=60, memory_events=4))
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(4)
        await rig.until("retrying")
        rig.publish(1)
        await rig.until("spilling")
    assert rig.core.statistics().spilled == 5


async def test_a_full_spill_file_drops_the_newest_and_counts_them(tmp_path: Path) -> None:
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


async def test_without_a_spill_file_events_stay_in_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full disk has no room for a spill file. The oldest events stay in memory, and the others are counted."""
    monkeypatch.setattr(os, "pwrite", full)
    rig.sink.failure = DISK_FULL
    async with rig.running():
        rig.publish(10)
        await until(lambda: rig.core.statistics().lost == 6)
        assert any("No space left" in change.reason for change in rig.states)
        rig.sink.failure = None
        await rig.until("ok")
    assert rig.sink.seqs == [1, 2, 3, 4]


async def test_one_bad_event_does_not_stop_the_others(rig: Rig) -> None:
    """An error that is no failure of the store belongs to one event. Only that event is lost."""
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
    """Uncommitted events go to the file, for the next start. If the file is deleted, they are counted as lost."""
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


async def test_losses_at_the_end_are_logged_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(Log, "error", lambda self, event, **fields: told.append((event, fields["events"])))
    rig.sink.failure = DISK_FULL
    rig.spill.mkdir()  # so that nothing can be spilled
    for count in (3, 2):
        rig.publish(count)
        await rig.core.close()
    assert told == [("lost_at_close", 3), ("lost_at_close", 2)]


async def test_a_dead_process_s_spill_file_is_adopted(store: TraceStore, make: Maker) -> None:
    """The next start writes the file's events, with or without an incomplete last line."""
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
    bus = Bus()
    core = WriterCore.for_bus(store, bus, options=WriterOptions(batch_events=3, batch_seconds=0))
    for pause in range(30):
        bus.publish(ActorStarted(actor=str(pause)))
        with anyio.move_on_after(pause * 0.0003):
            await core.run()
    await core.flush()
    assert [envelope.seq for envelope in await store.events()] == list(range(1, 31))


async def test_a_crash_of_the_actor_loses_nothing(store: TraceStore) -> None:
    """The next incarnation continues with the same core. A failure of the pump crashes the actor."""
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


async def test_the_writer_works_without_a_supervisor_and_refuses_unknown_messages() -> None:
    writer = TraceWriter(WriterCore(FakeSink(), FakeSource()))
    await writer.receive(Flush())
    with pytest.raises(TypeError, match="str"):
        await writer.receive("hello")


async def test_the_size_of_waiting_events_includes_their_content(rig: Rig) -> None:
    """An event counts a fixed size plus its content. Committed, spilled and lost events no longer count."""
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
    await rig.core.close()  # closing spills the events
    assert (rig.core.statistics().waiting_bytes, rig.core.statistics().spilled) == (0, 3)


# The states after a failure of the store, and the events in memory, as plain values.


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
    """After three failures in a row, events are spilled. A full file may have room again, if there is a file."""
    assert after_failure(state, failures, WriterOptions(spill_after=3), may_spill=may_spill) == then


def test_the_wait_doubles_up_to_the_longest() -> None:
    options = WriterOptions(first_retry=1.0, longest_retry=30.0)
    delays = [retry_delay(failures, options) for failures in (1, 2, 3, 4, 5, 6, 7, 10_000)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


# Events that are copied next to the database before a reply is delivered.


def copied(rig: Rig) -> list[int]:
    """The seqs in the journal, as a process that adopts the journal reads them."""
    paths = [path for path in journal_paths(rig.spill) if path.exists()]
    return sorted(envelope.seq for path in paths for envelope in read_leftover(path, 0, 10_000)[0])


async def test_secured_events_are_in_the_journal_until_they_are_committed(rig: Rig, tmp_path: Path) -> None:
    """The journal has each published event once, for any number of replies. After the commit, it is empty."""
    for _ in range(5):
        rig.publish(40)
        await rig.core.secure()
    assert copied(rig) == list(range(1, 201))
    await rig.core.flush()
    assert rig.sink.seqs == list(range(1, 201))
    assert copied(rig) == []
    await rig.core.close()
    assert os.listdir(tmp_path) == []


async def test_events_during_a_commit_stay_in_the_journal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit empties the file that it covers. The other file stays."""
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


async def test_events_that_were_secured_are_committed_without_others_coming(rig: Rig) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(rig.core.run)
        await anyio.sleep(1)
        rig.publish()
        await rig.core.secure()
        await anyio.sleep(1)
        assert rig.sink.seqs == [1]
        group.cancel_scope.cancel()


async def test_a_journal_that_fails_delays_no_reply(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is delivered, and the statistics have the reason. Later replies are secured when there is room."""
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


async def test_the_size_of_a_journal_is_limited(tmp_path: Path) -> None:
    rig = Rig(tmp_path, WriterOptions(spill_bytes=1000))
    rig.publish(50)
    await rig.core.secure()
    assert "1,000 bytes" in str(rig.core.statistics().unsecured)
    assert sum(path.stat().st_size for path in journal_paths(rig.spill) if path.exists()) <= 1000


async def test_the_next_start_adopts_the_events_of_the_journal(tmp_path: Path) -> None:
    """The store always fails and there is no room to spill. The events of the journal are not lost."""
    rig = Rig(tmp_path, WriterOptions(spill_bytes=10_000))
    rig.sink.failure = DISK_FULL
    rig.publish(20)
    await rig.core.secure()
    await rig.core.close()
    async with TraceStore(tmp_path / "trace.db") as store:
        assert await adopt_leftovers(store.path, store.write, own_path=None, batch_events=7)
        assert [envelope.seq for envelope in await store.events()] == list(range(1, 21))


def left_by_a_dead_process(folder: Path, events: int) -> Path:
    """Leave a spill file next to a database. Return the path of the database."""
    make, database = Maker(), folder / "trace.db"
    file = SpillFile(spill_path(database, "run_test"), 10**6)
    file.append([make(ActorStarted(actor=f"a{n}")) for n in range(events)])
    file.close()
    return database


async def test_a_file_can_be_adopted_by_two_processes(tmp_path: Path) -> None:
    """Two processes adopt the same file. Both find its events in the store."""
    async with TraceStore(left_by_a_dead_process(tmp_path, 6)) as store:

        async def overtaken(events: Sequence[Envelope]) -> None:
            if leftovers(store.path):
                assert await adopt_leftovers(store.path, store.write, own_path=None, batch_events=7)
            await store.write(events)

        assert await adopt_leftovers(store.path, overtaken, own_path=None, batch_events=2)
        assert [envelope.seq for envelope in await store.events()] == list(range(1, 7))


async def test_a_file_is_not_adopted_if_the_store_is_missing(tmp_path: Path) -> None:
    database = left_by_a_dead_process(tmp_path, 1)

    async def gone(events: Sequence[Envelope]) -> None:
        raise FileNotFoundError("trace.db.lock")

    assert not await adopt_leftovers(database, gone, own_path=None, batch_events=2)
    assert leftovers(database)


async def test_files_of_one_run_are_adopted_in_the_order_of_their_events(tmp_path: Path) -> None:
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


async def test_a_run_with_an_empty_spill_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk allowed the file but no content. The next start finds no lost run."""
    async with TraceStore(tmp_path / "trace.db") as store:
        store.hold_run("run_test")
        await store.write([Maker()(ActorStarted(actor="a"))])
        spill = SpillFile(spill_path(store.path, "run_test"), 10**6)
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
    """A host's event whose form has changed."""

    SCHEMA = 2
    metres: int


def events_of_all_kinds() -> list[Event]:
    """Events that are stored unchanged, events that are not, and events that need special encoding."""
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
    make, events = Maker(), events_of_all_kinds()
    envelopes = [make(events[n], session_id="ses_1", tags={"who": "Zo\u00eb"}) for n in chosen]
    lines = codec.encode_lines(envelopes).splitlines(keepends=True)
    alone = [codec.encode_line(envelope) for envelope in envelopes]
    assert [codec.decode_line(line) for line in lines] == [codec.decode_line(line) for line in alone]
    texts = codec.encode_events(envelopes)
    assert texts == [codec.encode_event(events[n]).decode("utf-8", "replace") for n in chosen]
    assert "not to be stored" not in str(lines) + str(texts)


async def test_usage_with_line_breaks_is_one_line_of_a_file(tmp_path: Path) -> None:
    """Gemini's usage contains line breaks. The end of the call is still read after the process dies."""
    make, path = Maker(), tmp_path / "trace.db.spill-run_test.jsonl"
    usage = TokenUsage(7, 1, raw=msgspec.Raw(b'{\n  "promptTokenCount": 7\n}'))
    file = SpillFile(path, 10**6)
    file.append([make.started(), make.completed(usage=usage)])
    (_, ended), _ = file.peek(9)
    file.remove()
    assert isinstance(ended.data, LlmCallCompleted)
    assert ended.data.usage.raw is not None
    assert msgspec.json.decode(ended.data.usage.raw) == {"promptTokenCount": 7}
