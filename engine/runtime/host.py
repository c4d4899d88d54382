"""The part of an engine that lives on an event loop, as its other parts see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from callboard.bus import Cost, Envelope, ShutdownReport, TaskHandle

from ..conversation.reply import Reply
from ..models.entries import AdapterEntry
from .running_adapter import RunningAdapter


class Startable(Protocol):
    """A turn, as its host sees it."""

    @property
    def id(self) -> str: ...

    def enter_queue(self) -> None:
        """Take a place among the turns that wait. Raises SessionBusy."""

    def leave_queue(self, error: BaseException) -> None:
        """Give the place back: there is nobody to run this turn."""

    async def run(self) -> Reply:
        """The assistant's last message."""


class Host(Protocol):
    """An engine's life: it starts when it is first needed, runs turns and adapters, and ends in order."""

    @property
    def started(self) -> bool:
        """Whether the engine lives on an event loop, or has lived there."""

    @property
    def closed(self) -> bool:
        """Whether the engine has ended; then it never starts again."""

    @property
    def runs_here(self) -> bool:
        """Whether the engine is up and running, on the event loop that asks; then `start` has nothing to do."""

    def require_loop(self, instead: str = "") -> None:
        """Check that no other event loop than the engine's own runs here.

        Args:
            instead: A hint for the error's text, if there is another way.

        Raises:
            WrongLoop: Another event loop runs here.
        """

    async def aclose(self) -> ShutdownReport | None:
        """End in order, see `Engine.aclose`."""

    async def start(self) -> None:
        """Live, and be ready. Raises CallboardError, WrongLoop, StoreError."""

    async def watch_commits(self, callback: Callable[[Sequence[Envelope]], object]) -> None:
        """Have a function called with the events of each commit to the trace. Raises what `start` raises."""

    async def start_turn(self, turn: Startable) -> TaskHandle[Reply]:
        """Run a turn in a task of its own. Raises SessionBusy, ActorStopped, and what `start` raises."""

    async def admit(self) -> None:
        """Return when a turn may begin. Raises AdmissionError."""

    async def secure(self, turn_id: str | None = None, *, last: bool = False) -> None:
        """Return when what was published survives the end of this process, as far as it can.

        Args:
            turn_id: The turn that waits, which may do so for a limited time in all; None is a call without one.
            last: Whether the turn ends.
        """

    def secure_now(self) -> None:
        """See to it that what was published survives the end of this process, without letting others run."""

    async def flush(self) -> None:
        """Return when everything published so far is committed to the trace. Raises StoreError."""

    async def share(self) -> bool:
        """Return whether everything published so far is in the shared store, as soon as that is known."""

    async def settle(self) -> bool:
        """Like `flush`. Returns whether what earlier processes had to leave is in the trace now, too."""

    def spawn(self, work: Callable[[], Awaitable[object]], *, name: str) -> None:
        """Run something beside the turns. Nothing happens before the start."""

    async def show_costs(self, costs: Mapping[str, Cost]) -> None:
        """Show these costs in the live histories, by the request_id of a call."""

    async def start_adapter(self, entry: AdapterEntry) -> RunningAdapter:
        """An adapter's actor at work. Raises what its start raised."""

    async def revive_adapter(self, running: RunningAdapter) -> None:
        """Start an actor afresh that had given up. Raises what its start raised."""

    def retire(self, running: RunningAdapter) -> None:
        """Stop an adapter when nobody uses it any more."""
