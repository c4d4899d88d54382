"""OpenAI's APIs of images and videos, ``/v1/images`` and ``/v1/videos``, and compatible servers.

Limits of images are from OpenAI's own package (3.54.0): at most 10 images, 16 inputs of 50 MB each as PNG, WebP or
JPEG, and a prompt of 32,000 characters. Each family has its sizes and qualities. Unlisted models have only the
general limits. Input tokens are of text and images, output tokens of images, and of text if reported. Servers
without counts are priced by image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

import msgspec

from callboard.bus.errors import AdapterError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage, details_of

from ..http.errors import ErrorBody, ErrorType, error_without_status
from ..images import (
    GeneratedImage,
    ImageCapabilities,
    ImageReply,
    ImageRequest,
    from_base64,
    input_bytes,
    merge_unpriced_options,
)
from ..replies.usage import has_negative, reported_cost, reported_count, source_of
from ..requests.content import encode_json
from ..requests.history_target import WireCall
from ..transport.transport import FormPart, write_form
from ..videos import (
    VIDEO_VARIANTS,
    VideoCapabilities,
    VideoJob,
    VideoRequest,
    VideoStatus,
    VideoTerms,
    VideoVariant,
)
from .wires import known_terms, video_usage

# --- Images ---

_STANDARD = ("1024x1024", "1536x1024", "1024x1536", "auto")

_COMMON = ImageCapabilities(
    max_images=10,
    backgrounds=("transparent", "opaque", "auto"),
    output_formats=("png", "webp", "jpeg", "gif", "svg"),
    max_input_images=16,
    max_input_bytes=50_000_000,
    input_media_types=("image/png", "image/webp", "image/jpeg"),
    max_prompt_characters=32_000,
)

_FIXED = msgspec.structs.replace(
    _COMMON, sizes=_STANDARD, aspect_ratios=(), qualities=("low", "medium", "high", "auto")
)

_FREE = msgspec.structs.replace(_FIXED, free_sizes=True, max_pixels=3840 * 2160)

_FINER = msgspec.structs.replace(_FREE, qualities=("low", "medium", "high", "xhigh", "max", "auto"))

_MODELS: tuple[tuple[str, ImageCapabilities], ...] = (
    (r"gpt-image-1(?:$|-|\.5)", _FIXED),
    (r"chatgpt-image-", _FIXED),
    (r"gpt-image-2(?:$|-)", _FREE),
    (r"gpt-image-2\.5-", _FINER),
    (r"gpt-image-", _COMMON),
)

_MEDIA_TYPES = {"jpg": "image/jpeg", "svg": "image/svg+xml"}

_UNKNOWN_IMAGE = ImageCapabilities()


class _Image(msgspec.Struct, gc=False):
    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None


class _Reply(msgspec.Struct, gc=False):
    data: list[_Image] | None = None
    output_format: str | None = None
    model: str | None = None
    id: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode_images = msgspec.json.Decoder(_Reply).decode


def is_image_model(model: str) -> bool:
    """Whether a model belongs to this API, by OpenAI's own names."""
    return re.match(r"(?:gpt-image|chatgpt-image|dall-e)-", model) is not None


class OpenAIImages(msgspec.Struct, frozen=True):
    """OpenAI's images API, and compatible servers."""

    folder: str = "/v1/images"
    """The path before ``/generations`` and ``/edits``."""
    query: str = ""
    """The query after the path, with its question mark."""
    protocol: str = "openai"
    """The key of `provider_options` for all servers of this protocol."""

    def capabilities(self, model: str) -> ImageCapabilities:
        return next((row for pattern, row in _MODELS if re.match(pattern, model)), _UNKNOWN_IMAGE)

    def write(self, request: ImageRequest, provider: str) -> WireCall:
        fields: JsonObject = {"model": request.wire_model, "prompt": request.prompt}
        if request.n != 1:
            fields["n"] = request.n
        for name in ("size", "quality", "background", "output_format"):
            value: str | None = getattr(request, name)
            if value is not None:
                fields[name] = value
        if request.aspect_ratio is not None:  # only unlisted models get here; OpenAI's own models have only sizes
            fields["aspect_ratio"] = request.aspect_ratio
        merge_unpriced_options(fields, request, self.protocol, provider, {"n": "use n="})
        if not request.images:
            return WireCall(f"{self.folder}/generations{self.query}", encode_json(fields), once=True)
        return form_call(f"{self.folder}/edits{self.query}", fields, _files(request))

    def read(self, body: bytes, request: ImageRequest) -> ImageReply:
        reply = _decode_images(body)
        images = reply.data or []
        output_format = reply.output_format or request.output_format or "png"
        media_type = _MEDIA_TYPES.get(output_format, f"image/{output_format}")
        found = [image for image in (_image(each, media_type) for each in images) if image is not None]
        return ImageReply(found, read_usage(reply.usage), reply.model, reply.id)


def _files(request: ImageRequest) -> list[FormPart]:
    name = "image" if len(request.images) == 1 else "image[]"
    files = [file_part(name, block, str(number)) for number, block in enumerate(request.images)]
    if request.mask is not None:
        files.append(file_part("mask", request.mask, "mask"))
    return files


def _image(image: _Image, media_type: str) -> GeneratedImage | None:
    if image.b64_json:
        return from_base64(image.b64_json, media_type, image.revised_prompt)
    if image.url:
        return GeneratedImage(url=image.url, media_type=media_type, revised_prompt=image.revised_prompt)
    return None


def read_usage(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """The tokens of a usage in disjoint buckets; None without counts. Cached tokens are part of the input."""
    usage: Json = msgspec.json.decode(raw)
    if not isinstance(usage, dict):
        return None
    tokens, output = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    cost, upstream = reported_cost(
        usage.get("cost"), usage.get("is_byok"), usage.get("cost_details"), usage.get("cost_in_usd_ticks")
    )
    if not tokens and not output and not has_negative(raw):
        if cost is None:
            return None
        return TokenUsage(
            reported_cost_nano_usd=cost, upstream_cost_nano_usd=upstream, raw=msgspec.Raw(bytes(raw))
        )
    input_details, output_details = (
        _object(usage.get("input_tokens_details")),
        _object(usage.get("output_tokens_details")),
    )
    seen_before = _object(usage.get("cached_tokens_details"))
    read = _count(usage, "cached_tokens") or _count(input_details, "cached_tokens")
    source = source_of(
        *(
            (read, tokens),
            (_count(input_details, "image_tokens"), tokens),
            (_count(output_details, "image_tokens"), output),
        ),
        raw=raw,
    )
    cached = min(tokens, read)
    cached_images = min(cached, _count(seen_before, "cached_image_tokens"))
    images = max(0, min(tokens, _count(input_details, "image_tokens")) - cached_images)
    # If the output is not divided, the whole output is image tokens.
    drawn = min(output, _count(output_details, "image_tokens")) if output_details else output
    return TokenUsage(
        input_tokens=tokens - cached,
        output_tokens=output,
        cached_input_tokens=cached,
        details=details_of(
            image_input=min(images, tokens - cached), image_cache_read=cached_images, image_output=drawn
        ),
        source=source,
        raw=msgspec.Raw(bytes(raw)),
        reported_cost_nano_usd=cost,
        upstream_cost_nano_usd=upstream,
    )


def _count(counts: Mapping[str, Json], name: str) -> int:
    return reported_count(counts.get(name)) or 0


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def form_call(path: str, fields: JsonObject, files: Sequence[FormPart]) -> WireCall:
    """A request with a form: the fields as text or JSON, then the files. The request is billed, so it is never
    sent twice.
    """
    parts = [FormPart(name, _text(value).encode("utf-8", "replace")) for name, value in fields.items()]
    body, media_type = write_form([*parts, *files])
    return WireCall(path, body, headers={"content-type": media_type}, once=True)


def file_part(name: str, block: ImageBlock, filename: str) -> FormPart:
    media_type, data = input_bytes(block)
    return FormPart(name, data, f"{filename}.{media_type.removeprefix('image/')}", media_type)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()


# --- Videos ---

_SORA = VideoCapabilities(
    seconds=(4, 8, 12),
    default_seconds=4,
    sizes=("1280x720", "720x1280"),
    audio="always",
    variants=VIDEO_VARIANTS,
    cancels=True,
)
_PRO = msgspec.structs.replace(_SORA, sizes=("1280x720", "720x1280", "1024x1792", "1792x1024"))
_UNKNOWN_VIDEO = VideoCapabilities(variants=VIDEO_VARIANTS, cancels=True)

_STATUSES: dict[str, VideoStatus] = {
    "queued": "queued",
    "in_progress": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "pending": "queued",  # of gateways
    "processing": "in_progress",
    "succeeded": "completed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "expired": "failed",
}
LATEST = 20
"""The number of recent jobs that are searched for a job whose creation was not confirmed."""


class _Error(msgspec.Struct, gc=False):
    code: str | None = None
    message: str | None = None
    type: str | None = None
    param: str | None = None


class _Video(msgspec.Struct, gc=False):
    id: str
    status: str
    progress: float | None = None
    model: str | None = None
    seconds: str | float | None = None
    size: str | None = None
    prompt: str | None = None
    error: _Error | None = None
    created_at: float | None = None
    expires_at: float | None = None


class _List(msgspec.Struct, gc=False):
    data: list[msgspec.Raw]


_decode_video = msgspec.json.Decoder(_Video).decode
_decode_list = msgspec.json.Decoder(_List).decode


_PRICED = {"seconds": "use seconds=", "size": "use size=", "audio": "use audio=", "n": "one call makes one video"}


class OpenAIVideos(msgspec.Struct, frozen=True):
    """OpenAI's videos API, and compatible servers."""

    path: str = "/v1/videos"
    """The path of the collection of jobs."""
    protocol: str = "openai"
    """The key of `provider_options` for all servers of this protocol."""
    codes: Mapping[str, ErrorType] = {}

    def capabilities(self, model: str) -> VideoCapabilities:
        found = re.match(r"sora-2(-pro)?(?:$|-\d)", model)
        if found is None:
            return _UNKNOWN_VIDEO
        return _PRO if found[1] else _SORA

    def create(self, request: VideoRequest, provider: str) -> WireCall:
        fields: JsonObject = {"model": request.wire_model, "prompt": request.prompt}
        if request.seconds is not None:
            fields["seconds"] = str(request.seconds)
        if request.size is not None:
            fields["size"] = request.size
        if request.audio is not None and self.capabilities(request.wire_model).audio == "choice":
            fields["audio"] = request.audio  # only gateways have this field
        merge_unpriced_options(fields, request, self.protocol, provider, _PRICED)
        if request.first_frame is None:
            return WireCall(self.path, encode_json(fields), once=True)
        frame = file_part("input_reference", request.first_frame, "first-frame")
        return form_call(self.path, fields, [frame])

    def retrieve(self, job_id: str) -> WireCall:
        return WireCall(self._one(job_id), b"", method="GET")

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        return self._job(_decode_video(body), provider, model, terms)

    def _job(self, video: _Video, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        status = _STATUSES.get(video.status, "in_progress")
        warnings: tuple[CallWarning, ...] = ()
        if video.status not in _STATUSES:
            warning_text = f"the job's status is {video.status!r}, which is unknown. It is treated as in progress"
            warnings = (CallWarning(WarningCode.UNKNOWN_STATUS, warning_text),)
        named = video.model or model
        reported = VideoTerms(_seconds(video.seconds) or terms.seconds, video.size or terms.size, terms.audio)
        made = known_terms(reported, self.capabilities(named))
        return VideoJob(
            id=video.id,
            model=f"{provider}:{named}",
            provider=provider,
            status=status,
            progress=1.0 if status == "completed" else _progress(video.progress),
            error=self._error(video.error, provider) if status == "failed" else None,
            created_at=_moment(video.created_at),
            expires_at=_moment(video.expires_at),
            terms=made,
            usage=video_usage(made) if status == "completed" else None,
            warnings=warnings,
        )

    def content(self, job: VideoJob, variant: VideoVariant) -> str:
        query = "" if variant == "video" else f"?{urlencode({'variant': variant})}"
        return f"{self._one(job.id)}/content{query}"

    def delete(self, job_id: str) -> WireCall | None:
        return WireCall(self._one(job_id), b"", method="DELETE")

    def latest(self) -> WireCall | None:
        return WireCall(f"{self.path}?limit={LATEST}&order=desc", b"", method="GET")

    def read_latest(self, body: bytes, provider: str, request: VideoRequest) -> Sequence[VideoJob]:
        found = []
        for raw in _decode_list(body).data:
            video = _decode_video(raw)
            alike = (
                video.prompt == request.prompt
                and video.model == request.wire_model
                and request.seconds in (None, _seconds(video.seconds))
                and request.size in (None, video.size)
            )
            if alike:
                found.append(self._job(video, provider, request.wire_model, request.terms))
        return found

    def _error(self, error: _Error | None, provider: str) -> AdapterError:
        details = error or _Error()
        body = ErrorBody(type=details.type or "", code=details.code or "", message=details.message or "")
        found = error_without_status(body, self.codes, provider)
        found.retryable = False  # the job has failed permanently, so repeating the request does not help
        return found

    def _one(self, job_id: str) -> str:
        return f"{self.path}/{quote(job_id, safe='')}"


def _seconds(value: str | float | None) -> int | None:
    """A length in whole seconds, rounded up; None if it is not a number."""
    try:
        number = float(value) if value is not None else 0.0
    except ValueError:
        return None
    return -int(-number // 1) if 0 < number < 1e6 else None


def _progress(percent: float | None) -> float | None:
    return None if percent is None else min(1.0, max(0.0, percent / 100))


def _moment(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
