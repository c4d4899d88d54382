"""The results of a batch: downloads taken line by line, and lines read as the replies that they hold."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.http import emulated_tools
from callboard.adapters.http.attempts import HttpAttempts
from callboard.adapters.http.call import HttpCall
from callboard.adapters.http.client import HttpClient
from callboard.adapters.http.single_reply import fetch
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.requests.emulation import read_response
from callboard.adapters.transport.transport import close_reply, read_error_body
from callboard.bus.errors import AdapterError, StreamError

from ..contract import CanonicalRequest, CanonicalResponse
from .contract import BatchJob
from .spool import Spool
from .wire import BatchWire, cancelled_item, expired_item, not_billed

MOST_LINE_BYTES = 128 * 1024 * 1024
"""The most bytes of one result. A longer one is a fault of the server."""

BATCH_TIER = "batch"
"""The service tier of every reply of a batch, whatever the reply itself says."""


class Downloads:
    """The downloads of one job's results. Lines that came are kept when a download breaks."""

    def __init__(self, client: HttpClient, wire: BatchWire, job: BatchJob) -> None:
        self._client = client
        self._wire = wire
        self._job = job
        self._left = list(wire.results(job))
        self.lines = Spool()
        """The results that have come."""

    @property
    def short(self) -> bool:
        """Whether fewer replies have come than the job says that there are."""
        return self.lines.replies < self._job.succeeded

    def begin_anew(self) -> None:
        """Download everything again, and keep the lines that came."""
        self._left = list(self._wire.results(self._job))

    async def run(self, attempts: HttpAttempts) -> None:
        """Download what is left.

        Raises:
            NetworkError: A connection broke.
            StreamError: A download ended in the middle of a line.
            AdapterError: The provider refused.
        """
        while self._left:
            if self._wire.in_lines:
                await self._take_lines(attempts, self._left[0])
            else:
                await fetch(attempts, self._left[0], lambda body, headers: self._take(body))
            del self._left[0]

    async def _take_lines(self, attempts: HttpAttempts, call: WireCall) -> None:
        client = self._client
        request = await attempts.prepare_request(call, accept="*/*")
        seconds = client.config.stream_read_timeout
        reply = await attempts.wait(lambda: client.transport.send(request), seconds, what="the results")
        try:
            if reply.status >= 300:
                body = await attempts.wait(lambda: read_error_body(reply), seconds, what="the error's body")
                raise client.error_of(body, reply)
            begun = bytearray()
            while (chunk := await attempts.wait(reply.chunk, seconds, what="the results")) is not None:
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    begun += line
                    self._take_line(bytes(begun))
                    begun.clear()
                begun += rest
                if len(begun) > MOST_LINE_BYTES:
                    raise StreamError(f"{client.name}: one result has more than {MOST_LINE_BYTES:,} bytes")
            self._take_line(bytes(begun))
        finally:
            await close_reply(reply)

    def _take_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            self._take(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            said = f"{self._client.name}: the results of a batch break off, or hold a line that is none: {error}"
            raise StreamError(said, retryable=True) from error

    def _take(self, text: bytes) -> None:
        for line in self._wire.read_results(text, self._client.name):
            self.lines.add(line)


class _ReplyOfBatch:
    """Stands for the HTTP reply that a request of a batch would have been answered with."""

    status = 200
    headers: Mapping[str, str] = {}

    async def chunk(self) -> bytes | None:
        return None

    async def aclose(self) -> None:
        return None


def read_reply(client: HttpClient, request: CanonicalRequest, written: WireCall, body: bytes) -> CanonicalResponse:
    """The response that a line of results holds. Its usage is of the tier ``batch``.

    Args:
        client: The adapter's client, whose wire reads replies.
        request: The request.
        written: The request as it was sent, for its warnings.
        body: The reply.

    Raises:
        AdapterError: The reply is an error, or none of the protocol.
    """
    call = HttpCall(client, request, None, stream=False)
    call.prepare_attempt()
    call.read_whole(body, _ReplyOfBatch())
    response = call.response(written, None)
    if client.wire.emulates_tools and emulated_tools.is_constrained(client.wire, request):
        response = read_response(response, client.clock)
    usage = msgspec.structs.replace(response.usage, service_tier=BATCH_TIER)
    return msgspec.structs.replace(response, usage=usage, latency_ms=0)


def unanswered(job: BatchJob, *, short: bool = False) -> AdapterError:
    """The error of a request of which the results of its job say nothing.

    Args:
        job: The job.
        short: Whether results are missing that the provider says there are.
    """
    match job.status:
        case "cancelled" if not short:
            return cancelled_item(job.provider)
        case "expired" if not short:
            return expired_item(job.provider)
        case "failed":
            told = job.error or AdapterError(f"batch {job.id} failed", provider=job.provider)
            return not_billed(
                type(told)(
                    str(told),
                    provider=told.provider,
                    provider_status=told.provider_status,
                    provider_code=told.provider_code,
                    provider_message=told.provider_message,
                    retryable=told.retryable,
                )
            )
        case _:
            return StreamError(f"{job.provider}: batch {job.id} is over, and has no result of this request")
