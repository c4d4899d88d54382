"""What the seed decides: everything that is done to whom. Pure; the moments alone depend on the machine.

The same seed gives the same `Plan` in any process, and the same fault to the n-th request of a turn to a provider,
in whatever order requests arrive.
"""

from __future__ import annotations

import random
import re
from typing import Literal, TypeAlias

import msgspec

PROTOCOLS = {"chat": "openai_compatible", "gemini": "gemini", "messages": "anthropic", "responses": "openai"}
"""The providers whose server breaks its replies, and their adapters' types."""

STEADY = "steady"
"""One more provider, which works and is never crashed."""

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
"""What can happen to a reply, and how often, relative to each other."""


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One turn."""

    kind: Kind
    model: str | None
    """The model that is assigned to the session before the turn; None leaves the last one."""
    fallback: tuple[str, ...] | None
    """The fallback as `Session.send` takes it; None is the chain of the model itself."""
    rounds: int
    """The number of rounds of tools, at most."""
    drain_for_usage: float | None
    timeout_seconds: float | None
    """The time limit of the turn."""
    details: int
    """The seed of whatever else is decided within the turn."""


class ChaosPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One blow."""

    after: float
    """The seconds after the blow before it."""
    kind: ChaosKind
    provider: str
    """The provider whose adapter is hit, by a blow to an adapter."""
    at: Literal["read_whole", "_write", "feed"]
    """The method in which it is hit."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A round."""

    seed: int
    sessions: tuple[tuple[TurnPlan, ...], ...]
    """The turns of each session."""
    chaos: tuple[ChaosPlan, ...]
    close_after: float | None
    """The seconds until the engine is closed under the turns; None if it isn't."""


def make_plan(seed: int, *, sessions: int, turns: int) -> Plan:
    """The plan of a seed. A session's turns and the chaos do not depend on how many sessions there are."""
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
    """Five crashes in a row of writer or manager are the engine's end; an adapter is stopped, and revived."""
    left = {"writer": 2, "manager": 2}
    blows: list[ChaosPlan] = []
    kinds: tuple[ChaosKind, ...] = ("actor", "call", "writer", "manager", "store", "reload")
    places: tuple[Literal["read_whole", "_write", "feed"], ...] = ("read_whole", "_write", "feed")
    pause = 0.0
    for _ in range(400):  # more than any round is long
        pause += chance.uniform(0.01, 0.15)
        kind = chance.choices(kinds, (4, 6, 2, 1, 2, 2))[0]
        provider, at = chance.choice(list(PROTOCOLS)), chance.choice(places)
        left[kind] = left.get(kind, 1000) - 1
        if left[kind] >= 0:
            blows.append(ChaosPlan(after=pause, kind=kind, provider=provider, at=at))
            pause = 0.0
    return tuple(blows)


def mark(session: int, turn: int) -> str:
    """What a user's message must hold so that the server knows the turn again."""
    return f"#{session}.{turn}#"


def turn_of(body: bytes) -> str:
    """The ``session.turn`` of the last mark in a request; ``none`` if it has none."""
    marks = _MARK.findall(body)
    return str(marks[-1].decode()) if marks else "none"


def fault_of(
    seed: object, turn: str, provider: str, number: int, faults: dict[str, int]
) -> tuple[str, random.Random]:
    """The fault for a turn's n-th request (from 1) to a provider, and what decides the rest of its reply."""
    chance = _chance(seed, turn, provider, number)
    burst = _chance(seed, turn, provider).random() < 0.05
    if burst and "status_529" in faults and number <= 3:
        return "status_529", chance
    return chance.choices(list(faults), list(faults.values()))[0], chance
