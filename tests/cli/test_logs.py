"""`callboard logs`: what was said lately, and the search for its words."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from callboard import Engine
from tests.support.engines import registry
from tests.support.scripted import Say

from .running import call


def talk(path: Path) -> None:
    """A trace with a captured conversation of two turns."""

    async def work() -> None:
        replies = registry(llm=[Say("By the harbour."), Say("Goodbye.")])
        async with Engine(models=replies, store=path, capture_content=True) as engine:
            session = engine.session("llm:m", session_id="ses_talk")
            await session.send("Where is the Café?")
            await session.send("Thank you.")

    anyio.run(work)


def test_what_was_said_is_shown_and_found(home: Path) -> None:
    """In their order, as JSON the latest first. A search shows the part around the words."""
    talk(home / "trace.db")
    latest = [json.loads(line) for line in call("logs", "--json", home=home, exits=0).stdout.splitlines()]
    assert [line["text"] for line in latest] == ["Goodbye.", "Thank you.", "By the harbour.", "Where is the Café?"]
    shown = call("logs", home=home, exits=0).stdout
    assert shown.index("Where is the Café?") < shown.index("By the harbour.") < shown.index("Goodbye.")
    (found,) = [json.loads(line) for line in call("logs", "-q", "cafe", "--json", home=home).stdout.splitlines()]
    assert (found["session_id"], found["role"], found["position"]) == ("ses_talk", "user", 0)
    done = call("logs", "-q", "harb*", home=home, exits=0)
    assert "ses_talk  assistant" in done.stdout
    assert "By the harbour." in done.stdout
    assert "no such messages" in call("logs", "-q", "nowhere", home=home, exits=0).stderr
    assert "only the latest 1 message" in call("logs", "-n", "1", home=home, exits=0).stderr


def test_a_deleted_session_is_found_no_more(home: Path) -> None:
    """Not by its words, and not among the latest."""
    talk(home / "trace.db")
    assert call("logs", "-q", "goodbye", home=home, exits=0).stdout
    call("sessions", "ses_talk", "--delete", home=home, exits=0)
    assert call("logs", "-q", "goodbye", home=home, exits=0).stdout == ""
    assert call("logs", home=home, exits=0).stdout == ""


def test_a_search_makes_no_trace(home: Path) -> None:
    """Where there is none it says so."""
    assert "there is no trace file" in call("logs", "-q", "x", home=home, exits=1).stderr
    assert (
        "there is no trace file" in call("logs", "-q", "x", "--db", str(home / "no.db"), home=home, exits=1).stderr
    )
    assert list(home.iterdir()) == []
