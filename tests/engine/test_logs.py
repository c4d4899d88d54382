"""What the engine logs of others' code that raises, and that none of it gets onto a stream."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from callboard.bus.log import ROOT
from callboard import AbortController, CallEnd, CallInfo, Middleware, ServerError, tool
from tests.engine.tools.rounds import result_of
from tests.support.engines import running
from tests.support.present import present
from tests.support.programs import ended
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

from .tools.rounds import call, run

pytestmark = pytest.mark.anyio

CHECKOUT = Path(__file__).parents[2]

DIES = """
import asyncio, os, sys
from pathlib import Path
from tests.support.engines import running
from tests.support.scripted import Say

async def main():
    async with running(Say("a", pause=lambda: asyncio.sleep(9)), store=Path(sys.argv[1])) as (engine, events):
        asyncio.create_task(engine.session("s:m").send("Hi"))
        async for envelope in events:
            if envelope.topic == "llm.call_started":
                break
        await engine.flush()
        os._exit(0)

asyncio.run(main())
"""

UNRELATED = """
import asyncio, json, sys
from pathlib import Path
from callboard import tool
from tests.support.engines import running
from tests.support.scripted import Say

@tool
def boom() -> str:
    "Fails."
    raise ValueError("no")

async def main():
    said = [Say(calls=[("boom", {})]), Say("done")]
    async with running(*said, store=Path(sys.argv[1])) as (engine, _):
        reply = await engine.session("s:m", tools=[boom]).send("Hi")
        await engine.flush()
        rows = await engine.store.calls()
    print(json.dumps([reply.text, *(row.error_class for row in rows)]))

asyncio.run(main())
"""

anyio_backend = runs_on("asyncio")


def raises(*_: object) -> str:
    raise ValueError("no")


async def a_tool() -> None:
    def boom() -> str:
        raise ValueError("no")

    assert (await result_of(tool(boom, name="boom", description="Fails."))).is_error


async def an_approval() -> None:
    made = tool(raises_never, name="t", description="Works.")
    assert (await result_of(made, approve=raises)).is_error


async def a_repair() -> None:
    made = tool(raises_never, name="t", description="Works.")
    assert (await run([call("t", {"x": 1})], [made], repair=raises)).results[0].is_error


def raises_never() -> str:
    return "well"


async def a_callback_of_an_abort() -> None:
    controller = AbortController()
    controller.signal.watch(raises)
    controller.abort("enough")


async def a_middleware() -> None:
    class Broken(Middleware):
        def settle(self, call: CallInfo, end: CallEnd) -> None:
            raise ValueError("no")

    async with running(Say("a"), middleware=[Broken()]) as (engine, _):
        await engine.generate("s:m", "Hi")


HOSTS_CODE = (a_tool, an_approval, a_repair, a_callback_of_an_abort, a_middleware)


@pytest.mark.parametrize("broken", HOSTS_CODE)
async def test_a_hosts_code_that_raises_leaves_its_traceback(
    broken: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the exception of one log record, and nothing on stdout or stderr."""
    await broken()
    (record,) = (record for record in caplog.records if record.name.startswith(ROOT))
    assert isinstance(present(record.exc_info)[1], ValueError)
    assert record.levelno >= logging.WARNING
    assert capfd.readouterr() == ("", "")


def test_a_script_has_its_streams_to_itself(tmp_path: Path) -> None:
    """Beside a raising tool and the lost run of another process, stdout is the script's JSON, stderr is empty."""
    trace = str(tmp_path / "trace.db")
    for program in (DIES, UNRELATED):
        done = ended(program, trace)
        assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '["done", null, null, "process_lost"]\n'


async def test_a_failed_call_is_no_line_on_a_stream(capfd: pytest.CaptureFixture[str]) -> None:
    """It is an exception for who asked."""
    async with running(Say(fails=ServerError("down"))) as (engine, _):
        with pytest.raises(ServerError):
            await engine.generate("s:m", "Hi")
    assert capfd.readouterr() == ("", "")
