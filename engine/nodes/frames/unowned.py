"""Sessions of a cluster without a store: nobody owns them, so whoever has one may speak of it."""

from __future__ import annotations


class Unowned:
    """No session is owned."""

    def epoch_of(self, _session_id: str) -> int:
        """Always 0."""
        return 0

    def may_act(self, _session_id: str) -> bool:
        """Always true."""
        return True
