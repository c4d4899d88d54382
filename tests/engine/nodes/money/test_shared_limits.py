"""Declared rate limits of two engines that are nodes of one cluster."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.adapters import AdapterConfig, CanonicalRequest
from callboard.engine import Engine
from tests.support.cluster_engines import node_engine
from tests.support.engines import entry, serving
from tests.support.postgres_server import why_not
from tests.support.scripted import Say, ScriptedAdapter, scripted_type

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

LIMIT = 5


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


async def test_requests_of_two_engines_together_stay_within_a_declared_limit(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """Eight are asked for and five are sent, from both; the shares that the store has granted are the limit."""
    sent: list[str] = []
    all_sent = anyio.Event()

    def node(name: str) -> Engine:
        class Counting(ScriptedAdapter):
            def say(self, request: CanonicalRequest) -> Say:
                sent.append(name)
                if len(sent) == LIMIT:
                    all_sent.set()
                return super().say(request)

        replies = scripted_type(*[Say("x")] * 9, base=Counting)
        models = serving(s=entry("s", replies, AdapterConfig(requests_per_minute=LIMIT)))
        return node_engine(name, postgres_dsn, tmp_path, models=models)

    async with node("a") as a, node("b") as b, anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon((a, b)[number % 2].generate, "s:m", "Hi")
        with anyio.fail_after(30):
            await all_sent.wait()
        for engine in (a, b):
            shared = engine._runtime.node.shared  # type: ignore[union-attr]
            assert shared is not None
            ((granted,),) = await shared.statement("SELECT sum(nano) FROM ledger_slices")
            assert granted == LIMIT
            (provider,) = engine.statistics().providers
            assert [limit.limit for limit in provider.rate_limits] == [LIMIT]
        group.cancel_scope.cancel()
    assert len(sent) == LIMIT
    assert set(sent) == {"a", "b"}
