"""A tool: its definition for the model, and the function that runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

from callboard.adapters import ToolDefinition
from callboard.bus import ConfigurationError
from callboard.engine.old_names import takes_old_names, warn_of_old_name

from ..approval import NeedsApproval
from .handler import Handler, ToolHandler, handler_of

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
    """The tool as the model sees it."""
    execute: ToolHandler | None = None
    """A function, async or plain, that takes the arguments as keywords or as one mapping (see `Handler`). It
    returns text, a JSON value, or content blocks. A plain function runs in a thread. None makes the tool passive:
    the turn ends with the call open, for the host to answer."""
    timeout: float | None = None
    """Seconds for one call; None is the engine's `Timeouts.tool`. A plain function goes on in its thread when its
    time is up, unless it looks at its `ToolContext`."""
    needs_approval: NeedsApproval | None = None
    """Whether calls need approval. None asks the `approve` hook, and runs the call if there is no hook. True asks
    the hook, and leaves the call open if there is none. False never asks."""
    handler: Handler | None = field(init=False, repr=False)
    """The way in which `execute` is called; None for a passive tool."""

    def __post_init__(self) -> None:
        handler = None
        if self.execute is not None:
            handler = handler_of(self.execute, self.name, self.definition.input_schema)
        object.__setattr__(self, "handler", handler)

    @property
    def timeout_seconds(self) -> float | None:
        """The old name of `timeout`."""
        warn_of_old_name("timeout_seconds is called timeout now")
        return self.timeout

    @property
    def name(self) -> str:
        """The name of the tool, as the model knows it."""
        return self.definition.name


Tool.__init__ = takes_old_names(timeout_seconds="timeout")(Tool.__init__)  # type: ignore[method-assign]


def require_distinct(tools: Iterable[Tool]) -> None:
    """Check that no two tools have the same name, because a call could mean either of them.

    Raises:
        ConfigurationError: Two tools have the same name.
    """
    names = Counter(tool.name for tool in tools)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ConfigurationError(f"two tools are named {twice[0]!r}; rename one: @tool(name='...')")


class FunctionTool(Tool, Generic[P, R_co]):
    """A function that `@tool` made a tool. It can still be called as before."""

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
        """The tool of one object, if the function is a method."""
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
