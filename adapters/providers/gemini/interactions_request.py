"""The body of an interaction. Pure.

Nothing is stored at the provider: each request has the whole conversation as steps. An unsupported tuning setting
is dropped with a warning. The fields of ``provider_options["gemini"]`` are merged into the body, object by
object, and override Callboard's.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition

from ...contract import CanonicalRequest
from ...requests.history import FAILED_SILENTLY, fit_history
from ...requests.history_target import BuiltRequest, FittedHistory, Loss
from ...requests.settings import (
    check_demands,
    merge_options,
    tool_options,
)
from .contents import NEITHER, Media, sent_medium, target_of
from .request import OPTIONS, RequestBuilder, fit_schema, takes_nothing

# --- History as steps ---

CONTENT_TYPES = frozenset({"text", "image", "audio", "document", "video"})
"""The types of content inside a step. An opaque block of any other type is sent as a separate step."""

_OF_MEDIA = ("resolution", "processing", "name", "channels", "sample_rate")
"""Extra fields that a host may set in the `provider_raw` of media."""


class _Writer:
    def __init__(self, history: FittedHistory) -> None:
        self.history = history
        self.losses: list[Loss] = []
        self.steps: list[JsonObject] = []

    def write(self) -> list[JsonObject]:
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._model_turn(message)
                case Role.TOOL:
                    results = (block for block in message.content if isinstance(block, ToolResultBlock))
                    self.steps += [self._result(block) for block in results]
                case _:
                    self._add_content(message)
        if not self.steps:
            raise InvalidRequestError(f"{self.history.adapter}: the request has no message to send")
        return self.steps

    def _add(self, kind: str, content: Iterable[Json]) -> None:
        """Add content to the last step if the step has this kind. Otherwise add a new step."""
        last = self.steps[-1] if self.steps else {}
        before = last.get("content") if last.get("type") == kind else None
        if isinstance(before, list):
            before += content
        else:
            self.steps.append({"type": kind, "content": [*content]})

    # --- The user ---

    def _add_content(self, message: Message) -> None:
        for block in message.content:
            if isinstance(block, OpaqueBlock) and _type(block) not in CONTENT_TYPES:
                self.steps.append(block.provider_raw.data)
            elif content := list(self._content(block)):
                self._add("user_input", content)

    def _content(self, block: ContentBlock) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"type": "text", "text": block.text}
            case ImageBlock() | AudioBlock() | DocumentBlock():
                yield from self._media(block, block)
            case OpaqueBlock():
                yield block.provider_raw.data
            case _:
                self._lose(block, "this protocol has no such content")

    def _media(self, media: Media, home: ContentBlock) -> Iterator[JsonObject]:
        sent = sent_medium(media)
        if sent is None:
            self._lose(home, NEITHER)
            return
        of_type: JsonObject = {} if sent.media_type is None else {"mime_type": sent.media_type}
        source: JsonObject = {"data": sent.data} if sent.url is None else {"uri": sent.url}
        fields = self._fields(media.provider_raw)
        yield {"type": _kind(media, sent.media_type), **source, **of_type, **fields}

    def _fields(self, raw: ProviderRaw | None) -> JsonObject:
        data = self.history.own(raw)
        return {name: data[name] for name in _OF_MEDIA if data.get(name) is not None} if data else {}

    # --- The model ---

    def _model_turn(self, message: Message) -> None:
        for block in message.content:
            match block:
                case TextBlock():
                    self._add("model_output", [self._text(block)])
                case ImageBlock():
                    self._add("model_output", [self._own_image(block)])
                case ToolUseBlock():
                    self.steps.append(self._call(block))
                case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                    self._lose(block, "it has no signature")
                case ThinkingBlock():
                    self.steps.append(self._thought(block))
                case OpaqueBlock() if _type(block) in CONTENT_TYPES:
                    self._add("model_output", [block.provider_raw.data])
                case OpaqueBlock() if _type(block):
                    fields = block.provider_raw.data.items()
                    self.steps.append({name: value for name, value in fields if value is not None})
                case _:
                    self._lose(block, "this protocol has no such step")

    def _text(self, block: TextBlock) -> JsonObject:
        annotations = self.history.own(block.provider_raw).get("annotations")
        return {"type": "text", "text": block.text, **({"annotations": annotations} if annotations else {})}

    def _own_image(self, block: ImageBlock) -> JsonObject:
        assert block.provider_raw is not None
        source: JsonObject = {"uri": block.url}
        if block.data is not None:
            source = {"data": b64encode(block.data).decode()}
        return {"type": "image", **block.provider_raw.data, **source}

    def _call(self, block: ToolUseBlock) -> JsonObject:
        data = self.history.own(block.provider_raw)
        fields = {name: value for name, value in data.items() if name not in ("id", "arguments")}
        return {
            **fields,
            "type": "function_call",
            "id": self.history.tool_ids[block.id],
            "name": block.name,
            "arguments": block.input,
        }

    def _thought(self, block: ThinkingBlock) -> JsonObject:
        step: JsonObject = {"type": "thought", "signature": block.signature}
        summary = self.history.own(block.provider_raw).get("summary")
        if summary is not None:
            step["summary"] = summary
        elif block.text:
            step["summary"] = [{"type": "text", "text": block.text}]
        return step

    # --- Tools ---

    def _result(self, block: ToolResultBlock) -> JsonObject:
        result: list[Json] = []
        for part in (TextBlock(block.content),) if isinstance(block.content, str) else block.content:
            result += (
                self._content(part) if isinstance(part, TextBlock | OpaqueBlock) else self._media(part, block)
            )
        if block.is_error and not block.text:
            result.append({"type": "text", "text": FAILED_SILENTLY})
        return {
            "type": "function_result",
            "call_id": self.history.tool_ids[block.tool_use_id],
            "name": self.history.tool_names[block.tool_use_id],
            "result": result,
            **({"is_error": True} if block.is_error else {}),
        }

    def _lose(self, block: ContentBlock, reason: str) -> None:
        self.losses.append(self.history.loss(block, reason))


def _type(block: OpaqueBlock) -> str:
    found = block.provider_raw.data.get("type")
    return found if isinstance(found, str) else ""


def _kind(media: Media, media_type: str | None) -> str:
    match media:
        case ImageBlock():
            return "image"
        case AudioBlock():
            return "audio"
        case _:
            return "video" if media_type is None or media_type.startswith("video/") else "document"


SETTINGS = {"temperature": "temperature", "top_p": "top_p", "seed": "seed"}
"""The places of the portable settings in the generation_config."""

LEVELS = ("minimal", "low", "medium", "high")
"""The thinking levels of a model without a list of them."""

_MODES = {"auto": "auto", "none": "none", "required": "any"}


def build_interaction(request: CanonicalRequest, *, provider: str, stream: bool) -> BuiltRequest:
    return _Builder(request, provider).build(stream=stream)


class _Builder(RequestBuilder):
    def build(self, *, stream: bool) -> BuiltRequest:
        request = self.request
        if self.options.get("background"):
            raise InvalidRequestError(f"{self.provider}: background replies are not supported here")
        check_demands(request, request.capabilities, self.provider)
        target = target_of(self.provider, request.wire_model, self.row, takes_system=self.row.system)
        history = fit_history(request, target)
        writer = _Writer(history)
        steps = writer.write()
        history = history.with_losses(writer.losses)
        body: JsonObject = {"model": request.wire_model, "input": list[Json](steps), "store": False}
        if stream:
            body["stream"] = True
        if history.system:
            body["system_instruction"] = history.system
        config: JsonObject = {"max_output_tokens": request.max_output_tokens}
        self._tools(body, config)
        self._format(body)
        effort = self.effort()
        if effort is not None:
            config["thinking_level"] = self.level(effort, self.row.levels or LEVELS)
            config["thinking_summaries"] = "auto"
        stops = self.settings(config, SETTINGS)
        if stops:
            config["stop_sequences"] = list[Json](stops)
        body["generation_config"] = config
        merge_options(body, self.options)
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    # --- Tools of the request ---

    def _tools(self, body: JsonObject, config: JsonObject) -> None:
        self.check_tools()
        request = self.request
        if not request.tools:
            return
        body["tools"] = [self._tool(tool) for tool in request.tools]
        choice = request.tool_choice
        if choice is not None and choice.mode == "named":
            config["tool_choice"] = {"allowed_tools": {"mode": "any", "tools": [choice.tool_name]}}
        elif choice is not None and choice.mode != "auto":
            config["tool_choice"] = _MODES[choice.mode]
        elif any(tool.strict for tool in request.tools):
            config["tool_choice"] = "validated"  # like auto, with arguments that follow the schema
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

    def _format(self, body: JsonObject) -> None:
        schema = self.request.output_schema
        if schema is None:
            return
        form: JsonObject = {"type": "text", "mime_type": "application/json"}
        if not set(schema) <= {"type", "title", "description"} or schema.get("type") != "object":
            form["schema"] = fit_schema(schema)
        body["response_format"] = form
