"""Sessions of Gemini CLI and Qwen Code.

Gemini CLI writes ``~/.gemini/tmp/PROJECT/chats/session-*.json``, one object that is rewritten after each reply, or
JSON lines in later versions. Qwen Code, a fork, writes JSON lines in ``~/.qwen/projects``. Cached input is part of
the input. Thoughts are not part of the output, and tool prompts are not part of the input.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from callboard.bus.values.usage import TokenUsage

from ..source import (
    START,
    ImportedCall,
    ImportedMessage,
    Item,
    Mark,
    SourceFile,
    UnreadablePart,
    moment,
    name,
    tags_of,
    why_not,
)
from .records import Record, decoded, json_records, message_of, read_whole, tokens


class _Tokens(msgspec.Struct):
    """The counts that the program computes."""

    input: int = 0
    output: int = 0
    cached: int = 0
    thoughts: int = 0
    tool: int = 0


class _Metadata(msgspec.Struct, rename="camel"):
    """The counts that the provider reports, in the order of `_Tokens`."""

    prompt_token_count: int = 0
    candidates_token_count: int = 0
    cached_content_token_count: int = 0
    thoughts_token_count: int = 0
    tool_use_prompt_token_count: int = 0


_EMPTY = msgspec.Raw(b"")


class _Message(
    msgspec.Struct,
    rename={
        "session_id": "sessionId",
        "usage": "usageMetadata",
        "branch": "gitBranch",
        "tool_calls": "toolCalls",
    },
):
    id: str | None = None
    uuid: str | None = None
    type: str | None = None
    timestamp: datetime | None = None
    model: str | None = None
    tokens: _Tokens | None = None
    usage: _Metadata | None = None
    session_id: str | None = None
    cwd: str | None = None
    branch: str | None = None
    content: msgspec.Raw = _EMPTY
    message: msgspec.Raw = _EMPTY
    tool_calls: msgspec.Raw = _EMPTY


class _Session(msgspec.Struct, rename="camel"):
    session_id: str | None = None
    messages: list[msgspec.Raw] = []


class _Change(msgspec.Struct, rename={"to": "$set"}):
    """A line that replaces parts of the session."""

    to: _Session = msgspec.field(default_factory=_Session)


_decode_session = msgspec.json.Decoder(_Session).decode
_decode_change = msgspec.json.Decoder(_Change).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class GeminiCli:
    name = "gemini-cli"
    _home = ("GEMINI_CLI_HOME", ".gemini", "tmp")
    _provider = "gemini"

    def places(self) -> Sequence[Path]:
        variable, folder, inner = self._home
        folder_variable = os.environ.get(variable)
        return [(Path(folder_variable).expanduser() if folder_variable else Path.home()) / folder / inner]

    def files(self, place: Path) -> Iterable[SourceFile]:
        if place.is_file():
            yield SourceFile(path=place, session=place.stem)
            return
        for folder, folders, files in os.walk(place):
            folders.sort()
            if Path(folder).name != "chats" and Path(folder).parent.name != "chats" and Path(folder) != place:
                continue
            for file in sorted(files):
                if file.endswith((".json", ".jsonl")):
                    path = Path(folder, file)
                    yield SourceFile(path=path, session=path.stem, tags=_project_of(path))

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        if file.path.suffix == ".json":
            yield from self._object(file, stream, content=content)
            return
        session = start.state or file.session
        for record in json_records(stream, start):
            if isinstance(record, Mark):
                yield msgspec.structs.replace(record, state=session or "")
            elif isinstance(record, UnreadablePart):
                yield record
            else:
                try:
                    changed = _decode_change(record.data).to.messages if b'"$set"' in bytes(record.data) else []
                    messages = [_decode_message(each) for each in (record.data, *changed)]
                except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    yield UnreadablePart(line=record.line, why=why_not(error))
                    continue
                session = name(messages[0].session_id) or session
                for message in messages:
                    yield from self._call(message, session, record, file)
                    if content:
                        yield from _messages_of(message, session)

    def _object(self, file: SourceFile, stream: BinaryIO, *, content: bool) -> Iterator[Item]:
        data = read_whole(stream)
        if data is None:
            yield UnreadablePart(line=0, why="the file is too large")
            return
        try:
            session = _decode_session(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            yield UnreadablePart(line=0, why=why_not(error))
            return
        for raw in session.messages:
            try:
                message = _decode_message(raw)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                yield UnreadablePart(line=0, why=why_not(error))
                continue
            named = name(session.session_id) or file.session
            yield from self._call(message, named, Record(0, raw), file)
            if content:
                yield from _messages_of(message, named)

    def _call(
        self, message: _Message, session: str | None, record: Record, file: SourceFile
    ) -> Iterator[ImportedCall | UnreadablePart]:
        usage = _usage(message)
        if message.type not in ("gemini", "assistant", "model") or usage is None:
            return
        began = moment(message.timestamp)
        mine = message.id or message.uuid
        if began is None or mine is None:
            yield UnreadablePart(line=record.line, why="the time or the id is missing or impossible")
            return
        yield ImportedCall(
            identity=f"{session}/{mine}",
            line=record.line,
            provider=self._provider,
            model=name(message.model) or "unknown",
            started_at=began,
            usage=usage,
            session=session,
            turn=session,
            tags={**file.tags, **tags_of(project=message.cwd, branch=message.branch)},
        )


class QwenCode(GeminiCli):
    name = "qwen-code"
    _home = ("QWEN_HOME", ".qwen", "projects")
    _provider = "qwen"


def _messages_of(message: _Message, session: str | None) -> Iterator[ImportedMessage]:
    """The content of a message. Tool calls are in a later line of the same message."""
    mine, at = message.id or message.uuid, moment(message.timestamp)
    if mine is None or at is None or session is None or message.type is None:
        return
    text = message_of(decoded(message.message if bytes(message.message) else message.content), message.type, mine)
    calls = decoded(message.tool_calls) if bytes(message.tool_calls) else None
    uses = [{"functionCall": each} for each in calls] if isinstance(calls, list) else []
    for identity, found in ((mine, text), (f"{mine}/tools", message_of([*uses], "model", mine))):
        if found is not None:
            yield ImportedMessage(identity=identity, session=session, at=at, message=found)


def _usage(message: _Message) -> TokenUsage | None:
    counts = message.tokens or message.usage
    if counts is None:
        return None
    prompt, output, cached, thoughts, tool = (max(0, count) for count in msgspec.structs.astuple(counts))
    return tokens(total_input=prompt + tool, output=output + thoughts, read=cached, reasoning=thoughts)


def _project_of(path: Path) -> dict[str, str]:
    """The project's folder, as a tag. It is the path in a file of the folder, or a hash or short name if there is
    no such file.
    """
    folder = next((each for each in path.parents if each.name == "chats"), path).parent
    root = folder / ".project_root"
    try:
        return tags_of(project=root.read_text(encoding="utf-8", errors="replace")[:4096].strip() or folder.name)
    except OSError:
        return tags_of(project=folder.name)
