"""Field notes of kind E: a call in OpenTelemetry's spans and in a Parquet export."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard.adapters import ServerError
from callboard.adapters.servers import Note, notes
from callboard.tracestore import OtelExporter
from callboard.tracestore.export import export_calls
from tests.support.engines import running
from tests.support.scripted import ADD, Say
from tests.support.virtual_time import runs_on

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")  # the store works in threads

NOTES = list(notes("E"))
SPANS = [note for note in NOTES if note.input.get("play") != "parquet"]
TABLES = [note for note in NOTES if note.input.get("play") == "parquet"]


@pytest.mark.parametrize("note", SPANS, ids=lambda note: note.id)
async def test_a_span_has_the_attributes_that_observers_read(note: Note) -> None:
    """The conversation of the note is played, and its span is compared with the note's expectation."""
    spans = [span for span in await spans_of(note.input) if span.name == note.expect["span"]]
    attributes = dict(spans[note.expect.get("index", 0)].attributes or {})
    for name, value in note.expect.get("json", {}).items():
        assert msgspec.json.decode(str(attributes[name])) == value, name
    for path, value in note.expect.get("paths", {}).items():
        assert at(attributes, path) == value, path
    for name, value in note.expect.get("equal", {}).items():
        assert attributes[name] == value, name
    assert set(note.expect.get("has", ())) <= set(attributes)
    assert not set(note.expect.get("lacks", ())) & set(attributes)


@pytest.mark.parametrize("note", TABLES, ids=lambda note: note.id)
async def test_a_parquet_column_has_the_type_that_readers_want(note: Note, tmp_path: Path) -> None:
    """An engine's call is exported, and the schema of the file is compared."""
    parquet = pytest.importorskip("pyarrow.parquet")
    async with running(Say("Three."), store=tmp_path / "t.db") as (engine, _):
        await engine.generate("s:m", "1 + 2?")
        await engine.flush()
        assert engine.store is not None
        await export_calls(engine.store, tmp_path / "calls.parquet", "parquet")
    types = {field.name: str(field.type) for field in parquet.read_schema(tmp_path / "calls.parquet")}
    assert {name: types[name] for name in note.expect["types"]} == note.expect["types"]


def at(attributes: dict[str, Any], path: str) -> object:
    """Return a value inside an attribute that is JSON. The path has the attribute's name, then keys and
    numbers.
    """
    name = next(name for name in attributes if path.startswith(f"{name}."))
    value: Any = msgspec.json.decode(str(attributes[name]))
    for key in path.removeprefix(f"{name}.").split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


async def spans_of(played: dict[str, Any]) -> list[ReadableSpan]:
    """Return the spans of a note's conversation, in the order of their ends."""
    memory, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(memory))
    exporter = OtelExporter(tracer_provider=tracers, metrics=False, content=played.get("content", False))
    replies = [
        Say(
            each["text"],
            calls=[(name, arguments) for name, arguments in each.get("calls", ())],
            fails=ServerError("no", retryable=False) if each.get("fails") else None,
        )
        for each in played["replies"]
    ]
    options: dict[str, Any] = {"system_prompt": played.get("system"), "tools": [ADD] if "tools" in played else []}
    async with running(*replies) as (engine, events), anyio.create_task_group() as group:
        group.start_soon(exporter.run, events)
        with contextlib.suppress(ServerError):
            if played.get("session", True):
                session = engine.session("s:m", **options)
                streamed = played.get("streamed")
                await (session.stream(played["say"]).message() if streamed else session.send(played["say"]))
            elif played.get("streamed"):
                await engine.stream("s:m", played["say"], **options).result()
            else:
                await engine.generate("s:m", played["say"], **options)
        events.close()
    return list(memory.get_finished_spans())
