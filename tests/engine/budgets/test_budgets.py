"""Budgets on an engine: calls that are admitted, calls that wait, and amounts that are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from callboard.adapters import NetworkError, RetryPolicy
from callboard.adapters.embeddings import PartialEmbeddingError
from callboard.bus import BudgetRefused, BudgetReserved, LlmCallStarted
from callboard.engine import AccountState, Amount, Budget, BudgetExceededError, Engine
from callboard.tracestore import PriceRow, PriceTable, TraceStore

from ...support.engines import running, serving
from ...support.programs import started
from ...support.provider_server import provider_server
from ...support.scripted import Say, scripted_type
from ...support.virtual_time import FakeClock
from ..test_middleware import PRICES, WAYS, Maker, filmed

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
SENT = 65
"""The upper end of an estimate of 10 tokens."""
ONE = SENT * 1000 + 100 * 2000
"""The most that one message with 100 tokens of output can cost, in nano-USD."""


async def a_second() -> None:
    await anyio.sleep(1)


async def account(engine: Engine) -> AccountState:
    (state,) = await engine.budgets()
    return state


async def attempts(calls: int, one: Callable[[], Awaitable[object]]) -> list[object]:
    return await asyncio.gather(*(one() for _ in range(calls)), return_exceptions=True)


async def test_of_fifty_concurrent_calls_only_those_that_fit_are_sent() -> None:
    budget = Budget(max_tokens=10 * (SENT + 100))
    async with running(*[Say("x", pause=a_second)] * 50, budgets=[budget], prices=TABLE) as (engine, events):
        ended = await attempts(50, lambda: engine.generate("s:m", "Hi", max_output_tokens=100))
        sent = [each for each in events.take() if isinstance(each.data, LlmCallStarted)]
    assert len(sent) == 10
    assert sum(isinstance(each, BudgetExceededError) for each in ended) == 40


async def test_a_refusal_names_the_full_account_and_its_remaining_amount() -> None:
    """The text, the attributes and the event have them. A call that can never fit does not wait."""
    budget = Budget(max_cost_usd="0.0001", per="tag:tenant", window="hour", zone="Europe/Zurich", when_full="wait")
    async with running(Say("x"), budgets=[budget], prices=TABLE) as (engine, events):
        with pytest.raises(BudgetExceededError, match=r"0\.0001 USD per tag:tenant 'acme' and hour") as caught:
            await engine.generate("s:m", "Hi", max_output_tokens=100, tags={"tenant": "acme"})
        (refusal,) = [each.data for each in events.take() if isinstance(each.data, BudgetRefused)]
    error = caught.value
    assert (error.budget, error.scope, error.left_usd) == (budget, "tag:tenant acme", Decimal("0.000100000"))
    assert error.asked_usd == Decimal(ONE).scaleb(-9)
    assert error.fits_at is None  # The call needs more than the whole budget.
    assert (refusal.scope, refusal.value, refusal.why, refusal.left_nano_usd) == (
        "tag:tenant",
        "acme",
        "money",
        100_000,
    )


async def test_a_call_without_a_price_is_refused_unless_the_budget_allows_it() -> None:
    for unpriced, made in (("refuse", 0), ("allow", 1)):
        budget = Budget(max_cost_usd=1, unpriced=unpriced)  # type: ignore[arg-type]
        async with running(Say("x"), budgets=[budget], prices=PriceTable([], "none")) as (engine, _):
            (ended,) = await attempts(1, lambda: engine.generate("s:m", "Hi"))
            assert isinstance(ended, BudgetExceededError) == (not made)
            assert (await account(engine)).calls == made


async def test_events_report_the_reservation_the_cost_and_a_low_budget() -> None:
    budget = Budget(max_cost_usd=Decimal(ONE).scaleb(-9), low_at=0.05)
    async with running(Say("x"), budgets=[budget], prices=TABLE) as (engine, events):
        await engine.generate("s:m", "Hi", max_output_tokens=100)
        published = [each for each in events.take() if each.topic.startswith(("budget.", "llm."))]
    assert [type(each.data).__name__ for each in published] == [
        *("BudgetReserved", "LlmCallStarted", "LlmCallCompleted", "BudgetSettled", "BudgetLow")
    ]
    assert len({each.request_id for each in published}) == 1
    reserved, started, _, settled, low = (each.data for each in published)
    assert reserved.nano_usd == started.reserved_nano_usd == ONE
    assert settled.nano_usd == 10 * 1000 + 5 * 2000
    assert low.left_nano_usd == ONE - 20_000


async def test_a_waiting_call_continues_when_another_one_ends() -> None:
    budget = Budget(max_tokens=SENT + 100 + 5 * 15, when_full="wait")
    async with running(*[Say("x", pause=a_second)] * 5, budgets=[budget], prices=TABLE) as (engine, _):
        began = anyio.current_time()
        ended = await attempts(5, lambda: engine.generate("s:m", "Hi", max_output_tokens=100))
        assert [getattr(each, "text", each) for each in ended] == ["x"] * 5
        assert anyio.current_time() - began >= 5
        assert (await account(engine)).spent.tokens == 5 * 15


async def test_a_waiting_call_continues_when_the_next_window_starts() -> None:
    """A window follows the wall clock."""
    budget = Budget(max_tokens=SENT + 100, window=timedelta(minutes=1), when_full="wait")
    async with running(Say("x"), Say("y"), budgets=[budget], prices=TABLE, clock=FakeClock()) as (engine, _):
        await engine.generate("s:m", "Hi", max_output_tokens=100)
        began = anyio.current_time()
        assert (await engine.generate("s:m", "Hi", max_output_tokens=100)).text == "y"
        assert 59 <= anyio.current_time() - began <= 63


async def test_a_cheaper_model_is_chosen_if_the_first_does_not_fit() -> None:
    """The routing record names the budget as the reason."""
    prices = PriceTable(
        [PriceRow(model="s:m", input=1_000_000, output=9_000_000), PriceRow(model="b:m", input=1, output=1)], "two"
    )
    budget = Budget(max_cost_usd="0.0005", when_full="cheaper")
    async with running(Say("dear"), b=[Say("cheap")], budgets=[budget], prices=prices) as (engine, events):
        result = await engine.generate(["s:m", "b:m"], "Hi", max_output_tokens=100)
        started = [each.data for each in events.take() if isinstance(each.data, LlmCallStarted)]
        with pytest.raises(BudgetExceededError):
            await engine.generate("s:m", "Hi", max_output_tokens=100)
    assert result.text == "cheap"
    (start,) = started
    assert "the budget of 0.0005 USD" in (start.routing.candidates[0].rejected or "")


async def test_a_call_is_shortened_to_the_remaining_tokens() -> None:
    for least, made in ((20, True), (60, False)):
        budget = Budget(max_tokens=SENT + 50, shorten_to=least)
        async with running(Say("x"), budgets=[budget], prices=TABLE) as (engine, events):
            (ended,) = await attempts(1, lambda: engine.generate("s:m", "Hi", max_output_tokens=100))
            assert isinstance(ended, BudgetExceededError) is not made
            started = [each.data for each in events.take() if isinstance(each.data, LlmCallStarted)]
            assert [each.reserved_tokens for each in started] == [SENT + 50] * made


async def test_an_attempt_of_unknown_cost_counts_with_its_highest_cost_and_a_retry_needs_room() -> None:
    """Without room for the second attempt, the call raises the error of the first."""
    dropped = NetworkError("dropped", retryable=True)
    for room, made in ((2, 2), (1, 1)):
        budget = Budget(max_tokens=room * (SENT + 100))
        async with running(Say(fails=dropped), Say("x"), budgets=[budget], prices=TABLE) as (engine, events):
            (ended,) = await attempts(
                1,
                lambda: engine.generate(
                    "s:m", "Hi", max_output_tokens=100, max_retries=1, retry=RetryPolicy(jitter=False)
                ),
            )
            await engine.flush() if engine.store else None
            assert len([each for each in events.take() if isinstance(each.data, BudgetReserved)]) == made, ended
            state = await account(engine)
            assert (state.unknown.tokens, state.unknown_calls) == (SENT + 100, 1)
            assert isinstance(ended, NetworkError) is (made == 1)


async def test_the_spend_survives_a_restart(tmp_path: Path) -> None:
    """The trace stores the spend of each account and each window."""
    prices, path = TABLE, tmp_path / "trace.db"
    budgets = [Budget(max_tokens=1000), Budget(max_tokens=1000, per="session", window="day")]
    async with running(Say("x"), store=path, budgets=budgets, prices=prices) as (engine, _):
        await engine.session("s:m").send("Hi", max_output_tokens=100)
        before = [(each.scope, each.spent, each.calls) for each in await engine.budgets()]
    async with running(Say("x"), store=path, budgets=budgets, prices=prices) as (engine, _):
        assert [(each.scope, each.spent, each.calls) for each in await engine.budgets()] == before
    assert [spent.tokens for _, spent, _ in before] == [15, 15]


async def test_a_repricing_changes_the_spend_of_budgets_that_follow_it(tmp_path: Path) -> None:
    budgets = [Budget(max_cost_usd=1), Budget(max_cost_usd=1, follows_repricing=True)]
    double = PriceTable([PriceRow(model="s:m", input=2_000_000, output=4_000_000)], label="double")
    async with running(Say("x"), store=tmp_path / "t.db", budgets=budgets, prices=TABLE) as (engine, _):

        async def spent() -> list[int | None]:
            return [each.spent.nano_usd for each in await engine.budgets()]

        await engine.generate("s:m", "Hi")
        assert await spent() == [20_000, 20_000]
        await engine.reprice(double)
        assert await spent() == [20_000, 40_000]
        await engine.undo_reprice()
        assert await spent() == [20_000, 20_000]


# -- Calls of other kinds.


@pytest.mark.parametrize(
    ("spend", "usd"),
    [
        (WAYS["chat"], "0.015"),
        (WAYS["embeddings"], "1"),
        (WAYS["image"], "1"),
        (lambda engine: filmed(engine, seconds=8), "0.8"),
    ],
    ids=["chat", "embeddings", "image", "video"],
)
async def test_every_kind_of_call_is_counted(spend: Callable[[Engine], Awaitable[object]], usd: str) -> None:
    models = serving(s=scripted_type(base=Maker))
    async with Engine(models=models, trace=False, prices=PRICES, budgets=[Budget(max_cost_usd=10_000)]) as engine:
        await spend(engine)
        assert (await account(engine)).spent.nano_usd == int(Decimal(usd).scaleb(9))
    async with Engine(models=models, trace=False, prices=PRICES, budgets=[Budget(max_cost_usd="0.01")]) as engine:
        for way in WAYS.values():
            with pytest.raises((BudgetExceededError, PartialEmbeddingError)):
                await way(engine)
        assert (await account(engine)).calls == 0


async def test_a_video_is_reserved_until_it_is_complete() -> None:
    models = serving(s=scripted_type(base=Maker))
    budget = Budget(max_cost_usd=10_000)
    async with Engine(models=models, trace=False, prices=PRICES, budgets=[budget]) as engine:
        handle = await engine.create_video("Hi", model="s:m", seconds=8)
        state = await account(engine)
        assert (state.spent.nano_usd, state.held.nano_usd) == (0, 800_000_000)
        await handle.wait()
        state = await account(engine)
        assert (state.spent.nano_usd, state.held.nano_usd) == (800_000_000, 0)


def test_an_account_names_its_scope_and_has_amounts_in_usd() -> None:
    """Amounts are exact decimals, or None without a price or a limit. The earlier name of `scope` warns."""
    spent, held, unknown = Amount(1_500_000_000, 7), Amount(), Amount(None, 3)
    assert (spent.usd, held.usd, unknown.usd) == (Decimal("1.5"), Decimal(0), None)
    state, unlimited = (
        AccountState(budget, "acme", spent, held, unknown, calls=2, unknown_calls=1, window_ends_us=None)
        for budget in (Budget(max_cost_usd="2"), Budget(max_tokens=9))
    )
    assert (state.scope, state.left_usd, unlimited.left_usd) == ("acme", Decimal("0.5"), None)
    with pytest.warns(DeprecationWarning, match="use AccountState.scope"):
        assert state.value == "acme"


# Budgets after the death of a process: every request that was sent is in the trace, and an unknown cost counts.

BUDGETS = [Budget(max_tokens=1_000_000), Budget(max_tokens=1_000_000, per="tag:tenant", window="month")]
SENT_ONCE = 64
"""The highest estimate for the prompt of a killed program, in tokens."""
REPLY = (
    b'{"id": "c", "object": "chat.completion", "model": "bench", "choices": [{"index": 0, "message": '
    b'{"role": "assistant", "content": "x"}, "finish_reason": "stop"}], '
    b'"usage": {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}}'
)

VICTIM = """
    import asyncio, sys
    from pathlib import Path

    from callboard import AdapterConfig, Budget, Engine, PriceRow, PriceTable, create_adapter
    from tests.engine.budgets.test_budgets import BUDGETS

    async def main(url, path):
        prices = PriceTable([PriceRow(model="chat:*", input=1, output=1)], "test")
        async with Engine(store=Path(path), prices=prices, budgets=BUDGETS) as engine:
            config = AdapterConfig(api_key="k", base_url=url)
            engine.register("chat", lambda: create_adapter("openai_compatible", config, name="chat"))

            async def talk(number):
                while True:
                    tags = {"tenant": f"t{number % 3}"}
                    await engine.generate("chat:bench", "Hi", max_output_tokens=50, tags=tags)
                    print("answer", flush=True)

            await asyncio.gather(*(talk(number) for number in range(6)))

    asyncio.run(main(*sys.argv[1:]))
"""


async def recomputed(path: Path) -> tuple[int, int, int]:
    """The spent tokens, the tokens of unknown calls, and the attempts, summed from the rows."""
    async with TraceStore(path) as store:
        await store.close_lost_runs()
        found = await store.sql(
            "SELECT status, input_tokens, output_tokens, reserved_tokens FROM calls", limit=100_000
        )
    spent = sum(sent + received for status, sent, received, _ in found.rows if status == "completed")
    return spent, sum(reserved for status, *_, reserved in found.rows if status != "completed"), len(found.rows)


async def test_calls_in_progress_at_the_death_of_the_process_count_with_their_highest_cost(tmp_path: Path) -> None:
    """The usage of the six calls in progress is unknown. The ledger is the sum of the rows."""
    path = tmp_path / "trace.db"
    with provider_server(body=REPLY, replies=10) as server:
        with started(VICTIM, f"{server.url}/v1", path) as process:
            for _ in range(10):
                process.stdout.readline()
            for _ in range(6):
                await anyio.to_thread.run_sync(server.unanswered.acquire)
            process.kill()
    async with Engine(store=path, budgets=BUDGETS) as engine:
        total, *tenants = await engine.budgets()
        await engine.flush()
    each = SENT_ONCE + 50
    assert _sum([total]) == (10 * 27, 6 * each, 16) == await recomputed(path)
    assert (total.unknown_calls, total.held.tokens) == (6, 0)
    assert _sum(tenants) == _sum([total])


def _sum(states: list[AccountState]) -> tuple[int, int, int]:
    return (
        sum(state.spent.tokens for state in states),
        sum(state.unknown.tokens for state in states),
        sum(state.calls for state in states),
    )
