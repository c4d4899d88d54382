"""The output of `callboard ask`: stdout in its own thread, signals, code blocks, the usage line."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Literal, NamedTuple, TypeAlias

from callboard.adapters import TokenUsage
from callboard.bus import Cost

from .common.figures import cost_text
from .common.harmless import harmless

# --- Standard output ---
# It has a thread of its own, so that neither a full pipe nor a stopped terminal blocks the call. When the reader
# goes away, the call is cancelled immediately. Thoughts use the same thread to write to standard error, so that a
# terminal shows both in order.

Output: TypeAlias = Literal["stdout", "stderr"]


class Outlet:
    """Where a reply goes, piece by piece.

    At a terminal it is written without what could steer it; a file or a pipe gets the text as it came.
    """

    def __init__(self, on_closed: Callable[[], object]) -> None:
        self.closed = False
        """Whether the reader has gone, or the output can't be written."""
        self.last = ""
        """The last character that was given."""
        self._error: OSError | None = None
        self._on_closed = on_closed
        self._clean = harmless if sys.stdout.isatty() else _as_it_is
        self._shows_thoughts = sys.stderr.isatty()
        self._dim, self._undim = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        self._thinks = False  # the line that is being written
        self._pieces: SimpleQueue[tuple[Output, str] | None] = SimpleQueue()
        self._thread = Thread(target=self._write_all, name="callboard-stdout", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """More of the reply. It returns immediately."""
        if text:
            self.end_thought()
            self.last = text[-1]
            self._pieces.put(("stdout", text))

    def think(self, text: str) -> None:
        """More of what the model thinks. Only a terminal shows it. It returns immediately."""
        if text and self._shows_thoughts:
            begin = "" if self._thinks else self._dim
            self._thinks = True
            self._pieces.put(("stderr", begin + harmless(text)))

    def end_thought(self) -> None:
        """End the line of a thought, if one is being written."""
        if self._thinks:
            self._thinks = False
            self._pieces.put(("stderr", f"{self._undim}\n"))

    def end_line(self) -> None:
        """End the line that is being written, if one is."""
        if self.last not in ("", "\n"):
            self.write("\n")

    def finish(self) -> None:
        """Return when everything is written, or the reader has gone."""
        self.end_thought()
        self._pieces.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            output, text = piece
            if output == "stderr":
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
                    sys.stderr.flush()
                continue
            if self.closed:
                continue
            try:
                sys.stdout.write(self._clean(text))
                sys.stdout.flush()
            except (OSError, ValueError) as error:  # ValueError: stdout never was open
                self._error = error if isinstance(error, OSError) else BrokenPipeError()
                self.closed = True
                self._on_closed()


def _as_it_is(text: str) -> str:
    return text


ENDING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `kill` and `timeout` send."""


@contextmanager
def first_signal(tell: Callable[[int], object]) -> Iterator[None]:
    """Report the first signal, which then does nothing else.

    A second one has its usual effect. On the main thread only.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        restore()
        tell(number)

    for number in ENDING:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


Which: TypeAlias = Literal["first", "last"]

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)")


def code_blocks(text: str) -> list[str]:
    """The code of each fenced block, as CommonMark has them: a block ends with a fence of the same character that
    is at least as long, or with the text.
    """
    found: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        match = _FENCE.fullmatch(line.rstrip("\r\n"))
        if not fence:
            if match is not None and not ("`" in match["info"] and match["fence"][0] == "`"):
                fence = match["fence"]
        elif match is not None and match["fence"].startswith(fence) and not match["info"].strip():
            found.append("".join(lines))
            lines, fence = [], ""
        else:
            lines.append(line)
    return [*found, "".join(lines)] if fence else found


def extracted(text: str, which: Which) -> str | None:
    """The first or the last block of code; None if there is none."""
    blocks = code_blocks(text)
    return (blocks[0] if which == "first" else blocks[-1]) if blocks else None


class Pace(NamedTuple):
    """When a reply came, in seconds on one clock."""

    asked: float
    first: float | None  # when its first piece came; None if it came whole
    ended: float  # when its last piece came


def usage_line(model: str, usage: TokenUsage, cost: Cost | None, pace: Pace, *, replies: int = 1) -> str:
    parts = [f"{usage.total_input_tokens:,} in{_cached(usage)}", f"{usage.output_tokens:,} out"]
    if (rate := per_second(usage.output_tokens, pace, replies)) is not None:
        parts.append(f"{rate:,.0f} tokens a second" if rate >= 10 else f"{rate:.1f} tokens a second")
    if pace.first is not None:
        parts.append(f"the first after {pace.first - pace.asked:.1f} s")
    parts.append(f"{pace.ended - pace.asked:.1f} s in all")
    parts.append(cost_text(cost))
    calls = f" in {replies} calls" if replies > 1 else ""
    return f"{model}{calls}: {', '.join(parts)}"


def per_second(tokens: int, pace: Pace, replies: int) -> float | None:
    """The tokens a second once the reply had started.

    None if it can't be measured: the reply came whole, or in no time, or tools ran in the middle of it.
    """
    if pace.first is None or replies > 1 or tokens <= 1 or pace.ended <= pace.first:
        return None
    return (tokens - 1) / (pace.ended - pace.first)


def _cached(usage: TokenUsage) -> str:
    return f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
