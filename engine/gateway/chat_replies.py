"""Writes replies, streams and lists of models of Chat Completions, and defines the wire. Pure.

OpenAI has no fields for some content. The reply's images are in OpenRouter's field `images`, and the provider's
own stop reason is in OpenRouter's `native_finish_reason`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.content import encode_json, media_bytes, write_data_url
from callboard.adapters.requests.settings import CUSTOM, INPUT
from callboard.bus.streams.events import (
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage, split_tier

from .chat_messages import ANTHROPIC, ANTHROPIC_FORMAT, PROTOCOL, as_list
from .chat_requests import FREE_FORM_TOOLS, INCLUDE_USAGE, LEGACY_FUNCTIONS, read_request
from .failures import Failure, openai_failure
from .wire import (
    STOP_WORDS,
    ClientRequest,
    ClientWire,
    FreeFormReader,
    ListedModel,
    ReplyInfo,
    arguments_of,
    free_form_text,
)

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


def logprobs_of(content: Iterable[ContentBlock]) -> Json:
    found: list[Json] = []
    for block in content:
        if isinstance(block, TextBlock) and block.provider_raw is not None:
            entries = block.provider_raw.data.get("logprobs")
            found += entries if isinstance(entries, list) else []
    return {"content": found, "refusal": None} if found else None


# --- Text ---


def reply_text(content: Iterable[ContentBlock]) -> str:
    return "".join(gap + block.text for block, gap in _texts(content))


def _texts(content: Iterable[ContentBlock]) -> Iterator[tuple[TextBlock, str]]:
    """The texts of a reply, with the separators before them: a blank line if there are other blocks between."""
    last, apart = "", False
    for block in content:
        if not isinstance(block, TextBlock):
            apart = True
            continue
        yield block, _gap(last, block.text) if apart and block.text else ""
        if block.text:
            last, apart = block.text, False


def _gap(before: str, after: str) -> str:
    return "" if not before or before[-1].isspace() or after[:1].isspace() else "\n\n"


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
    end = 0
    for block, gap in _texts(content):
        start = end + len(gap)
        end = start + len(block.text)
        data = block.provider_raw.data if block.provider_raw is not None else {}
        for entry in (*as_list(data.get("annotations")), *as_list(data.get("citations"))):
            found += _annotation(entry, start, end)
    for other in content:
        if isinstance(other, OpaqueBlock) and other.kind == _GROUNDING:
            found += _grounded(other.provider_raw.data.get(_GROUNDING), reply_text(content))
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


# --- Whole replies ---


def write_reply(client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    content, calls = response.content, response.tool_uses
    legacy = client_request.options.get(LEGACY_FUNCTIONS, False)
    text: Json = reply_text(content)
    message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
    choice: JsonObject = {"index": 0, "message": message, "logprobs": logprobs_of(content)}
    choice |= end_of(response, legacy=legacy)
    if calls and not text:
        message["content"] = None
    if response.stop_reason is StopReason.REFUSAL and text:
        message |= {"content": None, "refusal": text}
        choice["finish_reason"] = "stop"
    thinking = [block.text for block in content if isinstance(block, ThinkingBlock) and block.text]
    if thinking:
        message["reasoning_content"] = "\n\n".join(thinking)
    details = reasoning_details(content, with_text=True)
    if details:
        message["reasoning_details"] = details
    message |= signed_message(content)
    message["annotations"] = annotations_of(content)
    message |= media_of(content)
    if calls and legacy:
        name = client_request.tool_name(calls[0].name)
        message["function_call"] = {"name": name, "arguments": arguments_of(calls[0])}
    elif calls:
        message["tool_calls"] = [_call(call, client_request) for call in calls]
    return {
        "id": f"chatcmpl-{info.id}",
        "object": "chat.completion",
        "created": info.created,
        "model": info.model,
        "choices": [choice],
        "usage": write_usage(response.usage),
        **tier_of(response.usage),
        "system_fingerprint": response.provider_details.get("system_fingerprint"),
    }


def _call(call: ToolUseBlock, client_request: ClientRequest) -> JsonObject:
    name = client_request.tool_name(call.name)
    if call.name in client_request.options.get(FREE_FORM_TOOLS, ()):
        text = free_form_text(call.input, call.raw_arguments)
        return {"id": call.id, "type": CUSTOM, CUSTOM: {"name": name, INPUT: text}}
    function: JsonObject = {"name": name, "arguments": arguments_of(call)}
    written: JsonObject = {"id": call.id, "type": "function", "function": function}
    raw = call.provider_raw
    if raw is not None and "extra_content" in raw.data:  # Gemini's signature, in the form of Google's own endpoint
        written["extra_content"] = raw.data["extra_content"]
    return written


# --- Streams ---

_DONE: Final = b"data: [DONE]\n\n"


def _event(value: Json) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


class ChatWriter:
    """Writes one streamed reply; see `ReplyWriter`."""

    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        self._request = client_request
        self._legacy: bool = client_request.options.get(LEGACY_FUNCTIONS, False)
        self._with_usage: bool = client_request.options.get(INCLUDE_USAGE, False)
        self._frame: JsonObject = {
            "id": f"chatcmpl-{info.id}",
            "object": "chat.completion.chunk",
            "created": info.created,
            "model": info.model,
        }
        self._head = b"data: " + encode_json(self._frame)[:-1] + b',"choices":[{"index":0,"delta":'
        usage = b',"usage":null' if self._with_usage else b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._text_head = self._head + b'{"content":'
        self._text_tail = b"}" + self._tail
        self._block = -1  # the index of the last block with text
        self._end = ""  # the last character of the text
        self._thought = -1  # the index of the last block of reasoning
        self._calls = 0
        self._sent = False  # whether the current call has arguments
        self._free: FreeFormReader | None = None
        self._streamed_input: list[str] = []

    def start(self) -> bytes:
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def write(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta():
                text = event.text
                if event.content_block_index != self._block:
                    text = self._apart(event) + text
                self._end = text[-1:] or self._end
                return self._text_head + encode_json(text) + self._text_tail
            case ThinkingDelta():
                return self._thinking(event)
            case ToolUseStart():
                return self._start_call(event)
            case ToolUseInputDelta():
                self._sent = True
                text = event.partial_json
                if self._free is not None:
                    text = self._free.read(text)
                    self._streamed_input.append(text)
                return self._arguments(text) if text else b""
            case ToolUseEnd():
                return self._end_call(event)
            case _:
                return b""

    def finish(self, response: CanonicalResponse) -> bytes:
        content = response.content
        late = media_of(content) | signed_message(content)
        annotations = annotations_of(content)
        if annotations:
            late["annotations"] = annotations
        details = reasoning_details(content, with_text=False)
        if details:
            late["reasoning_details"] = details
        pieces = [self._delta(late)] if late else []
        last: JsonObject = {"index": 0, "delta": {}, "logprobs": None, **end_of(response, legacy=self._legacy)}
        more = tier_of(response.usage)
        fingerprint = response.provider_details.get("system_fingerprint")
        if fingerprint is not None:
            more["system_fingerprint"] = fingerprint
        null: JsonObject = {"usage": None} if self._with_usage else {}
        pieces.append(_event({**self._frame, **more, "choices": [last], **null}))
        if self._with_usage:
            usage = write_usage(response.usage)
            pieces.append(_event({**self._frame, **more, "choices": [], "usage": usage}))
        return b"".join((*pieces, _DONE))

    def fail(self, failure: Failure) -> bytes:
        return _event(openai_failure(failure)[1])

    def ping(self) -> bytes:
        return b": ping\n\n"

    def _delta(self, delta: JsonObject) -> bytes:
        return self._head + encode_json(delta) + self._tail

    def _apart(self, event: TextDelta) -> str:
        """The separator before a new block; empty directly after another text block."""
        index, former = event.content_block_index, self._block
        self._block = index
        return "" if index == former + 1 else _gap(self._end, event.text)

    def _thinking(self, event: ThinkingDelta) -> bytes:
        if not event.text:
            return b""
        text = event.text
        if event.content_block_index != self._thought:
            text = text if self._thought < 0 else f"\n\n{text}"
            self._thought = event.content_block_index
        return self._head + b'{"reasoning_content":' + encode_json(text) + self._text_tail

    # --- Calls ---

    def _start_call(self, event: ToolUseStart) -> bytes:
        name = self._request.tool_name(event.tool_name)
        free_form = event.tool_name in self._request.options.get(FREE_FORM_TOOLS, ())
        self._calls += 1
        self._sent = False
        self._free = FreeFormReader() if free_form else None
        self._streamed_input = []
        if self._legacy:
            return self._delta({"function_call": {"name": name, "arguments": ""}}) if self._calls == 1 else b""
        call: JsonObject = {"index": self._calls - 1, "id": event.tool_use_id}
        if free_form:
            call |= {"type": CUSTOM, CUSTOM: {"name": name, INPUT: ""}}
        else:
            call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        return self._delta({"tool_calls": [call]})

    def _arguments(self, text: str) -> bytes:
        written = encode_json(text)
        if self._legacy:
            if self._calls > 1:
                return b""
            return self._head + b'{"function_call":{"arguments":' + written + b"}}" + self._tail
        place = b'{"tool_calls":[{"index":%d,' % (self._calls - 1)
        field = b'"function":{"arguments":' if self._free is None else b'"custom":{"input":'
        return self._head + place + field + written + b"}}]}" + self._tail

    def _end_call(self, event: ToolUseEnd) -> bytes:
        if self._free is not None:
            text, streamed = free_form_text(event.final_input), "".join(self._streamed_input)
            is_longer = len(text) > len(streamed) and text.startswith(streamed) and not event.incomplete
            return self._arguments(text[len(streamed) :]) if is_longer else b""
        if self._sent or event.incomplete:
            return b""
        return self._arguments(encode_json(event.final_input).decode())


# --- Models ---


def write_model(model: ListedModel) -> JsonObject:
    """One model, with the limits under OpenRouter's and Groq's names."""
    written: JsonObject = {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
    }
    if model.context_tokens is not None:
        written["context_length"] = model.context_tokens
    if model.output_tokens is not None:
        written["max_completion_tokens"] = model.output_tokens
    return written


def write_models(models: Sequence[ListedModel]) -> JsonObject:
    return {"object": "list", "data": [write_model(model) for model in models]}


def write_token_count(tokens: int) -> JsonObject:
    return {"object": "response.input_tokens", "input_tokens": tokens}


WIRE = ClientWire(
    name="chat",
    protocol=PROTOCOL,
    read_request=read_request,
    writer=ChatWriter,
    write_reply=write_reply,
    write_failure=openai_failure,
    write_models=write_models,
    write_model=write_model,
    write_token_count=write_token_count,
)
"""The wire of Chat Completions."""
