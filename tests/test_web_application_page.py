"""The page about web applications: its program during a silent turn. tests/book runs the page itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Engine, ScriptedAdapter, ScriptedReply
from tests.book.snippets import DOCS, blocks
from tests.support.virtual_time import FakeClock, runs_on

pytest.importorskip("fastapi")
pytestmark = pytest.mark.anyio

anyio_backend = runs_on("virtual-asyncio")


HEADERS = [(b"content-type", b"application/json"), (b"authorization", b"Bearer key-of-ada")]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The names that web.py of the page defines."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    (code,) = (block.code for block in blocks(DOCS / "how-to" / "web-application.md") if block.title == "web.py")
    names: dict[str, Any] = {"__name__": "web"}
    exec(code, names)
    return names


async def asked(app: Any, method: str, path: str, body: bytes = b"") -> tuple[int, list[bytes]]:
    """Send a request to an application. Returns the status and the pieces of the response."""
    head = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1"}
    target = {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    scope = {**head, **target, "scheme": "http", "headers": HEADERS, "state": {}}
    told: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    await app(scope, receive, send)
    return told[0]["status"], [each["body"] for each in told[1:] if each["body"]]


async def test_a_silent_turn_is_kept_alive(page: dict[str, Any]) -> None:
    """A silent turn sends a comment every 15 seconds, and every event exactly once."""
    slow = ScriptedAdapter(replies=[ScriptedReply(("An", "swer"), pace=40.0)])
    async with Engine(trace=False, providers={"slow": slow}, clock=FakeClock()) as engine:
        page["engine"] = engine
        async with engine.session("slow:m", tags={"owner": "ada"}).stream("Well?") as turn:
            status, pieces = await asked(page["app"], "GET", f"/streams/{turn.stream_id}")
    text = b"".join(pieces).decode()
    assert status == 200
    assert text.count(": ping\n\n") >= 120 // 15 - 3, "at 15 and 30 of each 40 seconds"
    events = ["message.start", "text.delta", "text.delta", "message.complete", "step.finish", "turn.complete"]
    assert [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")] == events
