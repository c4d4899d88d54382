"""The schema that a caller wants instead of text, as the model gets it, and the reading of the reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar, cast

import msgspec

from callboard.adapters.schemas.sanitizer import normalise_schema
from callboard.adapters.schemas.strict import without_added_nulls
from callboard.bus.values.json import Json, JsonObject

from ..type_schema import SchemaError, check, check_schema, convert, inline_root, json_schema, refers_to

T = TypeVar("T")

_WRAPPED = "value"


class ObjectSchema(Generic[T]):
    """A type or a JSON Schema that a reply must follow.

    Providers take an object at the schema's root only. Anything else is wrapped into an object with the member
    ``value``, and taken out of it again.

    Args:
        of: A type, a hint, or a JSON Schema as a dict.

    Raises:
        SchemaError: It is no schema, or a type without one.
    """

    def __init__(self, of: object) -> None:
        schema = json_schema(of)
        check_schema(schema)
        if not _is_object(schema):
            schema = inline_root(normalise_schema(schema))
        self._type = None if isinstance(of, Mapping) else of
        self._is_wrapped = not _is_object(schema)
        self.sent = _wrapped(schema) if self._is_wrapped else schema

    def read(self, reply: Json) -> T:
        """The object of a whole reply.

        A null for an optional member that can't be null is left out, because models write it often.

        Raises:
            ValueError: The reply doesn't follow the schema. The text has the JSON path of the fault.
        """
        value = cast("Json", self.unwrapped(self._checked(reply)))
        return cast("T", value if self._type is None else convert(value, self._type))

    def _checked(self, reply: Json) -> Json:
        try:
            check(reply, self.sent)
        except ValueError:
            if self._is_wrapped and self._is_bare(reply):
                return {_WRAPPED: reply}
            cleaned = without_added_nulls(reply, self.sent) if isinstance(reply, dict) else reply
            if cleaned == reply:
                raise
            check(cleaned, self.sent)
            return cleaned
        return reply

    def bare(self, text: str) -> Json | msgspec.UnsetType:
        """The value in a text that has no object, where the model left the wrapper out; UNSET if it is none.

        It is a list within other words, or the whole text as a string.
        """
        if not self._is_wrapped:
            return msgspec.UNSET
        start, end = text.find("["), text.rfind("]")
        if 0 <= start < end:
            try:
                found: Json = msgspec.json.decode(text[start : end + 1])
            except msgspec.DecodeError:
                return msgspec.UNSET
            return found if self._is_bare(found) else msgspec.UNSET
        plain = text.strip()
        is_text = plain and plain[0] not in '{["`'
        return plain if is_text and self._is_bare(plain) else msgspec.UNSET

    def _is_bare(self, reply: Json) -> bool:
        """Whether a reply is the value itself, because the model left the wrapper out."""
        try:
            check({_WRAPPED: reply}, self.sent)
        except ValueError:
            return False
        return True

    def unwrapped(self, reply: Json) -> Json | msgspec.UnsetType:
        """The caller's part of a reply, or of the beginning of one; UNSET if nothing of it has come yet.

        A list, a number or a text is the value itself: the model left the wrapper out.
        """
        if not self._is_wrapped:
            return reply
        return reply.get(_WRAPPED, msgspec.UNSET) if isinstance(reply, dict) else reply


def _is_object(schema: JsonObject) -> bool:
    return schema.get("type") == "object" and not {"anyOf", "oneOf", "allOf", "$ref"} & schema.keys()


def _wrapped(schema: JsonObject) -> JsonObject:
    if refers_to(schema, "#"):
        raise SchemaError(
            "this schema refers to itself as '#', which works only for an object at the root: give it a name in "
            "$defs and refer to that"
        )
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    wrapped: JsonObject = {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
    }
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped
