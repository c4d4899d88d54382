"""Which client a request goes over: our own, unless a proxy, trio or the host says otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from callboard.adapters.transport.addresses import UrlKind, has_proxy, kind_of
from callboard.adapters.transport.client import HttpTransport, new_transport
from callboard.adapters.transport.transport import HttpRequest, exchange
from callboard.bus.errors import AdapterError

from ...support.programs import ended
from ...support.scripted_server import echo, serving
from ...support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio", "uvloop", "trio")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's are."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@asynccontextmanager
async def transport() -> AsyncIterator[HttpTransport]:
    made = HttpTransport()
    try:
        yield made
    finally:
        await made.aclose()


def post(url: str) -> HttpRequest:
    return HttpRequest("POST", url, {}, b"{}")


async def test_requests_go_over_our_own_client_on_asyncio_and_over_httpcore_on_trio(
    anyio_backend_name: str,
) -> None:
    """Both count."""
    async with serving(echo) as server, transport() as via:
        assert (await exchange(via, post(server.url)))[1] == b"said {}"
        assert (via._other is None) is (anyio_backend_name == "asyncio")
        assert (via.statistics().clients, via.statistics().in_use) == (1, 0)
        reply = await via.send(post(server.url))
        assert via.statistics().clients == 1
        await reply.aclose()


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
async def test_requests_go_through_a_proxy_that_the_environment_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for the whole address, and one after the other over one connection."""
    async with serving(echo) as proxy, transport() as via:
        monkeypatch.setenv(name, proxy.url.removesuffix("/v1/talk"))
        for _ in range(2):
            assert (await exchange(via, post("http://api.test/v1/talk")))[1] == b"said {}"
        assert proxy.connections == 1
        heads = [head for _, head, _ in proxy.requests]
        assert all(head.startswith(b"POST http://api.test/v1/talk HTTP/1.1\r\n") for head in heads)
        assert via.statistics().clients == 1


async def test_this_machine_and_hosts_that_are_exempt_are_asked_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No proxy can reach the one, and the others are the host's wish."""
    async with serving(echo) as proxy, serving(echo) as server, transport() as via:
        address = proxy.url.removesuffix("/v1/talk")
        monkeypatch.setenv("all_proxy", address)
        assert (await exchange(via, post(server.url)))[1] == b"said {}"
        assert proxy.requests == []
        monkeypatch.setenv("no_proxy", "api.test")
        with pytest.raises(Exception, match="could not connect"):
            await via.send(post("http://api.test/v1/talk"))
        assert proxy.requests == []


@pytest.mark.parametrize(("environment", "proxied"), [
    ({}, ""),
    ({"http_proxy": "http://p"}, "http"),
    ({"HTTPS_PROXY": "http://p"}, "https"),
    ({"ALL_PROXY": "http://p"}, "http https"),
    ({"no_proxy": "*"}, ""),
    ({"http_proxy": ""}, ""),
    ({"ftp_proxy": "http://p"}, ""),
])  # fmt: skip
def test_what_the_environment_names(
    environment: dict[str, str], proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By scheme; nothing is a proxy for this machine."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = [scheme for scheme in ("http", "https") if has_proxy(kind_of(f"{scheme}://api.test/"))]
    assert " ".join(found) == proxied
    for host in ("localhost", "127.0.0.1", "127.1.2.3:80", "[::1]:80"):
        assert not has_proxy(kind_of(f"http://{host}/"))


@pytest.mark.parametrize("url", ["", "http://[", "no address", "http://x:port/"])
async def test_an_address_that_is_none_has_a_kind_and_an_error(url: str) -> None:
    """The error is the request's."""
    assert kind_of(url) == UrlKind(secure=False, loopback=False)
    async with transport() as via:
        with pytest.raises(AdapterError):
            await via.send(post(url))


async def test_a_client_of_the_host_s_is_asked_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """And closed by nobody but the host."""
    answers = httpx.MockTransport(lambda request: httpx.Response(200, content=b"theirs"))
    async with httpx.AsyncClient(transport=answers) as client:
        via = new_transport(client)
        assert (await exchange(via, post("http://api.test/")))[1] == b"theirs"
        await via.aclose()
        assert not client.is_closed


PROGRAM = """
import asyncio, json, sys
from callboard.adapters.transport.client import new_transport
from callboard.adapters.transport.transport import HttpRequest, exchange

async def main():
    async def answer(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    via = new_transport()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    _, body = await exchange(via, HttpRequest("POST", url, {}, b""))
    await via.aclose()
    server.close()
    print(json.dumps([body.decode(), sorted(sys.modules)]))

asyncio.run(main())
"""


def test_a_call_without_a_proxy_imports_neither_httpx_nor_httpcore() -> None:
    """Which would be half of the time to the first answer."""
    run = ended(PROGRAM)
    assert run.returncode == 0, run.stderr
    body, modules = json.loads(run.stdout)
    assert body == "ok"
    assert {"httpx", "httpcore", "h11", "urllib.request", "certifi", "idna"} & set(modules) == set()


async def test_closing_twice_is_closing_once() -> None:
    """And what was never used closes, too."""
    async with transport() as via:
        await via.aclose()
        with anyio.fail_after(5):
            await via.aclose()
