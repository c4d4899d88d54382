"""`engine.health()`: what is checked while the engine runs, and that checking disturbs nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from callboard.adapters import AdapterConfig, AuthError
from callboard.bus import Json, WrongLoop
from callboard.engine import Check, Engine, HealthReport, ModelRegistry, load_registry
from callboard.engine.watching.health import check_store
from callboard.tracestore import TraceStore, WriterStatistics
from tests.support.engines import entry, registry, running, serving
from tests.support.present import present
from tests.support.provider_server import ProviderServer, provider_server
from tests.support.scripted import Say, ScriptedAdapter
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

KEY = "sk-a-key-that-nobody-may-see"

anyio_backend = runs_on("asyncio")


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
    """Which is no fault."""
    report = await health_of(of(f"{__name__}:Unchecked", "s"))
    assert check(report, "provider:s").ok
    assert check(report, "provider:s").detail.startswith("not asked")


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
        (True, True, "content"),
        (None, True, "content"),
        (False, False, "says no"),
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
            assert provider.adapter is not None
            assert present(provider.adapter.transport).clients == 1
        assert len(server.asked) == 2
        assert (await engine.health()).ok  # closed: over connections of its own


async def test_an_adapter_type_that_is_not_there_is_a_finding() -> None:
    """Elsewhere it would come up with the first call."""
    report = await health_of(of("no_such_module:Adapter", "odd"))
    found = check(report, "adapter:odd")
    assert not found.ok
    assert "no_such_module" in found.detail
    assert "adapters.odd" in found.fix
    assert not check(report, "usable").ok


async def test_a_models_file_that_was_spoilt_after_the_start_is_found(tmp_path: Path) -> None:
    """The engine goes on with what it has; the next start would fail."""
    path = tmp_path / "models.yaml"
    path.write_text(f"adapters:\n  own: {{type: '{__name__}:Checked'}}\n")
    async with Engine(models=load_registry(path), trace=False) as engine:
        assert check(await engine.health(), "configuration").ok
        path.write_text("adapters: [\n")
        found = check(await engine.health(), "configuration")
    assert not found.ok
    assert "is no YAML" in found.detail


async def test_a_default_model_that_does_not_exist_is_found() -> None:
    """It is only ever resolved when somebody names no model."""
    models = of(f"{__name__}:Checked", "own")
    models.default_model = "none-such"
    found = check(await health_of(models), "configuration")
    assert not found.ok
    assert "none-such" in found.detail


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


async def test_a_folder_in_place_of_the_trace_file_is_a_finding(tmp_path: Path) -> None:
    """As is any other thing that is no regular file."""
    checks = {found.name: found for found in await check_store(TraceStore(tmp_path))}
    assert not checks["store"].ok
    assert "not a regular file" in checks["store"].detail


async def test_a_disk_that_is_nearly_full_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice names the folder."""
    monkeypatch.setattr("callboard.engine.watching.health.LEAST_FREE_BYTES", 1 << 62)
    checks = {found.name: found for found in await check_store(TraceStore(tmp_path / "trace.db"))}
    assert not checks["store:disk"].ok
    assert str(tmp_path) in checks["store:disk"].fix


async def test_a_place_that_can_not_be_written_fails_before_the_first_call_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a file that is still to be made it is the folder that counts. (Root may write anywhere.)"""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    checks = {found.name: found for found in await check_store(TraceStore(tmp_path / "trace.db"))}
    assert checks["store"].ok
    assert not checks["store:writable"].ok
    assert str(tmp_path) in checks["store:writable"].fix


async def test_a_writer_whose_store_fails_is_named_with_the_reason(tmp_path: Path) -> None:
    """Calls go on meanwhile, so nobody else would tell."""
    behind = WriterStatistics("spilling", 40, 30, 10, 0, None, None, 4, "database is locked")
    checks = {found.name: found for found in await check_store(TraceStore(tmp_path / "trace.db"), behind)}
    assert not checks["store:writer"].ok
    assert "spilling" in checks["store:writer"].detail
    assert "database is locked" in checks["store:writer"].detail


async def test_a_writer_that_lost_events_fails_for_good(tmp_path: Path) -> None:
    """Also when it has recovered: the trace has a hole."""
    lost = WriterStatistics("ok", 0, 0, 10, 3, 4, 6, 0, "disk full")
    checks = {found.name: found for found in await check_store(TraceStore(tmp_path / "trace.db"), lost)}
    assert not checks["store:writer"].ok
    assert "3 lost" in checks["store:writer"].detail


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
