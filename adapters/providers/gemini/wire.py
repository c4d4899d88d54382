"""Fields of generateContent (v1beta), usage, and partial arguments.

Any field may be missing or null. A reply is one Chunk, and so is each event of a stream. A Chunk is decoded once.
Parts that are neither text nor calls of the host's tools may be of any kind. Such parts are decoded again as plain
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, UsageSource, details_of, unusual_tier

from ...replies.usage import decode_usage, reported_count, source_of

ABSENT = msgspec.Raw(b"null")
"""The value of a raw field that was not sent, equal to null."""


class PartialArg(msgspec.Struct, gc=False):
    """A piece of a call's arguments: a value, or more of a string, at a JSONPath."""

    jsonPath: str | None = None
    stringValue: str | None = None
    numberValue: int | float | None = None
    boolValue: bool | None = None
    nullValue: object = msgspec.UNSET


class FunctionCall(msgspec.Struct, gc=False):
    """A call, usually whole. With `willContinue`, `partialArgs` here and in later parts make up its arguments."""

    id: object = None
    name: object = None
    args: msgspec.Raw = ABSENT
    partialArgs: list[PartialArg] | None = None
    willContinue: object = None


class Part(msgspec.Struct, gc=False):
    """A part. Without text and functionCall it is of another kind.

    Of its other fields, only the last two occur next to text or a call.
    """

    text: str | None = None
    functionCall: FunctionCall | None = None
    thought: object = None
    thoughtSignature: str | None = None
    partMetadata: msgspec.Raw = ABSENT
    speechMetadata: msgspec.Raw = ABSENT


class Content(msgspec.Struct, gc=False):
    parts: list[Part] | None = None


class Candidate(msgspec.Struct, gc=False):
    """One reply. The raw fields are about the reply as a whole."""

    content: Content | None = None
    finishReason: object = None
    finishMessage: object = None
    index: object = None
    """The index of the reply among several. The first reply may have none."""
    citationMetadata: msgspec.Raw = ABSENT
    groundingMetadata: msgspec.Raw = ABSENT
    urlContextMetadata: msgspec.Raw = ABSENT
    logprobsResult: msgspec.Raw = ABSENT
    safetyRatings: msgspec.Raw = ABSENT
    avgLogprobs: msgspec.Raw = ABSENT
    continuationToken: msgspec.Raw = ABSENT
    tokenCount: msgspec.Raw = ABSENT


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _TextTokens(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    modality: Literal["TEXT"]
    tokenCount: _Count = 0


class _PlainUsage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    promptTokenCount: _Count
    candidatesTokenCount: _Count = 0
    totalTokenCount: _Count = 0
    cachedContentTokenCount: _Count = 0
    thoughtsTokenCount: _Count | None = None
    promptTokensDetails: list[_TextTokens] = []
    cacheTokensDetails: list[_TextTokens] = []
    candidatesTokensDetails: list[_TextTokens] = []
    serviceTier: str | None = None


class PromptFeedback(msgspec.Struct, gc=False):
    """The reason for a prompt without a reply."""

    blockReason: object = None
    blockReasonMessage: object = None


class Chunk(msgspec.Struct, gc=False):
    """A whole reply, a piece of a streamed one, or an error, which may have status 200."""

    candidates: list[Candidate] | None = None
    usageMetadata: msgspec.Raw = ABSENT
    promptFeedback: msgspec.Raw = ABSENT
    modelStatus: msgspec.Raw = ABSENT
    createTime: msgspec.Raw = ABSENT
    modelVersion: object = None
    responseId: object = None
    error: msgspec.Raw = ABSENT


class TextPart(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    text: str


class TextContent(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    parts: tuple[TextPart]
    role: str = ""


class TextCandidate(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: TextContent
    index: Literal[0] = 0


class TextChunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The most common chunk: a piece of text inside a reply, with counts."""

    candidates: tuple[TextCandidate]
    usageMetadata: msgspec.Raw = ABSENT
    modelVersion: str = ""
    responseId: str = ""


decode_text_chunk = msgspec.json.Decoder(TextChunk).decode
decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_chunks = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_feedback = msgspec.json.Decoder(PromptFeedback | None).decode
decode_json = msgspec.json.Decoder(Json).decode
_decode_plain_usage = msgspec.json.Decoder(_PlainUsage).decode


# --- Usage ---


class UsageCounts:
    """A reply's counts.

    Each chunk reports the counts up to that chunk. A chunk may omit some counts. The last reported value of each
    count is used.
    """

    def __init__(self) -> None:
        self.fees: dict[str, int] = {}
        """The billed counts other than tokens, by rate name. They come from the reply, not from its usage."""
        self._former: JsonObject | None = None  # the counts before the usage's fields last changed
        self._latest = ABSENT
        self._form: bytes | None = None  # the latest usage without its digits; None before the first
        self._prompted = False  # whether the latest usage has the prompt's count
        self._counted = ABSENT  # the last usage with the prompt's count

    def add(self, raw: msgspec.Raw) -> None:
        """Read a chunk's usage.

        Each chunk has counts, so they are decoded only when needed. A usage with the same fields as the last one
        replaces it.
        """
        form = bytes(raw).translate(None, b"0123456789")
        if form != self._form:
            if self._form is not None:
                self._former = self._so_far()
            usage = decode_usage(raw)
            self._form, self._prompted = form, usage.get("promptTokenCount") is not None
        self._latest = raw
        if self._prompted:
            self._counted = raw

    def _so_far(self) -> JsonObject:
        latest = decode_usage(self._latest)
        return {**(self._former or {}), **{name: value for name, value in latest.items() if value is not None}}

    def total(self, *, final: bool = False) -> TokenUsage | None:
        """The counts in disjoint buckets; None if there are none.

        The prompt's count includes cache reads and excludes input from the provider's own tools. The candidates'
        count excludes thoughts. A missing count is 0; without the prompt's count, the figures are partial.
        """
        plain = self._plain_total() if final and self._former is None and not self.fees else None
        return plain or self._any_total(final=final)

    def _plain_total(self) -> TokenUsage | None:
        """The counts of a consistent `_PlainUsage`, as `_any_total` returns them; None if the usage is not
        consistent.
        """
        try:
            last = _decode_plain_usage(self._latest)
        except msgspec.MsgspecError:
            return None
        prompt, cached, thoughts = last.promptTokenCount, last.cachedContentTokenCount, last.thoughtsTokenCount
        if cached > prompt:
            return None
        return TokenUsage(
            prompt - cached,
            last.candidatesTokenCount + (thoughts or 0),
            cached,
            reasoning_tokens=thoughts,
            service_tier=unusual_tier(last.serviceTier),
            raw=self._latest.copy(),
        )

    def _any_total(self, *, final: bool) -> TokenUsage | None:
        last = self._so_far()
        tier, counted = last.get("serviceTier"), self._counted
        return disjoint_usage(last, _COUNTS, self.fees, tier, counted, self._raw(), final=final)

    def _raw(self) -> msgspec.Raw | None:
        """The reported usage, with the counts from other places added."""
        if self._counted is ABSENT:
            return None
        if not any(self.fees.values()):
            return self._counted.copy()
        return msgspec.Raw(msgspec.json.encode({**decode_fields(self._counted), "grounding": self.fees}))


_COUNTS = (
    *("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount"),
    *("thoughtsTokenCount", "toolUsePromptTokenCount"),
    *("promptTokensDetails", "cacheTokensDetails", "candidatesTokensDetails"),
)
"""The fields of a usage: tokens of the prompt, of its cached part, of the output, of thoughts and of tools' input,
and the first three by modality.
"""


def disjoint_usage(
    usage: JsonObject,
    names: Sequence[str],
    fees: Mapping[str, int],
    service_tier: object,
    reported: msgspec.Raw,
    raw: msgspec.Raw | None,
    *,
    final: bool = True,
) -> TokenUsage | None:
    """The usage of either API, by the names of its fields; None if there are no counts."""
    *counts, of_prompt, of_cache, of_output = (usage.get(name) for name in names)
    prompt, cached, output, thoughts, tool_use = map(reported_count, counts)
    if prompt is None and output is None and cached is None and thoughts is None and tool_use is None:
        return None
    prompt_audio, prompt_images = _sound_and_pictures(of_prompt)
    cached_audio, cached_images = _sound_and_pictures(of_cache)
    spoken, drawn = _sound_and_pictures(of_output)
    source = UsageSource.PARTIAL
    if final:
        source = source_of(
            *((cached, prompt), (prompt_audio + prompt_images, prompt)),
            *((cached_audio + cached_images, cached), (spoken + drawn, output)),
            raw=reported,
            complete=prompt is not None,
        )
    prompt, cached, output = prompt or 0, cached or 0, output or 0
    fresh = max(0, prompt - cached)
    audio = min(fresh, max(0, prompt_audio - cached_audio))
    spoken = min(output, spoken)
    return TokenUsage(
        input_tokens=fresh + (tool_use or 0),
        output_tokens=output + (thoughts or 0),
        cached_input_tokens=cached,
        reasoning_tokens=thoughts,
        source=source,
        details=details_of(
            audio_input=audio,
            image_input=min(fresh - audio, max(0, prompt_images - cached_images)),
            audio_cache_read=min(cached, cached_audio),
            image_cache_read=min(max(0, cached - cached_audio), cached_images),
            audio_output=spoken,
            image_output=min(output - spoken, drawn),
            **fees,
        ),
        service_tier=unusual_tier(service_tier),
        raw=raw,
    )


def _sound_and_pictures(details: object) -> tuple[int, int]:
    if not isinstance(details, list):
        return 0, 0
    counts = {"audio": 0, "image": 0}
    for part in details:
        match part:
            case {"modality": str(name), "tokenCount": count} | {"modality": str(name), "tokens": count}:
                if name.lower() in counts:
                    counts[name.lower()] += reported_count(count) or 0
            case _:
                pass
    return counts["audio"], counts["image"]


# --- Partial arguments ---

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\]""")


class PartialArguments:
    """The arguments of a call that arrive in pieces.

    If `broken` is true, a piece could not be placed, and the call must not be executed.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.value: JsonObject = {}
        self.broken = False
        self._in_pieces: set[str | None] = set()  # places with strings that arrive in pieces

    def add(self, piece: PartialArg) -> None:
        """Add a piece to the value at its path. A second string is appended; a piece without a value is ignored.

        Some servers repeat the earlier text in each piece. So a longer string that starts with the earlier text
        replaces that text, unless a string was already appended at this path.
        """
        if piece.stringValue is not None:
            self._place(piece.jsonPath, piece.stringValue)
        elif piece.numberValue is not None:
            self._place(piece.jsonPath, piece.numberValue)
        elif piece.boolValue is not None:
            self._place(piece.jsonPath, piece.boolValue)
        elif piece.nullValue is not msgspec.UNSET:
            self._place(piece.jsonPath, None)

    def _place(self, path: str | None, value: Json) -> None:
        steps = _steps(path or "")
        so_far = _at(self.value, steps)
        if isinstance(so_far, str) and isinstance(value, str) and so_far and value:
            if path not in self._in_pieces and len(value) > len(so_far) and value.startswith(so_far):
                value = value[len(so_far) :]
            else:
                self._in_pieces.add(path)
        if not steps or not _place(self.value, steps, value):
            self.broken = True


def _at(root: JsonObject, steps: list[str | int]) -> Json:
    node: Json = root
    for step in steps:
        if isinstance(node, dict) and isinstance(step, str):
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            return None
    return node


def _place(root: JsonObject, steps: list[str | int], value: Json) -> bool:
    node: Json = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        fresh: Json = value if following is None else {} if isinstance(following, str) else []
        if isinstance(step, str) and isinstance(node, dict):
            before = node.get(step)
            if following is None:
                node[step] = _continued(before, value)
            elif before is None:
                node[step] = fresh
            node = node[step]
        elif isinstance(step, int) and isinstance(node, list) and step <= len(node):
            if step == len(node):
                node.append(fresh)
            elif following is None:
                node[step] = _continued(node[step], value)
            node = node[step]
        else:
            return False
    return True


def _continued(before: Json, value: Json) -> Json:
    return before + value if isinstance(before, str) and isinstance(value, str) else value


def _steps(path: str) -> list[str | int]:
    """The names and indexes of a path; empty for an unknown form."""
    if not path.startswith("$"):
        return []
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return []
        name, index, single, double = found.groups()
        if index is not None:
            if len(index) > 9:
                return []
            steps.append(int(index))
        elif name is not None:
            steps.append(name)
        else:
            steps.append(re.sub(r"\\(.)", r"\1", single if single is not None else double))
        at = found.end()
    return steps
