"""What a gateway stores: its clients with their keys, and what it keeps of conversations."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

ClientWindow: TypeAlias = Literal["hour", "day", "month"]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client of the gateway."""

    name: str
    """The name, which is also the value of the tag ``client`` in the trace."""
    budget_nano_usd: int | None = None
    """The most that it may spend in a window, in nano-USD; None is no limit."""
    window: ClientWindow | None = None
    """The window of the budget; None never starts again from zero."""
    zone: str = "UTC"
    """The time zone of the window, by its IANA name."""
    models: tuple[str, ...] = ()
    """The patterns of the model names that it may send, such as ``claude-*``. Empty is all."""
    requests_per_minute: int | None = None
    """The most requests in any minute; None is no limit."""
    tokens_per_minute: int | None = None
    """The most tokens of input and output in any minute; None is no limit."""
    unpriced: Literal["refuse", "allow"] | None = None
    """The action for calls of unknown price. None refuses them if there is a budget."""
    created_us: int = 0
    """The time when it was added, in microseconds since the epoch."""
    revoked_us: int | None = None
    """The time when it was revoked; None while it may call."""
