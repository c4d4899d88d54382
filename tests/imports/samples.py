"""One file of each source, with one call and its content. Each piece of content contains the word Hidden."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.session_files import Claude, Codex, Record, counts, write

QUESTION, ANSWER, RESULT = "Hidden question", "Hidden answer", "Hidden result"
TIME = "2026-03-01T09:00:00.000Z"
END = "2026-03-01T09:00:02.000Z"
BEGAN_MS = 1_772_355_600_000
FULL = [("user", QUESTION), ("assistant", ""), ("tool", RESULT), ("assistant", ANSWER)]
"""The messages of a conversation with a tool call, as pairs of role and text."""
PLAIN = [FULL[0], FULL[-1]]
CHAT: list[Record] = [
    {"role": "system", "content": "Hidden instructions"},
    {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "t1", "type": "function",
        "function": {"name": "Read", "arguments": '{"path":"Hidden"}'}}]},
    {"role": "tool", "tool_call_id": "t1", "content": RESULT},
]  # fmt: skip
"""The messages of a Chat Completions request."""


def claude_code(folder: Path) -> Path:
    session = Claude()
    asked = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "Hidden"}}
    records = [
        session.prompt(QUESTION),
        session.reply(1, stop="tool_use", content=[asked]),
        session.result("t1", RESULT),
        session.reply(1, content=[{"type": "text", "text": ANSWER}]),
    ]
    return write(session.file(folder), records)


def codex(folder: Path) -> Path:
    session = Codex()
    items: list[Record] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "function_call", "call_id": "t1", "name": "shell", "arguments": '{"path":"Hidden"}'},
        {"type": "function_call_output", "call_id": "t1", "output": RESULT},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
    ]
    said = [session.line("response_item", item) for item in items]
    return write(session.file(folder), [session.meta(), session.context(), *said, session.tokens(counts(1, 2, 3))])


def gemini_cli(folder: Path) -> Path:
    call = {"id": "t1", "name": "read_file", "args": {"path": "Hidden"}}
    result = {"functionResponse": {"id": "t1", "name": "read_file", "response": {"output": RESULT}}}
    told = {"timestamp": TIME, "model": "gemini-2.5-pro"}
    records: list[Record] = [
        {"sessionId": "s1", "kind": "main"},
        {"id": "m1", "timestamp": TIME, "type": "user", "content": [{"text": QUESTION}]},
        {"id": "m2", **told, "type": "gemini", "content": "", "toolCalls": [{**call, "result": [result]}]},
        {"id": "m3", "timestamp": TIME, "type": "user", "content": [result]},
        {"id": "m4", **told, "type": "gemini", "content": ANSWER, "tokens": {"input": 9, "output": 5}},
    ]
    return write(folder / "shop" / "chats" / "session-1.jsonl", records)


def qwen_code(folder: Path) -> Path:
    call = {"functionCall": {"id": "t1", "name": "read_file", "args": {"path": "Hidden"}}}
    result = {"functionResponse": {"id": "t1", "name": "read_file", "response": {"output": RESULT}}}
    told = {"sessionId": "s1", "timestamp": TIME, "cwd": "/src/shop"}
    said = {"role": "model", "parts": [{"text": ANSWER}]}
    records: list[Record] = [
        {"uuid": "m1", **told, "type": "user", "message": {"role": "user", "parts": [{"text": QUESTION}]}},
        {"uuid": "m2", **told, "type": "assistant", "message": {"role": "model", "parts": [call]}},
        {"uuid": "m3", **told, "type": "tool_result", "message": {"role": "user", "parts": [result]}},
        {
            **{"uuid": "m4", "type": "assistant", "message": said, "model": "qwen3-coder-plus"},
            **{"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 5}, **told},
        },
    ]
    return write(folder / "shop" / "chats" / "session-1.jsonl", records)


def database(path: Path, tables: dict[str, tuple[str, Sequence[Sequence[Any]]]]) -> Path:
    """Write a SQLite file with tables. Each table has its columns and its rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as made:
        for name, (columns, rows) in tables.items():
            made.execute(f"CREATE TABLE {name} ({columns})")
            made.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns.split(',')))})", rows)
    made.close()
    return path


def opencode(folder: Path) -> Path:
    tool = {"type": "tool", "callID": "t1", "tool": "read"}
    state = {"status": "completed", "input": {"path": "Hidden"}, "output": RESULT}
    time = {"created": BEGAN_MS, "completed": BEGAN_MS + 900}
    reply = {
        **{"role": "assistant", "modelID": "gpt-5", "providerID": "openai", "time": time},
        "tokens": {"input": 9, "output": 5, "reasoning": 0, "cache": {"read": 0, "write": 0}},
    }
    parts = [
        ("p1", "m1", {"type": "text", "text": QUESTION}),
        ("p2", "m2", {**tool, "state": state}),
        ("p3", "m2", {"type": "text", "text": ANSWER}),
    ]
    messages = [
        ("m1", {"role": "user", "time": {"created": BEGAN_MS}}),
        ("m2", reply),
    ]
    return database(
        folder / "opencode.db",
        {"session": ("id, directory, parent_id", [("s1", "/src/shop", None)]),
            "message": ("id, session_id, time_created, data", [(name, "s1", place, json.dumps(data)) for place,
            (name, data) in enumerate(messages)]), "part": ("id, message_id, session_id, time_created, data",
            [(name, of, "s1", place, json.dumps(data)) for place, (name, of, data) in enumerate(parts)])},
    )  # fmt: skip


SPEND: Record = {
    **{"request_id": "r1", "model": "gpt-5", "custom_llm_provider": "openai", "session_id": "s1"},
    **{"startTime": TIME, "endTime": END, "prompt_tokens": 9, "completion_tokens": 5, "spend": 0.01},
    "messages": CHAT,
    "response": {"choices": [{"message": {"role": "assistant", "content": ANSWER}}]},
}


def litellm(folder: Path) -> Path:
    return write(folder / "spend.jsonl", [SPEND])


def langfuse(folder: Path) -> Path:
    told = {"id": "o1", "traceId": "t1", "sessionId": "s1", "type": "GENERATION", "model": "gpt-5"}
    content = {"input": {"messages": CHAT}, "output": {"role": "assistant", "content": ANSWER}}
    usage = {"usageDetails": {"input": 9, "output": 5}}
    return write(folder / "observations.jsonl", [{**told, **usage, **content, "startTime": TIME, "endTime": END}])


def otlp(folder: Path) -> Path:
    asked = [
        {"role": "user", "parts": [{"type": "text", "content": QUESTION}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "t1", "name": "Read", "arguments": {"path": "Hidden"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": RESULT}]},
    ]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": ANSWER}], "finish_reason": "stop"}]
    texts = {
        "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5", "gen_ai.conversation.id": "s1",
        "gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(said),
    }  # fmt: skip
    numbers = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5}
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331",
        "startTimeUnixNano": str(BEGAN_MS * 1_000_000), "endTimeUnixNano": str(BEGAN_MS * 1_000_000 + 1),
        "attributes": [*({"key": key, "value": {"stringValue": text}} for key, text in texts.items()),
            *({"key": key, "value": {"intValue": str(number)}} for key, number in numbers.items())],
    }  # fmt: skip
    return write(folder / "traces.jsonl", [{"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}])


def llm(folder: Path) -> Path:
    columns = "id, model, prompt, response, conversation_id, datetime_utc, input_tokens, output_tokens"
    row = ("r1", "gpt-5", QUESTION, ANSWER, "s1", TIME, 9, 5)
    return database(folder / "logs.db", {"responses": (columns, [row])})


SAMPLES: dict[str, Callable[[Path], Path]] = {
    "claude-code": claude_code, "codex": codex, "gemini-cli": gemini_cli, "qwen-code": qwen_code,
    "opencode": opencode, "litellm": litellm, "langfuse": langfuse, "otlp": otlp, "llm": llm,
}  # fmt: skip
LINES = [source for source in SAMPLES if source not in ("opencode", "llm")]
"""The sources whose files are JSON lines."""


def more(source: str, path: Path, number: int) -> None:
    """Add another call to a sample, as its program does."""
    if path.suffix == ".db":
        table = "message" if source == "opencode" else "responses"
        with sqlite3.connect(path) as made:
            (row,) = made.execute(f"SELECT * FROM {table} ORDER BY rowid DESC LIMIT 1")
            made.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", (f"x{number}", *row[1:]))
        made.close()
        return
    if source == "claude-code":
        record = Claude().reply(f"x{number}")
    elif source == "codex":
        session = Codex()
        session.sums = counts(number, 2 * number, 3 * number)
        record = session.tokens(counts(1, 2, 3))
    else:
        names = ('"m4"', '"r1"', '"o1"', '"b7ad6b7169203331"')
        found = ((line, name) for line in path.read_text().splitlines() for name in names if name in line)
        line, name = next(found)
        record = json.loads(line.replace(name, f'"{number:016x}"'))
    write(path, [record], append=True)
