"""The edges of a tree in the output for other programs: exports, replayed events, and OpenTelemetry spans."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from callboard import agent_tool
from callboard.bus import Envelope, LlmCallStarted
from callboard.engine import tool
from callboard.tracestore import CallRow, StoredEvents, TraceStore
from callboard.tracestore.export import export_calls
from tests.support.engines import running
from tests.support.scripted import Say
from tests.tracestore.test_otel import Collector

pytestmark = pytest.mark.anyio

EDGE = ("parent_call_id", "parent_tool_use_id", "parent_turn_id", "root_turn_id", "depth")


async def made(trace: Path) -> list[Envelope]:
    """Write a trace of a turn with an agent whose tool calls a model. Return the published events."""

    @tool
    async def dig() -> str:
        """Dig."""
        return (await engine.generate("b:m", "Dig.")).text

    agent = agent_tool("agent", model="a:m", tools=[dig])
    script = {
        "a": [Say(calls=[("dig", {})]), Say("found")],
        "b": [Say("deep")],
    }
    calls = Say(calls=[("agent", {"task": "Look."})])
    async with running(calls, Say("Done."), store=trace, **script) as (engine, events):
        await engine.session("s:m", tools=[agent]).send("Go.")
        await engine.flush()
        return list(events.take())


async def rows_in(trace: Path) -> list[CallRow]:
    async with TraceStore(trace) as store:
        return await store.calls()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
async def test_an_export_has_the_tree(form: Any, tmp_path: Path) -> None:
    """The export has the parent of each call, one level above the call."""
    await made(tmp_path / "t.db")
    file = io.BytesIO()
    async with TraceStore(tmp_path / "t.db") as store:
        assert await export_calls(store, file, form) == 5
        rows = await store.calls()
    text = file.getvalue().decode()
    exported: list[dict[str, Any]]
    if form == "csv":
        exported = [{**row, "depth": int(row["depth"] or 0)} for row in csv.DictReader(io.StringIO(text))]
    else:
        exported = [{**(row := json.loads(line)), "depth": row["depth"] or 0} for line in text.splitlines()]
    calls = {row["request_id"]: row for row in exported}
    assert [[row[name] or None for name in EDGE] for row in exported] == [
        [getattr(row, name) or None for name in EDGE] for row in reversed(rows)
    ]
    below = [row for row in exported if row["parent_call_id"]]
    assert sorted(row["depth"] for row in below) == [1, 1, 2]
    for row in below:
        parent = calls[row["parent_call_id"]]
        assert (parent["turn_id"], parent["depth"]) == (row["parent_turn_id"], row["depth"] - 1)
        assert row["root_turn_id"] == (parent["root_turn_id"] or parent["turn_id"])


def edges_of(events: list[Envelope]) -> list[tuple[object, ...]]:
    return [
        (each.request_id, *(getattr(each.data, name) for name in EDGE))
        for each in events
        if isinstance(each.data, LlmCallStarted)
    ]


async def test_replayed_events_have_the_edges_of_the_published_ones(tmp_path: Path) -> None:
    published = await made(tmp_path / "t.db")
    async with TraceStore(tmp_path / "t.db") as store:
        replayed = [each async for each in StoredEvents(store)]
    assert edges_of(replayed) == edges_of(published)
    assert [edge[-1] for edge in edges_of(replayed)] == [None, 1, 2, 1, None]


@pytest.mark.parametrize("replayed", [False, True])
async def test_spans_of_all_levels_nest_in_one_trace(replayed: bool, tmp_path: Path) -> None:
    """Spans of stored events nest too. Turns and tools alternate."""
    events = await made(tmp_path / "t.db")
    if replayed:
        async with TraceStore(tmp_path / "t.db") as store:
            events = [each async for each in StoredEvents(store)]
    collector = Collector().handle(*events)
    spans = {span.context.span_id: span for span in collector.spans}
    (lowest,) = [
        span
        for span in collector.spans
        if span.kind is SpanKind.CLIENT and (span.attributes or {}).get("gen_ai.provider.name") == "b"
    ]
    names = [lowest.name.partition(" ")[0]]
    while lowest.parent is not None:
        lowest = spans[lowest.parent.span_id]
        names.append(lowest.name)
    assert names[1:] == [
        "invoke_agent", "execute_tool dig", "invoke_agent", "execute_tool agent", "invoke_agent"
    ]  # fmt: skip
    assert len({span.context.trace_id for span in collector.spans}) == 1
