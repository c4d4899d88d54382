"""`callboard image` and `callboard video`: media from a prompt, as files."""

from __future__ import annotations

import argparse
import mimetypes
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callboard.adapters.videos import VIDEO_VARIANTS, PollPolicy, VideoJob
from callboard.bus import CallboardError, ConfigurationError

from .. import Engine, ImageResult, VideoHandle
from ..operations.embeddings_and_images import ImageOptions
from .options import add_key, add_model, add_models_file, failing_as, flag, on_engine, print_warnings, repeated
from .sanitize import echo, note
from .screen import progress_bar
from .table import cost_text

if TYPE_CHECKING:
    from rich.progress import Progress


# --- Images ---


def add_image(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make an image from a prompt. With --edit, change an image or combine several. If the provider "
        "returns an address instead of bytes, print the address."
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the description of the image or of the change")
    add_model(parser)
    output = "write the image to FILE; several images are numbered"
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help=output)
    repeated(parser, "--edit", type=Path, metavar="FILE", help="change this image (repeatable)")
    parser.add_argument("--mask", type=Path, metavar="FILE", help="change only the transparent part of this PNG")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="make N images (default: 1)")
    parser.add_argument("--size", metavar="SIZE", help="set the size, such as 1024x1024 or a word of the provider")
    parser.add_argument("--aspect-ratio", metavar="RATIO", help="set the aspect ratio, such as 16:9")
    parser.add_argument("--quality", metavar="WORD", help="set the quality, such as low, medium, high")
    parser.add_argument("--background", metavar="WORD", help="set the background, such as transparent")
    parser.add_argument("--format", metavar="WORD", help="set the file format: png, jpeg, webp")
    add_models_file(parser)
    add_key(parser)
    parser.set_defaults(run=run_image)


def run_image(arguments: argparse.Namespace) -> int:
    async def work(engine: Engine) -> ImageResult:
        edited: list[Path] = arguments.edit
        model, options = arguments.model, _image_options(arguments)
        if edited:
            return await engine.edit_image(arguments.prompt, edited, mask=arguments.mask, model=model, **options)
        return await engine.generate_image(arguments.prompt, model=model, **options)

    if arguments.mask is not None and not arguments.edit:
        raise CallboardError("--mask needs an image: pass it with --edit")
    try:
        result = on_engine(arguments, work)
        _write_images(result, arguments.output)
    except (OSError, ValueError) as error:
        raise CallboardError(str(error)) from error
    print_warnings(result.warnings)
    note(f"{len(result.images)} of {result.operation}, {result.model}: {cost_text(result.cost)}")
    return 0


def _image_options(arguments: argparse.Namespace) -> ImageOptions:
    return {
        "n": arguments.n,
        "size": arguments.size,
        "aspect_ratio": arguments.aspect_ratio,
        "quality": arguments.quality,
        "background": arguments.background,
        "output_format": arguments.format,
        "key": arguments.key,
    }


def _write_images(result: ImageResult, output: Path) -> None:
    for number, image in enumerate(result.images, 1):
        path = output if len(result.images) == 1 else output.with_stem(f"{output.stem}-{number}")
        if image.data is None:
            echo(image.url or "")
            continue
        image.save(path)
        kind = mimetypes.guess_type(path.name)[0]
        other = "" if kind in (None, image.media_type) else f", which is {image.media_type}"
        size = "" if image.width is None else f", {image.width}x{image.height}"
        note(f"Written: {path}{size}{other}")


# --- Videos ---
# The provider continues a job if the command ends.


def add_video(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a video from a prompt, wait until it is done, and download it. Ctrl-C stops the command "
        "but not the job. Continue with --resume."
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the description of the video")
    add_model(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="download the video to FILE")
    parser.add_argument("--resume", metavar="ID", help="continue a job that was created before")
    flag(parser, "--no-wait", help="create the job, print its id, and do not wait")
    parser.add_argument("--seconds", type=int, metavar="N", help="set the length (default: that of the model)")
    parser.add_argument("--size", metavar="SIZE", help="set the size, such as 1280x720")
    parser.add_argument("--first-frame", type=Path, metavar="FILE", help="start with this image")
    parser.add_argument(
        "--audio", action=argparse.BooleanOptionalAction, help="make the video with or without sound"
    )
    parser.add_argument(
        "--variant",
        choices=VIDEO_VARIANTS,
        default="video",
        help="download the video, or another part of the result",
    )
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="poll at this interval (default: 2 to 15 seconds)"
    )
    add_models_file(parser)
    add_key(parser)
    parser.set_defaults(run=run_video, draws=lambda arguments: not arguments.no_wait and sys.stderr.isatty())


def run_video(arguments: argparse.Namespace) -> int:
    if (arguments.prompt is None) == (arguments.resume is None):
        raise ConfigurationError("callboard video needs a prompt, or --resume ID for an existing job")
    if arguments.output is None and not arguments.no_wait:
        raise ConfigurationError("callboard video needs -o FILE, or --no-wait")
    waiting = _Waiting(arguments)
    try:
        on_engine(arguments, waiting.run)
    except BaseException:
        waiting.say_how_to_resume()
        raise
    return 0


class _Waiting:
    """A command that waits for its result."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._handle: VideoHandle | None = None

    async def run(self, engine: Engine) -> None:
        handle = self._handle = await self._begin(engine)
        print_warnings(handle.warnings)
        if self._arguments.no_wait:
            echo(handle.id)
            return
        note(f"video {handle.id}, {handle.model}")
        output: Path = self._arguments.output
        with progress_bar() as drawn:
            bar = Bar(drawn)
            result = await handle.wait(on_progress=bar.looked)
            with failing_as(CallboardError, output):
                await handle.download(self._arguments.variant, to=output, on_progress=bar.loaded)
        length = "" if result.job.terms.seconds is None else f"{result.job.terms.seconds} s, "
        note(f"Written: {output}, {length}{result.job.model}: {cost_text(result.cost)}")

    async def _begin(self, engine: Engine) -> VideoHandle:
        arguments = self._arguments
        every = arguments.every
        polling = PollPolicy() if every is None else PollPolicy(first=every, longest=every, jitter=False)
        terms: dict[str, Any] = {name: getattr(arguments, name) for name in ("seconds", "size", "audio", "key")}
        if arguments.resume is not None:
            return await engine.resume_video(arguments.resume, arguments.model, polling=polling, **terms)
        try:
            return await engine.create_video(
                arguments.prompt,
                model=arguments.model,
                first_frame=arguments.first_frame,
                polling=polling,
                **terms,
            )
        except (OSError, ValueError) as error:
            raise CallboardError(str(error)) from error

    def say_how_to_resume(self) -> None:
        """If a job exists and continues, print to stderr how to resume it."""
        handle = self._handle
        if handle is None or handle.status in ("failed", "cancelled"):
            return
        goes_on = "is done" if handle.status == "completed" else "continues"
        words = ["callboard", "video", "--resume", handle.id, "--model", handle.model]
        if self._arguments.key is not None:
            words += ["--key", self._arguments.key]
        if self._arguments.output is not None:
            words += ["-o", str(self._arguments.output)]
        note()
        note(f"video {handle.id} {goes_on}. To continue: {shlex.join(words)}")


class Bar:
    """A progress bar for the job, and then for the download."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = bar.add_task("queued", total=None) if bar is not None else None

    def looked(self, job: VideoJob) -> None:
        self._show(job.status.replace("_", " "), job.progress or 0.0, None if job.progress is None else 1.0)

    def loaded(self, done: int, total: int | None) -> None:
        """Show the number of downloaded bytes."""
        self._show("downloading", done, total)

    def _show(self, description: str, completed: float, total: float | None) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=description, completed=completed, total=total)
