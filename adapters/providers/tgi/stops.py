"""Stop sequences. TGI sends them at the end of its text, and they are no part of the reply."""

from __future__ import annotations

from collections.abc import Sequence


class StopTrimmer:
    """Text in pieces goes through `feed`; whatever may be the beginning of a stop sequence is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that is safe to show."""
        text = self._held + text
        cut = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - cut :]
        return text[: len(text) - cut]

    def finish(self, *, stopped: bool) -> tuple[str, str | None]:
        """End the text.

        Args:
            stopped: Whether a stop sequence may have ended it.

        Returns:
            The rest of the text, and the stop sequence that ended it; None if none did.
        """
        held, self._held = self._held, ""
        if stopped:
            for stop in sorted(self._stops, key=len, reverse=True):
                if held.endswith(stop):
                    return held.removesuffix(stop), stop
        return held, None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning, or the whole, of a stop sequence."""
    return next((size for size in range(min(len(stop), len(text)), 0, -1) if stop.startswith(text[-size:])), 0)
