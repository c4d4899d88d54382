"""HTTP over real sockets: dropped, refused, reset and cancelled connections, and the number of connections.

The server's connections follow a script. No test asserts a time.
"""

from __future__ import annotations

import gzip
import inspect
import json
import os
import traceback
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import httpcore
import httpx
import msgspec
import pytest

from callboard.adapters.cassettes import CassetteTransport, RecordingTransport
from callboard.adapters.transport.addresses import UrlKind, has_proxy, kind_of
from callboard.adapters.transport.connection_pool import HttpTransport, new_transport
from callboard.adapters.transport.httpx_transport import translate
from callboard.adapters.transport.transport import (
    ERROR_BODY_BYTES,
    PIECE_BYTES,
    HttpReply,
    HttpRequest,
    exchange,
    read_body,
    read_error_body,
    unpacked,
)
from callboard.bus.errors import AdapterError, ErrorClass, InvalidRequestError, NetworkError, StreamError

from ...support.programs import ended
from ...support.scripted_server import Connection, echo, serving
from ...support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio", "uvloop", "trio")


@asynccontextmanager
async def transport() -> AsyncIterator[HttpTransport]:
    made = HttpTransport()
    try:
        yield made
    finally:
        await made.aclose()


def post(url: str, body: bytes = b"{}", **headers: str) -> HttpRequest:
    return HttpRequest("POST", url, {"content-type": "application/json", **headers}, body)


async def pieces_of(reply: HttpReply) -> list[bytes]:
    """The pieces of a reply, up to its end or to its error."""
    found = []
    try:
        while (piece := await reply.chunk()) is not None:
            found.append(piece)
    except AdapterError as error:
        found.append(error.error_class.encode())
    await reply.aclose()
    return found


async def talk(via: HttpTransport, url: str, body: bytes = b"{}") -> bytes:
    reply = await via.send(post(url, body))
    try:
        return await read_body(reply)
    finally:
        await reply.aclose()


async def test_a_reply_arrives_with_lower_case_headers() -> None:
    """Status, headers and body are read."""
    async with serving(echo) as server, transport() as via:
        reply = await via.send(post(server.url, b'{"a":1}'))
        assert reply.status == 200
        assert reply.headers["x-upper"] == "Yes"
        assert await read_body(reply) == b'said {"a":1}'
        await reply.aclose()
        await reply.aclose()


async def test_a_dropped_kept_alive_connection_is_replaced_once() -> None:
    """The second request finds a dead connection and is sent again on a new one, without a visible error."""

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if connection.number == 0 and len(connection.server.requests) > 1:
            raise anyio.EndOfStream  # the server closes without a byte of a reply
        await connection.reply(b"said " + body)

    async with serving(script) as server, transport() as via:
        assert await talk(via, server.url, b"1") == b"said 1"
        assert await talk(via, server.url, b"2") == b"said 2"
        assert [(number, body) for number, _, body in server.requests] == [(0, b"1"), (0, b"2"), (1, b"2")]


@pytest.mark.parametrize(("kept", "said"), [
    (False, b""), (False, b"HTTP/1.1 200"), (True, b"H"), (True, b"HTTP/1.1 200 OK\r\ncontent-le"),
])  # fmt: skip
async def test_nothing_is_sent_again_over_a_new_connection_or_after_a_byte_of_the_reply(
    kept: bool, said: bytes
) -> None:
    """The connection can't have expired, or its server replied, so it has received the request."""

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if body == b"first":
            return await connection.reply(body)
        await connection.send(said)
        raise anyio.EndOfStream

    async with serving(script) as server, transport() as via:
        if kept:
            assert await talk(via, server.url, b"first") == b"first"
        with pytest.raises(StreamError) as raised:
            await talk(via, server.url)
        assert raised.value.retryable
        assert [body for _, _, body in server.requests] == [*([b"first"] if kept else []), b"{}"]
        await server.until_open(0)


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_second_dropped_connection_is_an_error(how: str) -> None:
    """A request is sent again once. An observer gets one notice."""

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if body == b"first":
            await connection.reply(body)
        elif how == "reset":
            await connection.reset()
        else:
            raise anyio.EndOfStream

    told: list[str] = []
    async with serving(script) as server, transport() as via:
        assert await talk(via, server.url, b"first") == b"first"
        with pytest.raises(NetworkError) as raised:
            await via.send(msgspec.structs.replace(post(server.url), on_resend=lambda: told.append("resent")))
        assert raised.value.retryable
        assert [number for number, _, _ in server.requests] == [0, 0, 1]
        assert told == ["resent"]


async def test_a_request_that_must_not_arrive_twice_is_sent_once() -> None:
    """An idle connection could cause a second sending. So the request has its own connection, which is not
    kept.
    """

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if body == b"lost":
            raise anyio.EndOfStream
        await connection.reply(body)

    told: list[str] = []

    def once(body: bytes) -> HttpRequest:
        asked = post(server.url, body)
        return msgspec.structs.replace(asked, once=True, on_resend=lambda: told.append("resent"))

    async with serving(script) as server, transport() as via:
        assert await talk(via, server.url, b"kept") == b"kept"
        assert (await exchange(via, once(b"served")))[1] == b"served"
        with pytest.raises(NetworkError):
            await via.send(once(b"lost"))
        assert await talk(via, server.url, b"kept") == b"kept"
        assert [(number, body) for number, _, body in server.requests] == [
            (0, b"kept"),
            (1, b"served"),
            (2, b"lost"),
            (0, b"kept"),
        ]
        assert told == []


async def test_a_refused_connection_or_an_unknown_host_is_a_network_error() -> None:
    async with serving(echo) as server:
        url = server.url
    async with transport() as via:
        for nowhere in (url, "http://nowhere.invalid/v1", "http://127.0.0.1:1/v1"):
            with pytest.raises(NetworkError, match="could not connect") as raised:
                await talk(via, nowhere)
            assert raised.value.retryable


async def test_compressed_replies_are_decompressed() -> None:
    """Broken compressed replies are an error of the stream."""

    async def script(connection: Connection) -> None:
        body = await connection.request()
        packed = gzip.compress(b"said " + body)
        await connection.reply(packed if body == b"good" else b"x" + packed, b"content-encoding: gzip\r\n")

    async with serving(script) as server, transport() as via:
        assert await talk(via, server.url, b"good") == b"said good"
        with pytest.raises(StreamError, match="compression"):
            await talk(via, server.url, b"bad")


async def test_a_cancelled_read_closes_its_socket() -> None:
    """The reader waits for a piece or for the head. The transport continues to work."""

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if body == b"echo":
            return await connection.reply(body)
        if body == b"body":
            await connection.start_chunks()
        waiting.set()
        await connection.request()  # until the client closes
        return None

    async with serving(script) as server, transport() as via:
        for what in (b"body", b"head"):
            waiting = anyio.Event()
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def call(what: bytes = what) -> None:
                        await talk(via, server.url, what)

                    tasks.start_soon(call)
                    await waiting.wait()
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            await server.until_open(0)
        assert await talk(via, server.url, b"echo") == b"echo"
        assert via.statistics().in_use == 0


async def test_closing_closes_idle_connections_and_refuses_more() -> None:
    """Closing twice is harmless, also if nothing was sent."""
    unused = HttpTransport()
    async with serving(echo) as server:
        via = HttpTransport()
        await talk(via, server.url)
        with anyio.fail_after(5):
            for each in (via, via, unused, unused):
                await each.aclose()
        await server.until_open(0)
        with pytest.raises(NetworkError, match="closed") as raised:
            await talk(via, server.url)
        assert not raised.value.retryable


async def test_no_header_is_quoted_by_an_error() -> None:
    """A key with a line break or an umlaut can't be sent. The key is in no text and no cause."""
    async with serving(echo) as server, transport() as via:
        for key in ("sk-secret-0123\n456", "sk-secret-0123\xe4\u2603", "sk-secret-0123\x00"):
            with pytest.raises(InvalidRequestError) as raised:
                await via.send(post(server.url, **{"x-api-key": key}))
            shown = "".join(traceback.format_exception(raised.value))
            assert "sk-secret" not in shown
            assert raised.value.__context__ is None
        assert server.requests == []


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "deflate", "gzip, deflate, gzip"])
async def test_a_small_reply_that_decompresses_to_a_large_one_is_refused(coding: str) -> None:
    """The reply is never completely in memory, and other tasks run during decompression."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.reply(packed(bytes(8_000_000), coding), b"content-encoding: %b\r\n" % coding.encode())

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with serving(script) as server, transport() as via, anyio.create_task_group() as tasks:
        reply = await via.send(post(server.url))
        tasks.start_soon(count_turns)
        largest = 0
        with pytest.raises(StreamError, match="larger than 4000000 bytes") as raised:
            largest = len(await read_body(reply, 4_000_000))
        tasks.cancel_scope.cancel()
        assert not raised.value.retryable
        assert largest == 0
        await reply.aclose()
    assert turns > 4_000_000 // PIECE_BYTES


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "raw deflate", "gzip, deflate"])
async def test_compressed_data_is_complete_in_pieces_of_any_size(coding: str) -> None:
    """The pieces have one byte or all bytes. A deflate stream without its header is read, too."""
    body = bytes(range(256)) * 600
    data = packed(body, coding)
    for size in (1, 1000, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        found = [piece async for piece in unpacked(coding.removeprefix("raw "), listed(pieces))]
        assert b"".join(found) == body
        assert max(map(len, found)) <= PIECE_BYTES


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, compress", ", ".join(["gzip"] * 5)])
async def test_unrequested_codings_are_named_in_the_error(coding: str) -> None:
    """Otherwise the body would be taken for broken JSON."""
    with pytest.raises(StreamError, match="packed") as raised:
        _ = [piece async for piece in unpacked(coding, listed([b"x"]))]
    assert not raised.value.retryable


async def listed(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def packed(body: bytes, coding: str) -> bytes:
    for name in coding.split(", "):
        match name:
            case "gzip" | "x-gzip":
                body = gzip.compress(body)
            case "deflate":
                body = zlib.compress(body)
            case "raw deflate":
                body = zlib.compress(body)[2:-4]
            case _:
                pass
    return body


async def test_the_size_of_a_body_is_limited() -> None:
    """Only the beginning of an error's body is read. A long body of an error is still an error of its status."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.reply(b"x" * (3 * ERROR_BODY_BYTES))

    async with serving(script) as server, transport() as via:
        reply = await via.send(post(server.url))
        assert await read_error_body(reply) == b"x" * ERROR_BODY_BYTES
        await reply.aclose()
        reply = await via.send(post(server.url))
        with pytest.raises(StreamError, match="larger than 100 bytes") as raised:
            await read_body(reply, 100)
        assert not raised.value.retryable
        await reply.aclose()


def test_every_exception_of_the_http_libraries_has_a_translation() -> None:
    """All classes of both are covered. Only two of them mean that the request itself is wrong."""
    found = [kind for library in (httpx, httpcore) for _, kind in inspect.getmembers(library, inspect.isclass)]
    classes = [kind for kind in found if issubclass(kind, Exception)]
    assert len(classes) > 35
    broken = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.RemoteProtocolError)
    own_fault = httpx.LocalProtocolError | httpx.UnsupportedProtocol
    for kind in classes:
        error = kind.__new__(kind)
        error.args = ("said",)
        translated = translate(error)
        assert isinstance(translated, AdapterError), kind
        if issubclass(kind, (httpx.TransportError, *broken)) and not issubclass(kind, own_fault):
            assert translated.error_class is ErrorClass.NETWORK, kind
            assert translated.retryable, kind
    for other in (OSError("x"), RuntimeError("x"), ValueError("x"), KeyError("x")):
        assert isinstance(translate(other), AdapterError)
    given = NetworkError("x")
    assert translate(given) is given


def test_a_failed_connection_only_names_the_host() -> None:
    """A user of several providers sees which one failed. A key in the address is not shown."""
    url = "https://user:secret@api.example.test:8443/v1/messages?key=secret"
    said = str(translate(httpx.ConnectError("refused"), url))
    assert said == "could not connect to api.example.test:8443: refused"
    said = str(translate(httpx.ConnectError("refused"), "http://[bad"))
    assert said == "could not connect to the provider: refused"


@pytest.mark.parametrize("broken", [False, True])
async def test_a_recorded_connection_is_replayed_piece_by_piece(tmp_path: Path, broken: bool) -> None:
    """A recording of a real connection has the same pieces, divided inside characters and lines, and the same
    end.
    """
    body = 'data: {"text": "☃ snow"}\n\ndata: [DONE]\n\n'.encode()
    sent = [body[at : at + 3] for at in range(0, len(body), 3)]
    read = anyio.Semaphore(0)

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.start_chunks()
        for piece in sent:
            await connection.piece(piece)
            # the next piece is sent after this one was read, so that no two are read together
            await read.acquire()
        await (connection.reset() if broken else connection.end_chunks())

    path = tmp_path / "sockets.json"
    async with serving(script) as server, transport() as real:
        via = RecordingTransport(real, path)
        reply = await via.send(post(server.url))
        live = []
        for _ in sent:
            live.append(await reply.chunk())
            read.release()
        end = await pieces_of(reply)
        via.save()
    again = await pieces_of(await CassetteTransport(path).send(post(server.url)))
    assert live == sent
    assert again == sent + end
    assert end == ([ErrorClass.NETWORK.encode()] if broken else [])


# -- The client of a request: Callboard's own, unless a proxy, trio or the host requires another.


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies of the machine's environment."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


async def test_requests_go_over_our_own_client_on_asyncio_and_over_httpcore_on_trio(
    anyio_backend_name: str,
) -> None:
    async with serving(echo) as server, transport() as via:
        assert (await exchange(via, post(server.url)))[1] == b"said {}"
        assert (via._other is None) is (anyio_backend_name == "asyncio")
        assert (via.statistics().clients, via.statistics().in_use) == (1, 0)
        reply = await via.send(post(server.url))
        assert via.statistics().clients == 1
        await reply.aclose()


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
async def test_requests_go_through_a_proxy_that_the_environment_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy gets the whole address. Several requests use one connection."""
    async with serving(echo) as proxy, transport() as via:
        monkeypatch.setenv(name, proxy.url.removesuffix("/v1/talk"))
        for _ in range(2):
            assert (await exchange(via, post("http://api.test/v1/talk")))[1] == b"said {}"
        assert proxy.connections == 1
        heads = [head for _, head, _ in proxy.requests]
        assert all(head.startswith(b"POST http://api.test/v1/talk HTTP/1.1\r\n") for head in heads)
        assert via.statistics().clients == 1


async def test_this_machine_and_exempt_hosts_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy can reach this machine, and the host exempts the others."""
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
def test_the_proxies_of_the_environment(
    environment: dict[str, str], proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies are set by scheme. There is no proxy for this machine."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = [scheme for scheme in ("http", "https") if has_proxy(kind_of(f"{scheme}://api.test/"))]
    assert " ".join(found) == proxied
    for host in ("localhost", "127.0.0.1", "127.1.2.3:80", "[::1]:80"):
        assert not has_proxy(kind_of(f"http://{host}/"))


@pytest.mark.parametrize("url", ["", "http://[", "no address", "http://x:port/", "ftp://x.test", "http://\udcff/"])
async def test_an_address_that_is_none_is_an_error(url: str) -> None:
    assert url in ("ftp://x.test", "http://\udcff/") or kind_of(url) == UrlKind(secure=False, loopback=False)
    async with transport() as via:
        with pytest.raises(AdapterError) as raised:
            await via.send(post(url))
        if url not in ("", "http://["):
            assert raised.value.error_class is ErrorClass.INVALID_REQUEST
            assert not raised.value.retryable


async def test_a_client_of_the_host_is_used_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the host closes the client."""
    answers = httpx.MockTransport(lambda request: httpx.Response(200, content=b"theirs"))
    async with httpx.AsyncClient(transport=answers) as client:
        via = new_transport(client)
        assert (await exchange(via, post("http://api.test/")))[1] == b"theirs"
        await via.aclose()
        assert not client.is_closed


PROGRAM = """
import asyncio, json, sys
from callboard.adapters.transport.connection_pool import new_transport
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
    """The import of httpx would be half of the time to the first reply."""
    run = ended(PROGRAM, fresh=True)
    assert run.returncode == 0, run.stderr
    body, modules = json.loads(run.stdout)
    assert body == "ok"
    assert {"httpx", "httpcore", "h11", "urllib.request", "certifi", "idna"} & set(modules) == set()
