"""Writes the requests of the programs as fixtures. Prose and personal data are removed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 48
"""The maximum length of a text that is kept, in characters."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"\b[0-9a-f]{32,}\b")
_KEPT_HEADERS = re.compile(
    r"anthropic-(beta|version)|openai-.*|x-app|.*session.*|.*thread.*|originator|x-goog-.*client"
)
_OWN = ("This is the draft", "This is the final")
"""Texts of the lab's own conversation."""

_PROSE = frozenset({"description", "instructions", "definition", "title", "$comment"})
_KEPT_WHOLE = frozenset(
    {"signature", "thoughtSignature", "encrypted_content", "data", "id", "call_id", "tool_use_id"}
)


class Sent(NamedTuple):
    """A request of a program."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int


def scrubbed(value: Any, name: str = "") -> Any:
    """A body without prose and without the ids of persons or machines.

    Texts of the programs are their vendors'. A long text is replaced by its length.
    """
    match value:
        case dict():
            return {key: scrubbed(inner, key) for key, inner in value.items()}
        case list():
            return [scrubbed(inner, name) for inner in value]
        case str() if value.lstrip()[:1] == "{" and (inner := _object(value)) is not None:
            return json.dumps(scrubbed(inner))
        case str():
            return _text(value, name)
        case _:
            return value


def _object(text: str) -> Any:
    """The JSON object in a text, such as Codex's metadata or a tool's arguments; None if the text is no JSON
    object.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(text: str, name: str) -> str:
    text = _UUID.sub("00000000-0000-4000-8000-000000000000", text)
    text = _HEX.sub(lambda found: "0" * len(found[0]), text)
    text = re.sub(r"/[^\s'\"]*/callboard-clients-\w+", "/lab", text)
    if name in _KEPT_WHOLE:
        return text
    if name in _PROSE:
        return "…" if text else ""
    if text.strip('"').startswith("Read /lab") or any(own in text for own in _OWN):
        return text
    return text if len(text) <= LONGEST else f"a text of {len(text)} characters"


def write_record(path: Path, requests: list[Sent], *, whole: bool) -> None:
    """Write the requests of a program: with `whole` all of them unchanged, else only the last one, scrubbed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [
        {
            "path": sent.path,
            "headers": {
                name: value if whole else _text(value, "id")
                for name, value in sent.headers.items()
                if whole or _KEPT_HEADERS.fullmatch(name)
            },
            "body": json.loads(sent.body) if whole else scrubbed(json.loads(sent.body)),
        }
        for sent in requests
        if sent.body and sent.status == 200
    ]
    path.write_text(json.dumps(records if whole else records[-1], indent=1, ensure_ascii=False) + "\n")
