"""Google's image and video models.

Images use generateContent with ``responseModalities: [IMAGE]``. Videos are long-running operations
(``predictLongRunning``).

An image model draws one image a request, and edits input images, without a mask. Sizes are words (``1K``, ``2K``,
``4K``) with an aspect ratio; formats and qualities can't be chosen. Source: google-genai 3.4.0 (`imageConfig`),
ai.google.dev. An unlisted model may support any of them, so nothing is refused. Usage counts thoughts and images
separately.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
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
from .wire import ABSENT, Chunk, UsageCounts, decode_chunk, decode_feedback, decode_json

# --- Images ---

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


class GeminiImages(msgspec.Struct, frozen=True):
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
        reply = decode_chunk(body)
        if reply.error != ABSENT:
            raise error_in_reply(decode_json(body), "")
        images: list[GeneratedImage] = []
        texts: list[str] = []
        for part in _parts(body):
            match part:
                case {"thought": True}:  # a draft from the thinking phase
                    pass
                case {"inlineData": {"data": str(data), **about}} if data:
                    images.append(from_base64(data, str(about.get("mimeType") or "image/png")))
                case {"text": str(text)}:
                    texts.append(text)
                case _:
                    pass
        counts = UsageCounts()
        if reply.usageMetadata is not ABSENT:
            counts.add(reply.usageMetadata)
        usage = counts.total(final=True)
        refusal = None if images else _refusal(reply)
        if refusal is not None:
            refusal.usage = usage
            raise refusal
        names = (reply.modelVersion, reply.responseId)
        model, response_id = (name if isinstance(name, str) else None for name in names)
        return ImageReply(images, usage, model, response_id, said="".join(texts))


def _parts(body: bytes) -> Iterator[Json]:
    match decode_json(body):
        case {"candidates": list(candidates)}:
            for candidate in candidates:
                match candidate:
                    case {"content": {"parts": list(parts)}}:
                        yield from parts
                    case _:
                        pass
        case _:
            pass


def _refusal(reply: Chunk) -> ContentFilterError | None:
    """The error for an image that was blocked because of its content; None if the image was not blocked."""
    feedback = decode_feedback(reply.promptFeedback)
    reasons = [(one.finishReason, one.finishMessage) for one in reply.candidates or ()]
    if feedback is not None and feedback.blockReason:
        reason, message = feedback.blockReason, feedback.blockReasonMessage
    else:
        filtered = [each for each in reasons if STOP_REASONS.get(str(each[0])) is StopReason.CONTENT_FILTER]
        if not filtered:
            return None
        reason, message = filtered[0]
    words = f"{reason}: {message}" if message else str(reason)
    return ContentFilterError(
        f"the provider returned no image: {words}", provider_code=str(reason), provider_message=words
    )


# --- Videos ---

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
