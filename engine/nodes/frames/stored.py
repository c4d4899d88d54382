"""What the shared store knows of a turn whose owner can't be asked: its messages, or how it was ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

from callboard.adapters.replies.whole import content_events
from callboard.bus import Envelope, Log, Message, Role, SessionMessageAppended, SessionTurnCompleted, StoreError
from callboard.bus.streams.channel import OWNER_TAG
from callboard.bus.streams.events import MessageComplete, MessageStart, StepFinish, TurnComplete, TurnEvent, UserMessage
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, Store

from .follower import StoreAnswer, Stored
from .stream_ids import begun_us
from .wire.frame import Ending

_log = Log("engine.frames")

_MINUTE_US = 60_000_000


class Endings(Protocol):
    """Where it is decided how a turn ended whose node died."""

    async def ending_of(self, stream_id: str, session_id: str, node: str, epoch: int) -> Ending | None:
        """The ending of a turn. It is decided now, if the lease of its node is over.

        Returns:
            None while the turn's node is alive.

        Raises:
            StoreError: Nobody can tell now.
        """


class NothingStored:
    """A cluster without a store."""

    async def turn(self, _stream_id: str, _session_id: str, _node: str, _epoch: int) -> StoreAnswer:
        """Nothing."""
        return "nothing"


class StoredTurns:
    """Turns as the shared store has them.

    Args:
        trace: Gives the store, open.
        endings: Where endings are decided.
    """

    def __init__(self, trace: Callable[[], Awaitable[Store]], endings: Endings) -> None:
        self._trace = trace
        self._endings = endings

    async def turn(self, stream_id: str, session_id: str, node: str, epoch: int) -> StoreAnswer:
        """What is known of a turn, see `mirrors.TurnSource`."""
        try:
            store = await self._trace()
            found = await stored_turn(store, stream_id, session_id)
            if found is not None:
                return found
            if not node:
                return "nothing"
            return await self._endings.ending_of(stream_id, session_id, node, epoch) or "alive"
        except StoreError as error:
            _log.warning("turn_not_looked_up", stream_id=stream_id, error=str(error))
            return "no answer"


async def stored_turn(store: Store, stream_id: str, session_id: str = "") -> Stored | None:
    """The events of a turn that is over, its messages in whole pieces; None if it isn't stored.

    A turn has two ends if its node died between its end and the shipment of that, and no frame told of it: what
    others have decided meanwhile, and said to readers, stands.

    Args:
        store: The store.
        stream_id: The id of the turn and its stream.
        session_id: The turn's session; empty if nobody knows.

    Raises:
        StoreError: The store can't be read.
    """
    begun = begun_us(stream_id)
    since = None if begun is None else max(begun - _MINUTE_US, 0)  # a minute earlier, to be safe
    if not session_id:
        calls = await store.calls(CallFilter(turn_id=stream_id, since=since), limit=1)
        session_id = (calls[0].session_id if calls else None) or ""
    if not session_id:
        return None
    history = await store.events(session_id=session_id, topic="session.*", since=since, limit=None)
    own = [envelope for envelope in history if envelope.turn_id == stream_id]
    ends = [envelope.data for envelope in own if isinstance(envelope.data, SessionTurnCompleted)]
    if not ends:
        return None
    said = {message.id: message for message in await store.messages(session_id) if message.id is not None}
    spelled = tuple(_spelled(own, said))
    end = next((each for each in ends if each.status == "outcome_unknown"), ends[-1])
    if not spelled:
        return None
    saved = await store.saved_session(session_id)
    owner = None if saved is None else saved.tags.get(OWNER_TAG)
    return Stored((*spelled, TurnComplete(end.status, end.error)), owner)


def _spelled(own: Iterable[Envelope], said: dict[str, Message]) -> Iterator[TurnEvent]:
    step = 0
    for envelope in own:
        if not isinstance(envelope.data, SessionMessageAppended):
            continue
        message = said.get(envelope.message_id or "")
        if message is None:
            continue
        if message.role is Role.ASSISTANT:
            yield from _reply(message, step)
            step += 1
        elif message.steers:
            yield UserMessage(message.content, message.id or "")


def _reply(message: Message, step: int) -> Iterator[TurnEvent]:
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
