"""The plan of a round, derived from its seed: all faults and their targets. Pure. Only the timing depends on the
machine.

The same seed gives the same `Plan` in each process. It also gives the same fault for the n-th request of a turn to
a provider, in whatever order the requests arrive.
"""

from __future__ import annotations

import random
import re
from typing import Literal, TypeAlias

import msgspec

PROTOCOLS = {"chat": "openai_compatible", "gemini": "gemini", "messages": "anthropic", "responses": "openai"}
"""The providers whose server breaks its replies, with the types of their adapters."""

STEADY = "steady"
"""A provider that always works and whose adapter never crashes."""

Kind: TypeAlias = Literal["send", "read", "text", "leave", "cancel", "kill"]
ChaosKind: TypeAlias = Literal["actor", "call", "writer", "manager", "store", "reload"]

_KINDS: tuple[Kind, ...] = ("send", "send", "read", "read", "read", "text", "leave", "cancel", "kill")
_MARK = re.compile(rb"#(\d+\.\d+)#")

FAULTS: dict[str, int] = {
    "none": 40,
    "latency": 8,
    "trickle": 6,
    "reset_before_head": 4,
    "close_before_head": 4,
    "slow_head": 4,
    "stall_before_head": 2,
    "status_429": 5,
    "status_429_long": 1,
    "status_529": 5,
    "status_5xx": 5,
    "status_400": 2,
    "redirect": 1,
    "reset_in_body": 6,
    "truncated": 6,
    "stall_in_body": 3,
    "bad_bytes": 5,
    "bad_json": 5,
    "bad_chunk": 3,
    "empty_body": 2,
    "html": 2,
    "error_in_stream": 6,
    "closed_after": 8,
    "open_after": 3,
}
"""The faults of a reply, with their relative frequencies."""


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One turn."""

    kind: Kind
    model: str | None
    """The model that is assigned to the session before the turn; None keeps the model."""
    fallback: tuple[str, ...] | None
    """The `fallback` argument of `Session.send`; None uses the model's chain."""
    rounds: int
    """The maximum number of tool rounds."""
    drain_for_usage: float | None
    timeout_seconds: float | None
    """The time limit of the turn."""
    details: int
    """The seed of all other decisions in the turn."""


class ChaosPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One injected fault."""

    after: float
    """The seconds after the fault before it."""
    kind: ChaosKind
    provider: str
    """The provider whose adapter is the target."""
    at: Literal["read_whole", "_write", "feed"]
    """The method of the adapter that fails."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a round."""

    seed: int
    sessions: tuple[tuple[TurnPlan, ...], ...]
    """The turns of each session."""
    chaos: tuple[ChaosPlan, ...]
    close_after: float | None
    """The seconds until the engine is closed during the turns; None if it is not closed early."""


def make_plan(seed: int, *, sessions: int, turns: int) -> Plan:
    """The plan of a seed. A session's turns and the injected faults do not depend on the number of sessions."""
    closing = _chance(seed, "close")
    return Plan(
        seed=seed,
        sessions=tuple(
            tuple(_turn(_chance(seed, "turn", number, turn)) for turn in range(turns))
            for number in range(sessions)
        ),
        chaos=_chaos(_chance(seed, "chaos")),
        close_after=closing.uniform(0, 1) if closing.random() < 0.25 else None,
    )


def _chance(*of: object) -> random.Random:
    return random.Random("/".join(map(str, of)))


def _turn(chance: random.Random) -> TurnPlan:
    provider = chance.choice(list(PROTOCOLS))
    where = chance.choices(("alone", "steady", "faulty", "chain"), (5, 3, 2, 2))[0]
    other = chance.choice([name for name in PROTOCOLS if name != provider])
    fallbacks = {"steady": (f"{STEADY}:m",), "faulty": (f"{other}:m",), "alone": (), "chain": None}
    return TurnPlan(
        kind=chance.choice(_KINDS),
        model=f"{provider}:{'chained' if where == 'chain' else 'm'}" if chance.random() < 0.6 else None,
        fallback=fallbacks[where],
        rounds=chance.choice((0, 1, 2, 4)),
        drain_for_usage=chance.choice((None, None, 0.05, 0.2)),
        timeout_seconds=chance.choice((0.02, 0.2)) if chance.random() < 0.06 else None,
        details=chance.getrandbits(32),
    )


def _chaos(chance: random.Random) -> tuple[ChaosPlan, ...]:
    """The engine gives up after five consecutive crashes of the writer or the manager, so the plan has fewer. A
    stopped adapter is started again.
    """
    remaining = {"writer": 2, "manager": 2}
    blows: list[ChaosPlan] = []
    kinds: tuple[ChaosKind, ...] = ("actor", "call", "writer", "manager", "store", "reload")
    places: tuple[Literal["read_whole", "_write", "feed"], ...] = ("read_whole", "_write", "feed")
    pause = 0.0
    for _ in range(400):  # longer than any round
        pause += chance.uniform(0.01, 0.15)
        kind = chance.choices(kinds, (4, 6, 2, 1, 2, 2))[0]
        provider, at = chance.choice(list(PROTOCOLS)), chance.choice(places)
        remaining[kind] = remaining.get(kind, 1000) - 1
        if remaining[kind] >= 0:
            blows.append(ChaosPlan(after=pause, kind=kind, provider=provider, at=at))
            pause = 0.0
    return tuple(blows)


def mark(session: int, turn: int) -> str:
    """The mark in a user's message by which the server recognises the turn."""
    return f"#{session}.{turn}#"


def turn_of(body: bytes) -> str:
    """The ``session.turn`` of the last mark in a request; ``none`` if it has none."""
    marks = _MARK.findall(body)
    return str(marks[-1].decode()) if marks else "none"


def fault_of(
    seed: object, turn: str, provider: str, number: int, faults: dict[str, int]
) -> tuple[str, random.Random]:
    """The fault for the n-th request of a turn to a provider, counted from 1, and the random generator for the
    details of the reply.
    """
    chance = _chance(seed, turn, provider, number)
    burst = _chance(seed, turn, provider).random() < 0.05
    if burst and "status_529" in faults and number <= 3:
        return "status_529", chance
    return chance.choices(list(faults), list(faults.values()))[0], chance
