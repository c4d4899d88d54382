"""The adapters read recorded traffic of real providers correctly, in any pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard import PriceRow, PriceTable
from labs.recordings import agreement, costs, embeddings
from tests.support.recordings import FOLDER, needs_recordings


@pytest.mark.deep("all recorded traffic")
@needs_recordings
@pytest.mark.timeout(300)
def test_recorded_traffic_is_read_correctly() -> None:
    """At least 98 % of the exchanges agree in every field. There is no exception but AdapterError, and no broken
    invariant.
    """
    text, good = agreement.run(FOLDER)
    assert good, text


@needs_recordings
def test_recorded_costs_agree_or_differ_for_a_reason() -> None:
    """Every stated cost is kept. If Callboard's price differs, the parts of the bill give the reason."""
    bills = list(costs.read(FOLDER, PriceTable.default()))
    text, good = costs.report(bills)
    assert good, text
    assert sum(bill.agrees for bill in bills) >= len(bills) // 2


def test_an_unexplained_stated_cost_is_found(tmp_path: Path) -> None:
    """One of two exchanges agrees. The other's cost is wrong, but its parts equal the table."""
    table = PriceTable([PriceRow(model="openrouter:m", input=3_000_000, output=15_000_000)])
    parts = {"upstream_inference_prompt_cost": 0.00003, "upstream_inference_completions_cost": 0.000015}
    lines = []
    for number, cost in enumerate((0.000045, 0.00002)):
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "cost": cost, "cost_details": parts}
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        reply = {"id": "x", "model": "m", "created": 1_780_000_000, "choices": [choice], "usage": usage}
        lines.append(
            {
                "id": f"case-{number}",
                "provider_host": "openrouter.ai",
                "request_body": {"model": "m"},
                "streamed": False,
                "response_status": 200,
                "response_headers": {"content-type": "application/json"},
                "response_body": json.dumps(reply),
            }
        )
    (tmp_path / "openai_chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bills = list(costs.read(tmp_path, table))
    assert [(bill.agrees, bill.kept) for bill in bills] == [(True, 45_000), (False, 20_000)]
    text, good = costs.report(bills)
    assert not good
    assert costs.UNEXPLAINED in text


def test_recorded_embeddings_are_read_correctly() -> None:
    """Count, dimensions, values, served model, tokens and errors of all embeddings agree."""
    text, good = embeddings.run(FOLDER)
    assert good, text
