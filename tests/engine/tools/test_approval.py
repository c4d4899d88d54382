"""Who may run: the hook, the tool's own word, and what waits."""

from __future__ import annotations

import threading

import pytest

from callboard import ApprovalRequest, Approved, Denied, Pending, ToolAnnotations, tool
from callboard.engine.tools import Approval

from .rounds import Told, call, run


def make(ran: list[str], **options: object):  # type: ignore[no-untyped-def]
    """A tool that deletes files."""

    @tool(annotations=ToolAnnotations(destructive=True), **options)  # type: ignore[call-overload,untyped-decorator]
    async def delete(path: str) -> str:
        """Delete a file."""
        ran.append(path)
        return "deleted"

    return delete


async def test_the_hook_sees_the_call_and_the_tools_annotations() -> None:
    """What it needs to decide, before anything runs."""
    ran: list[str] = []
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Approval:
        assert ran == []
        assert threading.current_thread() is not threading.main_thread(), "it may ask a person at a terminal"
        asked.append(request)
        return Approved()

    await run([call("delete", {"path": "a"})], [make(ran)], approve=approve, session_id="ses_1")
    assert ran == ["a"]
    assert asked[0].arguments == {"path": "a"}
    assert asked[0].session_id == "ses_1"
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
async def test_a_denied_call_does_not_run_and_the_model_hears_why(approve: object, told: str) -> None:
    """The result is an error with the reason; a hook that fails or says nothing approves nothing."""
    ran: list[str] = []
    made = await run([call("delete", {"path": "a"})], [make(ran)], approve=approve)
    assert ran == []
    assert made.results[0].is_error
    assert made.results[0].text.startswith(told)


async def test_what_nobody_decided_waits_and_the_rest_runs() -> None:
    """A pending call has no result and no event; the others are done."""
    ran: list[str] = []
    told: Told = []

    async def approve(request: ApprovalRequest) -> Approval:
        return Pending() if request.arguments["path"] == "b" else Approved()

    calls = [call("delete", {"path": path}, tool_use_id=path) for path in "abc"]
    made = await run(calls, [make(ran)], told, approve=approve)
    assert sorted(ran) == ["a", "c"]
    assert [result.tool_use_id for result in made.results] == ["a", "c"]
    assert made.waiting == (calls[1],)
    assert {event.tool_use_id for event in told} == {"a", "c"}


async def test_a_tool_that_needs_approval_waits_when_there_is_no_hook() -> None:
    """And runs once its call was approved."""
    ran: list[str] = []
    made = await run([call("delete", {"path": "a"})], [make(ran, needs_approval=True)])
    assert (made.results, len(made.waiting), ran) == ((), 1, [])
    tools, calls = [make(ran, needs_approval=True)], [call("delete", {"path": "a"})]
    assert (await run(calls, tools, approved=frozenset({"tu_1"}))).results[0].text == "deleted"


async def test_a_tool_may_decide_for_each_call_and_may_opt_out() -> None:
    """A function of the request; False is never asked about."""
    ran: list[str] = []
    careful = make(ran, needs_approval=lambda request: request.arguments["path"].startswith("/etc"))
    calls = [call("delete", {"path": path}, tool_use_id=path) for path in ("/etc/x", "/tmp/y")]
    made = await run(calls, [careful])
    assert (made.waiting, ran) == ((calls[0],), ["/tmp/y"])
    await run([calls[0]], [make(ran, needs_approval=False)], approve=lambda request: Denied())
    assert ran == ["/tmp/y", "/etc/x"]


async def test_wrong_arguments_are_not_asked_about() -> None:
    """Nobody has to approve what can't run."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Approval:
        asked.append(request)
        return Approved()

    made = await run([call("delete", {})], [make([])], approve=approve)
    assert made.results[0].is_error
    assert asked == []


async def test_one_question_is_asked_at_a_time() -> None:
    """A person at a terminal can't answer two at once."""
    asking: list[str] = []

    def approve(request: ApprovalRequest) -> Approval:
        assert asking == []
        asking.append(request.call.id)
        threading.Event().wait(0.001)
        asking.pop()
        return Approved()

    calls = [call("delete", {"path": path}, tool_use_id=path) for path in "abcd"]
    assert len((await run(calls, [make([])], approve=approve)).results) == 4
