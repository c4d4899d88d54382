"""The requests of servers to a host, and the host's answers.

    elicitation/create      the host's `elicit`
    sampling/createMessage  the host's `sampling`: a model of the engine, or a function
    roots/list              the host's `roots`
    notifications/message   the log, and the host's `on_log`

Without a hook, the capability is not offered to the server. A request runs in the context of its tool call, so
calls of the engine inside a hook are children of that tool call. The client library is needed only for an answer.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from callboard.adapters import Message, ToolChoice, ToolDefinition
from callboard.bus.errors import CallboardError
from callboard.bus.log import Log
from callboard.bus.values.base import JsonObject

from ..conversation.results import GenerateResult
from ..middleware.chain import is_async
from ..routing.model_choice import Model
from ..tools.context import ToolContext
from ..tools.definitions import Tool
from ..tools.running import run_in_thread

if TYPE_CHECKING:
    import mcp_types as types

    from ..engine import Engine


T = TypeVar("T")

_log = Log("engine.mcp")


class Elicitation(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a server to the user: a form to fill in, or a page to visit."""

    server: str
    """The server's name."""
    message: str
    """The question, in the server's words."""
    schema: JsonObject | None = None
    """The JSON Schema of the answer, an object whose fields are plain values; None if there is a `url`."""
    url: str | None = None
    """The page to visit. Show the whole address, and open it only if the user agrees."""
    tool_name: str | None = None
    """The name of the tool that is being called, if known."""
    session_id: str | None = None
    """The id of the session whose turn called the tool, if that is known."""

    @property
    def defaults(self) -> JsonObject:
        """The default values in the schema, for values that an answer omits."""
        properties = (self.schema or {}).get("properties")
        if not isinstance(properties, dict):
            return {}
        return {
            name: each["default"]
            for name, each in properties.items()
            if isinstance(each, dict) and "default" in each
        }


ElicitationAnswer: TypeAlias = Mapping[str, Any] | Literal["accept", "decline", "cancel"] | None
"""The values of an accepted form. Or ``accept``, which accepts a page, or a form with its defaults. Or
``decline`` or None; or ``cancel`` if the user dismissed the question without an answer.
"""

Elicit: TypeAlias = Callable[[Elicitation], ElicitationAnswer | Awaitable[ElicitationAnswer]]
"""A function that asks the user. A plain function runs in a thread."""


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A server's request for a model's reply."""

    server: str
    """The server's name."""
    messages: tuple[Message, ...]
    """The messages for the model."""
    system_prompt: str | None = None
    """The system prompt requested by the server."""
    max_output_tokens: int
    """The maximum number of tokens of the reply."""
    temperature: float | None = None
    """The temperature requested by the server."""
    stop_sequences: tuple[str, ...] = ()
    """The texts that end the reply."""
    model_hints: tuple[str, ...] = ()
    """Names or parts of names of models that the server prefers, the best first."""
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that the model may call. The server runs them."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool."""
    tool_name: str | None = None
    """The name of the tool that is being called, if known."""
    session_id: str | None = None
    """The id of the session whose turn called the tool, if that is known."""


Sample: TypeAlias = Callable[
    [SamplingRequest], "str | GenerateResult | Awaitable[str | GenerateResult | None] | None"
]
"""A function that answers a `SamplingRequest` with a text or a result of `generate`. If it returns None, the
request is refused.

It runs in the context of the tool call, so calls of the engine inside it are children of that tool call.
"""


class McpLogMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A log message of a server."""

    server: str
    """The server's name."""
    level: str
    """``debug``, ``info``, ``notice``, ``warning``, ``error``, ``critical``, ``alert`` or ``emergency``."""
    data: Any
    """The message: a text or any JSON value."""
    logger: str | None = None
    """The name of the logger in the server."""


OnLog: TypeAlias = Callable[[McpLogMessage], object]
"""A function that receives a log message. It runs on the event loop and must not block."""


# --- Answers ---


async def answer_of(hook: Callable[..., T | Awaitable[T]], request: object) -> T:
    """Call a host's function, and return its result. A plain function runs in a thread, because it may block."""
    answer = hook(request) if is_async(hook) else await run_in_thread(lambda: hook(request))
    return await answer if inspect.isawaitable(answer) else answer


REJECTED = -1
"""The protocol's error code if the user refuses a sampling request."""


class CallInProgress:
    __slots__ = ("context", "variables")

    def __init__(self, context: ToolContext | None) -> None:
        self.context = context
        self.variables = contextvars.copy_context()


current_call: contextvars.ContextVar[CallInProgress | None] = contextvars.ContextVar("mcp call", default=None)
"""The call of a server's tool in whose context the current task runs."""


class Callbacks:
    """The functions that the client library calls for one server."""

    def __init__(
        self,
        server: str,
        *,
        elicit: Elicit | None = None,
        sampling: Sample | None = None,
        roots: Callable[[], Sequence[str]] | None = None,
        on_log: OnLog | None = None,
        log_level: str | None = None,
    ) -> None:
        self._server = server
        self._elicit = elicit
        self._sampling = sampling
        self._roots = roots
        self._on_log = on_log
        self.log_level: Any = log_level
        self.elicitation: Any = None if elicit is None else self._elicited
        self.sampling: Any = None if sampling is None else self._sampled
        self.roots: Any = None if roots is None else self._listed

    async def _elicited(
        self, _: object, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        import mcp_types as types

        assert self._elicit is not None
        context = _context()
        request = Elicitation(
            server=self._server,
            message=params.message,
            schema=params.requested_schema if isinstance(params, types.ElicitRequestFormParams) else None,
            url=params.url if isinstance(params, types.ElicitRequestURLParams) else None,
            tool_name=None if context is None else context.tool_name,
            session_id=None if context is None else context.session_id,
        )
        try:
            answer = await answer_of(self._elicit, request)
        except Exception as error:
            _log.warning("elicitation_failed", error, server=self._server, error=type(error).__name__)
            return types.ElicitResult(action="cancel")
        if answer is None or answer in ("decline", "cancel"):
            return types.ElicitResult(action="cancel" if answer == "cancel" else "decline")
        if request.schema is None:
            return types.ElicitResult(action="accept")
        content = {**request.defaults, **({} if isinstance(answer, str) else answer)}
        if fault := _fault(content, request):
            _log.warning("elicitation_answer_wrong", server=self._server, error=fault)
            return types.ErrorData(
                code=types.INVALID_PARAMS, message=f"the answer does not follow the schema: {fault}"
            )
        return types.ElicitResult(action="accept", content=content)

    async def _sampled(self, _: object, params: types.CreateMessageRequestParams) -> object:
        import mcp_types as types

        from .values import sampling_result

        assert self._sampling is not None
        if current_call.get() is None:
            _log.warning("sampling_without_call", server=self._server)
        try:
            answer = await answer_of(self._sampling, _sampling_request(self._server, params))
            if answer is None:
                return types.ErrorData(code=REJECTED, message="the user rejected the sampling request")
            if isinstance(answer, str):
                text = types.TextContent(type="text", text=answer)
                return types.CreateMessageResult(
                    role="assistant", content=text, model="host", stop_reason="endTurn"
                )
            return sampling_result(answer.content, answer.message.model or "unknown", answer.stop_reason)
        except CallboardError as error:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=f"the model did not answer: {error}")
        except Exception as error:
            _log.warning("sampling_failed", error, server=self._server, error=type(error).__name__)
            return types.ErrorData(code=types.INTERNAL_ERROR, message="the host could not answer the request")

    async def _listed(self, _: object) -> types.ListRootsResult:
        import mcp_types as types

        assert self._roots is not None
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": uri}) for uri in self._roots()])

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        message = McpLogMessage(server=self._server, level=params.level, data=params.data, logger=params.logger)
        write = _LEVELS.get(params.level, _log.error)
        write("mcp_server_log", server=self._server, level=params.level, logger=params.logger, data=params.data)
        if self._on_log is not None:
            try:
                self._on_log(message)
            except Exception as error:
                _log.warning("on_log_failed", error, server=self._server, error=type(error).__name__)


_LEVELS: dict[str, Callable[..., None]] = {
    "debug": _log.debug,
    "info": _log.info,
    "notice": _log.info,
    "warning": _log.warning,
}


def _context() -> ToolContext | None:
    call = current_call.get()
    return None if call is None else call.context


def _fault(content: dict[str, Any], request: Elicitation) -> str:
    """The reason why an answer does not follow the schema of its question; empty if it does."""
    from ..schema_checks import check

    try:
        check(content, {"type": "object", **(request.schema or {})})
    except ValueError as error:
        return str(error)
    return ""


def _sampling_request(server: str, params: types.CreateMessageRequestParams) -> SamplingRequest:
    from .values import definition_of, messages_of

    context = _context()
    preferences = params.model_preferences
    hints = preferences.hints if preferences is not None else None
    return SamplingRequest(
        server=server,
        messages=messages_of(params.messages),
        system_prompt=params.system_prompt,
        max_output_tokens=params.max_tokens,
        temperature=params.temperature,
        stop_sequences=tuple(params.stop_sequences or ()),
        model_hints=tuple(hint.name for hint in hints or () if hint.name),
        tools=tuple(definition_of(tool, tool.name) for tool in params.tools or ()),
        tool_choice=ToolChoice(params.tool_choice.mode or "auto") if params.tool_choice is not None else None,
        tool_name=None if context is None else context.tool_name,
        session_id=None if context is None else context.session_id,
    )


def sampled_by(model: Model, engine: Engine | None) -> Callable[[SamplingRequest], Awaitable[GenerateResult]]:
    """A function that answers sampling requests with a model of the engine, without asking the user."""

    async def sample(request: SamplingRequest) -> GenerateResult:
        from ..functions import default_engine
        from ..generation.arguments import Arguments

        arguments = Arguments(
            messages=request.messages,
            system_prompt=request.system_prompt,
            max_output_tokens=request.max_output_tokens,
            tags={"mcp_server": request.server},
        )
        if request.temperature is not None:
            arguments["temperature"] = request.temperature
        if request.stop_sequences:
            arguments["stop_sequences"] = request.stop_sequences
        if request.tools:
            arguments["tools"] = [Tool(definition) for definition in request.tools]
        if request.tool_choice is not None:
            arguments["tool_choice"] = request.tool_choice
        return await (engine or default_engine()).generate(model, **arguments)

    return sample
