"""Events of a run with gaps in their seq, as in a trace."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.bus import ActorStarted, Envelope


def event(seq: int, run_id: str = "run_a", name: str = "x", ts_us: int | None = None) -> Envelope:
    """An event of a run."""
    return Envelope(seq, run_id, seq if ts_us is None else ts_us, seq, ActorStarted(actor=name))


def events(seqs: Iterable[int], run_id: str = "run_a") -> list[Envelope]:
    """Events of a run with these numbers."""
    return [event(seq, run_id) for seq in seqs]
