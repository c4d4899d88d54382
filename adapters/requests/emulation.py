"""Tool calls for models without tools, by structured output. Pure functions.

The system text describes the tools. A JSON Schema constrains the reply to one call, ``{"tool": NAME, "arguments":
{…}}``, or, if the model may choose, to an answer, ``{"answer": TEXT}``. A constrained model always writes a valid
call, but the call may make no sense. So every such response has a warning. Small models tend to call again after a
result. So after a result the reply is not constrained, unless a call is required: the last message requests an
answer as text. The calls of the history are also written as text, because such models copy JSON.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ProviderRaw, TextBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import CallWarning, Message, Role, ToolChoice, ToolDefinition, ended_well
from callboard.bus.values.usage import StopReason

from ..contract import CanonicalRequest, CanonicalResponse
from ..replies.block import parse_object
from .content import as_text
from .history_target import Loss, WireCall, block_type
from .settings import check_tool_choice

WARNING = CallWarning(
    WarningCode.TOOLS_EMULATED, "this model does not support tools. Its calls are emulated with constrained output"
)


class Emulation(msgspec.Struct, frozen=True):
    """A request without tools, which replaces a request with tools."""

    request: CanonicalRequest
    constrained: bool
    """Whether the reply is JSON for `read_response`. Otherwise the reply is the answer text."""


def emulate(request: CanonicalRequest) -> Emulation | None:
    """Return the request to send in place of a request with tools; None if the request has no tools."""
    names = {block.id: block.name for message in request.messages for block in message.tool_uses}
    if not request.tools and not names:
        return None
    tools = _offered(request)
    plain = msgspec.structs.replace(
        request,
        messages=tuple(_render(message, names) for message in request.messages),
        tools=(),
        tool_choice=None,
        parallel_tool_calls=None,
    )
    free = request.tool_choice is None or request.tool_choice.mode == "auto"
    after_result = bool(request.messages) and request.messages[-1].role is Role.TOOL
    if not tools or (free and after_result):
        if after_result and request.output_schema is None:
            last = plain.messages[-1]
            last = msgspec.structs.replace(last, content=(*last.content, TextBlock(ANSWER_NOW)))
            plain = msgspec.structs.replace(plain, messages=(*plain.messages[:-1], last))
        return Emulation(plain, constrained=False)
    answer: JsonObject = request.output_schema if request.output_schema is not None else {"type": "string"}
    schema = call_schema(tools, answer=answer if free else None)
    system = describe(tools, free=free)
    if plain.system_prompt:
        system = f"{plain.system_prompt}\n\n{system}"
    return Emulation(msgspec.structs.replace(plain, output_schema=schema, system_prompt=system), constrained=True)


def _offered(request: CanonicalRequest) -> tuple[ToolDefinition, ...]:
    check_tool_choice(request.tool_choice, [tool.name for tool in request.tools])
    match request.tool_choice:
        case ToolChoice(mode="none"):
            return ()
        case ToolChoice(mode="named", tool_name=name):
            return tuple(tool for tool in request.tools if tool.name == name)
        case _:
            return request.tools


ANSWER_NOW = "Now answer the question in plain words."


def describe(tools: tuple[ToolDefinition, ...], *, free: bool) -> str:
    """The system text that describes the tools and the form of a call."""
    lines = ["You can use these tools:"]
    for tool in tools:
        schema = msgspec.json.encode(tool.input_schema.get("properties") or {}).decode()
        lines.append(f"- {tool.name}: {tool.description} Arguments: {schema}")
    lines.append('To use a tool, reply with JSON only: {"tool": "NAME", "arguments": {...}}')
    if free:
        lines.append('If no tool helps, reply with JSON only: {"answer": "TEXT"}')
    return "\n".join(lines)


def call_schema(tools: tuple[ToolDefinition, ...], *, answer: JsonObject | None = None) -> JsonObject:
    definitions: JsonObject = {}
    choices: list[Json] = []
    for tool in tools:
        schema = _hoist(tool.input_schema, f"{tool.name}.", definitions)
        # closed, because small models would invent additional arguments
        arguments: JsonObject = {"properties": {}, "additionalProperties": False, **schema}
        choices.append(_object({"tool": {"type": "string", "enum": [tool.name]}, "arguments": arguments}))
    if answer is not None:
        choices.append(_object({"answer": _hoist(answer, "answer.", definitions)}))
    joined: JsonObject = choices[0] if len(choices) == 1 and isinstance(choices[0], dict) else {"anyOf": choices}
    return {**joined, "$defs": definitions} if definitions else joined


def _object(properties: JsonObject) -> JsonObject:
    required: list[Json] = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _hoist(schema: JsonObject, prefix: str, definitions: JsonObject) -> JsonObject:
    """Move a schema's definitions to the common root, where references find them."""
    hoisted: JsonObject = {}
    for key, value in schema.items():
        if key in ("$defs", "definitions") and isinstance(value, dict):
            for name, definition in value.items():
                definitions[prefix + name] = _refer(definition, prefix)
        else:
            hoisted[key] = _refer(value, prefix)
    return hoisted


def _refer(value: Json, prefix: str) -> Json:
    """The schema with references to the moved definitions."""
    if isinstance(value, list):
        return [_refer(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    moved: JsonObject = {key: _refer(inner, prefix) for key, inner in value.items()}
    if isinstance(reference := value.get("$ref"), str):
        moved["$ref"] = re.sub(r"\A#/(\$defs|definitions)/", lambda _: f"#/$defs/{prefix}", reference)
    return moved


def _render(message: Message, names: dict[str, str]) -> Message:
    if message.role is Role.TOOL:
        content: list[ContentBlock] = []
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                content += _render_result(block, names.get(block.tool_use_id, "a tool"))
        return Message(Role.USER, tuple(content), message.id)
    if not message.tool_uses:
        return message
    rendered = tuple(
        _render_call(block) if isinstance(block, ToolUseBlock) else block for block in message.content
    )
    return Message(message.role, rendered, message.id)


def _render_call(call: ToolUseBlock) -> TextBlock:
    arguments = ", ".join(f"{name}: {as_text(value)}" for name, value in call.input.items())
    return TextBlock(
        f"I will use the tool {call.name} ({arguments})." if arguments else f"I will use the tool {call.name}."
    )


def _render_result(result: ToolResultBlock, name: str) -> list[ContentBlock]:
    verdict = "failed" if result.is_error else "returned"
    parts = () if isinstance(result.content, str) else result.content
    others = [part for part in parts if not isinstance(part, TextBlock)]
    return [TextBlock(f"The tool {name} {verdict}: {result.text}"), *others]


# --- The reply ---


class Decision(msgspec.Struct, frozen=True):
    kind: Literal["call", "broken_call", "answer"]
    """The kind of the reply. A ``broken_call`` names an unknown tool or has no arguments."""
    text: str = ""
    tool: str = ""
    arguments: JsonObject = msgspec.field(default_factory=dict)


def read_decision(text: str) -> Decision:
    """Parse a constrained reply. Anything but a call is an answer."""
    match parse_object(text):
        case {"tool": str(name), "arguments": dict(arguments)}:
            return Decision("call", tool=name, arguments=arguments)
        case {"answer": str(answer)}:
            return Decision("answer", answer)
        case {"answer": answer}:
            return Decision("answer", msgspec.json.encode(answer).decode())
        case None if started := _BEGUN_CALL.match(text):
            return Decision("broken_call", text, tool=started[1])
        case _:
            return Decision("answer", text)


_BEGUN_CALL = re.compile(r'\s*\{\s*"tool"\s*:\s*"([^"]+)"')
"""A call that was cut off after its tool's name."""


def read_response(response: CanonicalResponse, clock: Clock) -> CanonicalResponse:
    """Parse the JSON of a response, and return a response with a call or an answer."""
    other_blocks = tuple(block for block in response.content if not isinstance(block, TextBlock))
    decision = read_decision(response.text)
    if decision.kind == "answer":
        content = (*other_blocks, TextBlock(decision.text)) if decision.text else other_blocks
        return msgspec.structs.replace(response, content=content)
    broken = decision.kind == "broken_call"
    well = ended_well(response.stop_reason)
    call = ToolUseBlock(
        id=clock.new_id("tu"),
        name=decision.tool,
        input=decision.arguments,
        raw_arguments=decision.text if broken else None,
        incomplete=broken or not well,
        provider_raw=ProviderRaw(response.provider, {"emulated": True}),
    )
    stop = StopReason.TOOL_USE if well else response.stop_reason
    return msgspec.structs.replace(response, content=(*other_blocks, call), stop_reason=stop)


def with_losses(call: WireCall, request: CanonicalRequest, provider: str) -> WireCall:
    """The written request with its warning, and a loss for each call and result, because both are sent as text."""
    reason = "tools are emulated, so it is sent as text"
    losses = [
        Loss(request.session_id, message.id or "", block_type(block), provider, reason, block)
        for message in request.messages
        for block in message.content
        if isinstance(block, ToolUseBlock | ToolResultBlock)
    ]
    return msgspec.structs.replace(call, warnings=(WARNING, *call.warnings), losses=(*losses, *call.losses))
