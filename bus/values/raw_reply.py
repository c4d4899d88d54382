"""A reply as its provider sent it, which is kept only where somebody asks for it."""

from __future__ import annotations

from .json import Json
from .shown import Shown


class RawReply(Shown, frozen=True, kw_only=True, gc=False):
    """What a provider sent for one reply. What can't be read as JSON stands here as text."""

    body: Json = None
    """The body of a reply that came whole; None if the reply was streamed."""
    events: tuple[Json, ...] = ()
    """The data of the events of a streamed reply, in their order."""
    left_out: int = 0
    """The number of events, or of bodies, that were not kept because the reply is too large."""
