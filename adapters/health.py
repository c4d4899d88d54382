"""Health and statistics of an adapter: the optional part of the contract.

An adapter may have `health_check()` and `statistics()`. Callers check with `isinstance`, and accept a plain bool
too.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import anyio
import msgspec

from callboard.bus.errors import CallboardError, InvalidRequestError

from .transport.addresses import place
from .transport.transport import HttpRequest, Transport, TransportStatistics, close_reply


class AdapterHealth(msgspec.Struct, frozen=True):
    """The result of a health check. Its truth value is `ok`."""

    ok: bool
    """Whether the provider answers and accepts the key."""
    detail: str
    """The finding, for people."""
    fix: str = ""
    """The remedy for a problem."""
    key_refused: bool = False
    """Whether the provider refused the key as invalid."""

    def __bool__(self) -> bool:
        return self.ok


class AdapterStatistics(msgspec.Struct, frozen=True):
    """A snapshot of an adapter's work."""

    calls: int
    """Calls in progress, including waits between attempts."""
    transport: TransportStatistics | None = None
    """The transport's connections; None if it doesn't count them."""


@runtime_checkable
class ChecksHealth(Protocol):
    """An adapter that can check its provider within seconds and for free."""

    async def health_check(self) -> AdapterHealth | bool:
        """Whether the provider answers. The check must be free and have no effect, and should not raise.

        An AdapterError means that the provider does not answer.
        """
        ...


@runtime_checkable
class ReportsStatistics(Protocol):
    """An adapter that counts its calls."""

    def statistics(self) -> AdapterStatistics: ...


@runtime_checkable
class CountingTransport(Protocol):
    def statistics(self) -> TransportStatistics: ...


def failed(error: CallboardError, fix: str = "") -> AdapterHealth:
    """Convert an error to a result. `fix` defaults to the text after the error's semicolon, or after its first
    sentence.
    """
    text = str(error)
    detail, _, advice = text.partition("; " if "; " in text else ". ")
    return AdapterHealth(False, detail, fix or advice)


async def probe(transport: Transport, request: HttpRequest, seconds: float) -> AdapterHealth:
    """Send one harmless request and derive the health from its status. Raises only cancellation."""
    where = place(request.url)
    reply = None
    try:
        with anyio.move_on_after(seconds):
            reply = await transport.send(request)
    except InvalidRequestError as error:
        return failed(error, "Correct them. Check for spaces and line breaks.")
    except CallboardError as error:
        return failed(error, f"Check the network, base_url and any proxy for {where}.")
    if reply is None:
        return AdapterHealth(
            False,
            f"{where} did not answer within {seconds:g} s",
            "Check the network and base_url. If other programs reach it, it is overloaded.",
        )
    await close_reply(reply)
    return judge(reply.status, f"HTTP {reply.status} from {where}")


def judge(status: int, text: str) -> AdapterHealth:
    """Judge the health by the status of a harmless, authenticated GET."""
    match status:
        case 401 | 403:
            fix = "Set a key that is valid there."
            return AdapterHealth(False, f"the key was rejected: {text}", fix, key_refused=True)
        case 407:
            return AdapterHealth(False, f"a proxy requires a password: {text}", "Check HTTPS_PROXY and NO_PROXY.")
        case 429:
            return AdapterHealth(True, f"answers, but the rate limit of this key is reached: {text}")
        case _ if status >= 500:
            return AdapterHealth(False, f"reports its own failure: {text}", "Try again later.")
        case _ if 300 <= status < 400:
            return AdapterHealth(False, f"redirects, and redirects are not followed: {text}", "Correct base_url.")
        case _:
            return AdapterHealth(True, f"answers: {text}")
