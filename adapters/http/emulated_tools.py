"""Requests to models that may lack tools of their own: they go out as `requests.emulation` rewrites them.

A constrained reply can be read only when it is whole, so it streams in whole pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from callboard.bus.values.content import ToolResultBlock, ToolUseBlock

from ..contract import CanonicalRequest
from ..refusals.required_capabilities import check_demands
from ..requests.emulation import WARNING, emulate
from ..requests.fitted import Loss, block_type
from .wire import ChatWire
from .wire_call import WireCall


def write_request(wire: ChatWire, request: CanonicalRequest, *, stream: bool) -> WireCall:
    """Write a request, with its tools emulated where the wire wants that. It raises what the wire raises."""
    emulated = emulate(request) if wire.emulates_tools else None
    if emulated is None:
        return wire.write_request(request, stream=stream)
    check_demands(request, request.capabilities, wire.name)  # the emulated request demands no tools any more
    call = wire.write_request(emulated.request, stream=stream)
    losses = (*_told(request, wire.name), *call.losses)
    return msgspec.structs.replace(call, warnings=(WARNING, *call.warnings), losses=losses)


def _told(request: CanonicalRequest, provider: str) -> Iterator[Loss]:
    """The calls and results of the history, which an emulation tells in words."""
    reason = "tools are emulated: it is told in words"
    for message in request.messages:
        for block in message.content:
            if isinstance(block, ToolUseBlock | ToolResultBlock):
                yield Loss(request.session_id, message.id or "", block_type(block), provider, reason, block)


def is_constrained(wire: ChatWire, request: CanonicalRequest) -> bool:
    """Whether the reply will be an emulated call or answer, which `emulation.read_response` reads.

    Raises:
        UnsupportedToolChoiceError: The tool choice names a tool that isn't there.
    """
    emulated = emulate(request) if wire.emulates_tools else None
    return emulated is not None and emulated.constrained
