"""The fields of generateContent that are read here: as few as possible, and any of them may be missing or null.

A reply is one Chunk, and so is each event of a stream. A Chunk is decoded once. Parts that are neither text nor
calls of our tools may be of any kind, and are read again as plain JSON.

This is version v1beta of the API. The names are those of the API.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from callboard.bus.values.json import Json

ABSENT = msgspec.Raw(b"null")
"""Stands for a raw field that was not sent; the same as one that was sent as null."""


class PartialArg(msgspec.Struct, gc=False):
    """A piece of a call's arguments: a value, or more of a string, at a JSONPath."""

    jsonPath: str | None = None
    stringValue: str | None = None
    numberValue: int | float | None = None
    boolValue: bool | None = None
    nullValue: object = msgspec.UNSET
    """The value null; UNSET if it was not sent."""


class FunctionCall(msgspec.Struct, gc=False):
    """A call, usually whole. With `willContinue`, `partialArgs` here and in later parts make up its arguments."""

    id: object = None
    name: object = None
    args: msgspec.Raw = ABSENT
    partialArgs: list[PartialArg] | None = None
    willContinue: object = None


class Part(msgspec.Struct, gc=False):
    """A part. One that has neither text nor a functionCall is of some other kind.

    Of what else may stand in a part, only the last two do so beside text or a call.
    """

    text: str | None = None
    functionCall: FunctionCall | None = None
    thought: object = None
    """Whether the text is reasoning."""
    thoughtSignature: str | None = None
    partMetadata: msgspec.Raw = ABSENT
    speechMetadata: msgspec.Raw = ABSENT


class Content(msgspec.Struct, gc=False):
    """What a candidate says."""

    parts: list[Part] | None = None


class Candidate(msgspec.Struct, gc=False):
    """One reply. The raw fields are about the reply as a whole."""

    content: Content | None = None
    finishReason: object = None
    finishMessage: object = None
    index: object = None
    """The number among several replies. It may be absent for the first."""
    citationMetadata: msgspec.Raw = ABSENT
    groundingMetadata: msgspec.Raw = ABSENT
    urlContextMetadata: msgspec.Raw = ABSENT
    logprobsResult: msgspec.Raw = ABSENT
    safetyRatings: msgspec.Raw = ABSENT
    avgLogprobs: msgspec.Raw = ABSENT
    continuationToken: msgspec.Raw = ABSENT
    tokenCount: msgspec.Raw = ABSENT


class Usage(msgspec.Struct, gc=False):
    """Token counts, in a stream all those so far. Counts of zero are usually left out."""

    promptTokenCount: object = None
    cachedContentTokenCount: object = None
    candidatesTokenCount: object = None
    thoughtsTokenCount: object = None
    toolUsePromptTokenCount: object = None
    promptTokensDetails: object = None
    cacheTokensDetails: object = None
    candidatesTokensDetails: object = None
    serviceTier: object = None


class PromptFeedback(msgspec.Struct, gc=False):
    """Why a prompt got no reply."""

    blockReason: object = None
    blockReasonMessage: object = None


class Chunk(msgspec.Struct, gc=False):
    """A whole reply, or the next piece of a streamed one; or an error, which may come with status 200."""

    candidates: list[Candidate] | None = None
    usageMetadata: msgspec.Raw = ABSENT
    promptFeedback: msgspec.Raw = ABSENT
    modelStatus: msgspec.Raw = ABSENT
    createTime: msgspec.Raw = ABSENT
    modelVersion: object = None
    responseId: object = None
    error: msgspec.Raw = ABSENT


class TextPart(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A part that is text and nothing else."""

    text: str


class TextContent(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The content of a TextChunk."""

    parts: tuple[TextPart]
    role: str = ""


class TextCandidate(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The candidate of a TextChunk."""

    content: TextContent
    index: Literal[0] = 0


class TextChunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A chunk amid a reply that brings a piece of text and counts, as most do. Any other is no TextChunk."""

    candidates: tuple[TextCandidate]
    usageMetadata: msgspec.Raw = ABSENT
    modelVersion: str = ""
    responseId: str = ""


decode_text_chunk = msgspec.json.Decoder(TextChunk).decode
decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_chunks = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_feedback = msgspec.json.Decoder(PromptFeedback | None).decode
decode_counts = msgspec.json.Decoder(Usage | None).decode
decode_json = msgspec.json.Decoder(Json).decode
