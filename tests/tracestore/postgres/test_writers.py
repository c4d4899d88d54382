"""Several processes and stores that write one trace at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from callboard.bus.events.envelope import Envelope
from callboard.bus.values.messages import Message
from tests.support.programs import started
from tests.tracestore.content_making import appended, captured, configured
from tests.tracestore.trace_making import Maker
from callboard.tracestore import PostgresStore

pytestmark = pytest.mark.anyio

_WRITE = """
import asyncio, sys
from callboard.tracestore import PostgresStore
from tests.tracestore.trace_making import Maker

async def main() -> None:
    make = Maker(sys.argv[3])
    async with PostgresStore(sys.argv[1], path=sys.argv[2]) as store:
        store.hold_run(make.run_id)
        for number in range(100):
            name = f"{make.run_id}_{number}"
            # The session and the tags are everybody's, in an order of each one's own.
            shared = [f"s{(number * 7 + len(name) + place) % 5}" for place in range(3)]
            batch = [make.started(f"{name}_{at}", session_id=at, tags={"team": at}) for at in shared]
            await store.write(batch + [make.completed(f"{name}_{at}", session_id=at) for at in shared])

asyncio.run(main())
"""


async def test_processes_that_write_at_once_wait_for_each_other_and_lose_nothing(dsn: str, tmp_path: Path) -> None:
    """And a reader that remembers the last number that it saw sees every event, once."""
    async with PostgresStore(dsn, path=tmp_path / "reader") as store:
        seen: list[Envelope] = []
        last = 0
        programs = [started(_WRITE, dsn, tmp_path / f"p{number}", f"run_{number}") for number in range(3)]
        with anyio.fail_after(60):
            while len(seen) < 3 * 600:
                found = await store.numbered_events(after_id=last, limit=50)
                if not found:
                    assert all(program.poll() in (None, 0) for program in programs)
                    await anyio.sleep(0.01)
                    continue
                seen += [envelope for _, envelope in found]
                last = found[-1][0]
        assert [program.communicate() for program in programs] == [("", "")] * 3
        for number in range(3):
            of_run = [envelope.seq for envelope in seen if envelope.run_id == f"run_{number}"]
            assert of_run == list(range(1, 601))
        assert await store.numbered_events(after_id=last) == []
        calls = await store.calls(limit=None)
        assert len(calls) == 900
        assert {call.status for call in calls} == {"completed"}
        assert sorted(row.calls for row in await store.sessions()) == sorted(
            sum(call.session_id == f"s{at}" for call in calls) for at in range(5)
        )
        assert (await store.sql("SELECT DISTINCT ending FROM runs")).rows == (("closed",),)


def said(make: Maker, session: str, texts: Sequence[str]) -> list[Envelope]:
    """A session's setup and what is said in it, as it is captured."""
    messages = [Message.user(text) for text in texts]
    return captured(configured(make, session), *appended(make, messages, session))


async def test_a_body_that_two_hosts_say_at_once_is_kept_once(dsn: str, tmp_path: Path) -> None:
    """Whichever of them is first."""
    texts = [f"{number} " * 600 for number in range(20)]
    stores = [PostgresStore(dsn, path=tmp_path / f"p{number}") for number in range(3)]
    for store in stores:
        await store.open()
    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            turned = texts[number:] + texts[:number]
            group.start_soon(store.write, said(Maker(f"run_{number}"), f"ses_{number}", turned))
    for number, store in enumerate(stores):
        messages = await store.messages(f"ses_{number}")
        assert [message.text for message in messages] == texts[number:] + texts[:number]
    large = await stores[0].sql("SELECT count(*) FROM content WHERE length(body) > 1000")
    assert large.rows == ((20,),)
    for store in stores:
        await store.close()


async def test_a_session_that_two_hosts_resume_goes_on_twice(dsn: str, tmp_path: Path) -> None:
    """The one that claims it last has it; what the other still says is kept under a name of its own."""
    first, one, two = Maker("run_first"), Maker("run_one"), Maker("run_two")
    async with (
        PostgresStore(dsn, path=tmp_path / "one") as here,
        PostgresStore(dsn, path=tmp_path / "two") as there,
    ):
        await here.write(said(first, "ses", ["Hello."]))
        assert await here.claim_session("ses", "run_one", 0, 1)
        assert await there.claim_session("ses", "run_two", 0, 1)
        assert await here.session_owner("ses", "run_one") == ("run_two", 0)
        await here.write(captured(*appended(one, [Message.user("From one.")], "ses", first=1)))
        await there.write(captured(*appended(two, [Message.user("From two.")], "ses", first=1)))
        assert [message.text for message in await here.messages("ses")] == ["Hello.", "From two."]
        assert [message.text for message in await there.messages("ses.run_one")] == ["Hello.", "From one."]
        assert not await here.claim_session("ses", "run_one", 0, 1)
