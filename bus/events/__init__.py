"""Events and their envelopes. The modules of this package have the events that Callboard publishes."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all events. Subclass with ``tag="<topic>"`` to publish your own."""

    SCHEMA: ClassVar[int] = 1
    """The version of the fields; stored with the event unless it is 1."""

    @classmethod
    def topic_of(cls) -> str:
        """The topic that this type of event is published under. Raises TypeError if it has none."""
        tag = cls.__struct_config__.tag
        if not isinstance(tag, str):
            raise TypeError(f"{cls.__name__} has no topic: declare it with tag='...'")
        return tag

    @property
    def type(self) -> str:
        """The topic. Stream events have a field of the same name."""
        return self.topic_of()


class UnknownEvent(Event, frozen=True, kw_only=True, tag="unknown"):
    """A stored event with a topic that this version does not support."""

    topic: str
    """The event's own topic."""
    raw: msgspec.Raw
    """The event's JSON, as stored."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An event with its order, its time, and the session, turn and request that it belongs to."""

    seq: int
    """The event's number on its bus: from 1, without a gap."""
    run_id: str
    """The id of the bus."""
    ts_us: int
    """The time in microseconds since the epoch, UTC."""
    mono_ns: int
    """A monotonic time in nanoseconds. Only differences are meaningful."""
    data: Event
    """The event."""
    session_id: str | None = None
    """The session that the event belongs to; None if it belongs to none."""
    turn_id: str | None = None
    """The turn that the event belongs to; None if it belongs to none."""
    request_id: str | None = None
    """The request that the event belongs to; None if it belongs to none."""
    attempt: int | None = None
    """The number of the request's attempt, from 1."""
    message_id: str | None = None
    """The message that the event belongs to; None if it belongs to none."""
    caused_by: str | None = None
    """The earlier request that caused this one: the failed request before a fallback, the request whose reply
    called tools, or the request that created the job.
    """
    tags: dict[str, str] | None = None
    """The tags of the session or the call."""

    @property
    def topic(self) -> str:
        """The topic that the event was published under, also if this version does not support it."""
        return self.data.topic if isinstance(self.data, UnknownEvent) else type(self.data).topic_of()

    @property
    def event_id(self) -> str:
        """A globally unique identifier, which makes storing an event twice harmless."""
        return f"{self.run_id}-{self.seq}"
