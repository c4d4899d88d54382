"""Fits what each trait of a text comes to in tokens, for each vocabulary, and says how far the estimates are off.

    python -m labs.estimates.fit_vocabularies            (judges what is shipped)
    python -m labs.estimates.fit_vocabularies --write    (writes adapters/requests/estimate.py)

Texts of many kinds are made from seeds; their tokens were counted with the vendors' tokenizers
(`texts/counted.py`). The rates are fitted to every other seed, and judged on the seeds between. When they have
changed, `fit_estimates.py` must be run, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from callboard.adapters.requests import estimate
from callboard.adapters.requests.estimate import VOCABULARIES, TextRates, text_tokens, traits

from .rate_descent import Bounds, solve
from .texts.counted import CountedText, counted_texts

NEGATIVE = {"capitalised", "capital_pair", "mark_pair", "mark_run", "space_pair"}
"""Traits of adjacent characters that share a token, so their rates may be negative."""

PULL = 2.0
"""The weight of the usual rates, in texts. A trait that is rare in the texts so keeps its usual rate."""

SHIPPED = Path(estimate.__file__)


def fitted_texts() -> list[CountedText]:
    """The texts that the rates are fitted to."""
    return [counted for counted in counted_texts() if counted.seed % 2 == 0]


def judged_texts() -> list[CountedText]:
    """The texts that are left out of the fit."""
    return [counted for counted in counted_texts() if counted.seed % 2]


def fit(vocabulary: str, texts: Sequence[CountedText]) -> TextRates:
    """The rates of a vocabulary."""
    usual: tuple[float, ...] = msgspec.structs.astuple(TextRates())
    smallest = [-1.0 if name in NEGATIVE else 0.0 for name in TextRates.__struct_fields__]
    bounds = Bounds(usual, smallest, [8.0] * len(usual), PULL)
    rows = [traits(counted.text) for counted in texts]
    return TextRates(*solve(rows, [counted.tokens[vocabulary] for counted in texts], bounds))


def errors(vocabulary: str, texts: Iterable[CountedText]) -> list[tuple[CountedText, float]]:
    """The relative error of the shipped estimate of each text; positive if the estimate is too high."""
    return [(counted, text_tokens(counted.text, vocabulary) / counted.tokens[vocabulary] - 1) for counted in texts]


def table() -> str:
    """A table of the errors of the shipped rates for the texts outside of the fit, by vocabulary and kind of
    text.
    """
    lines = [f"{'kind':<20}" + "".join(f"{name:>12}" for name in VOCABULARIES)]
    found = {name: errors(name, judged_texts()) for name in VOCABULARIES}
    for kind in dict.fromkeys(counted.kind for counted in judged_texts()):
        medians = (
            statistics.median(off for counted, off in found[name] if counted.kind == kind) for name in VOCABULARIES
        )
        lines.append(f"{kind:<20}" + "".join(f"{median:>+12.1%}" for median in medians))
    for title, place in (("median of all", 0.5), ("nine in ten", 0.9)):
        sizes = (sorted(abs(off) for _, off in found[name]) for name in VOCABULARIES)
        lines.append(f"{title:<20}" + "".join(f"{size[int(place * len(size))]:>12.1%}" for size in sizes))
    return "\n".join(lines)


def write(rates: dict[str, TextRates]) -> None:
    """Replace the table in `estimate.py`."""
    head, mark, rest = SHIPPED.read_text(encoding="utf-8").partition("# -- written by")
    _, end, tail = rest.partition("# fmt: on\n")
    lines = [f"{mark} labs/estimates/fit_vocabularies.py", "# fmt: off", "VOCABULARIES: dict[str, TextRates] = {"]
    for name, row in rates.items():
        values = [f"{value:g}" for value in msgspec.structs.astuple(row)]
        lines += [f'    "{name}": TextRates(']
        lines += [f"        {', '.join(values[at : at + 15])}," for at in range(0, len(values), 15)]
        lines += ["    ),"]
    SHIPPED.write_text(head + "\n".join([*lines, "}", end]) + tail, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit the vocabularies of the token estimator.")
    parser.add_argument("--write", action="store_true", help="write adapters/requests/estimate.py")
    if parser.parse_args().write:
        texts = fitted_texts()
        write({name: fit(name, texts) for name in texts[0].tokens})
        print("written; run again to judge it")
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
