"""Marks of the prompt cache in Chat Completions: at most four, the last ones, and none on an empty text."""

from __future__ import annotations

import pytest

from callboard.adapters.providers.openai_compatible.messages import keep_latest
from callboard.bus.values.base import Json, JsonObject

MARK: JsonObject = {"cache_control": {"type": "ephemeral"}}


def text(said: str, marked: bool = True) -> JsonObject:
    return {"type": "text", "text": said, **(MARK if marked else {})}


def marks(value: Json) -> list[str]:
    """The texts and ids that are marked, in order."""
    if isinstance(value, list):
        return [found for entry in value for found in marks(entry)]
    if not isinstance(value, dict):
        return []
    own = (
        [str(value.get("text") or value.get("tool_call_id") or value.get("id"))]
        if "cache_control" in value
        else []
    )
    return own + [found for inner in value.values() for found in marks(inner)]


def user(*texts: str) -> JsonObject:
    return {"role": "user", "content": [text(each) for each in texts]}


BODIES: list[tuple[str, JsonObject, list[str]]] = [
    ("few", {"messages": [user("a"), user("b")]}, ["a", "b"]),
    ("many", {"messages": [user(each) for each in "abcdef"]}, ["c", "d", "e", "f"]),
    ("many in one message", {"messages": [user(*"abcdef")]}, ["c", "d", "e", "f"]),
    ("the system's stay", {"messages": [{**user("s"), "role": "system"}, *map(user, "abcdef")]},
     ["s", "d", "e", "f"]),
    ("tools count", {"tools": [{"id": "t", **MARK}], "messages": [user(each) for each in "abcd"]},
     ["t", "b", "c", "d"]),
    ("an empty text", {"messages": [user(""), user("a", " \n")]}, ["a"]),
    ("results and calls", {"messages": [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **MARK}]},
        {"role": "tool", "tool_call_id": "r1", "content": "ok", **MARK}, *map(user, "abc"),
    ]}, ["r1", "a", "b", "c"]),
    ("too many of the system's", {"messages": [{**user(*"abcdef"), "role": "system"}]}, ["c", "d", "e", "f"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "left"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_the_last_marks_are_kept(body: JsonObject, left: list[str]) -> None:
    """The oldest of the conversation go first, then the oldest of the system text."""
    messages = body["messages"]
    assert isinstance(messages, list)
    copy = {**body, "messages": list(messages)}
    keep_latest(copy)
    assert marks(copy) == left


def test_the_mark_of_the_whole_body_counts() -> None:
    """OpenRouter takes one mark for the whole request."""
    body: JsonObject = {"messages": [user(each) for each in "abcd"], **MARK}
    keep_latest(body)
    assert marks(body["messages"]) == ["b", "c", "d"]


def test_the_hosts_blocks_are_not_changed() -> None:
    """Messages that lose a mark are copied."""
    first = user("a")
    keep_latest({"messages": [first, *map(user, "bcde")]})
    assert marks(first) == ["a"]
