"""The keys that rest because a provider refused or limited them: a state machine without a clock of its own.

A key, or a key for one model, is in one of three states:

    ready      nothing speaks against it
    resting    it was refused or limited, and is left alone until its rest ends
    tried      its rest has ended, and one call finds out whether it is taken; for others it rests on meanwhile

A refused key rests for 10 minutes, for all models, and so does an empty account. A key that may not use a model
rests for 10 minutes, for that model. A key that was limited rests for that model as long as the provider asks, or
else for 10 seconds. A key that was taken is ready.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
)

REFUSED_US = 600_000_000
"""Microseconds for which a refused key rests."""
PAUSE_US = 10_000_000
"""Microseconds for which a rate limit without a hint rests a key."""
TRIAL_US = 30_000_000
"""Microseconds for which one call may try a key whose rest has ended, before another call tries it."""

MAX_RESTS = 4096
"""The number of rests. The oldest is forgotten first."""

Weight: TypeAlias = Literal["refused", "limited"]


class KeyRest(msgspec.Struct, frozen=True):
    """Why a key rests, and until when."""

    key: str
    """The name of the key's entry."""
    model: str | None
    """The model on the wire; None for all models."""
    weight: Weight
    """``refused``, or ``limited`` for a while."""
    until_us: int
    """The end of the rest, in microseconds since the epoch."""
    reason: str
    """The reason, in words."""

    def in_words(self) -> str:
        """The rest as a sentence."""
        return f"its key {self.key!r} was {self.weight} ({self.reason})"


class KeyRests:
    """The rests of an adapter's named keys."""

    def __init__(self) -> None:
        self._rests: dict[tuple[str, str | None], KeyRest] = {}

    def rest(self, key: str, model: str, now_us: int) -> KeyRest | None:
        """The longest rest of a key for a model; None for a key that is ready, or may be tried."""
        found = [rest for rest in self._of(key, model) if rest.until_us > now_us]
        return max(found, key=lambda rest: rest.until_us, default=None)

    def begin(self, key: str, model: str, now_us: int) -> None:
        """Take in that a call is about to use a key. If the key's rest has ended, the call tries it."""
        for rest in self._of(key, model):
            if rest.until_us <= now_us:
                self._rests[rest.key, rest.model] = msgspec.structs.replace(rest, until_us=now_us + TRIAL_US)

    def taken(self, key: str, model: str) -> None:
        """Take in that the provider took a key for a model."""
        if self._rests:
            self._rests.pop((key, None), None)
            self._rests.pop((key, model), None)

    def failed(self, key: str, model: str, error: AdapterError, now_us: int) -> bool:
        """Take in that an attempt with a key failed.

        Returns:
            Whether the key is to blame, so that it rests now.
        """
        match error:
            case AccessDeniedError():
                rest = KeyRest(key, model, "refused", now_us + REFUSED_US, type(error).__name__)
            case AuthError() | QuotaExceededError():
                rest = KeyRest(key, None, "refused", now_us + REFUSED_US, type(error).__name__)
            case RateLimitError() if not isinstance(error, OverloadedError):  # which is the server's own trouble
                hint = error.retry_after_seconds
                pause_us = PAUSE_US if hint is None else round(max(hint, 0.0) * 1e6)
                rest = KeyRest(key, model, "limited", now_us + pause_us, type(error).__name__)
            case _:
                return False
        self._rests.pop((rest.key, rest.model), None)
        self._rests[rest.key, rest.model] = rest
        while len(self._rests) > MAX_RESTS:
            del self._rests[next(iter(self._rests))]
        return True

    def _of(self, key: str, model: str) -> list[KeyRest]:
        if not self._rests:
            return []
        return [self._rests[at] for at in ((key, None), (key, model)) if at in self._rests]
