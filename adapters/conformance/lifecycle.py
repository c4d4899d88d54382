"""Sections 3.1 and 8: the life of an adapter, and the secrecy of its key."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
from collections.abc import Callable, Iterator

import anyio
import anyio.lowlevel
import msgspec

from callboard.bus.errors import AdapterError, CancelledError
from callboard.bus.streams.events import MessageComplete, StreamEvent, ToolUseStart
from callboard.bus.values.content import TextBlock, ToolUseBlock
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, UsageSource

from ..contract import AdapterCapabilities, AttemptReport, CanonicalRequest, ProviderAdapter
from ..health import AdapterHealth, AdapterStatistics, ChecksHealth, ReportsStatistics
from .checks import (
    SOON,
    StreamOutcome,
    calling,
    check,
    first_event,
    keyed,
    listen,
    longest,
    over_http,
    read_events,
    read_stream,
    require,
    streaming,
    within,
)
from .kit import KEY, TOOLS, Fails, Kit, Says, Scene, Silent, Stage, Unreachable
from .streams import check_stream


@check("3.1", "Model mapping defined")
async def it_has_the_contracts_methods(kit: Kit) -> None:
    """The adapter has a name, capabilities and every method of ProviderAdapter."""
    async with kit.stage() as at:
        whole = isinstance(at.adapter, ProviderAdapter)
        require(whole, f"{type(at.adapter).__name__} lacks part of ProviderAdapter")
        require(at.adapter.name == kit.name, f"its name is {at.adapter.name!r}, the kit says {kit.name!r}")


@check("3.4", "Model mapping defined")
async def any_model_has_capabilities(kit: Kit) -> None:
    """`get_capabilities` answers for an unknown model, with limits above 0, and sends nothing."""
    async with kit.stage() as at:
        for model in (kit.model, "nobody-knows-it"):
            found = at.adapter.get_capabilities(model)
            require(isinstance(found, AdapterCapabilities), f"the capabilities of {model!r} are {found!r}")
            require(found.max_output_tokens > 0 and found.max_context_tokens > 0, f"its limits are {found}")
        require(at.asked() == 0, "it asked the provider")


@check("3.1")
async def the_estimate_needs_no_request(kit: Kit) -> None:
    """`estimate_input_tokens` returns more than 0, grows with the text, and sends nothing."""
    async with kit.stage() as at:
        short = at.adapter.estimate_input_tokens([Message.user("Hello")])
        long = at.adapter.estimate_input_tokens([Message.user("Hello " * 100)], TOOLS, "Be brief.")
        require(0 < short < long, f"estimated {short} for a word and {long} for a hundred with tools")
        require(at.asked() == 0, "it asked the provider")


@check("3.1")
async def lifecycle_hooks_are_optional(kit: Kit) -> None:
    """`initialize`, `health_check` and `statistics` are optional. An existing one works and never raises."""
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        initialize = getattr(at.adapter, "initialize", None)
        if initialize is not None:
            await initialize()
            await initialize()
        require((await at.adapter.complete(at.request())).text == "Hi.", "it does not answer")
        if isinstance(at.adapter, ReportsStatistics):
            found = at.adapter.statistics()
            require(isinstance(found, AdapterStatistics), f"statistics() is {found!r}")
            require(found.calls == 0, f"no call runs, and {found.calls} are counted")
    for scene in (Says("Hi.", streamed=False), Fails("bad key"), Unreachable()):
        async with kit.stage(scene) as at:
            if isinstance(at.adapter, ChecksHealth):
                health = await at.adapter.health_check()
                require(isinstance(health, AdapterHealth | bool), f"health_check() is {health!r}")


@check("3.1")
async def an_unused_adapter_can_be_closed_twice(kit: Kit) -> None:
    """`close()` works on an adapter that was never used, and again."""
    async with kit.stage() as at:
        await at.adapter.close()
        await at.adapter.close()


@check("8")
async def the_key_is_in_one_header_only(kit: Kit) -> None:
    """The key is in at most one header, never in the address or the body."""
    keyed(kit)
    over_http(kit)
    async with kit.stage(Says("Hi.", streamed=False), Says("Hi.")) as at:
        await at.adapter.complete(at.request())
        check_stream(await read_events(at))
        for request in at.requests or ():
            headers = [name for name, value in request.headers.items() if KEY in value]
            require(len(headers) <= 1, f"the key is in {headers}")
            require(KEY not in request.url, "the key is in the address, which ends up in logs")
            require(KEY not in request.body.decode("utf-8", "replace"), "the key is in the body")


@check("8")
async def the_key_is_in_no_text(kit: Kit) -> None:
    """The key is in no repr, error, traceback, report or log line, even where the provider repeats it."""
    keyed(kit)
    found: list[str] = []
    with _listening() as logged:
        for streamed in (False, True):
            for condition in ("bad key", "server", "rate limit"):
                async with kit.stage_or_none(
                    *[Fails(condition, says=f"key {KEY}")] * 2, max_retries=1, retry=SOON
                ) as at:
                    if at is None:
                        continue
                    texts = {"repr(adapter)": repr(at.adapter), "str(adapter)": str(at.adapter)}
                    config = getattr(at.adapter, "config", None)
                    texts["repr(adapter.config)"] = repr(config)
                    reports: list[AttemptReport] = []
                    try:
                        if streamed:
                            async for _ in at.adapter.stream(at.request(), on_attempt=reports.append):
                                pass
                        else:
                            await at.adapter.complete(at.request(), on_attempt=reports.append)
                    except AdapterError as error:
                        texts["the error's text"] = str(error)
                        texts["the error's fields"] = repr(vars(error))
                        texts["the error's args"] = repr(error.args)
                        texts["the traceback"] = "".join(traceback.format_exception(error))
                    texts["the attempts' reports"] = repr(reports)
                    found += [f"{what} ({condition})" for what, text in texts.items() if KEY in text]
    if KEY in logged():
        found.append("the logs and the output")
    require(not found, f"the key is in {', '.join(dict.fromkeys(found))}")


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[], str]]:
    """Capture everything that is logged or printed."""
    printed = io.StringIO()
    root, handler = logging.getLogger(), logging.StreamHandler(printed)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield printed.getvalue
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# --- Section 5.4 ---

CANCELLING = "Streaming adapter implemented and tested"


@check("5.4", CANCELLING)
async def a_stream_can_be_cancelled_at_any_event(kit: Kit) -> None:
    """`cancel()` at any event closes open blocks, emits `message.complete(cancelled)` and ends the iterator."""
    streaming(kit)
    scene = await longest(kit)
    async with kit.stage(scene) as at:
        total = len((await read_stream(at)).events)
    for stop_after in range(1, total):
        when = f"after {stop_after} events"
        async with kit.stage(msgspec.structs.replace(scene, then="hang")) as at:
            stream = at.adapter.stream(at.request())
            events = [await first_event(stream)]
            while len(events) < stop_after:
                events.append(await anext(stream))
            with within(f"cancel() {when}"):
                running = await at.adapter.cancel("req_1")
            with within(f"the stream that was cancelled {when}"):
                outcome = await listen(stream)
            outcome.events[:0] = events
            _check_end(outcome, cancelled=running, when=when)
            with within(f"a second cancel() {when}"):
                require(await at.adapter.cancel("req_1") is False, "cancel() after the end is not False")
            await at.must_release(f"cancelled {when}, the connection was not closed")
            require((await listen(stream)).events == [], "a stream that has ended gave more events")


def _check_end(outcome: StreamOutcome, *, cancelled: bool, when: str) -> None:
    require(outcome.error is None, f"cancelled {when}, the stream raised {outcome.error!r}")
    last = check_stream(outcome.events)
    if not cancelled:  # the reply was complete before the reader got its last event
        require(last.stop_reason is not StopReason.CANCELLED, f"cancel() {when} was False, and cancelled the call")
        return
    require(last.stop_reason is StopReason.CANCELLED, f"cancelled {when}, it ends with {last.stop_reason!r}")
    require(last.usage.source is not UsageSource.REPORTED, f"cancelled {when}, its usage passes for whole")


@check("5.4", CANCELLING)
async def cancelling_ends_a_waiting_read(kit: Kit) -> None:
    """`cancel()` from another task ends a stream that waits for its provider, before the reply or during it."""
    streaming(kit)
    scene = await longest(kit)
    scenes: list[Scene] = [Silent()]
    scenes += [msgspec.structs.replace(scene, after=count, then="hang") for count in range(kit.pieces(scene))]
    for number, waits in enumerate(scenes):
        when = f"while it waited for piece {number}"
        async with kit.stage(waits) as at:
            outcome = StreamOutcome()
            with within(f"the stream that was cancelled {when}"):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(listen, at.adapter.stream(at.request()), outcome)
                    await anyio.sleep(kit.moment)
                    running = await at.adapter.cancel("req_1")
            if number < len(scenes) // 2:  # a protocol's last pieces may come after its end
                require(running, f"cancel() {when} was False")
            _check_end(outcome, cancelled=running, when=when)
            await at.must_release(f"cancelled {when}, the connection was not closed")


@check("5.4", CANCELLING)
async def a_cancelled_call_keeps_its_text_and_marks_its_tool(kit: Kit) -> None:
    """Content received before the cancellation is kept.

    A tool call in progress is marked incomplete, with the arguments that parse, or {}.
    """
    streaming(kit)
    scene = await longest(kit)
    async with kit.stage(msgspec.structs.replace(scene, then="hang")) as at:
        calling(at)
        stream = at.adapter.stream(at.request())
        events: list[StreamEvent] = []
        async for event in stream:
            events.append(event)
            if isinstance(event, ToolUseStart):
                break
        running = await at.adapter.cancel("req_1")
        outcome = await listen(stream)
    last = check_stream(events + outcome.events)
    if not running:
        return
    texts = [block.text for block in last.final_content if isinstance(block, TextBlock)]
    require("".join(texts) == scene.text, f"of the text {scene.text!r} remains {texts}")
    call = last.final_content[-1]
    if not isinstance(call, ToolUseBlock):
        raise AssertionError(f"the started call is not in {last.final_content}")
    require(call.incomplete or call.input, f"the call is not marked, and would be run without arguments: {call}")


async def _complete(at: Stage, request: CanonicalRequest, cancelled: list[object]) -> None:
    try:
        await at.adapter.complete(request)
    except CancelledError as error:
        cancelled.append(error)


@check("5.4", CANCELLING)
async def a_cancelled_complete_raises(kit: Kit) -> None:
    """A cancelled `complete()` raises CancelledError, whether it waits for a reply or for the next attempt."""
    for scene in (Silent(), Fails("rate limit", retry_after=50.0)):
        async with kit.stage(scene, Silent()) as at:
            raised: list[object] = []
            with within("the call that was cancelled"):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_complete, at, at.request(), raised)
                    await anyio.sleep(kit.moment)
                    require(await at.adapter.cancel("req_1") is True, "cancel() of a running call is not True")
            require(raised, f"it did not raise CancelledError, cancelled after {scene}")
            require(await at.adapter.cancel("req_1") is False, "cancel() after the end is not False")
            require(at.asked() == 1, "another attempt was made after the cancel")
            await at.must_release("the connection was not closed")


@check("5.4", CANCELLING)
async def cancelling_an_unknown_call_returns_false(kit: Kit) -> None:
    """`cancel()` returns False for an unknown or finished call, and raises nothing."""
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        require(await at.adapter.cancel("req_unknown") is False, "cancel() of an unknown call is not False")
        await at.adapter.complete(at.request())
        require(await at.adapter.cancel("req_1") is False, "cancel() of a finished call is not False")


@check("5.4", CANCELLING)
async def an_abandoned_stream_closes_the_connection(kit: Kit) -> None:
    """Leaving `async with`, `aclose()` and an exception in the reader end the call and close its connection."""
    streaming(kit)
    scene = Says("Hello, ☃!", then="hang")
    async with kit.stage(scene, scene, scene) as at:
        with within("leaving a stream"):
            async with at.adapter.stream(at.request()) as stream:
                await first_event(stream)
            await at.must_release("leaving its context did not close the connection")
            stream = at.adapter.stream(at.request())
            await first_event(stream)
            await stream.aclose()
            await stream.aclose()
            await at.must_release("aclose() did not close the connection")
            try:
                async with at.adapter.stream(at.request()) as stream:
                    await first_event(stream)
                    raise KeyError
            except KeyError:
                pass
            await at.must_release("an exception in its context did not close the connection")
        require(await at.adapter.cancel("req_1") is False, "a call whose stream was left still runs")


@check("5.4", CANCELLING)
async def the_hosts_own_cancellation_passes_through(kit: Kit) -> None:
    """Cancelling the waiting task ends the call without an event or an error, and closes its connection."""
    for streamed in (False, True):
        async with kit.stage(Silent()) as at:
            events: list[StreamEvent] = []
            with within("a call whose task was cancelled"), anyio.move_on_after(kit.moment) as scope:
                if streamed:
                    async for event in at.adapter.stream(at.request()):
                        events.append(event)  # noqa: PERF401  (what came before the end counts)
                else:
                    await at.adapter.complete(at.request())
            require(scope.cancelled_caught, "the cancellation was swallowed")
            completes = [event for event in events if isinstance(event, MessageComplete)]
            require(not completes, f"it was turned into {completes}")
            await at.must_release("the connection was not closed")
            require(await at.adapter.cancel("req_1") is False, "the call still runs")


@check("5.4", CANCELLING)
async def concurrent_calls_are_cancelled_separately(kit: Kit) -> None:
    """Cancelling one call does not affect other calls."""
    streaming(kit)
    async with kit.stage(*[Says("Hello, ☃!", pause=2 * kit.moment)] * 4) as at:
        reasons: dict[str, StopReason] = {}

        async def one(request_id: str) -> None:
            outcome = await read_stream(at, at.request(request_id=request_id))
            require(outcome.error is None, f"{request_id} raised {outcome.error!r}")
            reasons[request_id] = check_stream(outcome.events).stop_reason

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(one, f"req_{number}")
            await anyio.sleep(kit.moment)
            for number in (0, 2):
                require(await at.adapter.cancel(f"req_{number}"), "cancel() of a running call is not True")
    found = [reasons[f"req_{number}"] for number in range(4)]
    require(found == [StopReason.CANCELLED, StopReason.END_TURN] * 2, f"1 and 3 of 4 were cancelled: {found}")


@check("3.1", "")
async def closing_ends_running_calls(kit: Kit) -> None:
    """`close()` ends every running call as cancelled and releases all connections. A second call does nothing."""
    async with kit.stage(Silent(), Silent()) as at:
        ended: list[object] = []

        async def stream() -> None:
            outcome = await read_stream(at, at.request(request_id="req_stream"))
            require(outcome.error is None, f"the stream raised {outcome.error!r}")
            ended.append(check_stream(outcome.events).stop_reason)

        with within("closing an adapter with calls"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream)
                tasks.start_soon(_complete, at, at.request(request_id="req_plain"), ended)
                await anyio.sleep(kit.moment)
                await at.adapter.close()
                await at.adapter.close()
        require(len(ended) == 2, f"of two calls ended {ended}")
        await at.must_release("a connection was not closed")
