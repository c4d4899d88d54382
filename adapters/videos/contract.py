"""The contract of adapters that make videos: the protocol, its requests and its jobs.

A video takes minutes, so it is a job. It is created, looked at until it is done, and then downloaded. The job
belongs to the provider. It goes on whether anybody waits or not, and its id is enough to come back to it.

Creating a job costs money, so a request whose answer was lost is never sent again by itself. If the provider lists
its jobs, the job that was made all the same is looked for in that list. If it can't be found for certain, the
result is an `OutcomeUnknownError`. All other requests (looking, downloading, deleting) may be repeated any number
of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from callboard.adapters.requests.media import media_bytes
from callboard.bus.errors import AdapterError
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.usage import TokenUsage

from ..calls import CallRequest
from ..contract import AttemptObserver, CallWarning

VideoStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
"""The status of a job, in our words. The last three are ends."""

VideoVariant: TypeAlias = Literal["video", "thumbnail", "spritesheet"]
"""What can be downloaded of a job: the video, an image of it, or many small ones on one sheet."""

VIDEO_VARIANTS: tuple[VideoVariant, ...] = get_args(VideoVariant)
"""All variants. A model's own variants are in its capabilities."""


class VideoCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model. None is not known: nothing is refused for it."""

    seconds: tuple[int, ...] | None = None
    """The lengths that can be had, in seconds."""
    default_seconds: int | None = None
    """The length of a video in seconds, unless another is asked for."""
    sizes: tuple[str, ...] | None = None
    """The sizes, as ``WIDTHxHEIGHT``."""
    first_frame: bool = True
    """Whether an image may be given as the first frame."""
    first_frame_media_types: tuple[str, ...] | None = ("image/jpeg", "image/png", "image/webp")
    """The media types of such an image."""
    audio: Literal["always", "never", "choice"] = "choice"
    """Whether videos have sound. ``choice`` leaves it to the request."""
    variants: tuple[VideoVariant, ...] = ("video",)
    """What can be downloaded."""
    cancels: bool = False
    """Whether a job can be deleted."""
    max_prompt_characters: int | None = None
    """The most characters of a prompt."""


class VideoTerms(msgspec.Struct, frozen=True):
    """What a job is to make, as far as it is known. None where the choice is left to the provider."""

    seconds: int | None = None
    """The video's length in seconds."""
    size: str | None = None
    """The size in pixels, as ``WIDTHxHEIGHT``."""
    audio: bool | None = None
    """Whether the video has sound."""
    key: str | None = None
    """The name of the key whose account has the job; None for the adapter's own key."""


UNKNOWN_TERMS = VideoTerms()


class VideoRequest(CallRequest, frozen=True, kw_only=True):
    """One video of one model.

    Raises:
        ValueError: The first frame has a URL and no bytes.
    """

    prompt: str
    """What to film."""
    seconds: int | None = None
    """The video's length in seconds."""
    size: str | None = None
    """The size in pixels, as ``WIDTHxHEIGHT``."""
    first_frame: ImageBlock | None = None
    """An image to begin with, with its bytes."""
    audio: bool | None = None
    """Whether the video has sound."""

    def __post_init__(self) -> None:
        if self.first_frame is not None and media_bytes(self.first_frame) is None:
            raise ValueError("a first frame is given as bytes: ImageBlock.from_path(path) reads a file")

    @property
    def terms(self) -> VideoTerms:
        """What is asked for, as the job's terms."""
        return VideoTerms(self.seconds, self.size, self.audio)


class VideoJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the provider describes it now."""

    id: str
    """The provider's id of the job."""
    model: str
    """The ``provider:name`` of the model."""
    provider: str
    """The adapter's name."""
    status: VideoStatus
    """How the job stands."""
    progress: float | None = None
    """The share that is done, from 0 to 1; None if the provider doesn't say."""
    error: AdapterError | None = None
    """Why the job failed."""
    created_at: int | None = None
    """When the job was created, in seconds since the epoch; None if the provider doesn't say."""
    expires_at: int | None = None
    """The end of the time for downloading, in seconds since the epoch; None if the provider doesn't say."""
    terms: VideoTerms = UNKNOWN_TERMS
    """What the job makes."""
    usage: TokenUsage | None = None
    """The seconds of a completed job, as a piece (see `adapters.videos.usage`); None before."""
    addresses: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The addresses of downloads by variant, where the id doesn't tell them."""
    warnings: tuple[CallWarning, ...] = ()
    """What the caller should know, such as ``found_again`` of a job whose creation was never confirmed."""
    provider_request_id: str | None = None
    """The provider's id of the request, for its support."""

    @property
    def done(self) -> bool:
        """Whether the job has come to its end, good or bad."""
        return self.status in ("completed", "failed", "cancelled")


class VideoContent(Protocol):
    """A download. It must be closed, whatever happens."""

    @property
    def start(self) -> int:
        """The position of the first byte in the file, from 0."""
        ...

    @property
    def total(self) -> int | None:
        """The bytes of the whole file; None if the server doesn't say."""
        ...

    @property
    def media_type(self) -> str:
        """The file's media type; empty if the server doesn't say."""
        ...

    @property
    def etag(self) -> str:
        """The server's mark of this version of the file; empty if the server gives none."""
        ...

    @property
    def digest(self) -> tuple[str, bytes] | None:
        """The algorithm and the checksum of the whole file; None if the server doesn't say."""
        ...

    async def chunk(self) -> bytes | None:
        """The next bytes; None at the end.

        Raises:
            NetworkError: The connection broke or stalled.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        ...


@runtime_checkable
class VideoAdapter(Protocol):
    """One provider's videos.

    The adapter is usable alone: construct it, call it, close it. Calls may run side by side on one event loop. A
    call raises nothing but AdapterError and the loop's cancellation. `wait_for_video` looks until a job is done,
    `download_video` copes with downloads that break.
    """

    name: str
    """The adapter's name, which stands before the colon of its models' names."""

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        """The new job. Each costs money, so the request is only sent again if surely nothing came of it.

        A job whose confirmation was lost is looked for, where the provider lists its jobs.

        Args:
            request: What to make.
            on_attempt: Told of the attempts, as in `ProviderAdapter.complete`.

        Raises:
            CapabilityError: The model can't do what is asked. Nothing was sent.
            OutcomeUnknownError: There may be a job whose id is not known.
            AdapterError: The request failed for another reason.
        """
        ...

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = UNKNOWN_TERMS) -> VideoJob:
        """The job as it is now. The provider is asked once, for at most 30 seconds.

        Args:
            job_id: The provider's id of the job.
            model: The job's model.
            terms: What is known of the job, where the provider says less.

        Raises:
            NotFoundError: There is no such job.
            AdapterError: The request failed for another reason.
        """
        ...

    async def open_video(
        self, job: VideoJob, variant: VideoVariant = "video", *, start: int = 0, etag: str = ""
    ) -> VideoContent:
        """Begin to download. It costs nothing.

        Args:
            job: The job, which must be completed.
            variant: The file of the job.
            start: The first byte that is wanted. It has an effect if the server can begin there, and the file
                still has that `etag`.
            etag: The mark of the version that an earlier download began.

        Raises:
            InvalidRequestError: The job isn't completed.
            CapabilityError: The model has no such variant.
            StreamError: The server sends another part or another file.
            AdapterError: The request failed for another reason.
        """
        ...

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        """Delete a job and its files. False if there was no such job. Raises CapabilityError where there is no
        way.
        """
        ...

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        """What a model can make. No network is used. Raises CapabilityError if the model makes no videos."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. A job that was created goes on. True if the request was running. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...
