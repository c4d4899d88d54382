"""Watching as methods of the engine: what is under way, when something changes, what would be sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from callboard.adapters import ContentBlock, Message
from callboard.bus import CallboardError

from ..conversation.options import TurnOptions, options_among
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from ..sessions.resuming import Wanted, stored_state
from .changes import changes
from .under_way import Watcher, WorkUnderWay

if TYPE_CHECKING:
    from ..sessions.session import Session
    from .preview import RequestPreview


class WatchingMethods:
    """The methods of `Engine` for whoever watches it."""

    _runtime: Runtime

    @cached_property
    def _watcher(self) -> Watcher:
        return Watcher(self._runtime)

    def under_way(self, *, limit: int | None = None) -> WorkUnderWay:
        """The turns and calls that have not ended, with what they have said and cost so far.

        Each event of a stream is looked at once, however often this is asked for.

        Args:
            limit: The largest number of turns and calls to describe; the others are only counted.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        self._runtime.host.require_loop()
        return self._watcher.look(limit)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> bool:
        """Cancel a turn by its id, whoever began it. Its caller gets CancelledError, with the content so far.

        In a cluster the turn may run on any node; then that node is asked.

        Args:
            turn_id: The id of the turn and its stream.
            owner: The owner that the stream must have, as in `attach`; None cancels the turn of any owner.

        Returns:
            False if no such turn of that owner is in progress, or its node does not answer.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        self._runtime.host.require_loop()
        turn = self._watcher.turn(turn_id)
        if turn is not None:
            return (owner is None or turn.log.owner == owner) and turn.cancel()
        frames = self._runtime.frames
        return False if frames is None else await frames.mirrors.cancel(turn_id, owner)

    def changes(self, *, min_interval: float = 0.5) -> AsyncIterator[None]:
        """One item at once, and then one whenever the numbers of the engine may have changed.

        It waits for the bus and, while something is under way, for the streams; an idle engine costs nothing.
        Take `statistics()` or `under_way()` at each item. It ends when the engine is closed.

        Args:
            min_interval: The least time between two items, in seconds.
        """
        return changes(self._runtime.bus, self._runtime.in_flight, min_interval)

    async def preview(
        self,
        session: Session | str,
        content: str | Sequence[ContentBlock] = "…",
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> RequestPreview:
        """The request that a session's next turn would send, as the model's provider would get it.

        Its `losses` say what that model would not be told. The session may be open here, or stored as a whole.
        Nothing is sent, and the session stays as it is. The context policy and middleware are left out.

        Args:
            session: The session, or its id.
            content: What the turn would say, text or blocks.
            model: The model; None is the session's own.
            options: The fields of `TurnOptions` that the turn would be given.

        Raises:
            CallboardError: There is no such session.
            ConfigurationError: No model has that name.
            StoreError: The trace can't be read.
            TypeError: There is no such option.
        """
        from .preview import preview

        runtime = self._runtime
        session_id = session if isinstance(session, str) else session.id
        given = options_among(options, advice={})
        state = runtime.sessions.states.get(session_id)
        if state is None:
            await runtime.host.start()
            state = await stored_state(runtime, Wanted(session_id=session_id, model=model))
        if not content:
            raise CallboardError("a turn says something: the content is empty")
        return preview(runtime, state, model, Message.user(content), given)

    def preview_sync(
        self,
        session: Session | str,
        content: str | Sequence[ContentBlock] = "…",
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> RequestPreview:
        """`preview` for code without an event loop; see `Session.send_sync`.

        Raises:
            WrongLoop: The engine lives on another event loop.
        """
        from ..functions.sync_host import sync_host

        host = sync_host()

        async def shown() -> RequestPreview:
            host.keep(self._runtime.host)
            return await self.preview(session, content, model=model, **options)

        return host.run(shown, name="preview_sync()")
