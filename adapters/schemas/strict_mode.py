"""The use of OpenAI's strict mode: the tools and replies for which it is on, and its effect on the reading of
replies.

`strict_schema` rewrites the schemas. A schema that strict mode can't take goes without it, unless a tool's
definition insists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import msgspec

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.json import JsonObject
from callboard.bus.values.messages import ToolDefinition

from .memory import remembered
from .sanitizer import normalise_schema
from .strict import NotStrict, StrictSchema, to_strict, without_added_nulls


def strict_tool(tool: ToolDefinition, *, by_default: bool) -> StrictSchema | str | None:
    """The strict schema of a tool. None if strict mode is off for it. A text if strict mode is impossible for it.

    Args:
        tool: The definition of the tool.
        by_default: Whether strict mode is on where the definition leaves it open.

    Raises:
        InvalidRequestError: The definition insists on strict mode, and its schema can't be strict.
    """
    if not (by_default if tool.strict is None else tool.strict):
        return None
    strict = _strict(tool.input_schema)
    if isinstance(strict, str) and tool.strict:
        raise InvalidRequestError(f"tool {tool.name!r} can't be strict: {strict}; define it with strict=False")
    return strict


def plain_schema(tool: ToolDefinition) -> JsonObject:
    """The tool's schema without strict mode, written as all targets want it."""
    try:
        text = msgspec.json.encode(tool.input_schema)
    except (TypeError, ValueError, OverflowError, RecursionError):  # whoever writes the body decides about that
        return tool.input_schema
    return _plain(text)


@functools.lru_cache(maxsize=256)
def _plain(schema: bytes) -> JsonObject:
    return normalise_schema(msgspec.json.decode(schema, type=JsonObject))


def strict_reply(schema: JsonObject) -> JsonObject:
    """The fields `schema` and `strict` of a reply's form.

    Strict only where the schema is strict as it is: added nulls could not be taken back out of a text.
    """
    strict = _strict(schema)
    if isinstance(strict, StrictSchema) and not strict.adds_nulls:
        return {"schema": strict.schema, "strict": True}
    return {"schema": schema, "strict": False}


def input_cleaner(
    tools: Iterable[ToolDefinition], *, by_default: bool
) -> Callable[[str, JsonObject], JsonObject] | None:
    """A function that removes the nulls which strict mode has added to a call's arguments. None if it adds none.

    Args:
        tools: The tools of the request.
        by_default: Whether strict mode is on where a definition leaves it open.
    """
    schemas: dict[str, JsonObject] = {}
    for tool in [tool for tool in tools if (by_default if tool.strict is None else tool.strict)]:
        strict = _strict(tool.input_schema)
        if isinstance(strict, StrictSchema) and strict.adds_nulls:
            schemas[tool.name] = tool.input_schema
    if not schemas:
        return None

    def clean(name: str, arguments: JsonObject) -> JsonObject:
        return without_added_nulls(arguments, schemas[name]) if name in schemas else arguments

    return clean


@remembered
def _strict(schema: JsonObject) -> StrictSchema | str:
    """The strict schema, or why there is none."""
    try:
        return to_strict(schema)
    except NotStrict as reason:
        return str(reason)
