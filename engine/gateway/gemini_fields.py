"""Converts keys, lists, signatures and schemas in the JSON of Gemini's clients. Pure.

Google's schemas are converted to JSON Schema. Gemini accepts any schema for a reply, but other providers accept
only objects. So the schema of a list, a number or an enum is wrapped in an object with the member ``value``, and
the reply is unwrapped.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from callboard.adapters.providers.gemini.contents import NO_SIGNATURE
from callboard.adapters.requests.content import encode_json
from callboard.adapters.requests.schemas import remembered
from callboard.bus.values.base import Json, JsonObject

from .failures import BadRequest

GEMINI = "gemini"
"""The provider of data that only Gemini understands."""

_UPPER = re.compile("_([a-z0-9])")


@lru_cache(maxsize=1024)
def _camel_name(name: str) -> str:
    return _UPPER.sub(lambda found: found[1].upper(), name)


def camel(value: Json, where: str) -> JsonObject:
    """An object with its top-level keys in camel case. If they already are in camel case, the same object.

    Raises:
        BadRequest: The value is not an object.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if "_" not in "".join(value):  # faster than a check of each name
        return value
    return {_camel_name(name): inner for name, inner in value.items()}


def each(value: Json, where: str) -> Sequence[Json]:
    """The items of a list. A single object is treated as a list of one, as on Google's servers.

    Raises:
        BadRequest: The value is neither a list nor an object.
    """
    if value is None:
        return ()
    if isinstance(value, dict):
        return (value,)
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a list", param=where)
    return value


# --- Signatures ---

_MARK = b64encode(b"callboard").decode()  # 9 bytes, so that the encoded mark does not depend on the bytes after it
_MADE_UP = frozenset(
    {
        NO_SIGNATURE,
        "skip_thought_signature_validator",
        "context_engineering_is_the_way_to_go",
        b64encode(b"context_engineering_is_the_way_to_go").decode(),
    }
)
"""Values that Google documents for calls without a signature (ai.google.dev, Thought signatures)."""


def token_of(state: str) -> str:
    """The signature that represents another provider's opaque state for the client.

    It is a short digest, in base64 as the wire requires.
    """
    import hashlib

    digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).digest()
    return _MARK + b64encode(digest[:9]).decode()


def real_signature(value: Json) -> str | None:
    """A signature that Gemini itself made; None for any other value."""
    if not isinstance(value, str) or not value or value in _MADE_UP or value.startswith(_MARK):
        return None
    return value


_CAMEL_KEYWORDS = frozenset(
    {"anyOf", "oneOf", "allOf", "minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
    | {"additionalProperties", "propertyOrdering", "prefixItems"}
)
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""Keywords with 64-bit integers, which are strings in the JSON of protocol buffers."""

_RENAMED = {"ref": "$ref", "defs": "$defs"}


def json_schema(schema: Json, where: str) -> JsonObject:
    """Convert Google's Schema object, whose types are in capitals, to a JSON Schema.

    The result is cached, because the same tools arrive with every request. It must not be changed.

    Raises:
        BadRequest: The schema is not an object.
    """
    if isinstance(schema, dict):
        try:
            return _remembered(schema)
        except BadRequest:
            pass  # not cached, because the error's text has the path
    return _converted(schema, where)


def _converted(schema: Json, where: str) -> JsonObject:
    written: JsonObject = {}
    nullable = False
    ordering: Json = None
    for name, value in camel_keywords(schema, where).items():
        match name, value:
            case "type", str():
                if value.upper() != "TYPE_UNSPECIFIED":
                    written[name] = value.lower()
            case "type", list():
                written[name] = [kind.lower() if isinstance(kind, str) else kind for kind in value]
            case "nullable", bool():
                nullable = value
            case "propertyOrdering", _:
                ordering = value
            case "example", _:
                written["examples"] = [value]
            case "format", "enum":
                pass  # the keyword `enum` has the same meaning
            case "properties" | "$defs" | "defs", dict():
                named: JsonObject = {
                    key: _converted(inner, f"{where}.{name}[{key}]") for key, inner in value.items()
                }
                written[_RENAMED.get(name, name)] = named
            case "items" | "additionalProperties", dict():
                written[name] = _converted(value, f"{where}.{name}")
            case "anyOf" | "oneOf" | "allOf" | "prefixItems", list():
                written[name] = [
                    _converted(inner, f"{where}.{name}[{number}]") for number, inner in enumerate(value)
                ]
            case _ if name in _COUNTS and isinstance(value, str) and value.isdigit():
                written[name] = int(value)
            case "ref", str():
                written["$ref"] = value
            case _:
                written[name] = value
    _put_in_order(written, ordering)
    return _or_null(written) if nullable else written


@remembered
def _remembered(schema: JsonObject) -> JsonObject:
    return _converted(schema, "schema")


def camel_keywords(schema: Json, where: str) -> JsonObject:
    """A schema with its keywords in camel case, as in JSON Schema."""
    if not isinstance(schema, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if "_" not in "".join(schema):
        return schema
    renamed: JsonObject = {}
    for name, value in schema.items():
        camel_name = next(iter(camel({name: None}, where)))
        renamed[camel_name if camel_name in _CAMEL_KEYWORDS else name] = value
    return renamed


def _put_in_order(schema: JsonObject, ordering: Json) -> None:
    properties = schema.get("properties")
    if isinstance(ordering, list) and isinstance(properties, dict):
        first = {name: properties[name] for name in ordering if isinstance(name, str) and name in properties}
        schema["properties"] = {**first, **properties}


def _or_null(schema: JsonObject) -> JsonObject:
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list) and None not in values:
        schema["enum"] = [*values, None]
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    elif isinstance(kind, list) and "null" not in kind:
        schema["type"] = [*kind, "null"]
    elif isinstance(choices := schema.get("anyOf"), list):
        schema["anyOf"] = [*choices, {"type": "null"}]
    elif "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema


# --- Replies that are not objects ---

_VALUE = "value"
_BEFORE = re.compile(rf'\s*{{\s*"{_VALUE}"\s*:\s*')
_BARE_BEFORE = f'{{"{_VALUE}":'


def is_bare(schema: JsonObject) -> bool:
    """Whether a schema describes a value other than an object. Such a value can be wrapped in an object."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "object" in kinds or not (kind or "enum" in schema):
        return False
    return b'"$ref":"#"' not in encode_json(schema)


def wrapped(schema: JsonObject) -> JsonObject:
    """The schema of an object whose only member is the value."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    written: JsonObject = {
        "type": "object",
        "properties": {_VALUE: inner},
        "required": [_VALUE],
        "additionalProperties": False,
    }
    return {**written, "$defs": schema["$defs"]} if "$defs" in schema else written


def unwrapped(text: str, *, as_text: bool) -> str:
    """The value in the text of a wrapped reply. Any other text is returned unchanged.

    Args:
        text: The text.
        as_text: Whether a string is returned without quotes, for ``text/x.enum``.
    """
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    if members.keys() != {_VALUE}:
        return text
    if as_text:
        value: Json = msgspec.json.decode(members[_VALUE])
        if isinstance(value, str):
            return value
    return bytes(members[_VALUE]).decode()


class Unwrapping:
    """Unwraps the value from a text that arrives in pieces. `feed` and `end` return the new text for the
    client.
    """

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text
        self._wrapper_text = ""  # the text that may belong to the wrapper
        self._started = False  # whether the wrapper's start has arrived
        self._bare = False  # whether the model left the wrapper out

    def feed(self, text: str) -> str:
        if self._bare:
            return text
        self._wrapper_text += text
        if self._as_text:
            return ""  # one short word; it is held until its end
        if not self._started:
            found = _BEFORE.match(self._wrapper_text)
            if found is None or found.end() == len(self._wrapper_text):
                so_far = "".join(self._wrapper_text.split())
                if _BARE_BEFORE.startswith(so_far):
                    return ""
                self._bare, so_far, self._wrapper_text = True, self._wrapper_text, ""
                return so_far
            self._started, self._wrapper_text = True, self._wrapper_text[found.end() :]
        last = self._wrapper_text.rfind("}")
        certain = self._wrapper_text if last < 0 else self._wrapper_text[:last]
        self._wrapper_text = self._wrapper_text[len(certain) :]
        return certain

    def end(self) -> str:
        rest, self._wrapper_text = self._wrapper_text, ""
        if self._as_text and not self._bare:
            return unwrapped(rest, as_text=True)
        return "" if self._started and rest.strip() == "}" else rest
