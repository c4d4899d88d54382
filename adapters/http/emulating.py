"""HTTP adapters whose models may lack tools of their own: requests go out as `emulation` rewrites them."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from bus.errors import AdapterError

from ..contract import AdapterStream, AttemptObserver, CanonicalRequest, CanonicalResponse
from ..refusals.demands import check_demands
from ..replies.whole import WholeStream
from ..requests import emulation
from .adapter import HttpAdapter
from .wire_call import WireCall


class EmulatingAdapter(HttpAdapter):
    """Base of such adapters. emulates_tools: set by the subclass, before the first call.

    A constrained reply can be read only when it is whole, so it streams in whole pieces.
    """

    emulates_tools: bool = False

    @abstractmethod
    def write_plain(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """As `write_request`; where tools are emulated, `request` has none."""

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        emulated = self._emulation(request)
        if emulated is None:
            return self.write_plain(request, stream=stream)
        check_demands(request, request.capabilities, self.name)  # the emulated one demands no tools any more
        wire = self.write_plain(emulated.request, stream=stream)
        return msgspec.structs.replace(wire, warnings=(emulation.WARNING, *wire.warnings))

    def _emulation(self, request: CanonicalRequest) -> emulation.Emulation | None:
        return emulation.emulate(request) if self.emulates_tools else None

    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        emulated = self._emulation(request)
        response = await super().complete(request, on_attempt=on_attempt)
        if emulated is None or not emulated.constrained:
            return response
        return emulation.read_response(response, self.clock)

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        try:
            emulated = self._emulation(request)
        except AdapterError:
            emulated = None  # writing the request raises it again, where the caller expects it
        if emulated is None or not emulated.constrained:
            return super().stream(request, on_attempt=on_attempt)
        return WholeStream(self, request, request.message_id or self.clock.new_id("msg"), on_attempt)
