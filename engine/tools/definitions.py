"""Tools: the `Tool` class, `@tool`, sources of tools, and the tools that a program passes."""

from __future__ import annotations

import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from callboard.adapters import ToolAnnotations, ToolDefinition
from callboard.adapters.provider import plugin_named
from callboard.bus.errors import ConfigurationError
from callboard.bus.log import Log, takes_old_names, warn_of_old_name
from callboard.bus.values.base import Json, JsonObject

from ..middleware.chain import is_async
from .context import NeedsApproval
from .handler import (
    NOTHING,
    Handler,
    Parameter,
    Parameters,
    ToolDefinitionError,
    ToolHandler,
    description_of,
    handler_of,
    hints_of,
    parameters_of,
    read_docstring,
    struct_of,
    unwrapped,
)

_log = Log("engine.tools")

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


# A generated method has no definition that could be decorated.
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


# --- @tool ---


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
    first = next(iter(parameters.filled_in), None)
    if first is not None and first.name in ("self", "cls") and first.hint is NOTHING:
        parameters = replace(parameters, filled_in=parameters.filled_in[1:])
    for parameter in parameters.filled_in:
        if parameter.hint is NOTHING:
            raise ToolDefinitionError(
                f"{what}parameter {parameter.name!r} has no type hint, so its schema is unknown. Write "
                f"{parameter.name}: str (or its type), or pass the schema yourself: Tool(ToolDefinition(name, "
                f"description, schema), function)"
            )
    return parameters


def _schema(
    struct: type[msgspec.Struct], parameters: Parameters, described: Mapping[str, str], what: str
) -> JsonObject:
    from ..type_schema import SchemaError, json_schema  # lazy: only programs with tools need it

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


# --- The tools that a program passes ---


class ToolSource(Sequence[Tool]):
    """Tools that may change, such as the tools of MCP servers. A source is a sequence of the current tools.

    A session with a source among its tools reads it again before each step of a turn.
    """

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """The current tools. The tuple must be the same object until they change."""

    def watch(self, changed: Callable[[], object]) -> Callable[[], object]:
        """Call a function whenever the tools change. Returns a function that stops this.

        By default, a source reports no changes.
        """
        return lambda: None

    @overload
    def __getitem__(self, index: int) -> Tool: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Tool, ...]: ...
    def __getitem__(self, index: int | slice) -> Tool | tuple[Tool, ...]:
        return self.tools[index]

    def __len__(self) -> int:
        return len(self.tools)

    def __bool__(self) -> bool:
        """Always true: a source without tools may have some later."""
        return True


ToolLike: TypeAlias = Tool | ToolSource | Callable[..., object]
"""A tool, a `ToolSource` for all its tools, or a function, which becomes a tool as with ``@tool``."""

_made: WeakKeyDictionary[Callable[..., object], Tool] = WeakKeyDictionary()
"""A cache of the tools made from functions, so that a function passed with every call is inspected once."""


@takes_old_names(given="tools")
def as_tools(tools: Iterable[ToolLike]) -> tuple[Tool, ...]:
    """Convert the given tools and functions to tools.

    Raises:
        ConfigurationError: Two of the program's own tools have one name.
        ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
        TypeError: An item is neither a tool nor a function.
    """
    return collected(tools)[0]


def collected(
    tools: Iterable[ToolLike],
) -> tuple[tuple[Tool, ...], tuple[ToolSource, ...], tuple[ToolDefinition, ...]]:
    """The tools, as `as_tools` returns them, the tool sources, and the tools as models see them.

    The same tools have the same tuple of definitions, also in another session, because caches use its identity as
    their key.
    """
    direct: list[Tool] = []
    sources: list[ToolSource] = []
    if type(tools) not in (list, tuple) and isinstance(tools, ToolSource):
        sources.append(tools)
    else:
        for each in tools:
            if isinstance(each, Tool):  # checked first, because it is fast
                direct.append(each)
            elif isinstance(each, ToolSource):
                sources.append(each)
            else:
                direct.append(_made_of(each))
    definitions = _definitions_of(direct)
    if not sources:
        return tuple(direct), (), definitions
    found = _with_those_of(sources, direct)
    return found, tuple(sources), _definitions_of(found)


_sets: dict[tuple[int, ...], tuple[ToolDefinition, ...]] = {}
"""The definitions of tools with distinct names, by the ids of the definitions."""
_MOST_SETS = 128


def _definitions_of(tools: Sequence[Tool]) -> tuple[ToolDefinition, ...]:
    """The definitions of tools. Raises ConfigurationError if two have the same name, because a call could mean
    either of them.
    """
    definitions = tuple([tool.definition for tool in tools])
    key = tuple(map(id, definitions))
    known = _sets.get(key)
    if known is not None:
        return known
    names = [definition.name for definition in definitions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two tools are named {twice!r}. Rename one: @tool(name='...')")
    if len(_sets) >= _MOST_SETS:
        _sets.clear()
    _sets[key] = definitions
    return definitions


def _with_those_of(sources: Iterable[ToolSource], direct: Iterable[Tool]) -> tuple[Tool, ...]:
    """The program's own tools, followed by the tools of sources. A source's tool is skipped if its name is already
    used.
    """
    found = {tool.name: tool for tool in direct}
    for source in sources:
        for tool in source.tools:
            if found.setdefault(tool.name, tool) is not tool:
                _log.warning("tool_left_out", tool=tool.name, error="another tool has this name")
    return tuple(found.values())


def _made_of(function: object) -> Tool:
    if not callable(function) or isinstance(function, type):
        kind = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
        raise TypeError(f"tools must contain only Tool objects and functions, not {kind}")
    try:
        made_tool = _made.get(function)
    except TypeError:  # the function is not hashable, or does not support weak references
        return tool(function)
    if made_tool is None:
        made_tool = tool(function)
        if hasattr(function, "__code__"):  # a method is a new object at each access
            _made[function] = made_tool
    return made_tool


def plugin_tools(name: str) -> Sequence[Tool] | None:
    """The tools of a plugin; None if no plugin has that name.

    A plugin is a function, a tool, or a list of them.
    """
    plugin = plugin_named("callboard.tools", name)
    if plugin is None:
        return None
    offered, fault = plugin.load()
    if fault is not None:
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} can't be loaded: {fault}")
    provided = cast("Sequence[ToolLike]", offered if isinstance(offered, (list, tuple)) else [offered])
    try:
        return as_tools(provided)
    except (TypeError, ToolDefinitionError) as error:
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} are not tools: {error}") from error
