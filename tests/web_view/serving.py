"""Helpers that call a live view in this process or over a real server, with a browser's requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

from callboard.engine import Engine
from callboard.engine.web_view.access import CSRF_HEADER
from callboard.engine.web_view.app import WebView

HERE = "http://127.0.0.1:8000"


def asking(view: object, base: str = HERE, **options: Any) -> httpx.AsyncClient:
    """A client that calls the application without a server."""
    transport = httpx.ASGITransport(view)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url=base, **options)


def token_of(view: WebView, address: str = HERE) -> str:
    """The token in a new sign-in address."""
    return view.sign_in_url(address).rpartition("#token=")[2]


async def sign_in(client: httpx.AsyncClient, view: WebView) -> str:
    """Sign a client in. Returns the value of the CSRF header, which the client sends with each later request."""
    answer = await client.post("api/sign-in", json={"token": token_of(view)})
    assert answer.status_code == 200, answer.text
    csrf: str = (await client.get("api/me")).json()["csrf"]
    client.headers[CSRF_HEADER] = csrf
    return csrf


@contextlib.asynccontextmanager
async def served(app: object) -> AsyncIterator[str]:
    """An application on a real server of this machine. Yields its address without a slash at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off")  # type: ignore[arg-type]
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if isinstance(app, WebView):
            app.close()
        server.should_exit = True
        await task


async def frames(response: httpx.Response) -> AsyncIterator[tuple[str, Any, str]]:
    """The server-sent events of a response, each with name, data and id."""
    rest = ""
    async for text in response.aiter_text():
        *whole, rest = (rest + text).split("\n\n")
        for each in whole:
            fields = dict(line.partition(": ")[::2] for line in each.split("\n") if not line.startswith(":"))
            if "data" in fields:
                yield fields["event"], json.loads(fields["data"]), fields.get("id", "")


@contextlib.asynccontextmanager
async def listening(
    client: httpx.AsyncClient, path: str, **headers: str
) -> AsyncIterator[AsyncIterator[tuple[str, Any, str]]]:
    """The frames of a path while the block runs."""
    async with client.stream("GET", path, headers=headers, timeout=20) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        yield frames(response)


async def first(source: AsyncIterator[tuple[str, Any, str]], name: str) -> Any:
    """The data of the first frame with a name."""
    async for event, data, _ in source:
        if event == name:
            return data
    raise AssertionError(f"no frame {name!r} came")


def subscriptions(engine: Engine) -> set[str]:
    """The names of the subscriptions to the bus."""
    return {each.name for each in engine.bus.statistics().subscriptions}
