"""A request that was sent twice is one attempt, and its event and its row say so."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.adapters import AdapterConfig, AdapterError
from callboard.bus import LlmCallCompleted, LlmCallFailed, Lossless
from callboard.engine import Engine
from tests.support.engines import entry
from tests.support.engines import serving as models_on
from tests.support.scripted_server import Connection, serving
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

REPLY = (
    b'{"model":"m","choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)

anyio_backend = runs_on("asyncio")


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_call_that_was_sent_twice_says_so(tmp_path: Path, comes_back: bool) -> None:
    """Whether the second copy was answered or not; the call before it says no such thing."""
    sent: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        sent.append(connection.number)
        if len(sent) == 2 or (len(sent) > 2 and not comes_back):
            raise anyio.EndOfStream
        await connection.reply(REPLY, b"content-type: application/json\r\n")

    async with serving(script) as server:
        config = AdapterConfig(base_url=server.url.removesuffix("/v1/talk"), max_retries=0)
        engine = Engine(models=models_on(s=entry("s", "openai_compatible", config)), store=tmp_path / "trace.db")
        events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
        async with engine:
            await engine.session("s:m").send("Hi")
            try:
                await engine.session("s:m").send("Hi again")
            except AdapterError:
                assert not comes_back
            await engine.flush()
            rows = await engine.store.calls()
            heard = [envelope.data for envelope in events.take()]
    ends = [event for event in heard if isinstance(event, LlmCallCompleted | LlmCallFailed)]
    assert sent == [0, 0, 1]
    assert [end.resent for end in ends] == [False, True]
    assert isinstance(ends[-1], LlmCallCompleted) is comes_back
    assert [(row.attempt, row.retry_count, row.resent) for row in reversed(rows)] == [(1, 0, False), (1, 0, True)]
