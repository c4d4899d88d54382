"""A gateway with keys: the permissions of each key, and the limits that clients see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.bus import LlmCallFailed, Lossless
from callboard.engine import Engine
from callboard.engine.gateway import gateway
from callboard.engine.gateway.application import Gateway
from callboard.tracestore import TraceStore
from callboard.tracestore.gateway import Client
from tests.gateway.asking import ask, open_request, post
from tests.gateway.keeping import ONE, added, engine_on
from tests.support.scripted import Say

CHAT = {"model": "s:m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
MESSAGES = "/v1/messages"
GEMINI = "/v1beta/models/s:m:generateContent"
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
RESPONSES = "/v1/responses"


@asynccontextmanager
async def serving(
    folder: Path, *replies: Say, **client: Any
) -> AsyncIterator[tuple[Gateway, Engine, str, TraceStore]]:
    """A gateway, its engine, a client's key, and the store as another process opens it."""
    async with TraceStore(folder / "trace.db") as command:
        key = await added(command, Client(name="acme", **client))
        async with engine_on(TraceStore(folder / "trace.db"), *replies) as engine:
            yield gateway(engine), engine, key, command


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", MESSAGES, RESPONSES, GEMINI, "/v1/embeddings"])
@pytest.mark.parametrize("headers", [{}, bearer("cb-wrong"), {"x-api-key": "x"}, {"authorization": "Basic x"}])
async def test_a_request_without_a_known_key_is_refused_before_its_body_is_read(
    tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    """The key may belong to another service: the answer does not quote it, and the trace has nothing."""
    async with serving(tmp_path) as (app, engine, _, command):
        answer = await ask(app, "POST", path, headers={**headers, "content-length": "10"})
        await engine.flush()
        assert await command.calls() == []
    assert answer.status == 401
    assert answer.headers["connection"] == "close"
    assert b"cb-wrong" not in answer.data


@pytest.mark.parametrize(("path", "body", "header", "query"), [
    ("/v1/chat/completions", CHAT, "authorization", ""),
    (MESSAGES, CHAT, "x-api-key", ""),
    (MESSAGES, CHAT, "authorization", ""),
    (GEMINI, CONTENTS, "x-goog-api-key", ""),
    (GEMINI, CONTENTS, "", "key"),
])  # fmt: skip
async def test_each_sdk_sends_its_key_in_its_own_way(
    tmp_path: Path, path: str, body: object, header: str, query: str
) -> None:
    async with serving(tmp_path, Say("Hello")) as (app, engine, key, _):
        events = engine.bus.subscribe("llm.call_started", policy=Lossless())
        value = f"Bearer {key}" if header == "authorization" else key
        headers = {header: value} if header else {}
        answer = await post(app, body, path=path, headers=headers, query=f"{query}={key}" if query else "")
        assert answer.status == 200, answer.data
        (call,) = events.take()
    assert call.tags == {"client": "acme"}


async def test_a_keyless_gateway_recognises_a_client_by_its_key(tmp_path: Path) -> None:
    """The client's budget then applies, too."""
    async with serving(tmp_path, Say("1"), Say("2"), models=("gpt-*",)) as (_, engine, key, _):
        app = gateway(engine, keyless=True)
        statuses = [
            (await post(app, CHAT, headers=headers)).status
            for headers in ({}, bearer("any"), bearer(key), bearer("cb-unknown"))
        ]
    assert statuses == [200, 200, 403, 401]


async def test_health_needs_no_key(tmp_path: Path) -> None:
    async with serving(tmp_path) as (app, _, _, _):
        assert (await ask(app, "GET", "/health")).json == {"status": "ok"}
        assert (await ask(app, "GET", "/v1/models")).status == 401


async def test_a_client_may_use_only_its_models(tmp_path: Path) -> None:
    async with serving(tmp_path, models=("gpt-*",)) as (app, engine, key, _):
        await engine.reload(engine.registry.with_client_names({"gpt-5": ["s:m"]}))
        listed = await ask(app, "GET", "/v1/models", headers=bearer(key))
        refused = await post(app, CHAT, headers=bearer(key))
        counted = await post(app, CHAT, path="/v1/messages/count_tokens", headers=bearer(key))
    assert [model["id"] for model in listed.json["data"]] == ["gpt-5"]
    assert (refused.status, counted.status) == (403, 403)


async def test_a_client_that_is_revoked_loses_its_call_in_progress(tmp_path: Path) -> None:
    async with serving(tmp_path, Say("Hel", "lo", pause=_once_then_never())) as (app, engine, key, command):
        events = engine.bus.subscribe("llm.call_failed", policy=Lossless())
        stream = {**CHAT, "stream": True}
        async with open_request(app, "POST", "/v1/chat/completions", stream, headers=bearer(key)) as asked:
            await asked.until(lambda: b"Hel" in asked.data)
            await command.gateway.revoke_client("acme", 7)
        assert b"revoked" in asked.data
        (failed,) = [each.data for each in events.take() if isinstance(each.data, LlmCallFailed)]
        assert (await post(app, CHAT, headers=bearer(key))).status == 401
    assert failed.error_class == "cancelled"


def _once_then_never() -> Any:
    asked = 0

    async def pause() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            await anyio.sleep_forever()

    return pause


async def test_rates_are_in_the_headers_of_the_clients_wire(tmp_path: Path) -> None:
    async with serving(tmp_path, Say("1"), Say("2"), requests_per_minute=2) as (app, _, key, _):
        chat = await post(app, CHAT, headers=bearer(key))
        messages = await post(app, CHAT, path=MESSAGES, headers=bearer(key))
        refused = await post(app, CHAT, path=MESSAGES, headers=bearer(key))
    assert (chat.headers["x-ratelimit-limit-requests"], chat.headers["x-ratelimit-remaining-requests"]) == (
        "2",
        "1",
    )
    assert messages.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_call_over_the_budget_is_refused_and_not_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, Say("1"), Say("2"), budget_nano_usd=ONE, window="day") as (app, _, key, _):
        first = await post(app, CHAT, headers=bearer(key))
        second = await post(app, CHAT, headers=bearer(key))
        third = await post(app, CHAT, path=MESSAGES, headers=bearer(key))
    assert first.status == 200
    assert second.status in (402, 429)
    assert third.status in (402, 429)
    assert "retry-after" in second.headers
