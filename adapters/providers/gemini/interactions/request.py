"""From a canonical request to the body of an interaction. This module is pure.

Nothing is stored at the provider: the whole conversation goes along as steps. A setting that only tunes the reply
is left out with a warning if the API doesn't take it. The fields of a request's ``provider_options["gemini"]`` are
merged into the body, object by object, and go before our own values.
"""

from __future__ import annotations

from callboard.adapters.contract import CallWarning, CanonicalRequest
from callboard.adapters.refusals.required_capabilities import check_demands
from callboard.adapters.requests.effort import nearest_effort
from callboard.adapters.requests.history import fit_history
from callboard.adapters.requests.host_options import joined_options, merge_options, tool_options
from callboard.adapters.requests.settings import changed, check_tool_choice, dropped, write_settings
from callboard.bus.errors import CapabilityError, InvalidRequestError
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import ToolDefinition

from ..chat.request import OPTIONS, BuiltRequest
from ..chat.schema import fit_schema, takes_nothing
from ..data import UNLISTED, find_model
from ..target import target_of
from .steps import write_steps

SETTINGS = {"temperature": "temperature", "top_p": "top_p", "seed": "seed"}
"""Where the portable settings stand in the generation_config."""

LEVELS = ("minimal", "low", "medium", "high")
"""The thinking levels of a model that has no list of them."""

_MODES = {"auto": "auto", "none": "none", "required": "any"}


def build_interaction(request: CanonicalRequest, *, provider: str, stream: bool) -> BuiltRequest:
    """The request on the wire.

    Args:
        request: The request.
        provider: The adapter's name.
        stream: Whether the reply is to be streamed.

    Raises:
        CapabilityError: The model can't do this.
        InvalidRequestError: The protocol can't express the request, or it asks for a reply in the background.
    """
    return _Builder(request, provider, stream).build()


class _Builder:
    def __init__(self, request: CanonicalRequest, provider: str, stream: bool) -> None:
        self.request = request
        self.provider = provider
        self.stream = stream
        self.row = find_model(request.wire_model) or UNLISTED
        self.options = joined_options(request, OPTIONS, provider)
        self.warnings: list[CallWarning] = []

    def build(self) -> BuiltRequest:
        request = self.request
        if self.options.get("background"):
            raise InvalidRequestError(f"{self.provider}: replies in the background are not taken up here")
        check_demands(request, request.capabilities, self.provider)
        target = target_of(self.provider, request.wire_model, self.row, takes_system=self.row.system)
        history = fit_history(request, target)
        steps, losses = write_steps(history, request.wire_model)
        history = history.with_losses(losses)
        body: JsonObject = {"model": request.wire_model, "input": list[Json](steps), "store": False}
        if self.stream:
            body["stream"] = True
        if history.system:
            body["system_instruction"] = history.system
        config: JsonObject = {"max_output_tokens": request.max_output_tokens}
        self._tools(body, config)
        self._format(body)
        self._thinking(config)
        self._sampling(config)
        body["generation_config"] = config
        merge_options(body, self.options)
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    def _left_out(self, parameter: str, why: str) -> None:
        self.warnings.append(dropped(parameter, self.provider, why))

    # -- tools

    def _tools(self, body: JsonObject, config: JsonObject) -> None:
        request = self.request
        if request.tools and not self.row.tools:
            raise CapabilityError(f"{self.provider}: {request.wire_model} takes no tools")
        check_tool_choice(request.tool_choice, [tool.name for tool in request.tools])
        if not request.tools:
            return
        body["tools"] = [self._tool(tool) for tool in request.tools]
        if request.parallel_tool_calls is False:
            self._left_out("parallel_tool_calls", "the protocol can't turn them off")
        choice = request.tool_choice
        if choice is not None and choice.mode == "named":
            config["tool_choice"] = {"allowed_tools": {"mode": "any", "tools": [choice.tool_name]}}
        elif choice is not None and choice.mode != "auto":
            config["tool_choice"] = _MODES[choice.mode]
        elif any(tool.strict for tool in request.tools):
            config["tool_choice"] = "validated"  # as auto, with arguments that follow the schema
        elif choice is not None:
            config["tool_choice"] = "auto"

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        written: JsonObject = {"type": "function", "name": tool.name}
        if tool.description:
            written["description"] = tool.description
        if not takes_nothing(tool.input_schema):
            written["parameters"] = fit_schema(tool.input_schema)
        merge_options(written, tool_options(tool, OPTIONS, self.provider))
        return written

    # -- the reply's form

    def _format(self, body: JsonObject) -> None:
        schema = self.request.output_schema
        if schema is None:
            return
        form: JsonObject = {"type": "text", "mime_type": "application/json"}
        if not set(schema) <= {"type", "title", "description"} or schema.get("type") != "object":
            form["schema"] = fit_schema(schema)
        body["response_format"] = form

    # -- tuning

    def _thinking(self, config: JsonObject) -> None:
        asked, can = self.request.reasoning_effort, self.request.capabilities
        if asked is None:
            return
        if not self.row.reasons or (can is not None and not can.supports_thinking):
            if asked != "none":
                self._left_out("reasoning_effort", f"{self.request.wire_model} does not reason")
            return
        level = nearest_effort(asked, self.row.levels or LEVELS)
        config["thinking_level"] = level
        config["thinking_summaries"] = "auto"
        if level != asked:
            self.warnings.append(changed("reasoning_effort", asked, level, "the nearest that the model knows"))

    def _sampling(self, config: JsonObject) -> None:
        request = self.request
        ignored = () if self.row.sampling else ("temperature", "top_p")
        refused = dict.fromkeys(ignored, f"{request.wire_model} ignores it")
        if request.seed is not None and not -(2**31) <= request.seed < 2**31:
            refused["seed"] = "it must fit into 32 bits"
        self.warnings += write_settings(config, request, SETTINGS, self.provider, refused=refused)
        stops = [stop for stop in request.stop_sequences if stop]
        if stops:
            config["stop_sequences"] = list[Json](stops)
