"""What an adapter that makes videos is: the protocol, its requests and its jobs.

A video takes minutes, so it is a job: it is created, looked at until it is done, and then downloaded. The job is
the provider's: it goes on whether anybody waits or not, and its id is all that is needed to come back to it.

Creating one costs money, so a request whose answer was lost is never sent again by itself. Where the provider
lists its jobs, the one that was made all the same is looked for there; if it can't be told, that is an
`OutcomeUnknownError`. All else (looking, downloading, deleting) may be done any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from adapters.contract import AttemptObserver, CallWarning, RetryPolicy
from adapters.requests.media import media_bytes
from bus.errors import AdapterError
from bus.values.content import ImageBlock
from bus.values.json import Json
from bus.values.usage import TokenUsage

VideoStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
"""How a job stands, in our words; the last three are ends."""

VideoVariant: TypeAlias = Literal["video", "thumbnail", "spritesheet"]
"""What can be downloaded of a job: the video, an image of it, or many small ones on one sheet."""

VIDEO_VARIANTS: tuple[VideoVariant, ...] = get_args(VideoVariant)
"""All variants; which a model has is in its capabilities."""


class VideoCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can make. None: not known, so nothing is refused for it.

    seconds: the lengths that can be had, in seconds; default_seconds: where none is asked for. sizes: as
    ``WIDTHxHEIGHT``. first_frame: whether an image may be given as the first frame; first_frame_media_types: of
    what kind. audio: ``always`` and ``never`` leave no choice. variants: what can be downloaded. cancels: whether
    a job can be deleted. max_prompt_characters: of the prompt.
    """

    seconds: tuple[int, ...] | None = None
    default_seconds: int | None = None
    sizes: tuple[str, ...] | None = None
    first_frame: bool = True
    first_frame_media_types: tuple[str, ...] | None = ("image/jpeg", "image/png", "image/webp")
    audio: Literal["always", "never", "choice"] = "choice"
    variants: tuple[VideoVariant, ...] = ("video",)
    cancels: bool = False
    max_prompt_characters: int | None = None


class VideoTerms(msgspec.Struct, frozen=True):
    """What a job is to make, as far as it is known. None where nothing was asked for, and the provider has its own
    way.

    seconds: its length. size: ``WIDTHxHEIGHT``, in pixels. audio: whether with sound.
    """

    seconds: int | None = None
    size: str | None = None
    audio: bool | None = None


UNKNOWN_TERMS = VideoTerms()


class VideoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One video of one model.

    request_id: the caller's, passed to `cancel()` while it is created. prompt: what to film.
    model: with or without its ``provider:`` prefix; a name with a colon of its own needs it. seconds: its length.
    size: ``WIDTHxHEIGHT``. first_frame: an image with its bytes. audio: with or without sound. provider_options:
    merged into the request, by protocol or provider. max_retries, retry, timeout_seconds: of its creation, instead
    of the configuration's.
    Raises ValueError for a first frame that has a URL and no bytes.
    """

    request_id: str
    model: str
    prompt: str
    seconds: int | None = None
    size: str | None = None
    first_frame: ImageBlock | None = None
    audio: bool | None = None
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.first_frame is not None and media_bytes(self.first_frame) is None:
            raise ValueError("a first frame is given as bytes: ImageBlock.from_path(path) reads a file")

    @property
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model

    @property
    def terms(self) -> VideoTerms:
        """What is asked for, as the job's terms."""
        return VideoTerms(self.seconds, self.size, self.audio)


class VideoJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the provider describes it now. id: the provider's. model: ``provider:name``.

    progress: from 0 to 1; None if the provider doesn't say. error: why it failed. created_at, expires_at: seconds
    since the epoch, UTC; after the latter nothing can be downloaded; None if the provider doesn't say. terms: what
    it makes. usage: of a completed one, its seconds as a piece, see `adapters.videos.usage`; None before.
    addresses: where to download what, if that isn't told from the id. warnings: such as ``found_again``, of a job
    whose creation was never confirmed.
    """

    id: str
    model: str
    provider: str
    status: VideoStatus
    progress: float | None = None
    error: AdapterError | None = None
    created_at: int | None = None
    expires_at: int | None = None
    terms: VideoTerms = UNKNOWN_TERMS
    usage: TokenUsage | None = None
    addresses: Mapping[str, str] = msgspec.field(default_factory=dict)
    warnings: tuple[CallWarning, ...] = ()
    provider_request_id: str | None = None

    @property
    def done(self) -> bool:
        """Whether it has come to its end, good or bad."""
        return self.status in ("completed", "failed", "cancelled")


class VideoContent(Protocol):
    """What is being downloaded. Must be closed, whatever happens."""

    @property
    def start(self) -> int:
        """The position of its first byte, from 0."""
        ...

    @property
    def total(self) -> int | None:
        """The bytes of the whole; None if the server doesn't say."""
        ...

    @property
    def media_type(self) -> str:
        """Empty if the server doesn't say."""
        ...

    @property
    def etag(self) -> str:
        """What tells this file from a later one; empty if the server doesn't say."""
        ...

    @property
    def digest(self) -> tuple[str, bytes] | None:
        """The algorithm and the checksum of the whole; None if the server doesn't say."""
        ...

    async def chunk(self) -> bytes | None:
        """The next bytes; None at the end. Raises NetworkError when the connection breaks or stalls."""
        ...

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        ...


@runtime_checkable
class VideoAdapter(Protocol):
    """One provider's videos. Usable alone: construct, call, close. Calls may run side by side, on one event loop.

    Only AdapterError is ever raised by a call, besides the loop's cancellation. `wait_for_video` looks until a job
    is done, `download_video` copes with downloads that break. name: stands before the colon of its models' names.
    """

    name: str

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        """The new job. Each costs money, so the request is only sent again if surely nothing came of it; a job
        whose confirmation was lost is looked for, where the provider lists its jobs.

        Raises CapabilityError, before anything is sent, for what the model can't do; OutcomeUnknownError if there
        may be a job that nobody can name; other AdapterErrors. on_attempt: as in `ProviderAdapter.complete`.
        """
        ...

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = UNKNOWN_TERMS) -> VideoJob:
        """The job as it is now; asked once, for at most 30 s. terms: what is known of it, where the provider says
        less. Raises NotFoundError, other AdapterErrors.
        """
        ...

    async def open_video(
        self, job: VideoJob, variant: VideoVariant = "video", *, start: int = 0, etag: str = ""
    ) -> VideoContent:
        """Begin to download, from byte `start` on if the server can and the file still has that `etag`.

        It costs nothing. Raises InvalidRequestError if the job isn't completed, CapabilityError for a variant that
        the model hasn't, StreamError if the server sends something else than was asked for; other AdapterErrors.
        """
        ...

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        """Delete a job and what it made. False if there was none. Raises CapabilityError where there is no way."""
        ...

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        """What that model can make; no network. Raises CapabilityError if it makes no videos at all."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request; a job that was created goes on. True if it was running. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...
