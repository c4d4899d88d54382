"""Reasoning that stands between tags in the text itself."""

from __future__ import annotations

from collections.abc import Iterator


class ThinkTags:
    """Finds ``<think>…</think>`` at the start of a text that comes in pieces.

    `feed()` and `flush()` give pairs (is it reasoning, text). Whatever may be the beginning of a tag is held back
    until it is decided. Tags later in the text are text.

    Args:
        opened: Whether the reply begins inside the tags.
    """

    _OPEN = "<think>"
    _CLOSE = "</think>"

    def __init__(self, *, opened: bool) -> None:
        self._held = ""
        self._opened = opened
        self._state = "start"

    def feed(self, text: str) -> list[tuple[bool, str]]:
        if self._state == "text":
            return [(False, text)]
        return list(self._read(self._held + text))

    def flush(self) -> list[tuple[bool, str]]:
        """What was held back, at the end of the reply."""
        held, self._held = self._held, ""
        thinking = self._state == "thinking" or (self._state == "start" and self._opened)
        return [(thinking, held)] if held and self._state != "gap" else []

    def _read(self, text: str) -> Iterator[tuple[bool, str]]:
        self._held = ""
        if self._state == "start":
            start = text.lstrip()
            if len(start) < len(self._OPEN) and self._OPEN.startswith(start):
                self._held = text
                return
            inside = start.startswith(self._OPEN)
            self._state = "thinking" if inside or self._opened else "text"
            text = start[len(self._OPEN) :] if inside else text
        if self._state == "thinking":
            thought, found, rest = text.partition(self._CLOSE)
            if not found:
                cut = _overlap(text, self._CLOSE)
                self._held = text[len(text) - cut :]
                thought = text[: len(text) - cut]
            if thought:
                yield True, thought
            if not found:
                return
            self._state, text = "gap", rest
        if self._state == "gap":
            text = text.lstrip()  # the blank lines between reasoning and answer belong to neither
            self._state = "text" if text else "gap"
        if text:
            yield False, text


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-size:])), 0)
