"""Images over HTTP: one request with its attempts, as the adapters of conversations have theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from adapters.contract import AttemptObserver, CallWarning
from adapters.http.attempts import HttpAttempts
from adapters.http.question import AskingAdapter
from adapters.http.wire_call import WireCall
from bus.errors import AdapterError, InvalidRequestError
from bus.values.usage import TokenUsage
from bus.values.warning_codes import WarningCode

from .contract import ImageCapabilities, ImageRequest, ImageResponse
from .wire import ImageReply, ImageWire, fit, pieces


class MakesImagesOverHttp(AskingAdapter):
    """Base of the adapters that make images; see `images.contract.ImageAdapter` for what it promises."""

    @abstractmethod
    def image_wire(self, model: str) -> ImageWire:
        """How requests to that model, and their replies, look. model: its name on the wire."""

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        name = model.removeprefix(f"{self.name}:")
        return self.image_wire(name).capabilities(name)

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        wire = self.image_wire(request.wire_model)
        written: WireCall | None = None  # every attempt sends the same

        def read(body: bytes, headers: Mapping[str, str]) -> ImageReply:
            reply = wire.read(body, request)
            if not reply.images:
                raise self._error_inside(body) or _no_image(reply)
            return reply

        async def once(attempts: HttpAttempts) -> ImageResponse:
            nonlocal written
            if written is None:
                written = wire.write(fit(request, wire.capabilities(request.wire_model)), self.name)
            reply, answer = await self.ask(attempts, written, request.request_id, read)
            attempts.first_event()
            warnings = list(written.warnings)
            if len(reply.images) < request.n:
                said = f"{request.n} images were asked for and {len(reply.images)} came"
                warnings.append(CallWarning(WarningCode.FEWER_IMAGES, said))
            return ImageResponse(
                request_id=request.request_id,
                model=f"{self.name}:{reply.model or request.wire_model}",
                provider=self.name,
                operation=request.operation,
                images=tuple(reply.images),
                usage=_counted(reply),
                latency_ms=attempts.elapsed_ms(),
                response_id=reply.response_id,
                warnings=tuple(warnings),
                rate_limit=self.rate_limit(answer.headers),
                provider_request_id=answer.provider_request_id,
            )

        return await self.in_attempts(request, on_attempt, once)


def _counted(reply: ImageReply) -> TokenUsage:
    """The reply's usage; the images themselves where no tokens are counted."""
    usage = reply.usage
    return pieces(len(reply.images)) if usage is None else usage


def _no_image(reply: ImageReply) -> AdapterError:
    words = f"no image came, but words: {reply.said[:500]}" if reply.said else "the reply holds no image"
    error = InvalidRequestError(words)
    error.usage = reply.usage  # it was billed all the same
    return error
