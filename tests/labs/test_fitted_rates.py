"""The fitted rates of the token estimator keep their limits, on generated texts by kind and on recorded
requests.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.requests.estimate import VOCABULARIES, text_tokens, upper_end
from labs.estimates import fit_estimates, fit_vocabularies
from labs.estimates.fit_estimates import FEWEST, family, held_out, judge, table
from labs.estimates.recorded_requests import read_samples
from labs.estimates.texts.counted import CountedText, counted_texts
from labs.estimates.texts.kinds import KINDS
from tests.support.recordings import FOLDER, needs_recordings

MEDIAN = 0.10
NINE_IN_TEN = 0.20
NINE_IN_TEN_TOKENS = 50


def is_near(counted: CountedText, vocabulary: str, off: float) -> bool:
    """Whether an estimate is within 20 % or 50 tokens, whichever is more."""
    return abs(off) <= max(NINE_IN_TEN, NINE_IN_TEN_TOKENS / counted.tokens[vocabulary])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_half_of_the_estimates_are_within_a_tenth_and_nine_in_ten_within_a_fifth(vocabulary: str) -> None:
    """The rates were not fitted to these texts. The real tokenizer counts their tokens."""
    found = fit_vocabularies.errors(vocabulary, fit_vocabularies.judged_texts())
    assert statistics.median(abs(off) for _, off in found) <= MEDIAN
    assert sum(is_near(counted, vocabulary, off) for counted, off in found) >= 0.9 * len(found)


def test_no_kind_of_text_is_far_off() -> None:
    """Three in four estimates of each kind are within 20 % or 50 tokens, by the vocabulary of most models.

    For identifiers without spaces, the share is two in five.
    """
    for kind in KINDS:
        found = fit_vocabularies.errors("o200k", [each for each in counted_texts() if each.kind == kind])
        near = sum(is_near(counted, "o200k", off) for counted, off in found)
        assert near >= (0.4 if kind == "identifier" else 0.75) * len(found), kind


def test_the_upper_limit_is_rarely_exceeded() -> None:
    """Over all kinds and vocabularies, 999 of 1,000 counts are below the upper limit."""
    pairs = [(counted, name, tokens) for counted in counted_texts() for name, tokens in counted.tokens.items()]
    above = [
        (counted.kind, counted.seed, name)
        for counted, name, tokens in pairs
        if tokens > upper_end(round(text_tokens(counted.text, name)))
    ]
    assert len(above) <= len(pairs) / 1000, above


@given(st.sampled_from([counted.text for counted in counted_texts()[::7]]), st.integers(3, 40))
def test_a_long_text_is_estimated_from_samples(text: str, times: int) -> None:
    """The estimate of a repeated text is close to that of the text times the number of repetitions."""
    part = (text * 100)[:2000]
    whole = text_tokens(part * times, "o200k")
    assert whole == pytest.approx(times * text_tokens(part, "o200k"), rel=0.3)


@pytest.mark.deep("a fit over all recorded counts")
@needs_recordings
@pytest.mark.timeout(120)
def test_estimates_agree_with_the_counts_of_providers() -> None:
    """The shipped rates keep the limits. Rates that are fitted to one half keep the median on the other half."""
    samples = read_samples(FOLDER)
    shipped = judge(fit_estimates.errors(samples, fit_estimates.shipped()))
    assert all(row.good for row in shipped), table(shipped)
    assert {family(sample) for sample in samples} <= set(fit_estimates.shipped())
    outside = judge(held_out(samples))
    assert all(row.median <= fit_estimates.MEDIAN for row in outside if row.samples >= FEWEST), table(outside)


@needs_recordings
def test_the_upper_limit_is_above_the_counts_of_providers() -> None:
    """At most one call in 100 exceeds the limit, because some servers add text that the request does not show."""
    found = fit_estimates.errors(read_samples(FOLDER), fit_estimates.shipped())
    over = [error for error in found if error.sample.tokens > upper_end(math.ceil(error.estimate))]
    assert len(over) <= len(found) / 100, over


def test_a_new_table_replaces_only_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions before and after the table remain."""
    shipped = fit_vocabularies.SHIPPED.read_text(encoding="utf-8")
    copy = tmp_path / "estimate.py"
    copy.write_text(shipped, encoding="utf-8")
    monkeypatch.setattr(fit_vocabularies, "SHIPPED", copy)
    fit_vocabularies.write(VOCABULARIES)
    assert copy.read_text(encoding="utf-8") == shipped
