"""Videos: the contract of adapters, waiting for jobs, and downloads.

A video takes minutes, so it is a job of the provider. The job continues without this process. Creating a job costs
money. If the answer is lost, the request is not repeated. The provider's list is searched instead, and
`OutcomeUnknownError` is raised if no job certainly matches. All other requests may be repeated. A download goes to
a temporary file, which is checked and then renamed. The file must have the size and checksum that the server gave.
If the server gave neither, the structure of an MP4 is checked. For any other file, only a regular end of the
connection is required.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import anyio
import msgspec
from anyio import to_thread

from callboard.bus.errors import AdapterError, StreamError
from callboard.bus.files import UnfinishedFile
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from .config import RetryPolicy
from .contract import AttemptObserver, CallRequest
from .http.retry import USUAL_POLLING, PollPolicy, backoff_delay, is_passing, wait_for_job
from .requests.content import media_bytes

__all__ = [
    "VIDEO_VARIANTS",
    "PollPolicy",
    "VideoAdapter",
    "VideoCapabilities",
    "VideoContent",
    "VideoJob",
    "VideoRequest",
    "VideoStatus",
    "VideoTerms",
    "VideoVariant",
    "download_video",
    "download_video_to",
    "wait_for_video",
]

VideoStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
"""The status of a job, by Callboard's names. The last three are final."""

VideoVariant: TypeAlias = Literal["video", "thumbnail", "spritesheet"]
"""A file of a job: the video, an image of it, or a sheet of small images."""

VIDEO_VARIANTS: tuple[VideoVariant, ...] = get_args(VideoVariant)
"""All variants. A model's own variants are in its capabilities."""


class VideoCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model. None means unknown, and then any value is accepted."""

    seconds: tuple[int, ...] | None = None
    """The supported lengths in seconds."""
    default_seconds: int | None = None
    """The default length of a video in seconds."""
    sizes: tuple[str, ...] | None = None
    """The sizes, as ``WIDTHxHEIGHT``."""
    first_frame: bool = True
    """Whether an image can be given as the first frame."""
    first_frame_media_types: tuple[str, ...] | None = ("image/jpeg", "image/png", "image/webp")
    """The supported media types of the first frame."""
    audio: Literal["always", "never", "choice"] = "choice"
    """Whether videos have sound. ``choice`` leaves it to the request."""
    variants: tuple[VideoVariant, ...] = ("video",)
    """The files that can be downloaded."""
    cancels: bool = False
    """Whether a job can be deleted."""
    max_prompt_characters: int | None = None
    """The largest number of characters of a prompt."""


class VideoTerms(msgspec.Struct, frozen=True):
    """The length, size and sound of a job's video. None means unknown or chosen by the provider."""

    seconds: int | None = None
    """The video's length in seconds."""
    size: str | None = None
    """The size in pixels, as ``WIDTHxHEIGHT``."""
    audio: bool | None = None
    """Whether the video has sound."""
    key: str | None = None
    """The name of the key that owns the job; None for the adapter's own key."""


UNKNOWN_TERMS = VideoTerms()


class VideoRequest(CallRequest, frozen=True, kw_only=True):
    """One video of one model.

    Raises:
        ValueError: The first frame has no bytes.
    """

    prompt: str
    """The description of the video."""
    seconds: int | None = None
    """The video's length in seconds."""
    size: str | None = None
    """The size in pixels, as ``WIDTHxHEIGHT``."""
    first_frame: ImageBlock | None = None
    """The first image of the video, with its bytes."""
    audio: bool | None = None
    """Whether the video has sound."""

    def __post_init__(self) -> None:
        if self.first_frame is not None and media_bytes(self.first_frame) is None:
            raise ValueError("a first frame must be bytes. To read a file, use ImageBlock.from_path(path)")

    @property
    def terms(self) -> VideoTerms:
        """The terms that the request asks for."""
        return VideoTerms(self.seconds, self.size, self.audio)


class VideoJob(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job as the provider reports it."""

    id: str
    """The provider's id of the job."""
    model: str
    """The ``provider:name`` of the model."""
    provider: str
    """The adapter's name."""
    status: VideoStatus
    """The status of the job."""
    progress: float | None = None
    """The completed share, from 0 to 1; None if not reported."""
    error: AdapterError | None = None
    """The reason why the job failed."""
    created_at: int | None = None
    """The creation time in seconds since the epoch; None if not reported."""
    expires_at: int | None = None
    """The end of the time for downloads, in seconds since the epoch; None if not reported."""
    terms: VideoTerms = UNKNOWN_TERMS
    """The terms of the job."""
    usage: TokenUsage | None = None
    """The billed seconds of a completed job (see `adapters.operations.wires`); None before."""
    addresses: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The addresses of downloads by variant, if the job's id does not determine them."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings for the caller. An example is ``found_again``, for a job that was found although the answer to its
    creation was lost.
    """
    provider_request_id: str | None = None
    """The provider's id of the request, to report to its support."""

    @property
    def done(self) -> bool:
        """Whether the job has ended, well or not."""
        return self.status in ("completed", "failed", "cancelled")


class VideoContent(Protocol):
    """A download. Always close it."""

    @property
    def start(self) -> int:
        """The position of the first byte in the file, from 0."""
        ...

    @property
    def total(self) -> int | None:
        """The bytes of the whole file; None if not reported."""
        ...

    @property
    def media_type(self) -> str:
        """The file's media type; empty if not reported."""
        ...

    @property
    def etag(self) -> str:
        """The server's entity tag for this version of the file; empty if there is none."""
        ...

    @property
    def digest(self) -> tuple[str, bytes] | None:
        """The algorithm and the checksum of the whole file; None if not reported."""
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

    The adapter works alone: construct it, call it, close it. Calls may run concurrently on one event loop. A call
    raises only AdapterError and the loop's cancellation exception. `wait_for_video` polls a job until it ends.
    `download_video` resumes broken downloads.
    """

    name: str
    """The adapter's name, which is the prefix of its models' names."""

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        """Create a job. The request is repeated only if the provider certainly did not run it.

        If the answer is lost, the job is searched in the provider's list, if it has one.

        Args:
            request: The video to make.
            on_attempt: Called with each report about an attempt, as in `ProviderAdapter.complete`.

        Raises:
            CapabilityError: The model lacks an ability. Nothing was sent.
            OutcomeUnknownError: The answer was lost. A job may exist, but its id is unknown.
            AdapterError: The request failed for another reason.
        """
        ...

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = UNKNOWN_TERMS) -> VideoJob:
        """Request the current state of a job. The request takes at most 30 seconds.

        Args:
            job_id: The provider's id of the job.
            model: The job's model.
            terms: The known terms of the job, used if the provider doesn't report them.

        Raises:
            NotFoundError: The job does not exist.
            AdapterError: The request failed for another reason.
        """
        ...

    async def open_video(
        self, job: VideoJob, variant: VideoVariant = "video", *, start: int = 0, etag: str = ""
    ) -> VideoContent:
        """Start a download. Downloads are free.

        Args:
            job: The job, which must be completed.
            variant: The file of the job.
            start: The first byte to download. It is ignored if the server doesn't support it or the file's `etag`
                has changed.
            etag: The `etag` of an earlier download that this one resumes.

        Raises:
            InvalidRequestError: The job isn't completed.
            CapabilityError: The model has no such variant.
            StreamError: The server sends another part or another file.
            AdapterError: The request failed for another reason.
        """
        ...

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        """Delete a job and its files. Returns False if the job does not exist. Raises CapabilityError if the
        provider can't delete jobs.
        """
        ...

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        """The capabilities of a model, without the network. Raises CapabilityError if it makes no videos."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. A created job continues. Returns True if the request was in progress. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel all calls and release all connections. Idempotent."""
        ...


async def wait_for_video(
    retrieve: Callable[[], Awaitable[VideoJob]],
    job: VideoJob,
    *,
    policy: PollPolicy = USUAL_POLLING,
    random: Callable[[], float],
    on_look: Callable[[VideoJob], object] | None = None,
) -> VideoJob:
    """Wait for the end of a video's job; see `wait_for_job`."""
    return await wait_for_job(retrieve, job, policy=policy, random=random, on_look=on_look)


MOST_BREAKS = 6
"""The number of consecutive breaks without a new byte that a download survives."""

AFTER_BREAKS = RetryPolicy()

_UNSATISFIABLE = 416

_HASHED_AT_ONCE = 1 << 20


async def download_video(
    adapter: VideoAdapter,
    job: VideoJob,
    variant: VideoVariant = "video",
    *,
    random: Callable[[], float],
    policy: RetryPolicy = AFTER_BREAKS,
    on_progress: Callable[[int, int | None], object] | None = None,
) -> bytes:
    """Download the file of a completed job into memory.

    Args:
        adapter: The adapter of the job's provider.
        job: The job.
        variant: The file of the job.
        random: Returns numbers in [0, 1), for the jitter.
        policy: The waits after breaks. Seven breaks in a row without a new byte end the download.
        on_progress: Called with the bytes so far and the bytes in all (None if unknown).

    Raises:
        AdapterError: The download failed.
    """
    target = BytesIO()
    await _Download(adapter, job, variant, target, random, policy, on_progress).run()
    return target.getvalue()


async def download_video_to(
    adapter: VideoAdapter,
    job: VideoJob,
    path: str | Path,
    variant: VideoVariant = "video",
    *,
    random: Callable[[], float],
    policy: RetryPolicy = AFTER_BREAKS,
    on_progress: Callable[[int, int | None], object] | None = None,
) -> Path:
    """Download the file of a completed job to `path`. A file at this path is replaced.

    Only the file's owner can read it. A failed download leaves no file. The arguments are as for
    `download_video`.

    Raises:
        AdapterError: The download failed.
        OSError: The file can't be written.
    """
    target = Path(path)
    unfinished = await to_thread.run_sync(UnfinishedFile, target)
    try:
        await _Download(adapter, job, variant, unfinished.file, random, policy, on_progress).run()
        await to_thread.run_sync(unfinished.keep)
    except BaseException:
        unfinished.drop()
        raise
    return target


class _Download:
    """One download into an empty file, with all its connections."""

    def __init__(
        self,
        adapter: VideoAdapter,
        job: VideoJob,
        variant: VideoVariant,
        file: BinaryIO,
        random: Callable[[], float],
        policy: RetryPolicy,
        on_progress: Callable[[int, int | None], object] | None,
    ) -> None:
        self._adapter = adapter
        self._job = job
        self._variant: VideoVariant = variant
        self._file = file
        self._random = random
        self._policy = policy
        self._on_progress = on_progress
        self._size = 0
        self._total: int | None = None
        self._etag = ""
        self._digest: tuple[str, bytes] | None = None
        self._media_type = ""

    async def run(self) -> None:
        breaks = 0
        while True:
            before = self._size
            try:
                await self._continue()
                await to_thread.run_sync(self._check)
                return
            except AdapterError as error:
                breaks = 1 if self._size > before else breaks + 1
                if error.provider_status == _UNSATISFIABLE and before:
                    self._start_again()
                elif not is_passing(error):
                    raise
                if breaks > MOST_BREAKS:
                    raise
                hint = error.retry_after_seconds
                wait = backoff_delay(breaks - 1, self._policy, self._random()) if hint is None else hint
                await anyio.sleep(min(wait, self._policy.max_delay))

    async def _continue(self) -> None:
        content = await self._adapter.open_video(self._job, self._variant, start=self._size, etag=self._etag)
        try:
            changed = (content.total, content.etag) != (self._total, self._etag)
            if content.start != self._size or (self._size and changed):
                if content.start:
                    self._start_again()
                    raise StreamError("the file changed during the download")
                self._start_again()
            self._total, self._etag, self._media_type = content.total, content.etag, content.media_type
            self._digest = content.digest or self._digest
            while (piece := await content.chunk()) is not None:
                await to_thread.run_sync(self._file.write, piece)
                self._size += len(piece)
                if self._on_progress is not None:
                    self._on_progress(self._size, self._total)
        finally:
            await content.aclose()

    def _start_again(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._size, self._total, self._etag, self._digest = 0, None, "", None

    def _check(self) -> None:
        """Check that the file is complete. A short file is resumed, and a wrong file is downloaded again."""
        if self._total is not None and self._size < self._total:
            raise StreamError(f"the download ended after {self._size} of {self._total} bytes")
        reason = self._wrong()
        if reason is not None:
            self._start_again()
            raise StreamError(reason)

    def _wrong(self) -> str | None:
        if self._size == 0:
            return "the download is empty"
        if self._total is not None and self._size > self._total:
            return f"the download has {self._size} bytes instead of {self._total}"
        if self._digest is not None:
            algorithm, expected = self._digest
            if self._hash(algorithm) != expected:
                return f"the download's {algorithm} differs from the one of the server"
        elif self._total is None and self._variant == "video" and self._media_type in ("video/mp4", ""):
            self._file.flush()
            if not is_whole_mp4(self._file, self._size):
                return "the download is not a complete MP4 file, and the server sent no length"
        return None

    def _hash(self, algorithm: str) -> bytes:
        found = hashlib.new(algorithm, usedforsecurity=False)
        self._file.seek(0)
        while piece := self._file.read(_HASHED_AT_ONCE):
            found.update(piece)
        return found.digest()


_HEAD = 8

_LARGE = 16


def is_whole_mp4(file: BinaryIO, size: int) -> bool:
    """Whether an MP4 is complete: its boxes fill the file exactly and make it playable."""
    at = 0
    kinds: set[bytes] = set()
    while at < size:
        file.seek(at)
        head = file.read(_LARGE)
        if len(head) < _HEAD:
            return False
        length, kind = struct.unpack_from(">I4s", head)
        if length == 1:
            if len(head) < _LARGE:
                return False
            (length,) = struct.unpack_from(">Q", head, _HEAD)
        if length == 0:
            return False  # size 0 means "to the end of the file", so a cut can't be detected
        if length < _HEAD:
            return False
        kinds.add(kind)
        at += length
    return at == size and {b"ftyp", b"moov"} <= kinds
