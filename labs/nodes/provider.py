"""The provider of all nodes. All sums of the trace must agree with its counts."""

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
"""The price of an output token. Input tokens are free."""
CALL_NANO_USD = OUTPUT_TOKENS * OUTPUT_NANO_USD
_ESTIMATED = estimate_tokens(TEXT, rates_for("openai_compatible", "127.0.0.1", "bench"))
CUT_NANO_USD = max(OUTPUT_TOKENS, _ESTIMATED) * OUTPUT_NANO_USD
"""The maximum cost of a call that broke off: the estimate of its text, which is more than the stated usage."""


class Served(NamedTuple):
    """The provider's counts for one key."""

    requests: int
    """The number of requests with at least the beginning of a reply."""
    whole: int
    """The number of replies that were sent completely, even if the client had already disconnected."""


class Provider:
    """A provider with fixed replies that counts its requests.

    Args:
    url: Its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def served(self, key: str) -> Served:
        """The counts for a key."""
        counts = await anyio.to_thread.run_sync(self._ask)
        return Served(*counts.get(f"Bearer {key}", (0, 0)))

    def _ask(self) -> dict[str, list[int]]:
        with urllib.request.urlopen(f"{self.url}/served", timeout=10) as answer:
            counts: dict[str, list[int]] = json.load(answer)
            return counts


@contextlib.contextmanager
def lab_provider(per_second: float = PER_SECOND) -> Iterator[Provider]:
    """Run the provider within a block. It sends this number of text pieces per second."""
    with reply_server(DELTAS, per_second) as url:
        yield Provider(url)
