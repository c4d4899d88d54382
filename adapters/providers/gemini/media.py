"""Gemini's image models: generateContent with ``responseModalities: [IMAGE]``.

A model draws one image a request, and edits input images, without a mask. Sizes are words (``1K``, ``2K``,
``4K``) with an aspect ratio; formats and qualities can't be chosen. Source: google-genai 3.4.0 (`imageConfig`),
ai.google.dev. An unlisted model may support any of them, so nothing is refused. Usage counts thoughts and images
separately.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from callboard.bus.errors import AdapterError, CapabilityError, ContentFilterError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason

from ...http.errors import error_without_status, read_error_value
from ...images import (
    GeneratedImage,
    ImageCapabilities,
    ImageReply,
    ImageRequest,
    from_base64,
    input_bytes,
    merge_unpriced_options,
    ratio_of,
    read_size,
)
from ...operations.wires import known_terms, video_usage
from ...requests.content import encode_json
from ...requests.history_target import WireCall
from ...requests.settings import merge_options, own_options
from ...videos import VideoCapabilities, VideoJob, VideoRequest, VideoStatus, VideoTerms, VideoVariant
from .contents import IMAGE_TYPES
from .data import CODES, error_in_reply
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
_IMAGE_MODELS: tuple[tuple[str, ImageCapabilities], ...] = (
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


_decode_images = msgspec.json.Decoder(_Reply).decode


class GeminiImages(msgspec.Struct, frozen=True):
    """Gemini's images, over the same protocol as its conversations."""

    version: str = "v1beta"
    """The API's version in the path."""

    def capabilities(self, model: str) -> ImageCapabilities:
        name = model.rpartition("/")[2]
        return next((row for pattern, row in _IMAGE_MODELS if re.match(pattern, name)), _COMMON)

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
        reply = _decode_images(body)
        if reply.error != ABSENT:
            raise error_in_reply(decode_json(body), "")
        images: list[GeneratedImage] = []
        texts: list[str] = []
        reasons: list[tuple[str, str]] = []
        for candidate in reply.candidates or ():
            for part in (candidate.content.parts if candidate.content is not None else None) or ():
                if part.thought:
                    continue
                if part.inlineData is not None and part.inlineData.data:
                    images.append(from_base64(part.inlineData.data, part.inlineData.mimeType or "image/png"))
                elif part.text:
                    texts.append(part.text)
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
        return ImageReply(images, usage, reply.modelVersion, reply.responseId, said="".join(texts))


def _refusal(feedback: _Feedback | None, reasons: list[tuple[str, str]]) -> ContentFilterError | None:
    """The error for an image that was blocked because of its content; None if the image was not blocked."""
    if feedback is not None and feedback.blockReason:
        reasons = [(feedback.blockReason, feedback.blockReasonMessage or "")]
    for reason, message in reasons:
        blocked = feedback is not None and feedback.blockReason
        if blocked or STOP_REASONS.get(reason) is StopReason.CONTENT_FILTER:
            words = f"{reason}: {message}" if message else reason
            return ContentFilterError(
                f"the provider returned no image: {words}", provider_code=reason, provider_message=words
            )
    return None


# Videos as Google's long-running operations (``predictLongRunning``).

_SIZES = ("1280x720", "720x1280", "1920x1080", "1080x1920")
_VEO_3 = VideoCapabilities(seconds=(4, 6, 8), default_seconds=8, sizes=_SIZES, audio="always")
_VEO_3_1 = msgspec.structs.replace(_VEO_3, sizes=(*_SIZES, "3840x2160", "2160x3840"))
_VEO_2 = msgspec.structs.replace(_VEO_3, seconds=(5, 6, 7, 8), sizes=_SIZES[:2], audio="never")

_VIDEO_MODELS: tuple[tuple[str, VideoCapabilities], ...] = (
    (r"veo-2\.", _VEO_2),
    (r"veo-3\.1-", _VEO_3_1),
    (r"veo-3\.0-", _VEO_3),
)
_UNKNOWN = VideoCapabilities()
_RESOLUTIONS = {720: "720p", 1080: "1080p", 2160: "4k"}


class _File(msgspec.Struct, gc=False):
    uri: str | None = None
    encodedVideo: str | None = None
    bytesBase64Encoded: str | None = None
    encoding: str | None = None


class _Sample(msgspec.Struct, gc=False):
    video: _File | None = None


class _Videos(msgspec.Struct, gc=False):
    generatedSamples: list[_Sample] | None = None
    raiMediaFilteredReasons: list[str] | None = None


class _Response(msgspec.Struct, gc=False):
    generateVideoResponse: _Videos | None = None


class _Operation(msgspec.Struct, gc=False):
    name: str
    done: bool | None = None
    error: Json = None
    response: _Response | None = None


_decode_operation = msgspec.json.Decoder(_Operation).decode


_PRICED = {
    "durationSeconds": "use seconds=",
    "resolution": "use size=",
    "generateAudio": "use audio=",
    "sampleCount": "one call makes one video",
}


class GeminiVideos(msgspec.Struct, frozen=True):
    version: str = "v1beta"
    """The API's version in the path."""

    def capabilities(self, model: str) -> VideoCapabilities:
        name = model.rpartition("/")[2]
        return next((row for pattern, row in _VIDEO_MODELS if re.match(pattern, name)), _UNKNOWN)

    def create(self, request: VideoRequest, provider: str) -> WireCall:
        instance: JsonObject = {"prompt": request.prompt}
        if request.first_frame is not None:
            media_type, data = input_bytes(request.first_frame)
            instance["image"] = {"mimeType": media_type, "bytesBase64Encoded": b64encode(data).decode()}
        parameters: JsonObject = {}
        if request.seconds is not None:
            parameters["durationSeconds"] = request.seconds
        if request.size is not None:
            parameters.update(_size(request.size))
        if request.audio is not None and self.capabilities(request.wire_model).audio == "choice":
            parameters["generateAudio"] = request.audio
        merge_unpriced_options(parameters, request, "gemini", provider, _PRICED)
        body: JsonObject = {"instances": [instance], "parameters": parameters}
        path = path_of(self.version, model_name(request.wire_model), "predictLongRunning")
        return WireCall(path, encode_json(body), once=True)

    def retrieve(self, job_id: str) -> WireCall:
        return WireCall(path_of(self.version, job_id), b"", method="GET")

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        operation = _decode_operation(body)
        made = known_terms(terms, self.capabilities(model))
        status: VideoStatus = "in_progress"
        error: AdapterError | None = None
        addresses: dict[str, str] = {}
        if operation.done:
            video, error = _outcome(operation, provider)
            status = "failed" if error is not None else "completed"
            addresses = {} if video is None else {"video": video}
        return VideoJob(
            id=operation.name,
            model=f"{provider}:{model}",
            provider=provider,
            status=status,
            progress=1.0 if status == "completed" else None,
            error=error,
            terms=made,
            usage=video_usage(made) if status == "completed" else None,
            addresses=addresses,
        )

    def content(self, job: VideoJob, variant: VideoVariant) -> str:
        address = job.addresses.get(variant)
        if address is None:
            raise CapabilityError(f"{job.id} has no {variant} to download")
        return address

    def delete(self, job_id: str) -> WireCall | None:
        return None

    def latest(self) -> WireCall | None:
        return None

    def read_latest(self, body: bytes, provider: str, request: VideoRequest) -> Sequence[VideoJob]:
        return ()


def _size(size: str) -> JsonObject:
    """Convert a size to the API's form: an aspect ratio, and the name of the shorter side. Raises
    CapabilityError.
    """
    found = read_size(size)
    resolution = None if found is None else _RESOLUTIONS.get(min(found))
    if found is None or resolution is None:
        raise CapabilityError(f"the size {size!r} is unknown: use 1280x720, 1920x1080 or 3840x2160")
    return {"aspectRatio": ratio_of(*found), "resolution": resolution}


def _outcome(operation: _Operation, provider: str) -> tuple[str | None, AdapterError | None]:
    """The address of the video, or the reason why there is none."""
    if operation.error:
        error = error_without_status(read_error_value({"error": operation.error}), CODES, provider)
        error.retryable = False  # the job has ended, and another request does not change it
        return None, error
    response = operation.response or _Response()
    videos = response.generateVideoResponse or _Videos()
    for sample in videos.generatedSamples or ():
        file = sample.video or _File()
        inline = file.encodedVideo or file.bytesBase64Encoded
        if file.uri and urlsplit(file.uri).scheme in ("http", "https"):
            return file.uri, None
        if inline:
            return f"data:{file.encoding or 'video/mp4'};base64,{inline}", None
    if videos.raiMediaFilteredReasons:
        words = "; ".join(videos.raiMediaFilteredReasons)
        return None, ContentFilterError(f"the provider returned no video: {words}", provider_message=words)
    return None, AdapterError(f"{provider}: the operation is done but has neither a video nor an error")
