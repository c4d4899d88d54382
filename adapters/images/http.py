"""Images over HTTP: one request with its attempts, as conversations have theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callboard.adapters.contract import AttemptObserver, CallWarning
from callboard.adapters.http.attempts import HttpAttempts
from callboard.adapters.http.client import HttpClient
from callboard.adapters.http.single_reply import SingleReply, error_inside, fetch
from callboard.adapters.http.wire_call import WireCall
from callboard.bus.errors import AdapterError, InvalidRequestError
from callboard.bus.values.warning_codes import WarningCode

from .contract import ImageCapabilities, ImageRequest, ImageResponse
from .wire import ImageReply, ImageWire, fit, pieces


class HttpImages:
    """A provider's images, over the client that its conversations use, too."""

    def __init__(self, client: HttpClient, wire_of: Callable[[str], ImageWire]) -> None:
        self._client = client
        self._wire_of = wire_of

    def capabilities(self, model: str) -> ImageCapabilities:
        """What a model can make, by its name on the wire."""
        return self._wire_of(model).capabilities(model)

    async def make(self, request: ImageRequest, on_attempt: AttemptObserver | None) -> ImageResponse:
        """See `ImageAdapter.make_images`."""
        client, wire = self._client, self._wire_of(request.wire_model)
        written: WireCall | None = None  # every attempt sends the same

        def read(body: bytes, headers: Mapping[str, str]) -> ImageReply:
            reply = wire.read(body, request)
            if not reply.images:
                raise error_inside(client, body) or _no_image(reply)
            return reply

        async def attempt() -> ImageResponse:
            nonlocal written
            if written is None:
                written = wire.write(fit(request, wire.capabilities(request.wire_model)), client.name)
            made, reply = await fetch(attempts, written, read)
            attempts.first_event(reply.headers)
            return self._response(request, written, made, reply, attempts)

        attempts = HttpAttempts(client, request, on_attempt)
        return await attempts.run(attempt)

    def _response(
        self,
        request: ImageRequest,
        written: WireCall,
        made: ImageReply,
        reply: SingleReply,
        attempts: HttpAttempts,
    ) -> ImageResponse:
        name, warnings = self._client.name, list(written.warnings)
        if len(made.images) < request.n:
            said = f"{request.n} images were asked for and {len(made.images)} came"
            warnings.append(CallWarning(WarningCode.FEWER_IMAGES, said))
        return ImageResponse(
            request_id=request.request_id,
            model=f"{name}:{made.model or request.wire_model}",
            provider=name,
            operation=request.operation,
            images=tuple(made.images),
            usage=pieces(len(made.images)) if made.usage is None else made.usage,
            latency_ms=attempts.elapsed_ms(),
            response_id=made.response_id,
            warnings=tuple(warnings),
            rate_limit=attempts.rate_limit,
            provider_request_id=reply.provider_request_id,
        )


def _no_image(reply: ImageReply) -> AdapterError:
    words = f"no image came, but words: {reply.said[:500]}" if reply.said else "the reply holds no image"
    error = InvalidRequestError(words)
    error.usage = reply.usage  # it was billed all the same
    return error
