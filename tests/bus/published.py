"""Events that tests publish, and functions that shorten received events."""

from __future__ import annotations

from callboard.bus import ActorStarted, Bus, Envelope
from tests.support.virtual_time import FakeClock


def started(name: str = "a") -> ActorStarted:
    return ActorStarted(actor=name)


def new_bus(clock: FakeClock | None = None) -> Bus:
    return Bus(run_id="run_1", clock=clock or FakeClock())


def by_actor(envelope: Envelope) -> str:
    assert isinstance(envelope.data, ActorStarted)
    return envelope.data.actor


def seqs(envelopes: list[Envelope]) -> list[int]:
    return [envelope.seq for envelope in envelopes]
