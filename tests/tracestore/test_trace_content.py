"""Content in the store: off unless asked for, kept once, redacted first, gone when it has expired."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bus.events.envelope import Envelope, Event
from bus.events.sessions import SessionConfigured, SessionCreated, SessionMessageAppended
from bus.values.content import ImageBlock, TextBlock, ToolUseBlock
from bus.values.messages import Message, Role, SessionSetup, ToolDefinition
from tests.support.present import present
from tracestore import Capture, TraceStore

from .content_making import METADATA, PICTURE, appended, captured
from .trace_making import T0, Maker, make_file_before, sql

pytestmark = pytest.mark.anyio

SETUP = SessionSetup(
    model=["sonnet", "llama"],
    system_prompt="You are brief.",
    tools=(
        ToolDefinition("weather", "Tells it.", {"type": "object", "properties": {"city": {"type": "string"}}}),
    ),
    fallback=("llama",),
    requires={"capabilities": ["supports_tools"], "min_context_tokens": 1000},
)


def configured(make: Maker, session: str = "s", history: int = 0, setup: SessionSetup = SETUP) -> Envelope:
    return make(SessionConfigured(history=history, setup=setup, begins=not history), session_id=session)


def count(store: TraceStore, query: str) -> int:
    ((found,),) = sql(store.path, query)
    return int(found)


def everything(store: TraceStore) -> bytes:
    """All bytes of the file and of its log."""
    return b"".join(path.read_bytes() for path in sorted(store.path.parent.iterdir()))


CONVERSATION = [
    Message(Role.USER, (TextBlock("What is this?"), ImageBlock(data=PICTURE)), id="msg_1"),
    Message(Role.ASSISTANT, (TextBlock("A picture."),), id="msg_2", metadata=METADATA),
]


async def test_a_session_comes_back_with_its_setup_ids_and_metadata(store: TraceStore, make: Maker) -> None:
    """All that resuming needs is there."""
    created = make(SessionCreated(model="sonnet", tags={"team": "a"}), session_id="s")
    await store.write([created, *captured(configured(make), *appended(make, CONVERSATION))])
    saved = await store.saved_session("s")
    assert saved is not None
    assert (saved.setup, saved.tags, saved.missing) == (SETUP, {"team": "a"}, ())
    assert list(saved.messages) == CONVERSATION == await store.messages("s")
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (2, True)


async def test_without_capture_nothing_of_the_content_reaches_the_file(store: TraceStore, make: Maker) -> None:
    """Messages go by, and neither they nor the setup leave a byte; the session can't be resumed."""
    await store.write([configured(make), *appended(make, CONVERSATION)])
    assert await store.saved_session("s") is None
    assert await store.messages("s") == []
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (0, False)
    for secret in (b"picture", b"brief", PICTURE[100:300]):
        assert secret not in everything(store)


async def test_events_carry_no_content_even_if_it_is_captured(store: TraceStore, make: Maker) -> None:
    """What is read from the events table has positions, roles and ids only."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    setup, question, answer = [envelope.data for envelope in await store.events()]
    assert setup == SessionConfigured(history=0, begins=True)
    assert isinstance(question, SessionMessageAppended)
    assert isinstance(answer, SessionMessageAppended)
    assert (question.message.content, answer.message) == ((), Message(Role.ASSISTANT, (), id="msg_2"))


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


async def test_writing_captured_events_again_changes_nothing(store: TraceStore, make: Maker) -> None:
    """As after a spill that was committed twice, in any order."""
    envelopes = captured(configured(make), *appended(make, CONVERSATION))
    await store.write(envelopes)
    first = await store.saved_session("s")
    await store.write(envelopes[::-1])
    for envelope in envelopes[::-1]:
        await store.write([envelope])
    assert await store.saved_session("s") == first


async def test_what_was_said_first_never_overwrites_what_was_said_later(store: TraceStore, make: Maker) -> None:
    """Of two messages at one place, or two setups, the later one of a run stays, in whatever order they come."""
    other = msgspec.structs.replace(SETUP, model="opus")
    begun = captured(configured(make), *appended(make, CONVERSATION))
    first = captured(configured(make, history=2), *appended(make, [Message.user("First")], first=1))
    later = captured(configured(make, history=2, setup=other), *appended(make, [Message.user("Later")], first=1))
    for batch in (begun, later, first):
        await store.write(batch)
    saved = await store.saved_session("s")
    assert saved is not None
    assert saved.setup == other
    assert [message.text for message in saved.messages] == ["What is this?", "Later"]


async def test_a_new_session_of_the_same_name_replaces_the_old_one(store: TraceStore, make: Maker) -> None:
    """What stood in the old one, and comes late or once more, does not come back."""
    old = captured(configured(make), *appended(make, [*CONVERSATION, *CONVERSATION]))
    await store.write(old)
    again = Maker("run_later")
    await store.write(captured(configured(again), *appended(again, [Message.user("Anew")])))
    await store.write(old)
    saved = await store.saved_session("s")
    assert saved is not None
    assert (list(saved.messages), saved.missing) == ([Message.user("Anew")], ())


async def test_a_clock_that_steps_back_loses_nothing(store: TraceStore, make: Maker) -> None:
    """What comes later counts as later, whatever its time."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    again = Maker("run_later")
    early = {"ts_us": T0 - 10**12}
    assert await store.claim_session("s", again.run_id, 0, 2)
    await store.write(captured(*appended(again, [Message.user("More")], first=2, **early)))
    assert await store.messages("s") == [*CONVERSATION, Message.user("More")]


async def test_a_change_of_setup_keeps_the_history(store: TraceStore, make: Maker) -> None:
    """As when the model is swapped."""
    other = msgspec.structs.replace(SETUP, model="opus")
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    await store.write(captured(configured(make, history=2, setup=other)))
    saved = await store.saved_session("s")
    assert saved is not None
    assert (present(saved.setup).model, len(saved.messages), saved.missing) == ("opus", 2, ())


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


async def test_content_that_is_no_json_is_withheld_and_the_rest_is_stored(store: TraceStore, make: Maker) -> None:
    """A host's own object in a tool's arguments must not cost the others of its batch."""
    odd = Message.assistant([ToolUseBlock("tu_1", "f", {"x": object()})])  # type: ignore[dict-item]
    await store.write(captured(configured(make), *appended(make, [Message.user("Hi"), odd])))
    saved = await store.saved_session("s")
    assert saved is not None
    assert saved.messages == (Message.user("Hi"),)
    assert saved.missing == ("message 1 was not stored (can't be stored: TypeError)",)


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


async def test_a_session_that_has_lost_its_beginning_says_so(store: TraceStore, make: Maker) -> None:
    """It is not passed off as whole."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    cut = make.started().ts_us
    await store.write(captured(*appended(make, [Message.user("More")], first=2)))
    await store.forget_content(cut)
    saved = await store.saved_session("s")
    assert saved is not None
    assert saved.messages == (Message.user("More"),)
    assert saved.missing[0] == "its setup is not stored"
    assert saved.missing[1:] == tuple(f"message {position} has expired or was lost" for position in (0, 1))
    (row,) = await store.sessions()
    assert not row.resumable


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


async def test_what_a_former_owner_still_says_is_kept_apart(store: TraceStore, make: Maker) -> None:
    """Two runs that go on with one session have two in the end, each whole: nothing is mixed, nothing lost."""
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
    assert kept is not None
    assert branch is not None
    assert [message.text for message in kept.messages[2:]] == ["Other", "Yes."]
    assert [message.text for message in branch.messages[2:]] == ["Mine", "Yours."]
    assert kept.messages[:2] == branch.messages[:2] == tuple(CONVERSATION)
    assert (kept.missing, branch.missing) == ((), ())
    assert (branch.setup, branch.tags) == (SETUP, {"team": "a"})
    assert {row.session_id: row.resumable for row in await store.sessions()}["s.run_test"]


async def test_who_takes_over_a_shorter_history_is_told(store: TraceStore, make: Maker) -> None:
    """What was appended between reading and claiming is seen; the owner stays who it was."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    assert not await store.claim_session("s", "run_other", 1, history=1)
    assert not await store.claim_session("unheard of", "run_other", 1, history=0)
    assert (await store.session_owner("s", "run_other"))[0] == "run_test"


async def test_a_session_begun_anew_is_not_mixed_with_the_late_end_of_the_old_one(
    store: TraceStore, make: Maker
) -> None:
    """The old one's end has lost its beginning, and says so."""
    await store.write(captured(configured(make), *appended(make, CONVERSATION)))
    again = Maker("run_later")
    anew = [Message.user("Anew"), Message.assistant("One."), Message.user("More")]
    await store.write(captured(configured(again), *appended(again, anew), configured(again, history=3)))
    await store.write(captured(*appended(make, [Message.user("Late")], first=2)))
    assert await store.messages("s") == anew
    branch = await store.saved_session("s.run_test")
    assert branch is not None
    assert ([message.text for message in branch.messages], len(branch.missing)) == (["Late"], 2)
