"""How things are written: money, and text that comes in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import Cost, CostSource
from callboard.engine.cli.common.figures import cost_text, difference, percent, usd
from callboard.engine.cli.common.harmless import harmless
from callboard.engine.cli.common.screen import Flow


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0"),
        (1, "$0.000000001"),
        (-2_500, "-$0.000002500"),
        (12_345_678, "$0.012346"),
        (1_234_567_890, "$1.2346"),
        (1_234_567_890_123_456, "$1,234,567.89"),
    ],
)
def test_money_has_the_digits_that_matter_at_its_size(nano: int, text: str) -> None:
    """Small amounts to the nano-dollar, large ones to the cent."""
    assert usd(nano) == text


def test_an_unknown_cost_is_never_shown_as_an_amount() -> None:
    """Unpriced, and not known at all, are words."""
    assert cost_text(Cost(None, CostSource.UNPRICED, reason="no price")) == "unpriced"
    assert cost_text(Cost(0, CostSource.COMPUTED)) == "$0"
    assert cost_text(None) == "-"


@pytest.mark.parametrize(
    ("before", "after", "changed", "per_cent"),
    [
        (1000, 1000, "no change", ""),
        (0, 5, "+$0.000000005", ""),
        (1000, 800, "-$0.000000200", "-20%"),
        (1000, 1042, "+$0.000000042", "+4.2%"),
        (1000, 3789, "+$0.000002789", "+279%"),
    ],
)
def test_a_difference_has_its_sign(before: int, after: int, changed: str, per_cent: str) -> None:
    """Per cent only where there was something before."""
    assert (difference(before, after), percent(before, after)) == (changed, per_cent)


words = st.text(alphabet="ab \n", max_size=60)


@given(words, st.lists(st.integers(0, 60)), st.integers(8, 30))
def test_text_is_broken_alike_however_it_comes_in_pieces(text: str, cuts: list[int], width: int) -> None:
    """Words cut in two stay one word; only where a line breaks is a blank replaced."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    flow = Flow(2, width)
    written = "".join(flow.feed(text[start:end]) for start, end in pairwise(edges))
    assert written.split() == text.split()


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=30), st.integers(8, 30))
def test_lines_of_whole_words_fit_the_width(parts: list[str], width: int) -> None:
    """Given word by word, no line is longer than the width, and each is indented."""
    flow = Flow(2, width)
    written = "".join(flow.feed(f"{part} ") for part in parts)
    assert all(len(line) <= width and line.startswith("  ") for line in written.splitlines())


def test_control_characters_are_left_out() -> None:
    """Escape sequences lose their teeth; line breaks and tabs stay."""
    assert harmless("a\x1b[31mb\x07\n\tc\r\x9b") == "a[31mb\n\tc"
