"""An engine observed: calls in progress, changes, cancelling, statistics and the repr of results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard import (
    AdapterConfig,
    AuthError,
    CancelledError,
    ConfigurationError,
    Engine,
    Limits,
    ModelRegistry,
    OpenAIAdapter,
    Tool,
    ToolDefinition,
)
from callboard.adapters import ImageBlock, Message, TextBlock
from callboard.adapters.providers import scripted
from callboard.bus.values.base import ITEMS, TEXT
from callboard.engine.conversation.results import plain
from callboard.engine.models.configured import entry_of
from callboard.engine.watching.snapshots import ActiveWork, made_us, old_class

from ..definition_of_done.rows import row
from ..support.engines import registry, running
from ..support.present import present
from ..support.scripted import ADD, CALLS_ADD, Say
from .slow_engines import an_engine


async def test_a_reply_in_progress_shows_its_stage_and_characters() -> None:
    """A turn has the stage `asking` before its first token and `replying` after it."""
    steps = [anyio.Event() for _ in range(3)]
    waits = iter(steps)
    async with running(Say("Hello, ", "world!", pause=lambda: next(waits, steps[-1]).wait())) as (engine, _):
        session = engine.session("s:m", name="greeting", tags={"team": "a"})
        async with anyio.create_task_group() as group:
            stream = session.stream("Hi")
            group.start_soon(stream.message)
            await anyio.wait_all_tasks_blocked()
            (asking,) = engine.in_progress().items
            steps[0].set()
            await anyio.wait_all_tasks_blocked()
            (first,) = engine.in_progress().items
            (again,) = engine.in_progress().items
            characters = engine.in_progress().characters
            for step in steps[1:]:
                step.set()
        assert (asking.stage, asking.characters, asking.kind) == ("asking", 0, "turn")
        assert (first.stage, first.characters, again.characters, characters) == ("replying", 7, 7, 7)
        assert (first.session_name, first.tags, first.model) == ("greeting", {"team": "a"}, "s:m")
        assert (first.id, first.calls, first.attempt) == (stream.stream_id, 1, 1)
        assert first.output_tokens == 7 // 4
        assert (first.cost.calls, first.cost.estimated, first.cost.unpriced) == (1, 1, 1)
        assert engine.in_progress().total == 0


async def test_waiting_turns_are_queued_and_a_limit_keeps_the_total() -> None:
    go = anyio.Event()
    async with running(Say("one", pause=go.wait), Say("two"), Say("three")) as (engine, _):
        session = engine.session("s:m")
        async with anyio.create_task_group() as group:
            for text in ("first", "second", "third"):
                group.start_soon(session.send, text)
            await anyio.wait_all_tasks_blocked()
            seen = engine.in_progress()
            some = engine.in_progress(limit=2)
            go.set()
        assert [item.stage for item in seen.items] == ["asking", "queued", "queued"]
        assert (len(some.items), some.total) == (2, 3)


async def test_a_turn_with_tools_sums_its_calls() -> None:
    """A call that ended counts with its usage. The call in progress counts with an estimate."""
    go = anyio.Event()
    seen: list[tuple[str, int, int]] = []

    async def tool(arguments: dict[str, int]) -> int:
        (item,) = engine.in_progress().items
        seen.append((item.stage, item.calls, item.output_tokens))
        return 3

    async with running(CALLS_ADD, Say("Three.", pause=go.wait)) as (engine, _):
        session = engine.session("s:m", tools=[Tool(ToolDefinition("add"), tool)])
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.send("Hi", max_tool_rounds=2))
            await anyio.wait_all_tasks_blocked()
            (item,) = engine.in_progress().items
            go.set()
    assert seen == [("working", 1, 5)]
    assert (item.calls, item.steps, item.output_tokens, item.cost.calls) == (2, 1, 5, 2)


async def test_a_call_without_a_turn_is_in_progress() -> None:
    """A call for embeddings is listed with its operation and model. `Engine.cancel` doesn't end it."""
    async with an_engine() as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.embed(["a"], model="s:m"))
            await anyio.wait_all_tasks_blocked()
            (item,) = engine.in_progress().items
            assert (item.kind, item.operation, item.model) == ("call", "embeddings", "s:m")
            assert await engine.cancel(item.id) is False
            group.cancel_scope.cancel()
        assert engine.in_progress().total == 0


async def test_a_turn_is_cancelled_by_its_id() -> None:
    """The caller of the turn gets the error with the content so far."""
    async with an_engine() as engine:
        stream = engine.session("s:m").stream("Hi")
        reading = asyncio.ensure_future(stream.message())
        await anyio.wait_all_tasks_blocked()
        assert await engine.cancel(stream.stream_id) is True
        with pytest.raises(CancelledError) as caught:
            await reading
        assert caught.value.content
        assert await engine.cancel(stream.stream_id) is False
        assert await engine.cancel("trn_other") is False


async def test_changes_come_with_events_and_streams_at_most_once_an_interval() -> None:
    """The first change comes immediately. An idle engine gives no further change."""
    go = anyio.Event()
    times: list[float] = []
    async with running(Say("one", pause=go.wait)) as (engine, _):
        began = anyio.current_time()

        async def watch() -> None:
            async for _ in engine.changes(min_interval=1.0):
                times.append(anyio.current_time() - began)  # noqa: PERF401 (it never ends)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(10)
            assert len(times) <= 2  # the first change, and perhaps one for the events of the start
            idle = len(times)
            group.start_soon(engine.session("s:m").send, "Hi")
            await anyio.sleep(5)
            assert idle + 4 <= len(times) <= idle + 6  # while the call is in progress
            go.set()
            await anyio.sleep(10)
            ended = len(times)
            await anyio.sleep(10)
            assert len(times) == ended
            await engine.aclose()
    assert not [name for name in [sub.name for sub in engine.bus.statistics().subscriptions] if name == "changes"]


async def test_a_watcher_that_is_closed_leaves_no_subscription() -> None:
    async with running() as (engine, _):
        watching = engine.changes()
        await anext(watching)
        assert "changes" in [each.name for each in engine.bus.statistics().subscriptions]
        await watching.aclose()  # type: ignore[attr-defined]
        assert "changes" not in [each.name for each in engine.bus.statistics().subscriptions]


def test_the_time_of_an_identifier_is_read_from_it() -> None:
    assert made_us("trn_01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1_469_922_850_259_000
    assert made_us("ses_mine") is None
    assert made_us("ses_01ARZ3NDEKTSV4RRFFQ69G5FA!") is not None
    assert made_us("ses_ilou3NDEKTSV4RRFFQ69G5FAVx") is None


# `engine.statistics()`: one snapshot of all counters, before, during and after an engine's run.


def test_an_engine_that_never_started_has_statistics_and_no_work_in_progress() -> None:
    fresh = Engine(models=registry(), trace=False)
    assert (fresh.in_progress().items, fresh.in_progress().total) == ((), 0)
    counted = fresh.statistics()
    assert (counted.state, counted.uptime_seconds, counted.sessions, counted.providers) == ("new", 0.0, 0, ())
    assert (counted.supervisor, counted.writer, counted.prices_version) == (None, None, fresh.prices.version)


async def test_running_and_waiting_turns_are_counted() -> None:
    go = anyio.Event()
    script = [Say("one", pause=go.wait), Say("two"), Say("three")]
    async with Engine(models=registry(*script), trace=False, limits=Limits(calls_per_provider=1)) as engine:
        session, other = engine.session("s:m"), engine.session("s:m")
        async with anyio.create_task_group() as group:
            for each in (session, session, other):
                group.start_soon(each.send, "Hi")
            await anyio.sleep(1)
            counted = engine.statistics()
            go.set()
        assert (counted.state, counted.sessions, counted.streams.open) == ("running", 2, 3)
        assert (counted.turns_running, counted.turns_waiting) == (2, 1)
        (provider,) = counted.providers
        assert (provider.provider, provider.running, provider.slots) == ("s", True, 1)
        assert (provider.in_flight, provider.waiting, present(provider.adapter).calls) == (1, 1, 1)
        after = engine.statistics()
        assert (after.turns_running, after.turns_waiting, after.providers[0].in_flight) == (0, 0, 0)
        assert 0 < counted.uptime_seconds < after.uptime_seconds


async def test_statistics_have_the_supervision_tree_and_the_availability_of_providers() -> None:
    """A provider that refused the key is listed as unavailable, with the reason."""
    async with running(Say(fails=AuthError("no"))) as (engine, _):
        with pytest.raises(AuthError):
            await engine.session("s:m").send("hello")
        await anyio.sleep(0.1)
        counted = engine.statistics()
        names = [child.name for child in counted.supervisor.children]
        assert names == ["availability", "session manager", "adapters"]
        below = counted.supervisor.children[-1].supervisor
        assert [child.name for child in present(below).children] == ["s"]
        (known,) = counted.availability
        assert (known.provider, known.state, known.reason) == ("s", "unavailable", "key refused")
        assert known.retry_at_us is not None


async def test_statistics_outlive_the_engine() -> None:
    """A closed engine still has its counters. Its uptime no longer grows. JSON contains all counters."""
    async with running(Say("one")) as (engine, _):
        await engine.session("s:m").send("hello")
        await anyio.sleep(2)
    counted = engine.statistics()
    assert counted.state == "closed"
    assert not present(counted.supervisor).running
    assert not counted.providers[0].running
    await anyio.sleep(5)
    assert engine.statistics().uptime_seconds == counted.uptime_seconds > 0
    decoded = msgspec.json.decode(msgspec.json.encode(counted))
    assert (decoded["bus"]["published"] > 0, decoded["providers"][0]["provider"]) == (True, "s")


# How results are shown: in a console, in a notebook, as JSON.


@dataclass
class Person:
    name: str
    age: int


async def test_the_repr_of_a_result_fits_a_screen() -> None:
    async with running(Say("Hello " * 5000)) as (engine, _):
        result = await engine.generate("s:m", "Hi " * 5000)
    shown = repr(result)
    assert len(shown) < 1000
    assert shown.startswith("GenerateResult(text='Hello Hello")
    for part in ("29,880 more", "status='completed'", "model='s:m'", "steps=<1>", "messages=<2>"):
        assert part in shown
    assert max(len(repr(each)) for each in (result.message, result.response, result.steps[0])) < 3000


TOTALS = ("total_usage", "total_cost")
SHARED = ("text", "content", "thinking", "tool_uses", "stop_reason", "raw_stop_reason", *TOTALS)


async def test_a_reply_a_result_and_a_step_share_their_names() -> None:
    """A reply, a result and a step have the same attributes and keys. The totals are those of the whole turn."""
    replies = [Say("Adding.", calls=[("add", {"a": 1, "b": 2})], thinking="Hm"), Say("Three.", thinking="So")]
    async with running(*replies, *replies) as (engine, _):
        result = await engine.generate("s:m", "1 + 2?", tools=[ADD])
        reply = await engine.session("s:m", tools=[ADD]).send("1 + 2?")
    for name in SHARED:
        assert getattr(reply, name) == getattr(result, name), name
    assert {name: getattr(result.steps[-1], name) for name in SHARED[:6]} == {
        name: getattr(result, name) for name in SHARED[:6]
    }
    assert (result.thinking, [call.name for call in result.steps[0].tool_uses]) == ("So", ["add"])
    assert reply.total_usage == result.steps[0].usage + result.steps[1].usage != reply.usage
    of_reply, of_result = reply.to_dict(), result.to_dict()
    assert set(of_result) - {"messages"} == set(of_reply)
    assert {name: of_reply[name] for name in SHARED} == {name: of_result[name] for name in SHARED}


async def test_the_deprecated_names_of_a_result_work_and_warn() -> None:
    async with running(Say("Hello", thinking="Hm")) as (engine, _):
        result = await engine.generate("s:m", "Hi")
    for each in (result, result.steps[0]):
        with pytest.warns(DeprecationWarning, match="use thinking"):
            assert each.reasoning == "Hm"
        with pytest.warns(DeprecationWarning, match="use tool_uses"):
            assert each.tool_calls == ()


def test_content_with_half_a_surrogate_pair_becomes_plain_values() -> None:
    """A broken tokenizer may send half a pair. A log must still get the dict."""
    assert plain(TextBlock("a\ud83d")) == {"type": "text", "text": "a\ud83d", "provider_raw": None}


async def test_the_repr_of_an_engine_a_session_and_a_stream_identifies_each() -> None:
    """The repr has the id, the model and the status, and no address of an object."""
    async with running(Say("Hello")) as (engine, _):
        session = engine.session("s:m", session_id="notes")
        assert repr(session) == "Session(id='notes', model='s:m', messages=<0>)"
        async with session.stream("Hi") as turn:
            assert repr(turn) == f"TurnStream(stream_id='{turn.stream_id}', model=None, status=None)"
            await turn.message()
        assert repr(turn) == f"TurnStream(stream_id='{turn.stream_id}', model='s:m', status='completed')"
        assert repr(session) == "Session(id='notes', model='s:m', messages=<2>)"
        assert repr(engine) == "Engine(providers=['s'])"
    assert repr(engine) == "Engine(providers=['s'], closed)"


def test_large_values_have_a_short_repr() -> None:
    """The repr cuts long text, bytes and lists. It leaves out defaults, and shows small values whole."""
    assert repr(TextBlock("Hi")) == "TextBlock(text='Hi')"
    assert repr(TextBlock("a" * TEXT + "bc")) == f"TextBlock(text='{'a' * TEXT}'… 2 more)"
    picture = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(4992))
    assert repr(picture) == "ImageBlock(data=<5,000 bytes>, media_type='image/png')"
    many = Message.user([TextBlock(str(number)) for number in range(ITEMS + 6)])
    assert repr(many).endswith("TextBlock(text='3'), … 6 more))")
    assert repr(Message.user("Hi")) == "Message(role='user', content=(TextBlock(text='Hi'),))"


async def test_a_result_becomes_plain_values() -> None:
    """Any JSON library can write the values. Image data is base64 text, and the output object is a dict."""
    async with running(Say("Hello"), Say('{"name": "Ann", "age": 3}')) as (engine, _):
        result = await engine.generate("s:m", [TextBlock("Hi"), ImageBlock(data=b"GIF89a")])
        found = await engine.generate_object("s:m", "Who?", schema=Person)
    decoded = json.loads(json.dumps(result.to_dict()))
    assert (decoded["text"], decoded["status"], decoded["stop_reason"], decoded["model"]) == (
        *("Hello", "completed"),
        *("end_turn", "s:m"),
    )
    assert (decoded["usage"]["input_tokens"], decoded["cost"]) == (10, {"usd": None, "source": "unpriced"})
    assert [message["role"] for message in decoded["messages"]] == ["user", "assistant"]
    assert decoded["messages"][0]["content"][1]["data"] == "R0lGODlh"
    assert found.to_dict()["output"] == {"name": "Ann", "age": 3}
    reply = result.message.to_dict()
    assert (reply["text"], "messages" in reply) == ("Hello", False)


async def test_a_notebook_shows_the_text_and_the_cost() -> None:
    async with running(Say("**Hello**"), Say("**Hello**")) as (engine, _):
        result = await engine.generate("s:m", "Hi")
        reply = await engine.session("s:m").send("Hi")
    wanted = f"**Hello**\n\n---\n*s:m, {result.total_usage.total_tokens} tokens, unpriced*"
    assert result._repr_markdown_() == wanted
    assert reply._repr_markdown_() == wanted


# Adapters that a host registers itself (M17; seed 2, row 8.1).

HELLO = scripted.ScriptedReply(text="Hello")


def own(*replies: scripted.ScriptedReply) -> scripted.ScriptedAdapter:
    left = list(replies)
    return scripted.ScriptedAdapter(AdapterConfig(), name="mine", replies=lambda request: left.pop(0))


@row("8.1.2")
async def test_an_engine_uses_the_adapters_of_the_host() -> None:
    """8.1: calls reach an adapter of the host by its name, in `model` or in `provider`."""
    async with Engine(models=ModelRegistry({}, {}), providers={"mine": own(HELLO, HELLO)}, trace=False) as engine:
        assert engine.providers == {"mine": "configured"}
        result = await engine.generate("mine:anything", "Hi")
        assert (result.text, result.response.model) == ("Hello", "mine:anything")
        assert (await engine.generate("anything", "Hi", provider="mine")).text == "Hello"


async def test_an_adapter_of_the_host_replaces_one_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    async with Engine(providers={"anthropic": own(HELLO), "openai": own(HELLO)}, trace=False) as engine:
        assert (await engine.generate("anthropic:m", "Hi")).text == "Hello"
        assert (await engine.generate("openai:m", "Hi")).text == "Hello"
    (tmp_path / "models.yaml").write_text("adapters: {anthropic: {type: anthropic, api_key_env: A_KEY}}")
    with pytest.raises(ConfigurationError, match="already"):
        Engine(providers={"anthropic": own(HELLO)}, trace=False)


async def test_an_adapter_joins_a_running_engine_and_stays_over_a_reload() -> None:
    """The next call uses the new adapter. A reload of the models keeps it."""
    async with running(Say("configured")) as (engine, _):
        engine.register("mine", own(HELLO, HELLO))
        assert (await engine.generate("mine:m", "Hi")).text == "Hello"
        change = await engine.reload(registry(Say("anew")))
        assert "mine" not in (*change.adapters_removed, *change.adapters_changed)
        assert (await engine.generate("mine:m", "Hi")).text == "Hello"


async def test_a_factory_of_adapters_can_be_registered() -> None:
    """The engine calls the factory twice: for the check at registration, and for the first call."""
    made: list[scripted.ScriptedAdapter] = []

    def make() -> scripted.ScriptedAdapter:
        made.append(own(HELLO))
        return made[-1]

    async with running() as (engine, _):
        engine.register("mine", make)
        assert (await engine.generate("mine:m", "Hi")).text == "Hello"
    assert len(made) == 2


async def test_a_health_check_does_not_close_the_host_s_adapter() -> None:
    closed: list[str] = []

    class Watched(scripted.ScriptedAdapter):
        async def close(self) -> None:
            closed.append(self.name)
            await super().close()

    mine = Watched(AdapterConfig(), name="mine", replies=lambda request: HELLO)
    engine = Engine(models=ModelRegistry({}, {}), providers={"mine": mine}, trace=False)
    await engine.health()
    assert closed == []
    await engine.generate("mine:m", "Hi")
    await engine.aclose()
    assert closed == ["mine"]


@pytest.mark.parametrize(
    ("name", "adapter", "advice"),
    [
        ("s", own(), "Register yours with another name"),
        ("a:b", own(), "models are named name:model"),
        ("mine", object(), "expected an object with all members of `ProviderAdapter`"),
    ],
)
async def test_a_wrong_registration_is_refused_with_advice(name: str, adapter: object, advice: str) -> None:
    """A name that is taken, a name with a colon, and an object that is no adapter are refused."""
    async with running() as (engine, _):
        with pytest.raises(ConfigurationError, match=advice):
            engine.register(name, adapter)  # type: ignore[arg-type]


def test_the_class_of_an_adapter_or_prices_as_decides_its_prices() -> None:
    assert entry_of("mine", OpenAIAdapter(AdapterConfig(api_key="x"))).type == "openai"
    assert entry_of("mine", own(), "openai").prices_as == "openai"


async def test_the_deprecated_names_of_active_work_warn() -> None:
    """`Engine.under_way` and the class `UnderWay` still work."""
    with pytest.warns(DeprecationWarning, match=r"use Engine\.in_progress"):
        assert Engine(models=registry(Say("Hello")), trace=False).under_way().total == 0
    with pytest.warns(DeprecationWarning, match="use ActiveWork"):
        assert old_class("UnderWay") is ActiveWork
