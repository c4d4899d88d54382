"""The requests and the results of `callboard batch` as JSON lines. Nothing here reads or writes anything."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from callboard.adapters import CanonicalRequest, Message
from callboard.adapters.contract import CallWarning
from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.values.json import Json, JsonObject
from callboard.engine import BatchResult
from callboard.tracestore import StoredBatch

from ...generation.arguments import as_messages
from ..common.words import plural

DEFAULT_TOKENS = 1024


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One request. It has a prompt or messages."""

    id: str | None = None
    """The id, which stands in the result's line."""
    prompt: str | None = None
    """The prompt."""
    messages: list[dict[str, object]] | None = None
    """A whole conversation: objects with ``role`` and ``content``."""
    system: str | None = None
    """The system prompt."""
    max_tokens: int | None = None
    """The most tokens of the reply."""
    temperature: float | None = None
    """The temperature of sampling."""
    output_schema: JsonObject | None = None
    """A JSON Schema for the reply."""
    options: dict[str, Json] = msgspec.field(default_factory=dict)
    """Options for one provider, by the name of a protocol or an adapter."""


def requests_in(lines: Iterable[str], *, model: str, max_tokens: int) -> list[CanonicalRequest]:
    """The requests of some lines. Empty lines are left out.

    Args:
        lines: The lines.
        model: The model of all requests.
        max_tokens: The most tokens of a reply, where a line says nothing.

    Raises:
        ConfigurationError: A line is no request; the text has its number.
    """
    found: list[CanonicalRequest] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
            found.append(_request(line, model, max_tokens))
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, CallboardError) as error:
            raise ConfigurationError(f"line {number} is no request: {error}") from error
    return found


def _request(line: Line, model: str, max_tokens: int) -> CanonicalRequest:
    if (line.prompt is None) == (line.messages is None):
        raise ValueError("it has a `prompt` or `messages`, and not both")
    messages = as_messages(line.messages) if line.messages is not None else (Message.user(line.prompt or ""),)
    return CanonicalRequest(
        request_id=line.id or "",
        model=model,
        messages=messages,
        max_output_tokens=line.max_tokens or max_tokens,
        system_prompt=line.system,
        temperature=line.temperature,
        output_schema=line.output_schema,
        provider_options=line.options,
    )


class ResultLine(msgspec.Struct, omit_defaults=True):
    """One result. It has a text or an error."""

    id: str
    """The id of the request."""
    text: str | None = None
    """All text of the reply."""
    error: str | None = None
    """Why there is no reply."""
    error_type: str | None = None
    """The class of the error."""
    stop_reason: str | None = None
    """Why the reply ended."""
    tool_calls: list[JsonObject] = []
    """The calls of tools that the reply asks for, each with ``name`` and ``input``."""
    input_tokens: int | None = None
    """The input tokens."""
    output_tokens: int | None = None
    """The output tokens."""
    cost_nano_usd: int | None = None
    """The cost in nano-USD; left out if it is unknown."""
    warnings: list[str] = []
    """The codes of the warnings."""


def result_line(result: BatchResult) -> ResultLine:
    """The line of a result."""
    cost = None if result.cost is None else result.cost.nano_usd
    response = result.response
    if response is None:
        error = result.error
        kind = None if error is None else type(error).__name__
        return ResultLine(result.request_id, error=str(error), error_type=kind, cost_nano_usd=cost)
    return ResultLine(
        result.request_id,
        text=response.text,
        stop_reason=str(response.stop_reason),
        tool_calls=[{"name": call.name, "input": call.input} for call in response.tool_uses],
        input_tokens=response.usage.total_input_tokens,
        output_tokens=response.usage.output_tokens,
        cost_nano_usd=cost,
        warnings=[_code(warning) for warning in response.warnings],
    )


def _code(warning: CallWarning) -> str:
    return str(warning.code)


class BatchLine(msgspec.Struct, frozen=True):
    """A line of `callboard batch list --json`."""

    id: str
    """The batch's id."""
    model: str
    """The model."""
    status: str
    """How it was last seen to stand."""
    requests: int
    """The number of requests."""
    succeeded: int
    """The number of requests that were answered, as it was last seen."""
    failed: int
    """The number of requests that came to nothing, as it was last seen."""
    counted: bool
    """Whether all results are in the trace."""
    planned_us: int
    """When it was planned, in microseconds since the epoch."""


def batch_line(stored: StoredBatch) -> BatchLine:
    """The line of a batch."""
    return BatchLine(
        id=stored.batch_id,
        model=stored.model,
        status=stored.status or ("submitted" if stored.submissions else "planned"),
        requests=sum(stored.parts),
        succeeded=stored.succeeded,
        failed=stored.failed,
        counted=stored.completed,
        planned_us=stored.planned_us,
    )


def summary(status: str, succeeded: int, total: int) -> str:
    """How a batch stands, in words."""
    return f"{status.replace('_', ' ')}, {succeeded} of {plural(total, 'request')} answered"
