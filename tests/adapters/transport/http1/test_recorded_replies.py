"""Recorded replies, through our client and through httpcore: status, headers and body are the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpcore
import pytest

from callboard.adapters.cassettes import Base64Chunk, load_cassette

from ....support.http1_wire import Line, turns, whole
from ....support.recordings import FOLDER, needs_recordings

pytestmark = pytest.mark.anyio

CASSETTES = sorted((Path(__file__).parents[4] / "cassettes/local").glob("*.json"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def sent(status: int, headers: Mapping[str, str], pieces: Sequence[bytes]) -> bytes:
    """A reply as a server sends it: chunk by chunk, or whole with its length."""
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
    """Both read the same, cut where chance has it."""
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
async def test_our_own_recordings_are_read_as_httpcore_reads_them(path: Path) -> None:
    """Piece for piece as the network gave them."""
    cuts = random.Random(path.stem)
    for exchange in load_cassette(path).exchanges:
        pieces = [each.encode() for each in exchange.reply.chunks if not isinstance(each, Base64Chunk)]
        assert len(pieces) == len(exchange.reply.chunks)
        await agree(sent(exchange.reply.status, exchange.reply.headers, pieces), cuts)


def recorded(path: Path) -> Iterator[bytes]:
    """The replies of a file, streamed ones an event at a time."""
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
    """Thousands of replies of four protocols and five makers of embeddings."""
    cuts, count = random.Random(path.stem), 0
    for reply in recorded(path):
        await agree(reply, cuts)
        count += 1
    assert count > 0
