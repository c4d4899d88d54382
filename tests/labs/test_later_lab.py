"""A short round of `labs/later`, which plays hundreds of rounds. Its checks find injected errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labs.later.checks import due_of, unsure_of, wrong_in_batch, wrong_in_replies
from labs.later.plan import BATCH_FAULTS, REPLY_FAULTS, Batch, Question, plan_of
from labs.later.round import run_round

SEED = 7
BATCH = Batch("b", "openai", ("one", "fail"), most=2, cancelled=False, handed_out=False)
QUESTION = Question("q", "say so", "whole")


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)  # the test starts whole engines, and the machine may be busy
def test_batches_and_background_replies_are_complete_and_paid_once(tmp_path: Path) -> None:
    """Programs are killed during batches and background replies. The last program gets every result."""
    counts, wrong = run_round(SEED, tmp_path)
    assert wrong == [], f"python -m labs.later --seed {SEED} --seconds 0"
    assert counts["programs: hosts"] > len(plan_of(SEED).lives)
    assert counts["requests in batches"]
    assert counts["questions"]


def test_a_seed_always_gives_the_same_plan() -> None:
    """A few seeds have every fault, every way to call, and batches that are split, cancelled or handed out."""
    plans = [plan_of(seed) for seed in range(60)]
    assert plans == [plan_of(seed) for seed in range(60)]
    lives = [life for plan in plans for life in plan.lives]
    assert {fault for life in lives for fault in life.batch_faults} == set(BATCH_FAULTS)
    assert {fault for life in lives for fault in life.reply_faults} == set(REPLY_FAULTS)
    asked = [question for plan in plans for question in plan.questions]
    assert {question.how for question in asked} == {"whole", "streamed", "session", "cancelled"}
    batches = [batch for plan in plans for batch in plan.batches]
    assert {len(batch.texts) > batch.most for batch in batches} == {True, False}
    assert {(batch.cancelled, batch.handed_out) for batch in batches} >= {(True, False), (False, True)}
    besides = {"nothing", "resumes", "creates"}
    assert {life.beside for life in lives} == {plan.peace_beside for plan in plans} == besides


def job(*keys: str) -> dict[str, Any]:
    return {"keys": keys, "results": {"b-0": "answered", "b-1": "failed"}}


def test_a_request_that_is_in_two_jobs_or_in_none_is_found() -> None:
    twice = {"jobs": [job("b-0", "b-1"), job("b-0")]}
    assert "b-0: made 2 times" in list(wrong_in_batch(BATCH, twice, [], []))
    lost = {"jobs": [job("b-0")]}
    assert "b-1: made 0 times" in list(wrong_in_batch(BATCH, lost, [], []))


def test_missing_and_reordered_results_are_found() -> None:
    """A price that is wrong by a nano-dollar and a result that the trace lacks are found, too."""
    books = {"jobs": [job("b-0", "b-1")]}
    due, _ = due_of(BATCH, books)
    assert due is not None
    good = [["r0", "answer to one", None, due.nano], ["r1", None, "InvalidRequestError", 0]]
    not_in_the_trace = list(wrong_in_batch(BATCH, books, [], [good]))
    assert [line.partition(":")[0] for line in not_in_the_trace] == ["b-0", "b-1"]
    assert unsure_of(BATCH, [["results", "b", good]]) == []
    assert unsure_of(BATCH, [["results", "b", [good[0], ["r1", None, "OutcomeUnknownError", None]]]])
    assert unsure_of(BATCH, [])
    for bad in (
        [*reversed(good)],
        good[:1],
        [["r0", "answer to one", None, due.nano + 1], good[1]],
        [["r0", "answer to two", None, due.nano], good[1]],
        [good[0], ["r1", "answer to fail", None, 0]],
    ):
        assert len(list(wrong_in_batch(BATCH, books, [], [bad]))) > len(not_in_the_trace)


def test_a_reply_that_is_generated_twice_is_found() -> None:
    """A wrong reply, a missing row, and a price that differs from the bill are found, too."""
    one = {"status": "completed", "words": "say so"}
    books = {"made": {"resp_1": one}, "bill": {"resp_1": (1013, 7)}}
    assert list(wrong_in_replies(QUESTION, books, [], {}, [["so", None]])) == []
    assert list(wrong_in_replies(QUESTION, books, [], {}, [["or so", None]]))
    assert list(wrong_in_replies(QUESTION, books, [], {}, [["so", 1]]))
    assert list(wrong_in_replies(QUESTION, books, [], {("req_1", 1): "resp_1"}, []))  # the call has no row
    twice = {"made": {"resp_1": one, "resp_2": one}, "bill": {"resp_1": (1013, 7), "resp_2": (1013, 7)}}
    assert list(wrong_in_replies(QUESTION, twice, [], {}, []))
