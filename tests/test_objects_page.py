"""The programs of docs/objects.md, and the example, run as they stand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.providers.local.settings import find_model
from callboard import Engine, PriceTable, set_default_engine
from tests.book.snippets import DOCS, definitions
from tests.support.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


@pytest.fixture
async def programs() -> AsyncIterator[dict[str, Any]]:
    """What the page's blocks define; the default engine has three replies for them."""
    names = definitions(DOCS / "objects.md")
    replies = [
        Say('{"name": "Ada", "age": 36}'),
        Say('{"value": [{"name": "Ada", "age": 36}]}'),
        Say('{"name": "Ada", "age": 36,}'),
        Say("No."),
    ]
    engine = Engine(models=registry(*replies), trace=False, prices=PriceTable.default())
    set_default_engine(engine)
    try:
        yield names
    finally:
        set_default_engine(None)
        await engine.aclose()


async def test_the_pages_programs_do_what_they_say(
    programs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ada = programs["Person"]("Ada", 36)
    assert await programs["read"]("s:m", "…") == ada
    assert await programs["follow"]("s:m", "…") == [ada]
    assert await programs["or_none"]("s:m", "…") == ada
    assert await programs["or_none"]("s:m", "…") is None
    assert capsys.readouterr().out.splitlines() == [
        "1 so far",
        "not_json there is no JSON, at character 3 No. 15 None",
    ]


async def test_the_example_reads_people_with_the_local_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    from examples import objects

    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    await objects.main()
    shown = capsys.readouterr().out
    assert shown.startswith("Person(name='Ada', age=36, city='London')\n")
    assert "\nso far: ['red'" in shown
