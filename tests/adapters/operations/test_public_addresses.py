"""Addresses in replies are fetched only from the public internet, or from hosts that the configuration allows."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import anyio
import httpcore
import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.transport import connection_pool
from callboard.adapters.transport.addresses import is_public
from callboard.adapters.transport.connection_pool import Origin, new_transport
from callboard.adapters.transport.httpx_transport import PublicSockets
from callboard.adapters.transport.transport import HttpRequest
from callboard.adapters.videos import VideoJob
from callboard.bus.errors import StreamError

from ...support.scripted_server import Connection, serving
from ...support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio", "trio")

PRIVATE = [
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "2002:a00:1::"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001:0:0:0:0:0:80ff:fffe", "no address", ""),
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", PRIVATE)
def test_these_addresses_are_not_public(address: str) -> None:
    """An IPv4 address inside an IPv6 address is not public, either."""
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_these_are(address: str) -> None:
    assert is_public(address)


class Sockets(httpcore.AsyncNetworkBackend):
    """A backend that connects to nothing and records the addresses."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[object] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.asked.append((host, port))
        raise httpcore.ConnectError("refused")


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def found(host: str, port: int) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(anyio, "getaddrinfo", found)


async def test_a_name_of_a_private_address_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """One private address among public ones is enough."""
    for addresses in (("10.0.0.1",), ("8.8.8.8", "127.0.0.1"), ("::ffff:10.0.0.1",)):
        resolving(monkeypatch, *addresses)
        sockets = Sockets()
        with pytest.raises(StreamError, match=r"cdn\.test .* is not public") as raised:
            await PublicSockets(sockets).connect_tcp("cdn.test", 443)
        assert not raised.value.retryable
        assert sockets.asked == []


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("8.8.8.8", "127.0.0.1"), ("8.8.8.8", "8.8.8.8", "1.1.1.1")])
async def test_the_client_connects_to_the_checked_addresses(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one private address, there is no connection. Otherwise the addresses are tried in order."""
    asked: list[tuple[str, int]] = []

    async def refuse(host: str, port: int) -> socket.socket:
        asked.append((host, port))
        raise ConnectionRefusedError("refused")

    resolving(monkeypatch, *addresses)
    monkeypatch.setattr(connection_pool, "_connected", refuse)
    public = "1.1.1.1" in addresses
    with pytest.raises(OSError if public else StreamError):
        await connection_pool.connect(Origin(True, "cdn.test", 443), None, pytest.fail, public_only=True)
    assert asked == ([("8.8.8.8", 443), ("1.1.1.1", 443)] if public else [])


async def test_the_connection_uses_the_checked_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later reply of the name server is not used."""
    resolving(monkeypatch, "8.8.8.8", "8.8.8.8", "1.1.1.1")
    sockets = Sockets()
    with pytest.raises(httpcore.ConnectError):
        await PublicSockets(sockets).connect_tcp("cdn.test", 443)
    assert sockets.asked == [("8.8.8.8", 443), ("1.1.1.1", 443)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"])
async def test_every_way_to_write_this_machine_is_refused(host: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()

    async with serving(script) as server:
        url = server.url.replace("127.0.0.1", host)
        via = new_transport()
        with pytest.raises(StreamError, match="is not public"):
            await via.send(HttpRequest("GET", url, {}, b"", public_only=True))
        await via.aclose()
        assert server.connections == 0


@pytest.mark.parametrize("kind", ["openai", "openai_compatible", "gemini"])
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("allowed", [False, True])
async def test_a_download_from_this_machine_must_be_allowed(kind: str, hops: int, allowed: bool) -> None:
    """Each redirect is checked. The provider's own address comes from the configuration, and may be any
    address.
    """

    async def secret(connection: Connection) -> None:
        await connection.request()
        head = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: %b\r\n\r\n"
        if len(inside.requests) < hops:
            await connection.send(head % inside.url.encode())
        else:
            await connection.reply(b"the file")

    async def provider(connection: Connection) -> None:
        await connection.request()
        head = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: %b\r\n\r\n"
        await connection.send(head % inside.url.encode())

    async with serving(secret) as inside, serving(provider) as outside:
        base = outside.url.removesuffix("/v1/talk")
        options = {"download_hosts": ["127.0.0.1"]} if allowed else {}
        config = AdapterConfig(api_key="a-secret-key", base_url=base, options=options)
        adapter = create_adapter(kind, config, name=kind)
        assert isinstance(adapter, HttpAdapter)
        uri = f"{base}/v1beta/files/x:download"
        model = "veo-3.0-generate-001" if kind == "gemini" else "sora-2"
        job = VideoJob(
            id="job_1", model=f"{kind}:{model}", provider=kind, status="completed", addresses={"video": uri}
        )
        if allowed:
            content = await adapter.open_video(job)
            assert await content.chunk() == b"the file"
            await content.aclose()
            assert all(b"a-secret-key" not in head for _, head, _ in inside.requests)
        else:
            with pytest.raises(StreamError, match="is not public"):
                await adapter.open_video(job)
            assert inside.connections == 0
        await adapter.close()
