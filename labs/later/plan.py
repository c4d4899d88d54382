"""The plan of a seed as data: the batches and questions, and the programs that run them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from tests.support.batch_wires import MODELS

How: TypeAlias = Literal["whole", "streamed", "session", "cancelled"]

Beside: TypeAlias = Literal["nothing", "resumes", "creates"]
"""A second program at the same time, which asks no questions: it only resumes the batches, or creates the same
ones.
"""

BATCH_FAULTS = (
    *("lose create", "drop create", "busy create", "hold create", "foreign create", "lose upload", "lose look"),
    *("break results", "cut results", "short results", "twice results", "fail job", "expire job"),
)
NOT_NAMELESS = "foreign create"
"""Faults that need marked jobs. Anthropic's jobs have no mark, so a lost job there looks like a job that another
program created at that moment. For the same reason, a plan has at most one batch for each provider.
"""

REPLY_FAULTS = (
    *("", "", "refuse", "lose", "hold", "busy", "silent", "end", "twice", "no stream", "garbage"),
    *(f"cut {size}" for size in (0, 150, 777, 1500, 4000)),
)
"""The faults of a reply. The empty one is no fault."""


class Batch(msgspec.Struct, frozen=True):
    """One batch. Each program continues it under its name."""

    name: str
    wire: str
    texts: tuple[str, ...]
    most: int
    """The maximum number of requests in one job."""
    cancelled: bool
    """Whether each program that finds the batch cancels it."""
    handed_out: bool
    """Whether its results are read one by one."""


class Question(msgspec.Struct, frozen=True):
    """One background reply, which only one program requests."""

    name: str
    words: str
    how: How


class Life(msgspec.Struct, frozen=True):
    """The run of one program, perhaps with a second one at the same time, until both are killed."""

    asks: tuple[Question, ...]
    beside: Beside
    batch_faults: tuple[str, ...]
    reply_faults: tuple[str, ...]
    restarts: tuple[float, ...]
    """The times at which a server restarts, in seconds after the first program is ready."""
    lines: int
    """The program is killed after this number of lines, or when it has nothing more to report ..."""
    seconds: float
    """... and this number of seconds has passed since."""


class Plan(msgspec.Struct, frozen=True):
    """The plan of a round."""

    batches: tuple[Batch, ...]
    lives: tuple[Life, ...]
    peace_beside: Beside
    """The second program next to the last program, which is not killed."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions of all programs."""
        return tuple(question for life in self.lives for question in life.asks)


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    wires = chance.sample(list(MODELS), k=chance.randint(1, 3))
    batches = tuple(_batch(chance, f"b{number}", wire) for number, wire in enumerate(wires))
    faults = [fault for fault in BATCH_FAULTS if fault != NOT_NAMELESS or "anthropic" not in wires]
    lives = tuple(_life(chance, f"{number}", faults) for number in range(chance.randint(1, 5)))
    return Plan(batches, lives, _beside(chance))


def _batch(chance: random.Random, name: str, wire: str) -> Batch:
    size = chance.randint(1, 24)
    words = chance.choices(["one", "a longer one", "fail", "late", "half", "nothing"], [8, 4, 1, 1, 1, 1], k=size)
    return Batch(
        name=name,
        wire=wire,
        texts=tuple(f"{word} {name}-{place}" for place, word in enumerate(words)),
        most=chance.choice([size, (size + 1) // 2, (size + 2) // 3]),
        cancelled=chance.random() < 0.25,
        handed_out=chance.random() < 0.3,
    )


def _beside(chance: random.Random) -> Beside:
    weights: dict[Beside, int] = {"nothing": 2, "resumes": 1, "creates": 1}
    return chance.choices(list(weights), list(weights.values()))[0]


def _life(chance: random.Random, name: str, batch_faults: Sequence[str]) -> Life:
    asks = []
    for number in range(chance.randint(0, 4)):
        question = f"q{name}-{number}"
        words = chance.choice(
            [f"say {question}" + " and on" * chance.randint(1, 12)] * 3 + [f"fail {question}", f"short {question}"]
        )
        asks.append(Question(question, words, chance.choice(["whole", "streamed", "session", "cancelled"])))
    return Life(
        asks=tuple(asks),
        beside=_beside(chance),
        batch_faults=tuple(chance.choices(batch_faults, k=chance.randint(0, 3))),
        reply_faults=tuple(chance.choices(REPLY_FAULTS, k=chance.randint(0, 8))),
        restarts=tuple(sorted(chance.uniform(0.0, 1.0) for _ in range(chance.choice([0, 0, 0, 1, 2])))),
        lines=chance.randint(1, 60),
        seconds=chance.uniform(0.0, 0.05),
    )
