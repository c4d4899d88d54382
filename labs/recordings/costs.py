"""Compares Callboard's prices with the costs that providers stated in recorded replies.

python -m labs.recordings.costs FOLDER (or CALLBOARD_RECORDED=FOLDER)

FOLDER is the one of `agreement.py`. The lab reads each exchange whose reply states its cost, as OpenRouter's
replies do. The real adapter reads the usage, and the shipped price table prices it for the time of the recording.
The program prints each exchange with both costs, and the disagreements by reason. A reason is derived from the
stated costs of input and output tokens. The program exits with 1 if the adapter lost a stated cost, or if a
disagreement has no reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import PriceTable
from callboard.tracestore.prices.table import Explanation

from .agreement import play

PROTOCOLS = {"openai_chat": "openai_compatible", "openai_responses": "openai"}
"""The adapter's type for each file of recordings."""

NANO = Decimal(10) ** 9
INPUT = ("input", "cache_read", "cache_write_5m", "cache_write_1h")
OUTPUT = ("output", "reasoning")
PROMPT_COST = ("upstream_inference_prompt_cost", "upstream_inference_input_cost")
COMPLETION_COST = ("upstream_inference_completions_cost", "upstream_inference_output_cost")


@dataclass
class Bill:
    """Both costs of an exchange, in nano-USD."""

    case: str
    model: str
    stated: Decimal
    """The cost in the reply."""
    kept: int | None
    """The stated cost as the adapter read it."""
    ours: int | None
    """The cost by the shipped price table."""
    reasons: list[str] = field(default_factory=list)
    """Why the costs differ. If the reply gives no explanation, the reason begins with UNEXPLAINED."""

    @property
    def agrees(self) -> bool:
        return self.ours is not None and abs(self.ours - self.stated) <= 1


UNEXPLAINED = "unexplained"


def stated_usage(body: str) -> dict[str, Any] | None:
    """The usage object of a reply that states a cost; in a stream, the last one."""
    found = None
    for line in body.splitlines() if body.lstrip().startswith(("data:", "event:", ":")) else [body]:
        text = line.removeprefix("data:").strip()
        if not text.startswith("{"):
            continue
        reply = json.loads(text)
        usage = (reply.get("response") or reply).get("usage")
        if isinstance(usage, dict) and usage.get("cost") is not None:
            found = {**usage, "reply": reply.get("response") or reply}
    return found


def bill(case: Mapping[str, Any], kind: str, table: PriceTable) -> Bill | None:
    """Both costs of one exchange; None if the reply states no cost or no tokens."""
    stated = stated_usage(case["response_body"])
    if stated is None:
        return None
    outcome = asyncio.run(play(kind, case, "whole"))
    usage = outcome.usage or (outcome.error.usage if outcome.error is not None else None)
    if usage is None:
        return None
    reply, model = stated["reply"], case["request_body"]["model"]
    at_us = int(reply.get("created") or reply["created_at"]) * 10**6
    ours = table.explain(f"openrouter:{model}", usage, at_us, served_model=reply["model"])
    found = Bill(
        case["id"], model, Decimal(str(stated["cost"])) * NANO, usage.reported_cost_nano_usd, ours.cost.nano_usd
    )
    if not found.agrees:
        found.reasons = list(reasons(found.stated, stated, usage, ours)) or [f"{UNEXPLAINED}: {stated}"]
    return found


def reasons(total: Decimal, stated: Mapping[str, Any], usage: TokenUsage, ours: Explanation) -> Iterator[str]:
    """The reasons why a stated cost differs from ours, as far as the parts of the bill show them."""
    if ours.cost.nano_usd is None:
        yield f"not priced, and said so: {ours.cost.reason}"
        return
    details = stated.get("cost_details") or {}
    prompt, completion = _part(details, PROMPT_COST), _part(details, COMPLETION_COST)
    if total - prompt - completion > 1:
        yield f"{(total - prompt - completion) / NANO:f} USD are billed beside the tokens"
    rates = {component.name: component.rate for component in ours.components}
    if usage.output_tokens and abs(completion - _listed(ours, OUTPUT)) > 1:
        yield _other_rate("output", completion / usage.output_tokens, rates.get("output") or rates["reasoning"])
    if abs(prompt - _listed(ours, INPUT)) <= 1:
        return
    cached, fresh = usage.cached_input_tokens, usage.input_tokens
    of_cache = prompt - Decimal(rates.get("input", 0)) / 1000 * fresh
    written = int((stated.get("prompt_tokens_details") or {}).get("cache_write_tokens") or 0)
    if fresh and not cached:
        yield _other_rate("input", prompt / fresh, rates["input"])
    elif written and not usage.cache_creation_input_tokens:
        both = _other_rate("both", of_cache / cached, rates["cache_read"])
        yield f"{written} tokens are billed twice, as read and as written to the cache: {both} for reading"
    elif cached:
        yield _other_rate("cache reads", of_cache / cached, rates["cache_read"])


def _other_rate(what: str, nano_usd: Decimal, rate: int) -> str:
    asked = f"{nano_usd / 1000:.4f}".rstrip("0").rstrip(".")
    return f"the route that served it asks {asked} USD per million for {what}, the table {Decimal(rate) / 10**6:f}"


def _listed(ours: Explanation, names: tuple[str, ...]) -> Decimal:
    return sum((Decimal(each.pico_usd) / 1000 for each in ours.components if each.name in names), Decimal(0))


def _part(details: Mapping[str, Any], names: tuple[str, ...]) -> Decimal:
    return next(
        (Decimal(str(details[name])) * NANO for name in names if details.get(name) is not None), Decimal(0)
    )


def read(folder: Path, table: PriceTable) -> Iterator[Bill]:
    """Yield the exchanges of a folder whose replies state their cost."""
    for protocol, kind in PROTOCOLS.items():
        path = folder / f"{protocol}.jsonl"
        if not path.exists():
            continue
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if "cost" in line and (found := bill(json.loads(line), kind, table)) is not None:
                    yield found


def report(bills: list[Bill]) -> tuple[str, bool]:
    """The table and the reasons as text, and whether everything is explained."""
    lines = [f"{'exchange':<18}{'model':<30}{'stated, nano-USD':>18}{'ours':>14}"]
    for each in bills:
        ours = "unpriced" if each.ours is None else f"{each.ours:,}"
        mark = "" if each.agrees else "  differs"
        lines.append(f"{each.case:<18}{each.model:<30}{each.stated:>18,.1f}{ours:>14}{mark}")
    groups: dict[str, list[str]] = {}
    for each in bills:
        for reason in each.reasons:
            groups.setdefault(reason, []).append(each.case)
    lost = [each.case for each in bills if each.kept is None or abs(each.kept - each.stated) > 1]
    agreeing = sum(each.agrees for each in bills)
    lines.append(f"{len(bills)} exchanges, {agreeing} agree to the nano-dollar, {len(bills) - agreeing} differ:")
    lines += [f"  {reason}  [{', '.join(cases)}]" for reason, cases in groups.items()]
    lines += [f"LOST: the adapter did not keep the cost that {case} states" for case in lost]
    return "\n".join(lines), not lost and not any(reason.startswith(UNEXPLAINED) for reason in groups)


def main() -> int:
    parser = argparse.ArgumentParser(description="Our costs beside those that providers state themselves.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("CALLBOARD_RECORDED"))
    folder = parser.parse_args().folder
    if folder is None or not Path(folder).is_dir():
        print(f"skipped: no folder of recorded traffic ({folder}); give one, or set CALLBOARD_RECORDED")
        return 0
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    table = PriceTable.default()
    text, good = report(list(read(Path(folder), table)))
    print(f"{table.label}\n{text}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
