"""From a canonical request to the body of a Messages API request. Pure.

The history is fitted by `adapters.history` first. What remains are this wire's own rules:

* Messages are `user` or `assistant`, in turns. Tool results stand in a user message, before
  anything else in it; text after them joins that message.
* Reasoning goes back word for word or not at all: without its signature it is worthless. What the reply showed of
  it may be empty text; the signature carries it.
* Calls of the provider's own tools come in pairs with their results, across messages; one without the other would
  make every later request fail. Only the last turn may still be waiting for a result.
* Text may not be empty, a failed tool's result must be text, and an image must be of a known kind.

Prompt caching is to come: breakpoints belong on the last of `tools`, on `system` (then a list of blocks) and on
the last block of a message that stays the same from call to call. `_body` is the place.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from adapters.contract import CallWarning, CanonicalRequest
from adapters.history import Loss, Target, ToolIdRule, fit_history
from adapters.http_adapter import WireCall
from adapters.surrogates import mend_text
from bus.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.errors import InvalidRequestError, UnsupportedToolChoiceError
from bus.json_types import Json, JsonObject
from bus.messages import Message, Role, ToolDefinition

from . import wire

IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
_NEAREST_EFFORT = {"none": "low", "minimal": "low"}
TOOL_IDS = ToolIdRule(max_length=64, prefix="toolu_")
FAILED_SILENTLY = "The tool failed without saying why."
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
    target = Target(provider=provider, tool_ids=TOOL_IDS, replays_thinking=True, adopts_signatures=True)
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
        return WireCall(wire.PATH, _encode(body), headers, history.warnings + tuple(self.warnings))

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
        body["messages"] = self._messages()
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

    # -- what surrounds the messages

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

    # -- messages

    def _messages(self) -> list[Json]:
        unpaired = _unpaired_server_tools(self.history.messages)
        turns: list[tuple[str, list[Json]]] = []
        for message in self.history.messages:
            role = "assistant" if message.role is Role.ASSISTANT else "user"
            blocks: list[Json] = []
            for block in message.content:
                blocks += self._block(block, unpaired)
            if not blocks:
                continue
            if turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, blocks))
        if not turns:
            raise InvalidRequestError(f"{self.target.provider}: the request has no message to send")
        if turns[-1][0] == "assistant":
            _trim_end(turns[-1][1])
        return [{"role": role, "content": content} for role, content in turns]

    def _block(self, block: ContentBlock, unpaired: frozenset[int]) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"type": "text", "text": block.text, **self._citations(block)}
            case ImageBlock():
                yield from self._image(block, block)
            case ToolUseBlock():
                yield self._tool_use(block)
            case ToolResultBlock():
                yield self._tool_result(block)
            case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                self._lose(block, "thinking", "it has no signature")
            case ThinkingBlock():
                yield {"type": "thinking", "thinking": block.text, "signature": block.signature}
            case RedactedThinkingBlock():
                yield {"type": "redacted_thinking", "data": block.data}
            case OpaqueBlock() if id(block) in unpaired:
                self._lose(block, block.kind, "a provider's tool call and its result can only be sent together")
            case OpaqueBlock():
                yield _without_nulls(block.provider_raw.data)

    def _citations(self, block: TextBlock) -> JsonObject:
        raw = block.provider_raw
        given = raw.data.get("citations") if raw is not None and raw.provider == self.target.provider else None
        if not isinstance(given, list) or not given:
            return {}
        kept = [
            {name: value for name, value in citation.items() if name != "file_id"}  # replies have it, requests not
            for citation in given
            if isinstance(citation, dict)
        ]
        return {"citations": list(kept)}

    def _tool_use(self, block: ToolUseBlock) -> JsonObject:
        wire_block: JsonObject = {
            "type": "tool_use",
            "id": self.history.tool_ids[block.id],
            "name": block.name,
            "input": block.input,
        }
        raw = block.provider_raw
        if raw is not None and raw.provider == self.target.provider and raw.data.get("caller"):
            wire_block["caller"] = raw.data["caller"]
        return wire_block

    def _tool_result(self, block: ToolResultBlock) -> JsonObject:
        result: JsonObject = {"type": "tool_result", "tool_use_id": self.history.tool_ids[block.tool_use_id]}
        content: Json = self._result_content(block)
        if not content and block.is_error:
            content = FAILED_SILENTLY
        if content:
            result["content"] = content
        if block.is_error:
            result["is_error"] = True
        return result

    def _result_content(self, block: ToolResultBlock) -> str | list[Json]:
        if isinstance(block.content, str):
            return block.content if block.content.strip() else ""
        parts: list[Json] = []
        for part in block.content:
            if isinstance(part, TextBlock):
                if part.text.strip():
                    parts.append({"type": "text", "text": part.text})
            elif block.is_error:
                self._lose(block, "image", "the result of a failed tool takes text only")
            else:
                parts += self._image(part, block)
        return parts

    def _image(self, image: ImageBlock, home: ContentBlock) -> Iterator[JsonObject]:
        if image.url is not None and image.url.startswith(("https://", "http://")):
            yield {"type": "image", "source": {"type": "url", "url": image.url}}
            return
        found = _from_data_url(image.url) if image.url is not None else (image.media_type or "", image.data or b"")
        if found is None:
            self._lose(home, "image", "its url is neither http(s) nor a data url")
            return
        media_type, data = found
        media_type = "image/jpeg" if media_type == "image/jpg" else media_type
        if media_type not in IMAGE_MEDIA_TYPES:
            self._lose(home, "image", f"{media_type or 'no media type'} is none of {', '.join(IMAGE_MEDIA_TYPES)}")
            return
        encoded = base64.b64encode(data).decode()
        yield {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encoded}}

    def _lose(self, block: ContentBlock, kind: str, reason: str) -> None:
        homes = (message.id for message in self.request.messages if any(part is block for part in message.content))
        message_id = next(homes, None) or ""
        self.losses.append(Loss(self.request.session_id, message_id, kind, self.target.provider, reason))

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


def _unpaired_server_tools(messages: Iterable[Message]) -> frozenset[int]:
    """Opaque tool calls without a result and results without a call, by identity.

    A call in the last turn still waits for its result: the reply was paused, or a tool of ours has to run first.
    """
    waiting: dict[str, OpaqueBlock] = {}
    unpaired: set[int] = set()
    for message in messages:
        if message.role is Role.USER:
            unpaired.update(id(block) for block in waiting.values())
            waiting.clear()
        for block in message.content:
            if isinstance(block, OpaqueBlock):
                match block.provider_raw.data:
                    case {"type": str(kind), "tool_use_id": str(call_id)} if kind.endswith("_result"):
                        if waiting.pop(call_id, None) is None:
                            unpaired.add(id(block))
                    case {"type": "server_tool_use" | "mcp_tool_use", "id": str(call_id)}:
                        waiting[call_id] = block
                    case _:
                        pass
    return frozenset(unpaired)


def _trim_end(content: list[Json]) -> None:
    """A reply to be continued may not end in white space."""
    last = content[-1]
    if isinstance(last, dict) and last.get("type") == "text":
        last["text"] = str(last["text"]).rstrip()


def _without_nulls(data: JsonObject) -> JsonObject:
    """A block of a reply as a request takes it: its optional fields may be absent there, but not null."""
    return {name: value for name, value in data.items() if value is not None or name == "content"}


def _from_data_url(url: str) -> tuple[str, bytes] | None:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    media_type, *parameters = head[len("data:") :].lower().split(";")
    data = unquote_to_bytes(body)
    if "base64" not in parameters:
        return media_type, data
    try:
        return media_type, base64.b64decode(data, validate=False)
    except binascii.Error:
        return None


def _names(value: Json) -> list[str]:
    """Names from a list, or from one string with commas."""
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return [name.strip() for name in given if isinstance(name, str) and name.strip()]


def _encode(body: JsonObject) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # half a surrogate pair somewhere, which a tool's output may well hold
        return msgspec.json.encode(_mended(body))


def _mended(value: Json) -> Json:
    match value:
        case str():
            return mend_text(value)
        case list():
            return [_mended(item) for item in value]
        case dict():
            return {mend_text(name): _mended(item) for name, item in value.items()}
        case _:
            return value
