"""What runs, where, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pydantic
import pytest

from callboard.adapters import ImageBlock, Message, TextBlock, ToolDefinition
from callboard.bus import CancelledError, ToolFinished, ToolProgress, ToolStarted
from callboard.engine import AbortSignal, Tool, ToolContext, ToolError, tool
from callboard.engine.tools import threads
from tests.support.programs import ended

from .rounds import Told, call, result_of, run

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO")

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 8


async def test_a_plain_function_runs_in_a_thread_with_the_callers_context() -> None:
    """The loop goes on meanwhile, and context variables are there."""
    WHO.set("me")
    released = threading.Event()

    @tool
    def wait() -> str:
        assert threading.current_thread().daemon
        assert released.wait(10)
        return WHO.get()

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, lambda: None)
        asyncio.get_running_loop().call_soon(released.set)
        assert (await result_of(wait)).text == "me"


async def test_a_plain_function_may_run_a_loop_of_its_own() -> None:
    """Its thread has none yet."""

    @tool
    def nested() -> int:
        async def inner() -> int:
            await anyio.lowlevel.checkpoint()
            return 7

        return anyio.run(inner)

    assert (await result_of(nested)).text == "7"


async def test_threads_are_used_again() -> None:
    """One after the other, calls don't pile up threads."""

    @tool
    def who() -> str:
        return str(threading.get_ident())

    used = {(await result_of(who)).text for _ in range(20)}
    assert len(used) <= 2


async def test_an_abandoned_thread_is_told_and_forgotten() -> None:
    """At the tool's time limit the result is an error, the signal is set in the thread, its result is dropped."""
    heard = threading.Event()
    over = threading.Event()

    @tool(timeout=0.01)
    def slow(context: ToolContext) -> str:
        try:
            assert context.abort_signal.wait_in_thread(10)
            assert context.cancelled
            context.progress("too late")
            with pytest.raises(CancelledError, match="longer than"):
                context.raise_if_cancelled()
            heard.set()
            return "too late"
        finally:
            over.set()

    told: Told = []
    result = await result_of(slow, told=told)
    assert "longer than 0.01 s" in result.text
    assert await anyio.to_thread.run_sync(over.wait, 10)
    await anyio.lowlevel.checkpoint()
    assert heard.is_set()
    assert [type(event) for event in told] == [ToolStarted, ToolFinished]


PROGRAM = """
import asyncio, threading
from callboard import tool
from tests.engine.tools.rounds import result_of

@tool(timeout=0.01)
def hang() -> None:
    threading.Event().wait()

print(asyncio.run(result_of(hang)).text)
"""


def test_a_thread_that_hangs_does_not_keep_the_program_from_ending() -> None:
    """The process ends although its tool never does."""
    assert "longer than 0.01 s" in ended(PROGRAM).stdout


async def test_cancelling_the_round_sets_every_signal() -> None:
    """Async tools are cancelled, plain ones hear of it."""
    heard = threading.Event()
    running = anyio.Event()
    cancelled: list[str] = []
    loop = asyncio.get_running_loop()

    @tool
    def plain(abort_signal: AbortSignal) -> None:
        loop.call_soon_threadsafe(running.set)
        if abort_signal.wait_in_thread(10):
            heard.set()

    @tool
    async def other() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(run, [call("plain"), call("other", tool_use_id="tu_2")], [plain, other])
        await running.wait()
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(heard.wait, 10)
    assert cancelled == ["other"]


async def test_the_context_tells_the_call_its_place() -> None:
    """Ids, names and the conversation; and the seed's names for parts of it."""
    seen: list[object] = []
    said = (Message.user("Hi"),)

    @tool
    async def look(context: ToolContext, messages: tuple[Message, ...], tool_call_id: str) -> None:
        seen.extend([context.session_id, context.turn_id, context.tool_name, context.tool_call_id])
        seen.extend([context.messages, messages, tool_call_id])

    await result_of(look, session_id="ses_1", turn_id="trn_1", messages=said)
    assert seen == ["ses_1", "trn_1", "look", "tu_1", said, said, "tu_1"]


@pytest.mark.parametrize("plain", [True, False])
async def test_progress_is_told_between_start_and_end(plain: bool) -> None:
    """In its order, from a thread as from the loop."""

    def work(context: ToolContext) -> str:
        context.progress("half", 0.5)
        context.progress(fraction=1)
        return "done"

    async def work_async(context: ToolContext) -> str:
        return work(context)

    told: Told = []
    await result_of(tool(work if plain else work_async, name="work"), told=told)
    assert [type(event).__name__ for event in told] == [
        "ToolStarted",
        "ToolProgress",
        "ToolProgress",
        "ToolFinished",
    ]
    assert told[1] == ToolProgress(tool_use_id="tu_1", tool_name="work", message="half", fraction=0.5)


# -- what goes wrong


def _raises(error: BaseException) -> Callable[[], object]:
    def fails() -> object:
        raise error

    return fails


def _raises_async(error: BaseException) -> Callable[[], object]:
    async def fails() -> object:
        raise error

    return fails


@pytest.mark.parametrize("raises", [_raises, _raises_async])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("too big"), "ValueError: too big"),
        (KeyError(), "KeyError"),
        (TimeoutError("of the database"), "TimeoutError: of the database"),
        (ToolError("There is no such city."), "There is no such city."),
        (SystemExit(3), "RuntimeError: the "),
        (asyncio.CancelledError(), "RuntimeError: the "),
    ],
)
async def test_whatever_a_tool_raises_is_an_error_for_the_model(
    raises: Callable[[BaseException], Callable[[], object]], error: BaseException, told: str
) -> None:
    """Also what would end the loop or the turn."""
    result = await result_of(tool(raises(error), name="fails"))
    assert result.is_error
    assert result.text.startswith(told)


async def test_one_bad_tool_does_not_touch_the_others() -> None:
    """8.7: every call has a result, in the order of the calls; errors and unknown names go to the model."""

    @tool
    async def fine(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n

    @tool
    async def bad() -> None:
        raise RuntimeError("no")

    calls = [call("fine", {"n": 1}, tool_use_id="a"), call("bad", tool_use_id="b"), call("none", tool_use_id="c")]
    made = await run([*calls, call("fine", {"n": 2}, tool_use_id="d")], [fine, bad])
    assert [(r.tool_use_id, r.is_error) for r in made.results] == [
        ("a", False),
        ("b", True),
        ("c", True),
        ("d", False),
    ]
    assert "There is no tool named 'none'. The tools are: fine, bad." in made.results[2].text


# -- results


@dataclass
class Point:
    x: int


class Row(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    day: date


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1, 2.5, True]}, '{"a":[1,2.5,true]}'),
        (Point(1), '{"x":1}'),
        ([Row(2)], '[{"x":2}]'),
        (Model(day=date(2026, 1, 2)), '{"day":"2026-01-02"}'),
        ({"rows": (Model(day=date(2026, 1, 2)),)}, '{"rows":[{"day":"2026-01-02"}]}'),
        (Decimal("1.5"), '"1.5"'),
    ],
)
async def test_results_become_text(value: Any, text: str) -> None:
    """Text as it is, all else as JSON."""
    result = await result_of(Tool(ToolDefinition("give"), lambda arguments: value))
    assert (result.content, result.is_error) == (text, False)


async def test_results_may_be_blocks() -> None:
    """One, or several with text between them."""
    image = ImageBlock(data=PNG)
    one = await result_of(Tool(ToolDefinition("give"), lambda arguments: image))
    assert one.content == (image,)
    several = await result_of(Tool(ToolDefinition("give"), lambda arguments: ["see", image, {"n": 1}]))
    assert several.content == (TextBlock("see"), image, TextBlock('{"n":1}'))


@pytest.mark.parametrize(
    ("value", "advice"), [(b"123", r"ImageBlock\(data"), (object(), "return text, a JSON value")]
)
async def test_a_result_that_is_no_json_is_an_error_with_advice(value: Any, advice: str) -> None:
    """The text says what to return instead."""
    result = await result_of(Tool(ToolDefinition("give"), lambda arguments: value))
    assert result.is_error
    with pytest.raises(AssertionError, match=advice):
        raise AssertionError(result.text)


async def test_idle_threads_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is kept for good."""
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.001)
    ended = await threads.run_in_thread(threading.current_thread)
    await anyio.to_thread.run_sync(ended.join, 10)
    assert not ended.is_alive()
    assert await threads.run_in_thread(lambda: 1) == 1
