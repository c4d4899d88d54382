"""Replies in the background as methods of the engine. What takes them up is imported by the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from ..conversation.options import TurnOptions
from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from callboard.tracestore import OpenReply

    from ..conversation.results import GenerateResult
    from ..generation.streaming import StreamResult


class BackgroundMethods:
    """The methods of `Engine` for replies that a provider makes in the background."""

    _runtime: Runtime

    async def open_replies(self, session_id: str | None = None) -> list[OpenReply]:
        """The replies that were asked for with ``background=True`` by processes that have ended since.

        The provider goes on with them, or has finished them. The oldest comes first. Each can be taken up: a
        session's by `Session.take_up`, any other by `take_up`.

        Args:
            session_id: A session; None is all, and calls without one.

        Raises:
            StoreError: The trace can't be read, or what an earlier process left beside it.
        """
        from .taking_up import open_replies

        return await open_replies(self._runtime, session_id)

    async def take_up(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> GenerateResult:
        """Wait for a reply that another process has asked for, without asking for it again.

        It is the same call in the trace, which gets its end now, priced as of its beginning. The exceptions are
        those of `generate`.

        Args:
            reply: The reply, as `open_replies` gives it.
            options: The options of the turn, such as `call_timeout_seconds`.

        Raises:
            OutcomeUnknownError: The provider doesn't know the reply any more.
        """
        from ..conversation.turn import own
        from ..generation.arguments import result_of
        from .taking_up import turn_of_reply

        turn = turn_of_reply(self._runtime, reply, options, streamed=False)
        await own(turn, await self._runtime.host.start_turn(turn))
        return result_of(turn)

    def take_up_stream(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> StreamResult:
        """`take_up`, streamed: from the reply's first word on, and then as it comes."""
        from ..generation.streaming import StreamResult
        from .taking_up import turn_of_reply

        return StreamResult(self._runtime, turn_of_reply(self._runtime, reply, options, streamed=True))
