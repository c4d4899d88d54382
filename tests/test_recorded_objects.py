"""Recorded objects of real providers, read by `generate_object` and `stream_object`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from callboard import (
    AdapterConfig,
    Clock,
    Engine,
    Json,
    JsonObject,
    NoObjectGeneratedError,
    ProviderAdapter,
)
from tests.support.engines import model as listed
from tests.support.engines import serving
from tests.support.recordings import FOLDER, PROTOCOLS, fragments, make_adapter, needs_recordings, read_cases
from tests.support.scripted import adapter_type
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

SCHEMAS = {
    "anthropic": (("output_config", "format", "schema"), ("output_format", "schema")),
    "openai_responses": (("text", "format", "schema"),),
    "openai_chat": (("response_format", "json_schema", "schema"),),
    "gemini": (
        ("generationConfig", "responseJsonSchema"),
        ("generationConfig", "responseSchema"),
        ("generationConfig", "response_json_schema"),
    ),
}
"""The places of the schema in the recorded requests."""

anyio_backend = runs_on("asyncio")


def schema_of(case: Mapping[str, Any]) -> JsonObject | None:
    for path in SCHEMAS[case["protocol"]]:
        found: Any = case["request_body"]
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, dict):
            return found
    return None


def cases() -> Iterator[tuple[Mapping[str, Any], JsonObject]]:
    """Every recorded exchange whose request has a schema, with the schema."""
    for protocol in PROTOCOLS:
        for case in read_cases(FOLDER / f"{protocol}.jsonl"):
            schema = schema_of(case)
            if schema is not None and "oracle" in case:
                yield case, schema


def engine_of(case: Mapping[str, Any], mode: str) -> tuple[Engine, str]:
    """An engine whose provider sends the recorded reply, in pieces of the given mode."""
    kind = PROTOCOLS[case["protocol"]]
    model = case["request_body"].get("model") or case["path"].rpartition("/")[2].partition(":")[0]

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return make_adapter(kind, case, fragments(case["response_body"].encode(), mode))

    named = f"{kind}:{model}"
    return Engine(models=serving(listed(named), **{kind: adapter_type(make)}), trace=False), named


async def read(case: Mapping[str, Any], schema: JsonObject, mode: str) -> Json:
    """Read the object of an exchange. If the exchange is streamed, the last partial must be the same."""
    engine, model = engine_of(case, mode)
    async with engine:
        if not (case["streamed"] or case.get("request_streamed")):
            return (await engine.generate_object(model, "?", schema=schema, max_tool_rounds=0)).output
        async with engine.stream_object(model, "?", schema=schema, max_tool_rounds=0) as stream:
            partials = [partial async for partial in stream]
            output = await stream.object()
        assert partials[-1] == output, case["id"]
        return output


@needs_recordings
@pytest.mark.timeout(300)
async def test_recorded_objects_are_read_and_checked() -> None:
    """The object equals the recorded text. A reply with tool calls raises NoObjectGeneratedError."""
    read_of: set[str] = set()
    for case, schema in cases():
        for mode in ("whole", "random-1", "byte"):
            if case["oracle"]["tool_calls"]:
                with pytest.raises(NoObjectGeneratedError, match="it calls"):
                    await read(case, schema, mode)
            else:
                assert await read(case, schema, mode) == msgspec.json.decode(case["oracle"]["final_text"]), case[
                    "id"
                ]
                read_of.add(case["protocol"])
    assert read_of == set(SCHEMAS)
