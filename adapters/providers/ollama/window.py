"""The context window of a call (`num_ctx`), in tokens.

The server's default window is small, and the server silently drops the beginning of a prompt that doesn't fit. So
every call asks for a window that holds its estimated prompt and its output. The server loads the model anew when a
call asks for another window than the last call. So there are few sizes of windows, and a model's window only
grows.
"""

from __future__ import annotations

from .models import put

SMALLEST = 4096


def window_size(needed: int, limit: int | None) -> int:
    """The smallest size that holds `needed` tokens: a power of two, or what the model has at most (`limit`)."""
    size = max(SMALLEST, 1 << max(0, needed - 1).bit_length())
    return size if limit is None else min(size, limit)


class Windows:
    """The windows in use, by the model's name."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def choose(self, model: str, needed: int, limit: int | None) -> int:
        """The window for a call: at least the one that the model was last loaded with."""
        size = max(window_size(needed, limit), self._sizes.get(model, 0))
        put(self._sizes, model, size)
        return size
