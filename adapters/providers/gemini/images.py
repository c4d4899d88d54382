"""Gemini's image models: generateContent with ``responseModalities: [IMAGE]``.

A model draws one image a request, and edits input images, without a mask. Sizes are words (``1K``, ``2K``, ``4K``)
with an aspect ratio; formats and qualities can't be chosen. Source: google-genai 3.4.0 (`imageConfig`),
ai.google.dev. An unlisted model may have any of them, so nothing is refused. Usage counts thoughts and images
separately.
"""

from __future__ import annotations

import re
from base64 import b64encode

import msgspec

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.images import GeneratedImage, ImageCapabilities, ImageRequest
from callboard.adapters.operations.media_wire import ImageReply, from_base64, input_bytes
from callboard.adapters.requests.host_options import merge_options
from callboard.bus.errors import ContentFilterError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason

from ...requests.settings import own_options
from ...requests.text import encode_json
from .contents import IMAGE_TYPES
from .data import error_in_reply
from .request import model_name, path_of
from .response import STOP_REASONS
from .wire import ABSENT, UsageCounts, decode_json

_RATIOS = ("1:1", "2:3", "3:2", "3:4", "4:3", "4:5", "5:4", "9:16", "16:9", "21:9")

_COMMON = ImageCapabilities(
    operations=("generate", "edit", "composite"),
    max_images=1,
    qualities=(),
    backgrounds=(),
    output_formats=(),
    input_media_types=IMAGE_TYPES,
)
_MODELS: tuple[tuple[str, ImageCapabilities], ...] = (
    (r"gemini-2\.5-flash-image", msgspec.structs.replace(_COMMON, sizes=(), aspect_ratios=_RATIOS)),
    (
        r"gemini-3-pro-image",
        msgspec.structs.replace(_COMMON, sizes=("1K", "2K", "4K"), aspect_ratios=_RATIOS, max_input_images=14),
    ),
)


class _Blob(msgspec.Struct, gc=False):
    data: str | None = None
    mimeType: str | None = None


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    inlineData: _Blob | None = None
    thought: bool | None = None
    """Whether the part is a draft from the thinking phase."""


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, gc=False):
    content: _Content | None = None
    finishReason: str | None = None
    finishMessage: str | None = None


class _Feedback(msgspec.Struct, gc=False):
    blockReason: str | None = None
    blockReasonMessage: str | None = None


class _Reply(msgspec.Struct, gc=False):
    candidates: list[_Candidate] | None = None
    promptFeedback: _Feedback | None = None
    usageMetadata: msgspec.Raw = ABSENT
    modelVersion: str | None = None
    responseId: str | None = None
    error: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(_Reply).decode


class GeminiImages(msgspec.Struct, frozen=True):
    """Gemini's images, on the wire of its conversations."""

    version: str = "v1beta"
    """The API's version in the path."""

    def capabilities(self, model: str) -> ImageCapabilities:
        name = model.rpartition("/")[2]
        return next((row for pattern, row in _MODELS if re.match(pattern, name)), _COMMON)

    def write(self, request: ImageRequest, provider: str) -> WireCall:
        parts: list[Json] = [{"text": request.prompt}]
        for block in request.images:
            media_type, data = input_bytes(block)
            parts.append({"inlineData": {"mimeType": media_type, "data": b64encode(data).decode()}})
        config: JsonObject = {"responseModalities": ["IMAGE"]}
        image: JsonObject = {}
        if request.aspect_ratio is not None:
            image["aspectRatio"] = request.aspect_ratio
        if request.size is not None:
            image["imageSize"] = request.size
        if image:
            config["imageConfig"] = image
        body: JsonObject = {"contents": [{"role": "user", "parts": parts}], "generationConfig": config}
        for options in own_options(request, "gemini", provider):
            more = options.pop("generationConfig", {})
            if isinstance(more, dict):
                config.update(more)
            merge_options(body, options)
        path = path_of(self.version, model_name(request.wire_model), "generateContent")
        return WireCall(path, encode_json(body), once=True)

    def read(self, body: bytes, request: ImageRequest) -> ImageReply:
        reply = _decode(body)
        if reply.error != ABSENT:
            raise error_in_reply(decode_json(body), "")
        images: list[GeneratedImage] = []
        said: list[str] = []
        reasons: list[tuple[str, str]] = []
        for candidate in reply.candidates or ():
            for part in (candidate.content.parts if candidate.content is not None else None) or ():
                if part.thought:
                    continue
                if part.inlineData is not None and part.inlineData.data:
                    images.append(from_base64(part.inlineData.data, part.inlineData.mimeType or "image/png"))
                elif part.text:
                    said.append(part.text)
            if candidate.finishReason is not None:
                reasons.append((candidate.finishReason, candidate.finishMessage or ""))
        counts = UsageCounts()
        if reply.usageMetadata is not ABSENT:
            counts.add(reply.usageMetadata)
        usage = counts.total(final=True)
        if not images:
            refusal = _refusal(reply.promptFeedback, reasons)
            if refusal is not None:
                refusal.usage = usage
                raise refusal
        return ImageReply(images, usage, reply.modelVersion, reply.responseId, said="".join(said))


def _refusal(feedback: _Feedback | None, reasons: list[tuple[str, str]]) -> ContentFilterError | None:
    """The reason for a missing image, if it is the image's content."""
    if feedback is not None and feedback.blockReason:
        reasons = [(feedback.blockReason, feedback.blockReasonMessage or "")]
    for reason, message in reasons:
        blocked = feedback is not None and feedback.blockReason
        if blocked or STOP_REASONS.get(reason) is StopReason.CONTENT_FILTER:
            words = f"{reason}: {message}" if message else reason
            return ContentFilterError(f"no image was made: {words}", provider_code=reason, provider_message=words)
    return None
