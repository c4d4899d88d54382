"""The arguments of a call, put together from values at JSONPaths. Only some streams are asked to send them so."""

from __future__ import annotations

import re

import msgspec

from callboard.bus.values.json import Json, JsonObject

from .. import wire

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\]""")


class PartialArguments:
    """Arguments as they grow.

    `broken` says whether a piece of them could not be placed. Then the call must not be executed.

    Args:
        key: The key of the call's block.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.value: JsonObject = {}
        self.broken = False
        self._in_pieces: set[str | None] = set()  # places whose strings are known to come in pieces

    def add(self, piece: wire.PartialArg) -> None:
        """Place a piece. A string at the place of a string continues it; a piece without a value says nothing.

        A string that begins with all that came for its place, and is longer, replaces it: some servers send the
        text so far again. A place whose string was once continued otherwise is continued from then on.
        """
        if piece.stringValue is not None:
            self._place(piece.jsonPath, piece.stringValue)
        elif piece.numberValue is not None:
            self._place(piece.jsonPath, piece.numberValue)
        elif piece.boolValue is not None:
            self._place(piece.jsonPath, piece.boolValue)
        elif piece.nullValue is not msgspec.UNSET:
            self._place(piece.jsonPath, None)

    def _place(self, path: str | None, value: Json) -> None:
        steps = _steps(path or "")
        so_far = _at(self.value, steps)
        if isinstance(so_far, str) and isinstance(value, str) and so_far and value:
            if path not in self._in_pieces and len(value) > len(so_far) and value.startswith(so_far):
                value = value[len(so_far) :]
            else:
                self._in_pieces.add(path)
        if not steps or not _place(self.value, steps, value):
            self.broken = True


def _at(root: JsonObject, steps: list[str | int]) -> Json:
    """What is at a place already; None if nothing is."""
    here: Json = root
    for step in steps:
        if isinstance(here, dict) and isinstance(step, str):
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        else:
            return None
    return here


def _place(root: JsonObject, steps: list[str | int], value: Json) -> bool:
    here: Json = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        fresh: Json = value if following is None else {} if isinstance(following, str) else []
        if isinstance(step, str) and isinstance(here, dict):
            before = here.get(step)
            if following is None:
                here[step] = _continued(before, value)
            elif before is None:
                here[step] = fresh
            here = here[step]
        elif isinstance(step, int) and isinstance(here, list) and step <= len(here):
            if step == len(here):
                here.append(fresh)
            elif following is None:
                here[step] = _continued(here[step], value)
            here = here[step]
        else:
            return False
    return True


def _continued(before: Json, value: Json) -> Json:
    return before + value if isinstance(before, str) and isinstance(value, str) else value


def _steps(path: str) -> list[str | int]:
    """The names and indexes of a path; empty if it is none that we know."""
    if not path.startswith("$"):
        return []
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return []
        name, index, single, double = found.groups()
        if index is not None:
            if len(index) > 9:
                return []
            steps.append(int(index))
        elif name is not None:
            steps.append(name)
        else:
            steps.append(re.sub(r"\\(.)", r"\1", single if single is not None else double))
        at = found.end()
    return steps
