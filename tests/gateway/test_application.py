"""The gateway around the wires: addresses, models, replies, failures, limits, and clients that disconnect."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.adapters import TokenUsage
from callboard.bus import LlmCallCompleted, LlmCallFailed
from callboard.bus.errors import (
    AuthError,
    ContentFilterError,
    InvalidRequestError,
    OverloadedError,
    RateLimitError,
)
from callboard.engine import Engine, Limits
from callboard.engine.gateway import GatewayLimits, http
from callboard.engine.gateway.application import Gateway, gateway
from callboard.tracestore import PriceRow, PriceTable
from tests.gateway.asking import Asked, ask, open_request, post
from tests.gateway.plain_wire import WIRE
from tests.support.engines import registry, running
from tests.support.scripted import Say

zstd: Any = http.zstd()
PRICES = PriceTable([PriceRow(model="s:m", input=3_000_000, output=15_000_000)], label="test")
"""3 and 15 dollars for a million tokens."""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "callboard.engine.gateway.application.wires",
        lambda: dict.fromkeys(("chat", "responses", "messages", "gemini"), WIRE),
    )


def asked_for(prompt: str = "Hi", model: str = "s:m", **fields: object) -> dict[str, object]:
    return {"model": model, "prompt": prompt, **fields}


@asynccontextmanager
async def serving(*replies: Say, **how: Any) -> AsyncIterator[Gateway]:
    async with running(*replies, **how) as (engine, _):
        yield gateway(engine, keyless=True)


async def test_a_whole_reply_has_the_ids_of_its_call() -> None:
    async with serving(Say("Hel", "lo")) as app:
        answer = await post(app, asked_for())
    assert answer.status == 200
    assert answer.json == {"id": answer.headers["request-id"][4:], "model": "s:m", "text": "Hello"}
    assert answer.headers["x-callboard-call-id"] == answer.headers["x-request-id"] == answer.headers["request-id"]


async def test_a_stream_has_the_events_of_the_reply_in_their_order() -> None:
    async with serving(Say("Hel", "lo")) as app:
        answer = await post(app, asked_for(stream=True))
    start, *texts, end = answer.lines
    assert start["model"] == "s:m"
    assert start["input_tokens"] > 0
    assert [line["text"] for line in texts] == ["Hel", "lo"]
    assert end == {"end": "end_turn"}
    assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(("error", "status", "kind"), [
    (InvalidRequestError("no"), 400, "invalid_request"),
    (ContentFilterError("no"), 400, "content_filter"),
    (RateLimitError("slow down", retry_after_seconds=1.5), 429, "rate_limit"),
    (OverloadedError("busy"), 529, "overloaded"),
    (AuthError("the key sk-secret is wrong", provider="s"), 403, "permission"),
    (RuntimeError("a fault of ours in /some/file"), 500, "server"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_byte_has_its_own_status(
    error: Exception, status: int, kind: str, stream: bool
) -> None:
    async with serving(Say(fails=error)) as app:
        answer = await post(app, asked_for(stream=stream))
    assert (answer.status, answer.json["error"]) == (status, kind)
    assert "secret" not in answer.json["message"]
    assert "/some/file" not in answer.json["message"]
    if isinstance(error, RateLimitError) and error.retry_after_seconds:
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("2", "1500")


async def test_a_failure_during_a_stream_is_an_event_of_the_stream() -> None:
    async with serving(Say("Hel", fails=OverloadedError("busy"))) as app:
        answer = await post(app, asked_for(stream=True))
    assert answer.status == 200
    assert answer.over
    assert answer.lines[-1] == {"failed": "overloaded", "message": "busy"}


async def test_names_of_clients_are_mapped_to_models_with_their_fallbacks() -> None:
    async with running(Say(fails=OverloadedError("busy")), t=[Say("From t")]) as (engine, _):
        models = engine.registry.with_client_names({"claude-*": ["s:m", "t:m"], "claude-old": ["t:m"]})
        await engine.reload(models)
        app = gateway(engine, keyless=True)
        answer = await post(app, asked_for(model="claude-new"))
        listed = (await ask(app, "GET", "/v1/models")).json
    assert (answer.json["text"], answer.json["model"]) == ("From t", "claude-new")
    assert listed == {"models": ["claude-old", "s:m", "t:m"]}


SPAN = {
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "spanId": "b7ad6b7169203331",
    "startTimeUnixNano": "1764000000000000000",
    "endTimeUnixNano": "1764000001000000000",
    "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.provider.name", "value": {"stringValue": "anthropic"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "claude-sonnet-4-5"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "100"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "20"}}],
}  # fmt: skip


async def test_spans_of_other_programs_are_calls_in_the_trace(tmp_path: Path) -> None:
    """Repeated spans change nothing. Without a trace, or without readable spans, the request is refused."""
    spans = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
    async with running(store=tmp_path / "trace.db") as (engine, _):
        app = gateway(engine, keyless=True)
        how = {"path": "/v1/traces", "headers": {"content-type": "application/json"}}
        first, again = await post(app, spans, **how), await post(app, spans, **how)
        broken = await post(app, b"\xff", **how)
        assert engine.store is not None
        (row,) = await engine.store.calls()
    assert (first.status, first.json, again.status) == (200, {}, 200)
    assert (row.model, row.origin) == ("anthropic:claude-sonnet-4-5", "otlp")
    assert (broken.status, broken.json["error"]) == (400, "invalid_request")
    async with serving() as app:
        assert (await post(app, spans, **how)).status == 404


async def test_the_cost_in_the_header_is_that_of_the_trace(tmp_path: Path) -> None:
    usage = TokenUsage(1_234_567, 89)
    async with running(Say("Hi", usage=usage), store=tmp_path / "trace.db", prices=PRICES) as (engine, events):
        answer = await post(gateway(engine, keyless=True), asked_for())
        (done,) = [each.data for each in events.take() if isinstance(each.data, LlmCallCompleted)]
    assert answer.headers["x-callboard-cost-usd"] == "3.705036000"
    assert done.cost.nano_usd == 3_705_036_000


async def test_a_client_that_leaves_cancels_its_call_which_is_billed() -> None:
    began = anyio.Event()

    async def forever() -> None:
        if began.is_set():
            await anyio.sleep_forever()
        began.set()

    async with running(Say("Hel", "lo", pause=forever)) as (engine, events):
        async with open_request(
            gateway(engine, keyless=True), "POST", "/v1/chat/completions", asked_for(stream=True)
        ) as asked:
            await asked.until(lambda: len(asked.data.splitlines()) == 2)
            asked.leave()
        (failed,) = [each.data for each in events.take() if isinstance(each.data, LlmCallFailed)]
    assert failed.error_class == "cancelled"
    assert failed.usage is not None
    assert failed.usage.output_tokens > 0


async def test_a_call_may_run_to_its_end_without_its_client() -> None:
    goes_on = anyio.Event()
    async with running(Say("Hel", "lo", pause=goes_on.wait)) as (engine, events):
        app = gateway(engine, keyless=True, on_disconnect="finish")
        async with open_request(app, "POST", "/v1/chat/completions", asked_for(stream=True)) as asked:
            asked.leave()
            await anyio.lowlevel.checkpoint()
            goes_on.set()
        ends = [each.data for each in events.take() if isinstance(each.data, LlmCallCompleted | LlmCallFailed)]
    assert [type(end) for end in ends] == [LlmCallCompleted]
    assert not asked.arrived


async def test_a_client_that_stops_reading_is_given_up() -> None:
    asked = Asked()
    asked.reads = anyio.sleep_forever
    limits = GatewayLimits(write_seconds=0.03)
    async with running(Say("Hel", "lo")) as (engine, _):
        app = gateway(engine, keyless=True, limits=limits)
        async with open_request(app, "POST", "/v1/chat/completions", asked_for(stream=True), asked=asked):
            pass
    assert not asked.over


async def test_a_silent_stream_is_answered_early_and_has_signs_of_life() -> None:
    goes_on = anyio.Event()
    limits = GatewayLimits(first_event_seconds=0.02, ping_seconds=0.02)
    async with running(Say("Hello", pause=goes_on.wait)) as (engine, _):
        app = gateway(engine, keyless=True, limits=limits)
        async with open_request(app, "POST", "/v1/chat/completions", asked_for(stream=True)) as asked:
            await asked.until(lambda: asked.status)
            assert not goes_on.is_set()
            goes_on.set()
    assert [line.get("text") for line in asked.lines if "text" in line] == ["Hello"]


def large(bytes_: int) -> bytes:
    return b'{"model":"s:m","prompt":"%s"}' % (b"x" * bytes_)


@pytest.mark.parametrize(("body", "headers", "status"), [
    (gzip.compress(large(10)), {"content-encoding": "gzip"}, 200),
    (zstd.compress(large(10)), {"content-encoding": "zstd"}, 200),
    (large(2000), {}, 413),
    (b"", {"content-length": "2000"}, 413),
    (gzip.compress(large(200_000), mtime=0), {"content-encoding": "gzip"}, 413),
    (gzip.compress(large(10), mtime=0)[:-4], {"content-encoding": "gzip"}, 400),
    (zstd.compress(large(200_000)), {"content-encoding": "zstd"}, 413),
    (zstd.compress(large(10))[:-4], {"content-encoding": "zstd"}, 400),
    (b"x", {"content-encoding": "zstd"}, 400),
    (b"x", {"content-encoding": "br"}, 415),
    (b"[" * 900, {}, 400),
    (b"[]", {}, 400),
    (b'{"model":', {}, 400),
    (large(10), {f"x-{number}": "1" for number in range(200)}, 431),
    (large(10), {"x-long": "1" * 100_000}, 431),
])  # fmt: skip
async def test_a_compressed_body_is_read_and_a_request_out_of_bounds_is_refused(
    body: bytes, headers: dict[str, str], status: int
) -> None:
    async with running(Say("Hi")) as (engine, _):
        app = gateway(engine, keyless=True, limits=GatewayLimits(body_bytes=1000))
        answer = await post(app, body, headers=headers)
    assert answer.status == status


async def test_without_its_library_zstd_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.engine.gateway.http.zstd", lambda: None)
    async with serving(Say("Hi")) as app:
        assert (await post(app, b"x", headers={"content-encoding": "zstd"})).status == 415


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with running(Say("Hi")) as (engine, _):
        app = gateway(engine, keyless=True, limits=GatewayLimits(body_seconds=0.01))
        async with open_request(app, "POST", "/v1/chat/completions") as asked:
            asked.body(b"{", more=True)
    assert asked.status == 504


@pytest.mark.parametrize(("headers", "status"), [
    ({"host": "127.0.0.1:8375"}, 200),
    ({"host": "localhost"}, 200),
    ({"host": "[::1]:8375"}, 200),
    ({"host": "evil.example"}, 403),
    ({"host": "evil.example:8375"}, 403),
    ({"host": "127.0.0.1:8375", "origin": "https://evil.example"}, 403),
    ({"host": "127.0.0.1:8375", "origin": "null"}, 403),
    ({"host": "127.0.0.1:8375", "origin": "http://127.0.0.1:8375"}, 200),
])  # fmt: skip
async def test_a_keyless_gateway_refuses_pages_and_foreign_names(headers: dict[str, str], status: int) -> None:
    async with serving(Say("Hi")) as app:
        assert (await post(app, asked_for(), headers=headers)).status == status


async def test_a_gateway_can_be_mounted_below_a_path() -> None:
    async with serving(Say("Hi")) as app:
        assert (await post(app, asked_for(), root="/llm")).status == 200


async def test_a_slow_client_gets_its_whole_stream() -> None:
    """The log of a turn can be folded as soon as the turn ends."""
    read = anyio.Event()
    asked = Asked()
    asked.reads = read.wait
    models = registry(Say(*[f"{number} " for number in range(300)]))
    limits = Limits(retain_streams_seconds=0.0, retain_streams_bytes=0)
    async with Engine(models=models, trace=False, limits=limits) as engine:
        app = gateway(engine, keyless=True)
        async with open_request(app, "POST", "/v1/chat/completions", asked_for(stream=True), asked=asked):
            while engine._runtime.in_flight:
                await anyio.lowlevel.checkpoint()
            read.set()
    assert "".join(line.get("text", "") for line in asked.lines) == "".join(f"{number} " for number in range(300))
