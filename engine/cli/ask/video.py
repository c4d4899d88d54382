"""`callboard video`: a video from a prompt, as a file. Its job goes on whatever becomes of the command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import anyio

from adapters.videos import VIDEO_VARIANTS, PollPolicy, VideoJob
from bus import CallboardError, ConfigurationError
from engine import Engine, VideoHandle, load_registry

from ..common.harmless import note, say
from ..common.money import cost_text
from ..common.screen import make_console


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "video",
        help="a video from a prompt, as a file",
        description="Makes a video of what the prompt says, waits until it is done, and downloads it. Ctrl-C ends "
        "the waiting and not the job; --resume comes back to it.",
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="what to show")
    parser.add_argument("--model", required=True, metavar="NAME", help="by any of its names")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to download it to")
    parser.add_argument("--resume", metavar="ID", help="go on with a job that was created before")
    parser.add_argument("--no-wait", action="store_true", help="only create it, and print its id")
    parser.add_argument("--seconds", type=int, metavar="N", help="its length (default: the model's own)")
    parser.add_argument("--size", metavar="SIZE", help="such as 1280x720")
    parser.add_argument("--first-frame", type=Path, metavar="FILE", help="an image to begin with")
    parser.add_argument("--audio", action=argparse.BooleanOptionalAction, help="with or without sound")
    parser.add_argument("--variant", choices=VIDEO_VARIANTS, default="video", help="what to download")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="look so often (default: 2 to 15 seconds)")
    parser.add_argument(
        "--models-file", type=Path, metavar="PATH", help="models.yaml (default: $CALLBOARD_HOME/models.yaml)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    if (arguments.prompt is None) == (arguments.resume is None):
        raise ConfigurationError("callboard video takes a prompt, or --resume ID of a job that was created before")
    if arguments.output is None and not arguments.no_wait:
        raise ConfigurationError("callboard video needs -o FILE, or --no-wait")
    registry = load_registry(arguments.models_file)
    waiting = _Waiting(arguments)

    async def work() -> None:
        async with Engine(models=registry) as engine:
            await waiting.run(engine)

    try:
        anyio.run(work)
    except BaseException:
        waiting.say_how_to_resume()
        raise
    return 0


class _Waiting:
    """One command, as far as it has come."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._handle: VideoHandle | None = None

    async def run(self, engine: Engine) -> None:
        """Raises CallboardError."""
        handle = self._handle = await self._begin(engine)
        for warning in handle.warnings:
            note(f"{warning.code}: {warning.message}")
        if self._arguments.no_wait:
            say(handle.id)
            return
        note(f"video {handle.id}, {handle.model}")
        output: Path = self._arguments.output
        with shown_progress() as bar:
            result = await handle.wait(on_progress=bar.looked)
            try:
                await handle.download(self._arguments.variant, to=output, on_progress=bar.loaded)
            except OSError as error:
                raise CallboardError(f"{output}: {error.strerror or error}") from error
        length = "" if result.job.terms.seconds is None else f"{result.job.terms.seconds} s, "
        note(f"Written: {output}, {length}{result.job.model}: {cost_text(result.cost)}")

    async def _begin(self, engine: Engine) -> VideoHandle:
        arguments = self._arguments
        every = arguments.every
        polling = PollPolicy() if every is None else PollPolicy(first=every, longest=every, jitter=False)
        if arguments.resume is not None:
            return await engine.resume_video(
                arguments.resume,
                arguments.model,
                seconds=arguments.seconds,
                size=arguments.size,
                audio=arguments.audio,
                polling=polling,
            )
        try:
            return await engine.create_video(
                arguments.prompt,
                model=arguments.model,
                seconds=arguments.seconds,
                size=arguments.size,
                first_frame=arguments.first_frame,
                audio=arguments.audio,
                polling=polling,
            )
        except (OSError, ValueError) as error:
            raise CallboardError(str(error)) from error

    def say_how_to_resume(self) -> None:
        """On stderr, if there is a job that isn't lost."""
        handle = self._handle
        if handle is None or handle.status in ("failed", "cancelled"):
            return
        goes_on = "is done" if handle.status == "completed" else "goes on"
        words = ["callboard", "video", "--resume", handle.id, "--model", handle.model]
        if self._arguments.output is not None:
            words += ["-o", str(self._arguments.output)]
        note()
        note(f"video {handle.id} {goes_on}; to come back to it: {shlex.join(words)}")


class Bar(Protocol):
    """What shows how far it is."""

    def looked(self, job: VideoJob) -> None: ...
    def loaded(self, done: int, total: int | None) -> None: ...


class _NoBar:
    def looked(self, job: VideoJob) -> None:
        pass

    def loaded(self, done: int, total: int | None) -> None:
        pass


@contextmanager
def shown_progress() -> Iterator[Bar]:
    """A bar on stderr, if that is a terminal: of the job, and then of the download."""
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    make_console()  # says what is missing, if rich is
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("queued", total=None)

        class Drawn:
            def looked(self, job: VideoJob) -> None:
                known = job.progress is not None
                drawn.update(
                    task,
                    description=job.status.replace("_", " "),
                    total=1.0 if known else None,
                    completed=job.progress or 0.0,
                )

            def loaded(self, done: int, total: int | None) -> None:
                drawn.update(task, description="downloading", completed=done, total=total)

        yield Drawn()
