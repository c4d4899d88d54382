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
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage, split_tier

from .chat_messages import ANTHROPIC, ANTHROPIC_FORMAT, as_list
from .failures import WORDS, Failure, FailureKind
from .wire import STOP_WORDS

# --- How a reply ended ---

_SAME = frozenset({"stop", "tool_calls", "function_call", "length", "content_filter"})


def end_of(response: CanonicalResponse, *, legacy: bool) -> JsonObject:
    """The finish reason, the provider's own stop reason, and vLLM's field for the stop sequence."""
    reason, details, raw = response.stop_reason, response.provider_details, response.raw_stop_reason
    word = STOP_WORDS[reason].chat
    if reason is StopReason.TOOL_USE and legacy:
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


# --- Reasoning ---


def reasoning_details(content: Iterable[ContentBlock], *, with_text: bool) -> list[Json]:
    """The opaque parts of reasoning, for clients that send them back: OpenRouter's own parts, and Anthropic's."""
    details: list[Json] = []
    for block in content:
        if not isinstance(block, ThinkingBlock | RedactedThinkingBlock):
            continue
        raw = block.provider_raw
        common: JsonObject = {"format": ANTHROPIC_FORMAT, "index": len(details)}
        if raw is not None and "reasoning_details" in raw.data:
            entries = as_list(raw.data["reasoning_details"])
            details += entries if with_text else _without_text(entries)
        elif raw is not None and raw.provider != ANTHROPIC:
            continue  # signatures of other providers have no form here
        elif isinstance(block, RedactedThinkingBlock):
            details.append({"type": "reasoning.encrypted", "data": block.data, **common})
        elif block.signature:
            text: JsonObject = {"text": block.text} if with_text else {}
            details.append({"type": "reasoning.text", **text, "signature": block.signature, **common})
    return details


def _without_text(details: list[Json]) -> Iterator[JsonObject]:
    """The opaque parts of details whose text was streamed before. A detail without such parts is left out."""
    for detail in details:
        if isinstance(detail, dict) and (detail.get("signature") or detail.get("data")):
            yield {name: value for name, value in detail.items() if name not in ("text", "summary")}


def signed_message(content: Iterable[ContentBlock]) -> JsonObject:
    """Gemini's signature of a whole message, in the form of Google's Chat Completions endpoint."""
    for block in content:
        raw = block.provider_raw if isinstance(block, ThinkingBlock) else None
        if raw is not None and "extra_content" in raw.data:
            return {"extra_content": raw.data["extra_content"]}
    return {}


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

_PARAMS: Mapping[FailureKind, str] = {"context_overflow": "messages", "not_found": "model"}


def write_failure(failure: Failure) -> tuple[int, JsonObject]:
    """The status and the body of a failure."""
    words = WORDS[failure.kind]
    code = words.code
    param = failure.param if failure.param is not None else _PARAMS.get(failure.kind)
    if failure.kind == "not_found" and (vendor_code := _vendors_code(failure.code)) not in (None, code):
        code, param = vendor_code, failure.param  # a file or an earlier response is missing, not a model
    error: JsonObject = {
        **failure.details,
        "message": failure.message,
        "type": words.openai,
        "param": param,
        "code": code if code is not None else _vendors_code(failure.code),
    }
    return words.status, {"error": error}


def _vendors_code(code: str | None) -> str | None:
    """A provider's code; None if it is another vendor's error type."""
    return None if code is None or code.endswith("_error") or code.isupper() else code
