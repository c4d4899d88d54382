"""What runs a tool: a function, and how a call's arguments become its own.

It takes them as keywords; or, if it has one parameter that is no property of the tool's schema, all of them as one
mapping. Either way each becomes what its hint says. Without a hint it stays the JSON value that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from bus.values.json import JsonObject

from ..context import ToolContext
from .parameters import (
    NOTHING,
    Injected,
    Parameter,
    Parameters,
    ToolDefinitionError,
    is_async,
    lenient_hints_of,
    parameters_of,
    struct_of,
)

ToolHandler: TypeAlias = Callable[..., object]
"""Gets the arguments as keywords or as one mapping; gives back a result, or an awaitable of one."""

_AS_IT_IS = (NOTHING, object, Any)


class Ready(msgspec.Struct, frozen=True):
    """A call's arguments, converted. whole: the one mapping, if the function takes that."""

    keywords: dict[str, Any]
    whole: tuple[Any, ...] = ()


class Handler(msgspec.Struct, frozen=True):
    """A function and how it is called. Make it with `handler_of`, or `tool`.

    keywords: the Struct of what the model fills in. whole: the one parameter that takes everything, instead.
    schema: what the arguments are checked against first; None where `keywords` says all of it.
    """

    function: ToolHandler
    is_async: bool
    injected: Mapping[str, Injected]
    keywords: type[msgspec.Struct] | None = None
    whole: Parameter | None = None
    variadic: bool = False
    schema: JsonObject | None = None

    def read(self, arguments: JsonObject) -> Ready:
        """Check and convert. Raises ValueError, whose text names what is wrong with its JSON path."""
        from engine.type_schema import check, convert

        if self.schema is not None:
            check(arguments, self.schema)
        if self.keywords is None:
            hint = self.whole.hint if self.whole is not None else object
            return Ready({}, (arguments if hint in _AS_IT_IS else convert(arguments, hint),))
        struct = convert(arguments, self.keywords)
        given = {name: getattr(struct, name) for name in self.keywords.__struct_fields__ if name in arguments}
        if self.variadic:
            given = {**arguments, **given}
        return Ready(given)

    def call(self, ready: Ready, context: ToolContext | None) -> object:
        """Call the function, which may give back an awaitable. context: needed if anything is injected."""
        if not self.injected or context is None:
            return self.function(*ready.whole, **ready.keywords)
        filled = {name: _value(injected, context) for name, injected in self.injected.items()}
        return self.function(*ready.whole, **ready.keywords, **filled)

    def bound(self, function: ToolHandler) -> Handler:
        """The same for another function of the same parameters."""
        return replace(self, function=function)


def _value(injected: Injected, context: ToolContext) -> object:
    match injected:
        case Injected.CONTEXT:
            return context
        case Injected.MESSAGES:
            return context.messages
        case Injected.ABORT_SIGNAL:
            return context.abort_signal
        case Injected.TOOL_CALL_ID:
            return context.tool_call_id


def handler_of(function: ToolHandler, name: str, schema: JsonObject) -> Handler:
    """How a function takes the arguments of a tool with a schema of its own. Raises ToolDefinitionError."""
    properties = schema.get("properties")
    known = frozenset(properties) if isinstance(properties, dict) else frozenset[str]()
    hints = lenient_hints_of(function)
    parameters = parameters_of(function, hints=hints, properties=known, what=f"tool {name!r}: ")
    plain = Handler(function, is_async(function), parameters.injected, schema=schema)
    strange = [parameter for parameter in parameters.filled_in if parameter.name not in known]
    if parameters.unnamed or (len(strange) == len(parameters.filled_in) == 1 and not parameters.variadic):
        return replace(plain, whole=strange[0] if strange else None)
    _require_fit(name, known, parameters, strange)
    return replace(plain, keywords=struct_of(parameters), variadic=parameters.variadic)


def _require_fit(name: str, known: frozenset[str], parameters: Parameters, strange: list[Parameter]) -> None:
    taken = {parameter.name for parameter in parameters.filled_in}
    if needless := [parameter.name for parameter in strange if parameter.required]:
        raise ToolDefinitionError(
            f"tool {name!r}: its handler needs {', '.join(needless)}, which the schema doesn't have; add it to "
            "the schema's properties, give the parameter a default, or take all arguments as one mapping"
        )
    if not parameters.variadic and (missing := sorted(known - taken)):
        raise ToolDefinitionError(
            f"tool {name!r}: its handler doesn't take {', '.join(missing)}, which the schema has; add the "
            "parameter, **kwargs, or take all arguments as one mapping"
        )
