"""For a takeover: the messages that are in a session's stored frames, but not in its stored history.

When an owner dies, the shared store may lack messages: the user's, completed replies, and the text of the reply in
progress. All of them were sent in frames before any reader received them. `retained_turns` is pure: it converts
frames in any order to messages. `answer_of_store` answers a reader of an ended turn from the shared store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec

from callboard.adapters.replies.whole import content_events
from callboard.adapters.requests.estimate import estimate_request, rates_for
from callboard.bus import (
    Envelope,
    Log,
    Message,
    Role,
    SessionMessageAppended,
    SessionSetup,
    SessionTurnCompleted,
    StopReason,
    StoreError,
    StreamLog,
    TurnStatus,
)
from callboard.bus.streams.channel import OWNER_TAG
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    StepFinish,
    TurnComplete,
    TurnEvent,
    UserMessage,
)
from callboard.bus.values.messages import MessageMetadata, with_whole_calls
from callboard.bus.values.usage import TokenUsage, UsageSource
from callboard.tracestore import CallFilter, SavedSession, Store
from callboard.tracestore.rows import NOTHING_SAID

from ..calls.outcome import NOT_KNOWN
from ..conversation.options import StoredTurnOptions, stored_turn_options
from ..generation.view_events import StreamAccumulator
from ..sessions.open import SessionState, setup_of
from .frames import Beginning, Ending, Frame, Packed, unpack_message
from .mirror import Mirror, StoreAnswer, Stored, started_us

_log = Log("engine.frames")


class RetainedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is reconstructed from the stored frames."""

    stream_id: str
    node: str
    epoch: int
    history: int | None
    """The number of messages before the turn; None if the frame with its start is missing."""
    status: TurnStatus | None
    """How the turn ended; None if the frames contain no end."""
    finished: bool
    """Whether the turn's own node has published the end. False if another node has published it, or no node."""
    opening: bytes
    """The session's setup at the turn's start; empty if the frame with it is missing."""
    appended: dict[int, Message]
    """The messages that the turn had added to the history, by their index."""
    unanswered: tuple[Message, ...]
    """The messages that the turn would have added if it had ended after its last frame.

    They are the user's messages without a reply, and the part of the reply that has arrived. Empty if no part has
    arrived: a turn that fails before that adds no messages.
    """


class RetainedTurns(msgspec.Struct, frozen=True):
    """The messages of a session that its stored frames contain."""

    turns: tuple[RetainedTurn, ...]
    """The turns of the session, the oldest first."""

    @property
    def messages(self) -> dict[int, Message]:
        """The messages of the session's history, by their index.

        A message of a later epoch replaces all messages of earlier epochs from its index on.
        """
        history: dict[int, Message] = {}
        for epoch in sorted({turn.epoch for turn in self.turns}):
            turns = [turn for turn in self.turns if turn.epoch == epoch]
            places = [place for turn in turns for place in (turn.history, *turn.appended) if place is not None]
            first = min(places, default=None)
            if first is not None:
                history = {place: message for place, message in history.items() if place < first}
            for turn in turns:
                history.update(turn.appended)
        return history

    @property
    def opening(self) -> bytes:
        """The latest setup of the session; empty if no frame has one."""
        last = self._last(turn for turn in self.turns if turn.opening)
        return last.opening if last is not None else b""

    def beyond(self, stored: int) -> tuple[Message, ...]:
        """The messages that directly follow the given number of stored messages."""
        messages = self.messages
        more: list[Message] = []
        while (message := messages.get(stored + len(more))) is not None:
            more.append(message)
        return tuple(more)

    @property
    def unfinished(self) -> RetainedTurn | None:
        """The last turn, if its own node has not published its end."""
        last = self._last(self.turns)
        return last if last is not None and not last.finished else None

    @staticmethod
    def _last(turns: Iterable[RetainedTurn]) -> RetainedTurn | None:
        # The last turn of the highest epoch. The order is reversed, because `max` returns the first.
        return max(reversed(tuple(turns)), key=lambda turn: turn.epoch, default=None)


def retained_turns(frames: Iterable[Frame]) -> RetainedTurns:
    """The messages in the frames of one session.

    Turns are in the order of their start: by the milliseconds in their ids, then by the number of messages before
    them, then by their first frames.
    """
    by_stream: dict[str, _Turn] = {}
    for frame in frames:
        if frame.stream_id not in by_stream:
            by_stream[frame.stream_id] = _Turn(frame.stream_id)
        by_stream[frame.stream_id].take(frame)
    turns = [turn.result() for turn in by_stream.values()]
    return RetainedTurns(
        tuple(sorted(turns, key=lambda turn: (started_us(turn.stream_id) or 0, turn.history or 0)))
    )


class _Turn:
    def __init__(self, stream_id: str) -> None:
        self._log: StreamLog[TurnEvent] = StreamLog(stream_id)
        self._mirror = Mirror(self._log)
        self._node = ""
        self._beginning: Beginning | None = None
        self._appended: dict[int, Packed] = {}
        self._ending: Ending | None = None

    def take(self, frame: Frame) -> None:
        if self._ending is not None or frame.ending is not None:
            self._ending = self._ending or frame.ending  # later frames from the turn's node are ignored
            return
        if frame.epoch >= self._mirror.epoch:
            self._node = frame.node
            self._beginning = frame.beginning or self._beginning
            self._appended.update((each.position, each.message) for each in frame.appended)
        self._mirror.receive(frame)

    def result(self) -> RetainedTurn:
        events = (*self._log.snapshot, *self._log.since(0))
        beginning = self._beginning
        appended = {
            position: message
            for position, packed in sorted(self._appended.items())
            if (message := _message(packed)) is not None
        }
        messages = [] if beginning is None else [one for packed in beginning.said if (one := _message(packed))]
        end = events[-1] if events and isinstance(events[-1], TurnComplete) else None
        return RetainedTurn(
            stream_id=self._log.stream_id,
            node=self._node,
            epoch=self._mirror.epoch,
            history=None if beginning is None else beginning.history,
            opening=b"" if beginning is None else beginning.opening,
            status=end.status if end is not None else self._ending.status if self._ending is not None else None,
            finished=end is not None,
            appended=appended,
            unanswered=()
            if end is not None
            else _unanswered(messages, events, {one.id for one in appended.values()}),
        )


def _unanswered(
    messages: list[Message], events: tuple[TurnEvent, ...], stored_ids: set[str | None]
) -> tuple[Message, ...]:
    accumulator = StreamAccumulator()
    waiting = list(messages)
    start = MessageStart()
    for event in events:
        accumulator.process(event)
        if isinstance(event, UserMessage):
            waiting.append(Message(Role.USER, event.content, id=event.message_id, steers=True))
        elif isinstance(event, MessageStart):
            start = event
    if not accumulator.started or accumulator.message_id in stored_ids or not accumulator.content:
        return ()
    return (*(one for one in waiting if one.id not in stored_ids), _reply(start, accumulator))


def _reply(start: MessageStart, accumulator: StreamAccumulator) -> Message:
    """The part of a reply that has arrived. Data that its node could not publish is unknown."""
    complete = accumulator.complete
    reason = StopReason.ERROR if complete is None else complete.stop_reason
    content = with_whole_calls(accumulator.content, StopReason.ERROR)  # its tool calls were not run here
    model = f"{start.provider}:{start.model}"
    if complete is None:
        estimated = estimate_request((Message(Role.ASSISTANT, content),), (), None, rates_for("", "", model))
        usage = TokenUsage(output_tokens=estimated, source=UsageSource.PARTIAL)
    else:
        usage = complete.usage
    metadata = MessageMetadata(
        provider=start.provider,
        model=model,
        usage=usage,
        cost=NOT_KNOWN,
        stop_reason=reason,
        raw_stop_reason=None if complete is None else complete.raw_stop_reason,
    )
    return Message(Role.ASSISTANT, content, id=start.message_id or None, metadata=metadata)


def _message(packed: Packed) -> Message | None:
    try:
        return unpack_message(packed)
    except (ValueError, TypeError) as error:
        _log.warning("kept_message_unreadable", error=str(error))
        return None


# --- Turns in the shared store ---


_MINUTE_US = 60_000_000


async def answer_of_store(
    trace: Callable[[], Awaitable[Store]],
    ending_of: Callable[[str, str, str, int], Awaitable[Ending | None]],
    stream_id: str,
    session_id: str,
    node: str,
    epoch: int,
) -> StoreAnswer:
    """The stored state of a turn. If it isn't stored, `ending_of` decides how a dead node's turn ended."""
    try:
        found = await stored_turn(await trace(), stream_id, session_id)
        if found is not None:
            return found
        return await ending_of(stream_id, session_id, node, epoch) or "alive" if node else "nothing"
    except StoreError as error:
        _log.warning("turn_not_looked_up", stream_id=stream_id, error=str(error))
        return "no answer"


async def stored_turn(store: Store, stream_id: str, session_id: str = "") -> Stored | None:
    """The events of a completed turn, with whole messages; None if it isn't stored.

    A turn has two ends if its node died after the end, but before the end was shipped or sent in a frame. Then the
    end that another node published is used.
    """
    started_at = started_us(stream_id)
    # a minute earlier, because clocks differ
    since = None if started_at is None else max(started_at - _MINUTE_US, 0)
    if not session_id:
        calls = await store.calls(CallFilter(turn_id=stream_id, since=since), limit=1)
        session_id = (calls[0].session_id if calls else None) or ""
    if not session_id:
        return None
    history = await store.events(session_id=session_id, topic="session.*", since=since, limit=None)
    events_of_turn = [envelope for envelope in history if envelope.turn_id == stream_id]
    ends = [envelope.data for envelope in events_of_turn if isinstance(envelope.data, SessionTurnCompleted)]
    if not ends:
        return None
    by_id = {message.id: message for message in await store.messages(session_id) if message.id is not None}
    spelled = tuple(_spelled(events_of_turn, by_id))
    end = next((each for each in ends if each.status == "outcome_unknown"), ends[-1])
    if not spelled:
        return None
    saved = await store.saved_session(session_id)
    owner = None if saved is None else saved.tags.get(OWNER_TAG)
    return Stored((*spelled, TurnComplete(end.status, end.error)), owner)


def _spelled(events_of_turn: Iterable[Envelope], by_id: dict[str, Message]) -> Iterator[TurnEvent]:
    step = 0
    for envelope in events_of_turn:
        if not isinstance(envelope.data, SessionMessageAppended):
            continue
        message = by_id.get(envelope.message_id or "")
        if message is None:
            continue
        if message.role is Role.ASSISTANT:
            yield from _reply_events(message, step)
            step += 1
        elif message.steers:
            yield UserMessage(message.content, message.id or "")


def _reply_events(message: Message, step: int) -> Iterator[TurnEvent]:
    message_id, about = message.id or "", message.metadata
    reason = StopReason.END_TURN if about is None else about.stop_reason
    usage = TokenUsage(source=UsageSource.ESTIMATED) if about is None else about.usage
    served = ("", "") if about is None else (about.model.partition(":")[2], about.provider)
    yield MessageStart(message_id, *served, () if about is None else about.warnings)
    yield from content_events(message_id, message.content)
    yield MessageComplete(
        message.content, reason, None if about is None else about.raw_stop_reason, usage, message_id
    )
    yield StepFinish(step, reason, usage, None if about is None else about.cost, message_id)


# --- The setup of a session, as a new owner needs it ---


LARGEST_SETUP_BYTES = 256 * 1024
"""The maximum size of a setup that is sent with each turn, in bytes. Only a session with very many tools exceeds
it.
"""


class Opening(msgspec.Struct, frozen=True):
    """A session without its messages."""

    setup: SessionSetup
    tags: dict[str, str] = {}
    name: str | None = None


_decoder = msgspec.msgpack.Decoder(Opening)


def packed_opening(state: SessionState, options: StoredTurnOptions) -> bytes:
    """Encode a session's setup; empty if that is not possible. The result is cached until the setup changes."""
    now = (state.model, state.system_prompt, state.tools, state.name, options)
    if state.opening is None or state.opening[0] != now:
        try:
            packed = msgspec.msgpack.encode(Opening(setup_of(state, options), state.tags, state.name))
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError) as error:
            _log.warning("setup_not_framed", session_id=state.id, error=type(error).__name__)
            packed = b""
        state.opening = (now, packed if len(packed) <= LARGEST_SETUP_BYTES else b"")
    return state.opening[1]


def saved_of(session_id: str, packed: bytes) -> SavedSession | None:
    """A session without messages, as if read from a store; None if the bytes can't be read."""
    try:
        opening = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError):
        return None
    return SavedSession(
        session_id=session_id,
        setup=opening.setup,
        withheld=None,
        tags=dict(opening.tags),
        name=opening.name,
        messages=(),
        missing=(),
    )


def options_in(packed: bytes) -> StoredTurnOptions | None:
    """Decode the options of the last turn that a dead owner started; None if they can't be read."""
    saved = saved_of("", packed)
    return None if saved is None or saved.setup is None else stored_turn_options(saved.setup.asked_with)


def in_its_first_turn(saved: SavedSession, retained: RetainedTurns) -> SavedSession:
    """A session whose owner died in its first turn, so that its messages are only in the frames."""
    turn = retained.unfinished
    started = bool(retained.beyond(0)) or (turn is not None and turn.history == 0)
    if saved.messages or saved.missing != (NOTHING_SAID,) or not started:
        return saved
    return msgspec.structs.replace(saved, missing=())
