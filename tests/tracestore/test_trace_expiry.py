"""What was captured goes with the sessions that are pruned, and nothing of what another session still says."""

from __future__ import annotations

import pytest

from callboard import ActorStarted, ImageBlock, Message, SessionConfigured, SessionCreated, TextBlock, TraceStore
from callboard.tracestore.sql import expiry, pruning

from .content_making import SETUP, appended, captured, count, everything
from .trace_making import T0, Maker

pytestmark = pytest.mark.anyio

OLD, YOUNG, CUTOFF = T0, T0 + 10**12, T0 + 10**11
PICTURE = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
MANUAL = TextBlock("a manual that both of them were given " * 100)


async def keep(
    store: TraceStore, make: Maker, session: str, said: list[Message], ts_us: int, first: int = 0
) -> None:
    """A session whose messages are all said at one moment."""
    begun = [
        make(SessionCreated(model="sonnet"), session_id=session, ts_us=ts_us),
        make(SessionConfigured(history=0, setup=SETUP, begins=True), session_id=session, ts_us=ts_us),
    ]
    made = appended(make, said, session, first, ts_us=ts_us)
    await store.write(captured(*([] if first else begun), *made))


async def test_a_pruned_sessions_content_is_gone_from_the_file(store: TraceStore, make: Maker) -> None:
    """Messages, large blocks, media and setup, all overwritten; another session that is younger stays whole."""
    await keep(store, make, "old", [Message.user([TextBlock("the old secret"), PICTURE, MANUAL])], OLD)
    kept = [Message.user([TextBlock("the young one"), MANUAL])]
    await keep(store, make, "young", kept, YOUNG)
    report = await store.prune(before=CUTOFF)
    assert (report.sessions, report.bodies) == (1, 2)  # the message and the picture: manual and setup are shared
    assert await store.saved_session("old") is None
    assert await store.messages("young") == kept
    await store.close()
    for secret in (b"the old secret", PICTURE.data or b""):
        assert secret not in everything(store)


async def test_what_an_old_message_of_a_living_session_says_stays(store: TraceStore, make: Maker) -> None:
    """A session that goes on keeps its beginning, with the blocks that it shares with one that was pruned."""
    long_ago = [Message.user([TextBlock("look"), PICTURE]), Message.assistant([MANUAL])]
    await keep(store, make, "old", long_ago, OLD)
    await keep(store, make, "living", long_ago, OLD)
    await keep(store, make, "living", [Message.user("And now?")], YOUNG, first=2)
    report = await store.prune(before=CUTOFF)
    assert (report.sessions, report.bodies) == (1, 0)
    saved = await store.saved_session("living")
    assert saved is not None
    assert (list(saved.messages), saved.missing) == ([*long_ago, Message.user("And now?")], ())


async def test_many_sessions_go_in_several_steps(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of a step, all that is old is gone and nothing else."""
    monkeypatch.setattr(pruning, "SESSIONS_AT_ONCE", 2)
    monkeypatch.setattr(expiry, "BODIES_AT_ONCE", 3)
    for number in range(7):
        await keep(store, make, f"old {number}", [Message.user(f"Said {number}"), Message.user("Bye")], OLD)
    await keep(store, make, "young", [Message.user("Said 3")], YOUNG)
    report = await store.prune(before=CUTOFF)
    assert (report.sessions, report.bodies) == (7, 7)
    assert count(store, "SELECT count(*) FROM session_messages") == 1
    assert count(store, "SELECT count(*) FROM content") == 2
    assert (await store.messages("young"))[0].text == "Said 3"


async def test_a_dry_run_deletes_no_content(store: TraceStore, make: Maker) -> None:
    """It says nothing of sessions and bodies, and leaves them."""
    await keep(store, make, "old", [Message.user("Hi")], OLD)
    await store.write([make(ActorStarted(actor="x"), ts_us=YOUNG)])
    report = await store.prune(before=CUTOFF, dry_run=True)
    assert (report.events, report.bodies) == (3, 0)
    assert len(await store.messages("old")) == 1


async def test_the_run_that_a_session_belongs_to_keeps_its_number(store: TraceStore, make: Maker) -> None:
    """Its events may be gone; who else goes on with the session is still told from it."""
    await keep(store, make, "s", [Message.user("Hi")], OLD)
    later = Maker("run_later")
    await store.write([later(ActorStarted(actor="x"), session_id="s", ts_us=YOUNG)])
    await store.close_lost_runs()
    await store.prune(before=CUTOFF)
    assert await store.session_owner("s", "run_later") == ("run_test", 1)
