"""Attachments: a file, an address or the pipe as a content block, of the kind that its content or name shows."""

from __future__ import annotations

from collections.abc import Callable
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import urlsplit

from callboard.adapters import AudioBlock, ContentBlock, DocumentBlock, ImageBlock, TextBlock
from callboard.bus import ConfigurationError

PIPE = "-"
"""The name of the pipe among attachments."""


def attachment(source: str, media_type: str | None, read_pipe: Callable[[], bytes]) -> ContentBlock:
    """The block of one attachment.

    Args:
        source: A path, an address that begins with http:// or https://, or ``-``.
        media_type: Its type, where neither its content nor its name shows it.
        read_pipe: Reads all of the pipe.

    Raises:
        ConfigurationError: It can't be read, or nobody can tell what it is.
    """
    if source.lower().startswith(("http://", "https://")):
        return of_address(source, media_type)
    if source == PIPE:
        return of_bytes(read_pipe(), "stdin", media_type)
    path = Path(source).expanduser()
    try:
        return of_bytes(path.read_bytes(), path.name, media_type)
    except OSError as error:
        raise ConfigurationError(f"{source}: {error.strerror or error}") from error


def of_address(url: str, media_type: str | None) -> ContentBlock:
    """The block of an address, which the provider fetches.

    Raises:
        ConfigurationError: The address doesn't end like a file of a known type.
    """
    name = urlsplit(url).path.rpartition("/")[2]
    kind = media_type or guess_type(name)[0]
    if kind is None:
        raise ConfigurationError(f"{url}: its name doesn't show what it is; say it with --at {url} TYPE")
    match kind.partition("/")[0]:
        case "image":
            return ImageBlock(url=url, media_type=kind)
        case "audio":
            return AudioBlock(url=url, media_type=kind)
        case _:
            return DocumentBlock(url=url, media_type=kind, name=name or None)


def of_bytes(data: bytes, name: str, media_type: str | None = None) -> ContentBlock:
    """The block of a file's bytes. Content goes before the name: a PNG that is called ``x.txt`` is an image.

    Raises:
        ConfigurationError: The file is empty, or nobody can tell what it is.
    """
    if not data:
        raise ConfigurationError(f"{name}: is empty")
    block = _of_type(data, name, media_type) if media_type is not None else _sniffed(data, name)
    if block is None and (text := _as_text(data)) is not None:
        block = TextBlock(f'<attachment name="{name}">\n{text.rstrip()}\n</attachment>')
    guessed = guess_type(name)[0]
    if block is None and guessed is not None:
        block = _of_type(data, name, guessed)
    if block is None:
        raise ConfigurationError(
            f"{name}: neither its content nor its name shows what it is; say it with --at {name} TYPE"
        )
    return block


def _sniffed(data: bytes, name: str) -> ContentBlock | None:
    """The block of bytes that show what they are."""
    for make in (
        lambda: ImageBlock(data=data),
        lambda: AudioBlock(data=data),
        lambda: DocumentBlock(data=data, name=name),
    ):
        try:
            block: ContentBlock = make()
        except ValueError:
            continue
        return block
    return None


def _of_type(data: bytes, name: str, media_type: str) -> ContentBlock | None:
    match media_type.partition("/")[0]:
        case "image":
            return ImageBlock(data=data, media_type=media_type)
        case "audio":
            return AudioBlock(data=data, media_type=media_type)
        case "text":
            return None
        case _:
            return DocumentBlock(data=data, media_type=media_type, name=name)


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
