"""Sections 6.1 to 6.3: every failure is an AdapterError of the most specific class."""

from __future__ import annotations

import msgspec

from callboard.bus.errors import (
    AdapterError,
    AuthError,
    ContextOverflowError,
    ErrorClass,
    NetworkError,
    OverloadedError,
    RequestTimeoutError,
)
from callboard.bus.values.usage import StopReason

from ..config import RetryPolicy
from ..contract import AttemptFailed, AttemptFirstEvent, AttemptReport, AttemptStarted, CanonicalRequest
from .checks import SOON, check, failure, over_http, read_events, read_stream, require, streaming, timed, waiting
from .http_kit import FakeReply
from .kit import CONDITIONS, Fails, Kit, NotShown, Says, Scene, Silent, Stage, Unreachable
from .streams import check_stream

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
"""The error class of each HTTP status, in a reply without a body."""


@check("6.2", ERRORS)
async def each_condition_has_its_exception(kit: Kit) -> None:
    """Each failure raises its most specific exception, with the right `error_class` and `retryable`."""
    shown = 0
    for condition, kind in CONDITIONS.items():
        for streamed in (False, True):
            async with kit.stage_or_none(Fails(condition), max_retries=0) as at:
                if at is None:
                    continue
                shown += 1
                error = await failure(at, streamed=streamed)
                _check_error(error, kit)
                found = type(error)
                require(found is kind, f"{condition!r} became {found.__name__} instead of {kind.__name__}")
                require(error.error_class is kind.error_class, f"{condition!r} has class {error.error_class!r}")
                as_usual = error.retryable is kind.default_retryable
                require(as_usual, f"{condition!r} has retryable={error.retryable}")
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
    """Without a body the status decides: 401 and 403 auth, 408 network, 429 rate limit, 5xx server."""
    wire = over_http(kit)
    for status, expected in BY_STATUS.items():
        reply = FakeReply(b"no words for it", status=status, headers={"content-type": "text/plain"})
        async with wire.stage_of(reply, max_retries=0) as at:
            error = await failure(at, streamed=False)
        require(error.error_class is expected, f"{status} became {error.error_class!r} instead of {expected!r}")
        require(error.provider_status == status, f"provider_status of a {status} is {error.provider_status}")


@check("6.2", ERRORS)
async def a_prompt_too_long_is_a_context_overflow(kit: Kit) -> None:
    """A request larger than the context window is a ContextOverflowError, and is never retried."""
    async with kit.stage(Fails("overflow")) as at:
        error = await failure(at, streamed=kit.streams)
        require(isinstance(error, ContextOverflowError), f"it became {error!r}")
        require(at.asked() == 1, "it was tried again")


@check("6.3", ERRORS)
async def an_error_event_has_its_class(kit: Kit) -> None:
    """An error inside a stream is classified like an error before the stream."""
    streaming(kit)
    scene = Says("Hello, ☃!")
    async with kit.stage(Says(scene.text, after=kit.pieces(scene) // 2, then="error"), max_retries=0) as at:
        outcome = await read_stream(at)
    require(isinstance(outcome.error, OverloadedError), f"it became {outcome.error!r}")
    if outcome.events:
        require(
            check_stream(outcome.events).stop_reason is StopReason.ERROR, "the message does not end in an error"
        )
    if outcome.error is not None:
        _check_error(outcome.error, kit)


@check("6.2", ERRORS)
async def no_connection_is_a_network_error(kit: Kit) -> None:
    """An unreachable provider is a retryable NetworkError."""
    for streamed in (False, True):
        async with kit.stage(Unreachable(), max_retries=0) as at:
            error = await failure(at, streamed=streamed)
        require(isinstance(error, NetworkError), f"it became {error!r}")
        require(error.retryable, "it is not marked as retryable")


@check("6.3", ERRORS)
async def a_malformed_reply_is_an_adapter_error(kit: Kit) -> None:
    """A proxy's page, an empty body and JSON of the wrong shape are AdapterErrors, not decoding errors."""
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
    """A rejected key is an AuthError without a retry, streamed or not."""
    for streamed in (False, True):
        async with kit.stage(Fails("bad key")) as at:
            error = await failure(at, streamed=streamed)
            require(isinstance(error, AuthError), f"it became {error!r}")
            require(at.asked() == 1, "it was tried again")


# --- Sections 6.4 and 3.1 ---

RETRIES = "Retry configuration tuned"
NO_JITTER = RetryPolicy(jitter=False)


async def ask(at: Stage, request: CanonicalRequest, *, streamed: bool) -> list[AttemptReport]:
    """Make a call, successful or not, and return its reports."""
    reports: list[AttemptReport] = []
    try:
        if streamed:
            async for _ in at.adapter.stream(request, on_attempt=reports.append):
                pass
        else:
            await at.adapter.complete(request, on_attempt=reports.append)
    except AdapterError:
        pass
    return reports


@check("6.4", RETRIES)
async def a_call_makes_one_plus_max_retries_attempts(kit: Kit) -> None:
    """A temporary failure has exactly 1 + max_retries attempts, each is reported, and the error is `retryable`."""
    for streamed in (False, True):
        for retries in (0, 1, 3):
            scenes = [Fails("server")] * (retries + 1)
            async with kit.stage(*scenes, max_retries=retries, retry=SOON) as at:
                reports = await ask(at, at.request(), streamed=streamed)
                require(at.asked() == retries + 1, f"max_retries={retries} made {at.asked()} attempts")
                _check_reports(reports, retries)
            async with kit.stage(*scenes, max_retries=9, retry=SOON) as at:
                error = await failure(at, streamed=streamed, request=at.request(max_retries=retries))
                require(at.asked() == retries + 1, "the request's own max_retries was not used")
                require(error.retryable, "the error after all retries must still be retryable")


def _check_reports(reports: list[AttemptReport], retries: int) -> None:
    started = [(report.attempt, report.reason) for report in reports if isinstance(report, AttemptStarted)]
    expected = [(number, "first" if number == 1 else "retry") for number in range(1, retries + 2)]
    require(started == expected, f"started are {started}, and should be {expected}")
    failed = [report.attempt for report in reports if isinstance(report, AttemptFailed)]
    require(failed == list(range(1, retries + 1)), f"of {retries + 1} attempts are reported as retried {failed}")


@check("6.4", RETRIES)
async def a_successful_retry_is_one_reply(kit: Kit) -> None:
    """An attempt that fails before its first event is invisible. The caller gets only the next attempt's reply."""
    waiting(kit)
    for streamed in (False, True):
        says = Says("Hello, ☃!", streamed=streamed)
        async with kit.stage(Fails("overload"), Unreachable(), says, retry=NO_JITTER) as at:
            reports, waited = await timed(ask(at, at.request(), streamed=streamed))
        delays = [report.delay_seconds for report in reports if isinstance(report, AttemptFailed)]
        require(len(delays) == 2, f"two attempts failed, and {len(delays)} are reported")
        require(same(sum(delays), waited), f"reported waits are {delays} s, and it waited {waited:g} s")
        require(delays == [1.0, 2.0], f"the waits double from base_delay, 1 s; they are {delays}")
        first = [report.attempt for report in reports if isinstance(report, AttemptFirstEvent)]
        require(first == [3], f"the first content came with attempt 3, and is reported for {first}")
    async with kit.stage(Fails("overload"), Says("Hello, ☃!"), retry=NO_JITTER) as at:
        check_stream(await read_events(at))


def same(one: float, other: float) -> bool:
    """Whether two times are equal within a millisecond. The loop's clock sums floats, so it is inexact."""
    return abs(one - other) < 0.001


@check("6.4", RETRIES)
async def retry_after_is_respected(kit: Kit) -> None:
    """The adapter waits exactly as long as the provider's retry-after requests, at most 60 s."""
    waiting(kit)
    for hint, expected in ((7.0, 7.0), (59.0, 59.0), (900.0, 60.0)):
        for streamed in (False, True):
            scenes: list[Scene] = [Fails("rate limit", retry_after=hint), Says("Hi.", streamed=streamed)]
            async with kit.stage(*scenes) as at:
                _, waited = await timed(ask(at, at.request(), streamed=streamed))
                require(at.asked() == 2, "a rate limit was not tried again")
            require(same(waited, expected), f"told {hint:g} s, it waited {waited:g} s instead of {expected:g} s")


@check("6.4", RETRIES)
async def permanent_failures_are_not_retried(kit: Kit) -> None:
    """Permanent errors, such as a bad key, are raised without a retry or a wait."""
    for condition in ("bad key", "bad request", "overflow", "forbidden", "no model", "quota"):
        for streamed in (False, True):
            async with kit.stage_or_none(Fails(condition)) as at:
                if at is None:
                    continue
                error, waited = await timed(failure(at, streamed=streamed))
                require(at.asked() == 1, f"{condition!r} was tried {at.asked()} times")
                require(kit.real_time or waited == 0, f"{condition!r} was waited for")
                require(not error.retryable, f"{condition!r} is marked as retryable")


@check("6.5", RETRIES)
async def nothing_is_repeated_after_a_delivered_event(kit: Kit) -> None:
    """After an event was delivered, a failure ends the call, for any max_retries."""
    streaming(kit)
    scene = Says("Hello, ☃!", then="break")
    for after in range(kit.pieces(scene)):
        broken = msgspec.structs.replace(scene, after=after)
        async with kit.stage(broken, Says("Again."), max_retries=1, retry=SOON) as at:
            reports: list[AttemptReport] = []
            most_requests = 0
            try:
                async for _ in at.adapter.stream(at.request(), on_attempt=reports.append):
                    most_requests = max(most_requests, at.asked())
            except AdapterError:
                require(
                    at.asked() == 1, f"broken after {after} pieces, it was repeated after events were delivered"
                )
        started = [report for report in reports if isinstance(report, AttemptStarted)]
        require(len(started) == at.asked(), f"{at.asked()} attempts were made, and {len(started)} reported")


@check("3.1", RETRIES)
async def time_limits_are_kept(kit: Kit) -> None:
    """If a provider never answers or stops sending, RequestTimeoutError is raised after the configured time."""
    waiting(kit)
    for streamed in (False, True):
        async with kit.stage(Silent(), max_retries=0, timeout_seconds=20.0) as at:
            error, waited = await timed(failure(at, streamed=streamed))
        require(isinstance(error, RequestTimeoutError), f"it raised {error!r}")
        require(same(waited, 20.0), f"timeout_seconds=20 took {waited:g} s")
    if not kit.streams:
        return
    async with kit.stage(Silent(), max_retries=0, first_event_timeout=5.0) as at:
        error, waited = await timed(failure(at, streamed=True))
        require(isinstance(error, RequestTimeoutError), f"it raised {error!r}")
        require(same(waited, 5.0), f"first_event_timeout=5 took {waited:g} s")
    scene = Says("Hello, ☃!")
    half = kit.pieces(scene) // 2
    async with kit.stage(msgspec.structs.replace(scene, after=half, then="hang"), stream_read_timeout=5.0) as at:
        outcome, waited = await timed(read_stream(at, at.request(max_retries=0, timeout_seconds=50.0)))
        require(isinstance(outcome.error, RequestTimeoutError), f"silence in a stream raised {outcome.error!r}")
        if outcome.events:
            require(check_stream(outcome.events).stop_reason is StopReason.ERROR, "it does not end in an error")
            require(same(waited, 5.0), f"stream_read_timeout=5 took {waited:g} s")
        await at.must_release("the connection was not closed")
