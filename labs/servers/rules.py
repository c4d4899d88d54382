"""The demands of servers on a history and on a request, as functions of the request.

A field note of kind A or B has the name of its rule in `input.rule`. The server of the lab applies the rules of
its notes. A rule returns the violation as a text, or None.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from callboard.bus.values.base import JsonObject


class Asked(NamedTuple):
    """A request as a server receives it."""

    wire: str
    """The name of the wire in the field notes."""
    path: str
    """The path, without the server's name."""
    body: JsonObject
    """The body."""
    note: Mapping[str, Any] = {}
    """The `input` of the note that names the rule, for rules with parameters."""


Rule = Callable[[Asked], "str | None"]

RULES: dict[str, Rule] = {}
"""The rules by name."""


def rule(check: Rule) -> Rule:
    """Register a rule by the name of its function."""
    RULES[check.__name__] = check
    return check


# -- reading requests


def _messages(request: Asked) -> list[dict[str, Any]]:
    found = request.body.get("messages") or []
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _tools(request: Asked) -> Iterator[dict[str, Any]]:
    """Yield the parameter schemas of the tools."""
    for tool in request.body.get("tools") or []:  # type: ignore[union-attr]
        if isinstance(tool, dict):
            function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
            for name in ("parameters", "input_schema"):
                if isinstance(function, dict) and isinstance(function.get(name), dict):
                    yield function[name]  # type: ignore[misc]
            for declared in tool.get("functionDeclarations") or []:
                if isinstance(declared.get("parametersJsonSchema"), dict):
                    yield declared["parametersJsonSchema"]


def _all_blocks(request: Asked) -> Iterator[dict[str, Any]]:
    system = request.body.get("system")
    if isinstance(system, list):
        yield from (block for block in system if isinstance(block, dict))
    for message in _messages(request):
        for block in _blocks(message):
            yield block
            if isinstance(block.get("content"), list):
                yield from (inner for inner in block["content"] if isinstance(inner, dict))


def _images(request: Asked) -> Iterator[tuple[str, bytes]]:
    """Yield the media type and the bytes of each image."""
    for block in _all_blocks(request):
        source, address = block.get("source"), block.get("image_url")
        url = address.get("url") if isinstance(address, dict) else address
        if isinstance(source, dict) and source.get("type") == "base64":
            label, data = str(source.get("media_type")), str(source.get("data"))
        elif isinstance(url, str) and url.startswith("data:"):
            head, _, data = url.partition(",")
            label = head.removeprefix("data:").removesuffix(";base64")
        else:
            continue
        try:
            yield label, base64.b64decode(data)
        except binascii.Error:
            yield label, b""


# -- kind A: what must go back


@rule
def reasoning_with_tool_calls(request: Asked) -> str | None:
    """Each message with tool calls has a reasoning field, which may be empty (DeepSeek, Moonshot)."""
    for number, message in enumerate(_messages(request)):
        if message.get("tool_calls") and not isinstance(message.get("reasoning_content"), str):
            return f"Missing `reasoning_content` field in the assistant message at message index {number}"
    return None


@rule
def reasoning_with_tool_calls_not_empty(request: Asked) -> str | None:
    """As `reasoning_with_tool_calls`, but the reasoning must not be empty (Moonshot)."""
    for number, message in enumerate(_messages(request)):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            return f"thinking is enabled but reasoning_content is missing in assistant tool call message {number}"
    return None


@rule
def thinking_with_tool_uses(request: Asked) -> str | None:
    """Each message with tool calls begins with thinking; a signature is not needed (DeepSeek's Messages
    endpoint).
    """
    thinking = request.body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return None
    for number, message in enumerate(_messages(request)):
        kinds = [block.get("type") for block in _blocks(message)]
        if "tool_use" in kinds and not {"thinking", "redacted_thinking"} & set(kinds):
            return f"The `content[].thinking` in the thinking mode must be passed back: messages.{number}"
    return None


@rule
def no_foreign_signatures(request: Asked) -> str | None:
    """No signature comes from another server. In this lab, each server gives only one signature."""
    for block in _all_blocks(request):
        if block.get("type") == "thinking" and block.get("signature") not in ("c2lnbmF0dXJl",):
            return "Invalid `signature` in `thinking` block"
    return None


@rule
def reasoning_with_tool_calls_of_deepseek(request: Asked) -> str | None:
    """Behind a gateway, messages with tool calls have reasoning if the model is DeepSeek's or Moonshot's."""
    if not re.search("(?i)deepseek|kimi", str(request.body.get("model"))):
        return None
    for number, message in enumerate(_messages(request)):
        if (
            message.get("tool_calls")
            and not {"reasoning_content", "reasoning", "reasoning_details"} & message.keys()
        ):
            return (
                f"The `reasoning_content` in the thinking mode must be passed back to the API: messages.{number}"
            )
    return None


@rule
def no_reasoning_fields(request: Asked) -> str | None:
    """No message has a field for reasoning (Groq, Databricks)."""
    for number, message in enumerate(_messages(request)):
        for name in ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"):
            if name in message:
                return f"'messages.{number}' : property '{name}' is unsupported"
    return None


@rule
def no_reasoning_content(request: Asked) -> str | None:
    """No message has `reasoning_content` (Cerebras, which accepts `reasoning`)."""
    for number, message in enumerate(_messages(request)):
        if "reasoning_content" in message:
            place = f"messages.{number}.assistant.reasoning_content"
            return f"{place}: property '{place}' is unsupported"
    return None


@rule
def short_call_ids(request: Asked) -> str | None:
    """The ids of tool calls have nine letters and digits (Mistral)."""
    for message in _messages(request):
        ids = [call.get("id") for call in message.get("tool_calls") or () if isinstance(call, dict)]
        ids += [message["tool_call_id"]] if "tool_call_id" in message else []
        for each in ids:
            if not re.fullmatch("[A-Za-z0-9]{9}", str(each)):
                return f"Tool call id was {each} but must be a-z, A-Z, 0-9, with a length of 9."
    return None


# -- kind B: what is refused


@rule
def union_at_schema_root(request: Asked) -> str | None:
    """The root of a tool's schema is an object, not a union."""
    for schema in _tools(request):
        found = [name for name in ("anyOf", "oneOf", "allOf", "enum", "not") if name in schema]
        if found:
            return f"input_schema does not support {found[0]} at the top level"
        if schema.get("type") != "object":
            return "input_schema must be an object"
    return None


@rule
def blank_text(request: Asked) -> str | None:
    """No text block is empty or white space."""
    for block in _all_blocks(request):
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            return "text content blocks must contain non-whitespace text"
    system = request.body.get("system")
    if isinstance(system, str) and not system.strip():
        return "system: text content blocks must be non-empty"
    return None


@rule
def blank_system(request: Asked) -> str | None:
    """No system text is empty or white space."""
    system = request.body.get("system")
    blocks = system if isinstance(system, list) else []
    texts: list[Any] = [system] if isinstance(system, str) else []
    texts += [block.get("text") for block in blocks if isinstance(block, dict)]
    texts += [block.get("text") for m in _messages(request) if m.get("role") == "system" for block in _blocks(m)]
    return (
        "system: text content blocks must be non-empty" if any(not str(t or "").strip() for t in texts) else None
    )


@rule
def blank_tool_result(request: Asked) -> str | None:
    """No tool result is empty (Kimi's Messages endpoint)."""
    for message in _messages(request):
        if message.get("role") == "tool" and not str(message.get("content") or "").strip():
            return "tool message content must not be empty"
        for block in _blocks(message):
            if block.get("type") == "tool_result" and not block.get("content"):
                return "tool_result content must not be empty"
    return None


@rule
def too_many_cache_marks(request: Asked) -> str | None:
    """There are at most four cache breakpoints."""
    marks = json.dumps(request.body).count('"cache_control"')
    return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}." if marks > 4 else None


@rule
def user_after_tool(request: Asked) -> str | None:
    """Between tool results and a user message there is an assistant message (Mistral)."""
    roles = [message.get("role") for message in _messages(request)]
    if ("tool", "user") in itertools.pairwise(roles):
        return "Unexpected role 'user' after role 'tool'"
    return None


@rule
def alternating_roles(request: Asked) -> str | None:
    """After the system messages, user and assistant alternate, and the last message is the user's (Perplexity)."""
    roles: list[Any] = []
    for message in _messages(request):  # the results of one reply's tool calls are one turn
        if message.get("role") != "tool":
            roles.append(message.get("role"))
        elif "tool_call_id" in message and (not roles or roles[-1] != "results"):
            roles.append("results")
    roles = ["user" if role == "results" else role for role in roles]
    turn_roles = [role for role in roles if role not in ("system", "developer")]
    if any(one == other for one, other in itertools.pairwise(turn_roles)):
        return "After the (optional) system message(s), user and assistant roles should be alternating."
    return None if turn_roles and turn_roles[-1] in ("user", "tool") else "Last message must have role `user`."


@rule
def fixed_temperature(request: Asked) -> str | None:
    """The temperature is 1, or 0.6 without thinking (Moonshot)."""
    temperature = request.body.get("temperature")
    thinking = request.body.get("thinking")
    only = 0.6 if isinstance(thinking, dict) and thinking.get("type") == "disabled" else 1
    if temperature is not None and temperature != only:
        return f"invalid temperature: only {only} is allowed for this model"
    return None


@rule
def plain_media_types(request: Asked) -> str | None:
    """The media type of an image is plain and in lower case."""
    for label, _ in _images(request):
        if label not in ("image/png", "image/jpeg", "image/gif", "image/webp"):
            return f"unsupported media type {label!r}"
    return None


_MAGIC: Sequence[tuple[bytes, str]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


@rule
def true_media_types(request: Asked) -> str | None:
    """The media type of an image is its actual format."""
    for label, data in _images(request):
        for magic, kind in _MAGIC:
            if data.startswith(magic) and label != kind:
                return f"the image was labelled {label}, but appears to be {kind}"
    return None


@rule
def typed_properties(request: Asked) -> str | None:
    """Each property of a tool's schema has a type or a union, not both, and `items` is one schema (Moonshot)."""

    def fault(schema: Mapping[str, Any]) -> str | None:
        if not {"anyOf", "type", "$ref"} & schema.keys():
            return "type is not defined"
        if isinstance(schema.get("items"), list):
            return "items must be an object"
        if "anyOf" in schema and "type" in schema:
            return "when using anyOf, type should be defined in anyOf items instead of the parent schema"
        inner: list[Any] = [
            *(schema.get("properties") or {}).values(),
            schema.get("items"),
            *schema.get("anyOf", []),
        ]
        for each in inner:
            if isinstance(each, dict) and (found := fault(each)):
                return found
        return None

    for schema in _tools(request):
        if found := fault(schema):
            return (
                f"Invalid request: tools.function.parameters is not a valid moonshot flavored json schema: {found}"
            )
    return None


# -- kind B: rules with parameters, which the note's input holds


@rule
def refused_fields(request: Asked) -> str | None:
    """The body has none of the note's `fields`."""
    found = [name for name in request.note.get("fields", ()) if request.body.get(name) is not None]
    return f"Unsupported parameter: '{found[0]}' is not supported with this model." if found else None


@rule
def refused_message_fields(request: Asked) -> str | None:
    """No message has one of the note's `fields`."""
    for number, message in enumerate(_messages(request)):
        for name in request.note.get("fields", ()):
            if name in message:
                return f"messages.{number}: property '{name}' is unsupported"
    return None


@rule
def longest_output(request: Asked) -> str | None:
    """The maximum number of output tokens is at most the note's `most`."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        limit = request.body.get(name)
        if isinstance(limit, int) and limit > request.note["most"]:
            return f"{name} {limit} is more than {request.note['most']}"
    return None


@rule
def most_stop_sequences(request: Asked) -> str | None:
    """There are at most the note's `most` stop sequences."""
    stop = request.body.get("stop")
    if isinstance(stop, list) and len(stop) > request.note["most"]:
        return f"stop: at most {request.note['most']} stop sequences"
    return None


@rule
def tool_choices(request: Asked) -> str | None:
    """The tool choice is one of the note's `words`, or absent."""
    choice = request.body.get("tool_choice")
    if choice is not None and choice not in request.note["words"]:
        return f"Invalid tool_choice: {choice!r}"
    return None


@rule
def tool_id_form(request: Asked) -> str | None:
    """The ids of tool calls match the note's `pattern`."""
    for message in _messages(request):
        calls = [call.get("id") for call in message.get("tool_calls") or []]
        for each in (*calls, message.get("tool_call_id")):
            if each is not None and not re.fullmatch(request.note["pattern"], str(each)):
                return f"Tool call id was {each}"
    return None


@rule
def text_in_every_message(request: Asked) -> str | None:
    """The content of a message with tool calls is a string, not null or missing."""
    for number, message in enumerate(_messages(request)):
        if message.get("tool_calls") and not isinstance(message.get("content"), str):
            return f"messages.{number}.content: Input should be a valid string"
    return None


@rule
def one_system_message(request: Asked) -> str | None:
    """There is at most one system message, and it comes first (MiniMax)."""
    places = [place for place, m in enumerate(_messages(request)) if m.get("role") in ("system", "developer")]
    return "invalid params, invalid chat setting (2013)" if places not in ([], [0]) else None


@rule
def no_developer_role(request: Asked) -> str | None:
    """No message has the role developer."""
    if any(message.get("role") == "developer" for message in _messages(request)):
        return "unknown variant `developer`, expected one of `system`, `user`, `assistant`, `tool`"
    return None


@rule
def json_is_mentioned(request: Asked) -> str | None:
    """If the format is json_object, a message contains the word JSON."""
    form = request.body.get("response_format")
    if not isinstance(form, dict) or form.get("type") != "json_object":
        return None
    messages_text = json.dumps(request.body.get("messages")).lower()
    return None if "json" in messages_text else "Prompt must contain the word 'json' in some form"


@rule
def reply_formats(request: Asked) -> str | None:
    """The type of `response_format` is one of the note's `words`."""
    form = request.body.get("response_format")
    if isinstance(form, dict) and form.get("type") not in request.note["words"]:
        return f"'response_format.type' must be one of {', '.join(request.note['words'])}"
    return None


@rule
def one_sampler(request: Asked) -> str | None:
    """The request does not have both temperature and top_p (Claude since Opus 4.1)."""
    if request.body.get("temperature") is not None and request.body.get("top_p") is not None:
        return "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    return None


@rule
def images_as_data(request: Asked) -> str | None:
    """Images are sent as data, not as URLs."""
    for block in _all_blocks(request):
        address = block.get("image_url")
        url = address.get("url") if isinstance(address, dict) else address
        if isinstance(url, str) and url.startswith("http"):
            return "invalid image input"
    return None


@rule
def arguments_are_objects(request: Asked) -> str | None:
    """The arguments of tool calls are objects, not strings (Ollama)."""
    for message in _messages(request):
        for call in message.get("tool_calls") or []:
            if not isinstance(call["function"].get("arguments"), dict):
                return "json: cannot unmarshal string into Go struct field of type api.ToolCallFunctionArguments"
    return None


@rule
def open_ranges(request: Asked) -> str | None:
    """top_p is between 0 and 1, and the temperature is positive (TGI)."""
    parameters = request.body.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else request.body
    top_p, temperature = parameters.get("top_p"), parameters.get("temperature")
    if isinstance(top_p, int | float) and not 0 < top_p < 1:
        return "Input validation error: `top_p` must be > 0.0 and < 1.0"
    if isinstance(temperature, int | float) and temperature <= 0:
        return "Input validation error: `temperature` must be strictly positive"
    return None


@rule
def properties_with_required(request: Asked) -> str | None:
    """A tool's schema that has `required` also has `properties` (Groq)."""
    for schema in _tools(request):
        if "required" in schema and "properties" not in schema:
            return "invalid JSON schema for tool: 'required' present but 'properties' is missing"
    return None


@rule
def assistant_says_something(request: Asked) -> str | None:
    """An assistant message has text or tool calls (Moonshot)."""
    for number, message in enumerate(_messages(request)):
        silent = not str(message.get("content") or "").strip() and not message.get("tool_calls")
        if message.get("role") == "assistant" and silent:
            return f"Invalid request: the message at position {number} with role 'assistant' must not be empty"
    return None
