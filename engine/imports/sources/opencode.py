"""opencode's messages: a SQLite database, and in earlier versions one JSON file for each message.

The input excludes cache reads and cache writes. Reasoning is no part of the output, unless the total includes it.
opencode computes costs itself, so they are kept as stated costs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from callboard.bus.values.usage import TokenUsage
from callboard.tracestore.foreign import foreign_rows

from ..source import START, ImportedCall, Item, Mark, SourceFile, UnreadablePart, name, nano_of, tags_of, why_not
from .records import read_whole, stop_reason, vendor_and_model


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
    """opencode's database and its message files."""

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
            yield from _call(read_whole(stream) or b"", {"session_id": file.session})
            return
        sessions = {row["id"]: row for row in foreign_rows(file.path, "session", ("id", "directory", "parent_id"))}
        for row in foreign_rows(file.path, "message", ("id", "session_id", "data"), ("time_created", "id")):
            data = row.get("data")
            if isinstance(data, str | bytes):
                session = sessions.get(row.get("session_id"), {})
                call = {**session, "id": row.get("id"), "session_id": row.get("session_id")}
                yield from _call(data.encode() if isinstance(data, str) else data, call)


def _call(data: bytes, row: Mapping[str, Any]) -> Iterator[Item]:
    try:
        message = _decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        yield UnreadablePart(line=0, why=why_not(error))
        return
    if message.role != "assistant" or message.tokens is None:
        return
    mine = message.id or row.get("id")
    created, completed = message.time.created, message.time.completed
    if mine is None or created is None or not 0 < created < 1e14:
        yield UnreadablePart(line=0, why="the time or the id is missing or impossible")
        return
    session = name(message.session_id or row.get("session_id"))
    above = name(row.get("parent_id"))
    provider, model = vendor_and_model(name(message.provider_id), name(message.model_id))
    failed = None if message.error is None else name(message.error.name)
    yield ImportedCall(
        identity=str(mine),
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
        tags=tags_of(project=row.get("directory") or message.path.folder),
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
