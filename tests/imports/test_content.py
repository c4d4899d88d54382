"""Content of every source: it is stored only if asked for, once, and in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callboard.bus import Message
from callboard.engine.imports.importer import import_calls
from callboard.engine.imports.source import SOURCES, ImportedCall
from callboard.engine.imports.sources.records import conversation, messages_of
from callboard.tracestore import PriceTable, Store, TraceStore
from tests.support.session_files import Record, write
from tests.tracestore.contract.conftest import Place

from .samples import ANSWER, CHAT, FULL, PLAIN, QUESTION, RESULT, SAMPLES, SPEND

pytestmark = pytest.mark.anyio
PRICES = PriceTable.default()


async def all_of(store: Store) -> str:
    """All text in the trace."""
    names = (await store.sql("SELECT name FROM sqlite_master WHERE type = 'table'")).rows
    return "".join([repr((await store.sql(f"SELECT * FROM {name!s}", limit=10_000)).rows) for (name,) in names])


def roles_and_texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [
        (message.role, message.text or "".join(str(getattr(each, "content", "")) for each in message.content))
        for message in messages
    ]


def test_there_is_a_sample_of_every_source() -> None:
    assert SAMPLES.keys() == SOURCES.keys()


@pytest.mark.parametrize("source", SAMPLES)
async def test_nothing_of_the_content_is_stored_unless_asked(source: str, tmp_path: Path) -> None:
    path = SAMPLES[source](tmp_path / "there")
    async with TraceStore(tmp_path / "trace.db") as store:
        report = await import_calls(store, source, tmp_path / "there", prices=PRICES)
        assert (report.new, report.unread) == (1, 0)
        assert "Hidden" not in await all_of(store)
        if path.suffix == ".jsonl":
            write(path, ['{"usage": "Hidden", "model": "Hidden", "type": \n'], append=True)
            report = await import_calls(store, source, tmp_path / "there", prices=PRICES)
            assert report.unread == 1
            assert "Hidden" not in repr(report.faults) + await all_of(store)
    assert b"Hidden" not in (tmp_path / "trace.db").read_bytes()


@pytest.mark.parametrize("source", SAMPLES)
async def test_content_is_stored_once_and_in_order(source: str, tmp_path: Path) -> None:
    path = SAMPLES[source](tmp_path / "there")
    async with TraceStore(tmp_path / "trace.db") as store:
        for number in range(2):
            await import_calls(store, source, tmp_path / "there", prices=PRICES, content=True)
            path.with_name(f"{number}{path.suffix}").write_bytes(path.read_bytes())
        (session,) = await store.sessions()
        saved = await store.saved_session(session.session_id)
        assert saved is not None
        assert roles_and_texts(list(saved.messages)) == (PLAIN if source == "llm" else FULL)
        assert not [why for why in saved.missing if "message" in why]


async def test_content_that_comes_later_is_stored_too(place: Place, tmp_path: Path) -> None:
    path = SAMPLES["litellm"](tmp_path / "there")
    async with place.store() as store:
        await import_calls(store, "litellm", tmp_path / "there", prices=PRICES, content=True)
        again = [*CHAT, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And now?"}]
        write(path, [{**SPEND, "request_id": "r2", "messages": json.dumps(again)}], append=True)
        await import_calls(store, "litellm", tmp_path / "there", prices=PRICES, content=True)
        found = await store.messages("s1")
        assert roles_and_texts(list(found)) == [*FULL, ("user", "And now?"), ("assistant", ANSWER)]


async def test_an_import_with_content_adds_it_to_known_calls(store: Store, tmp_path: Path) -> None:
    SAMPLES["codex"](tmp_path / "there")
    await import_calls(store, "codex", tmp_path / "there", prices=PRICES)
    report = await import_calls(store, "codex", tmp_path / "there", prices=PRICES, content=True)
    assert (report.new, report.corrected) == (0, 0)
    (session,) = await store.sessions()
    assert roles_and_texts(list(await store.messages(session.session_id))) == FULL


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("A question", [("user", "A question")]),
        ({"question": "Why?"}, [("user", '{"question":"Why?"}')]),
        ([{"type": "text", "text": "One"}, {"type": "image"}], [("user", "One[image]")]),
        ({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}, [("user", "Hi")]),
        ({"candidates": [{"content": {"role": "model", "parts": [{"text": "Yes"}]}}]}, [("assistant", "Yes")]),
        ({"output": [{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Yes"}]}]},
         [("assistant", "Yes")]),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": RESULT}]}],
         [("tool", RESULT)]),
        (json.dumps([{"role": "human", "content": QUESTION}, {"role": "other"}, 7]), [("user", QUESTION)]),
        (None, []), ([], []), ({}, []), (7, []), ({"messages": []}, []),
    ],
)  # fmt: skip
def test_messages_of_every_form_are_understood(value: Any, messages: list[tuple[str, str]]) -> None:
    assert roles_and_texts(list(messages_of(value))) == messages


def test_a_conversation_that_repeats_a_message_has_it_twice() -> None:
    asked: list[Record] = [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": "Done"}]
    call = ImportedCall(identity="c1", line=0, provider="p", model="m", started_at=0, usage=None, session="s1")
    found = list(conversation(call, [*asked, *asked], "Done"))
    assert len({each.identity for each in found}) == 5
    deep: Any = "x"
    for _ in range(100):
        deep = {"messages": [deep]}
    assert list(messages_of(deep)) == []
