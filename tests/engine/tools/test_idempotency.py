"""Approvals of tool calls, and the idempotency key of a call, which stays the same over approvals, restarts and
kills.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import ApprovalRequest, Approved, Denied, Pending, ToolAnnotations, tool
from callboard.adapters import Message, Role, ToolUseBlock
from callboard.engine import ToolContext
from callboard.engine.tools import Approval
from callboard.engine.tools.context import idempotency_key
from tests.support.engines import keeping, registry, running
from tests.support.programs import ended
from tests.support.scripted import Say

from .rounds import Told, call, run

keys: list[str] = []


@pytest.fixture(autouse=True)
def no_keys() -> None:
    keys.clear()


@tool
async def pay(euros: int, context: ToolContext) -> str:
    """Pay."""
    keys.append(context.idempotency_key)
    return f"paid {euros}"


PAY = Say(calls=[("pay", {"euros": 5})])
TWICE = Say(calls=[("pay", {"euros": 5}), ("pay", {"euros": 5})])


async def test_each_call_has_a_key_of_its_own() -> None:
    """Keys differ between two calls of one reply, between rounds, between turns, and without a session."""
    async with running(TWICE, PAY, Say("done"), *[PAY, Say("done")] * 3) as (engine, _):
        session = engine.session("s:m", tools=[pay])
        await session.send("go", max_tool_rounds=5)
        await session.send("go", max_tool_rounds=5)
        await engine.generate("s:m", "go", tools=[pay])
        await engine.generate("s:m", "go", tools=[pay])
    assert len(keys) == len(set(keys)) == 6
    assert all(str(UUID(key)) == key for key in keys)


async def test_an_approved_call_has_the_same_key_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    models = registry(PAY, Say("done"), Say("done"))
    async with keeping(path, models=models) as engine:
        session = engine.session("s:m", tools=[pay], approve=lambda request: Pending())
        await session.send("go")
        fork, document = session.fork(), session.export()
        expected = idempotency_key(session.id, session.messages, session.pending_calls[0].id)
    async with keeping(path, models=models) as engine:
        session = await engine.resume(session.id, tools=[pay])
        await session.submit({session.pending_calls[0].id: Approved()})
    async with keeping(tmp_path / "other.db", models=models) as engine:
        session = await engine.import_session(document, tools=[pay])
        await session.submit({session.pending_calls[0].id: Approved()})
    assert keys == [expected, expected]
    assert idempotency_key(fork.id, fork.messages, fork.pending_calls[0].id) != expected, (
        "a call in a fork must have another key"
    )


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.engine.tools.test_idempotency import PAY
from tests.support.engines import keeping
from callboard import ToolContext, tool

@tool
async def pay(euros: int, context: ToolContext) -> str:
    "Pay."
    print(context.idempotency_key, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with keeping(Path(sys.argv[1]), PAY) as engine:
        await engine.session("s:m", session_id="x", tools=[pay]).send("go")

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
async def test_a_call_whose_process_was_killed_has_the_same_key_again(tmp_path: Path) -> None:
    killed = ended(KILLED, tmp_path / "trace.db")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with keeping(tmp_path / "trace.db", Say("done")) as engine:
        session = await engine.resume("x", tools=[pay])
        assert (await session.submit({session.pending_calls[0].id: Approved()})).text == "done"
    assert keys == [killed.stdout.strip()]


async def test_steering_a_turn_changes_no_key() -> None:
    async with running(TWICE, Say("done")) as (engine, _):
        session = engine.session("s:m", tools=[pay])
        async with session.stream("go") as turn:
            turn.steer("more")
            await turn.message()
        made_by = session.messages[2]
        before = [idempotency_key(session.id, session.messages[:3], call.id) for call in made_by.tool_uses]
    assert keys == before


def test_a_context_that_a_test_makes_has_a_key() -> None:
    one, other = (ToolContext(tool_call_id=name, tool_name="pay").idempotency_key for name in ("tu_1", "tu_2"))
    assert one != other


def test_the_key_never_changes() -> None:
    """A call may wait for its approval in a trace file."""
    reply = Message(Role.ASSISTANT, (ToolUseBlock("tu_1", "pay", {}),), id="msg_1")
    assert idempotency_key("ses_1", [reply], "tu_1") == "a1043eb1-c0d9-5e45-bc79-401386d90aa9"
    nameless = msgspec.structs.replace(reply, id=None)
    assert len({idempotency_key("ses_1", [nameless] * count, "tu_1") for count in (1, 2)}) == 2


ids = st.text(max_size=6)


@given(one=st.tuples(ids, ids, ids), other=st.tuples(ids, ids, ids))
def test_different_calls_have_different_keys(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:

    def key(session: str, message: str, call: str) -> str:
        return idempotency_key(session, [Message(Role.ASSISTANT, (), id=message or "m")], call)

    same = (one[0], one[1] or "m", one[2]) == (other[0], other[1] or "m", other[2])
    assert (key(*one) == key(*other)) is same


# Approval: the hook, the setting of the tool, and pending calls.


def make(ran: list[str], **options: object):  # type: ignore[no-untyped-def]
    """A tool that deletes files."""

    @tool(annotations=ToolAnnotations(destructive=True), **options)  # type: ignore[call-overload,untyped-decorator]
    async def delete(path: str) -> str:
        """Delete a file."""
        ran.append(path)
        return "deleted"

    return delete


async def test_the_hook_sees_the_call_and_the_tools_annotations() -> None:
    ran: list[str] = []
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Approval:
        assert ran == []
        assert threading.current_thread() is not threading.main_thread(), (
            "the hook must run in a thread, because it may ask a person at a terminal"
        )
        asked.append(request)
        return Approved()

    await run([call("delete", {"path": "a"})], [make(ran)], approve=approve, session_id="ses_1")
    assert ran == ["a"]
    assert (asked[0].arguments, asked[0].session_id) == ({"path": "a"}, "ses_1")
    assert asked[0].definition.annotations == ToolAnnotations(destructive=True)


@pytest.mark.parametrize(
    ("approve", "told"),
    [
        (lambda request: Denied("keep off"), "The call was not approved: keep off"),
        (lambda request: True, ""),
        (lambda request: Approved, ""),
        (lambda request: 1 / 0, ""),
    ],
)
async def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(approve: object, told: str) -> None:
    """The result is an error with the reason. A hook that fails or returns no decision approves nothing."""
    ran: list[str] = []
    made = await run([call("delete", {"path": "a"})], [make(ran)], approve=approve)
    assert ran == []
    assert made.results[0].is_error
    assert made.results[0].text.startswith(told)


async def test_a_pending_call_waits_and_the_others_run() -> None:
    ran: list[str] = []
    events: Told = []

    async def approve(request: ApprovalRequest) -> Approval:
        return Pending() if request.arguments["path"] == "b" else Approved()

    calls = [call("delete", {"path": path}, tool_use_id=path) for path in "abc"]
    made = await run(calls, [make(ran)], events, approve=approve)
    assert sorted(ran) == ["a", "c"]
    assert [result.tool_use_id for result in made.results] == ["a", "c"]
    assert made.waiting == (calls[1],)
    assert {event.tool_use_id for event in events} == {"a", "c"}


async def test_a_tool_that_needs_approval_waits_without_a_hook() -> None:
    ran: list[str] = []
    made = await run([call("delete", {"path": "a"})], [make(ran, needs_approval=True)])
    assert (made.results, len(made.waiting), ran) == ((), 1, [])
    tools, calls = [make(ran, needs_approval=True)], [call("delete", {"path": "a"})]
    assert (await run(calls, tools, approved=frozenset({"tu_1"}))).results[0].text == "deleted"


async def test_a_tool_decides_for_each_call_whether_it_needs_approval() -> None:
    ran: list[str] = []
    careful = make(ran, needs_approval=lambda request: request.arguments["path"].startswith("/etc"))
    calls = [call("delete", {"path": path}, tool_use_id=path) for path in ("/etc/x", "/tmp/y")]
    made = await run(calls, [careful])
    assert (made.waiting, ran) == ((calls[0],), ["/tmp/y"])
    await run([calls[0]], [make(ran, needs_approval=False)], approve=lambda request: Denied())
    assert ran == ["/tmp/y", "/etc/x"]


async def test_a_call_with_wrong_arguments_needs_no_approval() -> None:
    """The hook is not called for a call that can't run."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Approval:
        asked.append(request)
        return Approved()

    made = await run([call("delete", {})], [make([])], approve=approve)
    assert made.results[0].is_error
    assert asked == []


async def test_one_approval_is_requested_at_a_time() -> None:
    """A person at a terminal can't answer two requests at the same time."""
    asking: list[str] = []

    def approve(request: ApprovalRequest) -> Approval:
        assert asking == []
        asking.append(request.call.id)
        threading.Event().wait(0.001)
        asking.pop()
        return Approved()

    calls = [call("delete", {"path": path}, tool_use_id=path) for path in "abcd"]
    assert len((await run(calls, [make([])], approve=approve)).results) == 4
