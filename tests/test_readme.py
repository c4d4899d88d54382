"""The README's programs run as they stand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from adapters.local.settings import find_model
from engine import Engine, ModelRegistry
from tests.book.snippets import definitions
from tests.engine.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import Backend, backend

pytestmark = pytest.mark.anyio

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def anyio_backend() -> Backend:
    return backend("asyncio")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Callable[..., Awaitable[None]]]:
    """Everything that the README's Python blocks define; what they would run at once is left to the test."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.chdir(README.parent)
    return cast("dict[str, Callable[..., Awaitable[None]]]", definitions(README))


async def test_the_first_program_talks_to_the_local_model(
    programs: dict[str, Callable[..., Awaitable[None]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two turns over two protocols, and the usage of the second."""
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    await programs["main"]()
    assert "TokenUsage(" in capsys.readouterr().out


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
    """Fallback, a choice and a reload on scripted models of the README's names."""
    scripted = {name: [Say("1"), Say("2")] for name in ("local-chat", "local-messages", "local-responses")}
    plain = registry(**scripted)
    models = {
        name: msgspec.structs.replace(model, aliases=(model.adapter,))
        for name, model in plain.models.items()
        if model.adapter != "s"
    }
    async with Engine(models=ModelRegistry(plain.adapters, models), trace=False) as engine:
        await programs["elsewhere"](engine)
    assert "Candidate(model='local-chat:m', rejected=None," in capsys.readouterr().out
