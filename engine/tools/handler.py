"""A tool, the function that runs it, and the conversion of a call's arguments.

A function receives the arguments as keywords. If its only parameter is not a property of the schema, it receives
all arguments as one mapping. Each argument is converted to its type hint. Without a hint, it is the JSON value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

import msgspec
from msgspec.structs import replace

from callboard.adapters import ToolDefinition
from callboard.bus.log import takes_old_names, warn_of_old_name
from callboard.bus.values.base import JsonObject

from .context import NeedsApproval, ToolContext
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
    """The converted arguments of a call."""

    keywords: dict[str, Any]
    all_arguments: tuple[Any, ...] = ()
    """All arguments as one mapping, if the function takes them in this form."""


class Handler(msgspec.Struct, frozen=True):
    """A function and how to call it. `handler_of` and `tool` create it."""

    function: ToolHandler
    is_async: bool
    """Whether calling the function returns an awaitable."""
    injected: Mapping[str, Injected]
    """The parameters that the engine fills in."""
    keywords: type[msgspec.Struct] | None = None
    """A Struct with the parameters that the model fills in."""
    catch_all: Parameter | None = None
    """The parameter that receives all arguments as one mapping, instead of `keywords`."""
    variadic: bool = False
    """Whether the function takes any keywords."""
    schema: JsonObject | None = None
    """The schema against which the arguments are checked first; None if `keywords` checks everything."""

    def read(self, arguments: JsonObject) -> Ready:
        """Check and convert the arguments of a call."""
        from ..type_schema import check, convert

        if self.schema is not None:
            check(arguments, self.schema)
        if self.keywords is None:
            hint = self.catch_all.hint if self.catch_all is not None else object
            return Ready({}, (arguments if hint in _AS_IT_IS else convert(arguments, hint),))
        struct = convert(arguments, self.keywords)
        arguments_by_name = {
            name: getattr(struct, name) for name in self.keywords.__struct_fields__ if name in arguments
        }
        if self.variadic:
            arguments_by_name = {**arguments, **arguments_by_name}
        return Ready(arguments_by_name)

    def call(self, ready: Ready, context: ToolContext | None) -> object:
        """Call the function, which may return an awaitable."""
        if not self.injected or context is None:
            return self.function(*ready.all_arguments, **ready.keywords)
        filled = {name: _value(injected, context) for name, injected in self.injected.items()}
        return self.function(*ready.all_arguments, **ready.keywords, **filled)

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
    """The handler of a tool that has its own schema."""
    properties = schema.get("properties")
    names = frozenset(properties) if isinstance(properties, dict) else frozenset[str]()
    hints = lenient_hints_of(function)
    parameters = parameters_of(function, hints=hints, properties=names, what=f"tool {name!r}: ")
    plain = Handler(function, is_async(function), parameters.injected, schema=schema)
    strange = [parameter for parameter in parameters.filled_in if parameter.name not in names]
    if parameters.unnamed or (len(strange) == len(parameters.filled_in) == 1 and not parameters.variadic):
        return replace(plain, catch_all=strange[0] if strange else None)
    _require_fit(name, names, parameters, strange)
    return replace(plain, keywords=struct_of(parameters), variadic=parameters.variadic)


def _require_fit(name: str, names: frozenset[str], parameters: Parameters, strange: list[Parameter]) -> None:
    filled_names = {parameter.name for parameter in parameters.filled_in}
    if needless := [parameter.name for parameter in strange if parameter.required]:
        raise ToolDefinitionError(
            f"tool {name!r}: its handler needs {', '.join(needless)}, which the schema does not have. Add it to "
            "the schema's properties, give the parameter a default, or take all arguments as one mapping"
        )
    if not parameters.variadic and (missing := sorted(names - filled_names)):
        raise ToolDefinitionError(
            f"tool {name!r}: its handler does not accept {', '.join(missing)}, which the schema has. Add "
            f"the parameter, **kwargs, or take all arguments as one mapping"
        )


# --- Tool ---

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
SelfT = TypeVar("SelfT")


@dataclass(frozen=True, eq=False)
class Tool:
    """A tool and the function that runs it.

    Raises:
        ToolDefinitionError: The function doesn't fit the definition.
    """

    definition: ToolDefinition
    """The name, description and schema that the model gets."""
    execute: ToolHandler | None = None
    """A function, async or plain, that takes the arguments as keywords or as one mapping (see `Handler`). It
    returns text, a JSON value, or content blocks. A plain function runs in a thread. None makes the tool passive:
    the turn ends with the call open, for the host to answer."""
    timeout: float | None = None
    """Seconds for one call; None uses the engine's `Timeouts.tool`. After a timeout, a plain function continues in
    its thread, unless it checks its `ToolContext`.
    """
    needs_approval: NeedsApproval | None = None
    """Whether calls need approval. None: the `approve` hook decides; without a hook, the call runs. True: the hook
    decides; without a hook, the call stays open. False: the hook is not called.
    """
    handler: Handler | None = field(init=False, repr=False)
    """How `execute` is called; None for a passive tool."""

    def __post_init__(self) -> None:
        handler = None
        if self.execute is not None:
            handler = handler_of(self.execute, self.name, self.definition.input_schema)
        object.__setattr__(self, "handler", handler)

    @property
    def timeout_seconds(self) -> float | None:
        """The old name of `timeout`."""
        warn_of_old_name("timeout_seconds is deprecated: use timeout")
        return self.timeout

    @property
    def name(self) -> str:
        """The name of the tool, as the model sees it."""
        return self.definition.name


@dataclass(frozen=True, eq=False, kw_only=True)
class Handoff(Tool):
    """A tool that passes the conversation to another agent when it is called. `handoff` creates it."""

    model: Any
    """The agent's model."""
    system_prompt: str | None = None
    """The agent's system prompt."""
    tools: Sequence[Any] = ()
    """The agent's tools, as for `Engine.session`."""


Tool.__init__ = takes_old_names(timeout_seconds="timeout")(Tool.__init__)  # type: ignore[method-assign]


class FunctionTool(Tool, Generic[P, R_co]):
    """The tool that `@tool` makes of a function. It can still be called like the function."""

    def __init__(
        self,
        function: Callable[P, R_co],
        definition: ToolDefinition,
        handler: Handler,
        *,
        timeout: float | None = None,
        needs_approval: NeedsApproval | None = None,
    ) -> None:
        values = {
            "definition": definition,
            "execute": function,
            "timeout": timeout,
            "needs_approval": needs_approval,
            "handler": handler,
            "function": function,
        }
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            values[name] = getattr(function, name, None)
        self.__dict__.update(values, __wrapped__=function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        function: Callable[P, R_co] = self.__dict__["function"]
        return function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type[object]) -> FunctionTool[P, R_co]: ...

    @overload
    def __get__(
        self: FunctionTool[Concatenate[SelfT, Q], R_co], instance: SelfT, owner: type[object] | None = None
    ) -> FunctionTool[Q, R_co]: ...

    def __get__(self, instance: object, owner: object = None) -> object:
        """The tool bound to one object, if the function is a method."""
        if instance is None or self.handler is None:
            return self
        bound = self.__dict__["function"].__get__(instance, owner)
        return FunctionTool(
            bound,
            self.definition,
            self.handler.bound(bound),
            timeout=self.timeout,
            needs_approval=self.needs_approval,
        )
