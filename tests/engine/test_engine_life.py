"""The engine with its store, on a real loop and in real processes: start, stop, death, repricing and health."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from callboard import AbortController, Middleware, tool
from callboard.adapters import AdapterConfig, AuthError
from callboard.bus import ConfigurationError, Json, StoreError, WrongLoop
from callboard.bus.log import ROOT
from callboard.engine import Check, Engine, HealthReport, Limits, ModelRegistry, Reply, load_registry
from callboard.engine.watching.health import check_store
from callboard.tracestore import CallFilter, PriceTable, TraceStore, WriterStatistics

from ..support.engines import entry, registry, running, serving, topics
from ..support.present import present
from ..support.programs import ended
from ..support.provider_server import ProviderServer, provider_server
from ..support.scripted import Say, ScriptedAdapter
from ..support.virtual_time import runs_on
from ..tracestore.trace_making import Maker
from .tools.rounds import call, result_of, run

anyio_backend = runs_on("asyncio")


PRICES = """
label: {label}
prices:
  - model: "s:*"
    input: "{input}"
    output: "10"
"""


def prices(folder: Path, label: str, rate: str) -> PriceTable:
    path = folder / f"{label}.yaml"
    path.write_text(PRICES.format(label=label, input=rate))
    return PriceTable.from_yaml(path)


async def test_repricing_shows_in_the_trace_and_in_live_messages(tmp_path: Path) -> None:
    """After a reprice, rows and session messages have the new cost."""
    first, second = prices(tmp_path, "first", "1"), prices(tmp_path, "second", "3")
    async with running(Say("Hello"), store=tmp_path / "trace.db", prices=first) as (engine, events):
        session = engine.session("s:m")
        before = await session.send("Hi")
        dry = await engine.reprice(second, dry_run=True)
        assert dry.sum_after_nano_usd - dry.sum_before_nano_usd == 10 * 2000
        assert session.messages[-1] == before, "a dry run changes nothing"
        report = await engine.reprice(second)
        assert report.sum_after_nano_usd == 10 * 3000 + 5 * 10_000
        assert present(before.metadata).cost.nano_usd == 60_000
        assert isinstance(session.messages[-1], Reply)
        after = session.messages[-1].metadata
        assert (after.cost.nano_usd, after.pricing_version) == (80_000, second.version)
        assert engine.prices is first, "a repricing does not change the prices of new calls"
        assert topics(events.take(), "pricing.repriced") == ["pricing.repriced"]
        (row,) = await present(engine.store).calls(CallFilter(session_id=session.id))
        assert (present(row.at_call_time).nano_usd, present(row.cost).nano_usd) == (60_000, 80_000)


async def test_an_engine_is_entered_in_one_task_and_left_in_another(tmp_path: Path) -> None:
    """Start and stop can run in different tasks of one loop. A second close returns the same report."""
    engine = Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db")
    await asyncio.create_task(engine.__aenter__())
    assert (await engine.session("s:m").send("Hi")).text == "Hello"
    report = await asyncio.create_task(engine.aclose())
    assert report.clean
    assert await engine.aclose() == report
    with pytest.raises(Exception, match="closed"):
        await engine.session("s:m").send("too late")


async def test_without_retention_a_stream_ends_with_its_turn() -> None:
    """With retention 0 a completed stream can't be attached. With the default it can."""
    for limits, kept in ((Limits(), True), (Limits(retain_streams_seconds=0, retain_streams_bytes=0), False)):
        async with Engine(models=registry(Say("Hello")), trace=False, limits=limits) as engine:
            async with engine.session("s:m").stream("Hi") as turn:
                assert "".join([text async for text in turn.text_stream]) == "Hello"
            assert (turn.stream_id in engine.streams) is kept
            assert (engine.streams.statistics().closed_bytes > 0) is kept


async def test_a_trace_that_is_no_database_prevents_the_start_and_stays_unchanged(tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "trace.db"
    path.write_text("my shopping list")
    engine = Engine(models=registry(Say("x")), store=path)
    with pytest.raises(StoreError, match=r"trace\.db"):
        await engine.start()
    assert path.read_text() == "my shopping list"


def test_capture_content_without_a_trace_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="capture_content"):
        Engine(models=registry(), trace=False, capture_content=True)


async def test_an_engine_that_was_closed_leaves_its_run_ended(tmp_path: Path) -> None:
    """The next store finds no lost run, and no run file of the engine remains."""
    path = tmp_path / "trace.db"
    async with running(Say("x"), store=path) as (engine, _):
        await engine.session("s:m").send("hello")
        assert [file.name for file in tmp_path.glob("*.run-*")] == [f"trace.db.run-{engine.bus.run_id}"]  # noqa: ASYNC240
    assert list(tmp_path.glob("*.run-*")) == []  # noqa: ASYNC240
    async with TraceStore(path) as store:
        assert await store.close_lost_runs() == []
        assert [row.status for row in await store.calls()] == ["completed"]


# Log records of the host's code that raises. No output goes to stdout or stderr.

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
        while any(row.status == "started" for row in rows):  # the writer ends the lost run in the background
            await asyncio.sleep(0.01)
            rows = await engine.store.calls()
    print(json.dumps([reply.text, *(row.error_class for row in rows)]))

asyncio.run(main())
"""


def raises(*_: object) -> str:
    raise ValueError("no")


WORKS = tool(lambda: "well", name="t", description="Works.")


async def a_tool() -> None:
    assert (await result_of(tool(lambda: raises(), name="boom", description="Fails."))).is_error


async def an_approval() -> None:
    assert (await result_of(WORKS, approve=raises)).is_error


async def a_repair() -> None:
    assert (await run([call("t", {"x": 1})], [WORKS], repair=raises)).results[0].is_error


async def a_callback_of_an_abort() -> None:
    controller = AbortController()
    controller.signal.watch(raises)
    controller.abort("enough")


async def a_middleware() -> None:
    class Broken(Middleware):
        settle = raises  # type: ignore[assignment]

    async with running(Say("a"), middleware=[Broken()]) as (engine, _):
        await engine.generate("s:m", "Hi")


HOSTS_CODE = (a_tool, an_approval, a_repair, a_callback_of_an_abort, a_middleware)


@pytest.mark.parametrize("broken", HOSTS_CODE)
async def test_a_hosts_code_that_raises_leaves_its_traceback(
    broken: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """One log record has the exception. stdout and stderr stay empty."""
    await broken()
    (record,) = (record for record in caplog.records if record.name.startswith(ROOT))
    assert isinstance(present(record.exc_info)[1], ValueError)
    assert record.levelno >= logging.WARNING
    assert capfd.readouterr() == ("", "")


def test_the_engine_writes_nothing_to_a_scripts_streams(tmp_path: Path) -> None:
    """A tool raises, and another process has left a lost run. stdout has only the script's JSON, and stderr is
    empty.
    """

    async def die() -> None:
        async with TraceStore(tmp_path / "trace.db") as store:
            await store.write([Maker("run_dead").started("req_1")])

    asyncio.run(die())
    done = ended(UNRELATED, tmp_path / "trace.db", fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '["done", null, null, "process_lost"]\n'


# `engine.health()`: the checks of a running engine, and their side effects.

KEY = "sk-a-key-that-nobody-may-see"


class Checked(ScriptedAdapter):
    """A host's own adapter with a health check that returns `answer`."""

    answer: ClassVar[object] = None
    closed_ones: ClassVar[list[str]] = []

    async def health_check(self) -> object:
        answer = type(self).answer
        if isinstance(answer, float):
            await anyio.sleep(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        await super().close()
        self.closed_ones.append(self.name)


class Unchecked(ScriptedAdapter):
    """A host's own adapter without a health check."""

    script: ClassVar = []
    health_check = None  # type: ignore[assignment]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> type[Checked]:
    monkeypatch.setattr(Checked, "closed_ones", [])
    monkeypatch.setattr(Checked, "script", [], raising=False)
    return Checked


def of(kind: str, *names: str, options: Mapping[str, Json] | None = None, url: str | None = None) -> ModelRegistry:
    config = AdapterConfig(api_key=KEY, base_url=url, options=options or {})
    return serving(**{name: entry(name, kind, config) for name in names})


def check(report: HealthReport, name: str) -> Check:
    (found,) = [check for check in report.checks if check.name == name]
    return found


async def health_of(models: ModelRegistry, **options: float) -> HealthReport:
    return await Engine(models=models, trace=False).health(**options)  # type: ignore[arg-type]


async def test_an_adapter_without_a_health_check_is_not_contacted() -> None:
    report = await health_of(of(f"{__name__}:Unchecked", "s"))
    assert check(report, "provider:s").ok
    assert check(report, "provider:s").detail.startswith("not contacted")


async def test_a_running_engine_is_checked_without_side_effects(tmp_path: Path) -> None:
    """The checks cover its open trace file, its writer and its adapters. Its session can continue."""
    async with running(Say("one"), Say("two"), store=tmp_path / "trace.db") as (engine, _):
        session = engine.session("s:m")
        await session.send("hello")
        await engine.flush()
        report = await engine.health()
        assert report.ok, report
        assert check(report, "store:writer").detail.startswith("ok: ")
        assert check(report, "store:journal").ok
        assert check(report, "provider:s").detail == "plays a script"
        assert (await session.send("again")).text == "two"
    assert (await engine.health()).ok


async def test_an_engine_that_never_started_makes_no_file_and_starts_nothing(tmp_path: Path) -> None:
    engine = Engine(models=registry(Say("one")), store=tmp_path / "home" / "trace.db")
    report = await engine.health()
    assert report.ok
    assert engine.statistics().state == "new"
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("answer", "ok", "detail"),
    [
        (True, True, "passed"),
        (None, True, "passed"),
        (False, False, "failed"),
        (AuthError("who are you?"), False, "who are you?"),
        (RuntimeError(f"bug with {KEY}"), False, "RuntimeError: bug with ***"),
    ],
)
async def test_every_result_of_an_adapters_check_is_reported(
    checked: type[Checked], monkeypatch: pytest.MonkeyPatch, answer: object, ok: bool, detail: str
) -> None:
    """The result is a bool, None, an error or a crash. A failure has advice, and no key is shown."""
    monkeypatch.setattr(checked, "answer", answer)
    report = await health_of(of(f"{__name__}:Checked", "own"))
    found = check(report, "provider:own")
    assert (found.ok, report.ok) == (ok, ok)
    assert detail in found.detail
    assert bool(found.fix) is not ok
    assert KEY not in repr(report)
    assert checked.closed_ones == ["own"]


async def test_checks_of_hanging_providers_time_out_concurrently(
    checked: type[Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty checks take no longer than one, and each adapter is closed."""
    monkeypatch.setattr(checked, "answer", 3600.0)
    names = [f"p{number}" for number in range(20)]
    with anyio.fail_after(5):
        report = await health_of(of(f"{__name__}:Checked", *names), time_limit=0.5)
    assert all("within 0.5 s" in check(report, f"provider:{name}").detail for name in names)
    assert sorted(checked.closed_ones) == sorted(names)
    assert [c.name for c in report.checks if c.name.startswith("provider:")] == [f"provider:{n}" for n in names]


async def test_the_check_of_a_hanging_server_times_out() -> None:
    with provider_server(None) as server, anyio.fail_after(5):
        report = await health_of(of("openai", "slow", url=server.url), time_limit=0.2)
    assert "no answer within 0.2 s" in check(report, "provider:slow").detail


async def test_a_running_adapter_is_checked_over_its_own_connections() -> None:
    server: ProviderServer
    with provider_server() as server:
        async with Engine(models=of("openai", "here", url=server.url), trace=False) as engine:
            (await engine._runtime.adapters.acquire("here")).release()
            for _ in range(2):
                assert (await engine.health()).ok
            (provider,) = engine.statistics().providers
            assert present(provider.adapter.transport).clients == 1
        assert len(server.asked) == 2
        assert (await engine.health()).ok  # The engine is closed, so the check opens its own connection.


async def test_a_missing_adapter_type_or_default_model_is_reported() -> None:
    """Without the check, the error would be raised by the first call that needs the type or model."""
    report = await health_of(of("no_such_module:Adapter", "odd"))
    found = check(report, "adapter:odd")
    assert ("no_such_module" in found.detail, "adapters.odd" in found.fix) == (True, True)
    assert not found.ok
    assert not check(report, "usable").ok
    models = of(f"{__name__}:Checked", "own")
    models.default_model = "none-such"
    found = check(await health_of(models), "configuration")
    assert not found.ok
    assert "none-such" in found.detail


async def test_a_models_file_that_became_invalid_after_the_start_is_reported(tmp_path: Path) -> None:
    """The engine continues with its configuration, but the next start would fail."""
    path = tmp_path / "models.yaml"
    path.write_text(f"adapters:\n  own: {{type: '{__name__}:Checked'}}\n")
    async with Engine(models=load_registry(path), trace=False) as engine:
        assert check(await engine.health(), "configuration").ok
        path.write_text("adapters: [\n")
        found = check(await engine.health(), "configuration")
    assert not found.ok
    assert "is not valid YAML" in found.detail


async def test_a_damaged_trace_file_fails_and_the_other_checks_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    async with TraceStore(path):
        pass
    _fill_and_spoil(path)
    checks = {found.name: found for found in await check_store(TraceStore(path))}
    assert "damaged" in checks["store"].detail
    assert "recover" in checks["store"].fix
    assert checks["store:disk"].ok


LOCKED = WriterStatistics("spilling", 40, 30, 10, 0, None, None, 4, "database is locked")
A_HOLE = WriterStatistics("ok", 0, 0, 10, 3, 4, 6, 0, "disk full")


@pytest.mark.parametrize(
    ("name", "patched", "behind", "words"),
    [
        ("store", None, None, ["not a regular file"]),
        ("store:disk", ("callboard.engine.watching.health.LEAST_FREE_BYTES", 1 << 62), None, ["{folder}"]),
        ("store:writable", ("os.access", lambda path, mode: False), None, ["{folder}"]),
        ("store:writer", None, LOCKED, ["spilling", "database is locked"]),
        ("store:writer", None, A_HOLE, ["3 lost"]),
    ],
    ids=["a folder in its place", "a full disk", "no right to write", "a store that fails", "lost events"],
)
async def test_problems_of_a_trace_file_are_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    patched: tuple[str, object] | None,
    behind: WriterStatistics | None,
    words: list[str],
) -> None:
    """The check names the reason or the folder, even while calls continue."""
    if patched is not None:
        monkeypatch.setattr(*patched)
    path = tmp_path if name == "store" else tmp_path / "trace.db"
    checks = {found.name: found for found in await check_store(TraceStore(path), behind)}
    assert not checks[name].ok
    assert checks["store"].ok is (name != "store")
    text = checks[name].detail + checks[name].fix
    assert [word for word in words if word.format(folder=tmp_path) not in text] == []


async def test_a_health_check_in_another_loop_is_refused() -> None:
    """The clients of a running engine belong to its loop."""
    errors: list[Exception] = []
    async with running() as (engine, _):

        def elsewhere() -> None:
            try:
                asyncio.run(engine.health())
            except WrongLoop as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
    assert len(errors) == 1


def _fill_and_spoil(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ballast (text)")
        connection.executemany("INSERT INTO ballast VALUES (?)", [("x" * 500,)] * 2000)
    connection.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 3 * 4096)
        file.write(b"\xff" * 4096)
