"""A table keeps what matters most in however narrow a terminal, and says what it left out."""

from __future__ import annotations

import io
from operator import itemgetter

import pytest
from rich.console import Console

from callboard.engine.cli.common.table import Column, FittingTable, figure


def drawn(width: int) -> str:
    rows = [
        ("provider:a-model-with-a-name-of-some-length", "1", "900", "$0.20"),
        ("provider:b", "2", "100", "$0.10"),
    ]
    columns: list[Column[tuple[str, str, str, str]]] = [
        Column("model", itemgetter(0), folds=True, footer="all"),
        figure("attempts", itemgetter(1), may_go=2),
        figure("in", itemgetter(2), may_go=1, footer="1,000"),
        figure("cost", itemgetter(3), footer="$0.30"),
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(FittingTable(columns, rows))
    return out.getvalue()


@pytest.mark.parametrize(
    ("width", "headings", "told"),
    [
        (100, ["model", "attempts", "in", "cost"], ""),
        (46, ["model", "in", "cost"], "(no room for: attempts)"),
        (32, ["model", "cost"], "(no room for: attempts, in)"),
    ],
)
def test_the_least_important_columns_go_first(width: int, headings: list[str], told: str) -> None:
    """Each with its sum; a line names them."""
    text = drawn(width)
    first, *_, last = text.splitlines()
    assert first.split() == headings
    assert (last == told) if told else ("no room" not in text)
    assert max(map(len, text.splitlines())) <= width
    assert ("1,000" in text) == ("in" in headings)


def test_names_are_folded_before_what_matters_is_cut() -> None:
    """All of a long name is there, on several lines; amounts stay whole."""
    text = drawn(32)
    assert "provider:a-model-with-a-nam" not in text
    assert "".join(line[:25].strip() for line in text.splitlines()[2:4]) == (
        "provider:a-model-with-a-name-of-some-length"
    )
    assert "$0.20" in text
