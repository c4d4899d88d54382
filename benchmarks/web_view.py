"""The CPU time that the live view adds to an engine with a thousand streams, with an open page and without.

The page is a process of its own, which reads the frames of *Now* over a real connection, as a browser does. Rounds
with and without a page alternate on the same engine. The figure is the CPU time of the engine's process for each
delta. Then a real browser opens the page; its memory and its response time to a click are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from callboard.bus import TextDelta
from callboard.engine import Engine
from callboard.engine.web_view.app import WebView
from tests.support.browser import CHROMIUM, WHY_NOT, browser
from tests.support.reply_server import reply_server

from .hosts import engine_on
from .table import Row, against, cpu_of, run

PER_SECOND = 4.0
"""Deltas per second in each stream; a thousand streams nearly use a whole core."""

PAGE = """
import sys, time, http.client, json
host, port, token = sys.argv[1:4]
server = http.client.HTTPConnection(host, int(port))
server.request("POST", "/api/sign-in", json.dumps({"token": token}), {"content-type": "application/json"})
answer = server.getresponse()
answer.read()
cookie = answer.headers["set-cookie"].partition(";")[0]
server.request("GET", "/api/now", headers={"cookie": cookie})
frames = server.getresponse()
print("open", flush=True)
while frames.readline():
    pass
"""


@contextlib.asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[tuple[str, int, WebView]]:
    """Serve the engine's live view on a real server. Yields host, port, and the view."""
    import uvicorn

    from callboard.engine import web

    view = web(engine)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(view, log_level="error", lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield "127.0.0.1", port, view
    finally:
        view.close()
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def page(host: str, port: int, view: WebView) -> AsyncIterator[None]:
    """Open a page that shows *Now*."""
    token = view.sign_in_url("http://127.0.0.1").rpartition("=")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PAGE, host, str(port), token, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield
    finally:
        process.terminate()
        await process.wait()


async def one_stream(engine: Engine) -> int:
    async with engine.session("chat:bench").stream("Go on.", max_output_tokens=1000) as turn:
        return sum([isinstance(event, TextDelta) async for event in turn])


async def streams_of(engine: Engine, streams: int, deltas: int) -> None:
    read = await asyncio.gather(*(one_stream(engine) for _ in range(streams)))
    if read != [deltas] * streams:
        raise RuntimeError("not every stream was complete")
    await engine.flush()


async def in_browser(engine: Engine, work: Callable[[], Awaitable[None]], streams: int) -> list[Row]:
    """The memory of a real page that shows *Now* for four rounds, and its response time to a click."""
    if CHROMIUM is None:
        return [Row("  in a real browser", WHY_NOT)]
    heaps, clicks = [], []
    theme = "(document.documentElement.dataset.theme ?? '')"
    in_flight = "Number(document.querySelector('.figure .value').innerText.replaceAll(',', ''))"
    async with served(engine) as (_, port, view), browser() as found:
        looking = await found.page()
        await looking.open(view.sign_in_url(f"http://127.0.0.1:{port}"))
        await looking.until("document.querySelector('.figure')")
        for _ in range(4):
            traffic = asyncio.create_task(work())
            await looking.until(f"{in_flight} >= {streams // 2}", 60)
            before = await looking.run(theme)
            begun = time.perf_counter()
            await looking.click("button.theme")
            await looking.until(f"{theme} !== '{before}'")
            clicks.append(time.perf_counter() - begun)
            await traffic
            heaps.append(await looking.heap())
    third, fourth = (heap / 2**20 for heap in heaps[2:])
    return [
        Row(
            "  the page's heap after the fourth round (floor: after the third)",
            f"{fourth:.1f} MiB",
            f"{third:.1f} MiB",
            gate="≤ 200 MiB, + 5",
            met=fourth <= 200 and fourth - third <= 5,
        ),
        Row("  a click is answered, the slowest of four", f"{max(clicks) * 1e3:.0f} ms"),
    ]


async def _rows(quick: bool) -> list[Row]:
    streams, deltas, rounds = (50, 10, 1) if quick else (1000, 40, 3)
    bare, looked_at = [], []
    with reply_server(deltas, PER_SECOND) as url:
        headers = {"x-together": str(streams)}
        async with engine_on(url, headers, calls=streams, keep_streams=False) as engine, served(engine) as place:

            async def work() -> None:
                await streams_of(engine, streams, deltas)

            await work()  # a warm-up
            for _ in range(rounds):  # in both orders, so that drifting speed affects both alike
                bare.append(await cpu_of(work))
                async with page(*place):
                    looked_at += [await cpu_of(work), await cpu_of(work)]
                bare.append(await cpu_of(work))
            in_a_page = await in_browser(engine, work, streams)
    count = streams * deltas * 2 * rounds
    what = f"{streams:,} streams of {deltas} deltas, {PER_SECOND:g} a second each"
    return [
        against(f"{what}, Now open, per delta", sum(looked_at) / count, sum(bare) / count, gate=1.1),
        *in_a_page,
    ]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
