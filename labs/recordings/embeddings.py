"""Compares the embeddings with recorded traffic of real providers.

    python -m labs.recordings.embeddings FOLDER          (or CALLBOARD_RECORDED=FOLDER)

Works as `agreement` does, with the files ``embeddings_*.jsonl``. The real adapter reads each body as a whole, byte
by byte, and cut at random places. The lab compares the number of vectors, their dimensions, first values and sums,
the served model, the tokens and the class of an error. Values must equal those of the wire, rounded to float32.
Exits with 1 at any disagreement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from callboard.adapters import AdapterConfig, AdapterError, create_adapter
from callboard.adapters.embeddings import EmbeddingRequest, EmbeddingResponse
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.values.base import JsonObject
from tests.support.recordings import CountingClock, Recording, fragments

from .agreement import Tally, report

PROTOCOLS = ("openai", "gemini", "voyage", "cohere", "bedrock")
"""The suffixes of the files' names, which are also the adapters' types."""

MODES = ("whole", "random-1", "random-2", "byte")
LARGEST_BY_BYTE = 64 * 1024
SUM_ERROR = 1e-4
"""The maximum difference of two sums of a few thousand float32 numbers."""


@dataclass
class Outcome:
    """The adapter's result of an exchange."""

    response: EmbeddingResponse | None = None
    error: AdapterError | None = None
    failure: str | None = None
    """The violation, if the adapter did what no adapter may do."""


def texts_of(body: JsonObject) -> tuple[str, ...]:
    """The input texts of a recorded request, in any of the protocols."""
    match body:
        case {"input": list(texts)} | {"texts": list(texts)}:
            return tuple(map(str, texts))
        case {"requests": list(requests)}:
            return tuple("?" for _ in requests)
        case _:
            return ("?",)


def model_of(case: Mapping[str, Any]) -> str:
    """The requested model, which is in the body or in the path."""
    named: str | None = case["request_body"].get("model")
    if named is not None:
        return named
    path: str = unquote(case["path"])
    for before, after in (("/models/", ":"), ("/model/", "/invoke")):
        if before in path:
            return path.partition(before)[2].rpartition(after)[0]
    return "unknown"


async def play(kind: str, case: Mapping[str, Any], mode: str) -> Outcome:
    config = AdapterConfig(api_key="recorded-traffic-key", base_url="http://127.0.0.1:1", max_retries=0)
    adapter = create_adapter(kind, config, name=kind, clock=CountingClock())
    assert isinstance(adapter, HttpAdapter)
    adapter.client.transport = Recording(case, fragments(case["response_body"].encode(), mode))
    request = EmbeddingRequest(
        request_id="req_1",
        model=f"{kind}:{model_of(case)}",
        inputs=texts_of(case["request_body"]),
        input_type="document",
    )
    try:
        return Outcome(response=await adapter.embed(request))
    except AdapterError as error:
        return Outcome(error=error)
    except Exception as error:
        return Outcome(failure=f"raised {type(error).__name__}: {error}")


def compare(case: Mapping[str, Any], outcome: Outcome) -> Iterator[str]:
    """The fields in which the result differs from the oracle."""
    oracle = case["oracle"]
    wanted_error = (oracle.get("contract") or {}).get("error_class")
    found_error = outcome.error.error_class.value if outcome.error is not None else None
    if found_error != wanted_error:
        yield f"error class: {found_error} ({outcome.error}), not {wanted_error}"
    if outcome.error is not None:
        stated_error = oracle["error"]
        if stated_error is not None and stated_error["message"] != outcome.error.provider_message:
            yield f"message: {outcome.error.provider_message}, not {stated_error['message']}"
        return
    response, expected = outcome.response, oracle["embedding"]
    if response is None:
        return
    if len(response.vectors) != expected["count"]:
        yield f"count: {len(response.vectors)}, not {expected['count']}"
    dimensions = [len(vector) for vector in response.vectors]
    if dimensions != expected["dims"]:
        yield f"dimensions: {dimensions}, not {expected['dims']}"
    for vector, first, total in zip(response.vectors, expected["first4"], expected["sum"], strict=False):
        if vector[:4] != array("f", first):
            yield f"values: {vector[:4].tolist()}, not {first}"
        if abs(sum(vector) - total) > SUM_ERROR:
            yield f"sum: {sum(vector)}, not {total}"
    if oracle["model"] is not None and response.model.partition(":")[2] != oracle["model"]:
        yield f"model: {response.model}, not {oracle['model']}"
    tokens = _tokens(oracle["usage"])
    counted = None if response.usage.estimated else response.usage.input_tokens
    if counted != tokens:
        yield f"input tokens: {counted}, not {tokens}"


def _tokens(usage: Any) -> int | None:
    """The number of billed tokens by the reply; None if it has none."""
    match usage:
        case {"billed_units": {"input_tokens": int(tokens)}}:
            return tokens
        case {"prompt_tokens": int(tokens)} | {"promptTokenCount": int(tokens)}:
            return tokens
        case {"inputTextTokenCount": int(tokens)} | {"total_tokens": int(tokens)}:
            return tokens
        case _:
            return None


async def measure(path: Path, kind: str) -> dict[str, Tally]:
    """Measure a file. Returns a tally for each way to cut the bodies."""
    with path.open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines if line.strip()]
    tallies: dict[str, Tally] = {}
    for case in cases:
        if not case["oracle"].get("reliable"):
            continue
        for mode in MODES:
            if mode == "byte" and len(case["response_body"]) > LARGEST_BY_BYTE:
                continue
            tally = tallies.setdefault(mode, Tally())
            tally.exchanges += 1
            outcome = await play(kind, case, mode)
            if outcome.failure is not None:
                tally.failures.append(f"{case['id']}: {outcome.failure}")
                tally.disagreeing.add(case["id"])
            for difference in compare(case, outcome):
                tally.disagreements.append(f"{case['id']}: {difference}")
                tally.disagreeing.add(case["id"])
    return tallies


def run(folder: Path) -> tuple[str, bool]:
    """Measure each protocol whose file is in the folder. The second value is whether everything agrees."""
    results: dict[str, dict[str, Tally]] = {}
    for kind in PROTOCOLS:
        path = folder / f"embeddings_{kind}.jsonl"
        if path.exists():
            results[f"embed {kind}"] = asyncio.run(measure(path, kind))
    text, _ = report(results)
    return text, not any(tally.disagreeing for tallies in results.values() for tally in tallies.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Agreement of the embeddings with recorded traffic.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("CALLBOARD_RECORDED"))
    folder = parser.parse_args().folder
    if folder is None or not Path(folder).is_dir():
        print(f"skipped: no folder of recorded traffic ({folder}); give one, or set CALLBOARD_RECORDED")
        return 0
    text, good = run(Path(folder))
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
