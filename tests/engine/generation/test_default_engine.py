"""The engine of those who name none. Seed 2, section 2.5 and row 8.1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bus import CallboardError, ConfigurationError, WrongLoop
from callboard.engine import Engine, default_engine, generate, set_default_engine, stream
from callboard.tracestore import TraceStore
from tests.support.engines import registry
from tests.support.scripted import Say

from ...definition_of_done.rows import row

MODELS = """
adapters:
  s: {type: scripted, options: {replies: ["Hello"], repeat: true}}
models:
  s:m: {adapter: s, wire_name: m}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    (tmp_path / "models.yaml").write_text(MODELS)
    yield tmp_path
    set_default_engine(None)


@row("8.1.7")
def test_each_loop_has_an_engine_of_its_own_that_ends_with_it(home: Path) -> None:
    """Two runs, two engines; nobody closes them, and the trace has everything."""
    seen: list[Engine] = []

    async def ask() -> None:
        assert (await generate("s:m", "Hi")).text == "Hello"
        assert [piece async for piece in stream("s:m", "Hi").text_stream] == ["Hello"]
        assert default_engine() is default_engine()
        seen.append(default_engine())

    asyncio.run(ask())
    asyncio.run(ask())
    assert seen[0] is not seen[1]
    assert [engine.closed for engine in seen] == [True, True]

    async def rows() -> list[str]:
        async with TraceStore.open_readonly(home / "trace.db") as store:
            return [row.status for row in await store.calls()]

    assert asyncio.run(rows()) == ["completed"] * 4


def test_what_was_raised_in_a_run_comes_out_of_it() -> None:
    """The engine's end hides no exception of the program."""

    async def fail() -> None:
        await generate("s:m", "Hi")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


def test_a_closed_default_engine_is_followed_by_another() -> None:
    """Who closes it doesn't end all that is to come."""

    async def ask() -> None:
        await generate("s:m", "Hi")
        await default_engine().aclose()
        assert (await generate("s:m", "Hi")).text == "Hello"

    asyncio.run(ask())


@row("8.1.7")
def test_a_host_sets_the_engine() -> None:
    """8.1: for all functions, until it is taken back; it belongs to one loop, and says so."""
    mine = Engine(models=registry(Say("mine")), trace=False)
    set_default_engine(mine)

    async def ask() -> str:
        return (await generate("s:m", "Hi")).text

    assert asyncio.run(ask()) == "mine"
    with pytest.raises(WrongLoop, match="Create one engine for each"):
        asyncio.run(ask())
    set_default_engine(None)
    assert asyncio.run(ask()) == "Hello"


def test_without_a_loop_the_sync_functions_are_named() -> None:
    """`stream()` in plain code."""
    with pytest.raises(CallboardError, match=r"stream_sync\(\)"):
        stream("s:m", "Hi")


@row("8.1.5")
def test_a_key_that_is_missing_is_named(home: Path) -> None:
    """8.1: ConfigurationError, with the variable to set."""
    (home / "models.yaml").unlink()

    async def ask() -> None:
        await generate("anthropic:claude-haiku-4-5", "Hi")

    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY, which is not set"):
        asyncio.run(ask())
