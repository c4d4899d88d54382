"""The forms of Claude Code's files, each with the wrong count that it could cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bus import StopReason, TokenUsage
from callboard.engine.imports.source import LONGEST_LINE, ImportedCall, Item, Mark, UnreadablePart
from callboard.engine.imports.sources.claude_code import ClaudeCode
from tests.support.session_files import Claude, Record, stamp, usage, write


@pytest.fixture
def session() -> Claude:
    return Claude()


def items(*records: Record | str, tmp_path: Path, source: ClaudeCode | None = None) -> list[Item]:
    path = write(tmp_path / "-src-shop" / "one.jsonl", records)
    source = source or ClaudeCode()
    (file,) = source.files(path)
    with path.open("rb") as stream:
        return list(source.read(file, stream))


def calls(*records: Record | str, tmp_path: Path, source: ClaudeCode | None = None) -> list[ImportedCall]:
    return [item for item in items(*records, tmp_path=tmp_path, source=source) if isinstance(item, ImportedCall)]


def test_of_the_lines_of_one_reply_the_one_with_the_most_tokens_counts(tmp_path: Path, session: Claude) -> None:
    parts = [session.reply(1, usage(3, out), stop=stop) for out, stop in ((1, None), (1, None), (240, "end_turn"))]
    (call,) = calls(session.prompt(), *parts, tmp_path=tmp_path)
    assert call.usage is not None
    assert (call.usage.output_tokens, call.stop_reason, call.line) == (240, StopReason.END_TURN, 4)
    assert call.identity == "msg_1:req_1"


def test_a_fallback_in_a_reply_is_counted_by_its_last_model(tmp_path: Path, session: Claude) -> None:
    """The line with the most output is counted as a whole, even if another model read more from the cache."""
    first = session.reply(1, usage(2, 1, 9000), model="claude-opus-4-1-20250805", stop=None)
    last = session.reply(1, usage(2, 260, 4000), model="claude-sonnet-4-5-20250929")
    (call,) = calls(first, last, tmp_path=tmp_path)
    assert (call.model, call.usage) == ("claude-sonnet-4-5-20250929", TokenUsage(2, 260, 4000))


def test_tokens_go_into_disjoint_buckets_with_the_hour_apart(tmp_path: Path, session: Claude) -> None:
    told = usage(3, 50, 1000, 200, 300, server_tool_use={"web_search_requests": 2}, service_tier="priority")
    (call,) = calls(session.reply(1, told), tmp_path=tmp_path)
    assert call.usage == TokenUsage(3, 50, 1000, 500, 300, details={"web_search": 2}, service_tier="priority")
    (call,) = calls(session.reply(1, usage(speed="fast")), tmp_path=tmp_path)
    assert call.usage is not None
    assert call.usage.service_tier == "fast"


@pytest.mark.parametrize("how", [{"model": "<synthetic>"}, {"isApiErrorMessage": True}])
def test_messages_that_the_program_made_itself_are_no_calls(how: Record, tmp_path: Path, session: Claude) -> None:
    assert calls(session.reply(1, usage(0, 0), **how), tmp_path=tmp_path) == []


def test_old_versions_state_a_cost_and_a_duration(tmp_path: Path, session: Claude) -> None:
    (call,) = calls(session.reply(1, costUSD=0.0123, durationMs=4200, request=None), tmp_path=tmp_path)
    assert (call.stated_cost_nano_usd, call.latency_ms, call.identity) == (12_300_000, 4200, "msg_1")


def test_a_line_without_its_request_belongs_to_the_reply_before_it(tmp_path: Path, session: Claude) -> None:
    lines = [session.reply(1, usage(3, 5)), session.reply(1, usage(3, 9), request=None)]
    (call,) = calls(*lines, tmp_path=tmp_path)
    assert call.usage is not None
    assert (call.identity, call.usage.output_tokens) == ("msg_1:req_1", 9)


def test_a_project_is_the_folder_in_which_the_program_was_started(tmp_path: Path, session: Claude) -> None:
    first = session.reply(1)
    session.cwd = "/src/shop/inner"
    second = session.reply(2)
    assert [call.tags for call in calls(first, second, tmp_path=tmp_path)] == [
        {"project": "/src/shop", "branch": "main"}
    ] * 2


def test_a_file_of_a_sub_agent_hangs_below_the_reply_that_started_it(tmp_path: Path, session: Claude) -> None:
    source = ClaudeCode()
    prompt = session.prompt()
    main = calls(
        prompt, session.task(1, "toolu_1"), session.result("toolu_1", toolUseResult={"agentId": "a1"}),
        session.reply(2), tmp_path=tmp_path, source=source,
    )  # fmt: skip
    (side,) = calls(session.reply(3, isSidechain=True, agentId="a1"), tmp_path=tmp_path, source=source)
    assert (main[0].turn, main[1].turn, main[0].depth) == (prompt["uuid"], prompt["uuid"], None)
    assert (side.parent, side.parent_tool_use_id, side.depth) == ("msg_1:req_1", "toolu_1", 1)
    assert (side.parent_turn, side.root_turn, side.session) == (prompt["uuid"], prompt["uuid"], session.session)


def test_a_sidechain_in_the_same_file_hangs_below_the_tool_call_before_it(tmp_path: Path, session: Claude) -> None:
    task = session.task(1, "toolu_1")
    main = session.last
    session.last = None
    side = [session.prompt("Look", isSidechain=True), session.reply(2, isSidechain=True)]
    side += [session.result("toolu_9", isSidechain=True), session.reply(3, isSidechain=True)]
    session.last = main
    found = calls(task, *side, session.result("toolu_1"), session.reply(4), tmp_path=tmp_path)
    assert [(call.identity, call.parent, call.depth) for call in found] == [
        ("msg_1:req_1", None, None),
        ("msg_2:req_2", "msg_1:req_1", 1),
        ("msg_3:req_3", "msg_1:req_1", 1),
        ("msg_4:req_4", None, None),
    ]
    assert found[1].turn == found[2].turn != found[3].turn


def test_a_sub_agent_in_progress_lines_is_the_same_call_as_in_its_file(tmp_path: Path, session: Claude) -> None:
    task, inner = session.task(1, "toolu_1"), session.reply(2)
    progress = session.line(
        "progress",
        parentToolUseID="toolu_1",
        data={"type": "agent_progress", "agentId": "a1", "message": {**inner, "type": "assistant"}},
    )
    found = calls(task, progress, tmp_path=tmp_path)
    assert [(call.identity, call.parent) for call in found] == [
        ("msg_1:req_1", None),
        ("msg_2:req_2", "msg_1:req_1"),
    ]


@pytest.mark.parametrize(("line", "why"), [
    ("{not json\n", "not valid JSON"),
    ('{"type":"assistant","usage":}\n', "not valid JSON"),
    ('{"type":"assistant","message":{"usage":{},"id":7}}\n', "unexpected value at $.message.id"),
    ('{"type":"assistant","timestamp":"soon","message":{"usage":{}}}\n', "unexpected value at $.timestamp"),
    ('{"type":"assistant","message":{"usage":{"output_tokens":1}}}\n', "the time is missing or impossible"),
    ('{"usage":"' + "x" * LONGEST_LINE + '"}\n', "the line is too long"),
    ('{"usage":' + "[" * 5000 + "]" * 5000 + "}\n", "not valid JSON"),
    ("\x00\x00\x00\n", "not valid JSON"),
])  # fmt: skip
def test_a_line_that_cannot_be_read_costs_one_line_in_the_report(
    line: str, why: str, tmp_path: Path, session: Claude
) -> None:
    found = items(line, session.reply(1), tmp_path=tmp_path)
    assert [item for item in found if isinstance(item, UnreadablePart)] == [UnreadablePart(line=1, why=why)]
    assert [item.identity for item in found if isinstance(item, ImportedCall)] == ["msg_1:req_1"]


def test_a_line_that_is_still_written_is_read_again(tmp_path: Path, session: Claude) -> None:
    found = items(session.reply(1), '{"type":"assis', tmp_path=tmp_path)
    mark = found[-1]
    assert isinstance(mark, Mark)
    assert mark.line == 1
    assert UnreadablePart(line=2, why="the last line is incomplete") in found


def test_the_time_of_a_call_is_that_of_its_first_line(tmp_path: Path, session: Claude) -> None:
    lines = [session.reply(1, usage(3, 5)), session.reply(1, usage(3, 9))]
    (call,) = calls(*lines, tmp_path=tmp_path)
    assert lines[0]["timestamp"] == stamp(1)
    assert call.started_at == 1_772_355_601_000_000
