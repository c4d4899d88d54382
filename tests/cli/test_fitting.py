"""A table keeps what matters most in however narrow a terminal, and says what it left out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from callboard.engine.cli.common.table import FittingTable


def drawn(width: int) -> str:
    table = FittingTable(footer=True)
    table.add_column("model", "all", folds=True)
    table.add_column("attempts", justify="right", may_go=2)
    table.add_column("in", "1,000", justify="right", may_go=1)
    table.add_column("cost", "$0.30", justify="right")
    table.add_row("provider:a-model-with-a-name-of-some-length", "1", "900", "$0.20")
    table.add_row("provider:b", "2", "100", "$0.10")
    out = io.StringIO()
    Console(file=out, width=width).print(table)
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
