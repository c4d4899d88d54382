"""The provider that all nodes call, and what it says it has served: the oracle of all sums."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import anyio.to_thread

from callboard.adapters.requests.estimate import estimate_tokens, rates_for
from tests.support.reply_server import USAGE_OUT, reply_server, words

DELTAS = 40
PER_SECOND = 50.0
TEXT = "".join(words(DELTAS))
OUTPUT_TOKENS = USAGE_OUT
OUTPUT_NANO_USD = 1000
"""The price of a token of a reply. Those of requests cost nothing."""
CALL_NANO_USD = OUTPUT_TOKENS * OUTPUT_NANO_USD
_ESTIMATED = estimate_tokens(TEXT, rates_for("openai_compatible", "127.0.0.1", "bench"))
CUT_NANO_USD = max(OUTPUT_TOKENS, _ESTIMATED) * OUTPUT_NANO_USD
"""The most that a cut call may cost: the estimate of its text, which is above the stated usage."""


class Served(NamedTuple):
    """What was served to one key."""

    requests: int
    """The number of requests that had the beginning of a reply, at least."""
    whole: int
    """The number of replies that were said to their end, whether or not somebody still listened."""


class Provider:
    """A provider of canned replies that counts what it serves.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def served(self, key: str) -> Served:
        """What was served to a key."""
        told = await anyio.to_thread.run_sync(self._ask)
        return Served(*told.get(f"Bearer {key}", (0, 0)))

    def _ask(self) -> dict[str, list[int]]:
        with urllib.request.urlopen(f"{self.url}/served", timeout=10) as answer:
            counts: dict[str, list[int]] = json.load(answer)
            return counts


@contextlib.contextmanager
def lab_provider(per_second: float = PER_SECOND) -> Iterator[Provider]:
    """Start the provider, which says so many pieces of text in a second. It ends with the block."""
    with reply_server(DELTAS, per_second) as url:
        yield Provider(url)
