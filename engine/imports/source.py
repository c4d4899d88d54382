"""The interface of all sources: they return the calls in a file, and its unreadable parts.

A source converts the bytes of one file to items, in constant memory. It writes nothing and stores no positions.
The importer finds changed files, stores read positions, and writes the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.bus.clock import to_us
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import ShortRepr
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage


class ImportedCall(ShortRepr, frozen=True, kw_only=True):
    """A call that another program made. A later item with the same identity and more tokens corrects it."""

    identity: str
    """The call's id, unique within its source."""
    line: int
    """The line of the file, from 1; 0 for sources without lines."""
    provider: str
    """The provider's name in price tables."""
    model: str
    """The model's name without the provider."""
    started_at: int
    """Microseconds since the epoch."""
    usage: TokenUsage | None
    """The tokens, as Callboard's disjoint counts; None if unknown."""
    stop_reason: StopReason | None = None
    """How the reply ended; None if unknown."""
    error_class: str | None = None
    """A value of `ErrorClass` for a call that failed; None for a reply."""
    error_type: str | None = None
    """The error's name in the file."""
    latency_ms: int | None = None
    """The duration of the call in milliseconds; None if unknown."""
    first_token_ms: int | None = None
    """Milliseconds from the start to the first content; None if unknown."""
    stated_cost_nano_usd: int | None = None
    """The cost in the file, in nano-USD. It is stored next to the computed cost."""
    session: str | None = None
    """The session's id in its source."""
    turn: str | None = None
    """The name of the call's turn, unique within its source."""
    parent: str | None = None
    """The identity of the call whose tool started this call."""
    parent_tool_use_id: str | None = None
    """The id of the tool call that started this call."""
    parent_turn: str | None = None
    """The name of the turn that ran that tool."""
    root_turn: str | None = None
    """The name of the turn at the root of the tree; None for the root's own calls."""
    depth: int | None = None
    """The number of turns above the call's turn; None for a call that no tool started."""
    response_id: str | None = None
    """The provider's id of the reply."""
    request_id: str | None = None
    """The provider's id of the request."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Tags of the call, such as ``project`` and ``branch``."""

    @property
    def revision(self) -> int:
        """A number that grows with the tokens of the call. If there are two items for one call, the item with the
        larger number is used. So the order in which files are read does not matter.
        """
        tokens = 0 if self.usage is None else self.usage.total_tokens
        ended = self.stop_reason is not None or self.error_class is not None
        return (
            8 * tokens + 4 * ended + 2 * (self.stated_cost_nano_usd is not None) + (self.parent_turn is not None)
        )


class ImportedLink(msgspec.Struct, frozen=True, kw_only=True):
    """The tool call that started a turn, if a source finds it after the calls of the turn."""

    session: str | None
    """The session id of the turn."""
    turn: str
    """The turn's name."""
    parent: str | None
    """The identity of the call whose tool started the turn."""
    parent_tool_use_id: str | None
    """The id of the tool call that started the turn."""
    parent_turn: str
    """The name of the turn that ran that tool."""
    root_turn: str
    """The name of the turn at the root of the tree."""
    depth: int
    """The number of turns above."""
    late: bool = True
    """False if only an earlier import can have returned calls of the turn. A first import ignores such a link."""


class ImportedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a session. Sources return messages only if the importer requests content."""

    identity: str
    """The message's id, unique within its session."""
    session: str
    """The session's id in its source."""
    at: int
    """The time of the message, in microseconds since the epoch."""
    message: Message
    """The message. Messages are returned in the order of the session."""


class UnreadablePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file that could not be read, for the report."""

    line: int
    """The line of the file, from 1; 0 for the whole file."""
    why: str
    """The reason, without any content of the file."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A position in a file at which the next import can continue, because all items before it were returned."""

    read_to: int = 0
    """The number of bytes before the position."""
    line: int = 0
    """The number of lines before the position."""
    state: str = ""
    """The source's own state for the part before the position, in any form."""


START: Final = Mark()

Item: TypeAlias = ImportedCall | ImportedLink | ImportedMessage | UnreadablePart | Mark


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a source."""

    path: Path
    """The path of the file."""
    session: str | None = None
    """The session in the file's name."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Tags from the file's path, such as ``project``."""


class Source(Protocol):
    """A program whose records can be imported. An entry point of the group ``callboard.sources`` adds one.

    The entry point is a class or a function without arguments. Each import calls it once, so the object may use
    data from one file to read another.
    """

    name: str
    """The name after ``callboard import``."""

    def places(self) -> Sequence[Path]:
        """The default places of the program's files, in the user's home folder."""
        ...

    def files(self, place: Path) -> Iterable[SourceFile]:
        """The files in a folder, or the file itself."""
        ...

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        """Return the items of a file.

        Args:
            file: The file.
            stream: The open file, at the position `start.read_to`.
            start: The last mark of the previous import. A source without marks always gets `START`.
            content: Whether to return the messages, too.
        """
        ...


@runtime_checkable
class ServerSource(Source, Protocol):
    """A source that also reads a database on a server."""

    def read_server(self, dsn: str, start: Mark = START, *, content: bool = False) -> Iterator[Item]:
        """Return the items in a database.

        Args:
            dsn: The address, such as ``postgresql://…``.
            start: The last mark of the previous import.
            content: Whether to return the messages, too.
        """
        ...


# --- Sources by name ---

GROUP: Final = "callboard.sources"

SOURCES: Final[Mapping[str, str]] = {
    "claude-code": "claude_code:ClaudeCode",
    "codex": "codex:Codex",
    "gemini-cli": "gemini_cli:GeminiCli",
    "qwen-code": "gemini_cli:QwenCode",
    "opencode": "opencode:OpenCode",
    "litellm": "request_logs:LiteLlm",
    "langfuse": "request_logs:Langfuse",
    "otlp": "otlp:Otlp",
    "llm": "request_logs:Llm",
}
"""Callboard's own sources, each as ``module:class`` in the folder ``sources``."""


def source_names() -> list[str]:
    """The names of all sources, including plugins."""
    from importlib.metadata import entry_points

    return sorted({*SOURCES, *entry_points(group=GROUP).names})


def source_named(name: str) -> Source:
    """A source by its name. Raises ConfigurationError if there is none."""
    from importlib import import_module
    from importlib.metadata import entry_points

    if name in SOURCES:
        module, _, kind = SOURCES[name].partition(":")
        made: Source = getattr(import_module(f".sources.{module}", __package__), kind)()
        return made
    for found in entry_points(group=GROUP, name=name):
        try:
            plugin: Source = found.load()()
        except Exception as error:
            raise ConfigurationError(f"the source {name!r} can't be loaded: {error!r}") from error
        return plugin
    raise ConfigurationError(f"there is no source {name!r}. Use {', '.join(source_names())}")


# --- Lines, one at a time ---

LONGEST_LINE: Final = 8 * 1024 * 1024
"""The maximum number of bytes of a line. A longer line is skipped, because no record with usage is that long."""
_SKIPPED_AT_ONCE = 1024 * 1024


class Line(NamedTuple):
    number: int
    """The number of the line, from 1."""
    start: int
    """The number of bytes before the line."""
    end: int
    """The number of bytes up to the line's end."""
    data: bytes
    """The content of the line; empty if it was too long."""
    complete: bool = True
    """Whether the line ends with a newline. Otherwise the program may not have written all of it yet."""
    too_long: bool = False
    """Whether the line was skipped because it was longer than `LONGEST_LINE`."""


def lines(stream: BinaryIO, start: Mark = START, longest: int = LONGEST_LINE) -> Iterator[Line]:
    """The lines of a stream, from the position `start`. Only one line is in memory."""
    number, place = start.line, start.read_to
    while data := stream.readline(longest):
        number += 1
        begin, place = place, place + len(data)
        if data.endswith(b"\n") or len(data) < longest:
            yield Line(number, begin, place, data, data.endswith(b"\n"))
            continue
        del data
        rest = b""
        while not rest.endswith(b"\n") and (rest := stream.readline(_SKIPPED_AT_ONCE)):
            place += len(rest)
        yield Line(number, begin, place, b"", rest.endswith(b"\n"), too_long=True)


def broken_line(line: Line) -> UnreadablePart | None:
    """The reason why a line can't be a JSON object; None if it may be one, or is empty."""
    if line.too_long:
        return UnreadablePart(line=line.number, why="the line is too long")
    if line.data[:1] == b"{" and line.data[-2:] == b"}\n":
        return None
    text = line.data.strip()
    if not text or (text[:1] == b"{" and text[-1:] == b"}"):
        return None
    return UnreadablePart(
        line=line.number, why="not valid JSON" if line.complete else "the last line is incomplete"
    )


# --- Values of files, which may be anything ---


def why_not(error: msgspec.MsgspecError | UnicodeError | RecursionError | ValueError) -> str:
    """The reason why a line could not be decoded, without quoting the line."""
    if isinstance(error, msgspec.ValidationError):
        _, at, path = str(error).rpartition(" - at `")
        return f"unexpected value at {path.rstrip('`')}" if at else "unexpected form"
    return "not valid JSON"


EARLIEST_US: Final = 1_577_836_800_000_000
"""2020-01-01, the earliest plausible time, in microseconds since the epoch. No file of these programs is older."""
LATEST_US: Final = 4_102_444_800_000_000
"""2100-01-01, the latest plausible time, in microseconds since the epoch."""


def moment(value: datetime | None) -> int | None:
    """Convert a time to microseconds since the epoch; None if it is missing or implausible. Without a zone, it is
    UTC.
    """
    if value is None:
        return None
    if value.tzinfo is None:
        from datetime import UTC

        value = value.replace(tzinfo=UTC)
    found = to_us(value)
    return found if EARLIEST_US <= found < LATEST_US else None


LONGEST_NAME: Final = 300


def name(value: str | None) -> str | None:
    """Normalize a name from a file, such as an id, a model or a folder, to one line of limited length. None if it
    is empty.
    """
    if not value:
        return None
    cut = value[:LONGEST_NAME]
    return cut if cut.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in cut)


def tags_of(**values: str | None) -> dict[str, str]:
    """Tags from values, without missing values."""
    return {key: found for key, value in values.items() if (found := name(value))}


def nano_of(usd: float | str | None) -> int | None:
    """US dollars as nano-USD; None if the value is not an amount."""
    if usd is None or isinstance(usd, bool):
        return None
    from decimal import Decimal, InvalidOperation

    try:
        nano = Decimal(str(usd)).scaleb(9).to_integral_value()
    except (InvalidOperation, ValueError):
        return None
    return int(nano) if nano.is_finite() and 0 <= nano < 10**15 else None
