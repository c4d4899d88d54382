"""Fields of the Messages API: checks with Anthropic's error texts, losses, and values that clients send back.
Pure.

Clients send ids and signatures back unchanged, so both can contain data for the next request.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256

from callboard.adapters import CallWarning
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ProviderRaw, ThinkingBlock

from .failures import BadRequest

PROTOCOL = "anthropic"
"""The adapters' name for the protocol, used to mark its data."""

# --- Checks ---


def bad(path: str, why: str) -> BadRequest:
    """The error for one field, with Anthropic's wording."""
    return BadRequest(f"{path}: {why}", param=path)


def required(fields: JsonObject, name: str, path: str) -> Json:
    if name not in fields:
        raise bad(path, "Field required")
    return fields[name]


def text_at(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise bad(path, "Input should be a valid string")
    return value


def object_at(value: Json, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise bad(path, "Input should be a valid dictionary")
    return value


def list_at(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise bad(path, "Input should be a valid list")
    return value


def bool_at(value: Json, path: str) -> bool:
    if not isinstance(value, bool):
        raise bad(path, "Input should be a valid boolean")
    return value


def int_at(value: Json, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(path, "Input should be a valid integer")
    return value


def number_at(value: Json, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(path, "Input should be a valid number")
    return float(value)


# --- Losses ---

_HERE_ONLY = "only providers of the Messages API receive it"
_MARK = "cache_control"


class Losses:
    """The parts without a canonical equivalent, with one warning for each kind."""

    def __init__(self) -> None:
        self._found: dict[str, CallWarning] = {}
        self.marked = False
        """Whether the client set prompt cache breakpoints."""

    def field(self, name: str, why: str = _HERE_ONLY) -> None:
        """Record a setting, or a field of a block or a tool."""
        if name.rpartition(".")[2] == _MARK:
            self.marked, name = True, _MARK
        self._note(WarningCode.PARAMETER_DROPPED, name, why)

    def fields(self, above: str, names: Iterable[str]) -> None:
        for name in names:
            self.field(f"{above}.{name}")

    def content(self, kind: str, why: str = _HERE_ONLY) -> None:
        self._note(WarningCode.CONTENT_DROPPED, kind, why)

    def changed(self, name: str, why: str) -> None:
        self._note(WarningCode.PARAMETER_CHANGED, name, why)

    def _note(self, code: WarningCode, subject: str, why: str) -> None:
        self._found.setdefault(subject, CallWarning(code, f"{subject}: {why}"))

    @property
    def all(self) -> tuple[CallWarning, ...]:
        return tuple(self._found.values())


# --- Ids of tool calls ---

_OWN_ID = re.compile(r"(?:tu|toolu)_([0-9A-HJKMNP-TV-Z]{26})")
_CLIENTS_ID = re.compile(r"[a-zA-Z0-9_-]+")
_CODED_ID = "toolu_b64_"


def client_tool_id(tool_use_id: str) -> str:
    """Convert a tool call's id for the client. `canonical_tool_id` returns the original id."""
    match = _OWN_ID.fullmatch(tool_use_id)
    if match is not None:
        return f"toolu_{match[1]}"
    if _CLIENTS_ID.fullmatch(tool_use_id) and not tool_use_id.startswith(_CODED_ID):
        return tool_use_id
    return _CODED_ID + urlsafe_b64encode(tool_use_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def canonical_tool_id(client_id: str) -> str:
    """Convert a tool call's id from the client."""
    match = _OWN_ID.fullmatch(client_id)
    if match is not None:
        return f"tu_{match[1]}"
    if client_id.startswith(_CODED_ID):
        coded = client_id.removeprefix(_CODED_ID)
        try:
            return urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode("utf-8", "surrogatepass")
        except ValueError:
            return client_id
    return client_id


# --- Names of tools ---

_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def canonical_tool_name(name: str) -> str:
    """A tool name that all providers accept: the client's name, unless a provider would refuse it."""
    if _TOOL_NAME.fullmatch(name):
        return name
    legal = re.sub("[^A-Za-z0-9_-]", "_", name)
    legal = legal if re.match("[A-Za-z]", legal) else f"t{legal}"
    return f"{legal[:55]}_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


# --- Blocks without a form in a reply ---

IMAGE_LEFT_OUT = "[The model made an image. The Messages API has no place for it in a reply.]"
"""The text that replaces an image in a reply. It is removed from histories."""

# --- Signatures of thinking ---

UNSIGNED = "callboard-unsigned"
"""The placeholder for a missing signature of thinking, because clients require one."""

_FOREIGN = "callboard:"
"""The prefix of another provider's signature. The provider's name, a colon and the signature follow."""


def client_signature(signature: str | None, provider: str) -> str:
    """The signature for the client. `read_thinking` reads the original signature from it."""
    if not signature:
        return UNSIGNED
    return signature if provider == PROTOCOL else f"{_FOREIGN}{provider}:{signature}"


def read_thinking(text: str, signature: str) -> ThinkingBlock:
    """Read thinking from a client. If the provider's original signature is known, the block gets it."""
    if not signature or signature == UNSIGNED:
        return ThinkingBlock(text)
    if signature.startswith(_FOREIGN):
        provider, _, provider_signature = signature.removeprefix(_FOREIGN).partition(":")
        return (
            ThinkingBlock(text, provider_signature, ProviderRaw(provider, {}))
            if provider_signature
            else ThinkingBlock(text)
        )
    return ThinkingBlock(text, signature)


def is_own_signature(signature: str) -> bool:
    """Whether a signature is from `client_signature`, not from a provider of the Messages API."""
    return signature == UNSIGNED or signature.startswith(_FOREIGN)


def for_providers(body: JsonObject) -> JsonObject:
    """Change a client's body so that providers of the Messages API accept it, even if the history has replies of
    other providers.

    Thinking without a signature of these providers is removed. If the last message answers calls that came without
    signed thinking, the thinking budget is removed, too, because Anthropic would refuse the request.
    """
    messages = body.get("messages")
    signed = [_bare(message) for message in messages] if isinstance(messages, list) else []
    sent: JsonObject = {**body, "messages": [message for message in signed if message is not None]}
    thinking, edits = body.get("thinking"), body.get("context_management")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled" and _answers_other(sent["messages"]):
        del sent["thinking"]
        if isinstance(edits, dict) and isinstance(edit_list := edits.get("edits"), list):
            allowed_edits = [
                edit for edit in edit_list if "thinking" not in str(isinstance(edit, dict) and edit.get("type"))
            ]
            sent["context_management"] = {**edits, "edits": allowed_edits}
    return sent


def _answers_other(messages: Json) -> bool:
    """Whether the last message answers calls that came without signed thinking."""
    if not isinstance(messages, list) or len(messages) < 2:
        return False
    called, answered = _blocks(messages[-2]), _blocks(messages[-1])
    kinds = [block.get("type") for block in called]
    return (
        any(block.get("type") == "tool_result" for block in answered)
        and "tool_use" in kinds
        and kinds[0] not in ("thinking", "redacted_thinking")
        and any(_OWN_ID.fullmatch(str(block.get("id"))) for block in called)
    )


def _blocks(message: Json) -> list[JsonObject]:
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _bare(message: Json) -> Json:
    """A message without thinking from other providers; None if nothing remains."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list) or not any(map(_is_unsigned, content)):
        return message
    signed = [block for block in content if not _is_unsigned(block)]
    return {**message, "content": signed} if signed else None


def _is_unsigned(block: Json) -> bool:
    signature = block.get("signature") if isinstance(block, dict) else None
    return isinstance(signature, str) and is_own_signature(signature)
