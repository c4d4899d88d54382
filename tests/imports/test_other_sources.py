"""The form of the files of the other sources, and the token counts of their calls."""

from __future__ import annotations

import csv
import json
import sqlite3
import struct
from pathlib import Path

import pytest

from callboard.bus import TokenUsage
from callboard.engine.imports.source import ImportedCall, Item, UnreadablePart, source_named
from callboard.engine.imports.sources.otlp import read_otlp
from tests.support.session_files import Record, write

BEGAN = 1_772_355_600_000_000
TIME = "2026-03-01T09:00:00.000Z"


def items(source: str, place: Path) -> list[Item]:
    program = source_named(source)
    found: list[Item] = []
    for file in program.files(place):
        with file.path.open("rb") as stream:
            found += program.read(file, stream)
    return found


def calls(source: str, place: Path) -> list[ImportedCall]:
    return [item for item in items(source, place) if isinstance(item, ImportedCall)]


def unread(source: str, place: Path) -> list[UnreadablePart]:
    return [item for item in items(source, place) if isinstance(item, UnreadablePart)]


# --- Gemini CLI and Qwen Code ---

GEMINI = {
    "id": "m1", "timestamp": TIME, "type": "gemini", "content": "Secret", "model": "gemini-2.5-pro",
    "tokens": {"input": 1000, "output": 50, "cached": 800, "thoughts": 30, "tool": 7, "total": 1087},
}  # fmt: skip


def test_gemini_cli_counts_thoughts_outside_the_output_and_cached_tokens_inside_the_input(tmp_path: Path) -> None:
    path = tmp_path / "abc" / "chats" / "session-1.json"
    session = {"sessionId": "s1", "messages": [{"id": "u", "type": "user", "timestamp": TIME}, GEMINI]}
    write(path, [session])
    (path.parent.parent / ".project_root").write_text("/src/shop\n")
    (call,) = calls("gemini-cli", tmp_path)
    assert call.usage == TokenUsage(207, 80, 800, reasoning_tokens=30)
    assert (call.identity, call.provider, call.model) == ("s1/m1", "gemini", "gemini-2.5-pro")
    assert (call.session, call.started_at, call.tags) == ("s1", BEGAN, {"project": "/src/shop"})


def test_gemini_clis_lines_may_be_repeated_with_more_tokens(tmp_path: Path) -> None:
    early = {**GEMINI, "tokens": {**GEMINI["tokens"], "output": 1}}  # type: ignore[dict-item]
    write(tmp_path / "chats" / "session-1.jsonl", [{"sessionId": "s1"}, early, GEMINI])
    found = calls("gemini-cli", tmp_path)
    assert [call.identity for call in found] == ["s1/m1", "s1/m1"]
    assert found[0].revision < found[1].revision


def test_qwen_code_has_the_counts_of_the_provider(tmp_path: Path) -> None:
    record = {
        "uuid": "q1", "sessionId": "s1", "timestamp": TIME, "type": "assistant", "cwd": "/src/shop",
        "model": "qwen3-coder-plus",
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "cachedContentTokenCount": 4},
    }  # fmt: skip
    write(tmp_path / "p" / "chats" / "s1.jsonl", [record])
    (call,) = calls("qwen-code", tmp_path)
    assert (call.usage, call.tags) == (TokenUsage(6, 5, 4, reasoning_tokens=0), {"project": "/src/shop"})


# --- opencode ---

OPENCODE: Record = {
    "id": "msg_1", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_0", "modelID": "claude-sonnet-4-5",
    "providerID": "anthropic", "time": {"created": BEGAN // 1000, "completed": BEGAN // 1000 + 2500},
    "tokens": {"input": 10, "output": 20, "reasoning": 5, "cache": {"read": 300, "write": 40}}, "cost": 0.0125,
    "finish": "tool-calls", "path": {"cwd": "/src/shop", "root": "/src/shop"},
}  # fmt: skip


def opencode_database(path: Path, *messages: Record, parent: str | None = None) -> None:
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE session (id TEXT, directory TEXT, parent_id TEXT)")
        made.execute("CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)")
        made.execute("INSERT INTO session VALUES ('ses_1', '/src/shop', ?)", (parent,))
        for message in messages:
            made.execute("INSERT INTO message VALUES ('msg_1', 'ses_1', 1, ?)", (json.dumps(message),))
    made.close()


@pytest.mark.parametrize("kind", ["file", "database"])
def test_opencode_states_costs_and_counts_reasoning_outside_the_output(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        write(tmp_path / "storage" / "message" / "ses_1" / "msg_1.json", [OPENCODE])
    else:
        opencode_database(tmp_path / "opencode.db", OPENCODE)
    (call,) = calls("opencode", tmp_path)
    assert call.usage == TokenUsage(10, 25, 300, 40, reasoning_tokens=5)
    assert (call.identity, call.session, call.latency_ms) == ("msg_1", "ses_1", 2500)
    assert (call.stated_cost_nano_usd, call.tags) == (12_500_000, {"project": "/src/shop"})


def test_a_session_that_an_agent_of_opencode_started_is_below_it(tmp_path: Path) -> None:
    opencode_database(tmp_path / "opencode.db", OPENCODE, parent="ses_0")
    (call,) = calls("opencode", tmp_path)
    assert (call.depth, call.parent_turn) == (1, "ses_0")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "opencode.db").write_bytes(b"no database" * 100)
    with pytest.raises(OSError, match="not readable as a database"):
        items("opencode", tmp_path)


# --- LiteLLM ---

SPEND: Record = {
    "request_id": "chatcmpl-1",
    "call_type": "acompletion",
    "spend": 0.0021,
    "prompt_tokens": 1000,
    "completion_tokens": 60,
    "total_tokens": 1060,
    "startTime": "2026-03-01 09:00:00.000",
    "endTime": "2026-03-01T09:00:02+00:00",
    "completionStartTime": "2026-03-01T09:00:00.400Z",
    "model": "anthropic/claude-sonnet-4-5-20250929",
    "custom_llm_provider": "anthropic",
    "session_id": "s1",
    "cache_hit": "False",
    "metadata": {"user_api_key_alias": "team-key",
        "usage_object": {"prompt_tokens_details": {"cached_tokens": 700},
        "completion_tokens_details": {"reasoning_tokens": 15}, "cache_creation_input_tokens": 200}},
}  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "data"])
def test_litellms_logs_are_read_in_every_form(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"spend.{'json' if form == 'data' else form}"
    if form == "csv":
        with path.open("w", newline="") as file:
            rows = csv.DictWriter(file, SPEND.keys())
            rows.writeheader()
            rows.writerow({**SPEND, "metadata": json.dumps(SPEND["metadata"])})
    elif form == "jsonl":
        write(path, [SPEND])
    else:
        path.write_text(json.dumps([SPEND] if form == "json" else {"data": [SPEND]}))
    (call,) = calls("litellm", path)
    assert call.usage == TokenUsage(100, 60, 700, 200, reasoning_tokens=15)
    assert (call.identity, call.provider, call.model) == ("chatcmpl-1", "anthropic", "claude-sonnet-4-5-20250929")
    assert (call.started_at, call.latency_ms, call.first_token_ms) == (BEGAN, 2000, 400)
    assert (call.stated_cost_nano_usd, call.session, call.tags) == (2_100_000, "s1", {"key": "team-key"})


BILLED = TokenUsage(100, 60, 700, 200, reasoning_tokens=15)
FAILED: Record = {"status": "failure", "error_information": {"error_class": "RateLimitError"}}


@pytest.mark.parametrize(("told", "cost", "usage", "error"), [
    ({"spend": 0.0}, None, BILLED, None),  # a spend of zero is unknown
    ({"cache_hit": "True"}, 2_100_000, TokenUsage(), None),
    ({"spend": 0.0, "metadata": FAILED}, None, None, "rate_limit"),
    ({"status": "failure"}, 2_100_000, BILLED, "other"),  # a stream that failed is billed
    ({"status": "failure", "spend": 0.0}, None, None, "other"),  # LiteLLM only estimated the prompt
])  # fmt: skip
def test_litellms_failures_and_cache_hits_have_the_usage_that_it_billed(
    told: Record, cost: int | None, usage: TokenUsage | None, error: str | None, tmp_path: Path
) -> None:
    (call,) = calls("litellm", write(tmp_path / "a.jsonl", [{**SPEND, **told}]))
    assert (call.stated_cost_nano_usd, call.usage, call.error_class) == (cost, usage, error)
    assert call.error_type == ("RateLimitError" if error == "rate_limit" else call.error_type)


def test_requests_to_mcp_servers_are_no_calls_unless_they_cost(tmp_path: Path) -> None:
    tool = {**SPEND, "call_type": "call_mcp_tool", "model": "MCP: search"}
    (call,) = calls("litellm", write(tmp_path / "a.jsonl", [{**tool, "spend": 0.0}, tool]))
    assert call.stated_cost_nano_usd == 2_100_000


@pytest.mark.parametrize("line", ["[1]\n", "{\n", '{"request_id": "x"}\n', '"x"\n'])
def test_a_row_that_cannot_be_read_costs_one_line(line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [SPEND, line, SPEND])
    assert [item.line for item in unread("litellm", path)] == [2]
    assert len(calls("litellm", path)) == 2


# --- Langfuse ---

OBSERVATION: Record = {
    "id": "o1", "traceId": "t1", "type": "GENERATION", "startTime": TIME, "endTime": "2026-03-01T09:00:03Z",
    "model": "claude-sonnet-4-5-20250929", "sessionId": "s1",
}  # fmt: skip


@pytest.mark.parametrize(("told", "usage"), [
    ({"promptTokens": 100, "completionTokens": 20}, TokenUsage(100, 20)),
    ({"usage": {"input": 100, "output": 20, "unit": "TOKENS"}}, TokenUsage(100, 20)),
    ({"usageDetails": {"input": 10, "output": 20, "cache_read_input_tokens": 70, "total": 100}},
        TokenUsage(10, 20, 70)),
    ({"usage_details": {"input": 10, "output": 20, "output_reasoning_tokens": 5, "input_cached_tokens": 70}},
        TokenUsage(10, 25, 70, reasoning_tokens=5)),
    ({}, None),
])  # fmt: skip
def test_langfuses_usages_of_all_generations_are_understood(
    told: Record, usage: TokenUsage | None, tmp_path: Path
) -> None:
    (call,) = calls("langfuse", write(tmp_path / "a.jsonl", [{**OBSERVATION, **told}]))
    assert (call.usage, call.session, call.latency_ms) == (usage, "s1", 3000)


def test_langfuse_states_costs_in_snake_case_too(tmp_path: Path) -> None:
    row = {
        "id": "o1", "type": "GENERATION", "start_time": "2026-03-01 09:00:00", "total_cost": "0.5", "model": "x",
    }  # fmt: skip
    (call,) = calls("langfuse", write(tmp_path / "a.jsonl", [row, {"id": "s", "type": "SPAN"}]))
    assert (call.stated_cost_nano_usd, call.started_at) == (500_000_000, BEGAN)


# --- simonw/llm ---


def test_llms_logs_are_read_with_the_details_of_their_tokens(tmp_path: Path) -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 40},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    with sqlite3.connect(tmp_path / "logs.db") as made:
        made.execute(
            "CREATE TABLE responses (id TEXT, model TEXT, prompt TEXT, conversation_id TEXT, duration_ms INTEGER,"
            " datetime_utc TEXT, input_tokens INTEGER, output_tokens INTEGER, token_details TEXT)"
        )
        rows = [
            ("r1", "gpt-4o-mini", "Secret", "c1", 900, "2026-03-01T09:00:00", 100, 20, json.dumps(details)),
            ("r2", "anthropic/claude-3-5-haiku", "", "c1", 1, "2026-03-01T09:00:01+00:00", None, None, None),
            ("r3", "x", "", "c1", 1, "yesterday", 1, 1, None),
        ]
        made.executemany("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    made.close()
    first, second = calls("llm", tmp_path)
    assert (first.usage, first.provider, first.session) == (
        TokenUsage(60, 20, 40, reasoning_tokens=3),
        "openai",
        "c1",
    )
    assert (first.started_at, first.latency_ms) == (BEGAN, 900)
    assert (second.provider, second.model, second.usage) == ("anthropic", "claude-3-5-haiku", None)
    assert len(unread("llm", tmp_path)) == 1


# --- OpenTelemetry ---


def attribute(key: str, value: object) -> Record:
    kind = {str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]
    return {"key": key, "value": {kind: str(value) if isinstance(value, int) else value}}


def request(**attributes: object) -> Record:
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "startTimeUnixNano": str(BEGAN * 1000),
        "endTimeUnixNano": str(BEGAN * 1000 + 1_500_000_000),
        "attributes": [attribute(key.replace("__", "."), value) for key, value in attributes.items()],
    }
    resource = {"attributes": [attribute("service.name", "shop")]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


NOW = {
    "gen_ai__operation__name": "chat", "gen_ai__provider__name": "anthropic",
    "gen_ai__request__model": "claude-sonnet-4-5", "gen_ai__usage__input_tokens": 100,
    "gen_ai__usage__output_tokens": 20, "gen_ai__usage__cache_read__input_tokens": 70,
    "gen_ai__usage__cache_write__input_tokens": 10,
}  # fmt: skip


@pytest.mark.parametrize(("attributes", "usage"), [
    (NOW, TokenUsage(20, 20, 70, 10)),
    ({"gen_ai__system": "openai", "gen_ai__request__model": "gpt-4o", "gen_ai__usage__prompt_tokens": 5,
        "gen_ai__usage__completion_tokens": 6}, TokenUsage(5, 6)),
    ({"openinference__span__kind": "LLM", "llm__model_name": "gpt-4o", "llm__token_count__prompt": 9,
        "llm__token_count__completion": 4, "llm__token_count__prompt_details__cache_read": 8},
        TokenUsage(1, 4, 8)),
    ({**NOW, "gen_ai__usage__input_tokens": 3}, TokenUsage(3, 20, 70, 10)),
], ids=["now", "2024", "OpenInference", "input without the cache"])  # fmt: skip
def test_spans_of_all_versions_of_the_convention_are_calls(attributes: Record, usage: TokenUsage) -> None:
    (call,) = read_otlp(json.dumps(request(**attributes)).encode(), "application/json; charset=utf-8")
    assert isinstance(call, ImportedCall)
    assert call.usage == usage
    assert call.identity == "0af7651916cd43dd8448eb211c80319c/b7ad6b7169203331"
    assert (call.started_at, call.latency_ms, call.tags) == (BEGAN, 1500, {"service": "shop"})


@pytest.mark.parametrize(
    "attributes", [{**NOW, "gen_ai__operation__name": "invoke_agent"}, {"http__method": "GET"}]
)
def test_spans_around_calls_are_no_calls(attributes: Record) -> None:
    assert list(read_otlp(json.dumps(request(**attributes)).encode(), "application/json")) == []


def test_a_file_of_the_collector_has_a_request_on_each_line(tmp_path: Path) -> None:
    path = write(tmp_path / "traces.jsonl", [request(**NOW), "{\n", request(**NOW)])
    assert [call.line for call in calls("otlp", path)] == [1, 3]
    assert unread("otlp", path) == [UnreadablePart(line=2, why="not valid JSON")]


def field(number: int, data: bytes) -> bytes:
    return (
        bytes([number << 3 | 2, *([len(data) & 127 | 128, len(data) >> 7] if len(data) > 127 else [len(data)])])
        + data
    )


def pair(key: str, value: object) -> bytes:
    inner = field(1, value.encode()) if isinstance(value, str) else bytes([3 << 3, int(str(value))])
    return field(1, key.encode()) + field(2, inner)


def protobuf() -> bytes:
    span = field(1, bytes.fromhex("0af7651916cd43dd8448eb211c80319c")) + field(
        2, bytes.fromhex("b7ad6b7169203331")
    )
    for number, moment in ((7, BEGAN * 1000), (8, BEGAN * 1000 + 1_500_000_000)):
        span += bytes([number << 3 | 1]) + struct.pack("<Q", moment)
    for key, value in NOW.items():
        span += field(9, pair(key.replace("__", "."), value))
    resource = field(1, field(1, pair("service.name", "shop")))
    return field(1, resource + field(2, field(2, span)))


def test_protobuf_gives_the_same_as_json() -> None:
    told = list(read_otlp(json.dumps(request(**NOW)).encode(), "application/json"))
    assert list(read_otlp(protobuf(), "application/x-protobuf")) == told


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"\xff\xff\xff", "application/x-protobuf", "not valid Protobuf"),
        (b"\x0a\x7f", "application/x-protobuf", "not valid Protobuf"),
        (b"{", "application/json", "not valid JSON"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"gen_ai.request.model","value":'
         b'{"intValue":"x"}}]}]}]}]}', "application/json", "unexpected form"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_read_costs_one_line(body: bytes, kind: str, why: str) -> None:
    assert list(read_otlp(body, kind)) == [UnreadablePart(line=0, why=why)]
