"""What a seed decides, as data: the works that are to be done, and the lives of the programs that do them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from tests.support.batch_wires import MODELS

How: TypeAlias = Literal["whole", "streamed", "session", "cancelled"]

Beside: TypeAlias = Literal["nothing", "resumes", "creates"]
"""Another program at the same time, that asks no questions: it only resumes, or creates the same batches."""

BATCH_FAULTS = (
    *("lose create", "drop create", "busy create", "hold create", "foreign create", "lose upload", "lose look"),
    *("break results", "cut results", "short results", "twice results", "fail job", "expire job"),
)
NOT_NAMELESS = "foreign create"
"""Where jobs bear no mark, as Anthropic's, nobody could tell somebody else's of that moment from a lost one. So no
two batches of a plan go to one provider, either."""

REPLY_FAULTS = (
    *("", "", "refuse", "lose", "hold", "busy", "silent", "end", "twice", "no stream", "garbage"),
    *(f"cut {size}" for size in (0, 150, 777, 1500, 4000)),
)
"""The empty one strikes nothing, and lets a request pass."""


class Batch(msgspec.Struct, frozen=True):
    """One batch. Each life goes on with it under its name."""

    name: str
    wire: str
    texts: tuple[str, ...]
    most: int
    """So many requests go into one job."""
    cancelled: bool
    """Whether each life that meets it cancels it."""
    handed_out: bool
    """Whether its results are handed out one by one."""


class Question(msgspec.Struct, frozen=True):
    """One reply in the background, asked for in one life and never again."""

    name: str
    words: str
    how: How


class Life(msgspec.Struct, frozen=True):
    """One program, perhaps beside another one, until both are killed."""

    asks: tuple[Question, ...]
    beside: Beside
    batch_faults: tuple[str, ...]
    reply_faults: tuple[str, ...]
    restarts: tuple[float, ...]
    """Each is the moment of a server's restart, in seconds since the program is up."""
    lines: int
    """The program is killed when it has told so many lines, or when it has nothing more to tell ..."""
    seconds: float
    """... and so many seconds have passed since."""


class Plan(msgspec.Struct, frozen=True):
    """All that a seed decides."""

    batches: tuple[Batch, ...]
    lives: tuple[Life, ...]
    peace_beside: Beside
    """What goes on beside the last program, which nobody kills."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """The replies that are asked for in all lives."""
        return tuple(question for life in self.lives for question in life.asks)


def plan_of(seed: int) -> Plan:
    """What a seed decides."""
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
