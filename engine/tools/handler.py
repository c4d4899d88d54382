"""The function of a tool: its parameters, and the conversion of a call's arguments.

The model fills in some parameters, which form one Struct, and the engine fills in the others. A function receives
the arguments as keywords. If its only parameter is not a property of the schema, it receives all arguments as one
mapping. Each argument is converted to its type hint. Without a hint, it is the JSON value.
`read_docstring` reads the descriptions of the parameters from a function's docstring.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from callboard.adapters import Message
from callboard.bus.errors import CallboardError
from callboard.bus.values.base import JsonObject

from ..middleware.chain import is_async
from ..runtime.in_flight import AbortSignal
from .context import ToolContext


class ToolDefinitionError(CallboardError, TypeError):
    """The function can't be made a tool. The error's text describes the needed change."""


class Injected(Enum):
    """A value that the engine passes to a parameter. The model does not see the parameter.

    The engine fills in a parameter that is annotated with `ToolContext`. It also fills in a parameter with one of
    the three names below, unless the tool has its own schema with a property of that name.
    """

    CONTEXT = "ToolContext"
    MESSAGES = "messages"
    ABORT_SIGNAL = "abort_signal"
    TOOL_CALL_ID = "tool_call_id"


_RESERVED: dict[str, tuple[Injected, str, tuple[object, ...]]] = {
    "messages": (
        Injected.MESSAGES,
        "tuple[Message, ...]",
        (tuple[Message, ...], Sequence[Message], typing.Sequence[Message]),
    ),
    "abort_signal": (Injected.ABORT_SIGNAL, "AbortSignal", (AbortSignal,)),
    "tool_call_id": (Injected.TOOL_CALL_ID, "str", (str,)),
}

NOTHING = inspect.Parameter.empty


class Parameter(msgspec.Struct, frozen=True):
    name: str
    hint: object
    """The type hint; NOTHING if there is none."""
    default: object
    """The default; NOTHING if the model must pass a value."""

    @property
    def required(self) -> bool:
        return self.default is NOTHING


class Parameters(msgspec.Struct, frozen=True):
    filled_in: tuple[Parameter, ...]
    injected: Mapping[str, Injected]
    """The parameters that the engine fills in."""
    variadic: bool = False
    """Whether the function takes any keywords."""
    unnamed: bool = False
    """Whether the function takes the value only by position."""


def parameters_of(
    function: Callable[..., object],
    *,
    hints: Mapping[str, object],
    properties: Iterable[str] = (),
    what: str = "",
) -> Parameters:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin without a signature
        return Parameters((), {}, unnamed=True)
    filled_in: list[Parameter] = []
    injected: dict[str, Injected] = {}
    variadic = unnamed = False
    fixed = bound_keywords(function)
    names = frozenset(properties)
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, NOTHING)
        injection = Injected.CONTEXT if _is_context(hint) else None
        if injection is None and parameter.name not in names:
            injection = _reserved(parameter.name, hint, what)
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD:
                variadic = True
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                unnamed = True
            case _ if injection is not None:
                injected[parameter.name] = injection
            case _ if parameter.name not in fixed:
                filled_in.append(Parameter(parameter.name, hint, parameter.default))
    return Parameters(tuple(filled_in), injected, variadic, unnamed)


def _reserved(name: str, hint: object, what: str) -> Injected | None:
    if name not in _RESERVED:
        return None
    injection, written, allowed = _RESERVED[name]
    if hint is not NOTHING and hint is not object and hint not in allowed:
        raise ToolDefinitionError(
            f"{what}parameter {name!r} is reserved: the engine fills it in ({written}), not the model. "
            f"Rename it, or annotate it {name}: {written}"
        )
    return injection


def _is_context(hint: object) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_context(part) for part in typing.get_args(hint))
    return hint is ToolContext


# --- Type hints ---


def hints_of(function: Callable[..., object], scope: Mapping[str, object] | None = None) -> dict[str, object]:
    inner = unwrapped(function)
    if not inspect.isroutine(inner) and not isinstance(inner, type):
        inner = type(inner).__call__  # the signature of a callable object is that of its class's `__call__`
    return typing.get_type_hints(inner, localns=dict(scope) if scope else None, include_extras=True)


def lenient_hints_of(function: Callable[..., object]) -> dict[str, object]:
    """The type hints of a function. If they can't be resolved, every hint except `ToolContext` is `object`."""
    try:
        return hints_of(function)
    except (NameError, TypeError, AttributeError):
        written = getattr(unwrapped(function), "__annotations__", {})
        return {
            name: ToolContext if str(hint).endswith("ToolContext") else object for name, hint in written.items()
        }


def unwrapped(function: Callable[..., object]) -> Callable[..., object]:
    """The function behind `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def bound_keywords(function: Callable[..., object]) -> frozenset[str]:
    """The keywords that `functools.partial` has fixed."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)


# --- The arguments as a Struct ---

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


def struct_of(parameters: Parameters) -> type[msgspec.Struct]:
    """A Struct with a field for each parameter that the model fills in. A missing value is UNSET."""
    from ..type_schema import fitted  # lazy: only programs with tools need it

    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters.filled_in:
        hint = object if parameter.hint is NOTHING else fitted(_constrained(parameter.hint))
        fields.append((parameter.name, hint) if parameter.required else (parameter.name, hint, msgspec.UNSET))
    return msgspec.defstruct(
        "Arguments", fields, kw_only=True, forbid_unknown_fields=not parameters.variadic, gc=False
    )


def _constrained(hint: object) -> object:
    """Add msgspec constraints to a type hint with constraints of pydantic or annotated-types."""
    metadata = getattr(hint, "__metadata__", ())
    if any(isinstance(each, msgspec.Meta) for each in metadata):
        return hint
    found = {
        name: getattr(each, name)
        for each in _flat(metadata)
        for name in _CONSTRAINTS
        if getattr(each, name, None) is not None
    }
    return typing.Annotated[hint, msgspec.Meta(**found)] if found else hint


def _flat(metadata: Iterable[object]) -> Iterator[object]:
    """The members of groups of constraints: pydantic's `Field(...)`, annotated-types' `Interval` and `Len`."""
    for each in metadata:
        inner = getattr(each, "metadata", None)
        yield from inner if isinstance(inner, list) else (each,)


def description_of(hint: object) -> str | None:
    """The description of a parameter in ``Annotated[...]``: a string, or an object that has a description."""
    for each in getattr(hint, "__metadata__", ()):
        for text in (each, getattr(each, "description", None), getattr(each, "documentation", None)):
            if isinstance(text, str):
                return text
    return None


# --- The handler of a tool ---

ToolHandler: TypeAlias = Callable[..., object]
"""A function that takes the arguments as keywords or as one mapping, and returns a result or an awaitable of
one."""

_AS_IT_IS = (NOTHING, object, Any)


class Ready(msgspec.Struct, frozen=True):
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
        from ..schema_checks import check, convert

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


# --- Docstrings of functions ---


class Documented(NamedTuple):
    description: str
    """The text before the first section."""
    parameters: dict[str, str]


_PARAMETERS = (
    "args",
    "arguments",
    "parameters",
    "params",
    "other parameters",
    "keyword arguments",
)
_SECTIONS = (
    *_PARAMETERS,
    *("attributes", "example", "examples", "note", "notes", "raises", "references", "return", "returns"),
    *("see also", "todo", "warning", "warnings", "warns", "yield", "yields"),
)
_GOOGLE_ITEM = r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)"
_NUMPY_ITEM = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?"
_FIELD = r":(\w+)(?:\s+([^:]*?))?\s*:\s*(.*)"
_SPHINX_PARAMETERS = ("param", "parameter", "arg", "argument", "key", "keyword")


def read_docstring(text: str | None) -> Documented:
    """Parse a docstring. Any text is valid: text outside of known sections is the description. Pure."""
    lines = inspect.cleandoc(text or "").splitlines()
    parameters: dict[str, str] = {}
    start = next((number for number, _ in enumerate(lines) if _begins(lines, number)), len(lines))
    position = start
    while position < len(lines):
        heading = _heading(lines, position)
        if heading is None:
            position = _read_field(lines, position, parameters)
            continue
        name, body_at, numpy = heading
        end = next((n for n in range(body_at, len(lines)) if _begins(lines, n)), len(lines))
        if name in _PARAMETERS:
            body = lines[body_at:end]
            parameters.update(_numpy_items(body) if numpy else _google_items(body))
        position = end
    return Documented(_paragraphs(lines[:start]), {name: text for name, text in parameters.items() if text})


def _begins(lines: Sequence[str], number: int) -> bool:
    """Whether a section or a field in Sphinx style starts on a line."""
    return _heading(lines, number) is not None or re.match(_FIELD, lines[number]) is not None


def _heading(lines: Sequence[str], number: int) -> tuple[str, int, bool] | None:
    """The name of a section, the line where its body starts, and whether it has NumPy style. None if there is no
    heading.
    """
    name = lines[number].strip().lower()
    if name.endswith(":") and name[:-1] in _SECTIONS and not lines[number].startswith(" "):
        return name[:-1], number + 1, False
    underlined = number + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[number + 1].strip())
    return (name, number + 2, True) if underlined and name in _SECTIONS else None


def _read_field(lines: Sequence[str], position: int, parameters: dict[str, str]) -> int:
    """Read a field in Sphinx style (``:param name:``), if there is one. Return the line where the next part may
    start.
    """
    field = re.match(_FIELD, lines[position])
    end = position + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    if field is not None and field[1] in _SPHINX_PARAMETERS and field[2]:
        name = field[2].split()[-1].lstrip("*")  # ":param str name:" has the type before it
        parameters[name] = _joined([field[3], *lines[position + 1 : end]])
    return end


def _items(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each line with the smallest indentation, together with the more indented lines below it."""
    body = [line for line in lines if line.strip()]
    least = min((_indent(line) for line in body), default=0)
    item: tuple[str, list[str]] | None = None
    for line in body:
        if _indent(line) == least:
            if item is not None:
                yield item
            item = line.strip(), []
        elif item is not None:
            item[1].append(line)
    if item is not None:
        yield item


def _google_items(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for head, below in _items(lines):
        if match := re.fullmatch(_GOOGLE_ITEM, head):
            yield match[1], _joined([match[2], *below])


def _numpy_items(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for head, below in _items(lines):
        if match := re.fullmatch(_NUMPY_ITEM, head):
            for name in match[1].split(","):
                yield name.strip().lstrip("*"), _joined(below)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def _paragraphs(lines: Sequence[str]) -> str:
    """The text with each paragraph on one line. Lists and indented parts keep their line breaks."""
    paragraphs: list[str] = []
    for block in "\n".join(lines).split("\n\n"):
        stripped = [line for line in block.splitlines() if line.strip()]
        keeps = any(line.startswith((" ", "- ", "* ")) or re.match(r"\d+[.)] ", line) for line in stripped)
        paragraphs.append("\n".join(stripped) if keeps else _joined(stripped))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
