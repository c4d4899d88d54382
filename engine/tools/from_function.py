"""`@tool`: a tool made from a function's name, type hints and docstring."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import overload

import msgspec
from msgspec.structs import replace

from callboard.adapters import ToolAnnotations, ToolDefinition
from callboard.bus.log import takes_old_names
from callboard.bus.values.base import Json, JsonObject

from ..type_schema import SchemaError, json_schema
from .context import NeedsApproval
from .handler import FunctionTool, Handler, P, R_co
from .parameters import (
    NOTHING,
    Parameter,
    Parameters,
    ToolDefinitionError,
    description_of,
    hints_of,
    is_async,
    parameters_of,
    read_docstring,
    struct_of,
    unwrapped,
)


@overload
def tool(
    function: Callable[P, R_co],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    annotations: ToolAnnotations | None = None,
    strict: bool | None = None,
    needs_approval: NeedsApproval | None = None,
    provider_options: JsonObject | None = None,
) -> FunctionTool[P, R_co]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    annotations: ToolAnnotations | None = None,
    strict: bool | None = None,
    needs_approval: NeedsApproval | None = None,
    provider_options: JsonObject | None = None,
) -> Callable[[Callable[P, R_co]], FunctionTool[P, R_co]]: ...


@takes_old_names(timeout_seconds="timeout")
def tool(
    function: Callable[P, R_co] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    annotations: ToolAnnotations | None = None,
    strict: bool | None = None,
    needs_approval: NeedsApproval | None = None,
    provider_options: JsonObject | None = None,
) -> FunctionTool[P, R_co] | Callable[[Callable[P, R_co]], FunctionTool[P, R_co]]:
    """Make a tool of a function: ``@tool``, ``@tool(name=...)``, or ``tool(function, ...)``.

    The schema comes from the type hints and the defaults. Descriptions come from ``Annotated[...]`` and the
    docstring, in Google, NumPy or Sphinx style. The engine fills in parameters that are annotated with
    `ToolContext` or named `messages`, `abort_signal` or `tool_call_id`. The model doesn't see them.

    Args:
        function: The function, async or plain.
        name: The tool's name; None uses the function's name.
        description: The tool's description; None uses the docstring's text before its first section.
        timeout: Seconds for one call, as in `Tool`.
        annotations: Hints about the tool, as in `ToolDefinition`.
        strict: Whether the model must follow the schema, as in `ToolDefinition`.
        needs_approval: Whether calls need approval, as in `Tool`.
        provider_options: Fields of the tool for single providers, as in `ToolDefinition`.

    Raises:
        ToolDefinitionError: The function lacks type hints or descriptions of its parameters.
        SchemaError: A type has no JSON Schema.
        ValueError: The name is not valid for any model.
    """
    caller = sys._getframe(2)  # skips the wrapper that accepts old names

    def make(function: Callable[P, R_co]) -> FunctionTool[P, R_co]:
        called = name if name is not None else _name_of(function)
        what = f"tool {called!r}: "
        # Hints may name local classes and variables.
        here = getattr(unwrapped(function), "__globals__", None) is caller.f_globals
        parameters = _parameters(function, caller.f_locals if here else {}, what)
        documented = read_docstring(inspect.getdoc(unwrapped(function)))
        struct = struct_of(parameters)
        definition = ToolDefinition(
            name=called,
            description=documented.description if description is None else description,
            input_schema=_schema(struct, parameters, documented.parameters, what),
            strict=strict,
            annotations=annotations,
            provider_options=provider_options or {},
        )
        handler = Handler(function, is_async(function), parameters.injected, keywords=struct)
        return FunctionTool(function, definition, handler, timeout=timeout, needs_approval=needs_approval)

    return make if function is None else make(function)


def _name_of(function: Callable[..., object]) -> str:
    if not callable(function):
        raise ToolDefinitionError(
            f"@tool needs a function, not a {type(function).__name__}. Put it below @classmethod and @staticmethod"
        )
    name = getattr(function, "__name__", None) or getattr(unwrapped(function), "__name__", None)
    if name is None:
        name = getattr(function, "name", None)  # a callable object may have a `name`
    if not isinstance(name, str) or name == "<lambda>":
        raise ToolDefinitionError(f"{function!r} has no name. Pass one: tool(..., name='...')")
    return name


def _parameters(function: Callable[..., object], scope: Mapping[str, object], what: str) -> Parameters:
    try:
        hints = hints_of(function, scope)
    except (NameError, TypeError) as error:
        raise ToolDefinitionError(
            f"{what}a type hint can't be resolved ({error}); import its name at the top of the module, "
            f"not only under `if TYPE_CHECKING`"
        ) from error
    parameters = parameters_of(function, hints=hints, what=what)
    if parameters.variadic or parameters.unnamed:
        raise ToolDefinitionError(
            f"{what}*args, **kwargs and positional-only parameters can't be described to a model. Name "
            f"each parameter, or use Tool(ToolDefinition(name, description, schema), function)"
        )
    parameters = _without_self(parameters)
    for parameter in parameters.filled_in:
        if parameter.hint is NOTHING:
            raise ToolDefinitionError(
                f"{what}parameter {parameter.name!r} has no type hint, so its schema is unknown. Write "
                f"{parameter.name}: str (or its type), or pass the schema yourself: Tool(ToolDefinition(name, "
                f"description, schema), function)"
            )
    return parameters


def _without_self(parameters: Parameters) -> Parameters:
    first = next(iter(parameters.filled_in), None)
    if first is not None and first.name in ("self", "cls") and first.hint is NOTHING:
        return replace(parameters, filled_in=parameters.filled_in[1:])
    return parameters


def _schema(
    struct: type[msgspec.Struct], parameters: Parameters, described: Mapping[str, str], what: str
) -> JsonObject:
    try:
        schema = json_schema(struct)
    except SchemaError as error:
        raise SchemaError(f"{what}{error}") from error
    needless = ("title", "required") if schema.get("required") == [] else ("title",)
    schema = {keyword: value for keyword, value in schema.items() if keyword not in needless}
    properties = schema.get("properties")
    assert isinstance(properties, dict)
    for parameter in parameters.filled_in:
        result = properties[parameter.name]
        if isinstance(result, dict):
            properties[parameter.name] = _described(result, parameter, described.get(parameter.name))
    return {**schema, "properties": properties}


def _plain(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError


def _described(schema: JsonObject, parameter: Parameter, described: str | None) -> JsonObject:
    """The schema of a parameter, with its description and its default."""
    result = dict(schema)
    description = description_of(parameter.hint) or described
    if description is not None:
        result["description"] = description
    if not parameter.required:
        try:
            default: Json = msgspec.json.decode(msgspec.json.encode(parameter.default, enc_hook=_plain))
        except (TypeError, ValueError):
            return result  # the default is left out, because JSON has no NaN or infinity
        result["default"] = default
    return result
