"""A conversation's data, and its setup as stored. The data outlives the tasks and actors that work on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from callboard.adapters import ContentBlock, Message, ToolDefinition
from callboard.bus import AdmissionError, Log, SessionConfigured, SessionSetup, SessionTakenOver, StoreError
from callboard.bus.backend import LoopLock
from callboard.bus.values.base import JsonObject
from callboard.tracestore import SavedSession
from callboard.tracestore.rows import NOTHING_SAID

from ..conversation.context import WHOLE, RefusedReasoning
from ..conversation.options import NOTHING, StoredTurnOptions, TurnOptions, merged, stored_turn_options
from ..routing.model_choice import Model, Requirements, stored_model
from ..tools import Tool, ToolLike
from ..tools.collect import collected

if TYPE_CHECKING:
    from ..nodes.frames.retained_turns import RetainedTurns
    from ..nodes.ownership import Ownership


_NO_OPTIONS: TurnOptions = {}


class TurnInProgress(Protocol):
    """The operations on a turn in progress that other parts may use."""

    def cancel(self, why: str = "") -> bool:
        """Request the end of the turn. Returns false if the turn has ended."""

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Add a message of the user. Raises NoTurnRunning."""


class SessionState:
    """A conversation's data.

    Args:
        session_id: The session's id; empty for a conversation that belongs to no session.
        model: The model of the next turn.
        system_prompt: The system prompt of the next turn.
        tools: The tools of the next turn.
        tags: The tags of its calls.
        options: The options of its turns, where a turn doesn't set them itself.
        requires: The abilities that its models must have, in addition to those of a turn.
        name: The session's name, for people.
        forked_from: The id of the session whose history it started with.

    Raises:
        ConfigurationError: Two tools have one name.
        ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
        TypeError: Something is neither a tool nor a function.
    """

    def __init__(
        self,
        session_id: str,
        model: Model,
        system_prompt: str | None,
        tools: Sequence[ToolLike],
        tags: dict[str, str],
        *,
        options: TurnOptions = _NO_OPTIONS,
        requires: Requirements | None = None,
        name: str | None = None,
        forked_from: str | None = None,
    ) -> None:
        self.id = session_id
        self.calls_as = session_id
        """The session of its calls in the trace. A conversation without a session may have one for its calls."""
        self.model = model
        self.options = options
        self.requires = requires
        self.system_prompt = system_prompt
        self.use_tools(tools)
        self.tags = tags
        self.messages: list[Message] = []
        self.name = name
        self.forked_from = forked_from
        self.context = WHOLE
        """The part of the history that the context policy currently sends."""
        self.refused_reasoning = RefusedReasoning()
        self.asked: StoredTurnOptions = NOTHING
        """The options of the last turn with tool calls, for the turn that answers them."""
        self.asked_stored: JsonObject | None = None
        """These options as last published for the store."""
        self.turns = LoopLock()
        """Admits one turn at a time, in the order in which they were requested."""
        self.queue: list[TurnInProgress] = []
        """The turns that have been started and not yet admitted, in the order in which they will run."""
        self.running: TurnInProgress | None = None
        self.announced = False
        """Whether the session's existence was published."""
        self.resumed = False
        """Whether it continues a stored session."""
        self.commits = False
        """Whether each turn ends with a commit, so that other processes find its messages immediately."""
        self.epoch = 0
        """In a cluster, the epoch in which this node has the session; 0 before it has claimed it."""
        self.lost = ""
        """In a cluster, the error text for this session's users once another node has taken it over."""
        self.opening: tuple[object, bytes] | None = None
        """In a cluster, the sources of its setup, and the setup as other nodes get it."""
        self.claimed: int | None = None
        """The seq of the event that makes this engine the session's owner once it is stored.

        None if it isn't published.
        """

    def use_tools(self, tools: Sequence[ToolLike]) -> None:
        """Set the tools of the next turn. The exceptions are those of a new state."""
        self.tools, self.sources = collected(tools)
        self.definitions: tuple[ToolDefinition, ...] = tuple([tool.definition for tool in self.tools])
        """The tools as models see them. The tuple's identity is the key of caches."""
        self.given_tools: Sequence[ToolLike] = tools if self.sources else self.tools
        """The tools as passed, for a fork."""
        self._read: Sequence[tuple[Tool, ...]] = [each.tools for each in self.sources] if self.sources else ()

    def refresh_tools(self) -> bool:
        """Read the tool sources again. Returns whether their tools have changed."""
        if all(source.tools is read for source, read in zip(self.sources, self._read, strict=True)):
            return False
        self.use_tools(self.given_tools)
        return True

    @property
    def waiting(self) -> int:
        """The number of turns in the queue."""
        return len(self.queue)

    def options_for(self, model: Model | None) -> TurnOptions:
        """The options that a turn inherits. A turn with its own model doesn't inherit the fallback."""
        return self.options if model is None else merged({**self.options, "fallback": None})


DEFAULTS = ("temperature", "max_output_tokens", "max_tool_rounds")
"""The options of a session that are stored besides its fallback models."""


def configured(state: SessionState, *, begins: bool = False) -> SessionConfigured:
    """The event with everything that the store needs to restore a session, except its messages."""
    return SessionConfigured(history=len(state.messages), setup=setup_of(state), begins=begins, epoch=state.epoch)


def setup_of(state: SessionState, asked: StoredTurnOptions | None = None) -> SessionSetup:
    asked = state.asked if asked is None else asked
    requires, fallback = state.requires, state.options.get("fallback")
    return SessionSetup(
        model=stored_model(state.model),
        system_prompt=state.system_prompt,
        tools=state.definitions,
        fallback=None if fallback is None else tuple(fallback),
        requires=None if requires is None else msgspec.to_builtins(requires),
        defaults={name: value for name in DEFAULTS if (value := state.options.get(name)) is not None} or None,  # type: ignore[misc]
        asked_with=asked.stored(state.options_for(asked.model)),
    )


# A turn's right to act for its session in a cluster, and the setup that a new owner needs.

_log = Log("engine.ownership")

LARGEST_BYTES = 256 * 1024
"""The largest setup that is sent with each turn, in bytes. Very many tools make it larger."""


class Opening(msgspec.Struct, frozen=True):
    """A whole session except its messages."""

    setup: SessionSetup
    """Its model, system prompt, tools and options."""
    tags: dict[str, str] = {}
    """The tags of its calls."""
    name: str | None = None
    """Its name, for people."""


_decoder = msgspec.msgpack.Decoder(Opening)


def packed_opening(state: SessionState, asked: StoredTurnOptions) -> bytes:
    """A session's setup as bytes; empty if it can't be written. It is cached until it changes."""
    now = (state.model, state.system_prompt, state.tools, state.name, asked)
    if state.opening is None or state.opening[0] != now:
        state.opening = (now, _packed(state, asked))
    return state.opening[1]


def _packed(state: SessionState, asked: StoredTurnOptions) -> bytes:
    try:
        packed = msgspec.msgpack.encode(Opening(setup_of(state, asked), state.tags, state.name))
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError) as error:
        _log.warning("setup_not_framed", session_id=state.id, error=type(error).__name__)
        return b""
    return packed if len(packed) <= LARGEST_BYTES else b""


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


def asked_in(packed: bytes) -> StoredTurnOptions | None:
    """The options of the last turn that a dead owner started; None if they can't be read."""
    saved = saved_of("", packed)
    return None if saved is None or saved.setup is None else stored_turn_options(saved.setup.asked_with)


def in_its_first_turn(saved: SavedSession, kept: RetainedTurns) -> SavedSession:
    """A session whose owner died in its first turn. Its messages are in the frames."""
    turn = kept.unfinished
    started = bool(kept.beyond(0)) or (turn is not None and turn.history == 0)
    if saved.messages or saved.missing != (NOTHING_SAID,) or not started:
        return saved
    return msgspec.structs.replace(saved, missing=())


# --- The right of one turn ---


_ASK_SECONDS = 0.25


class TurnLease:
    """A turn's right to act.

    If the node's lease never expired, no check is needed. After an expiry another node may own the session, and
    may have ended the turn for its readers.

    Args:
        ownership: The node's ownership.
        state: The session.
        stream_id: The turn.
    """

    def __init__(self, ownership: Ownership, state: SessionState, stream_id: str) -> None:
        self._ownership = ownership
        self._state = state
        self._stream_id = stream_id
        self._breaks = ownership.holding.breaks

    async def require(self) -> None:
        """Return if the turn may continue. Raises SessionTakenOver or AdmissionError."""
        if self._state.lost:
            raise SessionTakenOver(self._state.lost)
        await self._ownership.require(self._state.id, self._state.epoch)

    async def confirm(self) -> None:
        """Return if this turn may report how it ended. It retries for the length of a lease.

        Raises SessionTakenOver.
        """
        ownership, state = self._ownership, self._state
        if ownership.holding.breaks == self._breaks and ownership.holds(state.id, state.epoch):
            return
        if not await self._asked(self.require):
            raise SessionTakenOver(
                f"can't read from the shared store whether this node still owns session {state.id!r}. The "
                "messages of this turn are stored. They belong to the session if no other node has continued it"
            )
        ending = await ownership.tables.ending(self._stream_id)
        if ending is not None:
            raise SessionTakenOver(f"another node has ended this turn of session {state.id!r} as {ending.status}")

    async def is_ended_elsewhere(self) -> bool:
        """Whether another node has reported how this lost turn ended.

        If none has, this reports an unknown outcome.
        """
        ownership, state = self._ownership, self._state
        try:
            ending = await ownership.end_of_turn(
                self._stream_id, state.id, ownership.info.node, state.epoch, "outcome_unknown"
            )
        except StoreError:
            return False
        return ending is not None and ending.decided_by != ownership.info.node

    async def _asked(self, ask: Callable[[], Awaitable[None]]) -> bool:
        """Repeat the request until an answer arrives, at most for one lease. Returns whether one arrived."""
        until = anyio.current_time() + self._ownership.info.lease_seconds
        while True:
            try:
                await ask()
            except (AdmissionError, StoreError):
                if anyio.current_time() >= until:
                    return False
                await anyio.sleep(_ASK_SECONDS)
            else:
                return True
