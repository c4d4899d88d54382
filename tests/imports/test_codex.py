"""The forms of Codex's files, each with the wrong count that it could cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bus import TokenUsage, UsageSource
from callboard.engine.imports.source import ImportedCall, Item, UnreadablePart
from callboard.engine.imports.sources.codex import Codex as CodexFiles
from tests.support.session_files import Codex, Record, counts, stamp, write


@pytest.fixture
def session() -> Codex:
    return Codex()


def items(*records: Record | str, tmp_path: Path, source: CodexFiles | None = None) -> list[Item]:
    path = write(tmp_path / "one.jsonl", records)
    source = source or CodexFiles()
    (file,) = source.files(path)
    with path.open("rb") as stream:
        return list(source.read(file, stream))


def calls(*records: Record | str, tmp_path: Path, source: CodexFiles | None = None) -> list[ImportedCall]:
    return [item for item in items(*records, tmp_path=tmp_path, source=source) if isinstance(item, ImportedCall)]


def test_sums_that_are_repeated_are_no_further_call(tmp_path: Path, session: Codex) -> None:
    records = [session.meta(), session.context(), session.tokens(counts(10, 5, 7)), session.tokens(None)]
    (call,) = calls(*records, session.tokens(None), tmp_path=tmp_path)
    assert call.usage == TokenUsage(10, 7, 5, reasoning_tokens=0)


def test_cached_input_and_reasoning_are_parts_of_the_counts(tmp_path: Path, session: Codex) -> None:
    (call,) = calls(session.meta(), session.tokens(counts(100, 900, 70, 60)), tmp_path=tmp_path)
    assert call.usage == TokenUsage(100, 70, 900, reasoning_tokens=60)


def test_without_the_last_usage_the_difference_of_the_sums_counts(tmp_path: Path, session: Codex) -> None:
    told = [session.tokens(counts(10 * n, n, n), with_last=False) for n in (1, 2, 3)]
    found = calls(session.meta(), *told, tmp_path=tmp_path)
    assert [call.usage and call.usage.input_tokens for call in found] == [10, 20, 30]


def test_sums_that_start_again_count_from_zero(tmp_path: Path, session: Codex) -> None:
    first = session.tokens(counts(100, 0, 10), with_last=False)
    session.sums = counts(0, 0, 0)
    second = session.tokens(counts(30, 0, 5), with_last=False)
    found = calls(session.meta(), first, second, tmp_path=tmp_path)
    assert [call.usage and call.usage.input_tokens for call in found] == [100, 30]


def test_a_call_has_the_model_of_its_turn(tmp_path: Path, session: Codex) -> None:
    records: list[Record] = [session.meta()]
    for model in ("gpt-5", "gpt-5.1-codex"):
        records += [session.context(model), session.tokens(counts(1, 0, 1))]
    found = calls(*records, tmp_path=tmp_path)
    assert [(call.provider, call.model) for call in found] == [("openai", "gpt-5"), ("openai", "gpt-5.1-codex")]


def test_a_call_without_a_known_model_has_no_invented_one(tmp_path: Path, session: Codex) -> None:
    (call,) = calls(session.meta(), session.tokens(counts(1, 0, 1)), tmp_path=tmp_path)
    assert call.model == "unknown"


def test_the_past_that_a_fork_copies_is_the_same_calls(tmp_path: Path, session: Codex) -> None:
    past = [session.meta(), session.context(), *(session.tokens(counts(n, 0, n)) for n in (1, 2, 3))]
    fork = Codex("01990000-0000-7000-8000-00000000000f")
    fork.sums = session.sums
    copied = [{**record, "timestamp": stamp(900)} for record in past]
    mine = calls(*past, tmp_path=tmp_path)
    theirs = calls(
        fork.meta(forked_from_id=session.session), *copied, fork.tokens(counts(5, 0, 5)), tmp_path=tmp_path
    )
    assert [call.identity for call in theirs[:3]] == [call.identity for call in mine]
    assert {call.session for call in theirs} == {fork.session}
    assert theirs[3].identity not in {call.identity for call in mine}


def test_sessions_with_the_same_counts_are_different_calls(tmp_path: Path) -> None:
    one, other = Codex(), Codex("01990000-0000-7000-8000-000000000002")
    ids = [
        calls(each.meta(), each.tokens(counts(1, 0, 1)), tmp_path=tmp_path)[0].identity for each in (one, other)
    ]
    assert len(set(ids)) == 2


def test_a_session_that_a_tool_started_hangs_below_the_turn_that_ran(tmp_path: Path, session: Codex) -> None:
    source = CodexFiles()
    calls(session.meta(), session.context(), session.tokens(counts(1, 0, 1)), tmp_path=tmp_path, source=source)
    child = Codex("01990000-0000-7000-8000-00000000000c")
    child.now = 10
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": session.session, "depth": 1}}}
    (call,) = calls(
        child.meta(source=spawned), child.context(), child.tokens(counts(1, 0, 1)), tmp_path=tmp_path,
        source=source,
    )  # fmt: skip
    assert (call.depth, call.parent_turn, call.root_turn) == (1, f"{session.session}-t1", f"{session.session}-t1")


def test_cached_tokens_beyond_the_input_have_no_price(tmp_path: Path, session: Codex) -> None:
    told = {**counts(1, 0, 1), "cached_input_tokens": 5}
    (call,) = calls(session.meta(), session.tokens(told), tmp_path=tmp_path)
    assert call.usage is not None
    assert call.usage.source is UsageSource.INCONSISTENT


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"token_count"\n', "not valid JSON"),
        ('{"type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":"x"}}}}\n',
         "unexpected value at $.payload.info.total_token_usage.input_tokens"),
        ('{"type":"event_msg","payload":{"type":"token_count","info":{"last_token_usage":{"input_tokens":-1}}}}\n',
         "a number of tokens is negative"),
        ('{"type":"event_msg","payload":{"type":"token_count","info":{"last_token_usage":{"input_tokens":1}}}}\n',
         "the time is missing or impossible"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_costs_one_line_in_the_report(
    line: str, why: str, tmp_path: Path, session: Codex
) -> None:
    found = items(session.meta(), line, session.tokens(counts(1, 0, 1)), tmp_path=tmp_path)
    assert [item for item in found if isinstance(item, UnreadablePart)] == [UnreadablePart(line=2, why=why)]
    assert sum(isinstance(item, ImportedCall) for item in found) == 1
