"""What servers demand of a history and refuse in a request, as functions of the request.

A field note of kind A or B names its rule here as `input.rule`. The server of the lab applies the rules of its
notes. A rule returns what is wrong with a request, or None.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bus.values.json import JsonObject


class Asked(NamedTuple):
    """A request as a server gets it."""

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


def _messages(asked: Asked) -> list[dict[str, Any]]:
    found = asked.body.get("messages") or []
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _tools(asked: Asked) -> Iterator[dict[str, Any]]:
    """The schemas of the tools' parameters."""
    for tool in asked.body.get("tools") or []:  # type: ignore[union-attr]
        if isinstance(tool, dict):
            function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
            for name in ("parameters", "input_schema"):
                if isinstance(function, dict) and isinstance(function.get(name), dict):
                    yield function[name]  # type: ignore[misc]


def _all_blocks(asked: Asked) -> Iterator[dict[str, Any]]:
    system = asked.body.get("system")
    if isinstance(system, list):
        yield from (block for block in system if isinstance(block, dict))
    for message in _messages(asked):
        for block in _blocks(message):
            yield block
            if isinstance(block.get("content"), list):
                yield from (inner for inner in block["content"] if isinstance(inner, dict))


def _images(asked: Asked) -> Iterator[tuple[str, bytes]]:
    """Each image's label and its bytes."""
    for block in _all_blocks(asked):
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
def reasoning_with_tool_calls(asked: Asked) -> str | None:
    """Every message with calls has its reasoning, if only an empty one (DeepSeek, Moonshot)."""
    for number, message in enumerate(_messages(asked)):
        if message.get("tool_calls") and not isinstance(message.get("reasoning_content"), str):
            return f"Missing `reasoning_content` field in the assistant message at message index {number}"
    return None


@rule
def reasoning_with_tool_calls_not_empty(asked: Asked) -> str | None:
    """As `reasoning_with_tool_calls`, and the reasoning must not be empty (Moonshot)."""
    for number, message in enumerate(_messages(asked)):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            return f"thinking is enabled but reasoning_content is missing in assistant tool call message {number}"
    return None


@rule
def thinking_with_tool_uses(asked: Asked) -> str | None:
    """Every message with calls begins with thinking, also without a signature (DeepSeek's Messages endpoint)."""
    thinking = asked.body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return None
    for number, message in enumerate(_messages(asked)):
        kinds = [block.get("type") for block in _blocks(message)]
        if "tool_use" in kinds and not {"thinking", "redacted_thinking"} & set(kinds):
            return f"The `content[].thinking` in the thinking mode must be passed back: messages.{number}"
    return None


@rule
def no_foreign_signatures(asked: Asked) -> str | None:
    """Signatures are the server's own: all that it gave are the same in this lab."""
    for block in _all_blocks(asked):
        if block.get("type") == "thinking" and block.get("signature") not in ("c2lnbmF0dXJl",):
            return "Invalid `signature` in `thinking` block"
    return None


@rule
def reasoning_with_tool_calls_of_deepseek(asked: Asked) -> str | None:
    """Behind a gateway, messages with calls have reasoning if the model is DeepSeek's or Moonshot's."""
    if not re.search("(?i)deepseek|kimi", str(asked.body.get("model"))):
        return None
    for number, message in enumerate(_messages(asked)):
        if (
            message.get("tool_calls")
            and not {"reasoning_content", "reasoning", "reasoning_details"} & message.keys()
        ):
            return (
                f"The `reasoning_content` in the thinking mode must be passed back to the API: messages.{number}"
            )
    return None


@rule
def no_reasoning_fields(asked: Asked) -> str | None:
    """No message has a field for reasoning (Groq, Databricks)."""
    for number, message in enumerate(_messages(asked)):
        for name in ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"):
            if name in message:
                return f"'messages.{number}' : property '{name}' is unsupported"
    return None


@rule
def no_reasoning_content(asked: Asked) -> str | None:
    """No message has `reasoning_content` (Cerebras, which takes `reasoning`)."""
    for number, message in enumerate(_messages(asked)):
        if "reasoning_content" in message:
            place = f"messages.{number}.assistant.reasoning_content"
            return f"{place}: property '{place}' is unsupported"
    return None


@rule
def short_call_ids(asked: Asked) -> str | None:
    """An id of a call has nine letters and digits (Mistral)."""
    for message in _messages(asked):
        ids = [call.get("id") for call in message.get("tool_calls") or () if isinstance(call, dict)]
        ids += [message["tool_call_id"]] if "tool_call_id" in message else []
        for each in ids:
            if not re.fullmatch("[A-Za-z0-9]{9}", str(each)):
                return f"Tool call id was {each} but must be a-z, A-Z, 0-9, with a length of 9."
    return None


# -- kind B: what is refused


@rule
def union_at_schema_root(asked: Asked) -> str | None:
    """A tool's schema is an object, without a union at its top."""
    for schema in _tools(asked):
        found = [name for name in ("anyOf", "oneOf", "allOf", "enum", "not") if name in schema]
        if found:
            return f"input_schema does not support {found[0]} at the top level"
        if schema.get("type") != "object":
            return "input_schema must be an object"
    return None


@rule
def blank_text(asked: Asked) -> str | None:
    """No text block is empty or white space."""
    for block in _all_blocks(asked):
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            return "text content blocks must contain non-whitespace text"
    system = asked.body.get("system")
    if isinstance(system, str) and not system.strip():
        return "system: text content blocks must be non-empty"
    return None


@rule
def blank_system(asked: Asked) -> str | None:
    """No system text is empty or white space."""
    system = asked.body.get("system")
    blocks = system if isinstance(system, list) else []
    texts: list[Any] = [system] if isinstance(system, str) else []
    texts += [block.get("text") for block in blocks if isinstance(block, dict)]
    texts += [block.get("text") for m in _messages(asked) if m.get("role") == "system" for block in _blocks(m)]
    return (
        "system: text content blocks must be non-empty" if any(not str(t or "").strip() for t in texts) else None
    )


@rule
def blank_tool_result(asked: Asked) -> str | None:
    """No tool result is empty (Kimi's Messages endpoint)."""
    for message in _messages(asked):
        if message.get("role") == "tool" and not str(message.get("content") or "").strip():
            return "tool message content must not be empty"
        for block in _blocks(message):
            if block.get("type") == "tool_result" and not block.get("content"):
                return "tool_result content must not be empty"
    return None


@rule
def too_many_cache_marks(asked: Asked) -> str | None:
    """At most four breakpoints of the cache."""
    marks = json.dumps(asked.body).count('"cache_control"')
    return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}." if marks > 4 else None


@rule
def user_after_tool(asked: Asked) -> str | None:
    """A message of the assistant stands between tool results and the user's (Mistral)."""
    roles = [message.get("role") for message in _messages(asked)]
    if ("tool", "user") in itertools.pairwise(roles):
        return "Unexpected role 'user' after role 'tool'"
    return None


@rule
def alternating_roles(asked: Asked) -> str | None:
    """After the system messages, user and assistant alternate, and a user or a tool ends (Perplexity).

    Tool results, and a user's message after them, are one turn of the user.
    """
    said = [m.get("role") for m in _messages(asked) if m.get("role") not in ("system", "developer")]
    if any(one == other != "tool" for one, other in itertools.pairwise(said)):
        return "After the (optional) system message(s), user and assistant roles should be alternating."
    return None if said and said[-1] in ("user", "tool") else "Last message must have role `user`."


@rule
def fixed_temperature(asked: Asked) -> str | None:
    """The temperature is 1, or 0.6 without thinking (Moonshot)."""
    temperature = asked.body.get("temperature")
    thinking = asked.body.get("thinking")
    only = 0.6 if isinstance(thinking, dict) and thinking.get("type") == "disabled" else 1
    if temperature is not None and temperature != only:
        return f"invalid temperature: only {only} is allowed for this model"
    return None


@rule
def plain_media_types(asked: Asked) -> str | None:
    """An image's label is a plain media type in lower case."""
    for label, _ in _images(asked):
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
def true_media_types(asked: Asked) -> str | None:
    """An image is what its label says."""
    for label, data in _images(asked):
        for magic, kind in _MAGIC:
            if data.startswith(magic) and label != kind:
                return f"the image was labelled {label}, but appears to be {kind}"
    return None


@rule
def typed_properties(asked: Asked) -> str | None:
    """Each property of a tool's schema has a type, and none beside a union (Moonshot)."""

    def fault(schema: Mapping[str, Any]) -> str | None:
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

    for schema in _tools(asked):
        if found := fault(schema):
            return (
                f"Invalid request: tools.function.parameters is not a valid moonshot flavored json schema: {found}"
            )
    return None
