"""Field notes on servers: what each one demands, refuses, reports and sends, with a source for each note.

The notes are JSON Lines, one file a kind, beside this file. The book shows them as "What we know of your
server". Tests play every note. `labs/servers` behaves as the notes of kind A and B say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from callboard.bus.files import package_data

Kind = Literal["A", "B", "C", "D", "E"]
"""A: what must go back. B: what is refused. C: what errors say. D: what replies hold. E: what observers see."""

FILES: dict[Kind, str] = {
    "A": "history.jsonl",
    "B": "requests.jsonl",
    "C": "errors.jsonl",
    "D": "replies.jsonl",
    "E": "observers.jsonl",
}


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fact about one server."""

    id: str
    """Kind, server and a short name: `C-vllm-overflow`. Unique."""
    server: str
    """The name in the quirk table, or the vendor's name in lower case: `deepseek`, `azure`, `bedrock`."""
    kind: Kind
    wire: Literal["chat", "messages", "responses", "gemini", "ollama", "tgi", "interactions", "embeddings", "any"]
    fact: str
    """What the server does, in one plain sentence."""
    right: str
    """What Callboard does about it, in one plain sentence."""
    source: str
    """`owner/repository#number` of a public report, or the address of the server's documentation."""
    input: dict[str, Any]
    """What the test plays.

    Kind A and B: `rule` (a name in `labs/servers/rules.py`), `refusal` (`status`, `body`), and `conversation` or
    `request`. Kind C: `status`, `headers`, `body`, or `events` of a stream. Kind D: `body` or `events`.
    """
    expect: dict[str, Any]
    """What the test compares with: `error` (class name), `retry`, `fallback`, `text`, `calls`, `usage`, …"""
    failed: bool = False
    """Whether Callboard got it wrong before the note was written."""


def data(name: str) -> bytes:
    """Read a file of this folder."""
    return package_data(__name__, name)


def notes(kind: Kind | None = None) -> Iterator[Note]:
    """All notes, or those of one kind, in the order of the files."""
    decoder = msgspec.json.Decoder(Note)
    for each, name in FILES.items():
        if kind in (None, each):
            try:
                lines = data(name)
            except OSError:  # nothing is noted of this kind
                continue
            yield from decoder.decode_lines(lines)
