"""The import of LiteLLM's table from a PostgreSQL server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callboard.bus import ConfigurationError, TokenUsage
from callboard.engine.imports.importer import ImportReport, import_calls, request_id
from callboard.tracestore import PriceTable, Store, TraceStore
from tests.support.postgres_server import PostgresServer

from .samples import CHAT, FULL
from .test_content import all_of, roles_and_texts

pytestmark = pytest.mark.anyio
PRICES = PriceTable.default()
REAL = Path(__file__).parent / "real" / "litellm.jsonl"
TABLE = """
CREATE TABLE "LiteLLM_SpendLogs" (
    request_id text PRIMARY KEY, call_type text NOT NULL DEFAULT '', api_key text NOT NULL DEFAULT '',
    spend double precision NOT NULL DEFAULT 0, total_tokens integer NOT NULL DEFAULT 0,
    prompt_tokens integer NOT NULL DEFAULT 0, completion_tokens integer NOT NULL DEFAULT 0,
    "startTime" timestamp(3) NOT NULL, "endTime" timestamp(3) NOT NULL, "completionStartTime" timestamp(3),
    model text NOT NULL DEFAULT '', model_id text DEFAULT '', model_group text DEFAULT '',
    api_base text DEFAULT '', custom_llm_provider text DEFAULT '', "user" text DEFAULT '',
    metadata jsonb DEFAULT '{}',
    cache_hit text DEFAULT '', cache_key text DEFAULT '', request_tags jsonb DEFAULT '[]', team_id text,
    end_user text, requester_ip_address text, messages jsonb DEFAULT '{}', response jsonb DEFAULT '{}',
    proxy_server_request jsonb DEFAULT '{}', session_id text, status text, mcp_namespaced_tool_name text,
    organization_id text, agent_id text, request_duration_ms integer, litellm_call_id text, billing_agent_id text,
    created_at timestamp(3) NOT NULL DEFAULT now(), updated_at timestamp(3) NOT NULL DEFAULT now()
)
"""
"""The table that the migrations of LiteLLM 1.108.7 create."""
ERRORS = ["invalid_request", "invalid_request", "rate_limit"]
USAGE = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 700}}, "user_api_key_alias": "shop"}


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.clean_database() as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute(TABLE)
        yield dsn


def add(dsn: str, name: str, minute: int, **more: Any) -> None:
    row = {
        **{"request_id": name, "model": "gpt-5", "custom_llm_provider": "openai", "spend": 0.01},
        **{"prompt_tokens": 1000, "completion_tokens": 60, "metadata": json.dumps(USAGE), "session_id": "s1"},
        **{"startTime": f"2026-03-01T09:{minute:02}:00", "endTime": f"2026-03-01T09:{minute:02}:02",
            "api_key": "sk-1"}, **more,
    }  # fmt: skip
    insert(dsn, row)


def insert(dsn: str, row: dict[str, Any]) -> None:
    names = ", ".join(f'"{column}"' for column in row)
    places = ", ".join(["%s"] * len(row))
    with psycopg.connect(dsn) as connection:
        connection.execute(f'INSERT INTO "LiteLLM_SpendLogs" ({names}) VALUES ({places})', list(row.values()))


async def imported(store: Store, dsn: str, **how: Any) -> ImportReport:
    return await import_calls(store, "litellm", dsn, prices=PRICES, **how)


async def test_the_rows_are_calls_and_new_ones_come_with_the_next_import(server: str, tmp_path: Path) -> None:
    add(server, "r1", 0)
    async with TraceStore(tmp_path / "trace.db") as store:
        assert (await imported(store, f"{server}?connection_limit=5&pool_timeout=10")).new == 1
        (row,) = await store.calls()
        assert (row.usage, row.started_us) == (TokenUsage(300, 60, 700), 1_772_355_600_000_000)
        assert (row.latency_ms, row.tags, row.stated_nano_usd) == (2000, {"key": "shop"}, 10_000_000)
        add(server, "r2", 50)
        add(server, "late", 5)  # It ended earlier, but was written later.
        report = await imported(store, server)
        assert (report.new, report.known, report.unread) == (2, 1, 0)


async def test_the_rows_that_litellm_wrote_cost_what_it_states(server: str, tmp_path: Path) -> None:
    """The rows are plain and streamed calls of four providers, three tiers, a search, a cache hit, failures and
    cut streams.
    """
    rows = [json.loads(line) for line in REAL.read_text().splitlines()]
    for row in rows:
        times = {name: value[:23] for name, value in row.items() if name.endswith("Time")}  # UTC, as Prisma writes
        texts = {name: json.dumps(value) for name, value in row.items() if isinstance(value, dict | list)}
        insert(server, {**row, **times, **texts})
    async with TraceStore(tmp_path / "trace.db") as store:
        report = await imported(store, server, content=True)
        assert (report.new, report.unread) == (len(rows), 0)
        calls = {call.request_id: call for call in await store.calls()}
        for row in rows:
            call = calls[request_id("litellm", row["request_id"])]
            assert (0 if call.cost is None else call.cost.nano_usd or 0) == round(row["spend"] * 10**9)
            if row["status"] == "success" and row["cache_hit"] != "True":
                assert call.usage is not None
                assert call.usage.total_input_tokens == row["prompt_tokens"]
                assert call.usage.output_tokens == row["completion_tokens"]
        assert [call.error_class for call in calls.values() if call.error_class] == ERRORS
        assert roles_and_texts(list(await store.messages("s-1"))) == [
            ("user", "plain session"),
            ("assistant", "Hello"),
        ]


async def test_rows_from_long_ago_are_not_read_again(server: str, tmp_path: Path) -> None:
    add(server, "r1", 0, endTime="2026-02-01T09:00:00", startTime="2026-02-01T08:59:00")
    add(server, "r2", 0)
    async with TraceStore(tmp_path / "trace.db") as store:
        await imported(store, server)
        report = await imported(store, server)
        assert (report.new, report.known) == (0, 1)


async def test_content_comes_only_if_asked(server: str, tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": FULL[-1][1]}}]}
    add(server, "r1", 0, messages=json.dumps(CHAT), response=json.dumps(answer))
    async with TraceStore(tmp_path / "trace.db") as store:
        await imported(store, server)
        assert "Hidden" not in await all_of(store)
        await imported(store, server, content=True)
        assert roles_and_texts(list(await store.messages("s1"))) == FULL


async def test_the_trace_has_no_password(server: str, tmp_path: Path) -> None:
    add(server, "r1", 0)
    password = server.partition("@")[0].rpartition(":")[2]
    assert password
    async with TraceStore(tmp_path / "trace.db") as store:
        await imported(store, server)
        assert password not in await all_of(store)
        (row,) = await store.calls()
        assert row.origin_file == server.replace(f":{password}@", "@")


async def test_a_server_without_the_table_costs_one_line(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with postgres_server.clean_database() as dsn:
        async with TraceStore(tmp_path / "trace.db") as store:
            report = await imported(store, dsn)
            assert "LiteLLM_SpendLogs" in report.faults[0].why
            report = await imported(store, "postgresql://ada:Secret1@127.0.0.1:1/none")
            assert (report.new, report.unread) == (0, 1)
            assert "Secret1" not in repr(report.faults)


async def test_other_sources_read_no_server() -> None:
    with pytest.raises(ConfigurationError, match="codex reads files, and no database on a server"):
        await import_calls(None, "codex", "postgresql://127.0.0.1/litellm", dry_run=True)
