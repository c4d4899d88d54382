"""`actor.*`: the life of actors under their supervisors."""

from __future__ import annotations

from .envelope import Event


class _ActorEvent(Event, frozen=True, kw_only=True):
    """An event of one actor."""

    actor: str
    """The actor's name in the tree of supervision."""


class ActorStarted(_ActorEvent, frozen=True, kw_only=True, tag="actor.started"):
    """An actor is up."""


class ActorCrashed(_ActorEvent, frozen=True, kw_only=True, tag="actor.crashed"):
    """An actor has crashed, or has failed to start."""

    error: str
    """The type and the text of the exception that it raised."""
    failures: int
    """The number of failures in a row, without healthy uptime between them."""


class ActorRestarted(_ActorEvent, frozen=True, kw_only=True, tag="actor.restarted"):
    """An actor is up again after a failure."""

    restarts: int
    """The number of restarts, this one included."""


class ActorStopped(_ActorEvent, frozen=True, kw_only=True, tag="actor.stopped"):
    """An actor has ended, and will not be restarted."""

    reason: str
    """The reason why it ended, in words."""


ActorStoppedEvent = ActorStopped
"""The name by which `bus` offers the event, beside the exception `ActorStopped`."""


class ActorEscalated(_ActorEvent, frozen=True, kw_only=True, tag="actor.escalated"):
    """The supervisor gave up on an actor and handed the failure to its own parent."""

    reason: str
    """The reason why the supervisor gave up, in words."""
