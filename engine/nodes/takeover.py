"""The sessions of a node: how they are claimed, taken over from other nodes, and deleted on all nodes.

If the last owner released a session, the shared store has all of its messages. If the owner died, messages that
are only in frames are added to the stored history, and the interrupted turn ends with the status
`outcome_unknown`. No model is called again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator

import anyio

from callboard.bus import AdmissionError, Bus, CallboardError, Log, SessionTakenOver, StoreError
from callboard.tracestore import Store
from callboard.tracestore.nodes import Owner

from ..runtime.adapters import Host
from ..sessions.open import OpenSessions, Restored, SessionState, TurnRight, require_nothing_lost, show_costs
from .frame_sender import Frames
from .ownership import Ownership
from .retained_turns import RetainedTurns, in_its_first_turn, options_in, saved_of

_log = Log("engine.ownership")

_ASK_SECONDS = 0.25
"""Seconds between two attempts of a turn to confirm its permission."""


class TurnLease(TurnRight):
    """A turn's permission to act for a session that other nodes may take over.

    If the node's lease never expired, no check is needed. After the lease has expired, another node may own the
    session and may have published the turn's end.
    """

    may_be_lost = True

    def __init__(self, ownership: Ownership, state: SessionState, stream_id: str) -> None:
        self._ownership = ownership
        self._state = state
        self._stream_id = stream_id
        self._breaks = ownership.holding.breaks

    async def require(self) -> None:
        if self._state.lost:
            raise SessionTakenOver(self._state.lost)
        await self._ownership.require(self._state.id, self._state.epoch)

    async def confirm(self) -> None:
        """Return if this turn may publish its end. If the store fails, the check is repeated for the length of a
        lease.

        Raises SessionTakenOver.
        """
        ownership, state = self._ownership, self._state
        if ownership.holding.breaks == self._breaks and ownership.holds(state.id, state.epoch):
            return
        until = anyio.current_time() + ownership.info.lease_seconds
        while True:
            try:
                await self.require()
                break
            except (AdmissionError, StoreError) as error:
                if anyio.current_time() >= until:
                    raise SessionTakenOver(
                        f"can't read from the shared store whether this node still owns session {state.id!r}. The "
                        "messages of this turn are stored. They belong to the session if no other node has "
                        "continued it"
                    ) from error
                await anyio.sleep(_ASK_SECONDS)
        ending = await ownership.tables.ending(self._stream_id)
        if ending is not None:
            raise SessionTakenOver(f"another node has ended this turn of session {state.id!r} as {ending.status}")

    async def is_ended_elsewhere(self) -> bool:
        """Whether another node has reported how this lost turn ended.

        If no node has, this ends the turn with the status `outcome_unknown`.
        """
        ownership, state = self._ownership, self._state
        try:
            ending = await ownership.end_of_turn(self._stream_id, state.id, ownership.info.node, state.epoch)
        except StoreError:
            return False
        return ending is not None and ending.decided_by != ownership.info.node


class SharedSessions(OpenSessions):
    """The open sessions of a node. Other nodes find them in the shared store.

    If the content of sessions is not stored (`captures`), no other node can continue a session, so sessions are
    not claimed. `frames` is None without a broker.
    """

    commits = False

    def __init__(
        self,
        bus: Bus,
        store: Store | None,
        host: Host,
        *,
        captures: bool,
        ownership: Ownership,
        shared_trace: Callable[[], Awaitable[Store]],
        delete_shared: Callable[[str], Awaitable[bool]],
        frames: Frames | None,
    ) -> None:
        super().__init__(bus, store, host, captures=captures)
        self._ownership = ownership
        self._node = ownership.info.node
        self._shared_trace = shared_trace
        self._delete_shared = delete_shared
        self._frames = frames
        self._opening: set[str] = set()
        ownership.local = self

    def announce(self, state: SessionState, *, begins: bool = True) -> None:
        """Publish that a session exists. It must be claimed first."""
        if state.epoch or not self._captures:
            super().announce(state, begins=begins)

    async def trace(self) -> Store:
        return await self._shared_trace()

    async def claim_new(self, state: SessionState) -> None:
        if self._captures and state.id and not state.epoch:
            state.epoch = (await self._ownership.claim(state.id, waits=False)).epoch
            self.announce(state)

    async def require_own(self, state: SessionState) -> None:
        if not self._captures:
            await super().require_own(state)
        elif state.lost:
            raise SessionTakenOver(state.lost)
        elif state.epoch:
            await self._ownership.require(state.id, state.epoch)
        else:
            await self.claim_new(state)

    async def admit_turn(self, state: SessionState, turn_id: str) -> TurnRight:
        """Let a turn start, but only if this node owns the session. Returns the turn's permission to act."""
        if not self._captures or not state.id:
            return await super().admit_turn(state, turn_id)
        await self.claim_new(state)
        lease = TurnLease(self._ownership, state, turn_id)
        await lease.require()
        return lease

    # --- Interface for ownership ---

    def is_open(self, session_id: str) -> bool:
        return session_id in self.states or session_id in self._opening

    def is_idle(self, session_id: str) -> bool:
        state = self.states.get(session_id)
        return state is None or (state.running is None and not state.waiting)

    def lose(self, session_id: str, why: str) -> None:
        state = self.states.pop(session_id, None)
        if state is not None:
            state.lost = why
            if state.running is not None:
                state.running.cancel(why)

    async def ship(self) -> bool:
        return await self._host.share()

    # --- Taking over ---

    async def taken_over(
        self, session_id: str, restored: Restored, fresh: Callable[[], SessionState] | None = None
    ) -> SessionState | None:
        """Claim a session of the shared store for this node. Returns its state.

        The state is read after the claim, because the owner may add messages before it. A session without an owner
        must be stored, unless `fresh` allows a new one. This prevents claims for mistyped ids.

        Raises CallboardError, SessionBusy, ConfigurationError, AdmissionError or StoreError.
        """
        if not self._captures:
            return None
        ownership = self._ownership
        with self._opened(session_id):
            if not await self._host.share() and ownership.epoch_of(session_id):
                raise StoreError(f"the messages of session {session_id!r} can't be sent to the shared store")
            store = await self._shared_trace()
            owner = await ownership.tables.owner(session_id)
            if fresh is not None:
                await self._require_known(store, session_id, owner)
            elif owner is None:
                restored(await store.saved_session(session_id))
            claimed = await ownership.claim(session_id, waits=True)
            try:
                saved = await store.saved_session(session_id)
                died = claimed.previous
                if died is None or died.released or died.node == self._node:
                    died = None
                retained = None if died is None else await self._retained(session_id)
                if saved is None and retained is not None and retained.opening:
                    saved = saved_of(session_id, retained.opening)
                if saved is not None and retained is not None:
                    saved = in_its_first_turn(saved, retained)
                if saved is None and fresh is not None and died is None:
                    return await self._resumed_here(store, fresh(), claimed.epoch)
                state = restored(saved)
                await show_costs(store, state)
                state.epoch, state.resumed = claimed.epoch, True
                if died is not None:
                    self.announce(state)
                    await self._continue(state, retained)
                    ended = set() if retained is None else {turn.stream_id for turn in retained.turns}
                    for turn_id in await _open_turns(store, session_id, died.node):
                        if turn_id not in ended:
                            await self._end(session_id, turn_id, died.node, died.epoch)
            except (CallboardError, LookupError, ValueError):
                await ownership.release(session_id)
                raise
            return state

    @contextlib.contextmanager
    def _opened(self, session_id: str) -> Iterator[None]:
        """Reserve a session id while the session is opened. Raises CallboardError if it is taken."""
        if self.is_open(session_id):
            raise CallboardError(f"session {session_id!r} is already open; use the Session you have")
        self._opening.add(session_id)
        try:
            yield
        finally:
            self._opening.discard(session_id)

    async def _require_known(self, store: Store, session_id: str, owner: Owner | None) -> None:
        """Check that a session without stored data is new.

        This is checked before the claim, because the claim replaces the owner.

        Raises CallboardError.
        """
        if owner is None or owner.released or owner.lives or owner.node == self._node:
            return
        retained = await self._retained(session_id)
        if (retained is None or not retained.opening) and await store.saved_session(session_id) is None:
            raise CallboardError(
                f"session {session_id!r} was owned by node {owner.name or owner.node}, which died before it "
                f"shared any message. Start that node again, or call engine.delete_session({session_id!r}) and "
                f"start the session again"
            )

    async def _resumed_here(self, store: Store, state: SessionState, epoch: int) -> SessionState:
        """Publish a claimed session. If possible, it is in the shared store before its first message."""
        require_nothing_lost(state.id, await store.was_answered(state.id))
        state.epoch = epoch
        self.announce(state, begins=False)
        await self._host.share()
        return state

    async def _continue(self, state: SessionState, retained: RetainedTurns | None) -> None:
        """Add a dead owner's messages that are not in the stored history, and end its interrupted turn."""
        if retained is None:
            return
        beyond = retained.beyond(len(state.messages))
        if any(message.tool_uses for message in beyond) and (options := options_in(retained.opening)) is not None:
            self.keep_waiting_options(state, options)
        of_turns = {place: each.stream_id for each in retained.turns for place in each.appended}
        for message in beyond:
            self.append(state, message, of_turns.get(len(state.messages)))
        turn = retained.unfinished
        if turn is None:
            return
        message_ids = {message.id for message in state.messages}
        if turn.history is not None and turn.history <= len(state.messages):
            for message in turn.unanswered:
                if message.id not in message_ids:
                    self.append(state, message, turn.stream_id)
        await self._end(state.id, turn.stream_id, turn.node, turn.epoch)

    async def _retained(self, session_id: str) -> RetainedTurns | None:
        """The content of a session's frames; None without a broker, or if the broker can't be reached."""
        if self._frames is None:
            return None
        try:
            return await self._frames.retained_turns(session_id)
        except OSError as error:
            _log.warning("frames_not_read", session_id=session_id, error=str(error))
            return None

    async def _end(self, session_id: str, turn_id: str, run_by: str, epoch: int) -> None:
        """Decide how a turn ended, and publish its end to readers."""
        ending = await self._ownership.ending_of(turn_id, session_id, run_by, epoch)
        if ending is not None and self._frames is not None:
            self._frames.sender.announce(turn_id, session_id, ending)

    # --- Deleting ---

    async def delete_stored(self, session_id: str) -> bool:
        """Delete a session here and in the shared store.

        This node claims the session first, so that no other node continues it.
        """
        ownership = self._ownership
        has_owner = await ownership.tables.owner(session_id) is not None
        before = ownership.epoch_of(session_id)
        if has_owner and not before:
            await ownership.claim(session_id, waits=False)
        try:
            here = await super().delete_stored(session_id)
            shared = await self._delete_shared(session_id)
            ownership.deleted(session_id)
            return here or shared
        finally:
            if not before:
                await ownership.release(session_id)


async def _open_turns(store: Store, session_id: str, run_id: str) -> list[str]:
    """The turns of a session that a run started and did not end, according to the store."""
    events = await store.events(run_id=run_id, session_id=session_id, topic="session.turn_*", limit=None)
    started = dict.fromkeys(each.turn_id for each in events if each.topic == "session.turn_started")
    for each in events:
        if each.topic == "session.turn_completed":
            started.pop(each.turn_id, None)
    return [turn_id for turn_id in started if turn_id is not None]
