"""The answers to a server's requests: questions to the user, a model's reply, roots, and log messages.

    elicitation/create      the host's `elicit`
    sampling/createMessage  the host's `sampling`: a model of the engine, or a function
    roots/list              the host's `roots`
    notifications/message   the log, and the host's `on_log`

Without a hook, the capability is not offered to the server. A request runs in the context of its tool call, so
calls of the engine inside a hook are children of that tool call.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from callboard.adapters import ToolChoice
from callboard.bus.errors import CallboardError
from callboard.bus.log import Log

from ..conversation.results import GenerateResult
from ..routing.model_choice import Model
from ..tools.context import ToolContext
from ..tools.definitions import Tool
from .hooks import Elicit, Elicitation, McpLogMessage, OnLog, Sample, SamplingRequest, answer_of
from .values import definition_of, messages_of, sampling_result

if TYPE_CHECKING:
    from ..engine import Engine

_log = Log("engine.mcp")

REJECTED = -1
"""The protocol's error code if the user refuses a sampling request."""


class CallInProgress:
    """A call of a server's tool."""

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
            return types.ErrorData(code=INVALID_PARAMS, message=f"the answer does not follow the schema: {fault}")
        return types.ElicitResult(action="accept", content=content)

    async def _sampled(self, _: object, params: types.CreateMessageRequestParams) -> object:
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
            return types.ErrorData(code=INTERNAL_ERROR, message=f"the model did not answer: {error}")
        except Exception as error:
            _log.warning("sampling_failed", error, server=self._server, error=type(error).__name__)
            return types.ErrorData(code=INTERNAL_ERROR, message="the host could not answer the request")

    async def _listed(self, _: object) -> types.ListRootsResult:
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
