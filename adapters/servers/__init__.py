"""Field notes on servers, with a source for each note.

The notes are JSON Lines, one file for each kind, in this folder. The book shows them as "What we know of your
server". Tests run every note. `labs/servers` implements the notes of kind A and B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from callboard.bus.files import package_data

Kind = Literal["A", "B", "C", "D", "E"]
"""A: content that must be sent back. B: refusals. C: errors. D: replies. E: observers."""

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
    """The server's behaviour, in one plain sentence."""
    right: str
    """Callboard's behaviour, in one plain sentence."""
    source: str
    """The source: `owner/repository#number` of a public report, or the address of the server's documentation."""
    input: dict[str, Any]
    """The input of the test.

    Kind A and B: `rule` (a name in `labs/servers/rules.py`), `refusal` (`status`, `body`), and `conversation` or
    `request`. Kind C: `status`, `headers`, `body`, or `events` of a stream. Kind D: `body` or `events`.
    """
    expect: dict[str, Any]
    """The expected result: `error` (class name), `retry`, `fallback`, `text`, `calls`, `usage`, …"""
    failed: bool = False
    """Whether Callboard behaved wrongly before the note was written."""


def data(name: str) -> bytes:
    """Read a file of this folder."""
    return package_data(__name__, name)


def notes(kind: Kind | None = None) -> Iterator[Note]:
    """All notes, or the notes of one kind, in the order of the files."""
    decoder = msgspec.json.Decoder(Note)
    for each, name in FILES.items():
        if kind in (None, each):
            try:
                lines = data(name)
            except OSError:  # there are no notes of this kind
                continue
            yield from decoder.decode_lines(lines)
