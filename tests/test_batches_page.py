"""What docs/how-to/batches.md shows runs as it stands, against a server that keeps books."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters import CanonicalResponse
from tests.support.batch_engines import engine_at, name_of
from tests.support.batch_server import BatchServer, batch_server
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "batches.md"

anyio_backend = runs_on("asyncio")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BatchServer]:
    with batch_server(tmp_path) as running:
        yield running


async def test_the_page_s_programs_send_a_batch_and_come_back_to_it(
    server: BatchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second in another engine, and neither makes a second job."""
    page: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)), page)
    store = tmp_path / "trace.db"
    tickets = {"T1": "the light flickers", "T2": "fail"}
    async with engine_at(server.url, store) as engine:
        pending = page["requests_for"](tickets, name_of("openai"))
        batch = await engine.create_batch(pending, batch_id="tickets-2026-11-23")
        while not (await batch.refresh()).done:
            pass
        found = await page["summarise"](engine, tickets, name_of("openai"))
        assert found["T1"] == "answer to Summarise in one sentence: the light flickers"
        assert not isinstance(found["T2"], CanonicalResponse | str)
    async with engine_at(server.url, store) as engine:
        await page["tomorrow"](engine)
    async with engine_at(server.url, store) as engine:
        await page["write_down"](engine, "tickets-2026-11-23", tmp_path / "results")
    assert [line.split("\t")[0] for line in (tmp_path / "results").read_text().splitlines()] == ["T1", "T2"]
    assert len(server.books()["jobs"]) == 1
    told = capsys.readouterr().out
    assert "completed 1 of 2" in told
    assert "tickets-2026-11-23 openai:gpt-5-mini completed" in told
