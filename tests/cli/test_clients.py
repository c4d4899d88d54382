"""`callboard clients`: keys are shown once, and changes apply to running gateways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio

from callboard.engine import Engine
from callboard.engine.gateway.clients import ClientRefused, Clients
from callboard.tracestore import TraceStore

from ..gateway.keeping import TABLE
from ..support.engines import registry
from ..support.scripted import Say
from .running import call


def clients(*words: str, home: Path, exits: int = 0) -> str:
    """Run the command, and return its output without the last line break."""
    return call("clients", *words, home=home, exits=exits).stdout.strip()


def listed(home: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Return the clients by name."""
    lines = clients("list", "--json", *words, home=home).splitlines()
    return {line["name"]: line for line in map(json.loads, lines)}


def accepted(home: Path, key: str) -> str | None:
    """The client that a gateway accepts the key for, or None if the gateway refuses the key."""

    async def ask() -> str | None:
        async with Engine(models=registry(), store=home / "trace.db") as engine:
            try:
                return (await Clients(engine).authenticate(key)).name
            except ClientRefused:
                return None

    return anyio.run(ask)


def test_a_new_clients_key_is_only_in_the_output(home: Path) -> None:
    """stdout has only the key, so that a program can read it. The list shows the start of the key."""
    done = call("clients", "add", "acme", home=home, exits=0)
    key = done.stdout.strip()
    assert accepted(home, key) == "acme"
    assert "shown only now" in done.stderr
    assert key not in done.stderr + clients("list", home=home) + clients("list", "--json", home=home)
    assert all(key.encode() not in path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert [key.startswith(prefix) for prefix in listed(home)["acme"]["keys"]] == [True]
    assert json.loads(clients("add", "zoo", "--json", home=home))["key"] != key


def test_settings_are_stored_and_changed_one_by_one(home: Path) -> None:
    words = ("--budget", "5/day", "--zone", "Europe/Zurich", "--models", "claude-*", "--models", "gpt-5")
    clients("add", "acme", *words, "--requests-per-minute", "60", "--tokens-per-minute", "1000", home=home)

    def settings() -> list[Any]:
        names = (
            "budget_nano_usd",
            "window",
            "zone",
            "models",
            "requests_per_minute",
            "tokens_per_minute",
            "unpriced",
        )
        (acme,) = listed(home).values()
        return [acme[name] for name in names]

    day = [5_000_000_000, "day", "Europe/Zurich"]
    assert settings() == [*day, ["claude-*", "gpt-5"], 60, 1000, "refuse"]
    clients("change", "acme", "--models", "*", "--requests-per-minute", "5", "--allow-unpriced", home=home)
    assert settings() == [*day, [], 5, 1000, "allow"]
    assert "$10/month" in clients("budget", "acme", "10/month", home=home)
    assert settings() == [10_000_000_000, "month", "Europe/Zurich", [], 5, 1000, "allow"]
    clients("budget", "acme", "none", home=home)
    assert (settings()[:2], listed(home)["acme"]["left_nano_usd"]) == ([None, None], None)


def test_a_rotated_key_is_replaced_now_or_after_its_grace_time(home: Path) -> None:
    first = clients("add", "acme", "--budget", "1", home=home)
    second = clients("rotate", "acme", "--grace", "1h", home=home)
    assert [accepted(home, key) for key in (first, second)] == ["acme", "acme"]
    assert len(listed(home)["acme"]["keys"]) == 2
    third = clients("rotate", "acme", home=home)
    assert [accepted(home, key) for key in (first, second, third)] == [None, None, "acme"]
    assert listed(home)["acme"]["budget_nano_usd"] == 1_000_000_000


def test_a_revoked_client_has_no_key_and_its_name_can_be_used_again(home: Path) -> None:
    first = clients("add", "acme", home=home)
    assert clients("revoke", "acme", home=home) == "Revoked acme."
    assert accepted(home, first) is None
    assert listed(home) == {}
    assert listed(home, "--all")["acme"]["revoked_us"] is not None
    second = clients("add", "acme", home=home)
    assert [accepted(home, key) for key in (first, second)] == [None, "acme"]


def test_the_list_shows_the_spending_of_each_client(home: Path) -> None:
    """The list has the spend in the budget's window and in total."""
    for name, budget in (("acme", ("--budget", "1")), ("zoo", ())):
        clients("add", name, *budget, home=home)

    async def spend() -> None:
        async with Engine(models=registry(*[Say("x")] * 3), store=home / "trace.db", prices=TABLE) as engine:
            for name in ("acme", "acme", "zoo"):
                await engine.generate("s:m", "Hi", tags={"client": name})

    anyio.run(spend)
    found = listed(home)
    each = found["zoo"]["cost_nano_usd"]
    assert each > 0
    assert [found["acme"][name] for name in ("calls", "cost_nano_usd", "spent_nano_usd", "left_nano_usd")] == [
        *(2, 2 * each, 2 * each, 1_000_000_000 - 2 * each)
    ]
    rows = map(json.loads, call("cost", "--by", "tag:client", "--json", home=home).stdout.splitlines())
    assert {row["tag:client"]: row["cost_nano_usd"] for row in rows} == {"acme": 2 * each, "zoo": each}
    assert "zoo" in clients("list", home=home)


def test_a_mistake_is_one_error_and_changes_nothing(home: Path) -> None:
    clients("add", "acme", home=home)
    before = listed(home, "--all")
    for words, exits, text in (
        (("add", "a b"), 2, "is not a name"),
        (("add", "acme"), 2, "exists already"),
        (("add", "b", "--budget", "5/year"), 2, "hour, day, month"),
        (("add", "b", "--budget", "five"), 2, "not an amount"),
        (("add", "b", "--budget", "5/day", "--zone", "Nowhere"), 2, "not a time zone"),
        (("add", "b", "--requests-per-minute", "0"), 2, "at least 1"),
        (("add", "b", "--refuse-unpriced", "--allow-unpriced"), 2, "not allowed with"),
        (("rotate", "nobody"), 1, "no client 'nobody'"),
        (("rotate", "acme", "--grace", "soon"), 2, "not a time"),
        (("revoke", "nobody"), 1, "no client 'nobody'"),
        (("budget", "nobody", "5"), 1, "no client 'nobody'"),
        (("change", "nobody"), 1, "no client 'nobody'"),
    ):
        done = call("clients", *words, home=home, exits=exits)
        assert (text in done.stderr, done.stdout) == (True, ""), words
    assert listed(home, "--all") == before


def test_only_the_first_client_creates_a_missing_trace(home: Path) -> None:
    assert "no trace file" in call("clients", "list", home=home, exits=1).stderr
    clients("add", "acme", home=home)
    assert "no clients" not in clients("list", home=home)

    async def is_ours() -> bool:
        async with TraceStore(home / "trace.db") as store:
            return await store.last_event_id() == 0

    assert anyio.run(is_ours)
