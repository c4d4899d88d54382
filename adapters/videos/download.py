"""Downloads that break off and go on. In the end the file is whole, or there is no file.

A file is written beside its target under another name, checked, and only then renamed. So a file at the target is
always whole. After a break the download asks for the rest. If the server can't send the rest, or the file has
changed since, the download begins anew.

A file is **whole** if it has the size and the checksum that the server said. If the server said neither, an MP4
must be whole by its own structure. For any other file there is nothing to check but the orderly end of the
connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import anyio
from anyio import to_thread

from callboard.adapters.http.retry import backoff_delay
from callboard.bus.errors import AdapterError, StreamError
from callboard.bus.private_file import UnfinishedFile

from ..config import RetryPolicy
from .contract import VideoAdapter, VideoContent, VideoJob, VideoVariant
from .mp4 import is_whole_mp4
from .waiting import is_passing

MOST_BREAKS = 6
"""So many in a row without a new byte end a download."""

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
    """The whole file of a completed job, in memory.

    Args:
        adapter: The adapter of the job's provider.
        job: The job.
        variant: The file of the job.
        random: Gives numbers in [0, 1), for the jitter.
        policy: The waits after breaks. Seven breaks in a row without a new byte end the download.
        on_progress: Called with the bytes so far and the bytes in all; None if the server doesn't say.

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
    """A completed job's file, which appears at `path` when it is whole, in place of any file that was there.

    The file's owner alone can read it. If the download fails, nothing new stands at `path`, nor beside it.

    Args:
        adapter: The adapter of the job's provider.
        job: The job.
        path: Where the file is to stand.
        variant: Which of its files.
        random: Gives numbers in [0, 1), for the jitter.
        policy: The waits after breaks; seven breaks in a row without a new byte end the download.
        on_progress: Told the bytes so far, and the bytes in all; None if the server doesn't say.

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
    """One download, over all its connections, into a file that begins empty."""

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
                await self._go_on()
                await to_thread.run_sync(self._check)
                return
            except AdapterError as error:
                breaks = 1 if self._size > before else breaks + 1
                if error.provider_status == _UNSATISFIABLE and before:
                    self._begin_anew()
                elif not is_passing(error):
                    raise
                if breaks > MOST_BREAKS:
                    raise
                hint = error.retry_after_seconds
                wait = backoff_delay(breaks - 1, self._policy, self._random()) if hint is None else hint
                await anyio.sleep(min(wait, self._policy.max_delay))

    async def _go_on(self) -> None:
        content = await self._adapter.open_video(self._job, self._variant, start=self._size, etag=self._etag)
        try:
            if content.start != self._size or self._is_other(content):
                if content.start:
                    self._begin_anew()
                    raise StreamError("the file has changed while it was downloaded")
                self._begin_anew()
            self._total, self._etag, self._media_type = content.total, content.etag, content.media_type
            self._digest = content.digest or self._digest
            while (piece := await content.chunk()) is not None:
                await to_thread.run_sync(self._file.write, piece)
                self._size += len(piece)
                if self._on_progress is not None:
                    self._on_progress(self._size, self._total)
        finally:
            await content.aclose()

    def _is_other(self, content: VideoContent) -> bool:
        """Whether the server's file is another than the one whose beginning is here."""
        if not self._size:
            return False
        return (content.total, content.etag) != (self._total, self._etag)

    def _begin_anew(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._size, self._total, self._etag, self._digest = 0, None, "", None

    def _check(self) -> None:
        """Require that the file is whole. A file that is short goes on, and a wrong file begins anew."""
        if self._total is not None and self._size < self._total:
            raise StreamError(f"the download ended after {self._size} of {self._total} bytes")
        said = self._wrong()
        if said is not None:
            self._begin_anew()
            raise StreamError(said)

    def _wrong(self) -> str | None:
        if self._size == 0:
            return "the download is empty"
        if self._total is not None and self._size > self._total:
            return f"the download has {self._size} bytes, and should have {self._total}"
        if self._digest is not None:
            algorithm, expected = self._digest
            if self._hash(algorithm) != expected:
                return f"the download's {algorithm} is not the one that the server gave"
        elif self._total is None and self._variant == "video" and self._media_type in ("video/mp4", ""):
            self._file.flush()
            if not is_whole_mp4(self._file, self._size):
                return "the download is not a whole MP4 file, and the server did not say how long it is"
        return None

    def _hash(self, algorithm: str) -> bytes:
        found = hashlib.new(algorithm, usedforsecurity=False)
        self._file.seek(0)
        while piece := self._file.read(_HASHED_AT_ONCE):
            found.update(piece)
        return found.digest()
