"""The function that runs a tool, and the way in which the arguments of a call become its own.

A function takes the arguments as keywords. A function with one parameter that is no property of the tool's schema
takes all arguments as one mapping. In both cases each argument is converted to its type hint. Without a hint it
stays the JSON value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from callboard.bus.values.json import JsonObject

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
"""A function that takes the arguments as keywords or as one mapping, and returns a result or an awaitable of
one."""

_AS_IT_IS = (NOTHING, object, Any)


class Ready(msgspec.Struct, frozen=True):
    """The arguments of a call, converted."""

    keywords: dict[str, Any]
    """The arguments as keywords."""
    whole: tuple[Any, ...] = ()
    """The one mapping, if the function takes that."""


class Handler(msgspec.Struct, frozen=True):
    """A function, and the way in which it is called. `handler_of` and `tool` make it."""

    function: ToolHandler
    """The function."""
    is_async: bool
    """Whether calling the function returns an awaitable."""
    injected: Mapping[str, Injected]
    """The parameters that the engine fills in."""
    keywords: type[msgspec.Struct] | None = None
    """The Struct of the parameters that the model fills in."""
    whole: Parameter | None = None
    """The one parameter that takes all arguments, in place of `keywords`."""
    variadic: bool = False
    """Whether the function takes any keywords."""
    schema: JsonObject | None = None
    """The schema against which the arguments are checked first; None if `keywords` says all of it."""

    def read(self, arguments: JsonObject) -> Ready:
        """Check and convert the arguments of a call.

        Raises:
            ValueError: The arguments don't fit. The text names the JSON path.
        """
        from callboard.engine.type_schema import check, convert

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
        """Call the function, which may return an awaitable.

        Args:
            ready: The arguments.
            context: The context of the call. It is needed if the engine fills in any parameter.
        """
        if not self.injected or context is None:
            return self.function(*ready.whole, **ready.keywords)
        filled = {name: _value(injected, context) for name, injected in self.injected.items()}
        return self.function(*ready.whole, **ready.keywords, **filled)

    def bound(self, function: ToolHandler) -> Handler:
        """The handler of another function with the same parameters."""
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
    """The handler of a tool that has a schema of its own.

    Raises:
        ToolDefinitionError: The function doesn't fit the schema.
    """
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
