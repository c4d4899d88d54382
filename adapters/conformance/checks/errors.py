"""Sections 6.1 to 6.3: every failure is an AdapterError, and the most specific one."""

from __future__ import annotations

from callboard.adapters.conformance.asking import failure, hear, over_http, streaming
from callboard.adapters.conformance.checking import check
from callboard.adapters.conformance.fake_http import FakeReply
from callboard.adapters.conformance.invariants import check_stream, require
from callboard.adapters.conformance.kit import CONDITIONS, Fails, Kit, NotShown, Says, Unreachable
from callboard.bus.errors import AdapterError, AuthError, ContextOverflowError, ErrorClass, NetworkError, OverloadedError
from callboard.bus.values.usage import StopReason

ERRORS = "Error normalisation implemented"

BY_STATUS = {
    400: ErrorClass.INVALID_REQUEST,
    401: ErrorClass.AUTH,
    403: ErrorClass.AUTH,
    404: ErrorClass.INVALID_REQUEST,
    408: ErrorClass.NETWORK,
    422: ErrorClass.INVALID_REQUEST,
    429: ErrorClass.RATE_LIMIT,
    500: ErrorClass.SERVER_ERROR,
    502: ErrorClass.SERVER_ERROR,
    503: ErrorClass.SERVER_ERROR,
}
"""What a status means when the body says nothing."""


@check("6.2", ERRORS)
async def each_condition_has_its_exception(kit: Kit) -> None:
    """What the provider says becomes the most specific exception, with its class, and whether it may pass."""
    shown = 0
    for condition, kind in CONDITIONS.items():
        for streamed in (False, True):
            async with kit.stage_or_none(Fails(condition), max_retries=0) as at:
                if at is None:
                    continue
                shown += 1
                error = await failure(at, streamed=streamed)
                _check_error(error, kit)
                require(
                    type(error) is kind, f"{condition!r} became {type(error).__name__} instead of {kind.__name__}"
                )
                require(error.error_class is kind.error_class, f"{condition!r} has class {error.error_class!r}")
                passes = kind.default_retryable
                require(error.retryable is passes, f"{condition!r} has retryable={error.retryable}")
                await at.must_release("the connection was not closed")
    if not shown:
        raise NotShown("the kit shows none of the conditions (error_body)")


def _check_error(error: AdapterError, kit: Kit) -> None:
    require(str(error), "an error has a text")
    require(error.provider == kit.name, f"the error's provider is {error.provider!r}")
    require(error.request_id == "req_1", f"the error's request_id is {error.request_id!r}")
    require(error.provider_message, "the error lacks the provider's own words")


@check("6.2", ERRORS)
async def a_status_alone_has_its_class(kit: Kit) -> None:
    """If the body says nothing the status decides: 401 and 403 auth, 408 network, 429 rate limit, 5xx server."""
    wire = over_http(kit)
    for status, expected in BY_STATUS.items():
        reply = FakeReply(b"no words for it", status=status, headers={"content-type": "text/plain"})
        async with wire.stage_of(reply, max_retries=0) as at:
            error = await failure(at, streamed=False)
        require(error.error_class is expected, f"{status} became {error.error_class!r} instead of {expected!r}")
        require(error.provider_status == status, f"provider_status of a {status} is {error.provider_status}")


@check("6.2", ERRORS)
async def a_prompt_too_long_is_a_context_overflow(kit: Kit) -> None:
    """A request larger than the context window is a ContextOverflowError, and never tried again."""
    async with kit.stage(Fails("overflow")) as at:
        error = await failure(at, streamed=kit.streams)
        require(isinstance(error, ContextOverflowError), f"it became {error!r}")
        require(at.asked() == 1, "it was tried again")


@check("6.3", ERRORS)
async def an_error_event_has_its_class(kit: Kit) -> None:
    """An error inside a stream is classified like one before it."""
    streaming(kit)
    scene = Says("Hello, ☃!")
    async with kit.stage(Says(scene.text, after=kit.pieces(scene) // 2, then="error"), max_retries=0) as at:
        heard = await hear(at)
    require(isinstance(heard.error, OverloadedError), f"it became {heard.error!r}")
    if heard.events:
        require(check_stream(heard.events).stop_reason is StopReason.ERROR, "the message does not end in an error")
    if heard.error is not None:
        _check_error(heard.error, kit)


@check("6.2", ERRORS)
async def no_connection_is_a_network_error(kit: Kit) -> None:
    """A provider that can't be reached is a NetworkError of a passing kind."""
    for streamed in (False, True):
        async with kit.stage(Unreachable(), max_retries=0) as at:
            error = await failure(at, streamed=streamed)
        require(isinstance(error, NetworkError), f"it became {error!r}")
        require(error.retryable, "it is not marked as retryable")


@check("6.3", ERRORS)
async def nonsense_is_an_adapter_error(kit: Kit) -> None:
    """A proxy's page, an empty body and JSON of the wrong shape are AdapterErrors, not what decoding raises."""
    wire = over_http(kit)
    for body in (b"<html><body>Bad gateway</body></html>", b"", b"null", b"[[[", b'"text"', b"\xff\xfe\x00"):
        for streamed in (False, True):
            kind = kit.content_type if streamed and isinstance(kit, type(wire)) else "application/json"
            reply = FakeReply(body, headers={"content-type": kind})
            async with wire.stage_of(reply, max_retries=0) as at:
                try:
                    error = await failure(at, streamed=streamed)
                except AssertionError:
                    raise
                except Exception as foreign:
                    raise AssertionError(f"{body!r} raised {type(foreign).__name__}: {foreign}") from foreign
                await at.must_release("the connection was not closed")
            require(error.request_id == "req_1", f"the error's request_id is {error.request_id!r}")


@check("6.3", ERRORS)
async def the_providers_request_id_is_kept(kit: Kit) -> None:
    """The provider's own id of a request, for its support, is in the response and in an error."""
    over_http(kit)
    async with kit.stage(Says("Hi.", streamed=False), Fails("server"), max_retries=0) as at:
        response = await at.adapter.complete(at.request())
        error = await failure(at, streamed=False)
    require(response.provider_request_id == "their_1", f"the response has {response.provider_request_id!r}")
    require(error.provider_request_id is not None, "the error has none")


@check("6.1", ERRORS)
async def a_bad_key_is_an_auth_error(kit: Kit) -> None:
    """A key that the provider refuses is an AuthError at once, streamed or not."""
    for streamed in (False, True):
        async with kit.stage(Fails("bad key")) as at:
            error = await failure(at, streamed=streamed)
            require(isinstance(error, AuthError), f"it became {error!r}")
            require(at.asked() == 1, "it was tried again")
