"""Requests to models that may lack tools of their own: they go out as `requests.emulation` rewrites them.

A constrained reply can be read only when it is whole, so it streams in whole pieces.
"""

from __future__ import annotations

import msgspec

from ..contract import CanonicalRequest
from ..refusals.required_capabilities import check_demands
from ..requests.emulation import WARNING, emulate
from .wire import ChatWire
from .wire_call import WireCall


def write_request(wire: ChatWire, request: CanonicalRequest, *, stream: bool) -> WireCall:
    """Write a request, with its tools emulated where the wire wants that. It raises what the wire raises."""
    emulated = emulate(request) if wire.emulates_tools else None
    if emulated is None:
        return wire.write_request(request, stream=stream)
    check_demands(request, request.capabilities, wire.name)  # the emulated request demands no tools any more
    call = wire.write_request(emulated.request, stream=stream)
    return msgspec.structs.replace(call, warnings=(WARNING, *call.warnings))


def is_constrained(wire: ChatWire, request: CanonicalRequest) -> bool:
    """Whether the reply will be an emulated call or answer, which `emulation.read_response` reads.

    Raises:
        UnsupportedToolChoiceError: The tool choice names a tool that isn't there.
    """
    emulated = emulate(request) if wire.emulates_tools else None
    return emulated is not None and emulated.constrained
