"""Derives the correct results from the plan and the providers' records, and compares results and trace with
them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from callboard.bus import LlmCallAccepted
from callboard.bus.values.usage import UsageSource
from callboard.tracestore import CallRow
from tests.support.background_engines import nano_of as nano_of_reply
from tests.support.background_server import WORDS
from tests.support.batch_engines import nano_of

from .plan import Batch, Plan, Question
from .program import REPLIES, engine_at

UNSURE = ("OutcomeUnknownError", "CancelledError")
"""The errors of requests whose sending the program did not see. They are not counted."""

UNKNOWN = ("OutcomeUnknownError", "ProcessLost")
"""The errors of calls whose cost is unknown. A budget reserves their maximum cost."""

WHOLE = ("completed", "incomplete")

NOWHERE = "http://127.0.0.1:9"
NO_END_TOLD = "background_not_cancelled"
"""The program stopped waiting for a reply and could not cancel it at the provider in time. Its cost is an
estimate.
"""


class Due(msgspec.Struct, frozen=True):
    """The correct result of a request of a batch."""

    text: str | None
    nano: int


def unsure_of(batch: Batch, told: Sequence[list[Any]]) -> list[Any]:
    """The results of a batch that the last program has not reported."""
    of_batch = [line[2] for line in told if line[:2] == ["results", batch.name]]
    return [each for each in of_batch[0] if each[2] in UNSURE and each[3] is None] if of_batch else ["no results"]


def due_of(batch: Batch, books: dict[str, Any]) -> list[Due | None]:
    """The correct result of each request of a batch; None if no job contains it, or several do."""
    found: list[Due | None] = []
    for place, text in enumerate(batch.texts):
        key = f"{batch.name}-{place}"
        jobs = [job for job in books["jobs"] if key in job["keys"]]
        answered = any(job["results"].get(key) == "answered" for job in jobs)
        due = Due(f"answer to {text}", nano_of(batch.wire, text)) if answered else Due(None, 0)
        found.append(due if len(jobs) == 1 else None)
    return found


def words_of(question: Question) -> str | None:
    """The answer to a question; None if it fails."""
    fate, _, behind = question.words.partition(" ")
    return {"say": behind, "short": WORDS[:18]}.get(fate)


async def wrong_in(
    plan: Plan, books: dict[str, Any], told: Sequence[list[Any]], store: Path, counts: Counter[str]
) -> list[str]:
    """Compare results and trace with the plan. `store` is the trace, which no process has open."""
    async with engine_at(NOWHERE, NOWHERE, str(store)) as engine:
        await engine.start()
        wrong = [f"reply {reply.response_id} is open" for reply in await engine.open_replies()]
        assert engine.store is not None
        rows = await engine.store.calls(limit=None)
        accepted = {
            (event.request_id or "", event.attempt or 0): event.data.response_id
            for event in await engine.store.events(topic="llm.call_accepted", limit=None)
            if isinstance(event.data, LlmCallAccepted)
        }
        (budget,) = await engine.budgets()
        known_cost = sum(row.cost.nano_usd or 0 for row in rows if row.cost and row.error_type not in UNKNOWN)
        if (budget.spent.money, budget.held.money) != (known_cost, 0):
            wrong.append(f"the budget says {budget.spent}, {budget.held} held; the calls cost {known_cost}")
        for question in plan.questions:
            if question.how == "session":
                session = await engine.open_session(question.name, model=REPLIES)
                texts = [message.text for message in session.messages]
                wrong += _wrong_in_session(question, texts, rows)
    wrong += [f"call {row.request_id} is open" for row in rows if row.status == "started"]
    for batch in plan.batches:
        results = [line[2] for line in told if line[:2] == ["results", batch.name]]
        of_batch = [row for row in rows if row.request_id.startswith(f"{batch.name}-")]
        wrong += wrong_in_batch(batch, books["batches"], of_batch, results)
        counts["results told"] += sum(map(len, results))
    heard = {line[2] for line in told if line[:2] == ["event", "llm.call_accepted"]}
    wrong += [f"reply {one} was told and is not in the trace" for one in heard - set(accepted.values())]
    if not any(line[0] == "log" and NO_END_TOLD in line[2] for line in told):
        for question in plan.questions:
            answers = [line[2:] for line in told if line[:2] == ["answered", question.name]]
            of_question = [row for row in rows if row.tags.get("question") == question.name]
            wrong += wrong_in_replies(question, books["replies"], of_question, accepted, answers)
            counts["answers told"] += len(answers)
    else:
        counts["rounds with an estimate"] += 1
    names = {batch.name for batch in plan.batches}
    wrong += [
        f"row {row.request_id} is nobody's"
        for row in rows
        if row.operation == "batch" and row.request_id.rpartition("-")[0] not in names
    ]
    return wrong


# -- batches


def wrong_in_batch(
    batch: Batch, books: dict[str, Any], rows: Sequence[CallRow], told: Sequence[list[list[Any]]]
) -> Iterator[str]:
    """The faults of one batch.

    Args:
        batch: The batch.
        books: The records of its provider.
        rows: The calls of its requests in the trace.
        told: Its results, once for each report.
    """
    dues = due_of(batch, books)
    by_place = defaultdict(list)
    for row in rows:
        by_place[row.request_id].append(row)
    for place, due in enumerate(dues):
        key = f"{batch.name}-{place}"
        made = sum(key in job["keys"] for job in books["jobs"])
        if due is None:
            yield f"{key}: made {made} times"
            continue
        costs = [(row.status == "completed", row.cost and row.cost.nano_usd) for row in by_place[key]]
        if costs not in ([(due.text is not None, due.nano)], *([[(False, None)]] if due.text is None else [])):
            yield f"{key}: due is {due}, and the trace says {costs}"
    for results in told:
        yield from _wrong_in_results(batch, dues, results)


def _wrong_in_results(batch: Batch, dues: Sequence[Due | None], results: list[list[Any]]) -> Iterator[str]:
    names = [f"r{place}" for place in range(len(batch.texts))]
    order = [name for name, *_ in results]
    if sorted(order) != sorted(names) or (order != names and not batch.handed_out):
        yield f"{batch.name}: results came as {order}"
        return
    for name, text, error, nano in results:
        due = dues[int(name[1:])]
        if error in UNSURE and nano is None:
            continue
        if due is None or text != due.text or (nano or 0) != due.nano or (text is None) != (error is not None):
            yield f"{batch.name}: {name} was told as {text!r}, {error}, {nano}, and due is {due}"


# -- replies


def wrong_in_replies(
    question: Question,
    books: dict[str, Any],
    rows: Sequence[CallRow],
    accepted: dict[tuple[str, int], str],
    answers: Sequence[list[Any]],
) -> Iterator[str]:
    """The faults of the replies to one question.

    Args:
        question: The question.
        books: The records of its provider.
        rows: Its calls in the trace.
        accepted: The provider's ids of all replies in the trace, by call and attempt.
        answers: Text and cost, once for each report.
    """
    made = {name: one["status"] for name, one in books["made"].items() if one["words"] == question.words}
    bill = {name: nano_of_reply(*books["bill"][name]) for name in made if name in books["bill"]}
    if len(bill) > 1 or (len(made) > 1 and not question.words.startswith("fail")):
        yield f"{question.name}: made {made}, billed {bill}"
    counts = Counter(accepted.get((row.request_id, row.attempt), "") for row in rows)
    for name in made.keys() & set(accepted.values()):
        if counts[name] != 1:
            yield f"{question.name}: {counts[name]} rows of {name}"
    for row in rows:
        name = accepted.get((row.request_id, row.attempt))
        cost = row.cost and row.cost.nano_usd
        if name is None:
            if row.status == "completed":
                yield f"{question.name}: completed, and no reply was accepted"
        elif name not in made:
            yield f"{question.name}: {name} is none of its replies {made}"
        elif row.status != "completed" and row.usage is not None and row.usage.source is UsageSource.ESTIMATED:
            if name in bill:
                yield f"{question.name}: {name} is billed {bill[name]}, and the trace has an estimate"
        elif cost != bill.get(name) and (cost or name in bill):
            yield f"{question.name}: {name} is billed {bill.get(name)}, and the trace says {row.status} {cost}"
        elif question.how != "cancelled" and (row.status == "completed") != (made[name] in WHOLE):
            yield f"{question.name}: {name} is {made[name]}, and the trace says {row.status}"
    for text, nano in answers:
        if question.how != "cancelled" and text != words_of(question):
            yield f"{question.name}: answered with {text!r}"
        if nano is not None and nano not in bill.values():
            yield f"{question.name}: told to cost {nano}, and billed is {bill}"


def _wrong_in_session(question: Question, texts: list[str], rows: Sequence[CallRow]) -> Iterator[str]:
    whole = any(row.session_id == question.name and row.status == "completed" for row in rows)
    if texts != ([question.words, words_of(question)] if whole else []):
        yield f"{question.name}: its history is {texts}, whole: {whole}"
