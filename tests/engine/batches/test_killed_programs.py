"""A program is killed at its worst moments, the provider is restarted, and the program is started again."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from callboard.bus.errors import StoreError
from callboard.tracestore import CallFilter
from callboard.tracestore.writing import writer
from callboard.tracestore.writing.spill import adopt_leftovers
from tests.support.batch_engines import TEXTS, engine_at, nano_of, run_to_the_end
from tests.support.batch_server import BatchServer, batch_server
from tests.support.batch_wires import MODELS
from tests.support.programs import ended
from tests.support.virtual_time import backend

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return backend("asyncio")


KILLED_BEFORE_ITS_ANSWER = """
    import json, sys
    from urllib.request import urlopen
    import anyio
    from tests.support.batch_engines import die_when, run_to_the_end

    url, store, wire, name, already = sys.argv[1:]

    def submitted():
        return len(json.load(urlopen(url + "/books"))["jobs"]) > int(already)

    die_when(submitted)
    anyio.run(run_to_the_end, url, store, wire, name)
"""

KILLED_AMONG_ITS_RESULTS = """
    import os, signal, sys
    import anyio
    from tests.support import batch_engines as engines

    url, store, wire, name, _ = sys.argv[1:]

    async def die_at_the_twentieth_result():
        async with engines.engine_at(url, store) as engine:
            batch = await engine.create_batch(
                engines.requests_of(wire, *engines.TEXTS), batch_id=name, polling=engines.OFTEN
            )
            with engine.bus.subscribe("llm.*") as events:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(batch.wait)
                    ends = 0
                    async for envelope in events:
                        ends += envelope.topic != "llm.call_started"
                        if ends == 20:
                            await engine.flush()
                            os.kill(os.getpid(), signal.SIGKILL)

    anyio.run(die_at_the_twentieth_result)
"""


async def check_paid_once(server: BatchServer, store: Path, wire: str, name: str) -> None:
    """The program ends well now; the provider made one job and bills each request once, and so do our books."""
    results = await run_to_the_end(server.url, str(store), wire, name)
    answered = [text for text in TEXTS if text != "fail"]
    assert [each.response.text for each in results if each.response] == [f"answer to {text}" for text in answered]
    assert results.cost.nano_usd == nano_of(wire, *answered)
    books = server.books()
    assert sorted(key for key in books["billed"] if key.startswith(f"{name}-")) == sorted(
        f"{name}-{place}" for place, text in enumerate(TEXTS) if text != "fail"
    )
    assert books["sizes"].count(len(TEXTS)) == 1
    async with engine_at(server.url, store) as engine:
        assert engine.store is not None
        await engine.start()
        rows = await engine.store.calls(CallFilter(operation="batch"), limit=None)
        assert len(rows) == len(TEXTS)
        assert sum(row.cost.nano_usd or 0 for row in rows if row.cost) == nano_of(wire, *answered)


@pytest.mark.parametrize("wire", MODELS)
async def test_killed_after_the_sending_and_before_the_answer(wire: str, tmp_path: Path) -> None:
    """The job is found in the list of a provider that was restarted meanwhile."""
    with batch_server(tmp_path) as server:
        server.fail("hold create")
        killed = ended(KILLED_BEFORE_ITS_ANSWER, server.url, tmp_path / "trace.db", wire, "night", 0)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        server.kill()
        server.start()
        await check_paid_once(server, tmp_path / "trace.db", wire, "night")


async def killed_with_a_job(server: BatchServer, store: Path) -> None:
    server.fail("hold create")
    killed = ended(KILLED_BEFORE_ITS_ANSWER, server.url, store, "anthropic", "night", 0)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


async def test_what_a_dead_program_left_is_read_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to take in the files beside the trace, the job that they tell of is looked for."""

    async def at_length(*args: object, **options: object) -> bool:
        for _ in range(3000):  # turns of the event loop, in which others could go on
            await anyio.lowlevel.checkpoint()
        return await adopt_leftovers(*args, **options)  # type: ignore[arg-type]

    with batch_server(tmp_path) as server:
        await killed_with_a_job(server, tmp_path / "trace.db")
        monkeypatch.setattr(writer, "adopt_leftovers", at_length)
        await check_paid_once(server, tmp_path / "trace.db", "anthropic", "night")


async def test_nothing_is_sent_while_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may have been sent by who left it, so asking for one is an error until it can be read."""

    async def not_now(*args: object, **options: object) -> bool:
        return False

    with batch_server(tmp_path) as server:
        await killed_with_a_job(server, tmp_path / "trace.db")
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(writer, "adopt_leftovers", not_now)
            with pytest.raises(StoreError, match="an earlier process left"):
                await run_to_the_end(server.url, str(tmp_path / "trace.db"), "anthropic", "night")
        await check_paid_once(server, tmp_path / "trace.db", "anthropic", "night")


async def test_killed_among_its_results(tmp_path: Path) -> None:
    """Those that were counted are not counted again, and the others are."""
    with batch_server(tmp_path) as server:
        killed = ended(KILLED_AMONG_ITS_RESULTS, server.url, tmp_path / "trace.db", "openai", "night", 0)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        await check_paid_once(server, tmp_path / "trace.db", "openai", "night")
