"""Content in the store: off unless asked for, kept once, redacted first, gone when it has expired."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bus.events.envelope import Event
from callboard.bus.events.sessions import SessionConfigured
from callboard.bus.values.content import ImageBlock, TextBlock
from callboard.bus.values.messages import Message, Role
from tests.support.present import present
from callboard.tracestore import Capture, TraceStore

from .content_making import (
    CONVERSATION,
    PICTURE,
    appended,
    captured,
    configured,
    count,
    everything,
)
from .trace_making import Maker, make_file_before, sql

pytestmark = pytest.mark.anyio


async def test_without_capture_nothing_of_the_content_reaches_the_file(store: TraceStore, make: Maker) -> None:
    """Messages go by, and neither they nor the setup leave a byte; the session can't be resumed."""
    await store.write([configured(make), *appended(make, CONVERSATION)])
    assert await store.saved_session("s") is None
    assert await store.messages("s") == []
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (0, False)
    for secret in (b"picture", b"brief", PICTURE[100:300]):
        assert secret not in everything(store)


async def test_what_is_said_again_is_stored_once(store: TraceStore, make: Maker) -> None:
    """Fifty turns with the same picture and the same long text: one picture, one text, and the rest is small."""
    long = TextBlock("a manual " * 2000)
    turns = [
        message
        for turn in range(50)
        for message in (
            Message.user([long, ImageBlock(data=PICTURE), TextBlock(f"question {turn}")]),
            Message.tool_result("tu", [ImageBlock(data=PICTURE)]),
            Message.assistant("yes"),
        )
    ]
    for session in ("s", "t"):
        await store.write(captured(configured(make, session), *appended(make, turns, session)))
    assert await store.messages("t") == turns
    # one setup, fifty questions, one result, one answer, the manual and the picture
    assert count(store, "SELECT count(*) FROM content") == 55
    assert count(store, "SELECT sum(length(body)) FROM content") < len(PICTURE) + len(long.text) + 55 * 500


# -- Redaction


async def test_the_hook_decides_what_is_stored(store: TraceStore, make: Maker) -> None:
    """It may change a message or keep it out, and sees the system prompt as well."""

    def redact(message: Message) -> Message | None:
        if "password" in message.text:
            return None
        return Message(message.role, (TextBlock(message.text.replace("Bob", "[name]").replace("brief", "kind")),))

    said = [
        Message(Role.USER, (TextBlock("I am Bob"),), id="msg_1"),
        Message.user("My password is 1234"),
        Message.assistant("Hi, Bob"),
    ]
    envelopes = captured(configured(make), *appended(make, said), capture=Capture(redact))
    await store.write(envelopes)
    saved = await store.saved_session("s")
    assert saved is not None
    assert present(saved.setup).system_prompt == "You are kind."
    assert [message.text for message in saved.messages] == ["I am [name]", "Hi, [name]"]
    assert saved.messages[0].id == "msg_1"
    assert saved.missing == ("message 1 was not stored (redacted)",)
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (3, False)
    for secret in (b"Bob", b"1234", b"brief"):
        assert secret not in everything(store)


@pytest.mark.parametrize("answer", [KeyError("My password is 1234"), "no message"])
async def test_a_hook_that_fails_stores_nothing_and_stops_nothing(
    store: TraceStore, make: Maker, answer: object
) -> None:
    """The message is withheld, the error's own words with it; what else is written goes on."""

    def redact(message: Message) -> Message:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    said = [Message.user("My password is 1234"), Message.assistant("Fine")]
    envelopes = captured(configured(make), *appended(make, said), capture=Capture(redact))
    await store.write([*envelopes, make.started()])
    saved = await store.saved_session("s")
    assert saved is not None
    assert saved.messages == ()
    assert saved.withheld is not None
    assert present(saved.setup).system_prompt is None
    assert all("redaction failed" in missing for missing in saved.missing)
    assert len(await store.calls()) == 1
    assert b"1234" not in everything(store)


# -- Expiry


async def test_expired_content_is_gone_from_the_file_and_what_is_still_used_stays(
    store: TraceStore, make: Maker
) -> None:
    """A body goes with its last use; events and costs stay."""
    old = [Message.user("an old secret " * 300), Message.assistant("shared answer")]
    await store.write([*captured(configured(make), *appended(make, old)), make.completed(session_id="s")])
    now = Maker()
    cut = make.started().ts_us
    for _ in range(20):
        now.started()
    fresh = [Message.user("new question"), Message.assistant("shared answer")]
    await store.write(captured(configured(now, "t"), *appended(now, fresh, "t")))
    assert await store.forget_content(cut) == 2  # the old question and its large block
    assert await store.saved_session("s") is None
    assert await store.messages("t") == fresh
    assert {row.session_id: row.resumable for row in await store.sessions()} == {"s": False, "t": True}
    assert len(await store.calls()) == 1
    await store.close()
    assert b"an old secret" not in everything(store)


# -- Files of earlier versions


async def test_a_file_from_before_content_opens_and_keeps_its_data(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the new tables, and its sessions are such as can't be resumed."""
    path = tmp_path / "trace.db"
    await make_file_before("content", path, monkeypatch)
    sql(path, "INSERT INTO sessions (session_id, first_us, last_us) VALUES ('s', 1, 1)")
    async with TraceStore(path) as store:
        (row,) = await store.sessions()
        assert (row.session_id, row.messages, row.resumable) == ("s", 0, False)
        await store.write(captured(configured(make, "t"), *appended(make, CONVERSATION, "t")))
        assert await store.messages("t") == CONVERSATION


def test_events_without_a_session_are_not_captured_as_one() -> None:
    """A host's own event without ids passes as it is."""
    event: Event = SessionConfigured(history=0)
    (envelope,) = captured(Maker()(event))
    assert envelope.data is event


# -- One writer at a time
