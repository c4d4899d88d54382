"""OpenAI's videos API, ``/v1/videos``, and compatible servers.

Limits from OpenAI's own package (3.54.0), sizes of each model from its guide. OpenAI's own service ended on
2026-09-24; gateways use the protocol for other, unlisted models, which have no limits here. A first frame makes
the request a form. Deletion is documented for ended jobs only. A job's length is a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

import msgspec

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.operations.media_wire import known_terms, video_usage
from callboard.adapters.requests.host_options import merge_own_options
from callboard.adapters.videos import (
    VIDEO_VARIANTS,
    VideoCapabilities,
    VideoJob,
    VideoRequest,
    VideoStatus,
    VideoTerms,
    VideoVariant,
)
from callboard.bus.errors import AdapterError, WarningCode
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import CallWarning

from ..refusals.classify import ErrorBody, ErrorType, error_without_status
from ..requests.text import encode_json
from .openai_images import file_part, form_call

_SORA = VideoCapabilities(
    seconds=(4, 8, 12),
    default_seconds=4,
    sizes=("1280x720", "720x1280"),
    audio="always",
    variants=VIDEO_VARIANTS,
    cancels=True,
)
_PRO = msgspec.structs.replace(_SORA, sizes=("1280x720", "720x1280", "1024x1792", "1792x1024"))
_UNKNOWN = VideoCapabilities(variants=VIDEO_VARIANTS, cancels=True)

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
"""The number of jobs that are searched for an unconfirmed one."""


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


_decode = msgspec.json.Decoder(_Video).decode
_decode_list = msgspec.json.Decoder(_List).decode


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
            return _UNKNOWN
        return _PRO if found[1] else _SORA

    def create(self, request: VideoRequest, provider: str) -> WireCall:
        fields: JsonObject = {"model": request.wire_model, "prompt": request.prompt}
        if request.seconds is not None:
            fields["seconds"] = str(request.seconds)
        if request.size is not None:
            fields["size"] = request.size
        if request.audio is not None and self.capabilities(request.wire_model).audio == "choice":
            fields["audio"] = request.audio  # OpenAI has no such field: for gateways
        merge_own_options(fields, request, self.protocol, provider)
        if request.first_frame is None:
            return WireCall(self.path, encode_json(fields), once=True)
        frame = file_part("input_reference", request.first_frame, "first-frame")
        return form_call(self.path, fields, [frame])

    def retrieve(self, job_id: str) -> WireCall:
        return WireCall(self._one(job_id), b"", method="GET")

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        return self._job(_decode(body), provider, model, terms)

    def _job(self, video: _Video, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        status = _STATUSES.get(video.status, "in_progress")
        warnings: tuple[CallWarning, ...] = ()
        if video.status not in _STATUSES:
            said_so = f"the job's status is {video.status!r}, which is none of the protocol: taken as in progress"
            warnings = (CallWarning(WarningCode.UNKNOWN_STATUS, said_so),)
        named = video.model or model
        said = VideoTerms(_seconds(video.seconds) or terms.seconds, video.size or terms.size, terms.audio)
        made = known_terms(said, self.capabilities(named))
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
            video = _decode(raw)
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
        said = error or _Error()
        body = ErrorBody(type=said.type or "", code=said.code or "", message=said.message or "")
        found = error_without_status(body, self.codes, provider)
        found.retryable = False  # the job has ended, and another request does not change it
        return found

    def _one(self, job_id: str) -> str:
        return f"{self.path}/{quote(job_id, safe='')}"


def _seconds(value: str | float | None) -> int | None:
    """A length in whole seconds, rounded up; None if it is no number."""
    try:
        number = float(value) if value is not None else 0.0
    except ValueError:
        return None
    return -int(-number // 1) if 0 < number < 1e6 else None


def _progress(percent: float | None) -> float | None:
    return None if percent is None else min(1.0, max(0.0, percent / 100))


def _moment(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
