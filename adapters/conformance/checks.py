"""The checks of an adapter: their registration, steps and requirements, and the table of their results."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

import anyio
import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.content import ContentBlock, TextBlock, ToolUseBlock

from ..config import RetryPolicy
from ..contract import AdapterStream, CanonicalRequest, CanonicalResponse
from .http_kit import HttpKit
from .kit import CALLS, Kit, NotShown, Says, Stage, run_virtual

T = TypeVar("T")

LIMIT_SECONDS = 3600.0
"""The virtual seconds after which a check is reported as hanging."""

REAL_LIMIT_SECONDS = 60.0
"""The real seconds after which a check is reported as hanging, if the kit runs in real time."""

Body: TypeAlias = Callable[[Kit], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """A check of one required behaviour."""

    name: str
    sentence: str
    """The behaviour, as one sentence."""
    section: str
    """The section of the contract."""
    proves: str
    """The point of the new-provider checklist that the check proves."""
    body: Body = field(repr=False)
    """The function that checks a kit."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    check: Check
    result: Literal["passed", "failed", "skipped"]
    reason: str = ""
    """The reason why the check was skipped or failed; empty if it passed."""
    error: BaseException | None = field(default=None, repr=False)
    """The exception of a check that failed."""


CHECKS: list[Check] = []
"""All checks in the order of running."""


def check(section: str, proves: str = "") -> Callable[[Body], Body]:
    """Register a function as a check. The first line of the function's docstring is the check's sentence."""

    def add(body: Body) -> Body:
        doc = body.__doc__ or ""
        name = getattr(body, "__name__", "")
        CHECKS.append(Check(name, doc.strip().splitlines()[0].rstrip("."), section, proves, body))
        return body

    return add


def run_check(one: Check, kit: Kit, backend: str = "virtual-asyncio") -> Outcome:
    """Run one check, on virtual time unless the kit needs real time. Exceptions of the adapter are not raised."""
    limit = REAL_LIMIT_SECONDS if kit.real_time else LIMIT_SECONDS

    async def body() -> None:
        with anyio.fail_after(limit):
            await one.body(kit)

    try:
        run_virtual(body, "asyncio" if kit.real_time else backend)
    except Exception as error:
        cause = _only(error)
        match cause:
            case NotShown():
                return Outcome(one, "skipped", str(cause))
            case AssertionError():
                return Outcome(one, "failed", str(cause) or "an assertion failed", cause)
            case TimeoutError():
                return Outcome(one, "failed", "it hangs", cause)
            case _:
                return Outcome(one, "failed", f"raised {type(cause).__name__}: {cause}", cause)
    return Outcome(one, "passed")


def run_checks(kit: Kit, backend: str = "virtual-asyncio") -> list[Outcome]:
    """Run all checks."""
    return [run_check(one, kit, backend) for one in CHECKS]


def _only(error: BaseException) -> BaseException:
    """Return the exception inside an exception group. If there are several, prefer a failed assertion."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_only(each) for each in error.exceptions]
    return next((each for each in inner if isinstance(each, AssertionError)), inner[0])


# --- Steps of checks ---


def require(condition: object, message: str) -> None:
    """Raise an AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


PATIENCE_SECONDS = 30.0
"""The virtual time in seconds within which a cancelled call or a closed adapter must end."""

SOON = RetryPolicy(base_delay=0.01, jitter=False)
"""A retry policy with short waits, for checks that don't measure the waits."""


@contextmanager
def within(what: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Fail with the name of the step if the step takes longer than `seconds`."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise AssertionError(f"{what} hangs")


@dataclass
class StreamOutcome:
    """The events of a stream, and its exception."""

    events: list[StreamEvent] = field(default_factory=list)
    error: AdapterError | None = None
    """The exception after the events; None if there was none."""


async def listen(stream: AsyncIterator[StreamEvent], outcome: StreamOutcome | None = None) -> StreamOutcome:
    """Read a stream to its end, or to an AdapterError."""
    outcome = outcome or StreamOutcome()
    try:
        async for event in stream:
            outcome.events.append(event)
    except AdapterError as error:
        outcome.error = error
    return outcome


async def read_stream(at: Stage, request: CanonicalRequest | None = None) -> StreamOutcome:
    return await listen(at.adapter.stream(request or at.request()))


async def read_events(at: Stage, request: CanonicalRequest | None = None) -> list[StreamEvent]:
    """Read a whole stream that must not fail."""
    outcome = await read_stream(at, request)
    require(outcome.error is None, f"the stream raised {outcome.error!r}")
    return outcome.events


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    """Return the result and the time that it took, in seconds."""
    before = anyio.current_time()
    result = await work
    return result, anyio.current_time() - before


async def first_event(stream: AdapterStream) -> StreamEvent:
    """The first event of a stream that must have one."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise AssertionError("the stream has no events") from None


async def failure(at: Stage, *, streamed: bool, request: CanonicalRequest | None = None) -> AdapterError:
    """The AdapterError of a call that must fail before anything is delivered."""
    if streamed:
        outcome = await read_stream(at, request)
        require(
            not outcome.events,
            f"a call that failed before its reply must have no events, but the events are {outcome.events}",
        )
        if outcome.error is None:
            raise AssertionError("stream() raised nothing")
        return outcome.error
    try:
        response = await at.adapter.complete(request or at.request())
    except AdapterError as error:
        return error
    raise AssertionError(f"complete() returned {response!r}")


def content_in_short(content: Sequence[ContentBlock]) -> list[object]:
    """The content without ids and opaque data, for comparisons."""
    short: list[object] = []
    for block in content:
        match block:
            case TextBlock():
                short.append(block.text)
            case ToolUseBlock():
                short.append((block.name, block.input, block.incomplete))
            case _:
                short.append(type(block).__name__)
    return short


def expected_in_short(scene: Says) -> list[object]:
    """The expected content of a scene, without reasoning."""
    text: list[object] = [scene.text] if scene.text else []
    return text + [(name, arguments, False) for name, arguments in CALLS[: scene.calls]]


def in_short(response: CanonicalResponse) -> tuple[list[object], str]:
    """Return the content without ids, and the stop reason."""
    return content_in_short(response.content), str(response.stop_reason)


def with_one_id(events: Sequence[StreamEvent]) -> list[bytes]:
    """Events as JSON, for comparisons: the random ids of tool calls are replaced by numbers."""
    numbers: dict[str, str] = {}
    texts: list[bytes] = []
    for event in events:
        text = msgspec.json.encode(event).decode()
        for block in getattr(event, "final_content", ()):
            if isinstance(block, ToolUseBlock):
                numbers.setdefault(block.id, f"call {len(numbers)}")
        call_id = getattr(event, "tool_use_id", None)
        if call_id:
            numbers.setdefault(call_id, f"call {len(numbers)}")
        for found, number in numbers.items():
            text = text.replace(found, number)
        texts.append(text.encode())
    return texts


# --- Requirements on the kit ---


def over_http(kit: Kit) -> HttpKit:
    """Return the kit, or skip the check if the adapter does not use HTTP."""
    if not isinstance(kit, HttpKit):
        raise NotShown("the adapter is not over HTTP")
    return kit


def streaming(kit: Kit) -> None:
    """Skip the check if the adapter does not stream."""
    if not kit.streams:
        raise NotShown("the adapter does not stream")


def keyed(kit: Kit) -> None:
    """Skip the check if the provider has no keys."""
    if not kit.takes_key:
        raise NotShown("the provider needs no key")


def waiting(kit: Kit) -> None:
    """Skip the check if the kit runs in real time, because the check would take minutes."""
    if kit.real_time:
        raise NotShown("it waits for minutes and needs virtual time")


def calling(at: Stage, calls: int = 1) -> None:
    """Skip the check if the model makes fewer than `calls` tool calls in one reply."""
    if not at.capabilities.supports_tools:
        raise NotShown("supports_tools is False")
    if calls > 1 and not at.capabilities.supports_parallel_tool_calls:
        raise NotShown("supports_parallel_tool_calls is False")


async def replies(kit: Kit) -> list[Says]:
    """The replies that the models of this adapter can give."""
    async with kit.stage() as at:
        tools, parallel = at.capabilities.supports_tools, at.capabilities.supports_parallel_tool_calls
    possible = [Says("Hello, ☃!"), Says("Once upon a", stop="length"), Says("")]
    if tools:
        possible += [Says("", calls=1, stop="tools"), Says("Let me look.", calls=1, stop="tools")]
    if tools and parallel:
        possible += [Says("", calls=2, stop="tools"), Says("Let me look.", calls=2, stop="tools")]
    return possible


async def longest(kit: Kit) -> Says:
    return (await replies(kit))[-1]


# --- Results for people ---

SECTIONS = {
    "3.1": "methods",
    "3.2": "request",
    "3.4": "capabilities",
    "4": "reply",
    "4.1": "translation",
    "4.4": "history",
    "5.2": "streaming",
    "5.3": "invariants",
    "5.4": "cancelling",
    "5.5": "fragments",
    "6.1": "errors",
    "6.2": "errors",
    "6.3": "errors",
    "6.4": "retries",
    "6.5": "late errors",
    "7": "usage",
    "8": "keys",
    "10": "agreement",
}
"""The subject of each section of the contract; docs/adding-a-provider.md explains them."""

CHECKLIST = (
    "Model mapping defined",
    "Tool definition format implemented and tested",
    "Message conversion (both directions) implemented and tested",
    "System prompt format handled",
    "Tool choice mapping implemented",
    "Streaming adapter implemented and tested",
    "Error normalisation implemented",
    "Strict schema transformation (if applicable)",
    "Retry configuration tuned",
    "Full integration test suite passing",
)
"""Points of the new-provider checklist that checks can prove."""

BY_HAND = (
    "Behaviour compensations identified and implemented",
    "Provider-specific prompt addendum written",
    "Tool count threshold determined",
)
"""Points of the checklist that need the real provider."""

WIDTH = 110


def table(outcomes: Sequence[Outcome]) -> str:
    """One line for each check, failures below it, and the totals."""
    lines: list[str] = []
    for outcome in outcomes:
        check = outcome.check
        about = SECTIONS.get(check.section, "")
        head = f"{outcome.result:<8}{check.section:<5}{about:<14}"
        wrapped = textwrap.wrap(check.sentence, WIDTH - len(head))
        lines.append(head + wrapped[0])
        lines += [" " * len(head) + line for line in wrapped[1:]]
        if outcome.reason:
            reason = outcome.reason
            if outcome.result == "failed":
                reason = f"{check.name}: {reason if len(reason) <= 600 else reason[:600] + '...'}"
            lines += [" " * len(head) + f"  {line}" for line in textwrap.wrap(reason, WIDTH - len(head) - 2)]
    results = [outcome.result for outcome in outcomes]
    lines.append(", ".join(f"{results.count(result)} {result}" for result in ("passed", "failed", "skipped")))
    return "\n".join(lines)


def checklist(outcomes: Iterable[Outcome]) -> str:
    """The new-provider checklist: proved, not proved (with the checks), or to be decided by hand."""
    outcomes = list(outcomes)
    lines = []
    for point in CHECKLIST:
        all_points = point == CHECKLIST[-1]
        of_point = [outcome for outcome in outcomes if all_points or outcome.check.proves == point]
        failed = [outcome.check.name for outcome in of_point if outcome.result == "failed"]
        skipped = sorted({outcome.reason for outcome in of_point if outcome.result == "skipped"})
        if failed:
            lines.append(f"[ ] {point}: failed, {', '.join(failed[:4])}{' ...' if len(failed) > 4 else ''}")
        elif all(outcome.result == "skipped" for outcome in of_point):
            lines.append(f"[-] {point}: {'; '.join(skipped) or 'not checked'}")
        else:
            lines.append(f"[x] {point}")
    lines += [f"[?] {point}: check by hand" for point in BY_HAND]
    return "\n".join(lines)


def checks_of(kit: Kit, *, backends: Sequence[str] = ("virtual-asyncio",)) -> Callable[..., None]:
    """A test function with one test for each check. Assign it to a name that starts with ``test_``.

    Args:
        kit: The kit.
        backends: The event loops to run on; ``virtual-trio`` needs trio.
    """
    import pytest

    @pytest.mark.parametrize("backend", backends)
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
    def test_conformance(check: Check, backend: str) -> None:
        outcome = run_check(check, kit, backend)
        if outcome.result == "skipped":
            pytest.skip(outcome.reason)
        if outcome.result == "failed":
            raise AssertionError(f"{check.sentence} ({check.section}): {outcome.reason}") from outcome.error

    return test_conformance
