"""From a canonical request to the body of a Responses call. Pure.

The call is stateless (`store` is false), so the history goes along each time, as items. What OpenAI checks most
strictly is that a reasoning item is followed by the very item that it preceded when it was made: so a reasoning
item goes back whole, with its encrypted content, and the items after it with their own ids; where it can't go
back, the ids of the items after it stay behind too. Ids are never sent alone, for nothing is stored under them.
"""

from __future__ import annotations

import functools
import re
from base64 import b64encode
from collections.abc import Callable, Iterable

import msgspec

from adapters.contract import CallWarning, CanonicalRequest
from adapters.history import FittedHistory, Loss, Target, ToolIdRule, fit_history
from adapters.strict_schema import NotStrict, StrictSchema, to_strict, without_added_nulls
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
from bus.errors import CapabilityError, InvalidRequestError, UnsupportedToolChoiceError
from bus.json_types import Json, JsonObject
from bus.messages import Message, Role, ToolChoice, ToolDefinition

from .data import Family, family, nearest_effort
from .quirks import Quirks
from .response import REASONING_PART, output_limit

OPTIONS = "openai"
"""The key of `provider_options` that is merged into the body."""

ENCRYPTED_REASONING = "reasoning.encrypted_content"

SELF_CONTAINED = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
        "compaction",
    }
)
"""Items that say all there is to say, and may go back without anything being stored."""

_ANSWERED = re.compile(
    r"(tool_search|shell|local_shell|apply_patch|computer|custom_tool)_call(_output)?|tool_search_output"
)
"""Items that come in pairs, a call and its output; one may go back only with the other."""


class BuiltRequest(msgspec.Struct, frozen=True):
    """The body to send, the history in it, and what the caller should know."""

    body: JsonObject
    history: FittedHistory
    warnings: tuple[CallWarning, ...]


def build_request(request: CanonicalRequest, *, provider: str, quirks: Quirks, stream: bool) -> BuiltRequest:
    """The request on the wire. provider: the adapter's name. Raises CapabilityError or InvalidRequestError."""
    return _Builder(request, provider, quirks).build(stream=stream)


class _Builder:
    def __init__(self, request: CanonicalRequest, provider: str, quirks: Quirks) -> None:
        self.request = request
        self.provider = provider
        self.quirks = quirks
        self.family = family(request.wire_model)
        self.warnings: list[CallWarning] = []

    def build(self, *, stream: bool) -> BuiltRequest:
        history = self._fit()
        items, losses = _Items(self.request, history, self.provider).write()
        history = msgspec.structs.replace(history, losses=history.losses + tuple(losses))
        body: JsonObject = {"model": self.request.wire_model, "input": items}
        if history.system:
            body["instructions"] = history.system
        body["max_output_tokens"] = output_limit(self.request, self.quirks)
        if self.request.max_output_tokens < self.quirks.min_output_tokens:
            self._warn(
                "parameter_changed", f"max_output_tokens is {body['max_output_tokens']}, the least it can be"
            )
        if self.quirks.stateless:
            body["store"] = False
            if self._reasons():
                body["include"] = [ENCRYPTED_REASONING]
        self._tools(body)
        self._format(body)
        self._reasoning(body)
        self._sampling(body)
        if self.request.stop_sequences:
            self._warn("parameter_dropped", "stop_sequences don't exist in the Responses API")
        if stream:
            body["stream"] = True
        _merge(body, self._options())
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    def _warn(self, code: str, message: str) -> None:
        self.warnings.append(CallWarning(code, f"{self.provider}: {message}"))

    def _reasons(self) -> bool:
        return self.quirks.reasoning and (self.family is None or bool(self.family.efforts))

    def _fit(self) -> FittedHistory:
        target = Target(
            provider=self.provider,
            tool_ids=ToolIdRule(max_length=64),
            accepts_images=self.quirks.images,
            replays_thinking=self._reasons(),
            keeps_developer=self.quirks.keeps_developer,
        )
        return fit_history(self.request, target)

    def _options(self) -> JsonObject:
        options: JsonObject = {}
        for key in dict.fromkeys((OPTIONS, self.provider)):
            given = self.request.provider_options.get(key, {})
            if not isinstance(given, dict):
                raise InvalidRequestError(f"provider_options[{key!r}] must be an object of body fields")
            options.update(given)
        return options

    # -- tools

    def _tools(self, body: JsonObject) -> None:
        if self.request.tools:
            body["tools"] = [self._tool(tool) for tool in self.request.tools]
            if self.request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.request.parallel_tool_calls
        choice = self.request.tool_choice
        if choice is not None and (self.request.tools or choice.mode != "auto"):
            self._check_choice(choice)
            if self.request.tools or "tools" in self._options():
                body["tool_choice"] = _tool_choice(choice)

    def _check_choice(self, choice: ToolChoice) -> None:
        if choice.mode == "required" and not self.request.tools and "tools" not in self._options():
            raise UnsupportedToolChoiceError("tool_choice 'required' needs tools")
        if choice.mode == "named" and all(tool.name != choice.tool_name for tool in self.request.tools):
            raise UnsupportedToolChoiceError(
                f"tool_choice names {choice.tool_name!r}, which is no tool of the request"
            )

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        written: JsonObject = {"type": "function", "name": tool.name}
        if tool.description:
            written["description"] = tool.description
        strict = strict_tool(tool, self.quirks)
        if isinstance(strict, str):
            self._warn("tool_not_strict", f"tool {tool.name!r} is sent without strict mode: {strict}")
        written["parameters"] = strict.schema if isinstance(strict, StrictSchema) else tool.input_schema
        written["strict"] = isinstance(strict, StrictSchema)
        return written

    # -- the reply's form

    def _format(self, body: JsonObject) -> None:
        schema = self.request.output_schema
        if schema is None:
            return
        if not self.quirks.structured_output:
            raise CapabilityError(f"{self.provider}: this server ignores output schemas on the Responses API")
        if set(schema) <= {"type", "title", "description"} and schema.get("type") == "object":
            body["text"] = {"format": {"type": "json_object"}}
            _mention_json(body)
            return
        written: JsonObject = {"type": "json_schema", "name": _schema_name(schema), **_reply_schema(schema)}
        if isinstance(described := schema.get("description"), str):
            written["description"] = described
        body["text"] = {"format": written}

    # -- tuning

    def _reasoning(self, body: JsonObject) -> None:
        asked = self.request.reasoning_effort
        if asked is None:
            return
        if not self._reasons():
            self._warn("parameter_dropped", f"{self.request.wire_model} takes no reasoning_effort")
            return
        effort = asked if self.family is None else nearest_effort(asked, self.family.efforts)
        if effort != asked:
            self._warn(
                "parameter_changed", f"{self.request.wire_model} has no effort {asked!r}; {effort!r} is used"
            )
        body["reasoning"] = {"effort": effort}

    def _sampling(self, body: JsonObject) -> None:
        for name, value in (("temperature", self.request.temperature), ("top_p", self.request.top_p)):
            if value is None:
                continue
            if _refuses_sampling(self.family, body):
                self._warn("parameter_dropped", f"{self.request.wire_model} refuses {name} while it reasons")
            else:
                body[name] = value


def _refuses_sampling(row: Family | None, body: JsonObject) -> bool:
    if row is None or not row.efforts:
        return False
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else row.default
    return effort != "none"


# -- tools


def strict_tool(tool: ToolDefinition, quirks: Quirks) -> StrictSchema | str | None:
    """The tool's strict schema; None if strict mode is off for it, or the text that says why it can't be on.

    Raises InvalidRequestError if the definition insists on strict mode and its schema can't be strict.
    """
    if not (quirks.strict_tools if tool.strict is None else tool.strict):
        return None
    strict = _strict(msgspec.json.encode(tool.input_schema))
    if isinstance(strict, str) and tool.strict:
        raise InvalidRequestError(f"tool {tool.name!r} can't be strict: {strict}; define it with strict=False")
    return strict


@functools.lru_cache(maxsize=256)
def _strict(schema: bytes) -> StrictSchema | str:
    try:
        return to_strict(msgspec.json.decode(schema, type=JsonObject))
    except NotStrict as reason:
        return str(reason)


def input_cleaner(request: CanonicalRequest, quirks: Quirks) -> Callable[[str, JsonObject], JsonObject] | None:
    """What takes back out of a call's arguments the nulls that strict mode brought in; None if there are none."""
    schemas: dict[str, JsonObject] = {}
    for tool in request.tools:
        strict = strict_tool(tool, quirks)
        if isinstance(strict, StrictSchema) and strict.adds_nulls:
            schemas[tool.name] = tool.input_schema
    if not schemas:
        return None

    def clean(name: str, arguments: JsonObject) -> JsonObject:
        return without_added_nulls(arguments, schemas[name]) if name in schemas else arguments

    return clean


def _tool_choice(choice: ToolChoice) -> Json:
    return {"type": "function", "name": choice.tool_name} if choice.mode == "named" else choice.mode


def _reply_schema(schema: JsonObject) -> JsonObject:
    """Strict only where the schema is strict as it is: added nulls could not be taken back out of a text."""
    strict = _strict(msgspec.json.encode(schema))
    if isinstance(strict, StrictSchema) and not strict.adds_nulls:
        return {"schema": strict.schema, "strict": True}
    return {"schema": schema, "strict": False}


def _schema_name(schema: JsonObject) -> str:
    title = schema.get("title")
    return re.sub("[^A-Za-z0-9_-]", "_", title)[:64] if isinstance(title, str) and title else "reply"


def _mention_json(body: JsonObject) -> None:
    """JSON mode wants the word among the input items, and instructions don't count."""
    items = body["input"]
    assert isinstance(items, list)
    if b"json" not in msgspec.json.encode(items).lower():
        items.insert(0, {"role": "developer", "content": "Answer with a JSON object."})


def _merge(body: JsonObject, options: JsonObject) -> None:
    """The caller's own fields go first; objects are merged, and tools and includes are added to ours."""
    for name, value in options.items():
        present = body.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            body[name] = {**present, **value}
        elif name in ("tools", "include") and isinstance(present, list) and isinstance(value, list):
            body[name] = present + [entry for entry in value if entry not in present]
        else:
            body[name] = value


# -- items


class _Items:
    """Writes a fitted history as input items, and says what it had to leave out."""

    def __init__(self, request: CanonicalRequest, history: FittedHistory, provider: str) -> None:
        self.request = request
        self.history = history
        self.provider = provider
        self.losses: list[Loss] = []
        self.items: list[Json] = []

    def write(self) -> tuple[list[Json], list[Loss]]:
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._assistant(message)
                case Role.TOOL:
                    self.items += [self._result(block) for block in message.content]
                case role:
                    self.items.append({"role": str(role), "content": _content(message.content)})
        if not self.items:
            self.items.append({"role": "user", "content": ""})  # an empty input is refused
        return self.items, self.losses

    def _assistant(self, message: Message) -> None:
        blocks = self._pairs(message.content)
        with_ids = False
        for position, block in enumerate(blocks):
            match block:
                case ThinkingBlock():
                    item = _reasoning_item(_own(block, self.provider))
                    assert item is not None
                    with_ids = "id" in item
                    self.items.append(item)
                case TextBlock():
                    former = blocks[position - 1] if position else None
                    self._text(block, former, with_ids=with_ids)
                case ToolUseBlock():
                    self.items.append(self._call(block, with_ids=with_ids))
                case OpaqueBlock():
                    self.items.append(block.provider_raw.data)
                case _:
                    self._lose(block, "this protocol has no such block")

    def _pairs(self, content: Iterable[ContentBlock]) -> list[ContentBlock]:
        """What can go back. Read from the end, for a reasoning item needs the item that follows it."""
        blocks = list(content)
        calls = {_call_key(block) for block in blocks if isinstance(block, OpaqueBlock)}
        kept: list[ContentBlock] = []
        followed = False
        for block in reversed(blocks):
            reason = None
            match block:
                case ThinkingBlock() if _own(block, self.provider).get("type") == REASONING_PART:
                    continue  # it goes back with its item, which stands with a later block
                case ThinkingBlock():
                    if _reasoning_item(_own(block, self.provider)) is None:
                        reason = "it has no encrypted content to be known by"
                    elif not followed:
                        reason = "the item that it led to is not sent"
                case OpaqueBlock():
                    reason = _unreplayable(block, calls)
                    followed = reason is None
                case RedactedThinkingBlock() | ImageBlock():
                    reason = "this protocol has no such block"
                case _:
                    followed = True
            if reason is None:
                kept.append(block)
            else:
                self._lose(block, reason)
        return kept[::-1]

    def _text(self, block: TextBlock, former: ContentBlock | None, *, with_ids: bool) -> None:
        own = _own(block, self.provider)
        part: JsonObject = {"type": "output_text", "text": block.text, "annotations": []}
        if own.get("type") == "refusal":
            part = {"type": "refusal", "refusal": block.text}
        item_id = own.get("item_id")
        last = self.items[-1] if self.items else None
        if item_id and isinstance(former, TextBlock) and _own(former, self.provider).get("item_id") == item_id:
            assert isinstance(last, dict)
            parts = last["content"]
            assert isinstance(parts, list)
            parts.append(part)
            return
        item: JsonObject = {"type": "message", "role": "assistant"}
        if item_id and with_ids:
            item |= {"id": item_id, "status": "completed"}
        item["content"] = [part]
        if "phase" in own:
            item["phase"] = own["phase"]
        self.items.append(item)

    def _call(self, block: ToolUseBlock, *, with_ids: bool) -> JsonObject:
        own = _own(block, self.provider)
        item: JsonObject = {
            "type": "function_call",
            "call_id": self.history.tool_ids[block.id],
            "name": re.sub("[^A-Za-z0-9_-]", "_", block.name)[:64],
            "arguments": msgspec.json.encode(block.input).decode(),
        }
        if with_ids and "item_id" in own:
            item["id"] = own["item_id"]
        if "namespace" in own:
            item["namespace"] = own["namespace"]
        return item

    def _result(self, block: ContentBlock) -> JsonObject:
        assert isinstance(block, ToolResultBlock)
        prefix = "Error: " if block.is_error else ""
        output: Json
        if isinstance(block.content, str):
            output = prefix + block.content
        elif any(isinstance(part, ImageBlock) for part in block.content):
            output = [{"type": "input_text", "text": prefix}] if prefix else []
            output += [_part(part) for part in block.content]
        else:
            output = prefix + block.text
        return {
            "type": "function_call_output",
            "call_id": self.history.tool_ids[block.tool_use_id],
            "output": output,
        }

    def _lose(self, block: ContentBlock, reason: str) -> None:
        kind = str(type(block).__struct_config__.tag)
        self.losses.append(Loss(self.request.session_id, "", kind, self.provider, reason))


def _own(block: TextBlock | ThinkingBlock | ToolUseBlock, provider: str) -> JsonObject:
    """What this provider attached to a block; nothing of anyone else's."""
    raw = block.provider_raw
    return raw.data if raw is not None and raw.provider == provider else {}


def _reasoning_item(data: JsonObject) -> JsonObject | None:
    """A reasoning item as it may go back: whole if it is encrypted, without its id if it is plain, else not."""
    if data.get("type") != "reasoning":
        return None
    item: JsonObject = {name: value for name, value in data.items() if value is not None}
    item.setdefault("summary", [])
    if item.get("encrypted_content"):
        return item
    return {name: value for name, value in item.items() if name != "id"} if item.get("content") else None


def _call_key(block: OpaqueBlock) -> tuple[str, Json]:
    call_id = block.provider_raw.data.get("call_id")
    return block.kind, call_id if isinstance(call_id, str) else None


def _unreplayable(block: OpaqueBlock, calls: set[tuple[str, Json]]) -> str | None:
    """Why an item can't go back; None if it can."""
    if block.kind in SELF_CONTAINED:
        return None
    if _ANSWERED.fullmatch(block.kind):
        base = block.kind.removesuffix("_output").removesuffix("_call")
        call_id = _call_key(block)[1]
        output = "tool_search_output" if base == "tool_search" else f"{base}_call_output"
        if (f"{base}_call", call_id) in calls and (output, call_id) in calls:
            return None
        return "a call can't go back without its output, nor an output without its call"
    return "an item of this kind can't go back while nothing is stored"


def _content(blocks: Iterable[ContentBlock]) -> Json:
    parts = [block for block in blocks if isinstance(block, TextBlock | ImageBlock)]
    if len(parts) == 1 and isinstance(parts[0], TextBlock):
        return parts[0].text
    return [_part(block) for block in parts]


def _part(block: TextBlock | ImageBlock) -> JsonObject:
    if isinstance(block, TextBlock):
        return {"type": "input_text", "text": block.text}
    url = block.url
    if block.data is not None:
        url = f"data:{block.media_type};base64,{b64encode(block.data).decode()}"
    part: JsonObject = {"type": "input_image", "image_url": url}
    if block.detail is not None:
        part["detail"] = block.detail
    return part
