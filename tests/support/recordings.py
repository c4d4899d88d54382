"""Recorded traffic of real providers: exchanges, bodies in pieces, and adapters that read them."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.openai_compatible.quirks import choose_quirks
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.values.base import Json

FOLDER = Path(os.environ.get("CALLBOARD_RECORDED") or Path(__file__).parents[2] / "../shared/recorded")
"""The folder with a file of JSON lines for each protocol."""

needs_recordings = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="no recorded traffic: set CALLBOARD_RECORDED to its folder, or put it at ../shared/recorded",
)

PROTOCOLS = {
    "anthropic": "anthropic", "openai_responses": "openai", "openai_chat": "openai_compatible",
    "gemini": "gemini",
}  # fmt: skip
"""The adapter's type for each file of recordings."""

THRESHOLD = 98.0
"""The minimum percentage of a protocol's exchanges that an adapter must read correctly."""


def read_cases(path: Path) -> list[dict[str, Any]]:
    """The exchanges whose correct reading is certain, including those that are errors."""
    with path.open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines if line.strip()]
    return [case for case in cases if case["oracle"].get("reliable") or case["oracle"].get("must_not_succeed")]


def fragments(body: bytes, mode: str) -> list[bytes]:
    """The body in pieces: "whole", "byte", or "random-SEED", which also cuts inside characters and line ends."""
    if mode == "whole":
        return [body] if body else []
    if mode == "byte":
        return [body[at : at + 1] for at in range(len(body))]
    dice = random.Random(f"{mode} {len(body)}")
    cuts = {found.start() + 1 for found in re.finditer(rb"[\xc0-\xff][\x80-\xbf]|\r\n|\n\n", body)}
    at = 0
    while at < len(body):
        cuts.add(at := at + dice.randint(1, 197))
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


class CountingClock:
    """A clock with the same ids in each run, whose time stands still."""

    def __init__(self) -> None:
        self.ids = 0

    def now_us(self) -> int:
        return 0

    def monotonic_ns(self) -> int:
        return 0

    def random(self) -> float:
        return 0.5

    def new_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}_{self.ids:026d}"


class Recording:
    """A transport that answers each request with one recorded reply."""

    def __init__(self, case: Mapping[str, Any], chunks: Sequence[bytes]) -> None:
        self.status: int = case["response_status"]
        self.headers = {name.lower(): value for name, value in case["response_headers"].items()}
        self._chunks = iter(chunks)

    async def send(self, request: HttpRequest) -> HttpReply:
        return self

    async def chunk(self) -> bytes | None:
        return next(self._chunks, None)

    async def aclose(self) -> None:
        pass


def make_adapter(kind: str, case: Mapping[str, Any], chunks: Sequence[bytes]) -> HttpAdapter:
    options: dict[str, Json] = {}
    if kind == "openai_compatible":
        reasons = choose_quirks({}, f"https://{case['provider_host']}").finish_reasons
        options["quirks"] = {"finish_reasons": reasons}
    config = AdapterConfig(
        api_key="recorded-traffic-key", base_url="http://127.0.0.1:1", max_retries=0, options=options
    )
    adapter = create_adapter(kind, config, name=kind, clock=CountingClock())
    assert isinstance(adapter, HttpAdapter)
    adapter.client.transport = Recording(case, chunks)
    return adapter
