"""The body of `/api/chat`. Pure.

Every request has `truncate: false` and `shift: false`. With them, a newer server rejects a prompt that is too
long, and ends a reply at the end of the window, instead of dropping messages. Older servers ignore both fields, so
they need a large window. A prompt that clearly exceeds its window raises an error here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from callboard.bus.errors import (
    CapabilityError,
    InvalidRequestError,
    PromptTooLongError,
    UnsupportedToolChoiceError,
    WarningCode,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import CallWarning, Message, Role, ToolDefinition

from ...contract import AdapterCapabilities, CanonicalRequest
from ...requests.content import current_turn, encode_json, join_text
from ...requests.estimate import at_most
from ...requests.history import fit_history
from ...requests.history_target import FittedHistory, Loss, Target, WireCall, block_type
from ...requests.schemas import fold_root, without_booleans
from ...requests.settings import (
    changed,
    check_demands,
    dropped,
    merge_options,
    merge_own_options,
    nearest_effort,
    write_settings,
)

CHAT_PATH = "/api/chat"

T = TypeVar("T")

IMAGE_MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp")
"""The types that the server decodes."""

MAX_MODELS = 256
"""The largest number of cached models. The oldest entry is dropped first."""

ASK_AGAIN_SECONDS = 60.0
"""Seconds before a model without an answer is looked up again."""

UNKNOWN = AdapterCapabilities(
    supports_images=True,
    supports_thinking=True,
    supports_tools=True,
    supports_structured_output=True,
    supports_tool_choice=False,
    supports_streaming_tool_calls=False,
    supports_parallel_tool_calls=True,
    accepted_image_media_types=IMAGE_MEDIA_TYPES,
)
"""The assumed capabilities of a model before its lookup. If the model lacks one, the server's error names the
missing capability.
"""


class ModelFacts(msgspec.Struct, frozen=True):
    abilities: frozenset[str] | None = None
    """The model's abilities; None if not reported (older servers)."""
    context_tokens: int | None = None
    """The largest window of the model; None if unknown. The window of a call is its `num_ctx`."""
    family: str = ""

    @property
    def thinks(self) -> bool | None:
        return None if self.abilities is None else "thinking" in self.abilities

    @property
    def has_think_levels(self) -> bool:
        """Whether the model's reasoning has levels. Otherwise reasoning is on or off."""
        return self.family.replace("-", "").startswith("gptoss")

    def capabilities(self) -> AdapterCapabilities:
        window, traits = self.context_tokens, UNKNOWN
        if window is not None:
            traits = msgspec.structs.replace(traits, max_context_tokens=window, max_output_tokens=window)
        if self.abilities is None:
            return traits
        return msgspec.structs.replace(
            traits,
            supports_images="vision" in self.abilities,
            supports_thinking="thinking" in self.abilities,
            supports_tools="tools" in self.abilities,
            supports_parallel_tool_calls="tools" in self.abilities,
        )


def read_show(value: Json) -> ModelFacts | None:
    if not isinstance(value, dict) or not {"capabilities", "details", "model_info"} & value.keys():
        return None
    abilities, details = value.get("capabilities"), value.get("details")
    family = details.get("family") if isinstance(details, dict) else None
    return ModelFacts(
        abilities=frozenset(map(str, abilities)) if isinstance(abilities, list) else None,
        context_tokens=_context_length(value.get("model_info")),
        family=family if isinstance(family, str) else "",
    )


def _context_length(info: Json) -> int | None:
    if not isinstance(info, dict):
        return None
    named = info.get(f"{info.get('general.architecture')}.context_length")
    lengths = [named, *(value for name, value in info.items() if name.endswith(".context_length"))]
    return next(
        (n for n in lengths if isinstance(n, int) and not isinstance(n, bool) and n > 0),
        None,
    )


def read_tags(value: Json) -> tuple[str, ...]:
    """The names in an answer of `/api/tags`, in the server's order: the latest first."""
    models = value.get("models") if isinstance(value, dict) else None
    names: list[str] = []
    for model in models if isinstance(models, list) else ():
        name = (model.get("model") or model.get("name")) if isinstance(model, dict) else None
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


class Catalogue:
    """The known models by full name. Times are in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._facts: dict[str, ModelFacts] = {}
        self._queried_at: dict[str, float] = {}

    def facts(self, model: str) -> ModelFacts | None:
        return self._facts.get(full_name(model))

    def learn(self, model: str, facts: ModelFacts | None, now: float) -> None:
        """Cache an answer, or the fact that there was none."""
        name = full_name(model)
        if facts is None:
            put(self._queried_at, name, now)
        else:
            self._queried_at.pop(name, None)
            put(self._facts, name, facts)

    def wants(self, model: str, now: float) -> bool:
        """Whether to look up a model: it is unknown, and its last lookup did not fail recently."""
        name = full_name(model)
        asked_at = self._queried_at.get(name)
        return name not in self._facts and (asked_at is None or now - asked_at >= ASK_AGAIN_SECONDS)


def full_name(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


def put(table: dict[str, T], model: str, value: T) -> None:
    """Put the latest entry into a table of at most MAX_MODELS."""
    table.pop(model, None)
    while len(table) >= MAX_MODELS:
        table.pop(next(iter(table)))
    table[model] = value


SMALLEST_WINDOW = 4096  # tokens


def window_size(needed: int, limit: int | None) -> int:
    """The smallest window for `needed` tokens: a power of two, or the model's `limit`."""
    size = max(SMALLEST_WINDOW, 1 << max(0, needed - 1).bit_length())
    return size if limit is None else min(size, limit)


class Windows:
    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def choose(self, model: str, needed: int, limit: int | None) -> int:
        """The window for a call. The window is never smaller than the window with which the model was last
        loaded.
        """
        size = max(window_size(needed, limit), self._sizes.get(model, 0))
        put(self._sizes, model, size)
        return size


# --- History as messages ---


def refused_image(image: ImageBlock, capabilities: AdapterCapabilities) -> str | None:
    accepted = capabilities.accepted_image_media_types
    if accepted is not None and image.media_type is not None and image.media_type not in accepted:
        return f"the server does not accept images of type {image.media_type}"
    return None if image_data(image) else "the server accepts images only as data, not by address"


def image_data(image: ImageBlock) -> str | None:
    """An image as base64 without a prefix; None if it has only an address."""
    if image.data is not None:
        return base64.b64encode(image.data).decode()
    head, comma, data = (image.url or "").partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    try:
        raw = unquote_to_bytes(data)
        if head.endswith(";base64"):
            raw = base64.b64decode(b"".join(raw.split()), validate=True)
    except binascii.Error:
        return None
    return base64.b64encode(raw).decode() or None


class _HistoryWriter:
    def __init__(self, history: FittedHistory, capabilities: AdapterCapabilities) -> None:
        self.history = history
        self.capabilities = capabilities
        self.losses: list[Loss] = []
        self.messages: list[Json] = []

    def write(self) -> list[Json]:
        if self.history.system is not None:
            self.messages.append({"role": "system", "content": self.history.system})
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._reply(message)
                case Role.TOOL:
                    self._results(message)
                case _:
                    self._say(join_text(message.content), self._images(message.content))
        return self.messages

    def _say(self, text: str, images: list[Json]) -> None:
        if text or images:
            wire: JsonObject = {"role": "user", "content": text}
            if images:
                wire["images"] = images
            self.messages.append(wire)

    def _images(self, content: Iterable[ContentBlock], home: ToolResultBlock | None = None) -> list[Json]:
        """The images that can be sent, from a message or from the result `home`."""
        images: list[Json] = []
        for block in content:
            if isinstance(block, ImageBlock):
                reason = refused_image(block, self.capabilities)
                if reason is None:
                    images.append(image_data(block))
                else:
                    self.losses.append(self.history.loss(home or block, reason, kind=block_type(block)))
        return images

    def _reply(self, message: Message) -> None:
        wire: JsonObject = {"role": "assistant", "content": join_text(message.content)}
        calls: list[Json] = []
        thinking = ""
        for block in message.content:
            match block:
                case ToolUseBlock():
                    function: JsonObject = {"name": block.name, "arguments": block.input}
                    calls.append({"id": self.history.tool_ids[block.id], "function": function})
                case ThinkingBlock():
                    thinking += block.text
                case OpaqueBlock() | RedactedThinkingBlock():
                    self.losses.append(self.history.loss(block, "this protocol does not support it"))
                case _:
                    pass
        if thinking:
            wire["thinking"] = thinking
        if calls:
            wire["tool_calls"] = calls
        if calls or thinking or wire["content"]:
            self.messages.append(wire)

    def _results(self, message: Message) -> None:
        shown: list[Json] = []
        sources: list[str] = []
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                continue
            name = self.history.tool_names[block.tool_use_id]
            images = [] if isinstance(block.content, str) else self._images(block.content, block)
            if images:
                shown += images
                sources.append(name)
            text = block.text or ("The result is an image. It follows." if images else "")
            self.messages.append(
                {
                    "role": "tool",
                    "content": f"Error: {text}" if block.is_error else text,
                    "tool_name": name,
                    "tool_call_id": self.history.tool_ids[block.tool_use_id],
                }
            )
        if shown:
            self._say(f"Result of {', '.join(sources)}:", shown)


_OPTIONS = "ollama"
"""The key of the protocol's options in a request, besides the adapter's own name."""

_SETTINGS = {name: name for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")}
"""The places of the portable settings among the options."""

_LEVELS = ("low", "medium", "high")
"""The levels of reasoning, the same on all servers."""


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
        writer = _HistoryWriter(history, self.capabilities)
        messages = writer.write()
        if not messages:
            raise InvalidRequestError(f"{self.provider}: a request without messages only loads the model")
        body: JsonObject = {
            "model": request.wire_model,
            "messages": messages,
            "stream": stream,  # the server streams by default
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
        history = history.with_losses(writer.losses)
        history.log()
        headers = {"accept": "application/x-ndjson"} if stream else {}
        warnings = history.warnings + tuple(self.warnings)
        return WireCall(CHAT_PATH, encode_json(body), headers, warnings, history.losses)

    def _check(self) -> None:
        model, can = self.request.model, self.capabilities
        if self.request.tools and not can.supports_tools:
            raise CapabilityError(
                f"{model} does not support tools. To emulate them, set `options: {{tools: emulate}}`"
            )
        check_demands(self.request, can, self.provider)
        for message in current_turn(self.request.messages):
            for block in message.content:
                match block:
                    case ImageBlock() if reason := refused_image(block, can):
                        raise CapabilityError(f"{model}: {reason}")
                    case AudioBlock() | DocumentBlock():
                        raise CapabilityError(f"{self.provider} accepts neither audio nor documents")
                    case _:
                        pass

    def _check_size(self, estimated_tokens: int, body: JsonObject) -> None:
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
                f"{self.provider} can't be forced to call a tool (tool choice {choice.mode!r})"
            )
        if not tools or (choice is not None and choice.mode == "none"):
            return {}
        if self.request.parallel_tool_calls is not None:
            self._left_out("parallel_tool_calls", "the protocol does not support it")
        if self.request.output_schema is not None:
            self._warn(
                WarningCode.SCHEMA_HINDERS_TOOLS, "the reply must follow the schema, which may prevent tool calls"
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
        """The field for reasoning. The field is always sent to reasoning models, because older servers otherwise
        leave the reasoning in the text.
        """
        effort, thinks = self.request.reasoning_effort, self.facts.thinks
        if not self.capabilities.supports_thinking:
            thinks = False
        if effort is None:
            return {"think": True} if thinks and not self.facts.has_think_levels else {}
        if effort == "none":
            return {} if thinks is False else {"think": False}
        if thinks is False:
            self._left_out("reasoning_effort", f"{self.request.wire_model} does not reason")
            return {}
        if not (self.facts.has_think_levels or "gpt-oss" in self.request.wire_model):
            return {"think": True}
        level = nearest_effort(effort, _LEVELS)
        if level != effort:
            self.warnings.append(changed("reasoning_effort", effort, level, "the nearest value of the model"))
        return {"think": level}

    def _options(self, num_ctx: int) -> JsonObject:
        request = self.request
        options: JsonObject = {"num_ctx": num_ctx, "num_predict": request.max_output_tokens}
        self.warnings += write_settings(options, request, _SETTINGS, self.provider)
        if request.stop_sequences:
            options["stop"] = list(request.stop_sequences)
        return options

    def _left_out(self, what: str, why: str) -> None:
        self.warnings.append(dropped(what, self.provider, why))

    def _warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(CallWarning(code, message))
