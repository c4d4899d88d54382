"""The parts of a reply to a Gemini client: its content, grounding and usage. Pure.

The reverse of `adapters.providers.gemini.response`. Gemini's own data on a block is written to its original place.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from callboard.adapters.providers.gemini.contents import OF_A_PART, OF_TEXT, REPLY_KINDS
from callboard.adapters.providers.gemini.wire import UsageCounts
from callboard.adapters.requests.content import media_bytes, media_type_of
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import TokenUsage, split_tier

from .gemini_contents import GEMINI, token_of
from .wire import ClientRequest


class PartWriter:
    """Writes the parts of one reply, block by block."""

    def __init__(self, client_request: ClientRequest) -> None:
        self._request = client_request
        # Gemini itself shows thoughts only on request.
        self._thoughts = bool(client_request.options.get("include_thoughts"))
        self._state = ""  # another provider's opaque state, which the next call gets

    def parts(self, block: ContentBlock) -> Iterator[JsonObject]:
        """The parts for a block; none if the wire can't express it."""
        match block:
            case TextBlock():
                yield from self._text(block)
            case ThinkingBlock():
                yield from self._thinking(block)
            case ToolUseBlock():
                yield self._call(block)
            case ImageBlock():
                yield self._image(block)
            case RedactedThinkingBlock():
                self.saw_state(block.data)
            case OpaqueBlock() if block.kind not in REPLY_KINDS and block.provider_raw.provider == GEMINI:
                data = block.provider_raw.data
                if self._thoughts or not data.get("thought"):
                    yield data
            case _:
                pass

    def saw_state(self, state: str) -> None:
        self._state = state

    def thought(self, text: str, signature: str | None, provider: str) -> Iterator[JsonObject]:
        """The part for a piece of reasoning, if the client receives reasoning."""
        if signature and provider != GEMINI:
            self.saw_state(signature)
            signature = token_of(signature)
        if self._thoughts and (text or signature):
            part: JsonObject = {"text": text, "thought": True}
            yield {**part, "thoughtSignature": signature} if signature else part

    def _text(self, block: TextBlock) -> Iterator[JsonObject]:
        """The parts of a text, split at its signatures."""
        raw = _raw_of(block.provider_raw)
        fields = _fields(raw, OF_TEXT)
        at = 0
        for start, end, signature in signed_pieces(block):
            if start > at:
                yield {"text": block.text[at:start], **fields}
            yield {"text": block.text[start:end], "thoughtSignature": signature, **fields}
            at = end
        if at < len(block.text):
            yield {"text": block.text[at:], **fields}

    def _thinking(self, block: ThinkingBlock) -> Iterator[JsonObject]:
        raw = _raw_of(block.provider_raw)
        fields = _fields(raw, OF_TEXT)
        provider = block.provider_raw.provider if block.provider_raw is not None else ""
        start = raw.get("start")
        text = block.text
        if isinstance(start, int) and self._thoughts:
            yield {"text": text[:start], "thought": True, **fields}
            text = text[start:]
        for part in self.thought(text, block.signature, provider):
            yield {**part, **fields}

    def _call(self, block: ToolUseBlock) -> JsonObject:
        raw = _raw_of(block.provider_raw)
        wire_id = raw.get("id") if raw or _is_ours(block.provider_raw) else block.id
        call: JsonObject = {"id": wire_id} if wire_id else {}
        call |= {"name": self._request.tool_name(block.name), "args": block.input}
        signature = raw.get("thoughtSignature")
        if not signature and self._state:
            signature = token_of(self._state)
        self._state = ""
        signed: JsonObject = {"thoughtSignature": signature} if signature else {}
        return {"functionCall": call, **signed, **_fields(raw, OF_TEXT)}

    def _image(self, block: ImageBlock) -> JsonObject:
        raw = _raw_of(block.provider_raw)
        fields = _fields(raw, ("thought", "thoughtSignature", *OF_A_PART))
        found = media_bytes(block)
        if found is None:
            media_type = media_type_of(block)
            typed: JsonObject = {"mimeType": media_type} if media_type else {}
            return {"fileData": {**typed, "fileUri": block.url}, **fields}
        about = raw.get("inlineData")
        display_fields: JsonObject = about if isinstance(about, dict) else {}
        return {
            "inlineData": {"mimeType": found[0], **display_fields, "data": b64encode(found[1]).decode()},
            **fields,
        }


def signed_pieces(block: TextBlock) -> Iterator[tuple[int, int, str]]:
    """The start, end and signature of each piece of a text that Gemini signed."""
    at = 0
    pieces = _raw_of(block.provider_raw).get("signatures")
    for piece in pieces if isinstance(pieces, list) else ():
        match piece:
            case {"start": int(start), "end": int(end), "signature": str(signature)}:
                if not at <= start <= end <= len(block.text):
                    return  # the text has changed since it was signed
                yield start, end, signature
                at = end


def _is_ours(raw: ProviderRaw | None) -> bool:
    return raw is not None and raw.provider == GEMINI


def _raw_of(raw: ProviderRaw | None) -> JsonObject:
    return raw.data if raw is not None and raw.provider == GEMINI else {}


def _fields(raw: JsonObject, names: Sequence[str]) -> JsonObject:
    return {name: raw[name] for name in names if raw.get(name) is not None} if raw else {}


# --- Data about the reply ---


def about_reply(content: Sequence[ContentBlock]) -> JsonObject:
    """The fields of the candidate other than its content: Gemini's own grounding, citations and log probabilities.

    Citations of other providers are converted to grounding.
    """
    fields: JsonObject = {}
    for block in content:
        if isinstance(block, OpaqueBlock) and block.kind in REPLY_KINDS and block.provider_raw.provider == GEMINI:
            fields |= block.provider_raw.data
    if "groundingMetadata" not in fields and (grounding := _grounding(content)):
        fields["groundingMetadata"] = grounding
    return fields


def _grounding(content: Sequence[ContentBlock]) -> JsonObject:
    chunks: list[Json] = []
    supports: list[Json] = []
    part = 0
    for block in content:
        if not isinstance(block, TextBlock):
            part += 1
            continue
        data = block.provider_raw.data if block.provider_raw is not None else {}
        for name in ("citations", "annotations"):
            citations = data.get(name)
            for citation in citations if isinstance(citations, list) else ():
                chunk = _source(citation) if isinstance(citation, dict) else None
                if chunk is None:
                    continue
                if chunk not in chunks:
                    chunks.append(chunk)
                segment = _segment(citation, block.text, part)
                supports.append({"segment": segment, "groundingChunkIndices": [chunks.index(chunk)]})
        part += 1
    return {"groundingChunks": chunks, "groundingSupports": supports} if chunks else {}


def _source(citation: JsonObject) -> JsonObject | None:
    """The grounding chunk of a citation in Anthropic's or OpenAI's form; None for any other form."""
    inner = citation.get("url_citation")
    if isinstance(inner, dict):
        citation = inner
    url, title = citation.get("url"), citation.get("title") or citation.get("document_title")
    if isinstance(url, str) and url:
        return {"web": {"uri": url, **({"title": title} if isinstance(title, str) else {})}}
    cited = citation.get("cited_text")
    if isinstance(title, str) and isinstance(cited, str):
        return {"retrievedContext": {"title": title, "text": cited}}
    return None


def _segment(citation: Json, text: str, part: int) -> JsonObject:
    """The cited part of a text. Like Gemini, it counts in bytes and omits zeros."""
    match citation:
        case {"url_citation": {"start_index": int(start), "end_index": int(end)}}:
            pass
        case {"start_index": int(start), "end_index": int(end)}:
            pass
        case _:
            start, end = 0, len(text)
    before = len(text[:start].encode("utf-8", "replace"))
    cited = text[start:end]
    segment: JsonObject = {"partIndex": part} if part else {}
    if before:
        segment["startIndex"] = before
    return {**segment, "endIndex": before + len(cited.encode("utf-8", "replace")), "text": cited}


# --- Usage ---

_MODALITIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "prompt": {"AUDIO": ("audio_input", "audio_cache_read"), "IMAGE": ("image_input", "image_cache_read")},
    "cache": {"AUDIO": ("audio_cache_read",), "IMAGE": ("image_cache_read",)},
    "candidates": {"AUDIO": ("audio_output",), "IMAGE": ("image_output",)},
}
"""The names in `TokenUsage.details` for the wire's counts and modalities."""


def write_usage(usage: TokenUsage) -> JsonObject:
    """The usageMetadata of a reply: Gemini's own object for a Gemini reply, otherwise a new one."""
    raw_usage = _own_usage(usage)
    if raw_usage is not None:
        return raw_usage
    prompt, cached = usage.total_input_tokens, usage.cached_input_tokens
    thoughts = usage.reasoning_tokens or 0
    candidates = max(0, usage.output_tokens - thoughts)
    written: JsonObject = {"promptTokenCount": prompt, "candidatesTokenCount": candidates}
    if cached:
        written["cachedContentTokenCount"] = cached
    if usage.reasoning_tokens is not None:
        written["thoughtsTokenCount"] = thoughts
    written["totalTokenCount"] = prompt + candidates + thoughts
    for kind, total in (("prompt", prompt), ("cache", cached), ("candidates", candidates)):
        details = _details(usage.details or {}, kind, total)
        if details:
            name = "cacheTokensDetails" if kind == "cache" else f"{kind}TokensDetails"
            written[name] = details
    tier, _ = split_tier(usage.service_tier)
    if tier is not None:
        written["serviceTier"] = tier
    return written


def _details(counts: Mapping[str, int], kind: str, total: int) -> list[Json]:
    special = {
        modality: sum(counts.get(name, 0) for name in names) for modality, names in _MODALITIES[kind].items()
    }
    rest = total - sum(special.values())
    tokens = {"TEXT": rest if rest > 0 else 0, **special}
    return [{"modality": modality, "tokenCount": count} for modality, count in tokens.items() if count]


def _own_usage(usage: TokenUsage) -> JsonObject | None:
    if usage.raw is None:
        return None
    try:
        raw: Json = msgspec.json.decode(usage.raw)
        counts = UsageCounts()
        counts.add(usage.raw)
        read = counts.total()
    except msgspec.MsgspecError:
        return None
    if not isinstance(raw, dict) or raw.get("promptTokenCount") is None or read is None:
        return None
    if (read.total_input_tokens, read.output_tokens) != (usage.total_input_tokens, usage.output_tokens):
        return None  # the object of another wire, or counts that were adjusted
    # without the field that the adapter added
    return {name: value for name, value in raw.items() if name != "grounding"}
