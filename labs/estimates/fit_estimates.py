"""Fits the rates of the token estimator to recorded requests, and says how far its estimates are off.

    python -m labs.estimates.fit_estimates FOLDER            (or CALLBOARD_RECORDED=FOLDER)
    python -m labs.estimates.fit_estimates FOLDER --write    (writes adapters/providers/*/rates.json)

FOLDER holds recorded exchanges, one JSON-lines file for each protocol. Each family of models is fitted for
itself: rates that minimise the relative error, pulled towards those of its protocol, the more the fewer samples
it has. What text comes to is told by the vocabulary of its model; `fit_vocabularies.py`, which fits that, runs
before this.

The gate, for each (host, family) with at least 10 samples: half of the errors are at most 10 %, and nine in ten at
most 20 % or 50 tokens, whichever is more. It is measured on held-out halves, each by the rates fitted to the
other, and on the rates that are shipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.requests.estimate import RateRow, TokenRates, count, rate_rows, vocabulary_of

from .rate_descent import Bounds, dot, solve
from .recorded_requests import Sample, read_samples

ADAPTERS = {
    "anthropic": "anthropic",
    "openai_responses": "openai",
    "openai_chat": "openai_compatible",
    "gemini": "gemini",
}
"""The adapter's type for each file of recordings."""

FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("anthropic", "", r"opus-4-[78]|opus-5|sonnet-5"),
    ("anthropic", "", r"claude"),
    ("openai", "", r"gpt-oss|deepseek"),
    ("openai", r"api\.openai\.com", r"gpt-4"),
    ("openai", r"api\.openai\.com", r"gpt-5|o\d"),
    ("openai_compatible", r"openrouter\.ai|snowflake|heroku", r"claude"),
    ("openai_compatible", "", r"llama-4"),
    ("openai_compatible", "", r"gpt-oss"),
    ("openai_compatible", "", r"qwen"),
    ("openai_compatible", r"deepseek", r"deepseek"),
    ("openai_compatible", "", r"deepseek"),
    ("openai_compatible", r"api\.mistral\.ai", r"pixtral"),
    ("openai_compatible", r"api\.mistral\.ai", r""),
    ("openai_compatible", r"openai\.(com|azure\.com)", r"gpt-4"),
    ("openai_compatible", r"openai\.(com|azure\.com)", r"gpt-5|o\d"),
    ("openai_compatible", "", r"gemini"),
    ("openai_compatible", "", r"glm"),
    ("gemini", "", r"gemini-[12]"),
    ("gemini", "aiplatform", r"gemini"),
    ("gemini", "", r"gemini"),
    ("anthropic", "", ""),
    ("openai", "", ""),
    ("openai_compatible", "", ""),
    ("gemini", "", ""),
)
"""Protocol, host and model of each family. A request belongs to the first family that matches. The last rows match
all requests of their protocol.
"""

ROOT = Path(__file__).resolve().parents[2]

FEWEST = 10
MEDIAN = 0.10
NINE_IN_TEN = 0.20
NINE_IN_TEN_TOKENS = 50

_PRIOR = TokenRates()
_SMALLEST = TokenRates(0, 0, 0, 0, 0, 0, 0.9, 0.6, 0.2, 0, 0, 0, 0, 0, 0, 0)
_LARGEST = TokenRates(100, 12, 20, 800, 120, 25, 1.35, 2, 2, 0.5, 40, 40, 2000, 3, 2000, 5000)
"""Upper bounds. Most samples are short; without bounds, they could give absurd rates for long texts."""

_PULL = 0.3
"""The weight of the prior, in samples."""


@dataclass(frozen=True)
class Error:
    """The difference of an estimate from the count."""

    sample: Sample
    estimate: float

    @property
    def relative(self) -> float:
        return abs(self.estimate - self.sample.tokens) / self.sample.tokens

    @property
    def tokens(self) -> float:
        return abs(self.estimate - self.sample.tokens)


@dataclass(frozen=True)
class Row:
    """One (host, family) of the report."""

    name: str
    samples: int
    median: float
    nine_in_ten: float
    good: bool


def family(sample: Sample) -> tuple[str, str, str]:
    """Return the first family that matches."""
    protocol = ADAPTERS[sample.protocol]
    for kind, host, model in FAMILIES:
        if kind == protocol and re.search(host, sample.host) and re.search(model, sample.model, re.IGNORECASE):
            return kind, host, model
    raise AssertionError(f"no family for {protocol}")


def fit(samples: Sequence[Sample]) -> dict[tuple[str, str, str], RateRow]:
    """Fit the rates of each family, in the order of FAMILIES."""
    rows: dict[tuple[str, str, str], RateRow] = {}
    for protocol in dict.fromkeys(kind for kind, _, _ in FAMILIES):
        of_protocol = [sample for sample in samples if ADAPTERS[sample.protocol] == protocol]
        general = _solve(of_protocol, _PRIOR)
        for key in FAMILIES:
            if key[0] == protocol:
                members = [sample for sample in of_protocol if family(sample) == key]
                rates = _solve(members, general) if key[1:] != ("", "") else general
                rows[key] = RateRow(*key[1:], len(of_protocol) if key[1:] == ("", "") else len(members), rates)
    return {key: rows[key] for key in FAMILIES}


def _solve(samples: Sequence[Sample], prior: TokenRates) -> TokenRates:
    """Fit the rates of some samples."""
    if not samples:
        return prior
    bounds = Bounds(prior.numbers, _SMALLEST.numbers, _LARGEST.numbers, _PULL)
    return TokenRates(*solve([_counts(sample) for sample in samples], [float(s.tokens) for s in samples], bounds))


def _counts(sample: Sample) -> list[float]:
    vocabulary = vocabulary_of(ADAPTERS[sample.protocol], sample.model)
    return count(sample.messages, sample.tools, sample.system, vocabulary)


def errors(samples: Sequence[Sample], rows: dict[tuple[str, str, str], RateRow]) -> list[Error]:
    """The errors of the estimates with these rates."""
    return [Error(sample, dot(rows[family(sample)].rates.numbers, _counts(sample))) for sample in samples]


def held_out(samples: Sequence[Sample]) -> list[Error]:
    """The errors of each half of the samples, with the rates that were fitted to the other half."""
    ordered = sorted(samples, key=lambda sample: (family(sample), sample.id))
    halves = ordered[::2], ordered[1::2]
    return [*errors(halves[0], fit(halves[1])), *errors(halves[1], fit(halves[0]))]


def judge(found: Iterable[Error]) -> list[Row]:
    """Apply the gate to each (host, family) with enough samples. The others are only reported."""
    groups: dict[str, list[Error]] = {}
    for error in found:
        protocol, _, model = family(error.sample)
        groups.setdefault(f"{protocol} {error.sample.host} {model or '*'}", []).append(error)
    rows = []
    for name, group in sorted(groups.items()):
        median = statistics.median(error.relative for error in group)
        within = sum(error.relative <= NINE_IN_TEN or error.tokens <= NINE_IN_TEN_TOKENS for error in group) / len(
            group
        )
        relative = sorted(error.relative for error in group)
        good = len(group) < FEWEST or (median <= MEDIAN and within >= 0.9)
        rows.append(Row(name, len(group), median, relative[int(0.9 * (len(group) - 1))], good))
    return rows


def table(rows: Iterable[Row]) -> str:
    lines = [f"{'protocol, host, family':<72}{'samples':>8}{'median':>8}{'p90':>8}  gate"]
    for row in rows:
        verdict = "-" if row.samples < FEWEST else "ok" if row.good else "MISSED"
        lines.append(f"{row.name:<72}{row.samples:>8}{row.median:>8.1%}{row.nine_in_ten:>8.1%}  {verdict}")
    return "\n".join(lines)


def shipped() -> dict[tuple[str, str, str], RateRow]:
    """The rates that Callboard uses now."""
    return {(kind, row.host, row.model): row for kind in ADAPTERS.values() for row in rate_rows(kind)}


def write(rows: Mapping[tuple[str, str, str], RateRow]) -> None:
    """Write the rows of each protocol into its provider's folder, one row a line."""
    for protocol in dict.fromkeys(kind for kind, _, _ in rows):
        lines = [_line(row) for (kind, _, _), row in rows.items() if kind == protocol]
        path = ROOT / "adapters" / "providers" / protocol / "rates.json"
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _line(row: RateRow) -> str:
    named = zip(TokenRates.__struct_fields__, row.rates.numbers, strict=False)
    rates = {name: float(f"{rate:.2g}" if rate < 1 else f"{rate:g}") for name, rate in named}
    return json.dumps({"host": row.host, "model": row.model, "samples": row.samples, "rates": rates})


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit the token estimator to recorded requests.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("CALLBOARD_RECORDED"))
    parser.add_argument("--write", action="store_true", help="write adapters/providers/*/rates.json")
    arguments = parser.parse_args()
    if arguments.folder is None or not Path(arguments.folder).is_dir():
        print(f"skipped: no folder of recorded traffic ({arguments.folder}); give one, or set CALLBOARD_RECORDED")
        return 0
    samples = read_samples(Path(arguments.folder))
    rows = fit(samples)
    outside = judge(held_out(samples))
    print("held-out halves:\n" + table(outside))
    print("\nall samples:\n" + table(judge(errors(samples, rows))))
    if arguments.write:
        write(rows)
    return 0 if all(row.good for row in outside) else 1


if __name__ == "__main__":
    sys.exit(main())
