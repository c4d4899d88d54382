"""The owner's side: it sends the events of its streams, and answers requests about them.

A log with new events is marked. The frames of all marked logs are made together, at most once in `frame_seconds`.
So an idle stream needs no CPU time, and a busy stream only a list append for each delta, as without a cluster.
`Frames` joins this side with the readers' side.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Unpack

import anyio
import msgspec

from callboard.bus import Log, Message, StreamChannel, StreamLog, StreamReader
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.bus.streams.events import TurnComplete, TurnEvent

from ..conversation.options import StoredTurnOptions
from ..runtime.alone import LocalStreams, ReaderArguments
from ..sessions.open import SessionState
from .broker_streams import BrokerFrames
from .frames import (
    Appended,
    AskCancel,
    AskFrames,
    Assembly,
    Beginning,
    Ending,
    Frame,
    OwnerAnswer,
    Subjects,
    UnreadableFrame,
    chunks,
    encode,
    pack_message,
    packets,
    read_ask,
)
from .mirror import Timing
from .mirrors import Mirrors, TurnSource
from .retained_turns import RetainedTurns, packed_opening, retained_turns

# --- Making and sending frames ---

_UNBOUNDED = 1 << 62


class Framer:
    """Makes the frames of one stream, of about `most_bytes` each. Without a session, `session_id` is empty."""

    def __init__(
        self,
        log: StreamLog[TurnEvent],
        session_id: str,
        node: str,
        most_bytes: int,
        cancel: Callable[[], bool] = lambda: False,
    ) -> None:
        self.log = log
        self.cancel = cancel
        self.session_id = session_id
        self.epoch = 0
        """The epoch under which this node owns the session."""
        self._node = node
        self._most_bytes = most_bytes
        self._sent = 0  # the number of events that are already in frames
        self._beginning: Beginning | None = None
        self._appended: list[Appended] = []
        self._appended_sent = 0
        self._beginning_sent = False

    @property
    def over(self) -> bool:
        return self.log.closed and self._sent >= self.log.next_seq

    def begin(self, history: int, messages: Sequence[Message], opening: bytes = b"") -> None:
        """Record the turn's start: the number of messages before it, its messages, the session's setup."""
        self._beginning = Beginning(history, tuple(map(pack_message, messages)), opening)

    def append(self, position: int, message: Message) -> None:
        self._appended.append(Appended(position, pack_message(message)))

    def again(self) -> None:
        """Start again with the first event, because earlier frames may be lost."""
        self._sent = self._appended_sent = 0
        self._beginning_sent = False

    def frames(self) -> Iterator[Frame]:
        """The frames of all unsent events. After this call, these events are treated as sent."""
        beginning = None if self._beginning_sent else self._beginning
        appended = tuple(self._appended[self._appended_sent :])
        self._beginning_sent = self._beginning is not None
        self._appended_sent = len(self._appended)
        frames = self.since(self._sent)
        self._sent = self.log.next_seq
        first = next(frames, None)
        if first is None and (beginning or appended):
            first = self._frame(self._sent, self._sent)
        if first is not None:
            yield msgspec.structs.replace(first, beginning=beginning, appended=appended)
        yield from frames

    def since(self, seq: int) -> Iterator[Frame]:
        """The frames of the events from a number on. The folded part of the log is sent as a snapshot."""
        log = self.log
        folded, events = log.snapshot if seq < log.first_seq else (), log.since(seq)
        first_seq = max(seq, log.first_seq)
        if folded:
            ((entries, _),) = chunks(folded, _UNBOUNDED)
            yield msgspec.structs.replace(self._frame(0, log.first_seq), entries=entries, folded=True)
        for entries, count in chunks(events, self._most_bytes):
            yield msgspec.structs.replace(self._frame(first_seq, first_seq + count), entries=entries)
            first_seq += count

    def _frame(self, first_seq: int, next_seq: int) -> Frame:
        return Frame(
            self.log.stream_id,
            self.session_id,
            self._node,
            self.epoch,
            first_seq,
            next_seq,
            owner=self.log.owner,
        )


_log = Log("engine.frames")

PROMPT = 0.9
"""The fraction of `frame_seconds` after which frames are made. The remaining time is for making them."""

MOST_ENDED = 4096
"""The maximum number of completed streams whose owner is remembered."""


class SendingStatistics(msgspec.Struct, frozen=True):
    """A snapshot of the sent frames."""

    open: int
    frames: int
    bytes: int
    lost: int
    """The number of messages that could not be sent, because the broker was unreachable."""


class FrameSender:
    """Sends the frames of this node's streams.

    `epoch_of` returns the epoch in which this node has a session; 0 if it has none. New events wait at most
    `frame_seconds`, and a frame has about `frame_bytes`.
    """

    def __init__(
        self,
        broker: BrokerFrames,
        subjects: Subjects,
        node: str,
        epoch_of: Callable[[str], int],
        streams: StreamChannel,
        *,
        frame_seconds: float,
        frame_bytes: int,
    ) -> None:
        self._broker = broker
        self._subjects = subjects
        self._node = node
        self._epoch_of = epoch_of
        self._streams = streams
        self.frame_seconds = frame_seconds
        self._frame_bytes = frame_bytes
        self._open: dict[str, Framer] = {}
        self._ended: OrderedDict[str, tuple[str, int]] = OrderedDict()  # session and epoch
        self._news: dict[str, Framer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushed_at = -math.inf
        self._frames = self._bytes = self._lost = 0
        broker.on_reconnect(self.say_again)

    def follow(self, log: StreamLog[TurnEvent], session_id: str, cancel: Callable[[], bool]) -> None:
        framer = self._open[log.stream_id] = Framer(log, session_id, self._node, self._frame_bytes, cancel)
        log.notify(lambda: self._note(framer))

    def begin(self, stream_id: str, history: int, messages: Sequence[Message], opening: bytes = b"") -> None:
        if (framer := self._open.get(stream_id)) is not None:
            framer.begin(history, messages, opening)
            self._note(framer)

    def appended(self, stream_id: str, position: int, message: Message) -> None:
        if (framer := self._open.get(stream_id)) is not None:
            framer.append(position, message)
            self._note(framer)

    def announce(self, stream_id: str, session_id: str, ending: Ending) -> None:
        """Publish to all readers how a turn with a lost owner has ended."""
        frame = Frame(stream_id, session_id, self._node, ending.epoch, 0, 0, ending=ending)
        self._send(self._subjects.stream(stream_id, session_id), [frame])

    # --- Next steps ---

    def say_again(self) -> None:
        """Send all open streams again, because frames may have been lost."""
        for framer in self._open.values():
            framer.again()
            self._note(framer)

    def flush(self) -> None:
        self._flushed_at = asyncio.get_running_loop().time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        news, self._news = self._news, {}
        for framer in news.values():
            self._try_to_publish(framer)

    def say_now(self, stream_id: str) -> bool:
        """Send the new events of one stream immediately. Returns whether the stream is one of this node's."""
        self._news.pop(stream_id, None)
        if (framer := self._open.get(stream_id)) is None:
            return False
        self._try_to_publish(framer)
        return True

    def statistics(self) -> SendingStatistics:
        return SendingStatistics(open=len(self._open), frames=self._frames, bytes=self._bytes, lost=self._lost)

    def _note(self, framer: Framer) -> None:
        self._news[framer.log.stream_id] = framer
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._flushed_at + self.frame_seconds * PROMPT, self.flush)

    def _try_to_publish(self, framer: Framer) -> None:
        stream_id = framer.log.stream_id
        try:
            self._say(stream_id, framer)
        except Exception as error:  # an error in one stream must not stop the others
            _log.error("frames_not_made", stream_id=stream_id, error=f"{type(error).__name__}: {error}")
            self._open.pop(stream_id, None)

    def _say(self, stream_id: str, framer: Framer) -> None:
        session_id, log = framer.session_id, framer.log
        if not log.closed:
            log.notify(lambda: self._note(framer))
        if not self._is_ours(framer):
            if log.closed:
                self._open.pop(stream_id, None)
            return  # the session's new owner publishes how the turn ended
        self._send(self._subjects.stream(stream_id, session_id), framer.frames())
        if framer.over:
            self._open.pop(stream_id, None)
            self._ended[stream_id] = (session_id, framer.epoch)
            if len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)

    def _is_ours(self, framer: Framer) -> bool:
        """Whether the session still belongs to this node in the turn's epoch.

        The end of a turn that ended on this node is always sent, even if the session was handed over after the
        end.
        """
        epoch = self._epoch_of(framer.session_id) if framer.session_id else 0
        framer.epoch = framer.epoch or epoch
        if framer.epoch == epoch:
            return True
        end = framer.log.since(framer.log.next_seq - 1)
        return bool(end) and isinstance(end[0], TurnComplete) and end[0].status != "outcome_unknown"

    def _send(self, subject: str, frames: Iterable[Frame]) -> None:
        publish, most_bytes = self._broker.publish, self._broker.most_bytes
        for frame in frames:
            self._frames += 1
            for packet in packets(frame, most_bytes):
                self._bytes += len(packet)
                if not publish(subject, packet):
                    self._lost += 1

    def answer(self, _subject: str, payload: bytes, reply: str) -> None:
        """Answer a request if the stream belongs to this node. Otherwise another node may answer."""
        ask = read_ask(payload)
        if ask is None or not reply or not self._speaks_for(ask.stream_id):
            return
        match ask:
            case AskCancel(stream_id=stream_id, owner=owner):
                framer = self._open.get(stream_id)
                is_theirs = framer is not None and owner in (None, framer.log.owner)
                self._broker.publish(reply, encode(framer is not None and is_theirs and framer.cancel()))
            case AskFrames():
                self._answer(ask, reply)

    def _speaks_for(self, stream_id: str) -> bool:
        if (framer := self._open.get(stream_id)) is not None:
            return self._is_ours(framer)
        return stream_id in self._ended and stream_id in self._streams

    def _answer(self, ask: AskFrames, reply: str) -> None:
        framer = self._open.get(ask.stream_id)
        if framer is None:
            log = self._streams.log(ask.stream_id)
            session_id, epoch = self._ended[ask.stream_id]
            framer = Framer(log, session_id, self._node, self._frame_bytes)
            framer.epoch = epoch
        self._broker.publish(reply, encode(OwnerAnswer(self._node, framer.log.next_seq)))
        self._send(ask.to, framer.since(ask.from_seq))


# --- Both sides of a node ---


class Frames(LocalStreams):
    """The streams of one node: sends the frames of its own streams, and receives frames for its readers.

    Readers wait `patience` seconds for frames from an owner that may be dead. `source` is None without a store.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        broker: BrokerFrames,
        streams: StreamChannel,
        epoch_of: Callable[[str], int],
        source: TurnSource | None,
        now_us: Callable[[], int] = SYSTEM_CLOCK.now_us,
        *,
        patience: float,
        frame_seconds: float,
        frame_bytes: int,
    ) -> None:
        subjects = Subjects(cluster)
        self.sender = FrameSender(
            broker,
            subjects,
            node,
            epoch_of,
            streams,
            frame_seconds=frame_seconds,
            frame_bytes=frame_bytes,
        )
        timing = Timing(patience=patience)
        self.mirrors = Mirrors(broker, subjects, node, streams, source, self.sender.announce, timing, now_us)
        self._streams = streams
        self._broker = broker
        self._subjects = subjects
        for asked in (node, ""):
            broker.listen(subjects.ask_pattern(asked), self.sender.answer)

    # --- Interface for turns and readers ---

    def follow(self, log: StreamLog[TurnEvent], session_id: str, cancel: Callable[[], bool]) -> None:
        self.sender.follow(log, session_id, cancel)

    def begin(
        self, turn_id: str, state: SessionState, options: StoredTurnOptions, messages: Sequence[Message]
    ) -> None:
        opening = packed_opening(state, options) if state.epoch else b""
        self.sender.begin(turn_id, len(state.messages), messages, opening)

    def appended(self, turn_id: str, position: int, message: Message) -> None:
        self.sender.appended(turn_id, position, message)

    def attach(
        self,
        stream_id: str,
        begin: Callable[[], Awaitable[None]],
        **arguments: Unpack[ReaderArguments],
    ) -> StreamReader[TurnEvent] | None:
        if stream_id in self._streams and stream_id not in self.mirrors:
            return None
        return self.mirrors.attach(stream_id, begin, **arguments)

    async def cancel(self, turn_id: str, owner: str | None) -> bool:
        return await self.mirrors.cancel(turn_id, owner)

    # --- Stored frames ---

    async def retained_turns(self, session_id: str) -> RetainedTurns:
        """The messages in the stored frames of a session, for the node that takes the session over."""
        return await self._retained(self._subjects.of_session(session_id))

    async def delivered(self, stream_id: str, message_id: str) -> int:
        """The number of output tokens of a message that are in the stored frames; 0 if there are none."""
        for turn in (await self._retained(self._subjects.of_stream(stream_id))).turns:
            for message in (*turn.unanswered, *turn.appended.values()):
                if message.id == message_id and message.metadata is not None:
                    return message.metadata.usage.output_tokens
        return 0

    async def _retained(self, subject: str) -> RetainedTurns:
        frames: list[Frame] = []
        assembly = Assembly()
        async for payload in self._broker.stored_frames(subject):
            try:
                frame = assembly.frame(payload)
            except UnreadableFrame:
                continue
            if frame is not None:
                frames.append(frame)
        return retained_turns(frames)

    async def forget(self, session_id: str) -> None:
        await self.drain()
        await self._broker.forget(self._subjects.of_session(session_id))

    async def hand_over(self, stream_id: str) -> None:
        """Send the end of a stream before its session is handed over, so that the end arrives even if this process
        dies.
        """
        if self.sender.say_now(stream_id):
            with anyio.CancelScope(shield=True):
                await self._broker.let_go()

    async def run(self) -> None:
        """Fill mirrors until cancelled, and make the broker store frames."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._broker.run)
            group.start_soon(self.mirrors.run)

    async def drain(self) -> None:
        """Send all events of ended streams."""
        self.sender.flush()
        await self._broker.drain()

    async def close(self) -> None:
        self.mirrors.close()
