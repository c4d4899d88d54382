"""Find notes with the same content: embed all of them, and print the pairs with the nearest vectors.

    python examples/near_duplicates.py                                  (on the local model: no key)
    python examples/near_duplicates.py openai:text-embedding-3-small < notes.txt

The local model was trained for chat, so it finds similar wording. An embedding model finds similar meaning.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections.abc import Sequence

from callboard import Engine
from callboard.adapters.embeddings import Vector

NOTES = (
    "The shop opens at nine and closes at six.",
    "Returns are free within thirty days.",
    "Our bicycles come with two years of guarantee on the frame.",
    "The shop opens at nine o'clock and closes at six o'clock.",
    "Parcels leave the warehouse on the day of the order.",
    "All our bicycles have a guarantee of two years on the frame.",
)
PAIRS_SHOWN = 5


def likeness(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two vectors: 1 for the same direction."""
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def nearest_pairs(vectors: Sequence[Vector]) -> list[tuple[float, int, int]]:
    """The likeness of each pair and its two indexes, the most similar pair first."""
    pairs = itertools.combinations(range(len(vectors)), 2)
    return sorted(((likeness(vectors[a], vectors[b]), a, b) for a, b in pairs), reverse=True)


async def main(model: str, notes: Sequence[str]) -> None:
    async with Engine() as engine:
        result = await engine.embed(notes, model=model, input_type="similarity")
    for alike, one, other in nearest_pairs(result.vectors)[:PAIRS_SHOWN]:
        print(f"{alike:.3f}  {notes[one]}\n       {notes[other]}")
    price = "unpriced" if result.cost.usd is None else f"${result.cost.usd:f}"
    print(f"{len(notes)} notes, {result.dimensions} dimensions, {result.usage.input_tokens} tokens, {price}")


if __name__ == "__main__":
    piped = [] if sys.stdin.isatty() else [line.strip() for line in sys.stdin if line.strip()]
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local-embed", piped or NOTES))
