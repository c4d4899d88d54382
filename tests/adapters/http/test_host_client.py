"""Adapters and engines that use the host's httpx client."""

from __future__ import annotations

import gzip
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import pytest
import respx

from callboard import Engine, OpenAICompatibleAdapter
from callboard.adapters import AdapterConfig, create_adapter
from callboard.bus.errors import AuthError, InvalidRequestError, NetworkError, OutcomeUnknownError

from ...support.certificate import local_certificate
from ...support.fake_http import request
from ...support.scripted_server import Connection, serving
from ...support.virtual_time import runs_on
from ..operations.making import image_request

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio", "trio")


HOST = "https://api.example.com"
ANSWER = {
    "id": "1",
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}
DELTAS = b"".join(
    b"data: %b\n\n" % json.dumps({"id": "1", "model": "m", "choices": [choice]}).encode()
    for choice in (
        {"index": 0, "delta": {"content": "Hel"}},
        {"index": 0, "delta": {"content": "lo!"}},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    )
)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(headers={"x-gateway": "ours"}, follow_redirects=True) as client:
        yield client


def adapter_over(client: httpx.AsyncClient, url: str = HOST) -> OpenAICompatibleAdapter:
    config = AdapterConfig(api_key="a-key", base_url=url, http_client=client, max_retries=0)
    return OpenAICompatibleAdapter(config, name="x")


@respx.mock
async def test_respx_replies_in_place_of_a_server(client: httpx.AsyncClient) -> None:
    """Calls are plain and streamed and have the host's own headers. Afterwards the client is still open."""
    route = respx.post(f"{HOST}/v1/chat/completions")
    adapter = adapter_over(client)
    route.respond(json=ANSWER)
    assert (await adapter.complete(request(model="x:m"))).text == "Hello!"
    sent = route.calls.last.request
    assert (sent.headers["x-gateway"], sent.headers["authorization"]) == ("ours", "Bearer a-key")
    route.respond(content=DELTAS + b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"})
    async with adapter.stream(request(model="x:m")) as stream:
        async for _ in stream:
            pass
    assert stream.response.text == "Hello!"
    statistics = adapter.statistics()
    assert statistics.transport is not None
    assert (statistics.transport.clients, statistics.transport.in_use) == (1, 0)
    await adapter.close()
    assert not client.is_closed
    with pytest.raises(NetworkError, match="closed"):
        await adapter.complete(request(model="x:m"))


@respx.mock
@pytest.mark.parametrize(("answer", "raised"), [
    (httpx.Response(401, json={"error": {"message": "no"}}), AuthError),
    (httpx.Response(307, headers={"location": "https://elsewhere.example.com/"}), InvalidRequestError),
    (httpx.ConnectError("nobody there"), NetworkError),
    (httpx.ReadError("broken"), NetworkError),
])  # fmt: skip
async def test_failures_raise_the_same_errors(
    client: httpx.AsyncClient, answer: httpx.Response | Exception, raised: type[Exception]
) -> None:
    """The errors are those of Callboard's own connections. A redirect is not followed with the key, for any
    setting of the client.
    """
    elsewhere = respx.route(host="elsewhere.example.com").respond(json=ANSWER)
    respx.post(f"{HOST}/v1/chat/completions").mock(
        **{"side_effect" if isinstance(answer, Exception) else "return_value": answer}  # type: ignore[arg-type]
    )
    with pytest.raises(raised):
        await adapter_over(client).complete(request(model="x:m"))
    assert not elsewhere.called


async def test_a_request_that_must_not_arrive_twice_is_never_sent_again(client: httpx.AsyncClient) -> None:
    """The client kept a connection open that the server has closed."""
    posts: list[bytes] = []

    async def script(connection: Connection) -> None:
        posts.append(await connection.request())
        raise anyio.EndOfStream

    async with serving(script) as server:
        base = server.url.removesuffix("/v1/talk")
        config = AdapterConfig(api_key="a-key", base_url=base, http_client=client, max_retries=2)
        adapter = create_adapter("openai", config, name="openai")
        with pytest.raises(OutcomeUnknownError):
            await adapter.make_images(image_request("x:gpt-image-1"))  # type: ignore[attr-defined]
    assert len(posts) == 1


async def packed(response: httpx.Response) -> None:
    await response.aread()


@pytest.mark.parametrize("hooks", [[], [packed]])
async def test_a_compressed_reply_is_decompressed_once(
    hooks: list[Callable[[httpx.Response], Awaitable[None]]],
) -> None:
    """A hook of the client may already have read and decompressed the reply."""
    body = gzip.compress(json.dumps(ANSWER).encode())

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.reply(body, b"content-type: application/json\r\ncontent-encoding: gzip\r\n")

    async with serving(script) as server, httpx.AsyncClient(event_hooks={"response": hooks}) as client:
        adapter = adapter_over(client, server.url.removesuffix("/v1/talk"))
        assert (await adapter.complete(request(model="x:m"))).text == "Hello!"


async def test_requests_go_through_the_client_s_proxy() -> None:
    """The proxy gets the whole address."""

    async with serving(answer_once) as server:
        proxy = server.url.removesuffix("/v1/talk")
        async with httpx.AsyncClient(proxy=proxy) as client:
            adapter = adapter_over(client, "http://only.the.proxy.knows.example")
            assert (await adapter.complete(request(model="x:m"))).text == "Hello!"
    assert server.requests[0][1].startswith(b"POST http://only.the.proxy.knows.example/v1/chat/completions ")


async def test_a_server_that_requires_it_gets_the_client_s_certificate(tmp_path: Path) -> None:
    """With mutual TLS, there is no connection without the certificate."""
    file = tmp_path / "both.pem"
    file.write_bytes(local_certificate())
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(file)
    server_side.load_verify_locations(file)
    server_side.verify_mode = ssl.CERT_REQUIRED
    trusting = ssl.create_default_context(cafile=str(file))
    known = ssl.create_default_context(cafile=str(file))
    known.load_cert_chain(file)

    async with serving(answer_once, tls=server_side) as server:
        url = server.url.removesuffix("/v1/talk")
        async with httpx.AsyncClient(verify=trusting) as stranger:
            with pytest.raises(NetworkError):
                await adapter_over(stranger, url).complete(request(model="x:m"))
        async with httpx.AsyncClient(verify=known) as client:
            assert (await adapter_over(client, url).complete(request(model="x:m"))).text == "Hello!"


async def answer_once(connection: Connection) -> None:
    await connection.request()
    await connection.reply(json.dumps(ANSWER).encode(), b"content-type: application/json\r\n")


MODELS = """
adapters:
  x: {type: openai_compatible, base_url: "https://api.example.com", api_key: a-key}
  y: {type: anthropic, base_url: "https://api.example.com", api_key: a-key}
models:
  "x:m": {adapter: x}
"""


@respx.mock
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_an_engine_s_configured_adapters_use_the_client(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """Adapters use the client after a reload, too. Closing the engine does not close the client."""
    route = respx.post(f"{HOST}/v1/chat/completions").respond(json=ANSWER)
    (tmp_path / "models.yaml").write_text(MODELS)
    async with Engine(models=tmp_path / "models.yaml", trace=False, http_client=client) as engine:
        assert (await engine.generate("x:m", "Hi")).text == "Hello!"
        (tmp_path / "models.yaml").write_text(MODELS.replace("a-key", "another"))
        await engine.reload()
        assert (await engine.generate("x:m", "Hi")).text == "Hello!"
        change = await engine.reload()
        assert not change.adapters_changed, "the same client is no change"
    assert route.calls.last.request.headers["authorization"] == "Bearer another"
    assert not client.is_closed
