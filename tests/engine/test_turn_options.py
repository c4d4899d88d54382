"""The names of options: one name for a time limit, tags of a turn, and defaults of a session."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.adapters import AdapterConfig, AdapterError, NetworkError, RetryPolicy
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.bus import LlmCallCompleted, LlmCallFailed, Lossless
from callboard.bus.errors import RequestTimeoutError
from callboard.bus.streams.events import MessageStart, TextDelta
from callboard.engine import Budget, Engine, ModelRegistry, Session, TimeoutConfig, Tool, tool
from callboard.engine.models.configured import read_models_yaml
from callboard.engine.operations.embeddings_and_images import EmbeddingOptions, ImageOptions
from callboard.engine.operations.plain_calls import require_known
from callboard.engine.operations.videos import VideoOptions
from callboard.tracestore import CallFilter, PriceRow, PriceTable
from tests.support.depth import quick_if

from ..support.continuing_server import TextProvider
from ..support.engines import entry, keeping, requests_of, talking
from ..support.engines import serving as models_on
from ..support.present import present
from ..support.scripted import Say
from ..support.scripted_server import Connection, serving
from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

Ask = Callable[..., Awaitable[object]]


@tool(needs_approval=True)
async def refund() -> str:
    """Refund."""
    return "done"


async def waiting(engine: Engine) -> Session:
    """A session with a turn that waits for an approval."""
    session = engine.session("s:m", tools=[refund], tags={"team": "a", "job": "none"})
    await session.send("Refund it.")
    return session


async def answered(engine: Engine, how: str, options: dict[str, Any]) -> None:
    """Answer the open call of a waiting session."""
    session = await waiting(engine)
    if how == "submit":
        await session.submit({session.pending_calls[0].id: "done"}, **options)
    elif how == "approve_stream":
        await session.approve_stream(*session.pending_calls, **options).message()
    else:
        await getattr(session, how)(*session.pending_calls, **options)


SIMPLE: dict[str, Ask] = {
    "send": lambda engine, **more: engine.session("s:m").send("Hi", **more),
    "stream": lambda engine, **more: engine.session("s:m").stream("Hi", **more).message(),
    "generate": lambda engine, **more: engine.generate("s:m", "Hi", **more),
    "generate_object": lambda at, **more: at.generate_object("s:m", "Hi", schema={"type": "object"}, **more),
}
WAITING: dict[str, Ask] = {
    how: lambda engine, how=how, **more: answered(engine, how, more)
    for how in ("submit", "approve", "approve_stream", "deny")
}
ASK = {**SIMPLE, **WAITING}


def replies_for(ask: str) -> list[Say]:
    return [Say(calls=[("refund", {})]), Say("{}")] if ask in WAITING else [Say("{}")]


@pytest.mark.parametrize("ask", ASK)
async def test_every_way_to_call_accepts_timeout_and_tags(ask: str, tmp_path: Path) -> None:
    async with keeping(tmp_path / "t.db", *replies_for(ask)) as engine:
        await ASK[ask](engine, timeout=TimeoutConfig(total=50.0, per_step=7.0), tags={"job": "refunds"})
        assert requests_of(engine)[-1].timeout_seconds == 7.0
        await engine.flush()
        rows = await present(engine._runtime.store).calls()
        tags = [row.tags for row in rows if row.tags and row.tags.get("job") == "refunds"]
        assert tags == [{"team": "a", "job": "refunds"} if ask in WAITING else {"job": "refunds"}]


@pytest.mark.parametrize("ask", ASK)
async def test_the_old_names_of_time_limits_work_with_a_warning(ask: str, tmp_path: Path) -> None:
    async with keeping(tmp_path / "t.db", *replies_for(ask)) as engine:
        with pytest.warns(DeprecationWarning, match="use call_timeout="):
            await ASK[ask](engine, call_timeout_seconds=7.0)
        assert requests_of(engine)[-1].timeout_seconds == 7.0


async def test_a_turn_ends_at_its_timeout() -> None:
    """The old name has the same effect. A call with both names is refused."""
    async with talking(Say("x")) as (session, _):
        with pytest.raises(TypeError, match="the same argument"):
            await session.send("Hi", timeout=1, timeout_seconds=2)  # type: ignore[call-arg]
        with pytest.raises(RequestTimeoutError):
            await session.send("Hi", timeout=0)
        with pytest.warns(DeprecationWarning, match="use timeout="), pytest.raises(RequestTimeoutError):
            await session.send("Hi", timeout_seconds=0)  # type: ignore[call-arg]


LIMITS = ("max_output_tokens", "max_tool_rounds", "retry_empty", "max_retries")


@pytest.mark.parametrize(
    ("ask", "name"),
    quick_if(
        itertools.product(ASK, LIMITS),
        lambda n: n < len(LIMITS) or n % len(LIMITS) == 0,
        "each limit at each entry point",
        rows=True,
    ),
)
async def test_a_negative_limit_is_refused(ask: str, name: str, tmp_path: Path) -> None:
    """Some servers read -1 as no limit, and a budget would then reserve nothing."""
    async with keeping(tmp_path / "t.db", *replies_for(ask)) as engine:
        with pytest.raises(ValueError, match=f"{name}=-1: must be at least"):
            await ASK[ask](engine, **{name: -1})


def test_a_session_refuses_a_negative_limit() -> None:
    """A session's default applies to each turn."""
    with pytest.raises(ValueError, match="max_output_tokens=0: must be at least 1"):
        Engine(trace=False).session("local-chat", max_output_tokens=0)


@pytest.mark.parametrize(
    ("name", "hint"), [("temprature", "did you mean temperature=?"), ("seed", "pass it with each turn")]
)
def test_a_session_refuses_an_option_that_it_does_not_have(name: str, hint: str) -> None:
    """The error of a misspelt option has a hint, and so has the error of an option that belongs to a turn."""
    options: dict[str, Any] = {name: 1}
    engine = Engine(trace=False)
    with pytest.raises(TypeError, match=re.escape(f"{name}= is not an argument of a session: {hint}")):
        engine.session("local-chat", **options)


def test_a_tool_accepts_both_names_of_its_time_limit() -> None:
    """The decorator's argument, the field, and the attribute have both names."""

    def read(path: str) -> str:
        """Read."""
        return path

    with pytest.warns(DeprecationWarning, match="use timeout=") as told:
        old = tool(read, timeout_seconds=3)  # type: ignore[call-overload]
    assert told[0].filename == __file__
    assert (old.timeout, tool(read, timeout=3).timeout) == (3, 3)
    with pytest.warns(DeprecationWarning, match="use timeout="):
        assert Tool(old.definition, read, timeout_seconds=4).timeout == 4  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="use timeout"):
        assert old.timeout_seconds == 3


@pytest.mark.parametrize("kind", [EmbeddingOptions, ImageOptions, VideoOptions])
def test_plain_calls_accept_the_old_name_with_a_warning(kind: Any) -> None:
    """The calls make embeddings, images and videos."""
    assert require_known({"timeout": 3}, kind) == {"timeout": 3}
    with pytest.warns(DeprecationWarning, match="use timeout="):
        assert require_known({"timeout_seconds": 3}, kind) == {"timeout": 3}


def test_models_yaml_accepts_the_old_key_with_a_warning(tmp_path: Path) -> None:
    """The key sets the time limit of an adapter."""
    path = tmp_path / "models.yaml"
    path.write_text("adapters: {x: {type: openai, api_key: k, timeout: 3}}\n")
    new = read_models_yaml(path, {})
    path.write_text("adapters: {x: {type: openai, api_key: k, timeout_seconds: 3}}\n")
    with pytest.warns(DeprecationWarning, match=r"use adapters\.x\.timeout"):
        old = read_models_yaml(path, {})
    assert old.adapters["x"].config.timeout_seconds == new.adapters["x"].config.timeout_seconds == 3


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_has_defaults_that_a_turn_can_replace(restarted: bool, tmp_path: Path) -> None:
    """Temperature, output and rounds apply to each turn, also after a restart."""
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


# A reply that broke and was continued is one message and several attempts, in the trace and in budgets.

TEXT = "The tide comes in,\n\n  and the tide goes out;  twice a day.\n"
MODEL = "anthropic:claude-sonnet-4-5"
SENT_RATE, SAID_RATE = 333_337, 1_777_783
PRICES = PriceTable([PriceRow(model=MODEL, input=SENT_RATE, output=SAID_RATE)])


def engine_with(provider: TextProvider, store: Path | None = None, budgets: Sequence[Budget] = ()) -> Engine:
    retry = RetryPolicy(base_delay=0.001, jitter=False)
    adapter = AnthropicAdapter(AdapterConfig(api_key="k", retry=retry, max_retries=5), transport=provider)
    return Engine(
        models=ModelRegistry({}, {}),
        providers={"anthropic": adapter},
        store=store,
        trace=store is not None,
        capture_content=store is not None,
        prices=PRICES,
        budgets=budgets,
    )


async def test_a_continued_reply_has_several_attempts_and_one_message(tmp_path: Path) -> None:
    """Each attempt has a row with its own usage and cost."""
    provider = TextProvider(TEXT, [20, 9])
    async with engine_with(provider, tmp_path / "t.db") as engine:
        session = await engine.open_session("s", model=MODEL)
        async with session.stream("Hm?", continue_broken=True) as turn:
            events = [event async for event in turn]
        reply = await turn.message()
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == TEXT == reply.text
        assert sum(isinstance(event, MessageStart) for event in events) == 1
        assert len(session.messages) == 2
        await engine.flush()
        rows = sorted(await engine.store.calls(CallFilter(), limit=None), key=lambda row: row.attempt)
        ends = [f"{row.status} {row.reason}" for row in rows]
        assert ends == ["failed first", "failed continued", "completed continued"]
        costs = []
        for row, (sent, received) in zip(rows, provider.bill, strict=True):
            assert row.usage.input_tokens == sent
            if row.status == "completed":
                assert row.usage.output_tokens == received
            exact = row.usage.input_tokens * SENT_RATE + row.usage.output_tokens * SAID_RATE
            assert row.cost.nano_usd == (exact + 500) // 1000
            costs.append(row.cost.nano_usd)
        assert turn.cost.nano_usd == sum(costs)


async def test_a_continuation_needs_room_in_the_budget() -> None:
    """Without room the call raises the error, the partial text stays, and nothing is counted twice."""
    provider = TextProvider(TEXT, [20])
    one = (2000 * SAID_RATE // 1000 + 23_000) / 1e9  # The budget has room for the highest cost of one attempt.
    async with engine_with(provider, budgets=[Budget(max_cost_usd=one)]) as engine:
        stream = engine.stream(MODEL, "Hm?", continue_broken=True, max_output_tokens=2000)
        with pytest.raises(NetworkError):
            async for _event in stream:
                pass
        assert len(provider.bodies) == 1
        (account,) = await engine.budgets()
        assert (account.spent.money, account.held.money) == (stream.cost.nano_usd, 0)
        assert 0 < account.spent.money < 200_000


# A request that was sent twice is one attempt, and its event and its row are marked.

REPLY = (
    b'{"model":"m","choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_call_that_was_sent_twice_is_marked(tmp_path: Path, comes_back: bool) -> None:
    """The call is marked with and without a reply to the second copy. The previous call is not marked."""
    sent: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        sent.append(connection.number)
        if len(sent) == 2 or (len(sent) > 2 and not comes_back):
            raise anyio.EndOfStream
        await connection.reply(REPLY, b"content-type: application/json\r\n")

    async with serving(script) as server:
        config = AdapterConfig(base_url=server.url.removesuffix("/v1/talk"), max_retries=0)
        engine = Engine(models=models_on(s=entry("s", "openai_compatible", config)), store=tmp_path / "trace.db")
        events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
        async with engine:
            await engine.session("s:m").send("Hi")
            try:
                await engine.session("s:m").send("Hi again")
            except AdapterError:
                assert not comes_back
            await engine.flush()
            rows = await engine.store.calls()
            published = [envelope.data for envelope in events.take()]
    ends = [event for event in published if isinstance(event, LlmCallCompleted | LlmCallFailed)]
    assert sent == [0, 0, 1]
    assert [end.resent for end in ends] == [False, True]
    assert isinstance(ends[-1], LlmCallCompleted) is comes_back
    assert [(row.attempt, row.retry_count, row.resent) for row in reversed(rows)] == [(1, 0, False), (1, 0, True)]
