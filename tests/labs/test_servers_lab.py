"""Sixty conversations of `labs/servers`, which plays thousands. Its rules are tested, and it finds injected
errors.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callboard.adapters.servers import Note, notes
from labs.servers import server as lab
from labs.servers.conversation import PAIRS, plan_of, play
from labs.servers.rules import RULES, Asked
from labs.servers.server import TemperServer
from labs.servers.tempers import TEMPERS, Temper, notes_of

CONVERSATIONS = 60
F = {"id": "c", "function": {"name": "f"}}
CALL: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [F]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "done"}
HI = {"role": "user", "content": "Hi"}
PNG_AS_JPEG = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,iVBORw0KGgo="}}
UNION = {"anyOf": [{"type": "object"}]}

REFUSED: dict[str, dict[str, Any]] = {
    "reasoning_with_tool_calls": {"messages": [HI, CALL, RESULT]},
    "reasoning_with_tool_calls_not_empty": {"messages": [HI, {**CALL, "reasoning_content": ""}, RESULT]},
    "thinking_with_tool_uses": {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]},
    "no_foreign_signatures": {"messages": [{"content": [{"type": "thinking", "signature": "another's"}]}]},
    "union_at_schema_root": {"tools": [{"function": {"name": "f", "parameters": UNION}}]},
    "blank_text": {"messages": [{"role": "user", "content": [{"type": "text", "text": " \n"}]}]},
    "blank_system": {"system": " "},
    "blank_tool_result": {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": ""}]}]},
    "too_many_cache_marks": {"messages": [{"cache_control": {}}] * 5},
    "user_after_tool": {"messages": [HI, CALL, RESULT, HI]},
    "alternating_roles": {"messages": [HI, HI]},
    "fixed_temperature": {"temperature": 0.7},
    "plain_media_types": {
        "messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:image/PNG;base64,"}}]}]
    },
    "true_media_types": {"messages": [{"role": "user", "content": [PNG_AS_JPEG]}]},
    "typed_properties": {"tools": [{"input_schema": {"type": "object", "anyOf": []}}]},
}
"""For each rule of `rules.py`, a request that it refuses. The notes test their own rules."""
TAKEN: dict[str, Any] = {
    "system": "You are brief.",
    "temperature": 1,
    "tools": [
        {"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    ],
    "messages": [HI, {**CALL, "reasoning_content": "Hm."}, RESULT, {"role": "assistant", "content": "Yes."}, HI],
}


async def failures_of(*seeds: int) -> list[str]:
    async with TemperServer() as server:
        return [f"seed {seed}: {failure}" for seed in seeds for failure in (await play(seed, server)).failures]


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)  # the test plays a thousand requests, and the machine may be busy
def test_no_server_refuses_a_conversation_and_none_is_poisoned() -> None:
    """`python -m labs.servers --conversations 1 --seed N` plays the seed of a failure again."""
    assert asyncio.run(failures_of(*range(CONVERSATIONS))) == []


def test_the_rule_of_every_note_exists() -> None:
    """Each rule of a note is in `labs/servers/rules.py`, and the lab has each note's server."""
    servers = {temper.server for temper in TEMPERS}
    found = [*notes("A"), *notes("B")]
    assert [note.id for note in found if note.input.get("rule") not in {None, *RULES}] == []
    assert [note.id for note in found if note.server not in servers] == []


def test_a_rule_refuses_only_requests_that_break_it() -> None:
    for name, refused in REFUSED.items():
        assert RULES[name](Asked("chat", "/v1/chat/completions", refused)), name
        assert RULES[name](Asked("chat", "/v1/chat/completions", TAKEN)) is None, name


@pytest.mark.deep("all pairs of servers")
def test_a_seed_decides_everything_and_covers_each_pair() -> None:
    """The plans have each ordered pair of servers, and each way in which a turn can end."""
    assert plan_of(7) == plan_of(7)
    plans = [plan_of(seed) for seed in range(200)]
    assert {step.ends for plan in plans for step in plan} == {
        "said", "failed", "healed", "shortened", "unrun", "cancelled",
    }  # fmt: skip
    met = {(plan_of(seed)[0].temper, away) for seed in range(len(PAIRS)) for away in _others(plan_of(seed))}
    assert met >= set(PAIRS)


def _others(plan: list[Any]) -> list[Temper]:
    home = plan[0].temper
    return [step.temper for step in plan if step.temper != home][:1]


def test_a_server_of_the_lab_plays_every_note_of_an_error() -> None:
    """The lab has each server and wire of the notes about errors."""
    said = {note.id for temper in TEMPERS for note in notes_of(temper, "C")}
    missing = [note.id for note in notes("C") if note.id not in said]
    assert missing == []
    assert {note.server for note in notes("C")} == {temper.server for temper in TEMPERS}


def test_a_refusal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "planted", lambda asked: "planted")
    note = Note("B-x-planted", "x", "B", "any", "f.", "r.", "a/b#1", {"rule": "planted"}, {})
    monkeypatch.setattr(lab, "notes_of", lambda temper, *kinds: [note] if "B" in kinds else [])
    assert any("refuses by planted: planted" in failure for failure in asyncio.run(failures_of(3)))


def test_a_poisoned_history_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server reports a history whose beginning has changed."""
    kept = lab._history
    count = iter(range(10**6))
    monkeypatch.setattr(lab, "_history", lambda *given: [next(count), *kept(*given)])
    assert any("entry 0 of the history was" in failure for failure in asyncio.run(failures_of(3)))
