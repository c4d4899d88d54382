"""Codex's sessions: ``~/.codex/sessions/YEAR/MONTH/DAY/rollout-*.jsonl``.

After each reply the file has a ``token_count`` with the usage of the reply and the sums of all replies up to it. A
repeated ``token_count`` has the same sums. A call has no id. A forked session starts with a copy of the original's
lines, with new times but the same sums. So a call is identified by all sums up to it and the id of the first
session, across forks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from callboard.bus.values.base import Json
from callboard.bus.values.usage import TokenUsage, UsageSource

from ..source import (
    START,
    ImportedCall,
    ImportedMessage,
    Item,
    Line,
    Mark,
    SourceFile,
    UnreadablePart,
    broken_line,
    lines,
    moment,
    name,
    tags_of,
    why_not,
)
from .records import message_of

_CALLS_BETWEEN_MARKS = 200
_MOST_TURNS = 5_000
_EMPTY = msgspec.Raw(b"")


class _Counts(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    total_tokens: int = 0

    def since(self, before: _Counts) -> _Counts:
        """The difference from earlier sums. If the sums have restarted, the sums themselves."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(before)
        if any(one < other for one, other in zip(mine, others, strict=True)):
            return self
        return _Counts(*(one - other for one, other in zip(mine, others, strict=True)))


class _Info(msgspec.Struct):
    total_token_usage: _Counts | None = None
    last_token_usage: _Counts | None = None


class _Git(msgspec.Struct):
    branch: str | None = None


class _Payload(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    cwd: str | None = None
    git: _Git | None = None
    model: str | None = None
    model_provider: str | None = None
    turn_id: str | None = None
    forked_from_id: str | None = None
    source: msgspec.Raw = _EMPTY
    info: _Info | None = None


class _Line(msgspec.Struct):
    type: str | None = None
    timestamp: datetime | None = None
    payload: _Payload | None = None


class _Spawn(msgspec.Struct):
    parent_thread_id: str | None = None


class _Subagent(msgspec.Struct):
    thread_spawn: _Spawn | None = None


class _Origin(msgspec.Struct):
    subagent: _Subagent | str | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_origin = msgspec.json.Decoder(_Origin).decode


class _State(msgspec.Struct, omit_defaults=True):
    """The state after the part of a file that was read."""

    session: str | None = None
    first: str | None = None
    """The first session, across all forks, from which the first lines come."""
    parent: str | None = None
    """The session whose tool started this session."""
    above: str | None = None
    """The turn of that session that started this session."""
    began: int = 0
    provider: str = "openai"
    model: str | None = None
    turn: str | None = None
    turns: int = 0
    project: str | None = None
    branch: str | None = None
    sums: _Counts = _Counts()
    chain: str = ""
    """A hash of all sums up to now."""


_encode_state = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(_State).decode


class Codex:
    name = "codex"

    def __init__(self) -> None:
        self._turns: dict[str, list[tuple[int, str]]] = {}  # the start and name of each turn, by session
        self._sessions: dict[str, Path] = {}  # the file of each session
        self._complete_sessions: set[str] = set()  # sessions whose file was read from its start

    def places(self) -> Sequence[Path]:
        home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex").expanduser()
        found = [home / part for part in ("sessions", "archived_sessions") if (home / part).is_dir()]
        return found or [home / "sessions"]

    def files(self, place: Path) -> Iterable[SourceFile]:
        if place.is_file():
            yield SourceFile(path=place, session=_session_of(place))
            return
        inner = [each for part in ("sessions", "archived_sessions") if (each := place / part).is_dir()]
        for top in inner or [place]:
            for folder, folders, files in os.walk(top):
                folders.sort()
                for file in sorted(files):
                    if file.endswith(".jsonl"):
                        path = Path(folder, file)
                        session = _session_of(path)
                        self._sessions[session] = path
                        yield SourceFile(path=path, session=session)

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        state = _decode_state(start.state) if start.state else _State()
        if file.session is not None and not start.read_to:
            self._complete_sessions.add(file.session)
            self._turns.pop(file.session, None)
        mark, call_count = start, 0
        for line in lines(stream, start):
            if call_count >= _CALLS_BETWEEN_MARKS:
                call_count = 0
                yield msgspec.structs.replace(mark, state=_encode_state(state).decode())
            item = self._item(line, state, file)
            if item is not None:
                call_count += isinstance(item, ImportedCall)
                yield item
            message = _message_of(line, state, file) if content and b'"response_item"' in line.data else None
            if message is not None:
                yield message
            if line.complete:  # An incomplete last line is read again later. Its sums are then known.
                mark = Mark(read_to=line.end, line=line.number)
        yield msgspec.structs.replace(mark, state=_encode_state(state).decode())

    def _item(self, line: Line, state: _State, file: SourceFile) -> ImportedCall | UnreadablePart | None:
        text = line.data.strip()
        if (fault := broken_line(line)) is not None:
            return fault
        if not any(word in text for word in _WORDS):
            return None
        try:
            record = _decode_line(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return UnreadablePart(line=line.number, why=why_not(error))
        payload = record.payload
        if payload is None:
            return None
        match record.type:
            case "session_meta":
                _note_session(state, payload, moment(record.timestamp))
            case "turn_context":
                self._note_turn(state, payload, moment(record.timestamp), file)
            case "event_msg" if payload.type == "token_count" and payload.info is not None:
                return self._call(state, payload.info, record, line, file)
            case _:
                pass
        return None

    def _note_turn(self, state: _State, payload: _Payload, at: int | None, file: SourceFile) -> None:
        state.model = name(payload.model) or state.model
        state.project = name(payload.cwd) or state.project
        session = state.session or file.session
        if payload.turn_id is None or payload.turn_id != state.turn:
            state.turns += 1
            state.turn = name(payload.turn_id) or f"{session}/{state.turns}"
        if session is not None and at is not None:
            turns = self._turns.setdefault(session, [])
            turns.append((at, state.turn or session))
            del turns[:-_MOST_TURNS]

    def _call(
        self, state: _State, info: _Info, record: _Line, line: Line, file: SourceFile
    ) -> ImportedCall | UnreadablePart | None:
        sums, last = info.total_token_usage, info.last_token_usage
        if sums is None and last is None:
            return None
        if sums is None:
            assert last is not None
            pairs = zip(msgspec.structs.astuple(state.sums), msgspec.structs.astuple(last), strict=True)
            sums = _Counts(*(one + other for one, other in pairs))
        if sums == state.sums:
            return None  # a repetition, for example with new rate limits
        counts = last or sums.since(state.sums)
        if min(msgspec.structs.astuple(counts)) < 0:
            return UnreadablePart(line=line.number, why="a number of tokens is negative")
        began = moment(record.timestamp)
        if began is None:
            return UnreadablePart(line=line.number, why="the time is missing or impossible")
        state.sums = sums
        session = state.session or file.session
        seed = state.chain or state.first or session or str(file.path)
        text = f"{seed}\0{msgspec.structs.astuple(sums)}"
        state.chain = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
        above = self._above(state)
        return ImportedCall(
            identity=state.chain,
            line=line.number,
            provider=state.provider,
            model=state.model or "unknown",
            started_at=began,
            usage=_usage(counts),
            session=session,
            turn=state.turn or session,
            parent_turn=above,
            root_turn=above,
            depth=None if state.parent is None else 1,
            tags=tags_of(project=state.project, branch=state.branch),
        )

    def _above(self, state: _State) -> str | None:
        """The turn of the parent session that was running when this session started.

        If another process has read the parent session, the parent's file is read again.
        """
        if state.parent is None or state.above is not None:
            return state.above
        file = self._sessions.get(state.parent)
        if file is not None and state.parent not in self._complete_sessions:
            with contextlib.suppress(OSError), file.open("rb") as stream:
                for _ in self.read(SourceFile(path=file, session=state.parent), stream):
                    pass
        turns = self._turns.get(state.parent, [])
        place = bisect_right(turns, state.began, key=lambda turn: turn[0])
        state.above = turns[place - 1][1] if place else None
        return state.above


_WORDS = (b'"token_count"', b'"turn_context"', b'"session_meta"')


def _note_session(state: _State, payload: _Payload, at: int | None) -> None:
    """Record the session's id from the first such line. Later such lines are copies from earlier sessions."""
    if state.session is None:
        state.session = name(payload.id)
        state.first = name(payload.forked_from_id) or state.session
        state.began = at or 0
        state.provider = name(payload.model_provider) or state.provider
        state.project = name(payload.cwd)
        state.branch = None if payload.git is None else name(payload.git.branch)
        state.parent = _parent_of(payload)
    elif not state.chain and payload.id:
        state.first = name(payload.forked_from_id) or name(payload.id)


class _ResponseItem(msgspec.Struct):
    timestamp: datetime | None = None
    payload: Json = None


_decode_item = msgspec.json.Decoder(_ResponseItem).decode


def _message_of(line: Line, state: _State, file: SourceFile) -> ImportedMessage | None:
    """The message of a line. A fork repeats earlier messages."""
    try:
        record = _decode_item(line.data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    session, when = state.session or file.session, moment(record.timestamp)
    if session is None or when is None or not isinstance(record.payload, dict):
        return None
    mine = record.payload.get("id")
    found = message_of(record.payload, message_id=mine if isinstance(mine, str) else None)
    if found is None:
        return None
    return ImportedMessage(identity=str(line.number), session=session, at=when, message=found)


def _parent_of(payload: _Payload) -> str | None:
    if b'"parent_thread_id"' not in bytes(payload.source):
        return None
    subagent = _decode_origin(payload.source).subagent
    spawn = subagent.thread_spawn if isinstance(subagent, _Subagent) else None
    return None if spawn is None else name(spawn.parent_thread_id)


def _usage(counts: _Counts) -> TokenUsage:
    """Convert counts to usage. Cache reads and writes are part of the input, and reasoning is part of the
    output.
    """
    cached = min(counts.cached_input_tokens, counts.input_tokens)
    written = min(counts.cache_write_input_tokens, counts.input_tokens - cached)
    reasoning = min(counts.reasoning_output_tokens, counts.output_tokens)
    fits = (cached, written, reasoning) == (
        counts.cached_input_tokens,
        counts.cache_write_input_tokens,
        counts.reasoning_output_tokens,
    )
    return TokenUsage(
        input_tokens=counts.input_tokens - cached - written,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        output_tokens=counts.output_tokens,
        reasoning_tokens=reasoning,
        source=UsageSource.REPORTED if fits else UsageSource.INCONSISTENT,
    )


def _session_of(path: Path) -> str:
    """The session id in a file name such as ``rollout-2025-09-01T10-00-00-UUID.jsonl``."""
    return path.stem[-36:] if path.stem.startswith("rollout-") and len(path.stem) > 44 else path.stem
