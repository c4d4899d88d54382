"""One connection on a transport in memory: each form of a reply, each kind of end, and recorded replies."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import httpcore
import pytest

from callboard.adapters.cassettes import Base64Chunk, load_cassette
from callboard.adapters.transport.http1_connection import (
    HIGH_WATER_BYTES,
    KEPT_SECONDS,
    PIECE_BYTES,
    AgedConnectionError,
    Reply,
)
from callboard.bus.errors import NetworkError, StreamError

from ...support.http1_replies import BAD, FORMS, OK
from ...support.http1_wire import HEAD, Line, turns, whole
from ...support.recordings import FOLDER, needs_recordings

pytestmark = pytest.mark.anyio

SHORT = OK + b"Content-Length: 2\r\n\r\nok"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def talk(line: Line, method: str, parts: Iterable[bytes], *, ends: bool) -> tuple[Reply, bytes]:
    """Receive a reply in these parts while it is read."""
    task = line.ask(method)
    await asyncio.sleep(0)
    for part in parts:
        line.connection.data_received(part)
    if ends:
        line.connection.eof_received()
    reply = await task
    return reply, await whole(reply)


@pytest.mark.parametrize("name", FORMS)
async def test_every_form_is_read_and_frees_or_closes_the_connection(name: str) -> None:
    """The reply is divided at every place. A free connection accepts another request."""
    form = FORMS[name]
    for at in range(1, len(form.sent)):
        line = Line()
        reply, body = await talk(line, form.method, [form.sent[:at], form.sent[at:]], ends=form.ends)
        assert (reply.status, body) == (form.status, form.body)
        assert reply.headers.items() >= form.headers.items()
        assert (line.free, line.over) == ((1, 0) if form.free else (line.free, 1))
        assert bool(line.wire.ended) is not form.free
        if form.free:
            assert (await talk(line, "POST", [SHORT], ends=False))[1] == b"ok"


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_reply_is_an_error_and_the_end_of_the_connection(name: str) -> None:
    line = Line()
    with pytest.raises(StreamError, match=r"the connection to api\.test broke"):
        await talk(line, "POST", [BAD[name]], ends=False)
    assert (line.free, line.over) == (0, 1)
    assert "aborted" in line.wire.ended


async def test_a_head_and_its_body_are_sent_together() -> None:
    """Head and body are one packet. A large body is sent in pieces."""
    line = Line()
    line.ask(body=b"body")
    await turns()
    assert line.wire.sent == [HEAD + b"body"]


async def test_a_body_is_sent_as_fast_as_it_is_accepted() -> None:
    """The connection holds no more of the body than the event loop accepts."""
    line, body = Line(), bytes(range(256)) * 2048
    task = line.ask(body=body)
    line.connection.pause_writing()
    await turns()
    taken = 0
    while len(line.wire.sent) > taken:
        assert len(b"".join(line.wire.sent[taken:])) <= PIECE_BYTES + len(HEAD)
        taken = len(line.wire.sent)
        line.connection.resume_writing()
        line.connection.pause_writing()
        await turns()
    assert b"".join(line.wire.sent) == HEAD + body
    line.connection.resume_writing()
    line.connection.data_received(SHORT)
    assert await whole(await task) == b"ok"
    assert line.free == 1


async def test_a_body_that_is_refused_is_not_sent_on() -> None:
    """The refusal is the reply. The connection with the incomplete body is closed. A break is an error."""
    for broken in (False, True):
        line = Line()
        task = line.ask(body=bytes(10 * PIECE_BYTES))
        line.connection.pause_writing()
        await turns()
        sent = len(line.wire.sent)
        if broken:
            line.connection.connection_lost(BrokenPipeError("gone"))
            with pytest.raises(NetworkError, match="gone"):
                await task
        else:
            line.connection.data_received(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n")
            reply = await task
            line.connection.data_received(b"no")
            assert (reply.status, await whole(reply)) == (413, b"no")
        assert len(line.wire.sent) == sent
        assert (line.free, line.over) == (0, 1)


async def test_a_reply_that_begins_early_waits_for_the_request() -> None:
    """A server may send status 200 while it still reads."""
    line, body = Line(), bytes(3 * PIECE_BYTES)
    task = line.ask(body=body)
    line.connection.pause_writing()
    await turns()
    line.connection.data_received(OK + b"Content-Length: 2\r\n\r\n")
    await turns()
    line.connection.resume_writing()
    reply = await task
    assert b"".join(line.wire.sent) == HEAD + body
    line.connection.data_received(b"ok")
    assert await whole(reply) == b"ok"
    assert line.free == 1


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("heard", [b"", b"H", OK])
@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
async def test_how_a_connection_breaks_before_a_reply(served: bool, heard: bytes, error: Exception | None) -> None:
    """Only a connection that was used before, and that received no byte, may have ended before the request
    arrived.
    """
    line = Line()
    if served:
        assert await whole(await line.reply(SHORT)) == b"ok"
    task = line.ask()
    await turns()
    if heard:
        line.connection.data_received(heard)
    if error is None:
        line.connection.eof_received()
    line.connection.connection_lost(error)
    with pytest.raises(NetworkError) as raised:
        await task
    assert isinstance(raised.value, AgedConnectionError) is (served and not heard)
    if not isinstance(raised.value, AgedConnectionError):
        assert isinstance(raised.value, StreamError) is (error is None)
        assert raised.value.retryable
        assert not raised.value.before_sending
    assert line.over == 1


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
async def test_data_before_a_break_is_read_first(error: Exception | None) -> None:
    """Each later read raises the error. A body that ends with the connection needs a normal end, because a reset
    may have removed a part of it.
    """
    for length in (b"Content-Length: 10\r\n", *([b""] if error else [])):
        line = Line()
        reply = await line.reply(OK + length + b"\r\nhello")
        line.connection.connection_lost(error)
        assert await reply.chunk() == b"hello"
        for _ in range(2):
            with pytest.raises(NetworkError):
                await reply.chunk()
        await reply.aclose()
        assert line.over == 1


async def test_an_invalid_chunk_is_an_error_after_the_valid_ones() -> None:
    """Valid and invalid chunks may arrive together."""
    line = Line()
    reply = await line.reply(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n")
    assert await reply.chunk() == b"hello"
    with pytest.raises(StreamError, match="chunk size"):
        await reply.chunk()


@pytest.mark.parametrize("more", [b"x", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", SHORT])
async def test_unexpected_data_ends_the_connection(more: bytes) -> None:
    """Otherwise the data would be taken for the next reply."""
    line = Line()
    assert await whole(await line.reply(SHORT)) == b"ok"
    line.connection.data_received(more)
    assert line.wire.ended == ["aborted"]
    assert (line.free, line.over) == (1, 1)


async def test_all_available_data_is_one_piece() -> None:
    """The next read waits for new data."""
    line = Line()
    reply = await line.reply(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n")
    line.connection.data_received(b"1\r\nc\r\n")
    assert await reply.chunk() == b"abc"
    waiting = asyncio.create_task(reply.chunk())
    await turns()
    assert not waiting.done()
    line.connection.data_received(b"1\r\nd\r\n")
    assert await waiting == b"d"


async def test_a_server_that_sends_faster_than_the_reader_must_wait() -> None:
    """The server waits until everything was read, also for the next reply."""
    line = Line()
    reply = await line.reply(OK + b"Content-Length: %d\r\n\r\n" % (5 * HIGH_WATER_BYTES))
    block = bytes(HIGH_WATER_BYTES // 2)
    line.connection.data_received(block)
    assert not line.wire.paused
    line.connection.data_received(block)
    line.connection.data_received(block)
    assert line.wire.paused
    assert len((await reply.chunk()) or b"") == 3 * len(block)
    assert not line.wire.paused
    for _ in range(7):
        line.connection.data_received(block)
    assert line.free == 1
    assert not line.wire.paused
    assert len(await whole(reply)) == 7 * len(block)
    assert await whole(await line.reply(SHORT)) == b"ok"


async def test_a_cancelled_request_closes_its_socket_immediately() -> None:
    """The socket is closed in the same turn of the event loop."""
    for body in (b"", bytes(10 * PIECE_BYTES)):
        line = Line()
        task = line.ask(body=body)
        line.connection.pause_writing()
        await turns()
        task.cancel()
        await asyncio.sleep(0)
        assert task.cancelled()
        assert line.wire.ended == ["aborted"]
        assert (line.free, line.over) == (0, 1)


async def test_a_cancelled_read_loses_nothing() -> None:
    """The reader can continue, or close the reply."""
    line = Line()
    reply = await line.reply(OK + b"Content-Length: 5\r\n\r\n")
    waiting = asyncio.create_task(reply.chunk())
    await turns()
    waiting.cancel()
    await turns()
    line.connection.data_received(b"he")
    assert await reply.chunk() == b"he"
    line.connection.data_received(b"llo")
    assert await whole(reply) == b"llo"
    assert line.free == 1


async def test_an_unread_reply_closes_its_connection() -> None:
    """The connection is closed immediately and once. After a complete reply, it is free. The end of a reply is
    known without another read.
    """
    line = Line()
    reply = await line.reply(OK + b"Content-Length: 5\r\n\r\nhe")
    await reply.aclose()
    assert line.wire.ended == ["aborted"]
    await reply.aclose()
    assert (line.free, line.over, reply.closed) == (0, 1, True)
    line = Line()
    reply = await line.reply(SHORT)
    assert (await reply.chunk(), reply.closed) == (b"ok", False)
    assert (await reply.chunk(), reply.closed) == (None, True)
    await reply.aclose()
    assert (line.free, line.over) == (1, 0)


async def test_a_reader_gets_an_error_if_another_task_closes() -> None:
    line = Line()
    reply = await line.reply(OK + b"Content-Length: 5\r\n\r\n")
    waiting = asyncio.create_task(reply.chunk())
    await turns()
    await reply.aclose()
    with pytest.raises(NetworkError, match="closed before"):
        await waiting


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"", KEPT_SECONDS), (b"Keep-Alive: timeout=2\r\n", 1.6), (b"Keep-Alive: timeout=75\r\n", KEPT_SECONDS)],
)
async def test_a_connection_is_kept_at_most_as_long_as_the_server_allows(header: bytes, seconds: float) -> None:
    """Some time is subtracted, because the request must arrive before the server closes."""
    line = Line()
    now = asyncio.get_running_loop().time()
    await whole(await line.reply(OK + header + b"Content-Length: 2\r\n\r\nok"))
    later = asyncio.get_running_loop().time()
    assert now + seconds <= line.connection.kept_until <= later + seconds


async def test_every_end_is_reported_once() -> None:
    """Either side may close, and the event loop may repeat its notice. Closing does not wait for the server: the
    client sends its notice, and closes the socket in the next turn.
    """
    line = Line()
    line.connection.close()
    assert line.wire.ended == ["closed"]
    await asyncio.sleep(0)
    assert line.wire.ended == ["closed", "aborted"]
    line.connection.abort()
    line.connection.eof_received()
    line.connection.data_received(b"x")
    line.connection.connection_lost(None)
    await line.connection.wait_closed()
    assert line.over == 1
    assert line.wire.ended == ["closed", "aborted"]


# -- Recorded replies, through this client and through httpcore: status, headers and body are the same.


CASSETTES = sorted((Path(__file__).parents[3] / "cassettes/local").glob("*.json"))


def sent(status: int, headers: Mapping[str, str], pieces: Sequence[bytes]) -> bytes:
    """A reply as a server sends it: chunk by chunk, or as a whole with its length."""
    kept = {
        k: v for k, v in headers.items() if k not in ("content-length", "transfer-encoding", "content-encoding")
    }
    lines = [f"HTTP/1.1 {status} Some reason", *(f"{name}: {value}" for name, value in kept.items())]
    if len(pieces) == 1:
        lines.append(f"Content-Length: {len(pieces[0])}")
        body = pieces[0]
    else:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def agree(reply: bytes, cuts: random.Random) -> None:
    """Assert that both clients read the same, in random pieces."""
    line = Line()
    task = line.ask()
    await turns()
    at = 0
    while at < len(reply):
        size = cuts.choice([1, 7, 100, 1000, 65536])
        line.connection.data_received(reply[at : at + size])
        at += size
    ours = await task
    body = await whole(ours)
    connection = httpcore.HTTP11Connection(httpcore.Origin(b"http", b"a", 80), httpcore.MockStream([reply]))
    theirs = connection.handle_request(httpcore.Request("POST", "http://a/", headers={"Host": "a"}))
    assert (ours.status, body) == (theirs.status, theirs.read())
    assert dict(ours.headers) == {name.decode().lower(): value.decode("latin-1") for name, value in theirs.headers}
    assert line.free == 1


@pytest.mark.parametrize("path", CASSETTES, ids=lambda path: path.stem)
async def test_the_cassettes_are_read_as_httpcore_reads_them(path: Path) -> None:
    """The pieces are those of the network."""
    cuts = random.Random(path.stem)
    for exchange in load_cassette(path).exchanges:
        pieces = [each.encode() for each in exchange.reply.chunks if not isinstance(each, Base64Chunk)]
        assert len(pieces) == len(exchange.reply.chunks)
        await agree(sent(exchange.reply.status, exchange.reply.headers, pieces), cuts)


def recorded(path: Path) -> Iterator[bytes]:
    """The replies of a file. Streamed ones have one event per piece."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            body = case["response_body"]
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            pieces = data.splitlines(keepends=True) if case["streamed"] else [data]
            headers = {
                name.lower(): value for name, value in case["response_headers"].items() if "\n" not in value
            }
            yield sent(case["response_status"], headers, pieces or [b""])


@needs_recordings
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
async def test_recorded_providers_are_read_as_httpcore_reads_them(path: Path) -> None:
    """Thousands of replies of four protocols and of five providers of embeddings are compared."""
    cuts, count = random.Random(path.stem), 0
    for reply in recorded(path):
        await agree(reply, cuts)
        count += 1
    assert count > 0
