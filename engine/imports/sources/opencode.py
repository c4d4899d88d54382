"""opencode's messages: a SQLite database, and in earlier versions one JSON file for each message.

The input excludes cache reads and cache writes. Reasoning is not part of the output, unless the total includes it.
opencode computes costs itself. They are stored as stated costs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore.foreign_rows import foreign_rows

from ..source import (
    START,
    ImportedCall,
    ImportedMessage,
    Item,
    Mark,
    SourceFile,
    UnreadablePart,
    name,
    nano_of,
    tags_of,
    why_not,
)
from .records import decoded, message_of, object_of, read_whole, stop_reason, text_of, vendor_and_model


class _Cache(msgspec.Struct):
    read: float = 0
    write: float = 0


class _Tokens(msgspec.Struct):
    input: float = 0
    output: float = 0
    reasoning: float = 0
    total: float | None = None
    cache: _Cache = msgspec.field(default_factory=_Cache)


class _Time(msgspec.Struct):
    created: float | None = None
    completed: float | None = None


class _Path(msgspec.Struct):
    root: str | None = None
    cwd: str | None = None

    @property
    def folder(self) -> str | None:
        """The root of the project. Outside of a repository it is ``/``."""
        return self.cwd if self.root in (None, "/") else self.root


class _Error(msgspec.Struct):
    name: str | None = None


class _Message(
    msgspec.Struct,
    rename={
        "session_id": "sessionID",
        "parent_id": "parentID",
        "model_id": "modelID",
        "provider_id": "providerID",
    },
):
    id: str | None = None
    role: str | None = None
    session_id: str | None = None
    parent_id: str | None = None
    model_id: str | None = None
    provider_id: str | None = None
    time: _Time = msgspec.field(default_factory=_Time)
    tokens: _Tokens | None = None
    cost: float | None = None
    finish: str | None = None
    path: _Path = msgspec.field(default_factory=_Path)
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Message).decode


class OpenCode:
    name = "opencode"

    def places(self) -> Sequence[Path]:
        data = os.environ.get("XDG_DATA_HOME")
        return [(Path(data) if data else Path.home() / ".local" / "share") / "opencode"]

    def files(self, place: Path) -> Iterable[SourceFile]:
        if place.is_file():
            yield SourceFile(path=place)
            return
        for database in sorted(place.glob("opencode*.db")):
            yield SourceFile(path=database)
        for folder, folders, files in os.walk(place):
            folders.sort()
            if Path(folder).parent.name == "message":
                for file in sorted(files):
                    if file.endswith(".json"):
                        yield SourceFile(path=Path(folder, file), session=Path(folder).name)

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        if file.path.suffix == ".json":
            data = read_whole(stream)
            if data is None:
                yield UnreadablePart(line=0, why="the file is too large")
                return
            message = yield from _message(data)
            if message is not None:
                yield from _call(message, {"session_id": file.session})
                if content:
                    folder = file.path.parents[2] / "part" / file.path.stem
                    for path in sorted(folder.glob("*.json")):
                        yield from _messages_of(path.stem, path.read_bytes(), message, file.session)
            return
        yield from _database(file.path, content=content)


def _database(path: Path, *, content: bool) -> Iterator[Item]:
    sessions = {row.get("id"): row for row in foreign_rows(path, "session", ("id", "directory", "parent_id"))}
    started = _started(path) if any(row.get("parent_id") for row in sessions.values()) else {}
    messages: dict[object, _Message] = {}
    for row in foreign_rows(path, "message", ("id", "session_id", "data"), ("time_created", "id")):
        data = row.get("data")
        if not row:
            yield UnreadablePart(line=0, why="a row is too large")
        if not isinstance(data, str | bytes):
            continue
        session = sessions.get(row.get("session_id"), {})
        record = {**session, "id": row.get("id"), "session_id": row.get("session_id")}
        message = yield from _message(data)
        if message is None:
            continue
        for call in _call(message, record):
            above, tool = started.get(row.get("session_id"), (None, None))
            if isinstance(call, ImportedCall) and call.depth and above in messages:
                turn = name(messages[above].parent_id) or call.parent_turn
                call = msgspec.structs.replace(
                    call, parent=above, parent_tool_use_id=tool, parent_turn=turn, root_turn=turn
                )
            yield call
        if content or started:
            messages[row.get("id")] = message
    if content:
        for part in _parts(path):
            message = messages.get(part.get("message_id"))
            if message is not None:
                yield from _messages_of(
                    str(part.get("id")), part["data"], message, text_of(part.get("session_id"))
                )


def _parts(path: Path) -> Iterator[Mapping[str, Any]]:
    """The parts of all messages, in order. Errors of the database are reported when its messages are read."""
    with contextlib.suppress(OSError):
        for row in foreign_rows(path, "part", ("id", "message_id", "session_id", "data"), ("time_created", "id")):
            if isinstance(row.get("data"), str | bytes):
                yield row


def _started(path: Path) -> dict[object, tuple[str, str | None]]:
    """The message and the tool call that started a session, by session."""
    found: dict[object, tuple[str, str | None]] = {}
    for row in _parts(path):
        part = decoded(row["data"]) if '"task"' in str(row["data"]) else None
        if isinstance(part, dict) and part.get("tool") == "task":
            session = object_of(object_of(part.get("state")).get("metadata")).get("sessionId")
            found[text_of(session)] = str(row.get("message_id")), text_of(part.get("callID"))
    return found


def _messages_of(
    part_id: str, data: bytes | str, message: _Message, session: str | None
) -> Iterator[ImportedMessage]:
    """The content of one part of a message, if the part is complete."""
    part, at = decoded(data), message.time.created
    if not isinstance(part, dict) or at is None or session is None or message.role is None:
        return
    state = object_of(part.get("state"))
    blocks: list[JsonObject] = []
    if part.get("type") == "tool" and state.get("status") in ("completed", "error"):
        call: JsonObject = {"id": part.get("callID"), "name": part.get("tool"), "input": state.get("input")}
        blocks = [
            {**call, "type": "tool_use"},
            {**call, "type": "tool_result", "content": state.get("output") or state.get("error")},
        ]
    elif part.get("type") in ("text", "reasoning") and (message.role == "user" or message.time.completed):
        blocks = [part]
    for number, block in enumerate(blocks):
        found = message_of([block], message.role)
        if found is not None:
            yield ImportedMessage(
                identity=f"{part_id}/{number}", session=session, at=int(at * 1000), message=found
            )


def _message(data: bytes | str) -> Generator[UnreadablePart, None, _Message | None]:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        yield UnreadablePart(line=0, why=why_not(error))
        return None


def _call(message: _Message, row: Mapping[str, Any]) -> Iterator[Item]:
    if message.role != "assistant" or message.tokens is None:
        return
    mine = name(message.id) or text_of(row.get("id"))
    created, completed = message.time.created, message.time.completed
    if mine is None or created is None or not 0 < created < 1e14:
        yield UnreadablePart(line=0, why="the time or the id is missing or impossible")
        return
    session = name(message.session_id) or text_of(row.get("session_id"))
    above = text_of(row.get("parent_id"))
    provider, model = vendor_and_model(name(message.provider_id), name(message.model_id))
    failed = None if message.error is None else name(message.error.name)
    yield ImportedCall(
        identity=mine,
        line=0,
        provider=provider,
        model=model,
        started_at=int(created * 1000),
        usage=_usage(message.tokens),
        stop_reason=stop_reason(message.finish),
        error_class=None if failed is None else "cancelled" if "Abort" in failed else "other",
        error_type=failed,
        latency_ms=int(completed - created) if completed is not None and completed >= created else None,
        stated_cost_nano_usd=nano_of(message.cost) or None,
        session=session,
        turn=name(message.parent_id) or session,
        parent_turn=above,
        root_turn=above,
        depth=None if above is None else 1,
        tags=tags_of(project=text_of(row.get("directory")) or message.path.folder),
    )


def _usage(tokens: _Tokens) -> TokenUsage:
    counts = (tokens.input, tokens.output, tokens.reasoning, tokens.cache.read, tokens.cache.write)
    fresh, output, reasoning, read, written = (int(max(0, count)) for count in counts)
    inside = tokens.total is not None and tokens.total == fresh + output + read + written
    return TokenUsage(
        input_tokens=fresh,
        output_tokens=output if inside else output + reasoning,
        cached_input_tokens=read,
        cache_creation_input_tokens=written,
        reasoning_tokens=reasoning if not inside else min(reasoning, output),
    )
