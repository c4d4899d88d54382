"""Converts the typed parts of a question to values: the prompt, attachments, options and a schema."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from mimetypes import guess_type
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from callboard.adapters import AudioBlock, ContentBlock, DocumentBlock, ImageBlock, TextBlock
from callboard.bus import ConfigurationError
from callboard.bus.values.base import Json, JsonObject

from .. import TurnOptions
from ..models.catalogue import nearest
from .options import failing_as

# --- The prompt ---

NOTHING = "no question: pass it as an argument or pipe it in: git diff | callboard ask 'Review this change'"


class Pipe:
    """Standard input, read once and completely. A terminal, a closed stream and ``/dev/null`` are empty."""

    def __init__(self) -> None:
        self._data: bytes | None = None

    def read(self) -> bytes:
        if self._data is None:
            self._data = sys.stdin.buffer.read() if _is_pipe() else b""
        return self._data

    def text(self) -> str:
        """The whole input as text, without a final line break."""
        try:
            return self.read().decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigurationError("the input from the pipe is not text. Attach it with -a -") from None


def _is_pipe() -> bool:
    """Whether standard input is a pipe, a file or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def content_of(prompt: str, blocks: Sequence[ContentBlock]) -> str | list[ContentBlock]:
    """The content to send: the attachments, followed by the prompt."""
    if not prompt.strip() and not blocks:
        raise ConfigurationError(NOTHING)
    if not blocks:
        return prompt
    return [*blocks, TextBlock(prompt)] if prompt.strip() else list(blocks)


# --- Attachments ---

PIPE = "-"
"""The word for piped input among attachments."""


def attachment(source: str, media_type: str | None, read_pipe: Callable[[], bytes]) -> ContentBlock:
    if source.lower().startswith(("http://", "https://")):
        return of_address(source, media_type)
    if source == PIPE:
        return of_bytes(read_pipe(), "stdin", media_type)
    path = Path(source).expanduser()
    with failing_as(ConfigurationError, source):
        return of_bytes(path.read_bytes(), path.name, media_type)


def of_address(url: str, media_type: str | None) -> ContentBlock:
    """A block for a URL. The provider fetches it."""
    name = urlsplit(url).path.rpartition("/")[2]
    kind = media_type or guess_type(name)[0]
    if kind is None:
        raise ConfigurationError(f"{url}: its type is unknown. Set it with --at {url} TYPE")
    match kind.partition("/")[0]:
        case "image":
            return ImageBlock(url=url, media_type=kind)
        case "audio":
            return AudioBlock(url=url, media_type=kind)
        case _:
            return DocumentBlock(url=url, media_type=kind, name=name or None)


def of_bytes(data: bytes, name: str, media_type: str | None = None) -> ContentBlock:
    """A block for a file's bytes. The type is detected from the content first: a PNG named ``x.txt`` is an
    image.
    """
    if not data:
        raise ConfigurationError(f"{name}: is empty")
    block = _of_media_type(data, name, media_type) if media_type is not None else _sniffed(data, name)
    if block is None and (text := _as_text(data)) is not None:
        block = TextBlock(f'<attachment name="{name}">\n{text.rstrip()}\n</attachment>')
    guessed = guess_type(name)[0]
    if block is None and guessed is not None:
        block = _of_media_type(data, name, guessed)
    if block is None:
        raise ConfigurationError(f"{name}: its type is unknown. Set it with --at {name} TYPE")
    return block


def _sniffed(data: bytes, name: str) -> ContentBlock | None:
    """A block for bytes, if their type is detected from the content."""
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


def _of_media_type(data: bytes, name: str, media_type: str) -> ContentBlock | None:
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


# --- Options ---
# The code is pure. An option of a turn is written as in ``-o temperature 0.2``. The name of an option of a single
# provider starts with the provider, as in ``-o anthropic.top_k 40``.

KINDS: Mapping[str, object] = {
    "temperature": float,
    "top_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "seed": int,
    "max_output_tokens": int,
    "stop_sequences": list[str],
    "reasoning_effort": str,
    "verbosity": str,
    "user": str,
    "parallel_tool_calls": bool,
    "max_tool_rounds": int,
    "max_retries": int,
    "retry_empty": int,
    "timeout": float,
    "call_timeout": float,
    "background": bool,
    "continue_broken": bool,
    "include_raw": bool,
    "drain_for_usage": float,
    "fallback": list[str],
}
"""The options whose value is a word or a number, with the type of the value."""


def options_of(settings: Iterable[tuple[str, Json]]) -> TurnOptions:
    """Convert names and values to options. If an option occurs twice, the last value is used.

    A text is converted to the option's type. A list is JSON, or a single element. A name with a dot is a
    provider's own option, whose value is JSON or text.
    """
    found: dict[str, object] = {}
    of_providers: dict[str, JsonObject] = {}
    for name, value in settings:
        provider, dot, option = name.partition(".")
        if dot and provider and option:
            of_providers.setdefault(provider, {})[option] = _as_json(value)
        else:
            found[name] = _value(name, value)
    if of_providers:
        found["provider_options"] = of_providers
    return cast("TurnOptions", found)


def as_json_options(options: TurnOptions) -> JsonObject:
    """Convert options to names and values for a file. `options_of` reads them."""
    plain_options = {name: cast("Json", value) for name, value in options.items() if name != "provider_options"}
    for provider, fields in (options.get("provider_options") or {}).items():
        plain_options |= {f"{provider}.{name}": value for name, value in cast("JsonObject", fields).items()}
    return plain_options


def _value(name: str, value: Json) -> object:
    kind = KINDS.get(name)
    if kind is None:
        near = nearest(name, KINDS)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(KINDS)}."
        raise ConfigurationError(
            f"unknown option {name!r}: {hint} For an option of one provider, write PROVIDER.OPTION."
        )
    if kind == list[str] and isinstance(value, str):
        value = _as_json(value) if value.lstrip().startswith("[") else [value]
    if isinstance(value, str) and kind is not str:
        value = value.strip()
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(f"-o {name} must be {_SAID[kind]}, not {value!r}") from None


_SAID: Mapping[object, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a word",
    list[str]: "a text, or a JSON list of texts",
}


def _as_json(value: Json) -> Json:
    """The value of a JSON text. Any other text is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        read: Json = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return value
    return read


# --- Schemas: a file, the schema itself, or a short form ---
#
#     name, age int, born date, nick? str, tags str[], bio: what they are known for
#     [name, age int]                                     a list of such objects
#
# Commas or line breaks separate fields. A field is a name, its type (text if there is none), and after a colon its
# meaning. A question mark after the name makes the field optional.

FIELD_TYPES: dict[str, JsonObject] = {
    "str": {"type": "string"},
    "string": {"type": "string"},
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}
"""The schemas of the field types, by name."""

_FIELD = re.compile(
    r"(?P<name>[A-Za-z_][\w-]*)(?P<optional>\?)?(?:\s+(?P<type>[A-Za-z]+)(?P<list>\[\])?)?\s*(?::\s*(?P<says>.*))?"
)


def schema_of(schema_text: str) -> JsonObject:
    """Parse a schema in any supported form."""
    text = schema_text.strip()
    if text.endswith(".json") and "\n" not in text:
        try:
            return _of_json(Path(text).read_text(encoding="utf-8"), text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{text}: {getattr(error, 'strerror', None) or error}") from error
    if text.startswith("{"):
        return _of_json(text, "--schema")
    if text.startswith("[") and text.endswith("]"):
        return {"type": "array", "items": _object(text[1:-1])}
    return _object(text)


def _object(text: str) -> JsonObject:
    parts = [part.strip() for part in (text.splitlines() if "\n" in text.strip() else text.split(","))]
    fields = [_field(part.removesuffix(",")) for part in parts if part]
    if not fields:
        raise ConfigurationError("the schema has no field. Write it like 'name, age int'")
    return {
        "type": "object",
        "properties": {name: schema for name, schema, _ in fields},
        "required": [name for name, _, required in fields if required],
        "additionalProperties": False,
    }


def _field(text: str) -> tuple[str, JsonObject, bool]:
    """A field's name, its schema, and whether it is required."""
    found = _FIELD.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{text!r} is not a field of a schema such as 'age int: in years'")
    schema = FIELD_TYPES.get((found["type"] or "str").lower())
    if schema is None:
        raise ConfigurationError(
            f"{found['type']!r} is not a field type. Expected one of {', '.join(FIELD_TYPES)}"
        )
    if found["list"]:
        schema = {"type": "array", "items": schema}
    if found["says"]:
        schema = {**schema, "description": found["says"].strip()}
    return found["name"], schema, not found["optional"]


def _of_json(text: str, where: str) -> JsonObject:
    try:
        schema: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigurationError(f"{where} is not a JSON Schema: expected an object")
    return schema
