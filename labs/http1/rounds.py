"""The rounds of the lab. Each is derived from its seed, and raises AssertionError on a violation."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

from callboard.adapters.transport import connection_pool as http1_pool
from callboard.adapters.transport.connection_pool import Http1Transport
from callboard.adapters.transport.transport import HttpRequest
from callboard.bus.errors import NetworkError

from .network import Network, request_body
from .readers import differs, read_by_httpcore, read_by_ours
from .replies import any_bytes, cut, make_reply

KNOWN_LENIENCE = (
    "illegal status line",  # a zero byte in a reason, an empty line before a status line
    "no response line received",
)
"""httpcore's messages about replies that it rejects and our client accepts."""

URL = "http://api.test"


async def read_round(seed: int) -> Counter[str]:
    """A valid reply in any pieces must be read as it was generated, and as httpcore reads it. If it breaks off, it
    must be an error.
    """
    chance = random.Random(f"read {seed}")
    made = make_reply(chance)
    read, line = await read_by_ours(cut(chance, made.sent), made.method)
    assert (read.status, read.body, read.error) == (made.status, made.body, None), f"read as {read}"
    assert (line.free == 1 and not line.wire.ended) is made.free, "the connection is free, or is not"
    theirs = read_by_httpcore(made.sent, made.method)
    assert theirs.error is None, f"httpcore says {theirs.error}"
    assert theirs.body == made.packed, f"httpcore reads {theirs}"
    assert not differs(read, theirs._replace(body=made.body)), f"httpcore reads {theirs}"
    part = made.sent[: chance.randint(0, len(made.sent) - 1)]
    reset = chance.random() < 0.3
    broken, line = await read_by_ours(cut(chance, part), made.method, reset=reset)
    begun = made.ends and not reset and b"\r\n\r\n" in part[part.rfind(b"HTTP/1.") :]
    assert broken.error is not None or begun, f"broken off, and read as {broken}"
    assert line.over == 1, "the connection is still there"
    return Counter({f"a reply with status {made.status}": 1})


async def spoil_round(seed: int) -> Counter[str]:
    """Corrupt bytes must give a reply or an error. If httpcore reads a reply, too, both must be equal."""
    # this round has no compressed bodies, because httpcore does not decompress
    chance = random.Random(f"spoil {seed}")
    sent, method = any_bytes(chance), chance.choice(["POST", "POST", "HEAD"])
    parts = cut(chance, sent)
    read, line = await read_by_ours(parts, method)
    assert line.over + (line.free == 1) >= 1, "neither free nor over"
    again, _ = await read_by_ours(cut(chance, sent), method)
    assert (read.status, read.body, read.headers, bool(read.error)) == (
        again.status, again.body, again.headers, bool(again.error)
    ), f"in other pieces it is {again}"  # fmt: skip
    theirs = read_by_httpcore(sent, method)
    match (read.error is None, theirs.error is None):
        case True, True:
            assert not differs(read, theirs), f"read as {read}, by httpcore as {theirs}"
            return Counter({"taken by both": 1})
        case False, False:
            return Counter({"refused by both": 1})
        case False, True:
            return Counter({"refused by ours": 1})
        case _:
            assert str(theirs.error).startswith(KNOWN_LENIENCE), f"read as {read}; httpcore says {theirs.error}"
            return Counter({"refused by httpcore": 1})


async def talk_round(seed: int, *, callers: int = 6, requests: int = 12) -> Counter[str]:
    """Concurrent callers: each gets its own reply, no request is sent twice without a retry, and nothing is left
    open.
    """
    chance = random.Random(f"talk {seed}")
    network, via, counts = Network(chance), Http1Transport(), Counter[str]()
    own, http1_pool.connect = http1_pool.connect, network.connect
    try:
        numbers = iter(range(1, callers * requests + 1))
        await asyncio.gather(*(_caller(chance, network, via, numbers, requests, counts) for _ in range(callers)))
        assert via.statistics().in_use == 0, f"{via.statistics().in_use} connections are still in use"
        idle = [wire for wire in network.wires if not wire.is_closing()]
        assert all(network.is_idle(wire) for wire in idle), (
            "a connection that nobody uses is neither idle nor closed"
        )
        await via.aclose()
    finally:
        http1_pool.connect = own
    assert all(wire.is_closing() for wire in network.wires), "a connection was left open"
    await asyncio.gather(*network.tasks)  # errors while the client read data
    return counts + network.done


async def _caller(
    chance: random.Random,
    network: Network,
    via: Http1Transport,
    numbers: Iterator[int],
    requests: int,
    counts: Counter[str],
) -> None:
    for number in itertools.islice(numbers, requests):
        resent: list[int] = []
        request = HttpRequest(
            *("POST", f"{URL}/{number}", {}, request_body(number)),
            once=chance.random() < 0.2,
            on_resend=partial(resent.append, 1),
        )
        seconds = 0.0 if chance.random() < 0.15 else 0.02  # some replies never arrive
        try:
            async with asyncio.timeout(seconds):
                counts[await _ask(chance, network, via, request, number)] += 1
        except TimeoutError:
            counts["cancelled"] += 1
        except NetworkError:
            counts["failed"] += 1
        assert network.arrived[number] <= 1 + len(resent), f"{number} arrived {network.arrived[number]} times"
        assert len(resent) <= (0 if request.once else 1), f"{number} was sent again {len(resent)} times"
        counts["sent again"] += len(resent)


async def _ask(
    chance: random.Random, network: Network, via: Http1Transport, request: HttpRequest, number: int
) -> str:
    reply = await via.send(request)
    try:
        if reply.status == 503:
            return "refused"
        body, most = b"", chance.choice([None, None, None, 1])
        while (piece := await reply.chunk()) is not None:
            body += piece
            assert network.bodies[number].startswith(body), f"the reply to {number} is another's: {body[:40]!r}"
            if most is not None:
                return "left"
            await network.pause()
        assert body == network.bodies[number], f"the reply to {number} is not whole, and nobody says so"
        return "whole"
    finally:
        await reply.aclose()
