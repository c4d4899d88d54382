"""Writes the parts of Chat Completions replies, whole and streamed. Pure.

OpenAI has no fields for some content. The reply's images are in OpenRouter's field `images`, and the provider's
own stop reason is in OpenRouter's `native_finish_reason`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.content import media_bytes, write_data_url
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage, split_tier

from .chat_reasoning import as_list
from .chat_requests import FREE_FORM_TOOLS, LEGACY_FUNCTIONS, TOOL_NAMES
from .wire import ClientRequest, Failure, FailureKind


class ClientNames:
    """Maps the tools of a reply to the client's names."""

    def __init__(self, client_request: ClientRequest) -> None:
        names, free_form = client_request.options.get(TOOL_NAMES), client_request.options.get(FREE_FORM_TOOLS)
        self._names = names if isinstance(names, dict) else {}
        self._free_form = frozenset(free_form if isinstance(free_form, list) else ())
        self.legacy = client_request.options.get(LEGACY_FUNCTIONS) is True

    def of(self, name: str) -> str:
        return str(self._names.get(name, name))

    def is_free_form(self, name: str) -> bool:
        return name in self._free_form


# --- How a reply ended ---

FINISH_REASONS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.MAX_TOKENS: "length",
    StopReason.PAUSE_TURN: "length",  # the reply is incomplete, and the protocol has no better value
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.REFUSAL: "content_filter",
    StopReason.CANCELLED: "length",
    StopReason.ERROR: "error",
    StopReason.PROVIDER_SPECIFIC: "stop",
}
"""OpenAI's values, and OpenRouter's ``error``."""

_SAME = frozenset({"stop", "tool_calls", "function_call", "length", "content_filter"})


def end_of(response: CanonicalResponse, names: ClientNames) -> JsonObject:
    """The finish reason, the provider's own stop reason, and vLLM's field for the stop sequence."""
    reason, details, raw = response.stop_reason, response.provider_details, response.raw_stop_reason
    word = FINISH_REASONS[reason]
    if reason is StopReason.TOOL_USE and names.legacy:
        word = "function_call"
    elif reason is StopReason.PROVIDER_SPECIFIC and any(call.incomplete for call in response.tool_uses):
        word = "length"
    found: JsonObject = {"finish_reason": word}
    if raw and raw not in _SAME:
        found["native_finish_reason"] = raw
    for name in ("stop_sequence", "matched_stop", "stop_reason"):
        if reason is StopReason.STOP_SEQUENCE and isinstance(details.get(name), str):
            found["stop_reason"] = details[name]
            break
    return found


def tier_of(usage: TokenUsage) -> JsonObject:
    tier, _ = split_tier(usage.service_tier)
    return {} if tier is None else {"service_tier": tier}


def fingerprint_of(response: CanonicalResponse) -> Json:
    return response.provider_details.get("system_fingerprint")


def logprobs_of(content: Iterable[ContentBlock]) -> Json:
    found: list[Json] = []
    for block in content:
        if isinstance(block, TextBlock) and block.provider_raw is not None:
            entries = block.provider_raw.data.get("logprobs")
            found += entries if isinstance(entries, list) else []
    return {"content": found, "refusal": None} if found else None


# --- Text ---


def reply_text(content: Iterable[ContentBlock]) -> str:
    """The text of a reply. Texts with other blocks between them are joined with a blank line."""
    text, apart = "", False
    for block in content:
        if not isinstance(block, TextBlock):
            apart = True
        elif block.text:
            text += f"{gap(text, block.text)}{block.text}" if apart else block.text
            apart = False
    return text


def gap(before: str, after: str) -> str:
    """The separator between two texts that have other blocks between them."""
    return "" if not before or before[-1].isspace() or after[:1].isspace() else "\n\n"


def reply_thinking(content: Iterable[ContentBlock]) -> str:
    """The visible reasoning of a reply, with a blank line between its blocks."""
    texts = [block.text for block in content if isinstance(block, ThinkingBlock) and block.text]
    return "\n\n".join(texts)


# --- Citations and media ---


def annotations_of(content: Sequence[ContentBlock]) -> list[Json]:
    """The citations of a reply, in the format of OpenAI's web search."""
    found: list[Json] = []
    text, apart = "", False
    for block in content:
        if isinstance(block, OpaqueBlock) and block.kind == _GROUNDING:
            found += _grounded(block.provider_raw.data.get(_GROUNDING), reply_text(content))
        if not isinstance(block, TextBlock):
            apart = True
            continue
        start = len(text) + (len(gap(text, block.text)) if apart else 0)
        text, apart = f"{text}{gap(text, block.text) if apart else ''}{block.text}", False
        data = block.provider_raw.data if block.provider_raw is not None else {}
        for entry in (*as_list(data.get("annotations")), *as_list(data.get("citations"))):
            found += _annotation(entry, start, len(text))
    return found


_GROUNDING = "groundingMetadata"
"""The type of Gemini's citations, which follow the text."""


def _grounded(metadata: Json, text: str) -> Iterator[Json]:
    fields = metadata if isinstance(metadata, dict) else {}
    pages = [
        chunk.get("web") if isinstance(chunk, dict) else None for chunk in as_list(fields.get("groundingChunks"))
    ]
    encoded = text.encode("utf-8", "replace")
    for support in as_list(fields.get("groundingSupports")):
        match support:
            case {"segment": {"text": str(quoted)} as segment, "groundingChunkIndices": list(places)}:
                first = segment.get("startIndex", 0) if isinstance(segment, dict) else 0
                start = len(encoded[: first if isinstance(first, int) else 0].decode("utf-8", "ignore"))
                # the index is the number of bytes from the start of the text's part
                if not text.startswith(quoted, start):
                    start = max(text.find(quoted), 0)
                for place in places:
                    page = pages[place] if isinstance(place, int) and 0 <= place < len(pages) else None
                    if isinstance(page, dict) and isinstance(page.get("uri"), str):
                        yield _citation(page["uri"], page.get("title"), start, start + len(quoted))
            case _:
                pass


def _annotation(entry: Json, start: int, end: int) -> list[Json]:
    if not isinstance(entry, dict):
        return []
    match entry:
        case {"type": "url_citation", "url_citation": dict()}:
            return [entry]
        case {"type": "url_citation", "url": str(url)}:  # Responses, Gemini's interactions
            first, last = entry.get("start_index"), entry.get("end_index")
            first = start + first if isinstance(first, int) else start
            last = start + last if isinstance(last, int) else end
        case {"url": str(url)}:  # Anthropic
            first, last = start, end
        case _:
            return []
    return [_citation(url, entry.get("title"), first, last)]


def _citation(url: Json, title: Json, start: Json, end: Json) -> JsonObject:
    fields: JsonObject = {"url": url, "title": title or "", "start_index": start, "end_index": end}
    return {"type": "url_citation", "url_citation": fields}


def media_of(content: Iterable[ContentBlock]) -> JsonObject:
    """The images and the audio of a reply."""
    found: JsonObject = {}
    images: list[Json] = []
    for block in content:
        match block:
            case ImageBlock():
                read = media_bytes(block)
                url: JsonObject = {"url": block.url if read is None else write_data_url(*read)}
                images.append({"type": "image_url", "image_url": url, "index": len(images)})
            case OpaqueBlock(kind="audio") if block.provider_raw.data.get("data"):
                found["audio"] = block.provider_raw.data
            case _:
                pass
    if images:
        found["images"] = images
    return found


# --- Usage ---


def write_usage(usage: TokenUsage) -> JsonObject:
    """The token counts. The prompt's count includes cached tokens."""
    details = usage.details or {}
    prompt, output = usage.total_input_tokens, usage.output_tokens
    prompt_details: JsonObject = {
        "cached_tokens": usage.cached_input_tokens,
        "audio_tokens": details.get("audio_input", 0),
    }
    if usage.cache_creation_input_tokens:
        prompt_details["cache_write_tokens"] = usage.cache_creation_input_tokens
        hour = usage.cache_creation_1h_input_tokens
        if hour:
            prompt_details["cache_creation"] = {
                "ephemeral_5m_input_tokens": usage.cache_creation_input_tokens - hour,
                "ephemeral_1h_input_tokens": hour,
            }
    written: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens or 0,
            "audio_tokens": details.get("audio_output", 0),
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    if details.get("web_search"):
        written["server_tool_use"] = {"web_search_requests": details["web_search"]}
    return written


# --- Failures ---

_FAILURES: Mapping[FailureKind, tuple[int, str, str | None]] = {
    "invalid_request": (400, "invalid_request_error", None),
    "context_overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "content_filter": (400, "invalid_request_error", "content_filter"),
    "authentication": (401, "invalid_request_error", "invalid_api_key"),
    "budget": (429, "insufficient_quota", "insufficient_quota"),
    "permission": (403, "invalid_request_error", "insufficient_permissions"),
    "not_found": (404, "invalid_request_error", "model_not_found"),
    "missing": (404, "invalid_request_error", None),
    "wrong_method": (405, "invalid_request_error", "method_not_supported"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "server": (500, "server_error", None),
    "unavailable": (503, "server_error", "service_unavailable"),
    "timeout": (504, "server_error", "timeout"),
    "overloaded": (503, "server_error", "server_is_overloaded"),
}
"""The status, type and code of each kind of failure."""

_PARAMS: Mapping[FailureKind, str] = {"context_overflow": "messages", "not_found": "model"}


def write_failure(failure: Failure) -> tuple[int, JsonObject]:
    """The status and the body of a failure."""
    status, kind, code = _FAILURES[failure.kind]
    param = failure.param if failure.param is not None else _PARAMS.get(failure.kind)
    if failure.kind == "not_found" and (vendor_code := _vendors_code(failure.code)) not in (None, code):
        code, param = vendor_code, failure.param  # a file or an earlier response is missing, not a model
    error: JsonObject = {
        **failure.details,
        "message": failure.message,
        "type": kind,
        "param": param,
        "code": code if code is not None else _vendors_code(failure.code),
    }
    return status, {"error": error}


def _vendors_code(code: str | None) -> str | None:
    """A provider's code; None if it is another vendor's error type."""
    return None if code is None or code.endswith("_error") or code.isupper() else code
