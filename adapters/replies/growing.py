"""Arguments of a tool call as they arrive: pieces of them, or all of them so far in each chunk.

Most servers send pieces. Some send the arguments so far again in every chunk, each time longer. A fragment that
begins with all that came before can be either. `{"a":` and `{"a":1}` are one object that was sent twice, or the
beginning of an object within an object. The fragment replaces what came before, with two exceptions: what came
before was complete JSON, or only the pieces make JSON. If both meanings are possible, the fragment waits for the
next one, because a server that sends all of the arguments does so in every chunk.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from .json_text import is_whole, may_become_json, parse_arguments

Meaning: TypeAlias = Literal["either", "pieces", "so_far"]
"""What a server's fragments are: pieces, all of the arguments so far, or either."""


class GrowingArguments:
    """The arguments of one call. `add` returns the text that is new in a fragment, and `settle` what still waited.

    Args:
        meaning: What the server's fragments are.
    """

    __slots__ = ("_doubtful", "_meaning", "_size", "parts")

    def __init__(self, meaning: Meaning = "either") -> None:
        self.parts: list[str] = []
        """The text that is certain, in the pieces in which it became so."""
        self._meaning: Meaning = meaning
        self._size = 0
        self._doubtful = ""  # a fragment that may be a piece, or the arguments so far

    def copy(self) -> GrowingArguments:
        twin = GrowingArguments(self._meaning)
        twin.parts, twin._size, twin._doubtful = list(self.parts), self._size, self._doubtful
        return twin

    @property
    def text(self) -> str:
        """The arguments, if they ended here."""
        return "".join(self.parts) + self._best_guess()

    @property
    def resent(self) -> bool:
        """Whether the server is known to send all of the arguments so far in each chunk."""
        return self._meaning == "so_far"

    def add(self, fragment: str) -> str:
        """Add a fragment.

        Returns:
            The text that is new and certain. It may be empty.
        """
        size = len(fragment)
        if 0 < size < self._size and not self._doubtful and self._meaning != "so_far":  # the usual piece
            self.parts.append(fragment)
            self._size += size
            return fragment
        if self._doubtful:
            return self._decide(fragment)
        if size < self._size or not self._size or self._meaning == "pieces":
            if self._meaning == "so_far" and fragment and "".join(self.parts).startswith(fragment):
                return ""  # an earlier state once more
            return self._keep(fragment)
        return self._compare(fragment)

    def settle(self) -> str:
        """No more is to come: the text that waited for the next fragment."""
        rest = self._best_guess()
        self._doubtful = ""
        return self._keep(rest)

    def _keep(self, text: str) -> str:
        if text:
            self.parts.append(text)
            self._size += len(text)
        return text

    def _compare(self, fragment: str) -> str:
        before = "".join(self.parts)
        if not before.strip() or not fragment.startswith(before):
            return self._keep(fragment)
        if self._meaning == "so_far":
            return self._keep(fragment[self._size :])
        if is_whole(before):
            repeated = fragment.strip() == before.strip()  # some gateways send all of them again at the end
            return "" if repeated else self._keep(fragment)
        as_piece, as_whole = may_become_json(before + fragment), may_become_json(fragment)
        if as_piece and as_whole:
            self._doubtful = fragment
            return ""
        if as_piece:
            self._meaning = "pieces"
            return self._keep(fragment)
        self._meaning = "so_far"
        return self._keep(fragment[self._size :])

    def _decide(self, fragment: str) -> str:
        if not fragment:
            return ""
        doubtful, self._doubtful = self._doubtful, ""
        self._meaning = "so_far" if fragment.startswith(doubtful) and may_become_json(fragment) else "pieces"
        first = doubtful[self._size :] if self._meaning == "so_far" else doubtful
        return self._keep(first) + self.add(fragment)

    def _best_guess(self) -> str:
        """What a doubtful fragment adds, if it is the last."""
        if not self._doubtful:
            return ""
        pieces = parse_arguments("".join(self.parts) + self._doubtful).value is not None
        if pieces and parse_arguments(self._doubtful).value is None:
            return self._doubtful
        return self._doubtful[self._size :]
