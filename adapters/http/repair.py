"""Repair of rejected requests, after an error and before any output. Pure.

There are four kinds of repair. Each happens at most once in a call:

- ``signature``: the provider rejects the reasoning in the history, for example its signature. It is removed.
- ``parameter``: the error names one unsupported parameter. It is removed.
- ``output_limit``: the requested reply is too long. The limit in the error is used.
- ``tool_pairs``: a tool call or its result is refused. The exchange is written as text.

An error may quote text of a user. So a rule must match the whole message. A parameter is removed only if the
request contains it and it does not change the meaning of the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from callboard.bus.errors import (
    AdapterError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    WarningCode,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning

from ..contract import CanonicalRequest
from ..requests.content import bared_blocks, tools_as_text, without_reasoning
from ..requests.history_target import WireCall
from .errors import read_error_value, unwrapped

# --- Edits of a body ---

_HOSTS_OWN = frozenset({"input_schema", "parameters", "schema", "input", "metadata"})


class Edit(msgspec.Struct, frozen=True):
    """A change of one parameter in the body of a request."""

    path: tuple[str, ...]
    """The keys from the body to the parameter."""
    value: Json | UnsetType = UNSET
    """The new value; UNSET removes the parameter."""
    rename: str | None = None
    """The new name of the parameter; None if unchanged."""
    anywhere: bool = False
    """Whether to remove the path's last key from every object of the body."""
    entry: Json | UnsetType = UNSET
    """The entry to remove from the list at the path; UNSET removes the parameter."""

    @property
    def in_words(self) -> str:
        """The change in words, as the end of a sentence that starts with "provider refused the request"."""
        parameter = ".".join(self.path)
        if self.rename is not None:
            return f"{parameter} was renamed to {self.rename}"
        if self.value is not UNSET:
            return f"{parameter} was set to {self.value!r}"
        return f"{parameter} was left out" if self.entry is UNSET else f"{self.entry} of {parameter} was left out"


def protocol_objects(value: Json) -> Iterator[JsonObject]:
    """Yield all objects in a body, except the contents of schemas and of tool arguments."""
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if not (isinstance(inner, dict) and name in _HOSTS_OWN):
                yield from protocol_objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from protocol_objects(inner)


def _apply(body: JsonObject, edit: Edit) -> None:
    key, *rest = edit.path
    if rest:
        inner = body.get(key)
        if isinstance(inner, dict):
            _apply(inner, Edit(tuple(rest), edit.value, edit.rename))
            if not inner:
                del body[key]
    elif edit.value is not UNSET:
        body[key] = edit.value
    elif edit.entry is not UNSET:
        listed = body.get(key)
        remaining = [one for one in listed if one != edit.entry] if isinstance(listed, list) else []
        body |= {key: remaining}
        if not remaining:
            del body[key]
    elif key in body:
        value = body.pop(key)
        if edit.rename is not None:
            body[edit.rename] = value


RepairKind: TypeAlias = Literal["signature", "parameter", "output_limit", "tool_pairs"]

_STATUSES = (None, 400, 404, 422)
_LONGEST = 4000
"""The longest message that is examined, in characters. A longer one probably quotes other text."""


class Refusal(msgspec.Struct, frozen=True):
    """A pattern of messages that reject a parameter, with the change to make."""

    pattern: str
    """A regular expression of the whole message. Its group `name` is the parameter, unless `path` is set."""
    path: str = ""
    """The dotted path of the parameter; empty if the message names it."""
    value: Json | UnsetType = UNSET
    """The value to send instead; UNSET removes the parameter."""
    also: tuple[str, ...] = ()
    """The dotted paths of parameters to remove together with this one."""
    entry: Json | UnsetType = UNSET
    named: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.path or self.named, *self.also)


_GATEWAY_REFUSALS = (  # LiteLLM's own texts, the same in every protocol
    Refusal(r"\S{1,100} doesn't support (?P<name>\w+)=.{0,500}"),
    Refusal(r"\S{1,100} does not support parameters: \['(?P<name>\w+)'\], for model=.{0,500}"),
    Refusal(
        r"(?:litellm\.UnsupportedParamsError: )?\S{1,100} does not support parameters: "
        r"\{'(?P<name>\w+)': [^{}]{1,100}\}, for model=.{0,500}"
    ),
)


class RepairRules(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns of a provider's messages about repairable requests. Each pattern matches a whole message."""

    signatures: tuple[str, ...] = ()
    signature_codes: frozenset[str] = frozenset()
    """Error codes that reject the reasoning."""
    parameters: tuple[Refusal, ...] = ()
    parameter_codes: frozenset[str] = frozenset()
    """Error codes for which `provider_param` contains the rejected parameter."""
    pairs: tuple[str, ...] = ()
    """Patterns of messages about tool calls without results, or results without calls.

    The group `ids` has the ids on the wire. A pattern without this group applies to all calls.
    """
    essential: frozenset[str] = frozenset()
    """Dotted paths of parameters that are never removed, because the reply depends on them."""
    whole: frozenset[str] = frozenset()
    renames: Mapping[str, str] = {}
    """The other name of each parameter that has two names."""
    anywhere: frozenset[str] = frozenset()


class Repair(msgspec.Struct, frozen=True):
    kind: RepairKind
    request: CanonicalRequest
    edits: tuple[Edit, ...]
    warning: CallWarning


def with_repairs(written: WireCall, repairs: Sequence[Repair]) -> WireCall:
    """Apply the edits and warnings of repairs to a written request."""
    edits = [edit for repair in repairs for edit in repair.edits]
    warnings = written.warnings + tuple(repair.warning for repair in repairs)
    if not edits:
        return msgspec.structs.replace(written, warnings=warnings)
    body: JsonObject = msgspec.json.decode(written.body)
    for edit in edits:
        if edit.anywhere:
            for inner in protocol_objects(body):
                inner.pop(edit.path[-1], None)
        else:
            _apply(body, edit)
    return msgspec.structs.replace(written, body=msgspec.json.encode(body), warnings=warnings)


def find_repair(
    request: CanonicalRequest,
    body: bytes,
    tool_ids: Mapping[str, str],
    error: AdapterError,
    rules: RepairRules,
    *,
    provider: str,
    done: Collection[str],
) -> Repair | None:
    """The repair for a rejected request; None if there is none."""
    if error.provider_status not in _STATUSES:
        return None
    messages = [message for message in _messages(error) if len(message) <= _LONGEST]
    if "output_limit" not in done and isinstance(error, InvalidRequestError | ContextOverflowError):
        found = _with_shorter_reply(request, messages, provider)
        if found is not None:
            return found
    if type(error) not in (InvalidRequestError, NotFoundError, AdapterError):
        return None  # the error is not about the form of the request
    of_reasoning = error.provider_code in rules.signature_codes or _matched(rules.signatures, messages) is not None
    if of_reasoning and "signature" not in done:
        found = _without_reasoning(request, provider)
        if found is not None:
            return found
    if "parameter" not in done:
        found = _without_parameter(request, body, error, messages, rules, provider)
        if found is not None:
            return found
    if "tool_pairs" not in done:
        return _with_tools_as_text(request, tool_ids, messages, rules, provider)
    return None


def _messages(error: AdapterError) -> Iterator[str]:
    """Yield the message of an error. Then yield the message of an error inside it, because gateways wrap
    errors.
    """
    yield error.provider_message
    unwrapped_message = unwrapped(error.provider_message)
    if unwrapped_message != error.provider_message:
        yield unwrapped_message
    start = unwrapped_message.find("{")
    if start >= 0:
        try:
            inner: Json = msgspec.json.decode(unwrapped_message[start:])
        except msgspec.DecodeError:
            return
        yield read_error_value(inner).message


def _matched(patterns: Iterable[str], messages: Iterable[str]) -> re.Match[str] | None:
    candidates = list(messages)
    for pattern in patterns:
        for message in candidates:
            if match := re.fullmatch(pattern, message.strip(), re.DOTALL):
                return match
    return None


def _warning(provider: str, what: str) -> CallWarning:
    return CallWarning(
        WarningCode.REQUEST_REPAIRED, f"{provider} rejected the request: {what}, and the request was sent again"
    )


# --- Reasoning ---


def _without_reasoning(request: CanonicalRequest, provider: str) -> Repair | None:
    """The request without the provider's own reasoning; None if it has none.

    Reasoning of other providers is kept in the request, because it is never sent to this provider. A warning
    reports the repair.
    """
    bare = [without_reasoning(message, provider) for message in request.messages]
    count = sum(bared_blocks(before, after) for before, after in zip(request.messages, bare, strict=True))
    if not count:
        return None
    repaired = msgspec.structs.replace(request, messages=tuple(message for message in bare if message.content))
    message = f"it did not accept its reasoning in the history; {count} blocks were sent without it or left out"
    warning = CallWarning(WarningCode.REASONING_REFUSED, _warning(provider, message).message)
    return Repair("signature", repaired, (), warning)


# --- The limit of a reply ---

LEAST_OUTPUT = 256
"""The smallest limit to retry with, in tokens. If the stated limit is lower, the prompt is treated as too long."""

_NAME = r"[`'\"]?(?:max_tokens|max_completion_tokens|max_output_tokens|max_new_tokens)[`'\"]?"

_STATED = (
    # OpenAI, by Chat and by Responses
    rf"{_NAME} is too large: \d+\. This model supports at most (?P<limit>\d+) completion tokens.{{0,200}}",
    rf"Invalid {_NAME}: integer above maximum value\. Expected a value <= (?P<limit>\d+).{{0,200}}",
    # Anthropic
    r"max_tokens: \d+ > (?P<limit>\d+), which is the maximum allowed number of output tokens for .{1,200}",
    r"input length and `max_tokens` exceed context limit: (?P<used>\d+) \+ \d+ > (?P<window>\d+)\b.{0,300}",
    # Gemini
    r"Unable to submit request because it has a maxOutputTokens value of \d+ but the supported range is from "
    r"1 \(inclusive\) to (?P<beyond>\d+) \(exclusive\).{0,300}",
    # Groq, DeepSeek, Qwen, Volcengine, Bedrock
    rf"{_NAME} must be less than or equal to `?(?P<limit>\d+)`?.{{0,300}}",
    rf"Invalid {_NAME} value, the valid range of {_NAME} is \[1, (?P<limit>\d+)\].{{0,200}}",
    rf"(?:<400> )?(?:InternalError\.Algo\.InvalidParameter: )?Range of {_NAME} should be "
    r"\[1, (?P<limit>\d+)\].{0,200}",
    rf"The parameter {_NAME} specified in the request (?:is|are) not valid: integer above maximum value, "
    r"expected a value <= (?P<limit>\d+).{0,300}",
    r"The maximum tokens you requested exceeds the model limit of (?P<limit>\d+)\..{0,300}",
    # vLLM, and OpenAI's older models
    r"'max_tokens' or 'max_completion_tokens' is too large: \d+\. This model's maximum context length is "
    r"(?P<window>\d+) tokens and your request has (?P<used>\d+) input tokens\b.{0,200}",
    r"This model's maximum context length is (?P<window>\d+) tokens\. However, you requested \d+ tokens "
    r"\((?P<used>\d+) in the messages, \d+ in the completion\)\..{0,200}",
    r"(?:VLLMValidationError: )?This model's maximum context length is (?P<window>\d+) tokens\. However, you "
    r"requested \d+ output tokens and your prompt contains (?:at least )?(?P<used>\d+) input tokens\b.{0,400}",
    r"You passed (?P<used>\d+) input tokens and requested \d+ output tokens\. However, the model's context "
    r"length is only (?P<window>\d+) tokens\b.{0,400}",
    # OpenRouter; it counts the kinds of input separately and only approximately
    r"This endpoint's maximum context length is (?P<window>\d+) tokens\. However, you requested about \d+ "
    r"tokens \((?P<parts>\d+ of [a-z]+ input(?:, \d+ of [a-z]+ input){0,5}), \d+ in the output\)\..{0,300}",
    # TGI
    r"(?:Input validation error: )?`inputs` tokens \+ `max_new_tokens` must be <= (?P<window>\d+)\. "
    r"Given: (?P<used>\d+) `inputs` tokens and \d+ `max_new_tokens`.{0,100}",
)


@cache
def _stated() -> tuple[re.Pattern[str], ...]:
    """The patterns, compiled at the first error that may state a limit, because that takes 3 ms."""
    return tuple(re.compile(pattern, re.DOTALL) for pattern in _STATED)


def _with_shorter_reply(request: CanonicalRequest, messages: list[str], provider: str) -> Repair | None:
    limit = stated_limit(messages, request.max_output_tokens)
    if limit is None:
        return None
    message = (
        f"max_output_tokens was lowered from {request.max_output_tokens} to {limit}, the maximum of the provider"
    )
    repaired = msgspec.structs.replace(request, max_output_tokens=limit)
    return Repair("output_limit", repaired, (), _warning(provider, message))


def stated_limit(messages: Iterable[str], requested: int) -> int | None:
    """The limit of a reply's tokens in an error message. None if there is none or it is not below `requested`."""
    for message in messages:
        for pattern in _stated():
            match = pattern.fullmatch(message.strip())
            if match is not None:
                limit = _limit(match)
                return limit if LEAST_OUTPUT <= limit < requested else None
    return None


def _limit(match: re.Match[str]) -> int:
    groups = match.groupdict()
    if groups.get("limit"):
        return int(groups["limit"])
    if groups.get("beyond"):
        return int(groups["beyond"]) - 1
    if groups.get("parts"):
        return int(groups["window"]) - sum(map(int, re.findall(r"\d+", groups["parts"])))
    return int(groups["window"]) - int(groups["used"])


# --- Parameters ---


def _without_parameter(
    request: CanonicalRequest,
    body: bytes,
    error: AdapterError,
    messages: list[str],
    rules: RepairRules,
    provider: str,
) -> Repair | None:
    for refusal in _refusals(error, messages, rules):
        sent: JsonObject = msgspec.json.decode(body)
        found = [_edit(sent, name, refusal, rules) for name in refusal.names]
        edits = tuple(edit for edit in found if edit is not None)
        if edits:
            what = ", and ".join(edit.in_words for edit in edits)
            return Repair("parameter", request, edits, _warning(provider, what))
    return None


def _refusals(error: AdapterError, messages: list[str], rules: RepairRules) -> Iterator[Refusal]:
    for refusal in (*rules.parameters, *_GATEWAY_REFUSALS):
        match = _matched((refusal.pattern,), messages)
        if match is not None:
            yield refusal if refusal.path else msgspec.structs.replace(refusal, named=match["name"])
    if error.provider_param and error.provider_code in rules.parameter_codes:
        yield Refusal("", named=error.provider_param)


def _edit(body: JsonObject, name: str, refusal: Refusal, rules: RepairRules) -> Edit | None:
    """The edit of a parameter, by the provider's name for it; None if the parameter is essential or missing."""
    keys = tuple(key for key in re.split(r"[^A-Za-z0-9_]+", name) if key)
    if not keys:
        return None
    if refusal.value is not UNSET:
        return Edit(keys, refusal.value)
    if refusal.entry is not UNSET:
        entries = body.get(keys[0])
        return Edit(keys, entry=refusal.entry) if isinstance(entries, list) and refusal.entry in entries else None
    if keys[-1] in rules.anywhere and any(keys[-1] in inner for inner in protocol_objects(body)):
        return Edit(keys[-1:], anywhere=True)
    snake_keys = tuple(re.sub("(?<=[a-z])[A-Z]", lambda found: "_" + found[0], key).lower() for key in keys)
    path = _path(body, keys) or _path(body, snake_keys)
    if path and path[0] in rules.whole:
        path = path[:1]
    elif not refusal.named and path != keys:
        return None  # another parameter is at this path
    if not path:
        return None
    if (rename := rules.renames.get(path[0])) is not None and rename not in body:
        return Edit(path, rename=rename)
    return None if _is_essential(body, path, rules.essential) else Edit(path)


def _path(body: JsonObject, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The longest prefix of the keys that exists in the body."""
    found: list[str] = []
    inner: Json = body
    for key in keys:
        if not isinstance(inner, dict) or key not in inner:
            break
        found.append(key)
        inner = inner[key]
    return tuple(found)


def _is_essential(body: JsonObject, path: tuple[str, ...], essential: frozenset[str]) -> bool:
    for essential_key in essential:
        keys = tuple(essential_key.split("."))
        shorter = min(len(keys), len(path))
        if keys[:shorter] == path[:shorter] and _path(body, keys) == keys:
            return True
    return False


# --- Tool calls and results ---


def _with_tools_as_text(
    request: CanonicalRequest,
    tool_ids: Mapping[str, str],
    messages: list[str],
    rules: RepairRules,
    provider: str,
) -> Repair | None:
    """The request with tool calls and their results as text: the calls that the error names, or all calls. No
    content is lost, and no tool runs again.
    """
    match = _matched(rules.pairs, messages)
    if match is None:
        return None
    calls = {block.id: block for message in request.messages for block in message.tool_uses}
    named = match.groupdict().get("ids")
    wire_ids = set(re.findall(r"[A-Za-z0-9_.:-]*[A-Za-z0-9_]", named)) if named is not None else None
    as_text = {
        call_id: call
        for call_id, call in calls.items()
        if wire_ids is None or tool_ids.get(call_id, call_id) in wire_ids
    }
    repaired = tuple(tools_as_text(request.messages, as_text, wire_ids or set()))
    if repaired == request.messages:
        return None
    text = f"it did not accept a tool call or its result; {len(as_text)} of them were sent as text"
    return Repair("tool_pairs", msgspec.structs.replace(request, messages=repaired), (), _warning(provider, text))
