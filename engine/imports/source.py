"""What every source gives: calls read from a file, and what could not be read.

A source is a pure function from the lines of one file to items. It keeps constant memory and opens nothing itself.
The importer does the rest: it finds files, remembers how far it read, and writes the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

import msgspec

from callboard.bus.values.base import ShortRepr
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage


class ImportedCall(ShortRepr, frozen=True, kw_only=True):
    """One call that another program made. A later item with the same identity corrects it."""

    identity: str
    """The call's id, unique within its source."""
    line: int
    """The line of the file, from 1; 0 for sources without lines."""
    provider: str
    """The provider's name, as prices know it."""
    model: str
    """The model's name without the provider."""
    started_at: int
    """Microseconds since the epoch."""
    usage: TokenUsage
    """The tokens, in Callboard's disjoint buckets."""
    stop_reason: StopReason | None = None
    """How the reply ended; None if the file does not say."""
    error: str | None = None
    """The error's type for a call that failed; None for a reply."""
    latency_ms: int | None = None
    """Milliseconds of the call; None if unknown."""
    first_token_ms: int | None = None
    """Milliseconds to the first content; None if unknown."""
    stated_cost_nano_usd: int | None = None
    """The cost that the file states, in nano-USD. It is kept beside the computed one."""
    session: str | None = None
    """The session's id in its source."""
    parent: str | None = None
    """The identity of the call whose tool started this one."""
    parent_tool_use_id: str | None = None
    """The tool call that started this one."""
    response_id: str | None = None
    """The provider's id of the reply."""
    request_id: str | None = None
    """The provider's id of the request."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Tags of the call, such as ``project``, ``branch`` and ``version``."""
    messages: tuple[Message, ...] = ()
    """The request's and the reply's content, only if the importer asked for it."""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file that could not be read. It costs a line in the report."""

    line: int
    """The line of the file, from 1; 0 for the whole file."""
    why: str
    """The reason, without any content of the file."""


Item: TypeAlias = ImportedCall | Unread


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a source."""

    path: Path
    """Where it is."""
    session: str | None = None
    """The session that the name of the file gives."""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Tags that the place of the file gives, such as ``project``."""


class Source(Protocol):
    """A program whose records can be imported. An entry point of the group ``callboard.sources`` adds one."""

    name: str
    """The name after ``callboard import``."""

    def places(self) -> Sequence[Path]:
        """The default places of its files, under the user's home folder."""
        ...

    def files(self, place: Path) -> Iterable[SourceFile]:
        """The files below a place, in the order of their first calls where that is known."""
        ...

    def read(self, file: SourceFile, stream: BinaryIO, *, content: bool = False) -> Iterator[Item]:
        """The items of a file from its start.

        Args:
            file: The file.
            stream: Its open bytes, from the start.
            content: Whether to give the messages, too.
        """
        ...
