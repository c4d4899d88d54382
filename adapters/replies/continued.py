"""The rest of a reply whose text broke off, joined to what had come: readers see one message, and each word once.

    echoing    the provider may repeat the beginning; it is held back until that is certain either way
    spacing    the white space at the end of the beginning was not sent, so the rest may begin with it once more
    joining    the rest's first text goes on in the block that broke off
    apart      everything else is as in any reply

White space that came before the break stands. Of the rest, what repeats it is left out, and nothing else.
"""

from __future__ import annotations

import copy

from callboard.bus.values.json import JsonObject

from .assembler import Assembler, Key
from .block import ReplyBlock


class ContinuedAssembler(Assembler):
    """Reads the rest of a reply. It counts the usage of the rest alone. `continued` makes one."""

    _before: str
    _echo: str
    _heard: str
    _space: str
    _joins: bool

    def text(self, key: Key, fragment: str, *, implicit_end: bool = False, raw: JsonObject | None = None) -> None:
        if fragment and (self._echo or self._space):
            fragment = self._without_overlap(fragment)
        super().text(key, fragment, implicit_end=implicit_end, raw=raw)

    def _without_overlap(self, fragment: str) -> str:
        """What is new of a fragment; empty while nobody can tell."""
        if self._echo:
            fragment, self._heard = self._heard + fragment, ""
            if self._echo.startswith(fragment) and fragment != self._echo:
                self._heard = fragment
                return ""
            fragment = fragment.removeprefix(self._echo)
            self._echo = ""
        common = 0
        while common < min(len(self._space), len(fragment)) and self._space[common] == fragment[common]:
            common += 1
        self._space = self._space[common:] if common == len(fragment) else ""
        return fragment[common:]

    def _fragment(self, key: Key, kind: str, fragment: str, implicit_end: bool) -> ReplyBlock:
        if self._joins and kind == "text" and self._open is not None:
            self._joins = False
            self._open.implicit_end = implicit_end
            self._by_key[key] = self._open
        return super()._fragment(key, kind, fragment, implicit_end)  # type: ignore[arg-type]

    def _admit(self, block: ReplyBlock) -> None:
        self._end_beginning()
        super()._admit(block)

    def _end_beginning(self) -> None:
        if self._joins and self._open is not None:
            self._open.ended = True
        self._joins = False

    def partial_text(self) -> str:
        return super().partial_text()[len(self._before) :] + self._heard

    @property
    def heard(self) -> bool:
        return bool(self.partial_text()) or bool(self._held) or self.usage is not None


def text_alone(assembler: Assembler) -> str | None:
    """The text of a reply so far; None if anything else than text has come, or data of the provider's with it."""
    blocks = [*assembler._done, *([assembler._open] if assembler._open is not None else [])]
    if assembler._held or any(block.kind != "text" or block.raw is not None for block in blocks):
        return None
    return "".join(part for block in blocks for part in block.parts)


def continued(broken: Assembler, *, echoes: bool) -> ContinuedAssembler:
    """What reads the rest of a reply that broke off in its text.

    Args:
        broken: What read its beginning, whose events were taken.
        echoes: Whether the provider may begin the rest with the beginning.
    """
    said = text_alone(broken)
    assert said is not None
    rest = ContinuedAssembler.__new__(ContinuedAssembler)
    rest.__dict__.update(broken.__dict__)
    beginning = said.rstrip()
    rest._before, rest._heard, rest._joins = said, "", True
    rest._echo = beginning if echoes else ""
    rest._space = said[len(beginning) :]
    rest.warnings = list(broken.warnings)
    rest._ready, rest._held, rest._by_key = [], [], {}
    rest._done = copy.copy(broken._done)
    rest._open = None if broken._open is None else broken._open.copy()
    rest.usage = None
    rest.response_id = rest.stop_reason = rest.raw_stop_reason = None
    return rest
