"""The functions of three pages of the book do what the pages say; the README itself is run by tests/book."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest

from callboard import Engine, ModelRegistry
from tests.book.snippets import definitions
from tests.support.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("sessions.md", "trace.md", "routing.md")]

anyio_backend = runs_on("asyncio")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Callable[..., Awaitable[None]]]:
    """Everything that the pages' Python blocks define; what they would run at once is left to the test."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    found = {name: value for page in PAGES for name, value in definitions(page).items()}
    return cast("dict[str, Callable[..., Awaitable[None]]]", found)


async def test_a_session_changes_its_tools_and_its_model_and_is_forked(
    programs: dict[str, Callable[..., Awaitable[None]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """On scripted models of the page's names."""
    async with Engine(models=named_like_the_local_ones(), trace=False) as engine:
        await programs["talk"](engine)
    said, forked = capsys.readouterr().out.splitlines()
    assert said == "1 0", "local models cost nothing"
    assert forked.endswith(" 2")


async def test_costs_and_repricing_are_printed(
    programs: dict[str, Callable[..., Awaitable[None]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The two short functions work on any engine with a trace."""
    async with Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db") as engine:
        await engine.session("s:m").send("Hi")
        await programs["costs"](engine)
        await programs["reprice"](engine)
    assert capsys.readouterr().out == "s:m 15 None\n0 -> 0\n"


async def test_the_router_chooses_and_reloads(
    programs: dict[str, Callable[..., Awaitable[None]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Fallback, a choice and a reload on scripted models of the page's names."""
    async with Engine(models=named_like_the_local_ones(), trace=False) as engine:
        await programs["elsewhere"](engine)
    assert "Candidate(model='local-chat:m', rejected=None," in capsys.readouterr().out


def named_like_the_local_ones() -> ModelRegistry:
    scripted = {name: [Say("1"), Say("2")] for name in ("local-chat", "local-messages", "local-responses")}
    plain = registry(**scripted)
    models = {
        name: msgspec.structs.replace(model, aliases=(model.adapter,))
        for name, model in plain.models.items()
        if model.adapter != "s"
    }
    return ModelRegistry(plain.adapters, models)


async def test_calls_are_watched_live_and_again(
    programs: dict[str, Callable[..., Awaitable[None]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A subscription sees the call as it happens, and a replay of the trace the same once more."""
    async with Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db") as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(programs["watch"], engine)
            await anyio.wait_all_tasks_blocked()
            session = engine.session("s:m")
            await session.send("Hi")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        live = capsys.readouterr().out
        await engine.flush()
        await programs["again"](engine, session.id)
    again = capsys.readouterr().out
    for topic in ("llm.call_started", "llm.call_completed"):
        assert topic in live
        assert topic in again
