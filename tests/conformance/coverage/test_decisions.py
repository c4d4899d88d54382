"""The decisions about what is carried of each vendor's wire are about the types of the SDKs that are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.wire_coverage import PAGE, Coverage, coverages, disagreements, page, read_coverage

COVERAGES = coverages()

DECIDED = """
protocol = "Messages"
sdk = "openai"
[parts]
tool = "openai.types.responses.tool_param:ToolParam"
{rows}
"""


@pytest.mark.parametrize("coverage", COVERAGES, ids=lambda coverage: coverage.name)
def test_every_field_of_the_sdks_types_is_decided_on_and_nothing_else(coverage: Coverage) -> None:
    assert disagreements(coverage) == []


def test_the_page_says_what_the_decisions_say() -> None:
    """`python scripts/wire_coverage.py` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def decided(tmp_path: Path, rows: str) -> Coverage:
    path = tmp_path / "of_a_test.toml"
    path.write_text(DECIDED.format(rows=rows))
    return read_coverage(path)


def test_a_field_without_a_row_and_a_row_without_a_field_are_told(tmp_path: Path) -> None:
    rows = '[tool.custom]\n"type name format description async" = "options: x"\nspeed = "options: x"'
    found = disagreements(decided(tmp_path, rows))
    assert "of_a_test: no row for [tool.'custom'] allowed_callers" in found
    assert "of_a_test: no row for [tool.'mcp'] server_label" in found
    assert "of_a_test: no such field: [tool.'custom'] speed" in found


def test_a_row_needs_a_verdict_and_its_words_and_a_field_has_one_row(tmp_path: Path) -> None:
    for row in ('name = "perhaps: x"', 'name = "canonical"', 'name = "refused: "'):
        with pytest.raises(ValueError, match="is no verdict with its words"):
            decided(tmp_path, f"[tool.custom]\n{row}")
    with pytest.raises(ValueError, match="two rows for tool custom name"):
        decided(tmp_path, '[tool.custom]\nname = "options: x"\n"name type" = "options: x"')
