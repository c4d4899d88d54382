"""Bodies of ``multipart/form-data`` (RFC 7578): fields of text and files."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple


class FormPart(NamedTuple):
    """A field of a form, or a file."""

    name: str
    """The name of the field, in plain ASCII without quotes."""
    content: bytes
    """The content."""
    filename: str | None = None
    """The name of the file, in plain ASCII without quotes; None for a field that is no file."""
    media_type: str | None = None
    """The media type of the content; None leaves it out."""


def write_form(parts: Sequence[FormPart]) -> tuple[bytes, str]:
    """The body, and its content type. Equal parts give equal bodies, so that every attempt sends the same.

    The boundary is a hash of all contents: nothing that it separates can hold it.
    """
    digest = sha256()
    for part in parts:
        digest.update(b"%d:" % len(part.content) + part.content)
    boundary = digest.hexdigest()[:48]
    pieces: list[bytes] = []
    for part in parts:
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="{part.name}"'
        if part.filename is not None:
            head += f'; filename="{part.filename}"'
        if part.media_type is not None:
            head += f"\r\ncontent-type: {part.media_type}"
        pieces += [head.encode("ascii"), b"\r\n\r\n", part.content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode("ascii"))
    return b"".join(pieces), f"multipart/form-data; boundary={boundary}"
