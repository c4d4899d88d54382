"""The choice of a call's key from a pool. It is deterministic and fair, and a session keeps its key.

It is a key's turn when all other keys that are ready have had theirs since. A session stays with its key, because
the provider has the session's prompt in a cache of that account. The session leaves the key as soon as the key
rests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .rests import KeyRests

MAX_SESSIONS = 4096
"""The number of sessions whose keys are remembered. The one that asked longest ago is forgotten first."""


class KeyPool:
    """Keys that stand in for each other.

    Args:
        names: The names of the keys, in the order of their first turns.
        rests: The rests of the keys.
    """

    def __init__(self, names: Sequence[str], rests: KeyRests) -> None:
        self.names = tuple(names)
        """The names of the keys."""
        self._rests = rests
        self._turns = dict.fromkeys(self.names, 0)
        self._turn = 0
        self._of_session: dict[str, str] = {}

    def choose(self, session: str, model: str, now_us: int, *, without: Collection[str] = ()) -> str | None:
        """The key of a call.

        If all keys rest, the one whose rest ends first is taken, unless the call has tried some before.

        Args:
            session: The session's id; empty for a call without a session.
            model: The model on the wire.
            now_us: The time, in microseconds since the epoch.
            without: The keys that the call has tried.

        Returns:
            The name of the key; None if there is none that would be worth a try.
        """
        ends = {name: self._end_of_rest(name, model, now_us) for name in self.names if name not in without}
        ready = [name for name, end in ends.items() if end == 0]
        if not ready and (without or not ends):
            return None
        own = self._of_session.get(session)
        if own in ready:
            name = own
        elif ready:
            name = min(ready, key=self._turns.__getitem__)
        else:
            name = min(ends, key=ends.__getitem__)
        self._note(name, session)
        return name

    def _end_of_rest(self, name: str, model: str, now_us: int) -> int:
        rest = self._rests.rest(name, model, now_us)
        return 0 if rest is None else rest.until_us

    def _note(self, name: str, session: str) -> None:
        self._turn += 1
        self._turns[name] = self._turn
        if session:
            self._of_session.pop(session, None)
            self._of_session[session] = name
            if len(self._of_session) > MAX_SESSIONS:
                del self._of_session[next(iter(self._of_session))]
