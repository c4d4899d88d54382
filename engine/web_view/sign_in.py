"""Who may look, where no host says so: a one-time token in the printed address, exchanged for a cookie.

    token      32 random bytes, in the address's fragment, which a browser sends to nobody; good once
    visitor    a browser that has shown one: a random secret in an HttpOnly, SameSite=Strict cookie, and a second
               one for the header of whatever changes something

Only hashes are kept. Tokens and visitors live in memory, so they end with the process.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

import msgspec

from callboard.bus import Clock

Scope: TypeAlias = Literal["view", "content", "change"]
"""``view``: everything but what was said. ``content``: what was said, where the engine captures it. ``change``:
cancel, reprice, undo."""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

TOKENS_KEPT = 16
VISITORS_KEPT = 64
VISIT_US = 7 * 24 * 3600 * 1_000_000


class Visitor(msgspec.Struct, frozen=True):
    """Somebody who may look."""

    scopes: frozenset[Scope]
    """The things that they may do."""
    csrf: str
    """The value of the header that their changes must have."""
    until_us: int = 0
    """The end of the visit, in microseconds since the epoch; 0 if somebody else decides."""


class SignIn:
    """The tokens and the visitors of one live view."""

    def __init__(self, clock: Clock, scopes: Collection[Scope]) -> None:
        self._clock = clock
        self._scopes = frozenset(scopes)
        self._tokens: OrderedDict[bytes, None] = OrderedDict()
        self._visitors: OrderedDict[bytes, Visitor] = OrderedDict()
        self.cookie = f"callboard-{secrets.token_hex(4)}"
        """The cookie's name. Cookies know no ports, so two live views of a machine must not share one."""

    def new_token(self) -> str:
        """A token that is good for one exchange. Of those that nobody has used, the latest 16 are kept."""
        token = secrets.token_urlsafe(32)
        self._tokens[_hash(token)] = None
        while len(self._tokens) > TOKENS_KEPT:
            self._tokens.popitem(last=False)
        return token

    def exchange(self, token: str) -> str | None:
        """The secret of a new visitor; None if the token is unknown or was used."""
        if self._tokens.pop(_hash(token), _hash) is _hash:
            return None
        secret = secrets.token_urlsafe(32)
        until = self._clock.now_us() + VISIT_US
        self._visitors[_hash(secret)] = Visitor(self._scopes, secrets.token_urlsafe(24), until)
        while len(self._visitors) > VISITORS_KEPT:
            self._visitors.popitem(last=False)
        return secret

    def visitor(self, secret: str) -> Visitor | None:
        """The visitor of a cookie; None if there is none, or the visit is over."""
        found = self._visitors.get(_hash(secret))
        return found if found is not None and self._clock.now_us() < found.until_us else None

    def leave(self, secret: str) -> None:
        """End a visit."""
        self._visitors.pop(_hash(secret), None)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
