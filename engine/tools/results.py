"""The result of a tool's function, in the form that the model sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import PurePath
from typing import TypeAlias

import msgspec

from callboard.adapters import DocumentBlock, ImageBlock, TextBlock
from callboard.bus.values.content import OpaqueBlock, ResultPart

_PARTS = (TextBlock, ImageBlock, DocumentBlock, OpaqueBlock)

ResultContent: TypeAlias = str | tuple[ResultPart, ...]


class ToolError(Exception):
    """Raise it in a tool to tell the model what went wrong. Of any other exception the model is told type and
    text.

    Args:
        content: The words or blocks for the model.
    """

    def __init__(self, content: str | Sequence[ResultPart]) -> None:
        super().__init__(content if isinstance(content, str) else "the tool failed")
        self.content: ResultContent = content if isinstance(content, str) else tuple(content)


def as_content(value: object) -> ResultContent:
    """The content of a result. Text stays text, and blocks stay blocks. Any other value becomes JSON.

    JSON takes msgspec Structs, dataclasses, pydantic models, dates, sets and the like.

    Raises:
        TypeError: The value can't be written as JSON. The text says what to return instead.
    """
    match value:
        case str():
            return value
        case TextBlock() | ImageBlock() | DocumentBlock() | OpaqueBlock():
            return (value,)
        case list() | tuple() if any(isinstance(part, _PARTS) for part in value):
            return tuple(_part(part) for part in value)
        case bytes() | bytearray() | memoryview():
            raise TypeError(
                "the tool returned bytes: return text, or a block such as ImageBlock(data=...), or "
                "DocumentBlock(data=..., media_type=...)"
            )
        case _:
            return _as_json(value)


def _part(value: object) -> ResultPart:
    match value:
        case TextBlock() | ImageBlock() | DocumentBlock() | OpaqueBlock():
            return value
        case str():
            return TextBlock(value)
        case _:
            return TextBlock(_as_json(value))


def _as_json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except (ValueError, RecursionError) as error:  # half a surrogate pair, an integer beyond 64 bits, a loop
        raise TypeError(f"the tool's result can't be written as JSON: {error}") from error


def _plain(value: object) -> object:
    """A value that JSON doesn't know, as a value that it knows.

    Raises:
        TypeError: There is no such value.
    """
    dump = getattr(value, "model_dump", None)  # pydantic's, without depending on pydantic
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        f"the tool returned a {type(value).__name__}, which is no JSON: return text, a JSON value, a dataclass, "
        "a Struct, a model, or content blocks"
    )
