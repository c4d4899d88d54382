"""The engine with its store, on a real loop and in real processes: starting, stopping, dying, repricing."""

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
from callboard.bus import CancelledError, ConfigurationError, Json, StoreError, WrongLoop
from callboard.bus.log import ROOT
from callboard.engine import Check, Engine, HealthReport, Limits, ModelRegistry, load_registry
from callboard.engine.watching.health import check_store
from callboard.tracestore import CallFilter, PriceTable, TraceStore, WriterStatistics

from ..support.engines import entry, registry, running, serving, topics
from ..support.present import present
from ..support.programs import ended
from ..support.provider_server import ProviderServer, provider_server
from ..support.scripted import Say, ScriptedAdapter
from ..support.virtual_time import runs_on
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


async def test_every_call_becomes_a_row_with_its_cost(tmp_path: Path) -> None:
    """After a flush the trace has the call, its tokens and what it cost under the engine's table."""
    table = prices(tmp_path, "first", "1")
    async with running(Say("Hello"), store=tmp_path / "trace.db", prices=table) as (engine, _):
        message = await engine.session("s:m").send("Hi")
        await engine.flush()
        (row,) = await present(engine.store).calls()
        assert row.status == "completed"
        assert row.cost is not None
        assert row.cost.nano_usd == 10 * 1000 + 5 * 10_000, "10 tokens at 1 USD and 5 at 10 USD a million"
        assert present(message.metadata).cost == row.at_call_time


async def test_repricing_shows_in_the_trace_and_in_live_messages(tmp_path: Path) -> None:
    """After a reprice, rows and session messages have the new cost; objects handed out before are snapshots."""
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
        after = session.messages[-1].metadata
        assert after.cost.nano_usd == 80_000
        assert after.pricing_version == second.version
        assert engine.prices is first, "a repricing of the past is none of new calls"
        assert topics(events.take(), "pricing.repriced") == ["pricing.repriced"]
        (row,) = await present(engine.store).calls(CallFilter(session_id=session.id))
        assert (present(row.at_call_time).nano_usd, present(row.cost).nano_usd) == (60_000, 80_000)


async def test_an_engine_is_entered_in_one_task_and_left_in_another(tmp_path: Path) -> None:
    """Start and stop may come from different tasks of one loop; stopping is idempotent and says it was clean."""
    engine = Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db")
    await asyncio.create_task(engine.__aenter__())
    assert (await engine.session("s:m").send("Hi")).text == "Hello"
    report = await asyncio.create_task(engine.aclose())
    assert report.clean
    assert await engine.aclose() == report
    with pytest.raises(Exception, match="closed"):
        await engine.session("s:m").send("too late")


async def test_a_call_under_way_ends_in_a_row_when_the_engine_stops(tmp_path: Path) -> None:
    """Stopping fails what runs, and the trace knows it: no started call is left without an end."""
    engine = Engine(models=registry(Say("never", pause=asyncio.Event().wait)), store=tmp_path / "trace.db")
    await engine.start()
    async with engine.bus.subscribe("llm.call_started") as starts:
        sending = asyncio.create_task(engine.session("s:m").send("Hi"))
        await anext(starts)
    await engine.aclose()
    with pytest.raises(CancelledError, match="the engine was closed while this call ran"):
        await sending
    async with TraceStore.open_readonly(tmp_path / "trace.db") as store:
        assert [row.status for row in await store.calls()] == ["cancelled"]


async def test_without_retention_nothing_of_a_stream_outlives_its_turn() -> None:
    """With retention 0 a stream that is over can't be attached to; by default it can."""
    for limits, kept in ((Limits(), True), (Limits(retain_streams_seconds=0, retain_streams_bytes=0), False)):
        async with Engine(models=registry(Say("Hello")), trace=False, limits=limits) as engine:
            async with engine.session("s:m").stream("Hi") as turn:
                assert "".join([text async for text in turn.text_stream]) == "Hello"
            assert (turn.stream_id in engine.streams) is kept
            assert (engine.streams.statistics().closed_bytes > 0) is kept


async def test_a_trace_that_is_no_database_stops_the_start_and_is_not_touched(tmp_path: Path) -> None:
    """A foreign file is refused with its name, and its bytes stay as they were; a good path works afterwards."""
    path = tmp_path / "trace.db"
    path.write_text("my shopping list")
    engine = Engine(models=registry(Say("x")), store=path)
    with pytest.raises(StoreError, match=r"trace\.db"):
        await engine.start()
    assert path.read_text() == "my shopping list"


def test_content_that_could_not_be_kept_is_refused_rather_than_ignored() -> None:
    """Who asks for content to be kept learns at once that it would not be."""
    with pytest.raises(ConfigurationError, match="capture_content"):
        Engine(models=registry(), trace=False, capture_content=True)


async def test_an_engine_that_was_closed_leaves_its_run_ended(tmp_path: Path) -> None:
    """The next one finds nothing lost, and no file of the first one lies beside the trace."""
    path = tmp_path / "trace.db"
    async with running(Say("x"), store=path) as (engine, _):
        await engine.session("s:m").send("hello")
        assert [file.name for file in tmp_path.glob("*.run-*")] == [f"trace.db.run-{engine.bus.run_id}"]  # noqa: ASYNC240
    assert list(tmp_path.glob("*.run-*")) == []  # noqa: ASYNC240
    async with TraceStore(path) as store:
        assert await store.close_lost_runs() == []
        assert [row.status for row in await store.calls()] == ["completed"]


# What the engine logs of others' code that raises, and that none of it gets onto a stream.

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
        done = ended(program, trace, fresh=True)
        assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '["done", null, null, "process_lost"]\n'


# `engine.health()`: what is checked while the engine runs, and that checking disturbs nothing.

KEY = "sk-a-key-that-nobody-may-see"


class Checked(ScriptedAdapter):
    """A host's own adapter, whose health check does what the class says."""

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


async def test_an_adapter_without_a_health_check_is_not_asked() -> None:
    report = await health_of(of(f"{__name__}:Unchecked", "s"))
    assert check(report, "provider:s").ok
    assert check(report, "provider:s").detail.startswith("not contacted")


async def test_a_running_engine_is_examined_without_being_disturbed(tmp_path: Path) -> None:
    """Its open trace file, its writer and its adapters; the session then goes on."""
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
    """Looking at it leaves it as it was."""
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
async def test_whatever_an_adapters_own_check_answers_is_a_finding(
    checked: type[Checked], monkeypatch: pytest.MonkeyPatch, answer: object, ok: bool, detail: str
) -> None:
    """A bool, nothing, an error or a crash; what fails has advice, and no key comes through."""
    monkeypatch.setattr(checked, "answer", answer)
    report = await health_of(of(f"{__name__}:Checked", "own"))
    found = check(report, "provider:own")
    assert (found.ok, report.ok) == (ok, ok)
    assert detail in found.detail
    assert bool(found.fix) is not ok
    assert KEY not in repr(report)
    assert checked.closed_ones == ["own"]


async def test_providers_that_hang_are_given_up_side_by_side(
    checked: type[Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty of them take no longer than one; each of them is closed."""
    monkeypatch.setattr(checked, "answer", 3600.0)
    names = [f"p{number}" for number in range(20)]
    with anyio.fail_after(5):
        report = await health_of(of(f"{__name__}:Checked", *names), time_limit=0.5)
    assert all("within 0.5 s" in check(report, f"provider:{name}").detail for name in names)
    assert sorted(checked.closed_ones) == sorted(names)
    assert [c.name for c in report.checks if c.name.startswith("provider:")] == [f"provider:{n}" for n in names]


async def test_a_real_server_that_hangs_is_given_up_after_the_limit() -> None:
    """Over a socket as well, and the connection is closed."""
    with provider_server(None) as server, anyio.fail_after(5):
        report = await health_of(of("openai", "slow", url=server.url), time_limit=0.2)
    assert "no answer within 0.2 s" in check(report, "provider:slow").detail


async def test_a_running_adapter_is_asked_over_its_own_connections() -> None:
    """What is checked is what calls go through, and it stays open for them."""
    server: ProviderServer
    with provider_server() as server:
        async with Engine(models=of("openai", "here", url=server.url), trace=False) as engine:
            (await engine._runtime.adapters.acquire("here")).release()
            for _ in range(2):
                assert (await engine.health()).ok
            (provider,) = engine.statistics().providers
            assert present(provider.adapter.transport).clients == 1
        assert len(server.asked) == 2
        assert (await engine.health()).ok  # closed: over connections of its own


async def test_an_adapter_type_or_a_default_model_that_is_not_there_is_a_finding() -> None:
    """Elsewhere the type would come up with the first call, and the model when somebody names none."""
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


async def test_a_models_file_that_was_spoilt_after_the_start_is_found(tmp_path: Path) -> None:
    """The engine goes on with what it has; the next start would fail."""
    path = tmp_path / "models.yaml"
    path.write_text(f"adapters:\n  own: {{type: '{__name__}:Checked'}}\n")
    async with Engine(models=load_registry(path), trace=False) as engine:
        assert check(await engine.health(), "configuration").ok
        path.write_text("adapters: [\n")
        found = check(await engine.health(), "configuration")
    assert not found.ok
    assert "is not valid YAML" in found.detail


async def test_a_damaged_trace_file_fails_while_the_rest_is_told(tmp_path: Path) -> None:
    """Both with a page overwritten and with the header gone."""
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
    ids=[
        "a folder in its place",
        "a full disk",
        "no right to write",
        "a store that fails",
        "events lost for good",
    ],
)
async def test_what_ails_a_trace_file_is_a_finding(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    patched: tuple[str, object] | None,
    behind: WriterStatistics | None,
    words: list[str],
) -> None:
    """Before the first call fails, and though calls go on; the finding names the reason or the folder."""
    if patched is not None:
        monkeypatch.setattr(*patched)
    path = tmp_path if name == "store" else tmp_path / "trace.db"
    checks = {found.name: found for found in await check_store(TraceStore(path), behind)}
    assert not checks[name].ok
    assert checks["store"].ok is (name != "store")
    said = checks[name].detail + checks[name].fix
    assert [word for word in words if word.format(folder=tmp_path) not in said] == []


async def test_another_loop_is_told_that_it_is_the_wrong_one() -> None:
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
