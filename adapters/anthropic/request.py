"""From a canonical request to the body of a Messages API request. Pure.

Here is what surrounds the messages: tools, sampling, the form of the reply, and the headers of beta features.
`messages` writes the history, which `adapters.history` has fitted first.

Prompt caching is to come: breakpoints belong on the last of `tools`, on `system` (then a list of blocks) and on
the last block of a message that stays the same from call to call. `_body` is the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from adapters.contract import CallWarning, CanonicalRequest
from adapters.history import Loss, Target, ToolIdRule, fit_history
from adapters.http_adapter import WireCall
from adapters.surrogates import mend_json_value
from bus.errors import UnsupportedToolChoiceError
from bus.json_types import Json, JsonObject
from bus.messages import ToolDefinition

from . import wire
from .messages import IMAGE_MEDIA_TYPES, PDF, TEXT_MEDIA_TYPES, open_container, write_messages

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_NEAREST_EFFORT = {"none": "low", "minimal": "low"}
TOOL_IDS = ToolIdRule(max_length=64, prefix="toolu_")
BETA_HEADERS = "beta_headers"
_OPTIONS = "anthropic"
"""Under this name, or the adapter's own, a request carries what only this protocol knows."""


def write_request(
    request: CanonicalRequest, *, provider: str, options: Mapping[str, Json], stream: bool
) -> WireCall:
    """The request on the wire. options: the adapter's configured ones.

    Raises InvalidRequestError for a request without messages and UnsupportedToolChoiceError for a choice among no
    tools, or of one that isn't there.
    """
    target = Target(
        provider=provider,
        model=request.wire_model,
        tool_ids=TOOL_IDS,
        accepts_documents=True,
        image_types=IMAGE_MEDIA_TYPES,
        document_types=(PDF, *TEXT_MEDIA_TYPES),
        results_carry=("image", "document"),
        replays_thinking=True,
        adopts_signatures=True,
        begins_with_user=True,
    )
    return _Writer(request, target, stream).write(options)


class _Writer:
    """Writes one request and notes what it had to leave out or change."""

    def __init__(self, request: CanonicalRequest, target: Target, stream: bool) -> None:
        self.request = request
        self.target = target
        self.stream = stream
        self.history = fit_history(request, target)
        self.losses: list[Loss] = []
        self.warnings: list[CallWarning] = []

    def write(self, options: Mapping[str, Json]) -> WireCall:
        extra = self._provider_options()
        betas = _names(options.get(BETA_HEADERS)) + _names(extra.pop(BETA_HEADERS, None))
        body = self._body(extra)
        headers = {"anthropic-version": wire.VERSION}
        if betas:
            headers["anthropic-beta"] = ",".join(dict.fromkeys(betas))
        history = msgspec.structs.replace(self.history, losses=self.history.losses + tuple(self.losses))
        history.log()
        warnings = history.warnings + tuple(self.warnings)
        return WireCall(wire.PATH, _encode(body), headers, warnings, history.tool_ids)

    def _provider_options(self) -> JsonObject:
        merged: JsonObject = {}
        for name in dict.fromkeys((_OPTIONS, self.target.provider)):
            options = self.request.provider_options.get(name)
            if isinstance(options, Mapping):
                merged.update(options)
        return merged

    def _body(self, extra: JsonObject) -> JsonObject:
        """The body, in the order in which the provider's cache reads it: tools, system, messages."""
        request = self.request
        body: JsonObject = {"model": request.wire_model, "max_tokens": request.max_output_tokens}
        extra_tools = extra.pop("tools", None)
        tools: list[Json] = [_tool(tool) for tool in request.tools]
        tools += extra_tools if isinstance(extra_tools, list) else []
        if tools:
            body["tools"] = tools
        choice = self._tool_choice(tools)
        if choice is not None:
            body["tool_choice"] = choice
        if self.history.system is not None:
            body["system"] = self.history.system
        body["messages"], self.losses = write_messages(self.history)
        container = open_container(self.history)
        if container is not None:
            body["container"] = container
        body.update(self._sampling())
        output = self._output_config()
        given = extra.pop("output_config", None)
        if isinstance(given, Mapping):
            output.update(given)
        if output:
            body["output_config"] = output
        body["stream"] = self.stream
        body.update(extra)
        return body

    def _tool_choice(self, tools: Sequence[Json]) -> JsonObject | None:
        choice, parallel = self.request.tool_choice, self.request.parallel_tool_calls
        wire_choice: JsonObject
        match choice.mode if choice is not None else None:
            case None | "auto" | "none" if not tools:
                return None
            case "required" | "named" if not tools:
                raise UnsupportedToolChoiceError("the request demands a tool call and has no tools")
            case None if parallel is not False:
                return None
            case "none":
                return {"type": "none"}  # it knows nothing of parallel calls
            case "required":
                wire_choice = {"type": "any"}
            case "named":
                assert choice is not None
                names = [tool.get("name") for tool in tools if isinstance(tool, dict)]
                if choice.tool_name not in names:
                    raise UnsupportedToolChoiceError(
                        f"the request demands {choice.tool_name!r}, which is no tool of it"
                    )
                wire_choice = {"type": "tool", "name": choice.tool_name}
            case _:
                wire_choice = {"type": "auto"}
        if parallel is False:
            wire_choice["disable_parallel_tool_use"] = True
        return wire_choice

    def _sampling(self) -> JsonObject:
        request = self.request
        fields: JsonObject = {}
        stops = [stop for stop in request.stop_sequences if stop.strip()]
        if len(stops) < len(request.stop_sequences):
            self._warn("stop_sequence_dropped", "stop sequences of white space only are not accepted")
        if stops:
            fields["stop_sequences"] = list(stops)
        if request.temperature is not None:
            fields["temperature"] = min(request.temperature, 1.0)
            if request.temperature > 1.0:
                self._warn(
                    "temperature_lowered", f"temperature {request.temperature:g} was sent as the highest, 1"
                )
        if request.top_p is not None:
            fields["top_p"] = request.top_p
        return fields

    def _output_config(self) -> JsonObject:
        output: JsonObject = {}
        asked = self.request.reasoning_effort
        if asked is not None:
            effort = _NEAREST_EFFORT.get(asked, asked)
            if effort in EFFORTS:
                output["effort"] = effort
                if effort != asked:
                    self._warn("effort_changed", f"reasoning effort {asked!r} was sent as {effort!r}, the nearest")
            else:
                self._warn("effort_dropped", f"reasoning effort {asked!r} is unknown and was not sent")
        if self.request.output_schema is not None:
            output["format"] = {"type": "json_schema", "schema": close_objects(self.request.output_schema)}
        return output

    def _warn(self, code: str, message: str) -> None:
        self.warnings.append(CallWarning(code, message))


# -- pieces


def _tool(tool: ToolDefinition) -> JsonObject:
    fields: JsonObject = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    fields["input_schema"] = close_objects(tool.input_schema) if tool.strict else tool.input_schema
    if tool.strict:
        fields["strict"] = True
    return fields


def close_objects(schema: JsonObject) -> JsonObject:
    """A copy of a JSON Schema with ``additionalProperties: false`` in every object that says nothing about it."""
    closed: JsonObject = {}
    for name, value in schema.items():
        match name:
            case "properties" | "$defs" | "definitions" if isinstance(value, dict):
                closed[name] = {key: _closed(inner) for key, inner in value.items()}
            case "items" | "anyOf" | "allOf" | "oneOf" | "prefixItems" | "not":
                closed[name] = _closed(value)
            case _:
                closed[name] = value
    kind = schema.get("type")
    if kind == "object" or "properties" in schema or (isinstance(kind, list) and "object" in kind):
        closed.setdefault("additionalProperties", False)
    return closed


def _closed(value: Json) -> Json:
    if isinstance(value, list):
        return [_closed(item) for item in value]
    return close_objects(value) if isinstance(value, dict) else value


def _names(value: Json) -> list[str]:
    """Names from a list, or from one string with commas."""
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return [name.strip() for name in given if isinstance(name, str) and name.strip()]


def _encode(body: JsonObject) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # half a surrogate pair somewhere, which a tool's output may well hold
        return msgspec.json.encode(mend_json_value(body))
