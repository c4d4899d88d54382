"""A question as the command line asks it: what is sent, and what is to become of the reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from callboard.adapters import ContentBlock
from callboard.bus.values.json import JsonObject
from callboard.engine import TurnOptions

from .code_blocks import Which


class Question(NamedTuple):
    """What is asked, and what is to become of the reply."""

    content: str | Sequence[ContentBlock]
    """The prompt, or blocks."""
    model: str | None
    """The model; None is that of the session that goes on."""
    system: str | None
    """The system prompt."""
    options: TurnOptions
    """The options of the turn."""
    tools: Sequence[str] = ()
    """The tools, as words."""
    asks_always: bool = False
    """Whether the person is asked about every call of a tool."""
    schema: JsonObject | None = None
    """The schema of the reply."""
    extract: Which | None = None
    """The block of code that is wanted; None is the whole reply."""
    session_id: str | None = None
    """The session that goes on, or begins under this id; None is a new one."""
    must_exist: bool = False
    """Whether the session must be there already."""
    saved: bool = True
    """Whether what is said is kept."""
    streamed: bool = True
    """Whether the reply is streamed."""
    shows_thoughts: bool = True
    """Whether a terminal shows what the model thinks."""
    shows_usage: bool = False
    """Whether tokens, pace and cost are told at the end."""
    as_json: bool = False
    """Whether the reply is written as one JSON object with its usage and cost."""
    key: str | None = None
    """The name of the adapter's key to send."""
    tags: dict[str, str] | None = None
    """The tags of the calls."""
    name: str | None = None
    """The name of a new session, for people."""


def name_of(prompt: str, longest: int = 60) -> str | None:
    """The first words of a prompt, as the name of the conversation that it begins; None if it has none."""
    words = " ".join(prompt.split())
    return (words if len(words) <= longest else f"{words[:longest].rstrip()}…") or None
