"""What a reply says beside its content, by every way to ask, and where it may be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig, Message, OpenAICompatibleAdapter
from callboard.bus import Clock
from callboard.engine import Engine, ModelRegistry
from callboard.engine.middleware import Guardrail, Held
from tests.support.engines import entry, keeping, serving
from tests.support.fake_http import FakeReply, FakeTransport
from tests.support.scripted import adapter_type
from tests.support.virtual_time import runs_on
from tests.support.wires.chat import ChatWire, chunk

pytestmark = pytest.mark.anyio

# A real loop: the store works in threads, and virtual time would run ahead of them
anyio_backend = runs_on("asyncio")

DETAILS = {"system_fingerprint": "fp_1", "citations": ["https://secret.test"]}


def written_to(folder: Path) -> bytes:
    """Everything in a folder's files."""
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


def answering(streamed: bool = False, times: int = 1) -> ModelRegistry:
    """A model that answers so often, and says more than its answer."""
    wire = ChatWire()
    whole = json.dumps({**wire.body("Blue.", 0, "end"), **DETAILS}).encode()
    pieces = wire.stream(chunk(content="Blue."), {**chunk("stop"), **DETAILS})
    replies = [FakeReply(pieces if streamed else whole) for _ in range(times)]

    def made(config: AdapterConfig, *, name: str, clock: Clock) -> OpenAICompatibleAdapter:
        return OpenAICompatibleAdapter(config, name=name, clock=clock, transport=FakeTransport(*replies))

    config = AdapterConfig(api_key="k", base_url="https://x.test")
    return serving(c=entry("c", adapter_type(made), config))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_sessions_reply_has_them(streamed: bool) -> None:
    """On the reply, in its plain values and with its message; the reply is a key of a dict all the same."""
    async with Engine(models=answering(streamed), trace=False) as engine:
        session = engine.session("c:m")
        reply = await session.stream("?").message() if streamed else await session.send("?")
        assert reply.provider_details == DETAILS
        assert reply.to_dict()["provider_details"] == DETAILS
        assert session.messages[-1].metadata.provider_details == DETAILS  # type: ignore[union-attr]
        assert reply in {reply: 1}


async def test_they_are_in_the_trace_where_content_is(tmp_path: Path) -> None:
    """Another process resumes the session with them; where content is not kept, neither are they."""
    async with keeping(tmp_path / "t.db", models=answering()) as engine:
        session = await engine.open_session("ses", model="c:m")
        await session.send("?")
    async with keeping(tmp_path / "t.db", models=answering()) as other:
        resumed = await other.open_session("ses", model="c:m")
        assert resumed.messages[-1].metadata.provider_details == DETAILS  # type: ignore[union-attr]
    (tmp_path / "none").mkdir()
    async with Engine(models=answering(), store=tmp_path / "none" / "t.db") as engine:
        await engine.session("c:m").send("?")
    assert b"secret.test" not in written_to(tmp_path / "none")


@pytest.mark.parametrize("kept", [True, False])
async def test_a_hook_that_redacts_lets_none_pass(tmp_path: Path, kept: bool) -> None:
    """They may say what the hook takes out."""

    def redact(message: Message) -> Message | None:
        return message if kept else None

    async with keeping(tmp_path / "t.db", models=answering(), redact=redact) as engine:
        session = await engine.open_session("ses", model="c:m")
        assert (await session.send("?")).provider_details == DETAILS
    assert b"secret.test" not in written_to(tmp_path)


async def test_a_reply_that_a_guardrail_changed_has_none() -> None:
    """A reply that passed as it was has them."""

    def hide(held: Held) -> str:
        return held.text.replace("Blue", "…")

    def look(held: Held) -> str:
        return held.text

    for guard, found in ((hide, {}), (look, DETAILS)):
        async with Engine(models=answering(), trace=False, middleware=[Guardrail(guard)]) as engine:
            assert (await engine.generate("c:m", "?")).response.provider_details == found
