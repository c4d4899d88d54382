"""The fitted rates of the token estimator keep their gates: generated text by kind, and recorded requests."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.requests.estimate import upper_end
from callboard.adapters.requests.text_traits import VOCABULARIES, text_tokens
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
    """Within 20 % or 50 tokens, whichever is more."""
    return abs(off) <= max(NINE_IN_TEN, NINE_IN_TEN_TOKENS / counted.tokens[vocabulary])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_half_of_the_estimates_are_within_a_tenth_and_nine_in_ten_within_a_fifth(vocabulary: str) -> None:
    """Of texts that the rates were not fitted to, counted by the real tokenizer."""
    found = fit_vocabularies.errors(vocabulary, fit_vocabularies.judged_texts())
    assert statistics.median(abs(off) for _, off in found) <= MEDIAN
    assert sum(is_near(counted, vocabulary, off) for counted, off in found) >= 0.9 * len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_text_is_far_off(kind: str) -> None:
    """By the vocabulary of most models, three in four estimates of each kind are within a fifth or 50 tokens.

    Names of code, one after the other with nothing between, are estimated too high by a quarter.
    """
    found = fit_vocabularies.errors("o200k", [counted for counted in counted_texts() if counted.kind == kind])
    assert sum(is_near(counted, "o200k", off) for counted, off in found) >= (
        0.4 if kind == "identifier" else 0.75
    ) * len(found)


def test_the_upper_end_is_hardly_ever_exceeded() -> None:
    """Over all kinds and vocabularies, 999 counts in 1,000 are below it."""
    pairs = [(counted, name, tokens) for counted in counted_texts() for name, tokens in counted.tokens.items()]
    above = [
        (counted.kind, counted.seed, name)
        for counted, name, tokens in pairs
        if tokens > upper_end(round(text_tokens(counted.text, name)))
    ]
    assert len(above) <= len(pairs) / 1000, above


@given(st.sampled_from([counted.text for counted in counted_texts()[::7]]), st.integers(3, 40))
def test_a_long_text_is_known_by_samples(text: str, times: int) -> None:
    """What is said often comes to about as much as that many times what it comes to once."""
    part = (text * 100)[:2000]
    whole = text_tokens(part * times, "o200k")
    assert whole == pytest.approx(times * text_tokens(part, "o200k"), rel=0.3)


@pytest.mark.deep("a fit over all recorded counts")
@needs_recordings
@pytest.mark.timeout(120)
def test_estimates_agree_with_what_providers_counted() -> None:
    """The shipped rates keep the gate; so do the medians of halves judged by rates fitted to the other half."""
    samples = read_samples(FOLDER)
    shipped = judge(fit_estimates.errors(samples, fit_estimates.shipped()))
    assert all(row.good for row in shipped), table(shipped)
    assert {family(sample) for sample in samples} <= set(fit_estimates.shipped())
    outside = judge(held_out(samples))
    assert all(row.median <= fit_estimates.MEDIAN for row in outside if row.samples >= FEWEST), table(outside)


@needs_recordings
def test_the_upper_end_is_above_what_providers_counted() -> None:
    """But for calls whose server added text that no request shows, as agents with models of their own do."""
    found = fit_estimates.errors(read_samples(FOLDER), fit_estimates.shipped())
    over = [error for error in found if error.sample.tokens > upper_end(math.ceil(error.estimate))]
    assert len(over) <= len(found) / 100, over
