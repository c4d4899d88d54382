"""The programs of docs/how-to/background.md run unchanged, also when the engine is closed in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.operations import background
from callboard.adapters.videos import PollPolicy
from tests.book.snippets import DOCS, definitions
from tests.support.background_engines import MODEL, engine_at
from tests.support.background_server import WORDS, BackgroundServer, background_server
from tests.support.virtual_time import runs_on

from .test_taking_up import closed_in_a_reply

anyio_backend = runs_on("asyncio")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundServer]:
    monkeypatch.setattr(background, "POLLING", PollPolicy(first=0.02, longest=0.05, jitter=False))
    with background_server(0.01) as running:
        yield running


async def test_the_pages_programs_start_a_reply_and_resume_it(
    server: BackgroundServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One reply belongs to a session, and one does not."""
    page: dict[str, Any] = definitions(DOCS / "how-to" / "background.md")
    store = tmp_path / "trace.db"
    async with engine_at(server.url, store) as engine:
        await closed_in_a_reply(engine, page["research"](engine, MODEL, "the moon?"))
    async with engine_at(server.url, store) as engine:
        await closed_in_a_reply(engine, engine.generate(MODEL, "the sun?", background=True))
    async with engine_at(server.url, store) as engine:
        assert await page["after_a_restart"](engine) == WORDS
        assert await page["after_a_restart"](engine) is None
        await page["take_up_all"](engine)
    (line,) = capsys.readouterr().out.splitlines()
    assert WORDS in line
