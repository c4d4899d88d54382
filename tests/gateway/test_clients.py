"""Clients of the gateway: keys, models, budgets and rates, also when another process changes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from callboard.adapters import TokenUsage
from callboard.bus.errors import StoreError
from callboard.engine import BudgetExceededError, Engine
from callboard.engine.gateway.clients import ClientRefused, Clients, budget_of, check_client, hash_of, issue_key
from callboard.tracestore import Store
from callboard.tracestore.gateway import Client

from ..support.cluster_engines import node_engine
from ..support.postgres_server import why_not
from ..support.scripted import Say
from ..support.virtual_time import FakeClock, runs_on
from .keeping import ONE, TABLE, Stores, added, engine_on, stores_of

anyio_backend = runs_on("asyncio")

ACME = Client(name="acme")
SECOND = 1_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Stores:
    return stores_of(request.param, request, tmp_path, clock)


@pytest.fixture
async def command(stores: Stores) -> AsyncIterator[Store]:
    """The store as `callboard clients` has it in another process."""
    async with stores() as store:
        yield store


async def refusal(work: Awaitable[object]) -> tuple[str, str]:
    """Return the kind and the text of a refusal."""
    with pytest.raises(ClientRefused) as caught:
        await work
    return caught.value.failure.kind, caught.value.failure.message


# --- Keys ---


def test_a_key_is_long_random_and_stored_only_as_its_hash() -> None:
    """The beginning of a key is stored, so that users can recognise the key."""
    keys = {issue_key("acme", 7)[0] for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("cb-") and len(key) == 46 for key in keys)
    key, row = issue_key("acme", 7)
    assert (row.hash, row.prefix, row.created_us) == (hash_of(key), key[:10], 7)
    assert key not in repr(row)


async def test_a_request_without_a_known_key_is_refused(stores: Stores, command: Store, clock: FakeClock) -> None:
    """The error never quotes the key."""
    await added(command, ACME)
    async with engine_on(stores(), clock=clock) as engine:
        for key in (None, "", "cb-wrong", "\ud800", "cb-" + "x" * 100_000):
            kind, text = await refusal(Clients(engine).authenticate(key))
            assert (kind, bool(key) and str(key) in text) == ("authentication", False), key


async def test_changes_by_another_process_apply_after_one_second(
    stores: Stores, command: Store, clock: FakeClock
) -> None:
    """A new key works immediately, because the gateway looks up unknown keys again. A revoked key works for one
    second.
    """
    async with engine_on(stores(), clock=clock) as engine:
        clients = Clients(engine)
        await refusal(clients.authenticate("cb-wrong"))
        key = await added(command, ACME)
        assert await clients.authenticate(key) == ACME
        await command.gateway.change_client(Client(name="acme", models=("claude-*",)))  # type: ignore[attr-defined]
        await command.gateway.revoke_client("other", 1)  # type: ignore[attr-defined]
        assert await clients.authenticate(key) == ACME
        clock.advance(1)
        assert (await clients.authenticate(key)).models == ("claude-*",)
        await command.gateway.revoke_client("acme", 1)  # type: ignore[attr-defined]
        clock.advance(1)
        assert (await refusal(clients.authenticate(key)))[0] == "authentication"


async def test_the_old_key_of_a_rotation_works_for_its_grace_time(
    stores: Stores, command: Store, clock: FakeClock
) -> None:
    """After that, the error gives the reason."""
    old = await added(command, ACME)
    new, row = issue_key("acme", clock.now_us())
    await command.gateway.rotate_key(row, clock.now_us() + 60 * SECOND)  # type: ignore[attr-defined]
    async with engine_on(stores(), clock=clock) as engine:
        clients = Clients(engine)
        assert await clients.authenticate(old) == await clients.authenticate(new) == ACME
        clock.advance(60)
        assert await clients.authenticate(new) == ACME
        assert "expired" in (await refusal(clients.authenticate(old)))[1]


async def test_known_clients_continue_while_the_store_fails(
    stores: Stores, command: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that has never read the clients reports that the store fails."""
    key = await added(command, ACME)
    async with engine_on(stores(), clock=clock) as engine:
        clients, late = Clients(engine), Clients(engine)
        await clients.authenticate(key)

        async def broken(self: object) -> None:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(Clients, "_read", broken)
        clock.advance(100)
        assert await clients.authenticate(key) == ACME
        with pytest.raises(StoreError, match="the disk is gone"):
            await late.authenticate(key)


async def test_keys_need_a_trace(clock: FakeClock) -> None:
    """Keys can only be stored in a trace."""
    async with Engine(trace=False, clock=clock) as engine:
        with pytest.raises(StoreError, match="need a trace"):
            await Clients(engine).authenticate("cb-x")


async def test_requests_in_progress_of_a_revoked_client_are_notified(tmp_path: Path) -> None:
    """The notice comes within about a second. Requests of other clients get none."""
    stores = stores_of("sqlite", None, tmp_path)  # type: ignore[arg-type]
    async with stores() as command, engine_on(stores()) as engine:
        clients = Clients(engine)
        acme = await clients.authenticate(await added(command, ACME))
        other = await clients.authenticate(await added(command, Client(name="other")))
        with clients.in_progress(acme) as told, clients.in_progress(other) as never:
            await command.gateway.revoke_client("acme", 1)  # type: ignore[attr-defined]
            async with asyncio.timeout(30):
                await told.wait()
            assert not never.is_set()


# --- Settings ---


@pytest.mark.parametrize("client", [
    Client(name=""),
    Client(name="a b"),
    Client(name="-x"),
    Client(name="x" * 65),
    Client(name="x", requests_per_minute=0),
    Client(name="x", tokens_per_minute=-1),
    Client(name="x", models=("",)),
    Client(name="x", budget_nano_usd=1, window="day", zone="Nowhere"),
    Client(name="x", budget_nano_usd=-1),
], ids=lambda client: repr(client)[7:60])  # fmt: skip
def test_impossible_settings_are_refused(client: Client) -> None:
    """Settings are checked before they are stored."""
    with pytest.raises(ValueError, match=r"\w"):
        check_client(client)


@pytest.mark.parametrize(("patterns", "model", "may"), [
    ((), "anything", True),
    (("claude-*",), "claude-sonnet-5", True),
    (("claude-*",), "evil:claude-sonnet-5", False),
    (("claude-*", "local:*"), "local:chat", True),
    (("gpt-5",), "GPT-5", False),
])  # fmt: skip
async def test_patterns_limit_the_models_of_a_client(
    tmp_path: Path, patterns: tuple[str, ...], model: str, may: bool
) -> None:
    """A pattern matches the whole name, as the client sends it."""
    client = Client(name="acme", models=patterns)
    clients = Clients(Engine(trace=False))
    assert clients.may_use(client, model) is may
    if may:
        clients.require_model(client, model)
    else:
        with pytest.raises(ClientRefused, match="may not use"):
            clients.require_model(client, model)


def test_calls_of_unknown_price_need_a_permission_with_a_budget() -> None:
    """A budget cannot limit a call of unknown price. A client without a budget can be limited to known prices."""
    plain = Client(name="x")
    limited = msgspec.structs.replace(plain, budget_nano_usd=5_000_000_000, window="day")
    assert budget_of(plain) is None
    assert [
        (budget.max_cost_usd, budget.window, budget.unpriced)
        for client in (
            limited,
            msgspec.structs.replace(limited, unpriced="allow"),
            msgspec.structs.replace(plain, unpriced="refuse"),
        )
        if (budget := budget_of(client)) is not None
    ] == [
        (Decimal(5), "day", "refuse"),
        (Decimal(5), "day", "allow"),
        (1_000_000_000, None, "refuse"),
    ]


# --- Budgets ---


def limited(calls: int, *, spent: int = 0, window: str = "day") -> Client:
    return Client(name="acme", budget_nano_usd=calls * ONE + spent, window=window)  # type: ignore[arg-type]


async def asked(engine: Engine, clients: Clients, key: str) -> object:
    """Send a request of a client, as the gateway does."""
    try:
        client = await clients.authenticate(key)
        return await engine.generate("s:m", "Hi", max_output_tokens=100, tags=clients.tags(client))
    except BudgetExceededError as error:
        return error


def made(ended: list[object]) -> int:
    return sum(not isinstance(each, Exception) for each in ended)


async def all_at_once(number: int, one: Callable[[int], Awaitable[object]], ends: asyncio.Event) -> list[object]:
    """Start requests concurrently. The admitted requests end after the others were refused."""
    calls = [asyncio.ensure_future(one(place)) for place in range(number)]
    for done, call in enumerate(asyncio.as_completed(calls), 1):
        assert isinstance(await call, BudgetExceededError)
        if done == number - 10:
            break
    ends.set()
    return list(await asyncio.gather(*calls))


async def test_a_budget_for_ten_admits_ten_of_fifty_concurrent_requests(stores: Stores, command: Store) -> None:
    """The client and its budget apply from its first request on. No eleventh request is admitted."""
    ends = asyncio.Event()
    async with engine_on(stores(), *[Say("x", pause=ends.wait)] * 50) as engine:
        clients = Clients(engine)
        key = await added(command, limited(10))
        ended = await all_at_once(50, lambda _: asked(engine, clients, key), ends)
        assert made(ended) == 10
        await engine.flush()
        assert len(await command.calls()) == 10


@pytest.mark.deep("two nodes")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_fifty_clients_of_two_gateways_share_a_budget_for_ten(
    request: pytest.FixtureRequest, postgres_dsn: str, tmp_path: Path
) -> None:
    """The budget is changed while requests run."""
    ends = asyncio.Event()
    replies = [Say("x", pause=ends.wait)] * 50
    async with (
        stores_of("postgres", request, tmp_path)() as command,
        node_engine("a", postgres_dsn, tmp_path, *replies, prices=TABLE) as a,
        node_engine("b", postgres_dsn, tmp_path, *replies, prices=TABLE) as b,
    ):
        both = (a, Clients(a)), (b, Clients(b))
        key = await added(command, limited(10))
        ended = await all_at_once(50, lambda place: asked(*both[place % 2], key), ends)
        assert made(ended) == 10
        await asyncio.gather(a.flush(), b.flush())
        (row,) = await command.costs(by=["tag:client"])
        spent = row.cost_nano_usd
        await command.gateway.change_client(limited(3, spent=spent, window="month"))  # type: ignore[attr-defined]
        for _, clients in both:
            await clients._look_again()  # each gateway does this after a second
        again = await asyncio.gather(*(asked(*both[place % 2], key) for place in range(30)))
        assert made(list(again)) >= 1
        await asyncio.gather(a.flush(), b.flush())
        (row,) = await command.costs(by=["tag:client"])
        assert row.cost_nano_usd <= 3 * ONE + spent


async def test_a_changed_budget_includes_earlier_spending(
    stores: Stores, command: Store, clock: FakeClock
) -> None:
    """The change applies within a second. The budget ends when the client has no limit."""
    async with engine_on(stores(), *[Say("x")] * 20, clock=clock) as engine:
        clients = Clients(engine)
        key = await added(command, limited(2))
        assert made([await asked(engine, clients, key) for _ in range(3)]) >= 2
        (state,) = await engine.budgets()
        await command.gateway.change_client(limited(0, spent=state.spent.money))  # type: ignore[attr-defined]
        clock.advance(1)
        assert made([await asked(engine, clients, key) for _ in range(3)]) == 0
        assert [each.spent for each in await engine.budgets()] == [state.spent]
        await command.gateway.change_client(ACME)  # type: ignore[attr-defined]
        clock.advance(1)
        assert made([await asked(engine, clients, key) for _ in range(3)]) == 3
        assert await engine.budgets() == []


# --- Rates ---


async def test_requests_above_the_rate_are_refused_with_the_time_to_wait(tmp_path: Path) -> None:
    """Headers have the rest of the limit. Another client has its own rate."""
    async with Engine(trace=False) as engine:
        clients = Clients(engine)
        client = Client(name="acme", requests_per_minute=2)
        first = await clients.admit(client, 10, 100)
        second = await clients.admit(client, 10, 100)
        assert [(each.rates.limit_requests, each.rates.remaining_requests) for each in (first, second)] == [
            (2, 1),
            (2, 0),
        ]
        assert first.rates.limit_tokens is None
        assert 0 < second.rates.reset_requests <= 60
        with pytest.raises(ClientRefused, match="2 requests a minute") as caught:
            await clients.admit(client, 10, 100)
        failure = caught.value.failure
        assert failure.kind == "rate_limit"
        assert failure.retry_after is not None
        assert 0 < failure.retry_after <= 60
        await clients.admit(msgspec.structs.replace(client, name="other"), 10, 100)
        await clients.admit(msgspec.structs.replace(client, requests_per_minute=3), 10, 100)


async def test_tokens_count_by_their_estimate_and_then_by_their_use() -> None:
    """A request that used less than its estimate frees the rest. A request above the limit takes the whole
    limit.
    """
    async with Engine(trace=False) as engine:
        clients = Clients(engine)
        client = Client(name="acme", tokens_per_minute=1000)
        admission = await clients.admit(client, 100, 5000)
        with pytest.raises(ClientRefused, match="1000 tokens a minute"):
            await clients.admit(client, 100, 100)
        admission.over(TokenUsage(100, 300))
        admission.over(TokenUsage(1, 1))  # a second end has no effect
        assert (await clients.admit(client, 100, 100)).rates.remaining_tokens == 400
        lost = await clients.admit(client, 100, 100)
        lost.over()
        assert (await clients.admit(client, 10, 10)).rates.remaining_tokens == 180
