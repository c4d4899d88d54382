"""Videos as Google's long-running operations (``predictLongRunning``).

A job's id is the operation's name. A completed one has the address of a file, which needs the key (google-genai
3.4.0). Veo offers 4, 6 or 8 seconds (5 to 8 before Veo 3), 16:9 and 9:16, and sound since Veo 3 (public pages).
The Gemini API's Veo models ended on 2026-10-22 (Google's deprecations); gateways continue the protocol. An
operation reports neither progress nor length. It is unknown whether one can be stopped, so there is no deletion.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.operations.media_wire import input_bytes, known_terms, ratio_of, read_size, video_usage
from callboard.adapters.requests.host_options import merge_own_options
from callboard.adapters.videos import (
    VideoCapabilities,
    VideoJob,
    VideoRequest,
    VideoStatus,
    VideoTerms,
    VideoVariant,
)
from callboard.bus.errors import AdapterError, CapabilityError, ContentFilterError
from callboard.bus.values.base import Json, JsonObject

from ...refusals.classify import error_without_status, read_error_value
from ...requests.text import encode_json
from .data import CODES
from .request import model_name, path_of

_SIZES = ("1280x720", "720x1280", "1920x1080", "1080x1920")
_VEO_3 = VideoCapabilities(seconds=(4, 6, 8), default_seconds=8, sizes=_SIZES, audio="always")
_VEO_3_1 = msgspec.structs.replace(_VEO_3, sizes=(*_SIZES, "3840x2160", "2160x3840"))
_VEO_2 = msgspec.structs.replace(_VEO_3, seconds=(5, 6, 7, 8), sizes=_SIZES[:2], audio="never")

_MODELS: tuple[tuple[str, VideoCapabilities], ...] = (
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


_decode = msgspec.json.Decoder(_Operation).decode


class GeminiVideos(msgspec.Struct, frozen=True):
    version: str = "v1beta"
    """The API's version in the path."""

    def capabilities(self, model: str) -> VideoCapabilities:
        name = model.rpartition("/")[2]
        return next((row for pattern, row in _MODELS if re.match(pattern, name)), _UNKNOWN)

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
        merge_own_options(parameters, request, "gemini", provider)
        body: JsonObject = {"instances": [instance], "parameters": parameters}
        path = path_of(self.version, model_name(request.wire_model), "predictLongRunning")
        return WireCall(path, encode_json(body), once=True)

    def retrieve(self, job_id: str) -> WireCall:
        return WireCall(path_of(self.version, job_id), b"", method="GET")

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        operation = _decode(body)
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
    """The wire's form of a size: a ratio, and the shorter side's name. Raises CapabilityError."""
    found = read_size(size)
    resolution = None if found is None else _RESOLUTIONS.get(min(found))
    if found is None or resolution is None:
        raise CapabilityError(f"the size {size!r} has no name here: write 1280x720, 1920x1080 or 3840x2160")
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
        return None, ContentFilterError(f"no video was made: {words}", provider_message=words)
    return None, AdapterError(f"{provider}: the operation is done and holds neither a video nor an error")
