"""Claude Code's sessions: ``~/.claude/projects/PROJECT/SESSION.jsonl``, and files of sub-agents.

Each block of a reply has its own line, with the message's id and the usage at that time. So the highest usage is
used. Resumed and forked sessions repeat lines in other files. Calls of sub-agents are billed like all other calls.
They are in the session's file as sidechains, in ``agent-*.jsonl``, in progress lines, or in several of these.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from callboard.adapters.providers.anthropic.response import STOP_REASONS, whole_usage
from callboard.bus.values.usage import StopReason, TokenUsage

from ..source import (
    START,
    ImportedCall,
    ImportedLink,
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
    nano_of,
    tags_of,
    why_not,
)
from .records import decoded, message_of

_CALLS_BETWEEN_MARKS = 200
_MOST_REMEMBERED = 64
_DEEPEST = 8
"""The maximum depth of sub-agents that are followed."""
_MOST_AGENTS = 10_000
_EMPTY = msgspec.Raw(b"")


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: msgspec.Raw = _EMPTY
    stop_reason: str | None = None
    content: msgspec.Raw = _EMPTY


class _Line(msgspec.Struct, rename="camel"):
    type: str | None = None
    timestamp: datetime | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    prompt_id: str | None = None
    request_id: str | None = None
    agent_id: str | None = None
    is_sidechain: bool | None = None
    is_meta: bool | None = None
    is_api_error_message: bool | None = None
    is_compact_summary: bool | None = None
    cwd: str | None = None
    git_branch: str | None = None
    cost_usd: float | None = msgspec.field(default=None, name="costUSD")
    duration_ms: float | None = None
    message: _Message | None = None
    data: msgspec.Raw = _EMPTY
    tool_use_result: msgspec.Raw = _EMPTY
    parent_tool_use_id: str | None = msgspec.field(default=None, name="parentToolUseID")


class _Progress(msgspec.Struct, rename="camel"):
    agent_id: str | None = None
    message: _Line | None = None
    """A line of the sub-agent."""


class _Block(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None


class _AgentResult(msgspec.Struct, rename="camel"):
    agent_id: str | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_progress = msgspec.json.Decoder(_Progress).decode
_decode_blocks = msgspec.json.Decoder(list[_Block]).decode
_decode_result = msgspec.json.Decoder(_AgentResult).decode


class _Place(NamedTuple):
    """The place of a call's turn in the tree."""

    turn: str | None
    parent: str | None = None
    parent_tool_use_id: str | None = None
    parent_turn: str | None = None
    root_turn: str | None = None
    depth: int | None = None

    def below(self, turn: str, tool_use_id: str | None, call: str | None) -> _Place:
        """The place of a turn that a tool of this turn started."""
        return _Place(turn, call, tool_use_id, self.turn, self.root_turn or self.turn, (self.depth or 0) + 1)


class _Task(msgspec.Struct, array_like=True):
    """A call of the tool that starts a sub-agent."""

    tool_use_id: str
    call: str
    place: _Place
    started: bool = False
    """Whether a sidechain in the same file was matched to this call."""


class _State(msgspec.Struct, omit_defaults=True):
    """The state after the part of a file that was read."""

    prompt: str | None = None
    project: str | None = None
    tasks: list[_Task] = []
    chains: dict[str, str] = {}
    """The first line of the sidechain, for each of the latest lines."""
    roots: dict[str, _Place] = {}
    """The place of a sidechain, by its first line."""


_encode_state = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(_State).decode


class ClaudeCode:
    name = "claude-code"

    def __init__(self) -> None:
        self._agents: dict[str, _Place] = {}  # the places of sub-agents with their own files, by session and agent
        self._orphans: set[str] = set()  # sub-agents whose calls were returned before their place was known
        self._sessions: dict[str, Path] = {}  # the file of each session
        self._complete_sessions: set[str] = set()  # sessions whose file was read from its start

    def places(self) -> Sequence[Path]:
        config_dirs = os.environ.get("CLAUDE_CONFIG_DIR")
        homes = (
            [Path(each.strip()).expanduser() for each in config_dirs.split(",") if each.strip()]
            if config_dirs
            else [Path.home() / ".config" / "claude", Path.home() / ".claude"]
        )
        found = [home / "projects" for home in homes if (home / "projects").is_dir()]
        return found or [homes[-1] / "projects"]

    def files(self, place: Path) -> Iterable[SourceFile]:
        if place.is_file():
            yield _source_file(place, place.parent.name)
            return
        inner = place / "projects"
        top = inner if inner.is_dir() else place
        for folder, folders, files in os.walk(top):
            folders.sort()
            inside = Path(folder).relative_to(top).parts
            for file in sorted(files):
                if file.endswith(".jsonl"):
                    found = _source_file(Path(folder, file), inside[0] if inside else top.name)
                    if found.session is not None:
                        self._sessions[found.session] = found.path
                    yield found

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        if file.session is not None and not start.read_to:
            self._complete_sessions.add(file.session)
        reader = _Reader(file, self, start, content=content)
        for line in lines(stream, start):
            yield from reader.line(line)
        yield from reader.end()

    def place_of(self, session: str | None, agent: str) -> _Place:
        """The turn of a sub-agent. If another process read the call that started it, the session's file is read
        again.
        """
        key = f"{session}/{agent}"
        if key not in self._agents and session in self._sessions and session not in self._complete_sessions:
            self._complete_sessions.add(session)
            file = SourceFile(path=self._sessions[session], session=session)
            with contextlib.suppress(OSError), file.path.open("rb") as stream:
                for _ in self.read(file, stream):
                    pass
        if key not in self._agents:
            self._orphans.add(key)
        return self._agents.get(key) or _Place(key, depth=1)

    def link(self, session: str | None, agent: str, task: _Task, *, goes_on: bool) -> ImportedLink | None:
        """Record the tool call that started a sub-agent. Returns a link if calls were returned before."""
        key = f"{session}/{agent}"
        self._agents[key] = place = task.place.below(key, task.tool_use_id, task.call)
        _forget(self._agents, _MOST_AGENTS)
        if place.parent_turn is None:
            return None
        return ImportedLink(session=session, **place._asdict(), late=goes_on or key in self._orphans)


def _source_file(path: Path, project: str) -> SourceFile:
    session = None if path.stem.startswith("agent-") else path.stem
    return SourceFile(path=path, session=session, tags={"project": project})


class _Reader:
    def __init__(self, file: SourceFile, source: ClaudeCode, start: Mark, *, content: bool) -> None:
        self._file = file
        self._source = source
        self._goes_on = start.read_to > 0
        self._agents: set[str] = set()  # the sub-agents whose links were returned
        self._linked: list[ImportedLink] = []
        self._content = content
        self._state = _decode_state(start.state) if start.state else _State()
        self._call: ImportedCall | None = None  # the latest call, which the next line may correct
        self._call_count = 0
        self._mark = start
        self._last_usage: tuple[bytes, TokenUsage | None] = b"", None  # the last usage as JSON, and its tokens

    def line(self, line: Line) -> Iterator[Item]:
        if self._call_count >= _CALLS_BETWEEN_MARKS:
            yield from self._take()
            self._call_count = 0
            yield self._marked()
        fault = broken_line(line)
        if fault is not None:
            yield fault
        elif _may_matter(line.data) or (self._content and b'"message"' in line.data):
            try:
                record = _decode_line(line.data)
                call = self._note(record, line)
                message = self._message_of(record, line) if self._content else None
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                yield UnreadablePart(line=line.number, why=why_not(error))
            except _IncompleteLine as error:
                yield UnreadablePart(line=line.number, why=str(error))
            else:
                yield from self._linked
                self._linked.clear()
                if message is not None:
                    yield message
                if call is not None:
                    yield from self._add(call)
        if line.complete:
            self._mark = Mark(read_to=line.end, line=line.number)

    def end(self) -> Iterator[Item]:
        yield from self._take()
        yield self._marked()

    def _marked(self) -> Mark:
        return msgspec.structs.replace(self._mark, state=_encode_state(self._state).decode())

    def _add(self, call: ImportedCall) -> Iterator[Item]:
        before = self._call
        if before is None or before.identity != call.identity:
            yield from self._take()
            self._call = call
        elif _amount(before) < _amount(call):
            self._call = msgspec.structs.replace(call, started_at=min(before.started_at, call.started_at))

    def _take(self) -> Iterator[Item]:
        if self._call is not None:
            self._call_count += 1
            yield self._call
            self._call = None

    def _message_of(self, line: _Line, at: Line) -> ImportedMessage | None:
        """The message of a line. Messages of sub-agents are left out, because they belong to another
        conversation.
        """
        message, session, when = line.message, self._session(line), moment(line.timestamp)
        if message is None or session is None or when is None or line.is_sidechain or line.agent_id:
            return None
        if line.type not in ("user", "assistant") or line.is_meta or not bytes(message.content):
            return None
        found = message_of(decoded(message.content), line.type, name(line.uuid))
        if found is None:
            return None
        identity = name(line.uuid) or str(at.number)
        return ImportedMessage(identity=identity, session=session, at=when, message=found)

    # --- Lines ---

    def _note(self, line: _Line, at: Line) -> ImportedCall | None:
        self._note_project(line)
        if line.type == "assistant":
            return self._assistant(line, at)
        if line.type == "progress":
            return self._progress(line, at)
        if line.type == "user":
            self._user(line)
        return None

    def _note_project(self, line: _Line) -> None:
        if line.cwd and (self._state.project is None or line.cwd != self._state.project):
            folder = self._file.tags.get("project")
            if _folder_of(line.cwd) == folder:
                self._state.project = name(line.cwd)

    def _user(self, line: _Line) -> None:
        content = b"" if line.message is None else bytes(line.message.content)
        if b'"tool_result"' in content:
            if b'"agentId"' in bytes(line.tool_use_result):
                agent = _decode_result(line.tool_use_result).agent_id
                for block in _decode_blocks(content):
                    self._link(line, agent, block.tool_use_id)
            self._note_chain(line)
        elif line.is_sidechain or line.agent_id:
            self._note_chain(line)
        elif not line.is_meta and not line.is_compact_summary and line.uuid:
            self._state.prompt = line.prompt_id or line.uuid

    def _note_chain(self, line: _Line) -> None:
        """Record the sidechain of a line. The first line of a sidechain has no parent."""
        if not line.is_sidechain or line.agent_id or not line.uuid:
            return
        state = self._state
        root = state.chains.get(line.parent_uuid or "")
        if root is None:
            root = line.uuid
            task = next((each for each in state.tasks if not each.started), None)
            if task is None:
                place = self._main(line)
                state.roots[root] = place.below(root, None, None)
            else:
                task.started = True
                state.roots[root] = task.place.below(root, task.tool_use_id, task.call)
            _forget(state.roots)
        state.chains[line.uuid] = root
        _forget(state.chains)

    def _progress(self, line: _Line, at: Line) -> ImportedCall | None:
        progress = _decode_progress(line.data) if line.data != _EMPTY else _Progress()
        agent, inner = progress.agent_id, progress.message
        self._link(line, agent, line.parent_tool_use_id)
        if inner is None or inner.type != "assistant" or inner.message is None:
            return None
        continued = msgspec.structs.replace(
            line,
            message=inner.message,
            timestamp=inner.timestamp or line.timestamp,
            uuid=inner.uuid or line.uuid,
            request_id=inner.request_id or line.request_id,
            agent_id=agent or line.parent_tool_use_id,
        )
        return self._assistant(continued, at)

    def _link(self, line: _Line, agent: str | None, tool_use_id: str | None) -> None:
        task = next((each for each in self._state.tasks if each.tool_use_id == tool_use_id), None)
        if agent and task is not None and agent not in self._agents:
            self._agents.add(agent)
            link = self._source.link(self._session(line), agent, task, goes_on=self._goes_on)
            if link is not None:
                self._linked.append(link)

    # --- Calls ---

    def _assistant(self, line: _Line, at: Line) -> ImportedCall | None:
        message = line.message
        self._note_chain(line)
        if message is None or message.usage in (_EMPTY, _NULL) or message.model == "<synthetic>":
            return None
        if line.is_api_error_message:
            return None
        began = moment(line.timestamp)
        if began is None:
            raise _IncompleteLine("the time is missing or impossible")
        usage = self._usage(message.usage)
        if usage is None:
            return None
        before = self._call
        is_next = before is not None and message.id is not None and before.response_id == message.id
        if before is not None and is_next and line.request_id in (None, before.request_id):
            if _starts_agents(message):
                self._note_tasks(message, before.identity, self._place(line))
            return msgspec.structs.replace(
                before,
                line=at.number,
                model=name(message.model) or before.model,
                started_at=began,
                usage=usage,
                stop_reason=_stop_reason(message.stop_reason),
                stated_cost_nano_usd=nano_of(line.cost_usd),
            )
        identity = self._identity(line, message, at)
        place = self._place(line)
        if _starts_agents(message):
            self._note_tasks(message, identity, place)
        tags = {**self._file.tags, **tags_of(project=self._state.project, branch=line.git_branch)}
        return ImportedCall(
            identity=identity,
            line=at.number,
            provider="anthropic",
            model=name(message.model) or "unknown",
            started_at=began,
            usage=usage,
            stop_reason=_stop_reason(message.stop_reason),
            latency_ms=None if not line.duration_ms or line.duration_ms < 0 else int(line.duration_ms),
            stated_cost_nano_usd=nano_of(line.cost_usd),
            session=self._session(line),
            response_id=name(message.id),
            request_id=name(line.request_id),
            tags=tags,
            **place._asdict(),
        )

    def _identity(self, line: _Line, message: _Message, at: Line) -> str:
        if message.id is None:
            return line.uuid or hashlib.blake2b(at.data, digest_size=16).hexdigest()
        return message.id if line.request_id is None else f"{message.id}:{line.request_id}"

    def _usage(self, raw: msgspec.Raw) -> TokenUsage | None:
        """The tokens of a line. Most lines of a reply have equal tokens, so the last result is cached."""
        encoded = bytes(raw)
        if encoded != self._last_usage[0]:
            usage = whole_usage(raw)
            if usage is not None:
                usage = msgspec.structs.replace(usage, raw=None, service_tier=name(usage.service_tier))
            self._last_usage = encoded, usage
        return self._last_usage[1]

    def _place(self, line: _Line) -> _Place:
        if line.agent_id:
            return self._source.place_of(self._session(line), line.agent_id)
        if line.is_sidechain:
            root = self._state.chains.get(line.uuid or "") or self._state.chains.get(line.parent_uuid or "")
            return self._state.roots.get(root or "") or _Place(root or line.uuid, depth=1)
        return self._main(line)

    def _main(self, line: _Line) -> _Place:
        return _Place(self._state.prompt or self._session(line))

    def _session(self, line: _Line) -> str | None:
        return name(line.session_id) or self._file.session

    def _note_tasks(self, message: _Message, identity: str, place: _Place) -> None:
        if place.depth is not None and place.depth >= _DEEPEST:
            return
        for block in _decode_blocks(message.content):
            if block.type == "tool_use" and block.name in ("Task", "Agent") and block.id:
                self._state.tasks.append(_Task(block.id, identity, place))
        del self._state.tasks[:-_MOST_REMEMBERED]


def _amount(call: ImportedCall) -> tuple[int, int]:
    """The amount that grows with the lines of a reply. If the reply falls back to another model, its input may
    change.
    """
    return 0 if call.usage is None else call.usage.output_tokens, call.revision


def _starts_agents(message: _Message) -> bool:
    content = bytes(message.content)
    return b'"Task"' in content or b'"Agent"' in content


class _IncompleteLine(Exception):
    """A line that lacks required fields of a call."""


_NULL = msgspec.Raw(b"null")


def _may_matter(data: bytes) -> bool:
    """Whether a line may contain usage, a prompt or a link to a sub-agent. Most bytes of a file are in other
    lines.
    """
    if b'"usage"' in data or b'"agentId"' in data:
        return True
    if b'"tool_result"' in data:
        return b'"isSidechain":true' in data or b'"isSidechain": true' in data
    return b'"user"' in data


def _stop_reason(word: str | None) -> StopReason | None:
    return None if not word else STOP_REASONS.get(word, StopReason.PROVIDER_SPECIFIC)


def _folder_of(cwd: str) -> str:
    """The name of Claude Code's folder for the sessions of a project."""
    return re.sub("[^a-zA-Z0-9]", "-", cwd)


def _forget(
    remembered: dict[str, object] | dict[str, str] | dict[str, _Place], most: int = _MOST_REMEMBERED
) -> None:
    """Remove the oldest entry of a dict that is full."""
    if len(remembered) > most:
        del remembered[next(iter(remembered))]
