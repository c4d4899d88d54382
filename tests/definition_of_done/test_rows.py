"""Each row of the definition of done is proved for each provider that it names."""

from __future__ import annotations

import pytest

from .proofs import Proof, collect, markdown, marked_files, missing, proofs_in, table_of
from .rows import PROVIDERS, ROWS, SECTIONS, row


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> dict[str, list[Proof]]:
    """The proofs from the tests of this run. Files that don't run completely are collected separately."""
    option = request.config.option
    partly = bool(option.keyword or option.markexpr not in ("", "not deep") or ":" in str(request.config.args))
    here = [] if partly else request.session.items
    elsewhere = [path for path in marked_files() if path not in {item.path for item in here}]
    return table_of([*proofs_in(here), *(collect(elsewhere) if elsewhere else [])])


def test_every_row_has_a_test_for_every_provider_it_names(table: dict[str, list[Proof]]) -> None:
    assert missing(table) == []


def test_the_table_has_every_row(table: dict[str, list[Proof]]) -> None:
    """The table has each section and row, with the files of its tests."""
    text = markdown(table)
    assert [f"### {section} {title}" in text for section, title in SECTIONS.items()] == [True] * 10
    lines = {
        line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| 8.")
    }
    assert list(lines) == list(ROWS)
    assert (
        "`definition_of_done/test_8_7_tools.py::test_calls_of_three_rounds_have_different_ids`" in lines["8.9.7"]
    )


def test_a_row_without_a_test_is_reported(table: dict[str, list[Proof]]) -> None:
    """A row is also reported if it is proved for only some of its providers, or only with recorded traffic."""
    recorded_only = [proof for proof in table["8.9.13"] if not proof.anywhere]
    assert recorded_only
    of_openai = [proof for proof in table["8.2.1"] if proof.of == ("openai",)]
    assert of_openai
    assert missing({**table, "8.4.3": [], "8.2.1": of_openai, "8.9.13": recorded_only}) == [
        *("8.2.1 of anthropic", "8.2.1 of gemini", "8.4.3", "8.9.13"),
    ]


def test_a_mark_names_a_row_that_there_is() -> None:
    with pytest.raises(KeyError):
        row("8.4.99")
    with pytest.raises(AssertionError, match=r"8\.5\.1 doesn't name gemini"):
        row("8.5.1", of="gemini")


def test_the_sections_are_those_of_the_specification() -> None:
    counts = [sum(number.rpartition(".")[0] == section for number in ROWS) for section in SECTIONS]
    assert counts == [8, 10, 7, 10, 6, 9, 11, 9, 15, 6]
    assert {provider for wanted in ROWS.values() for provider in wanted.providers} == set(PROVIDERS)
