"""A new configuration for a running engine, and the state that survives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from callboard.adapters import AdapterConfig, AuthError, ServerError, ToolDefinition
from callboard.bus import CallboardError, ConfigReloaded, ConfigurationError, Lossless, Subscription
from callboard.bus.events.operation import ProviderAvailabilityChanged
from callboard.engine import AdapterEntry, Engine, ModelDefaults, ModelRegistry, Tool
from callboard.tracestore import TraceStore
from tests.support.engines import entry, model, serving
from tests.support.present import present
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import Backend, backend


def adapter(name: str, *replies: Say, key: str = "k") -> AdapterEntry:
    return entry(name, scripted_type(*replies), AdapterConfig(api_key=key))


def registry(*adapters: AdapterEntry, **aliases: str) -> ModelRegistry:
    nicknamed = [model(f"{name}:m", aliases=(alias,)) for name, alias in aliases.items()]
    return serving(*nicknamed, **{each.name: each for each in adapters})


@asynccontextmanager
async def running(first: ModelRegistry) -> AsyncIterator[tuple[Engine, Subscription]]:
    engine = Engine(models=first, trace=False)
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        yield engine, events


async def test_a_reload_reports_changes_and_keeps_unchanged_adapters() -> None:
    """The event names every change."""
    same, old = adapter("same", Say("1"), Say("2")), adapter("old")
    async with running(registry(same, adapter("changed", Say("before")), old)) as (engine, events):
        session = engine.session("same:m")
        await session.send("x")
        ref = engine._runtime.adapters["same"].ref
        change = await engine.reload(registry(same, adapter("changed", Say("after")), adapter("new", Say("new"))))
        assert change == ConfigReloaded(
            source="code",
            adapters_added=("new",),
            adapters_removed=("old",),
            adapters_changed=("changed",),
            models_added=("new:m",),
            models_removed=("old:m",),
        )
        assert [e.data for e in events.take() if e.topic == "config.reloaded"] == [change]
        assert (await session.send("x")).text == "2"
        assert engine._runtime.adapters["same"].ref is ref
        assert (await engine.session("changed:m").send("x")).text == "after"
        assert (await engine.session("new:m").send("x")).text == "new"


async def test_a_turn_in_progress_ends_on_its_first_adapter() -> None:
    reloaded, began = anyio.Event(), anyio.Event()

    async def wait(arguments: object) -> str:
        began.set()
        await reloaded.wait()
        return "done"

    tool = Tool(ToolDefinition("wait"), wait)  # type: ignore[arg-type]
    old = adapter("a", Say(calls=[("wait", {})]), Say("old to the end"))
    async with running(registry(old)) as (engine, events):
        turn = asyncio.ensure_future(engine.session("a:m", tools=[tool]).send("x"))
        await began.wait()
        ref = engine._runtime.adapters["a"].ref
        made = ref.actor.adapter
        await engine.reload(registry(adapter("a", Say("new"), key="another")))
        assert (await engine.session("a:m").send("y")).text == "new", "a new turn gets the new configuration"
        assert (ref.running, made.closed) == (True, False)
        reloaded.set()
        assert (await turn).text == "old to the end"
        await anyio.sleep(1)
        assert (ref.running, made.closed) == (False, True)
        stopped = [e.data.actor for e in events.take() if e.topic == "actor.stopped"]  # type: ignore[attr-defined]
        assert stopped == ["a"]


async def test_an_adapter_that_is_removed_during_a_call_completes_it() -> None:
    """The next turn with its model is refused."""
    old = adapter("a", Say("slow", pause=lambda: anyio.sleep(5)))
    async with running(registry(old, adapter("b"), a="nick")) as (engine, _):
        session, nick = engine.session("a:m"), engine.session("nick")
        async with session.stream("x") as turn:
            await anyio.sleep(1)
            await engine.reload(registry(adapter("b")))
            assert (await turn.message()).text == "slow"
        for gone in (session, nick):
            with pytest.raises(ConfigurationError, match=r"is no longer in code: a reload removed it"):
                await gone.send("y")
        session.model = "b:m"


async def test_a_removed_model_of_a_kept_provider_is_refused() -> None:
    """Other names after the provider's prefix still work."""
    one = adapter("a", Say("1"))
    both = serving(model("a:m"), model("a:n"), a=one)
    async with running(both) as (engine, _):
        session = engine.session("a:n")
        await engine.reload(registry(one))
        with pytest.raises(ConfigurationError, match="reload removed it"):
            await session.send("x")
        await engine.reload(both)
        assert (await session.send("x")).text == "1", "the model works again when it is configured again"


async def test_a_bad_configuration_changes_nothing(tmp_path: Path) -> None:
    """A mistake in the file, or an adapter that can't be made, is an error before any change."""
    path = tmp_path / "models.yaml"
    async with running(registry(adapter("a", Say("1"), Say("2")))) as (engine, events):
        session = engine.session("a:m")
        await session.send("x")
        before = engine.registry
        path.write_text("adapters: {a: {type: openai, max_retrys: 3}}")
        with pytest.raises(ConfigurationError, match="max_retrys"):
            await engine.reload(path)
        path.write_text("adapters: {z: {type: 'no.such:Thing'}}")
        with pytest.raises(ConfigurationError, match=r"no\.such"):
            await engine.reload(path)
        assert engine.registry is before
        assert (await session.send("x")).text == "2"
        assert [e for e in events.take() if e.topic == "config.reloaded"] == []


async def test_a_changed_key_makes_a_refused_provider_available() -> None:
    a, b = adapter("a", Say(fails=AuthError("x"))), adapter("b", Say(fails=AuthError("x")), Say("b is back"))
    last = adapter("c", Say("1"))
    async with running(registry(a, b, last)) as (engine, events):
        assert (await engine.session(["a:m", "b:m", "c:m"]).send("x")).text == "1"
        await anyio.sleep(0.1)
        await engine.reload(registry(adapter("a", Say("a is back"), key="new"), b, last))
        assert engine.availability.state("a") == "available"
        assert engine.availability.state("b") == "unavailable"
        assert (await engine.session(["b:m", "c:m"]).send("x")).text == "b is back"
        assert (await engine.session(["a:m", "c:m"]).send("x")).text == "a is back"
        changes = [e.data for e in events.take() if isinstance(e.data, ProviderAvailabilityChanged)]
        states = [f"{c.provider} {c.current}" for c in changes]
        assert states == ["a unavailable", "b unavailable", "a available", "b probing", "b available"]


async def test_an_engine_can_be_closed_while_a_replaced_adapter_has_a_call() -> None:
    """The call is cancelled, and no task remains."""
    engine = Engine(models=registry(adapter("a", Say("never", pause=anyio.sleep_forever))), trace=False)
    await engine.start()
    call = asyncio.ensure_future(engine.session("a:m").send("x"))
    await anyio.sleep(1)
    made = engine._runtime.adapters["a"].ref.actor.adapter
    await engine.reload(registry(adapter("b")))
    assert present(await engine.aclose()).clean
    assert made.closed
    with pytest.raises(CallboardError):
        await call


async def test_many_reloads_leave_one_adapter() -> None:
    """Each replaced adapter's actor is stopped and removed."""
    async with running(registry(adapter("a", Say("0")))) as (engine, _):
        await engine.session("a:m").send("x")
        for number in range(3):
            await engine.reload(registry(adapter("a", Say(str(number)), key=str(number))))
            assert (await engine.session("a:m").send("x")).text == str(number)
        await anyio.sleep(1)
        hosted = await engine._host.running_life()
        assert len(hosted._adapters.statistics().children) == 1
        assert len(hosted._providers) == 1


YAML = """
adapters:
  a: {{type: "{type}"}}
models:
  a:m:
    adapter: a
    fallback: [{fallback}]
    capabilities: {{supports_tools: false, max_context_tokens: 5000}}
    defaults: {{max_output_tokens: 99, temperature: 0.2, effort: low}}
  a:n: {{adapter: a}}
"""


async def test_reload_without_an_argument_reads_the_engines_file(tmp_path: Path) -> None:
    """The model's fallback, capabilities and defaults are read too."""
    path = tmp_path / "models.yaml"
    kind = scripted_type(Say("x"))
    path.write_text(YAML.format(type=kind, fallback=""))
    async with Engine(models=path, trace=False) as engine:
        path.write_text(YAML.format(type=kind, fallback="a:n"))
        change = await engine.reload()
        assert (change.models_changed, change.adapters_changed) == (("a:m",), ())
        entry = engine.registry.models["a:m"]
        assert entry.fallback == ("a:n",)
        assert entry.capabilities == {"supports_tools": False, "max_context_tokens": 5000}
        assert entry.defaults == ModelDefaults(max_output_tokens=99, temperature=0.2, effort="low")


class TestOverARestart:
    """These tests use a store and a real loop."""

    @pytest.fixture
    def anyio_backend(self) -> Backend:
        return backend("asyncio")

    async def test_a_restarted_engine_keeps_the_unavailable_provider(self, tmp_path: Path) -> None:
        """The fallback chains of the next run skip a provider that refused its key."""
        path = tmp_path / "trace.db"
        replies: Mapping[str, list[Say]] = {
            "a": [Say(fails=AuthError("x")), Say("a is back")],
            "b": [Say("1"), Say("2")],
        }
        models = registry(*(adapter(name, *script) for name, script in replies.items()))
        for text in ("1", "2"):
            async with Engine(models=models, store=path) as engine:
                assert (await engine.session(["a:m", "b:m"]).send("x")).text == text
        async with Engine(models=models, store=path) as engine:
            (row,) = engine.availability.snapshot()
            assert (row.provider, row.state, row.reason) == ("a", "unavailable", "key refused")
            assert (await engine.session("a:m").send("x")).text == "a is back"
        async with Engine(models=models, store=path) as engine:
            assert engine.availability.snapshot() == ()

    async def test_the_routing_decision_is_stored_with_the_call(self, tmp_path: Path) -> None:
        """The row's routing has every candidate with the reason of its rejection."""
        models = registry(adapter("a", Say(fails=ServerError("x"))), adapter("b", Say("b")))
        async with Engine(models=models, store=tmp_path / "trace.db") as engine:
            message = await engine.session(["a:m", "b:m"]).send("x")
        async with TraceStore.open_readonly(tmp_path / "trace.db") as store:
            rows = {row.model: row for row in await store.calls()}
        assert (rows["b:m"].routing, rows["a:m"].status) == (present(message.metadata).routing, "failed")
