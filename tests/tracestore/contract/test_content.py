"""Captured content of a store is read, searched, pruned and deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import msgspec
import pytest

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionConfigured, SessionCreated, SessionMessageAppended
from callboard.bus.values.content import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role
from callboard.tracestore import Store
from callboard.tracestore.call_columns import SearchFilter

from ...support.present import present
from ..content_making import CONVERSATION, SETUP, appended, captured, configured
from ..trace_making import T0, Maker
from .conftest import Place

# Content in the store: off by default, stored once, redacted before it is stored, and deleted when it expires.


async def test_a_saved_session_has_its_setup_ids_and_metadata(store: Store, make: Maker) -> None:
    created = make(SessionCreated(model="sonnet", tags={"team": "a"}), session_id="s")
    await store.write([created, *captured(configured(make), *appended(make, CONVERSATION))])
    saved = await store.saved_session("s")
    assert (saved.setup, saved.tags, saved.missing) == (SETUP, {"team": "a"}, ())
    assert list(saved.messages) == CONVERSATION == await store.messages("s")
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (2, True)


async def test_writing_captured_events_again_changes_nothing(store: Store, make: Maker) -> None:
    """The same events can be written again in any order, as after a spill that was committed twice."""
    envelopes = captured(configured(make), *appended(make, CONVERSATION))
    await store.write(envelopes)
    first = await store.saved_session("s")
    await store.write(envelopes[::-1])
    for envelope in envelopes[::-1]:
        await store.write([envelope])
    assert await store.saved_session("s") == first
    setup, question, answer = [envelope.data for envelope in await store.events()]
    assert setup == SessionConfigured(history=0, begins=True)
    assert isinstance(question, SessionMessageAppended)
    assert isinstance(answer, SessionMessageAppended)
    assert (question.message.content, answer.message) == ((), Message(Role.ASSISTANT, (), id="msg_2"))


async def test_an_earlier_message_never_overwrites_a_later_one(store: Store, make: Maker) -> None:
    """The later of two messages at one position stays, and the later of two setups."""
    other = msgspec.structs.replace(SETUP, model="opus")
    begun = captured(configured(make), *appended(make, CONVERSATION))
    first = captured(configured(make, history=2), *appended(make, [Message.user("First")], first=1))
    later = captured(configured(make, history=2, setup=other), *appended(make, [Message.user("Later")], first=1))
    for batch in (begun, later, first):
        await store.write(batch)
    saved = await store.saved_session("s")
    assert saved.setup == other
    assert [message.text for message in saved.messages] == ["What is this?", "Later"]


async def test_a_new_session_of_the_same_name_replaces_the_old_one(store: Store, make: Maker) -> None:
    """Late or repeated events of the old session do not change the new one."""
    old = captured(configured(make), *appended(make, [*CONVERSATION, *CONVERSATION]))
    await store.write(old)
    again = Maker("run_later")
    await store.write(captured(configured(again), *appended(again, [Message.user("Anew")])))
    await store.write(old)
    saved = await store.saved_session("s")
    assert (list(saved.messages), saved.missing) == ([Message.user("Anew")], ())


async def test_a_clock_that_steps_back_loses_nothing(store: Store, make: Maker) -> None:
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    again = Maker("run_later")
    early = {"ts_us": T0 - 10**12}
    assert await store.claim_session("s", again.run_id, 0, 2)
    await store.write(captured(*appended(again, [Message.user("More")], first=2, **early)))
    assert await store.messages("s") == [*CONVERSATION, Message.user("More")]


async def test_a_change_of_setup_keeps_the_history(store: Store, make: Maker) -> None:
    other = msgspec.structs.replace(SETUP, model="opus")
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    await store.write(captured(configured(make, history=2, setup=other)))
    saved = await store.saved_session("s")
    assert (present(saved.setup).model, len(saved.messages), saved.missing) == ("opus", 2, ())


# -- Redaction


async def test_content_that_is_not_json_is_withheld(store: Store, make: Maker) -> None:
    """An object of a host in a tool's arguments is withheld. Other messages of the batch are stored."""
    odd = Message.assistant([ToolUseBlock("tu_1", "f", {"x": object()})])  # type: ignore[dict-item]
    await store.write(captured(configured(make), *appended(make, [Message.user("Hi"), odd])))
    saved = await store.saved_session("s")
    assert saved.messages == (Message.user("Hi"),)
    assert saved.missing == ("message 1 was not stored (can't be stored: TypeError)",)


async def test_a_session_that_has_lost_its_beginning_reports_it(store: Store, make: Maker) -> None:
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    cut = make.started().ts_us
    await store.write(captured(*appended(make, [Message.user("More")], first=2)))
    await store.forget_content(cut)
    saved = await store.saved_session("s")
    assert saved.messages == (Message.user("More"),)
    assert saved.missing[0] == "its setup is not stored"
    assert saved.missing[1:] == tuple(f"message {position} has expired or was lost" for position in (0, 1))
    (row,) = await store.sessions()
    assert not row.resumable


async def test_events_of_a_former_owner_go_to_a_branch(store: Store, make: Maker) -> None:
    """If two runs continue one session, the store ends up with two complete sessions."""
    created = make(SessionCreated(model="sonnet", tags={"team": "a"}), session_id="s")
    await store.write([created, *captured(configured(make), *appended(make, CONVERSATION))])
    other = Maker("run_other")
    await store.write([other(SessionCreated(model="sonnet"), session_id="elsewhere")])
    assert await store.claim_session("s", "run_other", 1, history=2)
    late = captured(*appended(make, [Message.user("Mine"), Message.assistant("Yours.")], first=2))
    await store.write(late[:1])
    await store.write(captured(*appended(other, [Message.user("Other"), Message.assistant("Yes.")], first=2)))
    await store.write(late)
    kept, branch = await store.saved_session("s"), await store.saved_session("s.run_test")
    assert [message.text for message in kept.messages[2:]] == ["Other", "Yes."]
    assert [message.text for message in branch.messages[2:]] == ["Mine", "Yours."]
    assert kept.messages[:2] == branch.messages[:2] == tuple(CONVERSATION)
    assert (kept.missing, branch.missing) == ((), ())
    assert (branch.setup, branch.tags) == (SETUP, {"team": "a"})
    assert {row.session_id: row.resumable for row in await store.sessions()}["s.run_test"]


async def test_claiming_a_session_with_an_outdated_history_fails(store: Store, make: Maker) -> None:
    """The claim fails if messages were appended after the history was read. The owner stays the same."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    assert not await store.claim_session("s", "run_other", 1, history=1)
    assert not await store.claim_session("unheard of", "run_other", 1, history=0)
    assert (await store.session_owner("s", "run_other"))[0] == "run_test"


async def test_a_restarted_session_is_not_mixed_with_the_old_one(store: Store, make: Maker) -> None:
    """A late message of the old session goes to a branch, which reports its missing beginning."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    again = Maker("run_later")
    anew = [Message.user("Anew"), Message.assistant("One."), Message.user("More")]
    await store.write(captured(configured(again), *appended(again, anew), configured(again, history=3)))
    await store.write(captured(*appended(make, [Message.user("Late")], first=2)))
    assert await store.messages("s") == anew
    branch = await store.saved_session("s.run_test")
    assert ([message.text for message in branch.messages], len(branch.missing)) == (["Late"], 2)


# The search over captured content. Deleted content is not found.

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


async def test_messages_are_found_by_their_words(store: Store, make: Maker) -> None:
    await store.write(conversation(make))
    expected = {
        **{"cafe": [0], "CAFÉ müller": [0], "old muller cafe": [0], '"old muller"': [0], '"muller old"': []},
        **{"harbour": [1, 2], "harbour -steps": [1], "harb*": [1, 2], "harb": [], "reykjavik": [1], "map": [1]},
        **{"find_place": [1], "42": [2], "東京": [3], "京東": [], "高い": [3], "lighthouse": [4]},
        **{"and AND or": [], "it's": [], "nowhere": []},
    }
    assert {text: await positions(store, text) for text in expected} == expected


async def test_the_text_of_a_search_is_never_part_of_a_statement(store: Store, make: Maker) -> None:
    """No text causes an error of the database. A text without a word is refused."""
    await store.write(conversation(make))
    for text in ("a\"b' OR NEAR(", "* ^ : ( ) { } + -x y", "')); DROP TABLE content; --", "\x00z"):
        await store.search(SearchFilter(text=text))
        assert await positions(store, "harbour") == [1, 2]
    for text in ("", "-only", "...", '""', "-a -b"):
        with pytest.raises(StoreError, match="no search word in"):
            await store.search(SearchFilter(text=text))


async def test_new_messages_are_found_by_the_next_search(store: Store, make: Maker) -> None:
    """A search updates the index. A message is found in every session that has it, the latest session first."""
    await store.write(conversation(make))
    assert await positions(store, "cafe") == [0]
    await store.write(conversation(make, "t"))
    found = await store.search(SearchFilter(text="cafe"))
    assert [message.session_id for message in found] == ["t", "s"]
    assert [message.session_id for message in await store.search(SearchFilter(text="cafe", limit=1))] == ["t"]
    assert await positions(store, "cafe", session_id="s") == [0]
    assert await positions(store, "cafe", since_us=T0 + 10**12) == []


async def test_a_readonly_store_lists_but_does_not_search(place: Place, store: Store, make: Maker) -> None:
    """A search must update the index, so it needs a writing store."""
    await store.write(conversation(make))
    async with place.store(readonly=True) as reader:
        assert len(await reader.search(SearchFilter())) == 5
        with pytest.raises(StoreError):
            await reader.search(SearchFilter(text="harbour"))
    first = (await store.search(SearchFilter()))[-1]
    assert (first.position, first.role, first.text) == (0, "user", SAID[0].text)
    assert await positions(store, None, limit=2) != []
    assert await positions(store, "harbour") == [1, 2]
    await store.forget_content(T0 + 10**12)
    assert await positions(store, "harbour") == []
    assert await positions(store, None) == []


async def test_words_of_a_deleted_session_are_gone(place: Place, store: Store, make: Maker) -> None:
    """Words of other sessions stay. A trace file has no byte of the deleted words."""
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


async def test_without_capture_nothing_is_found(store: Store, make: Maker) -> None:
    await store.write(appended(make, SAID))
    assert await positions(store, "harbour") == []
    assert await positions(store, None) == []


# The record of deliberate deletions, which other stores have to repeat.


async def record(store: Store) -> list[tuple[object, ...]]:
    """The recorded deletions in their order, without times and keys."""
    found = await store.sql("SELECT session_id, before_us, event, runs FROM erasures ORDER BY event, at_us, key")
    return [tuple(row) for row in found.rows]


async def test_only_a_deletion_of_existing_content_is_recorded(store: Store, make: Maker) -> None:
    """Deletions by retention are not recorded."""
    await store.write(captured(configured(make), *appended(make, [Message.user("Hi")])))
    last = await store.last_event_id()
    assert await store.delete_session("s")
    assert not await store.delete_session("s")
    assert not await store.delete_session("unheard of")
    deleted = ("s", None, last, f'["{make.run_id}"]')
    assert await record(store) == [deleted]
    await store.write(captured(configured(make, "t"), *appended(make, [Message.user("Hi")], "t")))
    await store.prune(before=T0 + 10**15)
    assert await record(store) == [deleted]


async def test_deletion_by_age_is_always_recorded(store: Store) -> None:
    """A shared store may still have content that this store has already deleted."""
    await store.forget_content(T0)
    assert await record(store) == [(None, T0, 0, "[]")]
