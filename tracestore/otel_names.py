"""The names and attributes of OpenTelemetry's GenAI conventions for our events.

The names are those of the conventions' own repository (semantic-conventions-genai) in autumn 2026. At that time
all names were "Development", and some were renamed within the year. So only this module contains them. Data
without a conventional name, such as the cost of a call, is under ``callboard.``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from callboard.adapters.provider import providers, vendors
from callboard.bus.events import Envelope
from callboard.bus.events.calls import CallContent, LlmCallCompleted, LlmCallFailed, LlmCallStarted
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import CallSettings, Message, Role, ToolDefinition
from callboard.bus.values.usage import Cost, StopReason, TokenUsage

Attributes: TypeAlias = dict[str, str | bool | int | float | Sequence[str]]

SCOPE = "callboard"
"""The name of the instrumentation."""

TOKEN_USAGE = "gen_ai.client.token.usage"
OPERATION_DURATION = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"

TOKEN_BUCKETS = tuple(4**power for power in range(14))
SECONDS_BUCKETS = tuple(0.01 * 2**power for power in range(14))
FIRST_CHUNK_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)

SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"

CHAT, EMBEDDINGS, INVOKE_AGENT, EXECUTE_TOOL = "chat", "embeddings", "invoke_agent", "execute_tool"
CONVERSATIONS = (CHAT, "generate_content")
"""The operations whose replies have a stop reason."""

_GOOGLE = ("gcp.gemini", "gcp.vertex_ai")


def provider_names() -> dict[str, str]:
    """The names of providers in the conventions, by Callboard's names. Only names that differ are listed."""
    by_name = [(vendor.name, vendor) for vendor in vendors()]
    by_name += [(provider.name, provider.vendor) for provider in providers() if provider.vendor is not None]
    return {name: vendor.telemetry for name, vendor in by_name if vendor.telemetry is not None}


def model_name(model: str) -> str:
    """A model's name without Callboard's ``provider:``."""
    return model.partition(":")[2] or model


def provider_name(provider: str, names: Mapping[str, str]) -> str:
    return names.get(provider, provider)


def of_call(
    envelope: Envelope, data: LlmCallStarted | LlmCallCompleted | LlmCallFailed, names: Mapping[str, str]
) -> Attributes:
    """The attributes that all events of one attempt have."""
    provider = provider_name(data.provider, names)
    attributes: Attributes = {
        "gen_ai.operation.name": "generate_content" if provider in _GOOGLE else CHAT,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model_name(data.model),
        "callboard.run.id": envelope.run_id,
        "callboard.attempt": envelope.attempt or 1,
    }
    if envelope.session_id is not None:
        attributes["gen_ai.conversation.id"] = envelope.session_id
    if envelope.request_id is not None:
        attributes["callboard.request.id"] = envelope.request_id
    for key, value in (envelope.tags or {}).items():
        attributes[f"callboard.tag.{key}"] = value
    return attributes


def of_start(data: LlmCallStarted) -> Attributes:
    """The attributes from an attempt's start. For other operations, some replace those of `of_call`."""
    attributes: Attributes = {"callboard.attempt.reason": data.reason}
    if data.operation != CHAT:
        attributes["gen_ai.operation.name"] = data.operation
    if data.key is not None:
        attributes["callboard.key"] = data.key
    if data.streamed:
        attributes["gen_ai.request.stream"] = True
    if data.settings is not None:
        attributes |= of_settings(data.settings)
    if data.routing is not None:
        attributes["callboard.routing.requested"] = data.routing.requested
        attributes["callboard.routing.resolved_by"] = data.routing.resolved_by
    return attributes


def of_settings(settings: CallSettings) -> Attributes:
    """The settings of a call. A setting that was left to the provider has no attribute."""
    attributes: Attributes = {}
    for name, key in _SETTINGS.items():
        value = getattr(settings, name)
        if value is not None and value != ():
            attributes[key] = value
    return attributes


_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "server_address": "server.address",
        "server_port": "server.port",
        "max_output_tokens": "gen_ai.request.max_tokens",
        "temperature": "gen_ai.request.temperature",
        "top_p": "gen_ai.request.top_p",
        "frequency_penalty": "gen_ai.request.frequency_penalty",
        "presence_penalty": "gen_ai.request.presence_penalty",
        "seed": "gen_ai.request.seed",
        "stop_sequences": "gen_ai.request.stop_sequences",
        "reasoning_effort": "gen_ai.request.reasoning.level",
        "output_type": "gen_ai.output.type",
    }
)


def of_end(data: LlmCallCompleted | LlmCallFailed, *, replies: bool = True) -> Attributes:
    attributes: Attributes = {}
    if data.usage is not None:
        attributes |= of_usage(data.usage)
    if data.cost is not None:
        attributes |= of_cost(data.cost)
    if data.first_token_ms is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = data.first_token_ms / 1000
    if data.provider_request_id is not None:
        attributes["callboard.provider.request_id"] = data.provider_request_id
    match data:
        case LlmCallCompleted():
            attributes["gen_ai.response.model"] = data.served_model.removeprefix(f"{data.provider}:")
            if replies:
                attributes["gen_ai.response.finish_reasons"] = [data.raw_stop_reason or str(data.stop_reason)]
            if data.response_id is not None:
                attributes["gen_ai.response.id"] = data.response_id
        case LlmCallFailed():
            attributes["error.type"] = data.error_type
            attributes["callboard.error.class"] = str(data.error_class)
            attributes["callboard.will_retry"] = data.will_retry
            if data.provider_status is not None:
                attributes["callboard.provider.status"] = data.provider_status
    return attributes


def of_usage(usage: TokenUsage) -> Attributes:
    """The attributes of the usage. The conventions require that input includes tokens of caches."""
    attributes: Attributes = {
        "gen_ai.usage.input_tokens": usage.total_input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_creation_input_tokens,
        "callboard.usage.source": str(usage.source),
    }
    if usage.reasoning_tokens is not None:
        attributes["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    return attributes


def of_cost(cost: Cost) -> Attributes:
    """A cost as a whole number of nano-USD. An unknown cost has no attribute."""
    attributes: Attributes = {"callboard.cost.source": str(cost.source)}
    if cost.nano_usd is not None:
        attributes["callboard.cost.nano_usd"] = cost.nano_usd
    if cost.pricing_version is not None:
        attributes["callboard.cost.pricing_version"] = cost.pricing_version
    return attributes


def for_metrics(attributes: Attributes) -> Attributes:
    """The attributes for metrics: only those with few different values."""
    names = (
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "server.address",
        "server.port",
    )
    return {name: attributes[name] for name in names if name in attributes}


def input_json(messages: Sequence[Message]) -> str:
    return _json([_message(message) for message in messages])


def output_json(messages: Sequence[Message]) -> str:
    """Messages of a model, as the conventions' JSON, each with its finish reason."""
    return _json([{**_message(message), "finish_reason": _finish_reason(message)} for message in messages])


def of_content(content: CallContent) -> Attributes:
    """The content of a request: its messages, its system text, and the tools that the model may call."""
    attributes: Attributes = {"gen_ai.input.messages": input_json(content.messages)}
    if content.system_prompt:
        attributes[SYSTEM_INSTRUCTIONS] = _json([{"type": "text", "content": content.system_prompt}])
    if content.tools:
        attributes["gen_ai.tool.definitions"] = _json([_definition(tool) for tool in content.tools])
    return attributes


def reply_json(content: Sequence[ContentBlock], data: LlmCallCompleted | LlmCallFailed) -> str:
    """The reply of one attempt, or the part that arrived, as the conventions' JSON."""
    if isinstance(data, LlmCallCompleted):
        reason = _FINISH_REASONS.get(data.stop_reason, str(data.stop_reason))
    else:
        reason = "error"
    parts = [_part(block) for block in content]
    return _json([{"role": str(Role.ASSISTANT), "parts": parts, "finish_reason": reason}])


def _definition(tool: ToolDefinition) -> JsonObject:
    described: JsonObject = {"type": "function", "name": tool.name}
    if tool.description:
        described["description"] = tool.description
    return {**described, "parameters": tool.input_schema}


def value_json(value: Json) -> str:
    return value if isinstance(value, str) else _json(value)


def result_of(block: ToolResultBlock) -> Json:
    """A tool's result: its text, or its parts."""
    return block.content if isinstance(block.content, str) else [_part(part) for part in block.content]


def _json(value: Json) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 can't encode
        return json.dumps(value)


def _message(message: Message) -> JsonObject:
    encoded: JsonObject = {"role": str(message.role), "parts": [_part(block) for block in message.content]}
    return encoded if message.name is None else {**encoded, "name": message.name}


def _finish_reason(message: Message) -> str:
    reason = None if message.metadata is None else message.metadata.stop_reason
    if reason is None:
        return "tool_call" if message.tool_uses else "stop"
    return _FINISH_REASONS.get(reason, str(reason))


_FINISH_REASONS: Mapping[StopReason, str] = MappingProxyType(
    {
        StopReason.END_TURN: "stop",
        StopReason.STOP_SEQUENCE: "stop",
        StopReason.MAX_TOKENS: "length",
        StopReason.TOOL_USE: "tool_call",
        StopReason.CONTENT_FILTER: "content_filter",
        StopReason.REFUSAL: "content_filter",
        StopReason.ERROR: "error",
    }
)


def _part(block: object) -> Json:
    match block:
        case TextBlock():
            return {"type": "text", "content": block.text}
        case ThinkingBlock():
            return {"type": "reasoning", "content": block.text}
        case ToolUseBlock():
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.input}
        case ToolResultBlock():
            return {"type": "tool_call_response", "id": block.tool_use_id, "response": result_of(block)}
        case ImageBlock() | AudioBlock() | DocumentBlock():
            return _medium(block)
        case _:
            return {"type": type(block).__name__.removesuffix("Block").lower()}


def _medium(block: ImageBlock | AudioBlock | DocumentBlock) -> JsonObject:
    """Describe a medium by its address, or else by its kind and size. The medium's bytes must not be in a span."""
    modality = type(block).__name__.removesuffix("Block").lower()
    about: JsonObject = {"modality": modality, "mime_type": block.media_type}
    if block.url is not None:
        return {"type": "uri", **about, "uri": block.url}
    return {"type": modality, **about, "size": len(block.data or b"")}
