"""What another model would be sent of a conversation, and what would be lost, as lines of a chat. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from callboard.engine.watching.losses import RequestLoss
from callboard.engine.watching.preview import RequestPreview

from ..common.money import usd


def preview_lines(preview: RequestPreview, said: int) -> Iterator[str]:
    """The lines about a request that would be sent.

    Args:
        preview: The request.
        said: The number of messages so far.
    """
    if preview.refused is not None:
        yield f"{preview.model} can't be asked: {preview.refused}"
        return
    tokens = "?" if preview.input_tokens is None else str(preview.input_tokens)
    cost = "unpriced" if preview.input_nano_usd is None else usd(preview.input_nano_usd)
    yield f"{preview.model} would be sent about {tokens} tokens, {cost}"
    counted: dict[str, int] = {}
    for loss in preview.losses:
        line = f"{_place(loss, said)}{loss.reason}"
        counted[line] = counted.get(line, 0) + 1
    for line, times in counted.items():
        yield line if times == 1 else f"{line} ({times} times)"
    yield "nothing would be lost" if not preview.losses else f"{len(preview.losses)} in all"


def _place(loss: RequestLoss, said: int) -> str:
    """What is lost, and where. A warning about a setting names the setting itself."""
    if loss.message is not None:
        return f"{f'message {loss.message + 1}' if loss.message < said else 'the next message'}, {loss.what}: "
    if loss.tool is not None:
        return f"tool {loss.tool}, {loss.what}: "
    return f"{loss.what}: " if "." in loss.what else ""
