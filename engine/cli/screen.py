"""Writes to the terminal: errors in one line, log lines, progress, and replies as they arrive."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias, TypeVar

import anyio

from callboard import adapters
from callboard.bus import ConfigurationError, StepFinish, StreamReset, TurnComplete, errors

from .sanitize import note, one_line, sanitize

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.status import Status

    from callboard.bus.streams.events import TurnEvent


T = TypeVar("T")

LABEL_WIDTH = 17
PIPE_WIDTH = 1000  # wide enough that output for programs has no line breaks
_RUNS = re.compile(r"\n|[^\S\n]+|\S+")


@cache
def console_class() -> type[Console]:
    """rich's console class, for text from any source. Tables sanitize their own cells."""
    from rich.console import Console

    class SanitizedConsole(Console):
        def print(self, *objects: Any, **how: Any) -> None:
            super().print(*(sanitize(what) if isinstance(what, str) else what for what in objects), **how)

        def on_broken_pipe(self) -> None:
            raise  # the BrokenPipeError ends the command; rich itself would exit with code 1

    return SanitizedConsole


def require_rich() -> None:
    if find_spec("rich") is None:
        raise ConfigurationError(
            'the command line needs the package rich. Install it with: pip install "callboard[cli]"'
        )


def make_console(*, plain: bool = False) -> Console:
    """A console on stdout. It writes plain text on request, or if stdout is not a terminal."""
    require_rich()
    harmless_console = console_class()
    if plain:
        return harmless_console(force_terminal=False, no_color=True, highlight=False, markup=False)
    console = harmless_console(highlight=False, markup=False, color_system=color_system())
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    return console


def color_system() -> Literal["auto"] | None:
    """The colour setting for rich. NO_COLOR turns off colours, and bold and dim as well, which rich would keep."""
    return None if os.environ.get("NO_COLOR") else "auto"


def print_error(text: str) -> None:
    """Write one line to stderr. At a terminal, it is wrapped at words."""
    for line in folded(f"callboard: {' '.join(text.split())}", sys.stderr).splitlines():
        note(line)


def folded(line: str, out: TextIO, indent: int = 0) -> str:
    """Wrap a line at words for a terminal's width. For other output, the line is unchanged."""
    if not out.isatty():
        return line
    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return line
    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * (indent if indent < width // 2 else 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


class Flow:
    """Wraps streamed text into indented lines as the text arrives."""

    def __init__(self, indent: int, width: int | None, column: int = 0) -> None:
        self._indent = " " * indent
        self._width = width
        self._column = column
        self._gap = ""

    def feed(self, piece: str) -> str:
        """The text to write for one more piece. Blanks at its end are held back until the next word."""
        return "".join(self._run(run) for run in _RUNS.findall(piece))

    def _run(self, run: str) -> str:
        if run == "\n":
            self._column, self._gap = 0, ""
            return run
        if run.isspace():
            self._gap += run
            return ""
        gap, self._gap = self._gap, ""
        if self._column == 0:
            lead = self._indent + gap
        elif gap and self._width is not None and self._column + len(gap) + len(run) > self._width:
            self._column, lead = 0, "\n" + self._indent
        else:
            lead = gap
        self._column += len(lead.lstrip("\n")) + len(run)
        return lead + run


class Screen:
    """Writes the output of a command. Any thread may call its methods, unless a method names a thread."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._actions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._flow: Flow | None = None  # the wrapper of the current reply
        self._deferred: list[Callable[[], None]] = []  # lines that arrived during the current reply
        self._status: Status | None = None

    def show(self, *renderables: RenderableType, style: str | None = None) -> None:
        """Show a line, a table or another rich renderable. During a reply, it is shown after the reply."""
        self._actions.put(lambda: self._draw(lambda: self.console.print(*renderables, style=style)))

    def line(self, text: str = "", style: str | None = None, *, whole: bool = False) -> None:
        """Write one line. It is cut to the terminal's width, unless `whole` is True."""
        self._actions.put(lambda: self._draw(lambda: self._print_line(text, style, whole)))

    def begin_reply(self, label: str, style: str | None = None) -> None:
        """Start a reply with its label. `text` adds to it, and `end_reply` ends it."""
        self._actions.put(lambda: self._begin(label, style))

    def text(self, piece: str) -> None:
        self._actions.put(lambda: self._write(piece))

    def end_reply(self) -> None:
        self._actions.put(self._end)

    def busy(self, text: str) -> None:
        """Show a spinner until `idle`."""
        self._actions.put(lambda: self._busy(text))

    def idle(self) -> None:
        self._actions.put(self._idle)

    async def drawn(self) -> None:
        """Wait until all earlier output is on the screen. Use it only on an event loop."""
        done = anyio.Event()
        token = anyio.lowlevel.current_token()

        def tell() -> None:
            anyio.from_thread.run_sync(done.set, token=token)

        self._actions.put(tell)
        await done.wait()

    # --- The main thread ---

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function on a separate event loop, and draw the output until the function is done."""
        from anyio.from_thread import start_blocking_portal

        with start_blocking_portal("asyncio") as portal:
            return self.serve(portal.start_task_soon(function))

    def serve(self, future: Future[T]) -> T:
        """Draw the output until a task of an event loop is done. Call it on the main thread. Returns the task's
        result.
        """
        future.add_done_callback(lambda _: self._actions.put(None))
        with shown_by(self._log):
            try:
                while (action := self._actions.get()) is not None:
                    action()
                return future.result()
            except BaseException:
                future.cancel()
                raise
            finally:
                self._idle()
                self._end()

    def _log(self, line: str) -> None:
        self._actions.put(lambda: self._draw(lambda: note(line)))

    def _draw(self, draw: Callable[[], None]) -> None:
        if self._flow is None:
            draw()
        else:
            self._deferred.append(draw)

    def _print_line(self, text: str, style: str | None, whole: bool) -> None:
        if self.console.is_terminal and not whole:
            self.console.print(one_line(text), style=style, no_wrap=True, overflow="ellipsis")
        else:
            self.console.print(one_line(text), style=style, soft_wrap=True)

    def _begin(self, label: str, style: str | None) -> None:
        self._end()
        self._raw(one_line(label), style)
        width = self.console.width - 1 if self.console.is_terminal else None
        self._flow = Flow(len(label), width, column=len(label))

    def _write(self, piece: str) -> None:
        if self._flow is not None:
            self._raw(self._flow.feed(sanitize(piece)))

    def _raw(self, text: str, style: str | None = None) -> None:
        if text:
            self.console.print(text, end="", style=style, soft_wrap=True)
            self.console.file.flush()

    def _end(self) -> None:
        if self._flow is not None:
            self._flow = None
            self.console.print()
            deferred, self._deferred = self._deferred, []
            for draw in deferred:
                draw()

    def _busy(self, text: str) -> None:
        if self.console.is_terminal:
            self._status = self.console.status(one_line(text))
            self._status.start()
        else:
            self.console.print(text)

    def _idle(self) -> None:
        status, self._status = self._status, None
        if status is not None:
            status.stop()


class ReplyWriter:
    """Shows a turn's events on a screen."""

    def __init__(self, screen: Screen, label: str, *, before: Callable[[], None] = lambda: None) -> None:
        self._screen = screen
        self._label = label
        self._before = before
        self._writing: str | None = None  # the style of the line that is being written

    def feed(self, event: TurnEvent | StreamReset[TurnEvent]) -> None:
        match event:
            case adapters.MessageStart():
                self._before()
            case adapters.ThinkingDelta():
                if self._screen.console.is_terminal:
                    self._write(event.text, "dim")
            case adapters.TextDelta():
                self._write(event.text)
            case adapters.ToolUseStart():
                self._write(f"calls {event.tool_name} with ")
            case adapters.ToolUseInputDelta():
                self._write(event.partial_json)
            case adapters.ToolUseEnd():
                self._write(" (cut off)" if event.incomplete else "")
            case adapters.MessageComplete() | StepFinish() | TurnComplete():
                self.end()
            case _:
                pass

    def end(self) -> None:
        """End the current line, if there is one. A second call does nothing."""
        if self._writing is not None:
            self._writing = None
            self._screen.end_reply()

    def _write(self, text: str, style: str = "green") -> None:
        if text and self._writing != style:
            self.end()
            self._writing = style
            self._screen.begin_reply("thinks> " if style == "dim" else self._label, style)
        self._screen.text(text)


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A progress bar during the context; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    require_rich()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, color_system=color_system()), transient=True) as bar:
        yield bar


# --- Log lines ---

Sink: TypeAlias = Callable[[str], None]

_sinks: list[Sink] = [note]


def configure() -> None:
    """Configure logging for the whole process."""
    root = logging.getLogger()
    if not any(isinstance(there, _Lines) for there in root.handlers):
        root.addHandler(_Lines(logging.WARNING))


@contextmanager
def shown_by(sink: Sink) -> Iterator[None]:
    """A context in which log lines are sent to `sink`, which may be called from any thread."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)


class _Lines(logging.Handler):
    """Shows each record in one line, without its traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        if _is_wrong_configuration(record):
            return
        try:
            text = f"{record.levelname.lower()}: {record.name.removeprefix('callboard.')}: {record.getMessage()}"
            _sinks[-1](text)
        except Exception:  # stderr is closed, or the arguments don't fit the format; the command must continue
            self.handleError(record)


def _is_wrong_configuration(record: logging.LogRecord) -> bool:
    """Whether an actor could not start because of its configuration. The command fails with the same error."""
    fields = getattr(record, "callboard", {})
    return fields.get("event") == "actor.crashed" and fields.get("error", "").startswith("ConfigurationError: ")


# --- Failed calls ---


def exit_code(error: errors.AdapterError) -> int:
    """2 for a wrong key or model, which the user can correct; 1 for any other failure."""
    is_mine = isinstance(error, errors.AuthError | errors.NotFoundError) and not isinstance(
        error, errors.AccessDeniedError
    )
    return 2 if is_mine else 1


def error_text(error: errors.AdapterError) -> str:
    """The error in one line, with advice."""
    provider_text = f" of {error.provider}" if error.provider else ""
    hint = advice(error)
    return f"{type(error).__name__}{provider_text}: {error}{f' ({hint})' if hint else ''}"


def advice(error: errors.AdapterError) -> str:
    """Advice about a failure; empty if the error's own text has better advice."""
    match error:
        case errors.AccessDeniedError():
            return "the key is valid but lacks permission: use another with --key, or request the permission"
        case errors.AuthError():
            return f"{_new_key(error.provider)}; `callboard doctor` tests it"
        case errors.NotFoundError():
            return "list models with `callboard models`, and choose one with -m"
        case errors.QuotaExceededError():
            return "add credit to the account, or choose a model of another provider with -m"
        case errors.RateLimitError():
            return "wait a moment, or choose a model of another provider with -m"
        case errors.ContextOverflowError() | errors.PromptTooLongError():
            return "shorten the prompt, or choose a model with a larger window with -m"
        case errors.CapabilityError():
            return "see the features with `callboard models`, and choose another model with -m"
        case errors.RequestTimeoutError():
            return "try again, or allow more time: -o timeout=600"
        case errors.NetworkError():
            return "check the connections with `callboard doctor`"
        case _:
            return ""


def _new_key(provider: str | None) -> str:
    """Advice to set another key for an adapter."""
    from callboard.adapters.provider import providers

    variables = next((each.key_variables for each in providers() if each.name == provider), ())
    if not variables:
        return "put a valid key into the variable that models.yaml names"
    if os.environ.get(variables[0]):  # The environment takes precedence over the file of keys.
        return f"put a valid key into {variables[0]}"
    return f"store a valid one with `callboard keys set {provider}`"
