"""A canonical request as the body of `/api/chat`. This module is pure.

Every request has `truncate: false` and `shift: false`. With them a newer server refuses a prompt that is too long,
and doesn't drop the oldest messages. It also ends a reply at the end of the window, and doesn't forget the
beginning. Older servers don't know these fields, so they need a window that is large enough (see `window`). A
prompt that is clearly larger than its window is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters.contract import AdapterCapabilities, CallWarning, CanonicalRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.refusals.required_capabilities import check_demands
from callboard.adapters.requests.effort import nearest_effort
from callboard.adapters.requests.encoding import encode_json
from callboard.adapters.requests.history import Target, fit_history
from callboard.adapters.requests.host_options import merge_options, merge_own_options
from callboard.adapters.requests.text import current_turn
from callboard.adapters.schemas.root import fold_root
from callboard.adapters.schemas.sanitizer import without_booleans
from callboard.adapters.usage.estimate import at_most
from callboard.bus.errors import (
    CapabilityError,
    InvalidRequestError,
    PromptTooLongError,
    UnsupportedToolChoiceError,
)
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import ToolDefinition
from callboard.bus.values.warning_codes import WarningCode

from .messages import refused_image, write_messages
from .models import ModelFacts
from .wire import CHAT_PATH, NDJSON

_OPTIONS = "ollama"
"""Under this name, or the adapter's own, a request carries what only this protocol knows."""

_LEVELS = ("low", "medium", "high")
"""Of reasoning, in models that have any; all servers that know levels know these."""


def write_request(
    request: CanonicalRequest,
    *,
    provider: str,
    facts: ModelFacts,
    capabilities: AdapterCapabilities,
    estimated_tokens: int,
    num_ctx: int,
    defaults: Mapping[str, Json],
    stream: bool,
) -> WireCall:
    """The request on the wire.

    Args:
        request: The request.
        provider: The adapter's name.
        facts: The server's facts about the model.
        capabilities: The capabilities of the model.
        estimated_tokens: The estimated tokens of the prompt.
        num_ctx: The window to ask for, in tokens.
        defaults: Fields of the body from the configuration. Fields of the request go before them.

    Raises:
        CapabilityError: The model can't do this. It is a PromptTooLongError if the prompt is too long.
        InvalidRequestError: The protocol can't express the request.
    """
    return _Writer(request, provider, facts, capabilities).write(estimated_tokens, num_ctx, defaults, stream)


class _Writer:
    def __init__(
        self, request: CanonicalRequest, provider: str, facts: ModelFacts, capabilities: AdapterCapabilities
    ) -> None:
        self.request = request
        self.provider = provider
        self.facts = facts
        self.capabilities = capabilities
        self.warnings: list[CallWarning] = []

    def write(self, estimated_tokens: int, num_ctx: int, defaults: Mapping[str, Json], stream: bool) -> WireCall:
        request = self.request
        self._check()
        target = Target(
            provider=self.provider, accepts_images=self.capabilities.supports_images, replays_thinking=True
        )
        history = fit_history(request, target)
        messages, losses = write_messages(
            history, self.capabilities, provider=self.provider, session_id=request.session_id
        )
        if not messages:
            raise InvalidRequestError(f"{self.provider}: a request without messages would only load the model")
        body: JsonObject = {
            "model": request.wire_model,
            "messages": messages,
            "stream": stream,  # left out, it is on
            "truncate": False,
            "shift": False,
            **self._think(),
            **self._tools(),
            **self._format(),
            "options": self._options(num_ctx),
        }
        merge_options(body, dict(defaults))
        merge_own_options(body, request, _OPTIONS, self.provider)
        self._check_size(estimated_tokens, body)
        history = history.with_losses(losses)
        history.log()
        headers = {"accept": NDJSON} if stream else {}
        warnings = history.warnings + tuple(self.warnings)
        return WireCall(CHAT_PATH, encode_json(body), headers, warnings, history.losses)

    def _check(self) -> None:
        """What the current turn itself asks for must be there."""
        model, can = self.request.model, self.capabilities
        if self.request.tools and not can.supports_tools:
            raise CapabilityError(f"{model} calls no tools; `options: {{tools: emulate}}` emulates them")
        check_demands(self.request, can, self.provider)
        for message in current_turn(self.request.messages):
            for block in message.content:
                match block:
                    case ImageBlock() if reason := refused_image(block, can):
                        raise CapabilityError(f"{model}: {reason}")
                    case AudioBlock() | DocumentBlock():
                        raise CapabilityError(f"{self.provider} takes neither audio nor documents")
                    case _:
                        pass

    def _check_size(self, estimated_tokens: int, body: JsonObject) -> None:
        """Whether the prompt fits the window that is asked for in the end, as far as an estimate can tell."""
        options = body["options"]
        window = options.get("num_ctx") if isinstance(options, dict) else None
        if not isinstance(window, int) or estimated_tokens <= window:
            return
        size = f"about {estimated_tokens} tokens for a window of {window}"
        if estimated_tokens > at_most(window):
            raise PromptTooLongError(f"the prompt is too long for {self.request.model}: {size}")
        self._warn(WarningCode.PROMPT_NEAR_WINDOW, f"the prompt may be too long for {self.request.model}: {size}")

    def _tools(self) -> JsonObject:
        choice, tools = self.request.tool_choice, self.request.tools
        if choice is not None and choice.mode in ("required", "named"):
            raise UnsupportedToolChoiceError(
                f"{self.provider} can't be made to call a tool (tool choice {choice.mode!r})"
            )
        if not tools or (choice is not None and choice.mode == "none"):
            return {}
        if self.request.parallel_tool_calls is not None:
            self._left_out("parallel_tool_calls", "the protocol does not know it")
        if self.request.output_schema is not None:
            self._warn(
                WarningCode.SCHEMA_HINDERS_TOOLS, "the reply is held to the schema, which a tool call may not fit"
            )
        return {"tools": [self._tool(tool) for tool in tools]}

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        folded = fold_root(tool.input_schema)  # the server reads only type and properties of the root
        if folded.folded:
            self.warnings += folded.warnings(f"tool {tool.name!r}")
        parameters: JsonObject = {"properties": {}, **without_booleans(folded.schema)}
        function: JsonObject = {"name": tool.name, "description": tool.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def _format(self) -> JsonObject:
        schema = self.request.output_schema
        if schema is None:
            return {}
        return {"format": "json" if schema == {"type": "object"} else without_booleans(schema)}

    def _think(self) -> JsonObject:
        """Whether to reason. Said outright to models that do: where it isn't, older servers leave the reasoning
        in the text, between tags."""
        asked, thinks = self.request.reasoning_effort, self.facts.thinks
        if not self.capabilities.supports_thinking:
            thinks = False
        if asked is None:
            return {"think": True} if thinks and not self.facts.has_think_levels else {}
        if asked == "none":
            return {} if thinks is False else {"think": False}
        if thinks is False:
            self._left_out("reasoning_effort", f"{self.request.wire_model} does not reason")
            return {}
        if not (self.facts.has_think_levels or "gpt-oss" in self.request.wire_model):
            return {"think": True}
        level = nearest_effort(asked, _LEVELS)
        if level != asked:
            self._warn(WarningCode.PARAMETER_CHANGED, f"reasoning_effort {asked} was sent as {level}")
        return {"think": level}

    def _options(self, num_ctx: int) -> JsonObject:
        request = self.request
        for name in ("verbosity", "user", "background"):
            value = getattr(request, name)
            if value is not None and value is not False:
                self._left_out(name, "the protocol does not know it")
        options: JsonObject = {"num_ctx": num_ctx, "num_predict": request.max_output_tokens}
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed"):
            value = getattr(request, name)
            if value is not None:
                options[name] = value
        if request.stop_sequences:
            options["stop"] = list(request.stop_sequences)
        return options

    def _left_out(self, what: str, why: str) -> None:
        self._warn(WarningCode.PARAMETER_DROPPED, f"{what} was not sent: {why}")

    def _warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(CallWarning(code, message))
