"""A provider's error may quote the prompt. A trace without content keeps no quote of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import CanonicalRequest, InvalidRequestError, Message, Role
from callboard.engine import Engine
from callboard.engine.calls.outcome import WINDOW, without_quotes
from tests.support.engines import registry
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio

SECRET = "my number is 4711 0815, and Ada is my name"
REFUSED = f"messages.0: invalid text '{SECRET}' in this request"
BARE = "messages.0: invalid text '…' in this request"


@given(st.text("ab ", max_size=40), st.text(min_size=WINDOW * 2, max_size=80), st.text("cd ", max_size=40))
def test_a_quote_is_taken_out_wherever_it_stands(before: str, quote: str, behind: str) -> None:
    """What stands around it stays, but for signs that happen to go on as the quote does."""
    bare = without_quotes(before + quote + behind, [f"start {quote} end"])
    assert quote not in bare
    assert "…" in bare
    assert bare.split("…")[0] in before + quote


def test_what_is_no_quote_stays() -> None:
    """A word that both have is none; a short prompt that is quoted whole is one."""
    assert without_quotes("the model is overloaded", ["What is the model of my car?"]) == "the model is overloaded"
    assert without_quotes("not allowed: Ada is ill", ["Ada is ill"]) == "not allowed: …"
    assert without_quotes("not allowed: No", ["No", ""]) == "not allowed: No"


async def by_session(engine: Engine) -> None:
    await engine.session("s:m").send(SECRET)


async def by_stream(engine: Engine) -> None:
    async with engine.session("s:m").stream(SECRET) as turn:
        await turn.message()


async def by_system_prompt(engine: Engine) -> None:
    await engine.session("s:m", system_prompt=SECRET).send("Hi")


async def by_history(engine: Engine) -> None:
    messages = (Message.user(SECRET), Message(Role.ASSISTANT, "Yes."), Message.user("Hi"))
    request = CanonicalRequest(
        request_id="", message_id="", session_id="", model="s:m", messages=messages, max_output_tokens=9
    )
    await engine.complete(request)


async def by_generate(engine: Engine) -> None:
    await engine.generate("s:m", SECRET)


async def by_plain_stream(engine: Engine) -> None:
    async with engine.stream("s:m", SECRET) as result:
        _ = [event async for event in result]


WAYS = [by_session, by_stream, by_system_prompt, by_history, by_generate, by_plain_stream]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"capture_content": True, "redact": lambda message: None}])
async def test_a_stored_error_quotes_nothing(way: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """Neither that of the call nor that of the turn, without content and with a hook; the caller's has it all."""
    path = tmp_path / "trace.db"
    models = registry(Say(fails=InvalidRequestError(REFUSED)))
    async with Engine(models=models, store=path, **options) as engine:
        with pytest.raises(InvalidRequestError, match="4711"):
            await way(engine)
        await engine.flush()
        assert engine.store is not None
        (call,) = await engine.store.calls()
        assert call.error_message == BARE
        ends = await engine.store.events(topic="session.turn_completed", limit=None)
        assert all(end.data.error == f"InvalidRequestError: {BARE}" for end in ends)  # type: ignore[attr-defined]
    assert b"4711" not in path.read_bytes()


async def test_with_content_the_whole_error_is_stored(tmp_path: Path) -> None:
    """What was said is in the trace anyway."""
    models = registry(Say(fails=InvalidRequestError(REFUSED)))
    async with Engine(models=models, store=tmp_path / "trace.db", capture_content=True) as engine:
        with pytest.raises(InvalidRequestError):
            await engine.session("s:m").send(SECRET)
        await engine.flush()
        assert engine.store is not None
        (call,) = await engine.store.calls()
        assert call.error_message == REFUSED
