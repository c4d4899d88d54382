"""The sync functions on their thread: in programs without a loop, with a loop, and at the end of a program.

The tests use real processes. Each process must end, and its trace must have every call.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.adapters import CancelledError, ServerError, ToolDefinition
from callboard.bus import CallboardError, NoTurnRunning, WrongLoop
from callboard.engine import (
    AbortController,
    Engine,
    Tool,
    generate_sync,
    run_sync,
    set_default_engine,
    stream_sync,
)
from callboard.tracestore import TraceStore
from tests.support.depth import first_is_quick
from tests.support.engines import registry
from tests.support.present import present
from tests.support.programs import started
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

PRELUDE = """
import asyncio, os, sys, threading
from pathlib import Path
from callboard import Engine, generate_sync, run_sync, stream_sync
from tests.support.engines import registry
from tests.support.scripted import Say

start = threading.Thread.start

def start_in_time(thread):
    if not threading.main_thread().is_alive():  # as Python 3.12 and later have it
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)

threading.Thread.start = start_in_time

def engine(*replies):
    return Engine(models=registry(*replies), store=Path(sys.argv[1]))

plain = engine(*[Say("Hel", "lo")] * 9)
"""

anyio_backend = runs_on("asyncio")


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Engines that the fixture closes at the end, in their thread."""
    made: list[Engine] = []
    yield made
    for each in made:
        run_sync(each.aclose())


def an_engine(engines: list[Engine], *replies: Say) -> Engine:
    engines.append(Engine(models=registry(*replies), trace=False))
    return engines[-1]


def program(path: Path, body: str) -> subprocess.Popen[str]:
    return started(PRELUDE + body, path, flags=("-W", "error"), CALLBOARD_HOME=str(path.parent))


def rows(path: Path) -> list[str]:
    async def read() -> list[str]:
        async with TraceStore.open_readonly(path) as store:
            return [row.status for row in await store.calls()]

    return asyncio.run(read())


PROGRAMS = {
    "two calls": (
        "for _ in range(2):\n    print(generate_sync('s:m', 'Hi', engine=plain).text)",
        *(0, "Hello\nHello\n", ["completed"] * 2),
    ),
    "a stream": ("print(*stream_sync('s:m', 'Hi', engine=plain).text_stream)", *(0, "Hel lo\n", ["completed"])),
    "an exception": ("generate_sync('s:m', 'Hi', engine=plain)\nraise SystemExit(3)", *(3, "", ["completed"])),
    "a stream that somebody still has": (
        "pauses = iter([0, 600])\n"
        "e = engine(Say('Hel', 'lo', pause=lambda: asyncio.sleep(next(pauses))))\n"
        "s = stream_sync('s:m', 'Hi', engine=e)\n"
        "print(next(s.text_stream))",
        *(0, "Hel\n", ["cancelled"]),
    ),
    "a thread that goes on when the main thread has ended": (
        "def work():\n"
        "    threading.main_thread().join()\n"
        "    print(generate_sync('s:m', 'Hi', engine=plain).text)\n"
        "generate_sync('s:m', 'Hi', engine=plain)\n"
        "def first():\n"
        "    generate_sync('s:m', 'Hi', engine=plain)\n"
        "    work()\n"
        "threading.Thread(target=first).start()",
        *(0, "Hello\n", ["completed"] * 3),
    ),
    "an engine that is entered": (
        "with plain as e:\n"
        "    session = e.session('s:m')\n"
        "    print(session.send_sync('Hi').text, len(session.messages))\n"
        "    print(generate_sync('s:m', 'Hi', engine=e).text)\n"
        "print(e.closed)",
        *(0, "Hello 2\nHello\nTrue\n", ["completed"] * 2),
    ),
    "a session of an engine that nobody closes": (
        "session = plain.session('s:m')\ndel plain\nprint(session.send_sync('Hi').text)",
        *(0, "Hello\n", ["completed"]),
    ),
    "an engine that is left by an exception": (
        "with plain as e:\n    print(e.session('s:m').send_sync('Hi').text)\n    raise SystemExit(4)",
        *(4, "Hello\n", ["completed"]),
    ),
    "the engine of the environment": (
        "Path(sys.argv[1]).parent.joinpath('models.yaml').write_text('''\n"
        "adapters: {s: {type: scripted, options: {replies: [Hello]}}}\n"
        "models: {'s:m': {adapter: s, wire_name: m}}\n"
        "''')\n"
        "print(generate_sync('s:m', 'Hi').text)",
        *(0, "Hello\n", ["completed"]),
    ),
}


@pytest.mark.parametrize("name", first_is_quick(PROGRAMS, "a process for each program"))
def test_a_program_ends_in_order(name: str, tmp_path: Path) -> None:
    """The exit code is the program's own, stderr is empty, and the trace has every call."""
    body, code, output, statuses = PROGRAMS[name]
    process = program(tmp_path / "trace.db", body)
    said, errors = process.communicate(timeout=30)
    assert (process.returncode, said, errors) == (code, output, "")
    assert rows(tmp_path / "trace.db") == statuses


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
@pytest.mark.parametrize(
    "ask",
    first_is_quick(["list(stream_sync('s:m', 'Hi', engine=e))", "generate_sync('s:m', 'Hi', engine=e)"], "whole"),
)
def test_ctrl_c_cancels_the_call(ask: str, tmp_path: Path) -> None:
    """The waiting function raises KeyboardInterrupt, and the trace has the cancelled call."""
    process = program(
        tmp_path / "trace.db",
        "async def wait():\n    print('waiting', flush=True)\n    await asyncio.sleep(600)\n"
        "e = engine(Say('never', pause=wait))\n"
        f"try:\n    {ask}\nexcept KeyboardInterrupt:\n    print('interrupted')",
    )
    assert present(process.stdout).readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "interrupted\n", "")
    assert rows(tmp_path / "trace.db") == ["cancelled"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of every fork of a process with threads")
def test_a_forked_child_has_a_thread_of_its_own(tmp_path: Path) -> None:
    """Servers load the program first and then fork their workers."""
    process = program(
        tmp_path / "trace.db",
        "generate_sync('s:m', 'Hi', engine=plain)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    mine = Engine(models=registry(Say('child')), trace=False)\n"
        "    print(generate_sync('s:m', 'Hi', engine=mine).text, flush=True)\n"
        "    run_sync(mine.aclose())\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print('parent')",
    )
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "child\nparent\n", "")


def test_a_failure_is_raised_in_the_calling_thread(engines: list[Engine]) -> None:
    """The exception has the turn."""
    engine = an_engine(engines, Say(fails=ServerError("down")), Say("Hel", fails=ServerError("down")))
    with pytest.raises(ServerError, match="down") as raised:
        generate_sync("s:m", "Hi", engine=engine)
    assert raised.value.turn.status == "failed"  # type: ignore[attr-defined]
    types: list[str] = []
    with pytest.raises(ServerError, match="down"):
        for event in stream_sync("s:m", "Hi", engine=engine):
            types.append(event.type)  # noqa: PERF401 (what came before the failure counts)
    assert types[-1] == "error"


def test_a_sync_stream_has_the_same_properties(engines: list[Engine]) -> None:
    """The properties are the events, the text, the response, the result, the partial response, and the usage."""
    with stream_sync("s:m", "Hi", engine=an_engine(engines, Say("Hel", "lo"))) as result:
        assert result.partial_response is None
        types = [event.type for event in result]
        assert (types[0], types[-1]) == ("message.start", "finish")
        assert list(result) == []
        assert result.response().text == result.result().text == "Hello"
        assert result.partial_response == result.response()
        assert not result.usage_so_far.estimated
        assert result.stream_id.startswith("trn_")
        assert not result.cancel()


def test_leaving_a_stream_cancels_it(engines: list[Engine]) -> None:
    """The end of its context cancels the call, and so does the loss of the last reference."""
    pauses = iter([0.0, 600.0, 0.0, 600.0])
    never = Say("Hel", "lo", pause=lambda: asyncio.sleep(next(pauses)))
    engine = an_engine(engines, never, never)
    with stream_sync("s:m", "Hi", engine=engine) as result:
        assert next(result.text_stream) == "Hel"
    with pytest.raises(CancelledError):
        result.response()
    for _ in stream_sync("s:m", "Hi", engine=engine).text_stream:
        break

    async def ended() -> list[str]:
        async with engine.bus.subscribe("session.turn_completed") as ends:
            if engine.streams.statistics().open:
                await anext(ends)
        return [] if engine.streams.statistics().readers else ["cancelled"]

    assert run_sync(ended()) == ["cancelled"]


def test_a_signal_from_another_thread_cancels_the_call(engines: list[Engine]) -> None:
    controller, begun = AbortController(), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(600)

    def give_up() -> None:
        begun.wait()
        controller.abort("enough")

    threading.Thread(target=give_up).start()
    with pytest.raises(CancelledError, match="enough"):
        generate_sync("s:m", "Hi", engine=an_engine(engines, Say("never", pause=wait)), signal=controller.signal)


@pytest.mark.parametrize("streamed", [False, True], ids=["generate", "stream"])
def test_closing_the_engine_in_another_thread_ends_the_wait(engines: list[Engine], streamed: bool) -> None:
    """The exception is the one that a coroutine gets. Later calls are refused."""
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(600)

    engine = an_engine(engines, Say("never", pause=wait))

    def close() -> None:
        begun.wait()
        run_sync(engine.aclose())

    threading.Thread(target=close).start()
    with pytest.raises(CancelledError, match="the engine was closed while this call ran"):
        if streamed:
            list(stream_sync("s:m", "Hi", engine=engine))
        else:
            generate_sync("s:m", "Hi", engine=engine)
    with pytest.raises(CallboardError, match="this engine is closed"):
        generate_sync("s:m", "Hi", engine=engine)


async def test_a_sync_call_warns_in_the_thread_of_a_loop(engines: list[Engine]) -> None:
    engine = an_engine(engines, Say("thread"), Say("loop"), Say("stream"))
    in_thread = await asyncio.to_thread(generate_sync, "s:m", "Hi", engine=engine)
    assert in_thread.text == "thread"
    with pytest.warns(RuntimeWarning, match=r"generate_sync\(\) blocks the event loop.*await") as warned:
        assert generate_sync("s:m", "Hi", engine=engine).text == "loop"
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(RuntimeWarning, match=r"stream_sync\(\) blocks") as warned:
        assert list(stream_sync("s:m", "Hi", engine=engine).text_stream) == ["stream"]
    assert [warning.filename for warning in warned] == [__file__]


async def test_an_engine_of_another_loop_is_refused_with_advice(engines: list[Engine]) -> None:
    async with Engine(models=registry(Say("never")), trace=False) as mine:
        with pytest.raises(WrongLoop, match=r"Leave engine= out.*await engine\.generate\(\)"):
            await asyncio.to_thread(generate_sync, "s:m", "Hi", engine=mine)
    other = an_engine(engines, Say("Hello"))
    await asyncio.to_thread(generate_sync, "s:m", "Hi", engine=other)
    with pytest.raises(WrongLoop, match="another event loop"):
        await other.generate("s:m", "Hi")


def test_an_async_tool_cannot_call_a_sync_function(engines: list[Engine]) -> None:
    """The tool would wait for its own thread. Its error has advice for the model. A plain function works."""

    async def ask(arguments: object) -> str:
        return generate_sync("s:m", "Hi", engine=engine).text

    def ask_plainly(arguments: object) -> str:
        return generate_sync("s:m", "Hi", engine=engine).text

    engine = an_engine(
        engines, Say(calls=[("ask", {}), ("plain", {})]), Say("from inside"), Say("That didn't work out.")
    )
    tools = [Tool(ToolDefinition("ask"), ask), Tool(ToolDefinition("plain"), ask_plainly)]  # type: ignore[arg-type]
    refused, answered = generate_sync("s:m", "Hi", engine=engine, tools=tools).steps[0].tool_results
    assert "await the async function instead" in refused.text
    assert answered.text == "from inside"


def test_the_sync_functions_use_the_hosts_default_engine(engines: list[Engine]) -> None:
    set_default_engine(an_engine(engines, Say("Hello")))
    try:
        assert generate_sync("s:m", "Hi").text == "Hello"
    finally:
        set_default_engine(None)


def test_a_sync_stream_is_steered_from_any_thread(engines: list[Engine]) -> None:
    """The reader's thread and a tool's thread can steer the turn. The next step has their messages."""

    def work(arguments: object) -> str:
        result.steer("from the tool")
        return "worked"

    engine = an_engine(engines, Say(calls=[("work", {})]), Say("done"))
    with stream_sync("s:m", "Hi", engine=engine, tools=[Tool(ToolDefinition("work"), work)]) as result:
        result.steer("from the reader")
        final = result.result()
    texts = [message.text for message in final.messages]
    assert texts == ["Hi", "from the reader", "", "", "from the tool", "done"]
    assert result.undelivered == ()
    with pytest.raises(NoTurnRunning):
        result.steer("too late")


def test_an_engine_in_a_plain_with_block_is_closed_at_its_end() -> None:
    engine = Engine(models=registry(Say("Hello"), Say(fails=ServerError("no"))), trace=False)
    with engine as entered:
        assert entered is engine
        session = engine.session("s:m")
        assert session.send_sync("Hi").text == "Hello"
        with pytest.raises(ServerError):
            session.send_sync("Hi")
    assert engine.closed
    with pytest.raises(CallboardError), engine:
        pass


async def test_an_engine_of_a_loop_is_refused_by_send_sync() -> None:
    """The error has advice. A plain `with Engine()` in a coroutine gives a warning that names `async with`."""
    async with Engine(models=registry(Say("Hello")), trace=False) as engine:
        session = engine.session("s:m")
        with pytest.warns(RuntimeWarning, match=r"send_sync\(\) blocks"):
            with pytest.raises(WrongLoop, match=r"with Engine\(\) as engine"):
                session.send_sync("Hi")
        assert (await session.send("Hi")).text == "Hello"
    with pytest.warns(RuntimeWarning, match="use `async with Engine"), Engine(models=registry(), trace=False):
        pass


def test_an_async_tool_that_calls_send_sync_gets_an_error() -> None:
    with Engine(models=registry(Say(calls=[("ask", {})]), Say("Done")), trace=False) as engine:

        async def ask() -> str:
            """Call send_sync."""
            return engine.session("s:m").send_sync("Hi").text

        session = engine.session("s:m", tools=[ask])
        session.send_sync("Hi")
    (refused,) = session.messages[2].content
    assert "would wait for itself" in refused.text  # type: ignore[union-attr]
