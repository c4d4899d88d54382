"""The search over captured content: what is found, and that what is deleted isn't there any more."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import msgspec
import pytest

from callboard.bus.errors import StoreError
from callboard.bus.events.envelope import Envelope
from callboard.bus.values.content import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role
from callboard.tracestore import Store
from callboard.tracestore.calls import SearchFilter

from ..content_making import appended, captured, configured
from ..trace_making import T0, Maker
from .conftest import Place

pytestmark = pytest.mark.anyio

LONG = "lighthouse " + "and so on " * 400
SAID = (
    Message.user("Where is the café of the old Müller?"),
    Message(
        Role.ASSISTANT,
        (
            ThinkingBlock("I should look at a map."),
            TextBlock("Let me see."),
            ToolUseBlock("t1", "find_place", {"city": "Reykjavík", "tags": ["harbour"]}),
        ),
        id="msg_2",
    ),
    Message(Role.TOOL, (ToolResultBlock("t1", content="It stands beside the harbour, 42 steps up."),), id="msg_3"),
    Message(Role.ASSISTANT, (TextBlock("東京タワーは高いです。"),), id="msg_4"),
    Message(Role.USER, (TextBlock(LONG),), id="msg_5"),
)


def conversation(make: Maker, session: str = "s", **options: int) -> list[Envelope]:
    return captured(configured(make, session), *appended(make, SAID, session, **options))


async def positions(store: Store, text: str | None, **where: object) -> list[int]:
    found = await store.search(msgspec.convert({"text": text, **where}, SearchFilter))
    return sorted(message.position for message in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cafe", [0]),
        ("CAFÉ müller", [0]),
        ("old muller cafe", [0]),
        ('"old muller"', [0]),
        ('"muller old"', []),
        ("harbour", [1, 2]),
        ("harbour -steps", [1]),
        ("harb*", [1, 2]),
        ("harb", []),
        ("reykjavik", [1]),
        ("map", [1]),
        ("find_place", [1]),
        ("42", [2]),
        ("東京", [3]),
        ("京東", []),
        ("高い", [3]),
        ("lighthouse", [4]),
        ("and AND or", []),
        ("it's", []),
        ("nowhere", []),
    ],
)
async def test_messages_are_found_by_their_words(
    text: str, expected: list[int], store: Store, make: Maker
) -> None:
    """Whatever their case and accents: text, thoughts, arguments and results of tools, and large blocks."""
    await store.write(conversation(make))
    assert await positions(store, text) == expected


@pytest.mark.parametrize("text", ["", "-only", "...", '""', "-a -b"])
async def test_a_question_without_a_word_is_refused(text: str, store: Store) -> None:
    """Rather than answered with everything."""
    with pytest.raises(StoreError, match="no word to look for"):
        await store.search(SearchFilter(text=text))


@pytest.mark.parametrize(
    "text", ["a\"b' OR NEAR(", "* ^ : ( ) { } + -x y", "')); DROP TABLE content; --", "\x00z"]
)
async def test_no_text_is_an_error_of_the_database(text: str, store: Store, make: Maker) -> None:
    """A question is words, and never a part of a statement."""
    await store.write(conversation(make))
    await store.search(SearchFilter(text=text))
    assert await positions(store, "harbour") == [1, 2]


async def test_what_is_said_after_a_search_is_found_by_the_next(store: Store, make: Maker) -> None:
    """The index follows; and messages are found in every session that says them, the latest first."""
    await store.write(conversation(make))
    assert await positions(store, "cafe") == [0]
    await store.write(conversation(make, "t"))
    found = await store.search(SearchFilter(text="cafe"))
    assert [message.session_id for message in found] == ["t", "s"]
    assert [message.session_id for message in await store.search(SearchFilter(text="cafe", limit=1))] == ["t"]
    assert await positions(store, "cafe", session_id="s") == [0]
    assert await positions(store, "cafe", since_us=T0 + 10**12) == []


async def test_without_words_the_latest_messages_come(store: Store, make: Maker) -> None:
    """With who said what."""
    await store.write(conversation(make))
    first = (await store.search(SearchFilter()))[-1]
    assert (first.position, first.role, first.text) == (0, "user", SAID[0].text)
    assert await positions(store, None, limit=2) != []


async def test_words_of_a_deleted_session_are_gone(place: Place, store: Store, make: Maker) -> None:
    """Those that another session says stay; in a file, no byte of the others does."""
    secret = captured(*appended(make, [Message.user("the zanzibar password")], "secret"))
    await store.write([*conversation(make), *secret])
    assert await positions(store, "zanzibar") == [0]
    assert await store.delete_session("secret")
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.folder / "trace.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert b"zanzibar" not in (place.folder / "trace.db").read_bytes()
    else:
        rows = (await store.sql("SELECT words::text FROM callboard.content_search")).rows
        assert not any("zanzibar" in str(row[0]) for row in rows)
    assert await positions(store, "zanzibar") == []
    assert await positions(store, "harbour") == [1, 2]


async def test_words_that_have_expired_are_gone(store: Store, make: Maker) -> None:
    """As all that was said before a moment."""
    await store.write(conversation(make))
    assert await positions(store, "harbour") == [1, 2]
    await store.forget_content(T0 + 10**12)
    assert await positions(store, "harbour") == []
    assert await positions(store, None) == []


async def test_nothing_captured_is_nothing_found(store: Store, make: Maker) -> None:
    """Events have no content to look into."""
    await store.write(appended(make, SAID))
    assert await positions(store, "harbour") == []
    assert await positions(store, None) == []


async def test_a_store_that_only_reads_shows_and_does_not_search(place: Place, store: Store, make: Maker) -> None:
    """Since a search keeps its index up."""
    await store.write(conversation(make))
    async with place.store(readonly=True) as reader:
        assert len(await reader.search(SearchFilter())) == 5
        with pytest.raises(StoreError):
            await reader.search(SearchFilter(text="harbour"))
