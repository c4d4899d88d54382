"""The health check: one harmless GET to servers on real sockets."""

from __future__ import annotations

import pytest

from callboard.adapters import AdapterConfig, AnthropicAdapter, OpenAIAdapter, OpenAICompatibleAdapter
from callboard.adapters.health import AdapterHealth, ChecksHealth, ReportsStatistics, judge, place
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.errors import NetworkError

from ...support.fake_http import HANG, FakeReply, FakeTransport, ToyAdapter, request
from ...support.provider_server import provider_server, refusing_url
from ...support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")
KEY = "sk-the-key-under-test"


async def check(adapter: HttpAdapter) -> AdapterHealth:
    try:
        return await adapter.health_check()
    finally:
        await adapter.close()


@pytest.mark.parametrize(("kind", "base", "path", "header"), [
    (AnthropicAdapter, "", "/v1/models", ("x-api-key", KEY)),
    (AnthropicAdapter, "", "/v1/models", ("anthropic-version", "2023-06-01")),
    (OpenAIAdapter, "/v1", "/v1/models", ("authorization", f"Bearer {KEY}")),
    (OpenAICompatibleAdapter, "/openai/v1", "/openai/v1/models", ("authorization", f"Bearer {KEY}")),
])  # fmt: skip
async def test_a_provider_that_lists_its_models_is_healthy(
    kind: type[HttpAdapter], base: str, path: str, header: tuple[str, str]
) -> None:
    """The check is one GET near the provider's endpoint. The request has the key and costs nothing."""
    with provider_server() as server:
        health = await check(kind(AdapterConfig(api_key=KEY, base_url=server.url + base)))
        assert health
        assert "HTTP 200" in health.detail
        (asked,) = server.asked
    assert (asked.method, asked.path) == ("GET", path)
    assert asked.headers[header[0]] == header[1]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_reported_and_never_shown(status: int) -> None:
    """The finding names the address that refused the key, but not the key."""
    with provider_server(status, f'{{"error": "bad key {KEY}"}}'.encode()) as server:
        health = await check(OpenAIAdapter(AdapterConfig(api_key=KEY, base_url=server.url)))
        assert len(server.asked) == 1
    assert not health
    assert "rejected" in health.detail
    assert str(status) in health.detail
    assert health.fix
    assert KEY not in repr(health)


@pytest.mark.parametrize(
    ("status", "well"),
    [(400, True), (404, True), (405, True), (429, True), (302, False), (500, False), (529, False)],
)
async def test_a_server_without_a_list_of_models_is_reachable(status: int, well: bool) -> None:
    """A server may lack that page. A server that fails or redirects is also asked only once."""
    with provider_server(status) as server:
        health = await check(OpenAICompatibleAdapter(AdapterConfig(base_url=server.url)))
        assert len(server.asked) == 1
    assert health.ok is well
    assert bool(health.fix) is not well


async def test_a_refused_connection_is_a_finding() -> None:
    """The finding has the address and advice. The check raises no error, also if the adapter is closed."""
    url = refusing_url()
    adapter = OpenAIAdapter(AdapterConfig(base_url=url))
    health = await check(adapter)
    assert not health
    assert "could not connect" in health.detail
    assert url in health.fix
    assert "closed" in (await adapter.health_check()).detail


async def test_a_server_that_hangs_is_given_up_after_the_configured_limit() -> None:
    """The timeout of a call limits the check if it is shorter than the check's own five seconds."""
    with provider_server(None) as server:
        health = await check(OpenAIAdapter(AdapterConfig(base_url=server.url, timeout_seconds=0.2)))
    assert not health
    assert "within 0.2 s" in health.detail


async def test_the_reply_is_closed_unread() -> None:
    """A list of models can be long, so the check reads no byte of it."""
    reply = FakeReply(HANG)
    adapter = ToyAdapter(AdapterConfig(), transport=FakeTransport(reply))
    assert await adapter.health_check()
    assert reply.closed
    assert reply.read == 0


async def test_a_failure_is_not_retried() -> None:
    """A check reports the current state. The script's second reply is not used."""
    transport = FakeTransport(NetworkError("cable cut"), FakeReply())
    health = await ToyAdapter(AdapterConfig(max_retries=5), transport=transport).health_check()
    assert not health
    assert "cable cut" in health.detail
    assert len(transport.requests) == 1


async def test_statistics_count_calls_and_their_connections() -> None:
    """A call counts from its first sent byte until its stream is closed."""
    with provider_server() as server:
        adapter = ToyAdapter(AdapterConfig(base_url=server.url))
        assert isinstance(adapter, ChecksHealth)
        assert isinstance(adapter, ReportsStatistics)
        assert adapter.statistics().calls == 0
        await adapter.health_check()
        counted = adapter.statistics().transport
        assert counted is not None
        assert (counted.clients, counted.in_use) == (1, 0)
        await adapter.close()
        counted = adapter.statistics().transport
        assert counted is not None
        assert counted.clients == 0


async def test_a_running_call_is_counted_until_it_ends() -> None:
    """In the middle of a stream, the statistics have one call."""
    adapter = ToyAdapter(
        AdapterConfig(), transport=FakeTransport(FakeReply(b'data: {"is": "text", "say": "a"}\n\n', HANG))
    )
    async with adapter.stream(request()) as stream:
        await anext(stream)
        assert adapter.statistics().calls == 1
        assert adapter.statistics().transport is None  # this transport has no counts
    assert adapter.statistics().calls == 0


def test_a_displayed_address_has_no_password_and_a_proxy_is_not_the_provider() -> None:
    """Users put credentials into URLs, also into a query. Status 407 comes from a proxy, so the finding does not
    name the key.
    """
    assert place("https://me:secret@proxy.test:8443/v1/models?key=secret") == "https://proxy.test:8443/v1/models"
    assert "proxy" in judge(407, "HTTP 407").detail
