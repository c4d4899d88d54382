"""The decisions about each vendor's wire match the types of the installed SDKs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import typing_extensions as te

from scripts.wire_coverage import DECISIONS, PAGE, Coverage, coverages, disagreements, page, read_coverage

COVERAGES = coverages()
BETA = "anthropic.types.beta"

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


def test_the_page_has_the_decisions() -> None:
    """`python scripts/wire_coverage.py` writes the page."""
    assert PAGE.read_text(encoding="utf-8") == page()


def decided(tmp_path: Path, rows: str) -> Coverage:
    path = tmp_path / "of_a_test.toml"
    path.write_text(DECIDED.format(rows=rows))
    return read_coverage(path)


def test_a_field_without_a_row_and_a_row_without_a_field_are_reported(tmp_path: Path) -> None:
    rows = '[tool.custom]\n"type name format description async" = "options: x"\nspeed = "options: x"'
    found = disagreements(decided(tmp_path, rows))
    assert "of_a_test: no row for [tool.'custom'] allowed_callers" in found
    assert "of_a_test: no row for [tool.'mcp'] server_label" in found
    assert "of_a_test: no such field: [tool.'custom'] speed" in found


def test_changes_in_a_new_release_of_an_sdk_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has a new field of a request, a new field of a reply, a new kind of block, and a removed
    field.
    """

    module = importlib.import_module
    requests, replies = module(f"{BETA}.message_create_params"), module(f"{BETA}.beta_message")
    blocks, images = module(f"{BETA}.beta_content_block_param"), module(f"{BETA}.beta_image_block_param")

    class Request(requests.MessageCreateParamsStreaming):  # type: ignore[misc, name-defined]
        mood: str

    class Reply(replies.BetaMessage):  # type: ignore[misc, name-defined]
        mood: str

    class Hologram(te.TypedDict):
        type: te.Required[te.Literal["hologram"]]
        depth: int

    monkeypatch.setattr(requests, "MessageCreateParamsStreaming", Request)
    monkeypatch.setattr(replies, "BetaMessage", Reply)
    monkeypatch.setattr(blocks, "BetaContentBlockParam", blocks.BetaContentBlockParam | Hologram)
    monkeypatch.setattr(images, "Source", images.BetaURLImageSourceParam | images.BetaBase64ImageSourceParam)
    assert disagreements(read_coverage(DECISIONS / "anthropic_messages.toml")) == [
        "anthropic_messages: no row for [content.'hologram'] depth",
        "anthropic_messages: no row for [content.'hologram'] type",
        "anthropic_messages: no row for [reply] mood",
        "anthropic_messages: no row for [request] mood",
        "anthropic_messages: no such field: [image_source.'file'] file_id",
        "anthropic_messages: no such field: [image_source.'file'] type",
    ]


def test_a_row_needs_a_verdict_and_its_words_and_a_field_has_one_row(tmp_path: Path) -> None:
    for row in ('name = "perhaps: x"', 'name = "canonical"', 'name = "refused: "'):
        with pytest.raises(ValueError, match="is no verdict with its words"):
            decided(tmp_path, f"[tool.custom]\n{row}")
    with pytest.raises(ValueError, match="two rows for tool custom name"):
        decided(tmp_path, '[tool.custom]\nname = "options: x"\n"name type" = "options: x"')
