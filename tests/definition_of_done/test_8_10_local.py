"""Section 8.10 on the local model: those of the six steps, and of other sections, that it can do.

The tests use the real llama.cpp behind three protocols. Nothing is simulated, so no test asserts a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callboard import CapabilityError, Engine, ImageBlock, Message, generate_object
from callboard.engine.cli.demo import TOOL_TEXT, WEATHER, demo_registry
from tests.support.depth import first_is_quick
from tests.support.virtual_time import runs_on

from ..adapters.local.conftest import model  # noqa: F401 (a fixture; it skips where there is no local model)
from .rows import row
from .test_8_4_generation import PERSON
from .test_8_5_reasoning_and_caching import usages
from .test_8_10_smoke import DOT, Script, basic, calling, looking, streaming

pytestmark = [pytest.mark.anyio, pytest.mark.local]

SHORT = {"temperature": 0.0, "max_output_tokens": 48}

anyio_backend = runs_on("asyncio", scope="module")


@pytest.fixture(scope="module")
async def engine(model: Path, anyio_backend: str) -> AsyncIterator[Engine]:  # noqa: F811
    async with Engine(models=demo_registry("live"), trace=False) as engine:
        yield engine


by_every_protocol = pytest.mark.parametrize(
    "protocol", first_is_quick(["chat", "messages", "responses"], "the same model by another protocol")
)


@by_every_protocol
@row("8.4.1")
@row("8.10.1")
async def test_it_replies_with_a_greeting(engine: Engine, protocol: str) -> None:
    """The temperature is 0, because a small model can otherwise write until its limit."""
    await basic(engine, f"local-{protocol}", temperature=0.0)


@by_every_protocol
@row("8.4.4")
@row("8.10.2")
async def test_it_streams(engine: Engine, protocol: str) -> None:
    await streaming(engine, f"local-{protocol}", **SHORT)


@row("8.7.1")
@row("8.10.3")
async def test_it_calls_a_tool(engine: Engine) -> None:
    """Tools are emulated: a schema forces the model to write a call."""
    script = Script((), "", ("", ""), question=(Message.user(TOOL_TEXT),), tools=(WEATHER,), words=())
    await calling(engine, "local-tools", script, **SHORT)


@row("8.10.4")
async def test_it_refuses_an_image(engine: Engine) -> None:
    with pytest.raises(CapabilityError, match="image"):
        await looking(engine, "local-chat", ImageBlock(data=DOT))


@row("8.4.7")
@row("8.10.5")
async def test_it_fills_a_schema(engine: Engine) -> None:
    """Only Chat Completions enforces a schema on this server."""
    prompt = "Extract as JSON: Alice is 30 years old"
    result = await generate_object("local-chat", prompt, schema=PERSON, engine=engine, **SHORT)
    assert isinstance(result.output, dict)
    assert result.output["name"] == "Alice"
    assert isinstance(result.output["age"], int)


@pytest.mark.deep("a long session on the local model")
@pytest.mark.parametrize(
    "protocol", first_is_quick(["chat", "messages", "responses"], "the same cache by another protocol")
)
@row("8.6.9")
async def test_it_reads_most_of_a_long_session_from_its_cache(engine: Engine, protocol: str) -> None:
    """From turn 5 on, the server reports more than half of the input as cached."""
    session = engine.session(f"local-{protocol}", system_prompt=f"This is a session by {protocol}. Be brief.")
    used = await usages(session, 5, "And this?", temperature=0.0, max_output_tokens=4)
    shares = [each.cached_input_tokens / each.total_input_tokens for each in used]
    assert min(shares[4:]) > 0.5, shares
