"""A canonical request as a Chat Completions body: pure, and the only place that writes this wire.

What a server doesn't take is left out with a warning if it only tunes the reply (sampling, effort, stop), and is a
CapabilityError, before any network, if the reply would be another one without it (tool choice, schema, images
of the current turn).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from adapters.contract import AdapterCapabilities, CallWarning, CanonicalRequest
from adapters.history import FittedHistory, Loss, Target, ToolIdRule, fit_history
from adapters.strict_schema import NotStrict, to_strict, without_added_nulls
from bus.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.errors import CapabilityError, InvalidRequestError, UnsupportedToolChoiceError
from bus.json_types import Json, JsonObject
from bus.messages import Message, Role, ToolDefinition

from .quirks import EFFORTS, Quirks

COMMON_OPTIONS = "openai_compatible"
"""Provider options under this name are for every server of this protocol."""


class ChatBody(msgspec.Struct, frozen=True):
    """A request's body, what it had to leave out, and the losses of its history (to be logged)."""

    body: JsonObject
    warnings: tuple[CallWarning, ...]
    history: FittedHistory


def build_body(
    request: CanonicalRequest, quirks: Quirks, capabilities: AdapterCapabilities, provider: str, *, stream: bool
) -> ChatBody:
    """The body of a request. Raises CapabilityError or InvalidRequestError for what can't be said."""
    return _Builder(request, quirks, capabilities, provider).build(stream)


def target(quirks: Quirks, capabilities: AdapterCapabilities, provider: str) -> Target:
    """What histories are fitted to."""
    if quirks.tool_id_alphanumeric:
        ids = ToolIdRule(quirks.tool_id_length, "[A-Za-z0-9]", "")
    else:
        ids = ToolIdRule(quirks.tool_id_length)
    return Target(
        provider=provider,
        tool_ids=ids,
        accepts_images=capabilities.supports_images,
        replays_thinking=quirks.replays != "nothing",
        keeps_developer=quirks.developer_role,
    )


class _Builder:
    def __init__(
        self, request: CanonicalRequest, quirks: Quirks, capabilities: AdapterCapabilities, provider: str
    ) -> None:
        self.request = request
        self.quirks = quirks
        self.capabilities = capabilities
        self.provider = provider
        self.warnings: list[CallWarning] = []
        self.losses: list[Loss] = []

    def build(self, stream: bool) -> ChatBody:
        request = self.request
        self._check()
        history = fit_history(request, target(self.quirks, self.capabilities, self.provider))
        response_format, instruction = self._response_format()
        messages = self._messages(history)
        self._add_system(messages, history.system, instruction, response_format)
        body: JsonObject = {"model": request.wire_model, "messages": list(messages)}
        body[self.quirks.max_tokens_field] = request.max_output_tokens
        body |= self._tools()
        if response_format is not None:
            body["response_format"] = response_format
        body |= self._sampling()
        body |= self._effort()
        if stream:
            body["stream"] = True
            if self.quirks.stream_usage:
                body["stream_options"] = {"include_usage": True}
        for name in dict.fromkeys((COMMON_OPTIONS, self.provider)):
            body |= self._options(name)
        history = msgspec.structs.replace(history, losses=history.losses + tuple(self.losses))
        return ChatBody(body, history.warnings + tuple(self.warnings), history)

    def _options(self, name: str) -> Mapping[str, Json]:
        options = self.request.provider_options.get(name)
        if options is None:
            return {}
        if not isinstance(options, dict):
            raise InvalidRequestError(f"provider_options[{name!r}] must be an object: it is merged into the body")
        return options

    def _check(self) -> None:
        """What the current turn itself asks for must be there."""
        model, can = self.request.model, self.capabilities
        if self.request.tools and not can.supports_tools:
            raise CapabilityError(f"{model} has no tools")
        if self.request.output_schema is not None and not can.supports_structured_output:
            raise CapabilityError(f"{model} has no structured output")
        for message in _current_turn(self.request.messages):
            for block in _images(message):
                if not can.supports_images:
                    raise CapabilityError(f"{model} takes no images")
                accepted = can.accepted_image_media_types
                if accepted is not None and block.media_type is not None and block.media_type not in accepted:
                    raise CapabilityError(f"{model} takes no images of type {block.media_type}")
                if not self._sendable(block):
                    raise CapabilityError(f"{self.provider} takes images as data only, not by address")

    def _warn(self, code: str, message: str) -> None:
        self.warnings.append(CallWarning(code, message))

    def _left_out(self, parameter: str, why: str) -> None:
        self._warn("parameter_dropped", f"{parameter} was not sent to {self.provider}: {why}")

    # -- messages

    def _add_system(
        self, messages: list[JsonObject], system: str | None, instruction: str, response_format: Json
    ) -> None:
        parts = [part for part in (system, instruction) if part]
        if response_format == {"type": "json_object"} and not instruction:
            said = encode_json([system, *messages]).lower()
            if b"json" not in said:
                parts.append("Reply with a JSON object.")  # servers refuse this mode unless JSON is mentioned
        if parts:
            messages.insert(0, {"role": self.quirks.system_role, "content": "\n\n".join(parts)})

    def _messages(self, history: FittedHistory) -> list[JsonObject]:
        wire: list[JsonObject] = []
        loop_start = max((n for n, m in enumerate(history.messages) if m.role is Role.USER), default=-1)
        for position, message in enumerate(history.messages):
            match message.role:
                case Role.USER:
                    self._say(wire, self._parts(message.content, message))
                case Role.ASSISTANT:
                    wire.append(self._assistant(message, history, in_loop=position > loop_start))
                case Role.TOOL:
                    self._results(wire, message, history)
                case _:
                    wire.append({"role": message.role.value, "content": join_text(message.content)})
        return wire

    def _say(self, wire: list[JsonObject], parts: list[JsonObject]) -> None:
        """A user's words. They join a user message before them: chat templates want roles to alternate."""
        if not parts:
            return
        before = wire[-1] if wire and wire[-1]["role"] == "user" else None
        if before is not None:
            content = before["content"]
            old: list[Json] = [_text_part(content)] if isinstance(content, str) else _as_list(content)
            before["content"] = [*old, *parts]
        elif all(part["type"] == "text" for part in parts):
            wire.append({"role": "user", "content": "\n\n".join(str(part["text"]) for part in parts)})
        else:
            wire.append({"role": "user", "content": list(parts)})

    def _parts(self, content: Iterable[ContentBlock], message: Message) -> list[JsonObject]:
        parts: list[JsonObject] = []
        for block in content:
            match block:
                case TextBlock():
                    parts.append(_text_part(block.text))
                case ImageBlock() if not self.capabilities.supports_images:
                    self._lose(message, block, "the model takes no images")
                case ImageBlock() if not self._sendable(block):
                    self._lose(message, block, "the server takes images as data only, not by address")
                case ImageBlock():
                    parts.append(_image_part(block))
                case _:
                    pass
        return parts

    def _sendable(self, block: ImageBlock) -> bool:
        return self.quirks.image_urls or block.url is None or block.url.startswith("data:")

    def _assistant(self, message: Message, history: FittedHistory, *, in_loop: bool) -> JsonObject:
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        text = join_text(message.content)
        wire: JsonObject = {"role": "assistant", "content": text}
        if calls:
            wire["content"] = text or (None if self.quirks.null_content else "")
            wire["tool_calls"] = [self._call(call, history) for call in calls]
        self._replay(wire, message, with_calls=bool(calls) and in_loop)
        return wire

    def _call(self, call: ToolUseBlock, history: FittedHistory) -> JsonObject:
        raw = call.provider_raw
        own = raw is not None and raw.provider == self.provider
        wire: JsonObject = {
            "id": history.tool_ids[call.id],
            "type": "function",
            # always an object: chat templates parse it
            "function": {"name": call.name, "arguments": encode_json(call.input).decode()},
        }
        if raw is not None and own and self.quirks.replays == "extra_content" and "extra_content" in raw.data:
            wire["extra_content"] = raw.data["extra_content"]
        return wire

    def _replay(self, wire: JsonObject, message: Message, *, with_calls: bool) -> None:
        """The reasoning that the server wants back; the rest is lost, and said to be."""
        details: list[Json] = []
        for block in message.content:
            data = block.provider_raw.data if isinstance(block, ThinkingBlock) and block.provider_raw else {}
            match self.quirks.replays:
                case "tool_loop" if isinstance(block, ThinkingBlock) and with_calls:
                    wire["reasoning_content"] = f"{wire.get('reasoning_content', '')}{block.text}"
                case "reasoning_details" if "reasoning_details" in data:
                    details += _as_list(data["reasoning_details"])
                case "extra_content" if "extra_content" in data:
                    wire["extra_content"] = data["extra_content"]
                case _ if isinstance(block, ThinkingBlock):
                    self._lose(message, block, "this server takes no such reasoning back")
                case _ if isinstance(block, OpaqueBlock):
                    self._lose(message, block, "this protocol can't carry it")
                case _:
                    pass
        if details:
            wire["reasoning_details"] = details
        if with_calls and self.quirks.replays == "tool_loop":
            wire.setdefault("reasoning_content", "")

    def _results(self, wire: list[JsonObject], message: Message, history: FittedHistory) -> None:
        """One message for each result; their images follow in a user message, for results carry only text here."""
        images: list[JsonObject] = []
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                continue
            name = history.tool_names[block.tool_use_id]
            pictures = self._parts([part for part in _blocks(block) if isinstance(part, ImageBlock)], message)
            text = block.text or ("The result is an image; it follows." if pictures else "")
            result: JsonObject = {
                "role": "tool",
                "tool_call_id": history.tool_ids[block.tool_use_id],
                "content": f"Error: {text}" if block.is_error else text,
            }
            if self.quirks.tool_result_name:
                result["name"] = name
            wire.append(result)
            if pictures:
                images += [_text_part(f"Result of {name}:"), *pictures]
        self._say(wire, images)

    def _lose(self, message: Message, block: ContentBlock, reason: str) -> None:
        kind = str(type(block).__struct_config__.tag)
        self.losses.append(Loss(self.request.session_id, message.id or "", kind, self.provider, reason))

    # -- tools

    def _tools(self) -> JsonObject:
        tools, choice = self.request.tools, self.request.tool_choice
        mode = choice.mode if choice is not None else None
        if mode in ("required", "named"):
            self._check_choice(mode, choice.tool_name if choice is not None else None)
        if not tools or (mode == "none" and "none" not in self.quirks.tool_choices):
            return {}
        wire: JsonObject = {"tools": [self._tool(tool) for tool in tools]}
        if choice is not None and mode is not None and mode in self.quirks.tool_choices:
            wire["tool_choice"] = self._choice(mode, choice.tool_name)
        parallel = self.request.parallel_tool_calls
        if parallel is not None:
            if self.quirks.parallel_tool_calls:
                wire["parallel_tool_calls"] = parallel
            else:
                self._left_out("parallel_tool_calls", "the server does not know it")
        return wire

    def _check_choice(self, mode: str, name: str | None) -> None:
        if mode not in self.quirks.tool_choices:
            raise UnsupportedToolChoiceError(
                f"{self.provider} can't be made to call a tool (tool choice {mode!r})"
            )
        if not self.request.tools:
            raise InvalidRequestError(f"tool choice {mode!r} needs tools")
        if name is not None and name not in {tool.name for tool in self.request.tools}:
            raise InvalidRequestError(f"tool choice names {name!r}, which is none of the request's tools")

    def _choice(self, mode: str, name: str | None) -> Json:
        if mode == "named":
            return {"type": "function", "function": {"name": name}}
        return self.quirks.required_word if mode == "required" else mode

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        schema, strict = tool.input_schema, False
        if self.quirks.strict:
            try:
                schema, strict = strict_tool(tool)
            except NotStrict as error:
                raise InvalidRequestError(
                    f"tool {tool.name!r} can't be strict: {error}; set strict=False"
                ) from error
            if tool.strict is None and not strict:
                self._left_out(f"strict of tool {tool.name!r}", "its schema can't be rewritten without loss")
        elif tool.strict:
            self._left_out(f"strict of tool {tool.name!r}", "the server does not know it")
        schema = {**schema} if "properties" in schema else {**schema, "properties": {}}
        function: JsonObject = {"name": tool.name, "description": tool.description, "parameters": schema}
        if self.quirks.strict:
            function["strict"] = strict
        return {"type": "function", "function": function}

    # -- the shape of the reply

    def _response_format(self) -> tuple[JsonObject | None, str]:
        """The format, and what has to be said in the system text besides."""
        schema = self.request.output_schema
        if schema is None:
            return None, ""
        if self.quirks.structured == "none":
            raise CapabilityError(f"{self.provider} has no structured output")
        if schema == {"type": "object"}:
            return {"type": "json_object"}, ""
        if self.quirks.structured == "json_object":
            text = encode_json(schema).decode()
            return {"type": "json_object"}, f"Reply with a JSON object that follows this JSON Schema:\n{text}"
        wire: JsonObject = {"name": schema_name(schema), "schema": schema}
        if self.quirks.strict:
            wire |= _strict_format(schema)
        return {"type": "json_schema", "json_schema": wire}, ""

    # -- tuning

    def _sampling(self) -> JsonObject:
        request, wire = self.request, JsonObject()
        for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
            if value is not None:
                wire[name] = value
        if request.stop_sequences:
            wire["stop"] = list(request.stop_sequences[: self.quirks.max_stop])
            if len(request.stop_sequences) > self.quirks.max_stop:
                self._left_out("part of stop_sequences", f"the server takes {self.quirks.max_stop} at most")
        fixed = self.quirks.fixed_sampling
        if wire and fixed and request.reasoning_effort != "none" and re.match(fixed, request.wire_model):
            for name in wire:
                self._left_out(name, f"{request.wire_model} refuses it")
            return {}
        return wire

    def _effort(self) -> JsonObject:
        asked = self.request.reasoning_effort
        if asked is None:
            return {}
        if asked not in EFFORTS:
            raise InvalidRequestError(f"reasoning_effort {asked!r} is none of {', '.join(EFFORTS)}")
        match self.quirks.effort:
            case "none":
                self._left_out("reasoning_effort", "the server does not know it")
                return {}
            case "thinking":
                return {"thinking": {"type": "disabled" if asked == "none" else "enabled"}}
            case style:
                effort = nearest_effort(asked, self.quirks.efforts)
                if effort != asked:
                    self._warn("parameter_changed", f"reasoning_effort {asked} was sent as {effort}")
                return {"reasoning": {"effort": effort}} if style == "openrouter" else {"reasoning_effort": effort}


def _strict_format(schema: JsonObject) -> JsonObject:
    """Enforced where that changes nothing about what the schema allows: nobody takes added nulls out of a text."""
    try:
        strict = to_strict(schema)
    except NotStrict:
        return {"strict": False}
    return {"strict": False} if strict.adds_nulls else {"schema": strict.schema, "strict": True}


def nearest_effort(asked: str, known: tuple[str, ...]) -> str:
    """The known effort nearest to the asked one; of two, the lesser."""
    place = EFFORTS.index(asked)
    return min(known, key=lambda effort: (abs(EFFORTS.index(effort) - place), EFFORTS.index(effort)))


def join_text(content: Iterable[ContentBlock]) -> str:
    """All text blocks as one text: a blank line between them, unless the text itself goes on there."""
    joined = ""
    for block in content:
        if isinstance(block, TextBlock):
            goes_on = not joined or joined[-1].isspace() or block.text[:1].isspace()
            joined += block.text if goes_on else f"\n\n{block.text}"
    return joined


def schema_name(schema: JsonObject) -> str:
    """The schema's title as the wire allows it, or ``response``."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", title).strip("_")[:64] if isinstance(title, str) else ""
    return name or "response"


def strict_tool(tool: ToolDefinition) -> tuple[JsonObject, bool]:
    """A tool's schema as a server with strict mode gets it, and whether it is to be enforced.

    Raises NotStrict if the tool's definition demands what can't be done.
    """
    if tool.strict is False:
        return tool.input_schema, False
    try:
        return to_strict(tool.input_schema).schema, True
    except NotStrict:
        if tool.strict:
            raise
        return tool.input_schema, False


def input_cleaner(request: CanonicalRequest, quirks: Quirks) -> Callable[[str, JsonObject], JsonObject] | None:
    """What takes the nulls that strict mode added out of a call's arguments again; None if it added none."""
    if not quirks.strict or not request.tools:
        return None
    tools = {tool.name: tool for tool in request.tools}

    def clean(name: str, arguments: JsonObject) -> JsonObject:
        tool = tools.get(name)
        if tool is None or not strict_tool(tool)[1]:
            return arguments
        return without_added_nulls(arguments, tool.input_schema)

    return clean


def encode_json(value: Json) -> bytes:
    """JSON text of any JSON value, also of one with half surrogate pairs in it (a question mark stands for each).

    Raises InvalidRequestError for what is no JSON.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request is no JSON: {error}") from error


def _current_turn(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What follows the last reply, and so is new to the model."""
    last = max((n for n, message in enumerate(messages) if message.role is Role.ASSISTANT), default=-1)
    return messages[last + 1 :]


def _images(message: Message) -> Iterable[ImageBlock]:
    return (block for block in message.content if isinstance(block, ImageBlock))


def _blocks(result: ToolResultBlock) -> tuple[TextBlock | ImageBlock, ...]:
    return (TextBlock(result.content),) if isinstance(result.content, str) else result.content


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _image_part(block: ImageBlock) -> JsonObject:
    url = block.url
    if block.data is not None:
        url = f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
    image: JsonObject = {"url": url}
    if block.detail is not None:
        image["detail"] = block.detail
    return {"type": "image_url", "image_url": image}


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
