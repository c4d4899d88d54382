"""What a block keeps for its provider may be odd: a proxy sent it, or a host wrote it.

Requests are written all the same, to every provider, or refused with advice.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from callboard.bus.errors import AdapterError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ImageBlock, OpaqueBlock, TextBlock
from callboard.bus.values.messages import Message, Role

from ..support.conversations import PROVIDERS, item_bodies, read_content
from .test_item_swaps import MODELS, SIDES, answered
from .test_robustness import changed, places

ODD: tuple[Json, ...] = (None, 7, [], {})


def spoiled(content: tuple[ContentBlock, ...]) -> Iterator[tuple[tuple[ContentBlock, ...], ContentBlock]]:
    """The content with something odd at one place of what one block keeps, or without it; and that block."""
    for number, block in enumerate(content):
        raw = block.provider_raw
        for path in places(raw.data) if raw is not None else ():
            for value, leave_out in [*((each, False) for each in ODD), (None, True)] if path else ():
                data = changed(raw.data, path, value, leave_out=leave_out)
                odd = msgspec.structs.replace(block, provider_raw=msgspec.structs.replace(raw, data=data))
                yield (*content[:number], odd, *content[number + 1 :]), odd


def histories(body: JsonObject, home: str) -> Iterator[tuple[Message, ...]]:
    for content, odd in spoiled(read_content(home, body, MODELS[home])):
        yield answered(content)
        if isinstance(odd, OpaqueBlock | ImageBlock | TextBlock):  # a host may say it, too
            yield (Message(Role.USER, (odd,)), Message.assistant("Done."))


@pytest.mark.parametrize("home", PROVIDERS)
def test_odd_things_that_a_block_keeps_break_no_request(home: str) -> None:
    written = 0
    for _, body in item_bodies(home):
        for history in histories(body, home):
            for there in SIDES.values():
                try:
                    call = there.written((*history, Message.user("And now?")))
                except AdapterError:
                    continue
                there.told(history, call)
                written += isinstance(msgspec.json.decode(call.body), dict)
    assert written > 300
