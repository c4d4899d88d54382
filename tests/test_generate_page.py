"""The programs of docs/generate.md, and the example, run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest

from callboard.adapters.providers.local.settings import find_model
from callboard import Engine, PriceTable, ViewEvent, run_sync, set_default_engine
from tests.book.snippets import DOCS, definitions
from tests.support.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

ROOT = Path(__file__).parents[1]

anyio_backend = runs_on("asyncio")


def defined() -> dict[str, Any]:
    """What the page's blocks define."""
    return definitions(DOCS / "generate.md")


def engine(*replies: Say) -> Engine:
    return Engine(models=registry(*replies), trace=False, prices=PriceTable.default())


@pytest.fixture
async def red() -> AsyncIterator[None]:
    """The default engine says so, as often as it is asked."""
    mine = engine(*[Say("Re", "d")] * 2)
    set_default_engine(mine)
    try:
        yield
    finally:
        set_default_engine(None)
        await mine.aclose()


@pytest.mark.anyio
@pytest.mark.usefixtures("red")
@pytest.mark.parametrize(
    ("name", "answer", "shown"),
    [
        ("ask", "Red", "end_turn 15 None\n"),
        ("go_on", "Red", ""),
        ("show", None, "Red\nend_turn, 5 tokens\n"),
        ("watch", None, "text.end Red\nRed 15 None\n"),
        ("give_up", "the turn was aborted: seen enough", ""),
    ],
)
async def test_the_pages_programs_do_what_they_say(
    name: str, answer: object, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with a model that says "Red"."""
    found = await defined()[name]("s:m")
    assert found in (answer, "it was quicker") if name == "give_up" else found == answer
    assert capsys.readouterr().out == shown


@pytest.mark.anyio
@pytest.mark.usefixtures("red")
async def test_the_meter_ends_with_what_the_provider_says() -> None:
    """First estimates, then the reported figure."""
    told = await defined()["meter"]("s:m")
    assert (told[0].estimated, told[-1].estimated, told[-1].usage.output_tokens) == (True, False, 5)


def test_the_plain_program_needs_no_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """Its engine is the default one, on the thread of the sync functions."""
    mine = engine(*[Say("Re", "d")] * 2)
    set_default_engine(mine)
    try:
        assert defined()["plainly"]("s:m") == "Red"
    finally:
        set_default_engine(None)
        run_sync(mine.aclose())
    assert capsys.readouterr().out == "Red"


def test_the_table_of_events_is_complete() -> None:
    """Every event of the view stands on the page."""
    page = (ROOT / "docs" / "generate.md").read_text()
    tags = [event.__struct_config__.tag for event in get_args(ViewEvent)]
    assert len(tags) > 15
    assert [tag for tag in tags if f"`{tag}`" not in page] == []


def test_the_example_talks_to_the_local_model(tmp_path: Path) -> None:
    """As a program of its own, which ends."""
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    run = subprocess.run(
        [sys.executable, "examples/plain_script.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CALLBOARD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert " tokens\n" in run.stdout
    assert run.stdout.endswith(" $0.000000\n")
