"""What is told of a repricing under way, and what another provider would be sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig
from callboard import CallboardError, ConfigurationError, ModelRegistry, PricingProgress, PricingRepriced
from tests.support.engines import entry, keeping, registry, running, serving
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import runs_on
from callboard.tracestore import PriceRow, PriceTable

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="s:*", input=1_000_000, output=2_000_000)])

# A real loop: the store works in threads, and virtual time would run ahead of them
anyio_backend = runs_on("asyncio")


async def test_a_repricing_tells_how_far_it_is_and_the_trace_does_not_keep_it(tmp_path: Path) -> None:
    """The last number is that of the last call; a dry run says that it is one."""
    async with running(Say("one"), Say("two"), store=tmp_path / "t.db") as (engine, events):
        for _ in range(2):
            await engine.session("s:m").send("Hi")
        await engine.reprice(TABLE, dry_run=True)
        await engine.reprice(TABLE)
        told = [e.data for e in events.take() if isinstance(e.data, PricingProgress | PricingRepriced)]
        assert [type(event) for event in told] == [PricingProgress, PricingProgress, PricingRepriced]
        assert [(each.done, each.last, each.dry_run) for each in told[:2]] == [(2, 2, True), (2, 2, False)]  # type: ignore[union-attr]
        await engine.flush()
        assert engine.store is not None
        assert await engine.store.events(topic="pricing.progress") == []


async def test_a_preview_is_what_a_turn_would_send(tmp_path: Path) -> None:
    """For another provider than the one that answered, word for word, and without sending anything."""
    models = registry(Say("Hello"))
    async with keeping(tmp_path / "t.db", models=models) as engine:
        session = engine.session("s:m", system_prompt="Be kind.")
        await session.send("Hi")
        shown = await engine.preview(session.id, "And now?")
        assert (shown.model, shown.provider, shown.refused) == ("s:m", "s", None)
        assert shown.body == "req_preview"  # which is all that a scripted adapter would send
        assert shown.input_tokens == 30
        assert len(session.messages) == 2
        with pytest.raises(CallboardError, match="nothing is stored"):
            await engine.preview("ses_other")
        with pytest.raises(ConfigurationError):
            await engine.preview(session.id, model="nobody:m")


async def test_a_preview_shows_the_body_of_another_providers_request(tmp_path: Path) -> None:
    """Open here or only stored: an Anthropic body, with everything that was said, and no key."""

    def models() -> ModelRegistry:
        return serving(
            s=scripted_type(Say("Hello")),
            claude=entry("claude", "anthropic", AdapterConfig(api_key="sk-ant-hidden")),
        )

    async with keeping(tmp_path / "t.db", models=models()) as engine:
        session = engine.session("s:m", system_prompt="Be kind.")
        await session.send("Hi")
        here = await engine.preview(session.id, "And now?", model="claude:m")
    async with keeping(tmp_path / "t.db", models=models()) as other:
        stored = await other.preview(session.id, "And now?", model="claude:m")
    assert here == stored
    body = json.loads(here.body)
    said = [(message["role"], json.dumps(message["content"])) for message in body["messages"]]
    assert [role for role, _ in said] == ["user", "assistant", "user"]
    assert ["Hi" in said[0][1], "Hello" in said[1][1], "And now?" in said[2][1]] == [True] * 3
    assert "Be kind." in json.dumps(body["system"])
    assert "hidden" not in repr(here)
