"""The reader's side: mirrors of streams on other nodes. A mirror is filled while it has readers.

Each mirror has a `Follower`, which makes the decisions, and a task, which receives frames and sends requests. The
log of a mirror is one of the engine's streams, so all readers share it, and it is kept after its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, TypeAlias, Unpack

import anyio
import anyio.abc

from callboard.adapters.replies.whole import spelled_out
from callboard.bus import CallboardError, Log, ReaderStatistics, StreamChannel, StreamReader
from callboard.bus.backend import Signal, new_signal
from callboard.bus.streams.events import TurnEvent

from ..runtime.alone import ReaderArguments
from .broker import Subscription
from .broker_streams import BrokerFrames
from .frames import (
    AskCancel,
    AskFrames,
    Assembly,
    Ending,
    OwnerAnswer,
    Subjects,
    UnreadableFrame,
    encode,
    read_answer,
    read_packet,
)
from .mirror import (
    AskOwner,
    Follower,
    Mirror,
    Question,
    Replay,
    StoreAnswer,
    Stored,
    Timing,
    may_be_new,
    unknown_anywhere,
)

_log = Log("engine.frames")

ASK_SECONDS = 2.0
"""The maximum number of seconds to wait for an owner's answer."""

ASK_ALL_SECONDS = 1.0
"""The maximum number of seconds to wait for an answer if the owner is unknown. Nodes that don't own the stream
don't answer.
"""

STEADY_SECONDS = 5.0
"""Seconds after a connection during which a silent node may still be connecting."""

TurnSource: TypeAlias = Callable[[str, str, str, int], Awaitable[StoreAnswer]]
"""Returns the stored state of a turn with an unreachable owner, by its stream, session, node and epoch."""


class _Mirrored:
    def __init__(self, stream_id: str, streams: StreamChannel) -> None:
        self.stream_id = stream_id
        self.log = streams.open(stream_id)
        self.mirror = Mirror(self.log)
        self.stored = False
        """Whether the log was made from the store, so that its numbers differ from the owner's."""
        self.follower: Follower | None = None  # set while the mirror is being filled
        self.woken = anyio.Event()
        self._assembly = Assembly()
        self._waiting: list[Signal] = []

    @property
    def is_followed(self) -> bool:
        return not self.log.closed and bool(self.log.readers)

    async def settled(self) -> None:
        """Wait until the current end of the stream is known."""
        if not self.log.closed and not (self.follower is not None and self.follower.settled):
            self._waiting.append(signal := new_signal())
            await signal.wait()

    def receive(self, _subject: str, payload: bytes, _reply: str = "", *, stored: bool = False) -> None:
        """Process a message. `stored` is True if the broker had stored it."""
        follower = self.follower
        try:
            frame = self._assembly.frame(payload)
        except UnreadableFrame as error:
            _log.debug("unreadable_frame", stream_id=self.stream_id, error=str(error))
            return
        if frame is None or follower is None:
            return
        due = follower.wake_at
        follower.frame(frame, anyio.current_time(), stored=stored)
        if self._waiting:
            self.notify_settled()
        if follower.wake_at < due or not self.is_followed:
            self.woken.set()

    def notify_settled(self) -> None:
        """Wake the readers that wait for the current end of the stream."""
        if self.log.closed or (self.follower is not None and self.follower.settled):
            waiting, self._waiting = self._waiting, []
            for signal in waiting:
                signal.set()


class RemoteReader(StreamReader[TurnEvent]):
    """A reader of a log that is filled from another node. It starts with the first read.

    The first read raises the errors that `attach` raises for a local stream. UnknownStream: no node or store has
    the stream, or it has another owner. ValueError: `from_seq` is beyond the end.
    """

    def __init__(
        self,
        mirrored: _Mirrored,
        begin: Callable[[], Awaitable[None]],
        *,
        from_seq: int | Literal["tail"],
        coalesce: bool,
        min_interval: float,
        owner: str | None,
        any_owner: bool,
    ) -> None:
        start = 0 if from_seq == "tail" else from_seq
        if start < 0:
            raise ValueError(f"the events of a stream are counted from 0; from_seq={from_seq}")
        super().__init__(mirrored.log, start, coalesce=coalesce, min_interval=min_interval, unfold=spelled_out)
        self._mirrored = mirrored
        self._begin = begin
        self._tail = from_seq == "tail"
        self._placed = False
        self._owner = owner
        self._any_owner = any_owner

    async def _refill(self) -> None:
        if not self._placed:
            await self._place()
        await super()._refill()

    async def _place(self) -> None:
        """Wait until the first requested event can be read, or until it is certain that this event does not
        exist.
        """
        await self._begin()
        log = self._log
        if self._tail:
            await self._mirrored.settled()
            self._cursor = log.next_seq
            self.seq = self._cursor - 1
        if not self._any_owner:
            await self._check_owner()
        while self._cursor > log.next_seq and not log.closed and not self._closed:
            await log._changed()
        if self._mirrored.stored and self._cursor > 0:
            # The numbers of the log's events have changed, so the reader starts again.
            self._cursor, self._unfold = 0, None
        elif self._cursor > log.next_seq and log.error is None and not self._closed:
            self.close()
            raise ValueError(
                f"stream {self.stream_id} has events 0 to {log.next_seq - 1}; from_seq={self._cursor}"
            )
        self._placed = True

    async def _check_owner(self) -> None:
        """Raise UnknownStream if the stream has another owner. The first frame with events names the owner."""
        log = self._log
        while not log.next_seq and not log.closed and not self._closed:
            await log._changed()
        if log.error is None and log.next_seq and log.owner != self._owner:
            self.close()
            raise unknown_anywhere(self.stream_id)

    def statistics(self) -> ReaderStatistics:
        local = super().statistics()
        return ReaderStatistics(local.seq, max(local.lag, 0), local.delivered, local.resets)


class Mirrors:
    """The mirrors of one node. `announce` publishes the end of a turn of a stream and session to all readers."""

    def __init__(
        self,
        broker: BrokerFrames,
        subjects: Subjects,
        node: str,
        streams: StreamChannel,
        source: TurnSource | None,
        announce: Callable[[str, str, Ending], None],
        timing: Timing,
        now_us: Callable[[], int],
    ) -> None:
        self._now_us = now_us
        self._broker = broker
        self._subjects = subjects
        self._node = node
        self._streams = streams
        self._source = source
        self._announce = announce
        self._timing = timing
        self._mirrored: dict[str, _Mirrored] = {}
        self._group: anyio.abc.TaskGroup | None = None
        broker.on_reconnect(self._reconnected)
        broker.listen(subjects.mirrors(node), self._on_request)

    def attach(
        self,
        stream_id: str,
        start: Callable[[], Awaitable[None]],
        **arguments: Unpack[ReaderArguments],
    ) -> RemoteReader:
        """A reader of another node's stream. All readers of a stream share one mirror."""
        for other in tuple(self._mirrored.values()):
            if other.follower is None and not other.log.readers:
                self._forget(other)  # the reader was attached and has never read
        mirrored = self._mirrored.get(stream_id)
        if mirrored is None:
            mirrored = self._mirrored[stream_id] = _Mirrored(stream_id, self._streams)
        return RemoteReader(mirrored, partial(self._begin, mirrored, start), **arguments)

    def __len__(self) -> int:
        return len(self._mirrored)

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._mirrored

    async def cancel(self, stream_id: str, owner: str | None = None) -> bool:
        """Request the cancellation of a stream's turn from its node."""
        subject = self._subjects.ask("", stream_id)
        answer = await self._broker.request(subject, encode(AskCancel(stream_id, owner)), ASK_ALL_SECONDS)
        return bool(read_answer(answer, bool))

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                for mirrored in self._mirrored.values():
                    self._work(mirrored)
                await anyio.sleep_forever()
        finally:
            self._group = None

    def close(self) -> None:
        """End all mirrors: their readers get an error."""
        for mirrored in tuple(self._mirrored.values()):
            mirrored.mirror.give_up(
                CallboardError("this engine was closed. The stream continues, and any other node can read it")
            )
            self._forget(mirrored)

    # --- Filling a mirror ---

    async def _begin(self, mirrored: _Mirrored, start: Callable[[], Awaitable[None]]) -> None:
        await start()
        self._work(mirrored)

    def _work(self, mirrored: _Mirrored) -> None:
        if self._group is None or mirrored.follower is not None or mirrored.log.closed:
            return  # `run` starts it later
        new = may_be_new(mirrored.stream_id, self._now_us())
        mirrored.follower = Follower(mirrored.mirror, anyio.current_time(), self._timing, new=new)
        self._group.start_soon(self._fill, mirrored, mirrored.follower, name=f"mirror {mirrored.stream_id}")

    async def _fill(self, mirrored: _Mirrored, follower: Follower) -> None:
        subscription: Subscription | None = None
        try:
            subscription = await self._listen(mirrored)
            while mirrored.is_followed:
                mirrored.notify_settled()
                mirrored.woken = anyio.Event()
                question = follower.question(anyio.current_time())
                if question is None:
                    with anyio.CancelScope(deadline=follower.wake_at):
                        await mirrored.woken.wait()
                    continue
                if subscription is None:
                    subscription = await self._listen(mirrored)
                await self._put(question, mirrored, follower)
            self._forget(mirrored)
        finally:
            mirrored.follower = None
            if subscription is not None:
                with anyio.CancelScope(shield=True):
                    await subscription.unsubscribe()

    async def _listen(self, mirrored: _Mirrored) -> Subscription | None:
        try:
            return await self._broker.subscribe(self._subjects.of_stream(mirrored.stream_id), mirrored.receive)
        except OSError as error:
            _log.info("frames_not_heard", stream_id=mirrored.stream_id, error=str(error))
            return None

    async def _replay(self, mirrored: _Mirrored) -> None:
        try:
            async for payload in self._broker.stored_frames(self._subjects.of_stream(mirrored.stream_id)):
                mirrored.receive("", payload, stored=True)
        except OSError as error:
            _log.info("frames_not_replayed", stream_id=mirrored.stream_id, error=str(error))

    async def _put(self, question: Question, mirrored: _Mirrored, follower: Follower) -> None:
        stream_id = mirrored.stream_id
        if isinstance(question, Replay):
            await self._replay(mirrored)
            follower.replayed(anyio.current_time())
            return
        if isinstance(question, AskOwner):
            ask = AskFrames(stream_id, question.from_seq, self._subjects.mirror(self._node, stream_id))
            subject = self._subjects.ask(question.node, stream_id)
            seconds = ASK_SECONDS if question.node else ASK_ALL_SECONDS
            answer = read_answer(await self._broker.request(subject, encode(ask), seconds), OwnerAnswer)
            follower.owner_answered(answer, anyio.current_time())
            return
        found: StoreAnswer = "nothing"
        if self._source is not None:
            found = await self._source(stream_id, question.session_id, question.node, question.epoch)
        if found == "nothing" and self._broker.connected_seconds < STEADY_SECONDS:
            found = "no answer"  # the owner may not have been reached, or may still be reconnecting
        if isinstance(found, Ending):
            self._announce(stream_id, question.session_id, found)
        mirrored.stored = isinstance(found, Stored) and not mirrored.log.closed
        follower.store_answered(found, anyio.current_time())

    def _forget(self, mirrored: _Mirrored) -> None:
        """Release a mirror. Only a complete stream with its owner's numbers is kept as a stream of this node."""
        self._mirrored.pop(mirrored.stream_id, None)
        mirrored.notify_settled()
        if mirrored.stored or not mirrored.log.closed or mirrored.log.error is not None:
            self._streams.discard(mirrored.stream_id)

    def _on_request(self, subject: str, payload: bytes, reply: str) -> None:
        try:
            stream_id = read_packet(payload).stream_id
        except UnreadableFrame:
            return
        if (mirrored := self._mirrored.get(stream_id)) is not None:
            mirrored.receive(subject, payload, reply)

    def _reconnected(self) -> None:
        for mirrored in self._mirrored.values():
            if mirrored.follower is not None:
                mirrored.follower.reconnected(anyio.current_time())
                mirrored.woken.set()
