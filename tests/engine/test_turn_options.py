"""The names of options: one word for a time limit, tags of a turn, and defaults of a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from callboard.bus.errors import RequestTimeoutError
from callboard.engine import Engine, Session, TimeoutConfig, Tool, tool
from callboard.engine.calls.plain_call import require_known
from callboard.engine.models.configured import read_models_yaml
from callboard.engine.operations.embeddings import EmbeddingOptions
from callboard.engine.operations.images import ImageOptions
from callboard.engine.operations.videos import VideoOptions
from tests.support.engines import keeping, requests_of, running
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

anyio_backend = runs_on("asyncio")

Ask = Callable[..., Awaitable[object]]


async def send(engine: Engine, **options: Any) -> None:
    await engine.session("s:m").send("Hi", **options)


async def stream(engine: Engine, **options: Any) -> None:
    async with engine.session("s:m").stream("Hi", **options) as turn:
        await turn.message()


async def submit(engine: Engine, **options: Any) -> None:
    session = await waiting(engine)
    await session.submit({session.pending_calls[0].id: "done"}, **options)


async def approve(engine: Engine, **options: Any) -> None:
    session = await waiting(engine)
    await session.approve(*session.pending_calls, **options)


async def approve_stream(engine: Engine, **options: Any) -> None:
    session = await waiting(engine)
    async with session.approve_stream(*session.pending_calls, **options) as turn:
        await turn.message()


async def deny(engine: Engine, **options: Any) -> None:
    session = await waiting(engine)
    await session.deny(*session.pending_calls, **options)


async def generate(engine: Engine, **options: Any) -> None:
    await engine.generate("s:m", "Hi", **options)


async def generate_object(engine: Engine, **options: Any) -> None:
    await engine.generate_object("s:m", "Hi", schema={"type": "object"}, **options)


@tool(needs_approval=True)
async def refund() -> str:
    """Refund."""
    return "done"


async def waiting(engine: Engine) -> Session:
    """A session whose turn waits for an approval."""
    session = engine.session("s:m", tools=[refund], tags={"team": "a", "job": "none"})
    await session.send("Refund it.")
    return session


SIMPLE = [send, stream, generate, generate_object]
WAITING = [submit, approve, approve_stream, deny]


def replies_for(ask: Ask) -> list[Say]:
    return [Say(calls=[("refund", {})]), Say("{}")] if ask in WAITING else [Say("{}")]


@pytest.mark.parametrize("ask", [*SIMPLE, *WAITING])
async def test_a_time_limit_is_called_timeout_everywhere(ask: Ask, tmp_path: Path) -> None:
    """Seconds for the turn and for each call, by one name at each entry point."""
    async with keeping(tmp_path / "t.db", *replies_for(ask)) as engine:
        await ask(engine, timeout=TimeoutConfig(total=50.0, per_step=7.0))
        assert requests_of(engine)[-1].timeout_seconds == 7.0


@pytest.mark.parametrize("ask", [*SIMPLE, *WAITING])
async def test_the_old_names_of_time_limits_work_with_a_warning(ask: Ask, tmp_path: Path) -> None:
    """The warning names the new one."""
    async with keeping(tmp_path / "t.db", *replies_for(ask)) as engine:
        with pytest.warns(DeprecationWarning, match="called call_timeout= now"):
            await ask(engine, call_timeout_seconds=7.0)
        assert requests_of(engine)[-1].timeout_seconds == 7.0


async def test_a_time_limit_by_both_names_is_refused() -> None:
    """One of them would be dropped."""
    async with running(Say("x")) as (engine, _):
        with pytest.raises(TypeError, match="the same argument"):
            await engine.session("s:m").send("Hi", timeout=1, timeout_seconds=2)  # type: ignore[call-arg]


async def test_a_turn_ends_when_its_timeout_is_over() -> None:
    """The old name limits the turn just as the new one does."""
    async with running(Say("x")) as (engine, _):
        with pytest.raises(RequestTimeoutError):
            await engine.session("s:m").send("Hi", timeout=0)
        with pytest.warns(DeprecationWarning, match="now"), pytest.raises(RequestTimeoutError):
            await engine.session("s:m").send("Hi", timeout_seconds=0)  # type: ignore[call-arg]


def test_a_tool_takes_its_time_limit_by_both_names() -> None:
    """As a decorator's argument, as a field, and as an attribute."""

    def read(path: str) -> str:
        """Read."""
        return path

    with pytest.warns(DeprecationWarning, match="called timeout= now") as told:
        old = tool(read, timeout_seconds=3)  # type: ignore[call-overload]
    assert told[0].filename == __file__
    assert (old.timeout, tool(read, timeout=3).timeout) == (3, 3)
    with pytest.warns(DeprecationWarning, match="now"):
        assert Tool(old.definition, read, timeout_seconds=4).timeout == 4  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="now"):
        assert old.timeout_seconds == 3


@pytest.mark.parametrize("kind", [EmbeddingOptions, ImageOptions, VideoOptions])
def test_plain_calls_take_the_old_name_with_a_warning(kind: Any) -> None:
    """Embeddings, images and videos."""
    assert require_known({"timeout": 3}, kind) == {"timeout": 3}
    with pytest.warns(DeprecationWarning, match="now"):
        assert require_known({"timeout_seconds": 3}, kind) == {"timeout": 3}


def test_models_yaml_takes_the_old_key_with_a_warning(tmp_path: Path) -> None:
    """The time limit of an adapter."""
    path = tmp_path / "models.yaml"
    path.write_text("adapters: {x: {type: openai, api_key: k, timeout: 3}}\n")
    new = read_models_yaml(path, {})
    path.write_text("adapters: {x: {type: openai, api_key: k, timeout_seconds: 3}}\n")
    with pytest.warns(DeprecationWarning, match=r"adapters\.x\.timeout now"):
        old = read_models_yaml(path, {})
    assert old.adapters["x"].config.timeout_seconds == new.adapters["x"].config.timeout_seconds == 3


@pytest.mark.parametrize("ask", [*SIMPLE, *WAITING])
async def test_a_turn_may_have_tags_of_its_own(ask: Ask, tmp_path: Path) -> None:
    """They are added to the session's, and stand over them."""
    async with keeping(tmp_path / "t.db", *replies_for(ask)) as engine:
        await ask(engine, tags={"job": "refunds"})
        await engine.flush()
        assert engine._runtime.store is not None
        rows = await engine._runtime.store.calls()
        tags = [row.tags for row in rows if row.tags and row.tags.get("job") == "refunds"]
        assert tags == [{"team": "a", "job": "refunds"} if ask in WAITING else {"job": "refunds"}]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_has_defaults_that_a_turn_may_replace(restarted: bool, tmp_path: Path) -> None:
    """Temperature, output and rounds hold for each turn, also after a restart."""
    defaults: Any = {"temperature": 0.25, "max_output_tokens": 90, "max_tool_rounds": 0}
    engine = keeping(tmp_path / "t.db", Say("One."), Say("Two."))
    async with engine:
        session = engine.session("s:m", session_id="ses_1", **defaults)
        await session.send("Hi")
        if not restarted:
            await session.send("Hi", temperature=0.75)
            assert [each.temperature for each in requests_of(engine)] == [0.25, 0.75]
            assert [each.max_output_tokens for each in requests_of(engine)] == [90, 90]
            return
    async with keeping(tmp_path / "t.db", Say("Three."), Say("Four.")) as engine:
        session = await engine.open_session("ses_1", max_output_tokens=70)
        await session.send("Hi")
        request = requests_of(engine)[-1]
        assert (request.temperature, request.max_output_tokens) == (0.25, 70)
        other = await engine.import_session(session.export(), session_id="ses_2")
        await other.send("Hi")
        assert requests_of(engine)[-1].temperature == 0.25
