"""Each of Callboard's adapters passes the conformance kit, and each broken adapter fails it."""

from __future__ import annotations

import asyncio
import functools
import selectors
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import CHECKS, KEY, Check, HttpKit, Kit, ServedKit, run_check
from callboard.adapters.contract import AdapterCapabilities, AttemptObserver, CanonicalRequest, CanonicalResponse
from callboard.adapters.health import AdapterHealth
from callboard.adapters.http.stream import HttpStream
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.whole import WholeStream
from callboard.adapters.requests.history_target import WireCall
from callboard.adapters.transport.transport import HttpReply, Transport
from callboard.bus.clock import Clock
from callboard.bus.errors import AdapterError, InvalidRequestError, ServerError
from callboard.bus.streams.events import MessageComplete, StreamEvent, TextDelta, ToolUseInputDelta
from callboard.bus.values.messages import CallWarning, Message
from callboard.bus.values.usage import StopReason
from callboard.engine.tools.running import run_in_thread
from examples.adding_a_provider.kit import ParleyKit
from examples.adding_a_provider.parley import ParleyAdapter, ParleyNormaliser, ParleyWire

from ..support.depth import first_is_quick, quick_if
from ..support.virtual_time import backend, run_virtual
from ..support.wires import KITS, QUIRKY, ChatWire
from .local_kits import LOCAL
from .scripted_kit import SCRIPTED


def passes(kit: Kit, check: Check, backend: str) -> None:
    outcome = run_check(check, kit, backend)
    if outcome.result == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.result == "passed", outcome.reason


ROOT = Path(__file__).parents[2]

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


ON_TRIO = [check for check in CHECKS if "cancel" in check.name or check.name == "stream_and_complete_agree"]
"""The checks that can differ between event loops: a streamed and a plain call, and cancelling."""


EVERY_CUT = ("events_do_not_depend_on_chunk_boundaries", "a_truncated_stream_is_an_error")
"""The checks that read a stream once for each place where it can be cut."""
OVER_HTTP = [(wire, check) for wire in KITS for check in CHECKS]


@pytest.mark.parametrize(
    ("wire", "check"),
    quick_if(
        OVER_HTTP,
        lambda n: OVER_HTTP[n][1].name not in EVERY_CUT or OVER_HTTP[n][0].name in ("anthropic", "ollama"),
        "one wire with events and one with lines are cut everywhere",
        rows=True,
    ),
    ids=lambda value: value.name,
)
def test_an_adapter_over_http_passes(wire: Kit, check: Check) -> None:
    """Checks that the provider does not support are skipped with the reason."""
    passes(wire, check, "virtual-asyncio")


@pytest.mark.parametrize("check", ON_TRIO, ids=lambda check: check.name)
@pytest.mark.parametrize(
    "wire",
    first_is_quick([KITS[0], SCRIPTED, *KITS[1:]], "the loop is below the wires", quick=2),
    ids=lambda wire: wire.name,
)
def test_an_adapter_passes_on_trio(wire: Kit, check: Check) -> None:
    passes(wire, check, "virtual-trio")


@pytest.mark.deep("sixty checks of each server with quirks")
@each_check
@pytest.mark.parametrize("wire", QUIRKY, ids=lambda wire: wire.quirks)
def test_a_server_with_quirks_passes(wire: ChatWire, check: Check) -> None:
    """The differences in the server's requests do not affect the guarantees."""
    passes(wire, check, "virtual-asyncio")


@each_check
def test_the_scripted_adapter_passes(check: Check) -> None:
    """The kit of the scripted adapter sets up scenes without HTTP."""
    passes(SCRIPTED, check, "virtual-asyncio")


class ServedParley(ServedKit, ParleyKit):
    """Parley over real sockets."""


@each_check
def test_an_adapter_with_its_own_client_passes(check: Check) -> None:
    """The adapter runs against a real server on this machine."""
    passes(ServedParley(), check, "asyncio")


def test_programs_without_the_kit_do_not_load_it() -> None:
    """The adapters and the engine don't import the kit. The kit loads no test framework and no second event
    loop.
    """
    code = "import sys, {}; print(*sys.modules)"
    found: dict[str, set[str]] = {}
    for package in ("callboard", "callboard.adapters.conformance"):
        run = subprocess.run(
            [sys.executable, "-c", code.format(package)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found[package] = set(run.stdout.split())
    assert not {name for name in found["callboard"] if "callboard.adapters.conformance" in name}
    assert not found["callboard.adapters.conformance"] & {"pytest", "trio", "httpx", "hypothesis"}


@each_check
@pytest.mark.parametrize(
    "wire", first_is_quick(LOCAL, "its other protocols are wires that pass above"), ids=lambda wire: wire.name
)
def test_the_local_model_passes(wire: Kit, check: Check) -> None:
    """Each of its protocols passes, with a scripted server."""
    passes(wire, check, "virtual-asyncio")


class Bare:
    """Parley with only the methods of the contract, without streaming."""

    name = "parley"

    def __init__(self, config: AdapterConfig, *, transport: Transport, clock: Clock) -> None:
        self._inner = ParleyAdapter(config, transport=transport, clock=clock)
        self.capabilities = msgspec.structs.replace(
            self._inner.capabilities, supports_streaming=False, supports_streaming_tool_calls=False
        )
        self.complete = self._inner.complete
        self.cancel = self._inner.cancel
        self.close = self._inner.close
        self.estimate_input_tokens = self._inner.estimate_input_tokens

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> WholeStream:
        return WholeStream(self, request, request.message_id or self._inner.clock.new_id("msg"), on_attempt)


class BareKit(ParleyKit):
    adapter = Bare
    streams = False


@each_check
def test_an_adapter_without_hooks_or_streaming_passes(check: Check) -> None:
    """Optional checks are skipped, and all other checks run."""
    passes(BareKit(), check, "virtual-asyncio")


# -- The conformance kit finds faults of an adapter. Each adapter here has one fault, and a check finds it.


class Changed(HttpStream):
    """A stream whose events pass through the adapter's `change`, which returns any number of events for each."""

    waiting: list[StreamEvent]
    _changing: Changing

    async def __anext__(self) -> StreamEvent:
        self.waiting = getattr(self, "waiting", [])
        while not self.waiting:
            self.waiting += self._changing.change(await super().__anext__())
        return self.waiting.pop(0)


class Changing(ParleyAdapter):
    """The base of adapters that damage their events."""

    stream_type: type[HttpStream] = Changed

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> HttpStream:
        stream = super().stream(request, on_attempt=on_attempt)
        assert isinstance(stream, HttpStream)
        stream.__class__ = self.stream_type
        stream._changing = self  # type: ignore[attr-defined]
        return stream

    def change(self, event: StreamEvent) -> list[StreamEvent]:
        return [event]


class DropsADelta(Changing):
    def change(self, event: StreamEvent) -> list[StreamEvent]:
        return [] if isinstance(event, TextDelta) and event.text.endswith("!") else [event]


class TwoTerminals(Changing):
    def change(self, event: StreamEvent) -> list[StreamEvent]:
        return [event, event] if isinstance(event, MessageComplete) else [event]


class SkipsIndexes(Changing):
    def change(self, event: StreamEvent) -> list[StreamEvent]:
        return [msgspec.structs.replace(event, content_block_index=7) if isinstance(event, TextDelta) else event]


class ParsesFragments(Changing):
    def change(self, event: StreamEvent) -> list[StreamEvent]:
        if not isinstance(event, ToolUseInputDelta):
            return [event]
        return [msgspec.structs.replace(event, partial_json=piece) for piece in event.partial_json]


class HoldsTextBack(Changing):
    held: list[StreamEvent]

    def change(self, event: StreamEvent) -> list[StreamEvent]:
        self.held = [*getattr(self, "held", []), event]
        if not isinstance(event, MessageComplete):
            return []
        held, self.held = self.held, []
        return held


class HangsOnCancel(ParleyAdapter):
    async def cancel(self, request_id: str) -> bool:
        await anyio.sleep_forever()
        return True


class DeafToCancel(ParleyAdapter):
    async def cancel(self, request_id: str) -> bool:
        return False


class AlwaysCancelled(ParleyAdapter):
    async def cancel(self, request_id: str) -> bool:
        await super().cancel(request_id)
        return True


class Leaky(Changing):
    """An adapter that keeps its connection open when its stream is closed."""

    class Left(HttpStream):
        async def aclose(self) -> None:
            self._call.ended = True

    stream_type = Left


class NeedsAwait(ParleyAdapter):
    async def stream(  # type: ignore[override]
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> AsyncIterator[StreamEvent]:
        return super().stream(request, on_attempt=on_attempt)


class LosesCalls(ParleyAdapter):
    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        response = await super().complete(request, on_attempt=on_attempt)
        return msgspec.structs.replace(response, content=response.content[:1])


class _CrashesOnNews(ParleyNormaliser):
    def on_event(self, name: bytes, data: bytes) -> None:
        if b"mood" in data:
            raise ServerError("an event of an unknown kind", retryable=False)
        super().on_event(name, data)


class CrashesOnNews(ParleyWire):
    def normaliser(self, assembler: Assembler) -> ParleyNormaliser:
        return _CrashesOnNews(assembler)


class _SwallowsTruncation(ParleyNormaliser):
    def on_end(self) -> None:
        self.assembler.finish(StopReason.END_TURN, None)
        self.finished = True


class SwallowsTruncation(ParleyWire):
    def normaliser(self, assembler: Assembler) -> ParleyNormaliser:
        return _SwallowsTruncation(assembler)


class RaisesForeign(ParleyWire):
    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        try:
            super().read_reply(body, headers, assembler)
        except msgspec.DecodeError as error:
            raise ValueError("no reply of Parley's") from error


class LeaksTheKey(ParleyWire):
    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        error = super().error_of(body, reply)
        error.__cause__ = ValueError(f"headers were {dict(self.auth_headers())}")
        return error


class KeyInTheAddress(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        wire = super().write_request(request, stream=stream)
        return msgspec.structs.replace(wire, path=f"{wire.path}?key={self.config.api_key}")


class NeverRetries(ParleyAdapter):
    def __init__(self, config: object, **others: object) -> None:
        super().__init__(msgspec.structs.replace(config, max_retries=0), **others)  # type: ignore[type-var, arg-type]


class RetriesEverything(ParleyWire):
    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        error = super().error_of(body, reply)
        error.retryable = True
        return error


class IgnoresHints(ParleyWire):
    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        error = super().error_of(body, reply)
        error.retry_after_seconds = None
        return error


class OneError(ParleyWire):
    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        return InvalidRequestError(f"status {reply.status}", provider_status=reply.status)


class IgnoresImages(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        texts = tuple(Message.user(message.text) for message in request.messages if message.text)
        return super().write_request(
            msgspec.structs.replace(request, messages=texts, output_schema=None), stream=stream
        )


class NewIds(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        wire = super().write_request(request, stream=stream)
        return msgspec.structs.replace(wire, body=wire.body.replace(b'"ask-', b'"new-'))


class ForgetsTheSystemText(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        return super().write_request(msgspec.structs.replace(request, system_prompt=None), stream=stream)


class DropsTheHostsField(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        return super().write_request(msgspec.structs.replace(request, provider_options={}), stream=stream)


class HostsFieldsOnly(ParleyWire):
    """A wire on which the host's fields replace the adapter's."""

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        wire = super().write_request(msgspec.structs.replace(request, provider_options={}), stream=stream)
        body = {**msgspec.json.decode(wire.body), **request.provider_options.get(self.name, {})}  # type: ignore[dict-item]
        return msgspec.structs.replace(wire, body=msgspec.json.encode(body))


class HostSaysHow(HostsFieldsOnly):
    """A wire on which the host's fields replace those that decide how a reply is read."""


class TakesAnyEffort(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        return super().write_request(msgspec.structs.replace(request, reasoning_effort=None), stream=stream)


class InventsACode(ParleyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        wire = super().write_request(request, stream=stream)
        return msgspec.structs.replace(wire, warnings=(CallWarning("it_rained", "It rained."),))


class CountsTwice(ParleyAdapter):
    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        response = await super().complete(request, on_attempt=on_attempt)
        usage = msgspec.structs.replace(response.usage, input_tokens=12)
        return msgspec.structs.replace(response, usage=usage)


class HealthRaises(ParleyAdapter):
    async def health_check(self) -> AdapterHealth:
        raise ValueError("no connection")


class NoTimeouts(ParleyAdapter):
    def __init__(self, config: object, **others: object) -> None:
        patient = msgspec.structs.replace(config, timeout_seconds=9e9, first_event_timeout=9e9)  # type: ignore[type-var]
        super().__init__(patient, **others)  # type: ignore[arg-type]


BROKEN: Mapping[type[ParleyAdapter] | type[ParleyWire], str] = {
    DropsADelta: "deltas_add_up_to_the_final_content",
    TwoTerminals: "a_message_starts_first_and_completes_last",
    SkipsIndexes: "blocks_come_one_after_another",
    ParsesFragments: "json_fragments_are_passed_on_unchanged",
    HoldsTextBack: "text_is_delivered_as_it_arrives",
    HangsOnCancel: "a_stream_can_be_cancelled_at_any_event",
    DeafToCancel: "cancelling_ends_a_waiting_read",
    AlwaysCancelled: "cancelling_an_unknown_call_returns_false",
    Leaky: "an_abandoned_stream_closes_the_connection",
    NeedsAwait: "stream_is_iterated_without_await",
    LosesCalls: "stream_and_complete_agree",
    CrashesOnNews: "unknown_events_are_tolerated",
    SwallowsTruncation: "a_truncated_stream_is_an_error",
    RaisesForeign: "a_malformed_reply_is_an_adapter_error",
    LeaksTheKey: "the_key_is_in_no_text",
    KeyInTheAddress: "the_key_is_in_one_header_only",
    NeverRetries: "a_call_makes_one_plus_max_retries_attempts",
    RetriesEverything: "permanent_failures_are_not_retried",
    IgnoresHints: "retry_after_is_respected",
    OneError: "each_condition_has_its_exception",
    IgnoresImages: "missing_capabilities_are_refused_or_warned_of",
    NewIds: "a_providers_ids_are_sent_back",
    ForgetsTheSystemText: "the_system_text_is_sent",
    DropsTheHostsField: "a_hosts_field_is_sent_or_refused",
    HostsFieldsOnly: "a_hosts_tools_are_sent_or_refused",
    HostSaysHow: "provider_options_cannot_change_model_or_streaming",
    InventsACode: "every_warning_has_a_known_code",
    TakesAnyEffort: "an_unknown_reasoning_effort_is_refused",
    CountsTwice: "usage_is_the_providers_count",
    HealthRaises: "lifecycle_hooks_are_optional",
    NoTimeouts: "time_limits_are_kept",
}


def adapter_of(kind: type[ParleyAdapter] | type[ParleyWire]) -> type[ParleyAdapter]:
    """The adapter, or the correct adapter with that wire."""
    if issubclass(kind, ParleyAdapter):
        return kind

    class Broken(ParleyAdapter):
        wire_type = kind

    return Broken


def kit_of(kind: type[ParleyAdapter] | type[ParleyWire]) -> HttpKit:
    class Broken(ParleyKit):
        adapter = adapter_of(kind)

    return Broken()


@pytest.mark.parametrize("kind", [DropsADelta, Leaky], ids=lambda kind: kind.__name__)
def test_a_broken_adapter_is_caught_over_real_sockets(kind: type[ParleyAdapter]) -> None:
    class Served(ServedKit, ParleyKit):
        adapter = kind

    (check,) = [check for check in CHECKS if check.name == BROKEN[kind]]
    assert run_check(check, Served()).result == "failed"


@pytest.mark.parametrize(("kind", "name"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_adapter_fails_its_check(kind: type[ParleyAdapter] | type[ParleyWire], name: str) -> None:
    """The check of that fault fails. The correct adapter passes the check."""
    (check,) = [check for check in CHECKS if check.name == name]
    outcome = run_check(check, kit_of(kind))
    assert outcome.result == "failed", outcome
    assert outcome.reason
    assert KEY not in outcome.reason
    assert run_check(check, kit_of(ParleyAdapter)).result == "passed"


# -- Virtual time advances when no task can run, but not while a thread works for the loop.


InThread = Callable[[Callable[[], object]], Awaitable[object]]


async def in_sqlite(work: Callable[[], object]) -> None:
    async with aiosqlite.connect(":memory:") as connection:
        await connection.create_function("work", 0, work)
        await connection.execute("SELECT work()")


THREADS: dict[str, tuple[str, InThread]] = {
    "anyio on asyncio": ("virtual-asyncio", anyio.to_thread.run_sync),
    "anyio on trio": ("virtual-trio", anyio.to_thread.run_sync),
    "asyncio": ("virtual-asyncio", asyncio.to_thread),
    "aiosqlite": ("virtual-asyncio", in_sqlite),
    "a plain tool": ("virtual-asyncio", run_in_thread),
}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set when an asyncio loop waits in real time without an end."""
    said = threading.Event()
    select = selectors.DefaultSelector.select

    def told(selector: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            said.set()
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", told)
    return said


class TrioWaits:
    """The same for trio, as an instrument."""

    def __init__(self, said: threading.Event) -> None:
        self._said = said

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self._said.set()


@pytest.mark.parametrize("name", THREADS)
def test_no_time_passes_while_a_thread_works(name: str, waits: threading.Event) -> None:
    """The thread works until the loop waits in real time or until a timer ends. The loop must wait first."""
    kind, in_thread = THREADS[name]
    order: list[tuple[str, float]] = []
    began = 0.0

    async def timer() -> None:
        await anyio.sleep(1)
        order.append(("timer", anyio.current_time() - began))
        waits.set()

    async def main() -> None:
        nonlocal began
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(timer)
            await anyio.wait_all_tasks_blocked()
            waits.clear()
            await in_thread(waits.wait)
            order.append(("thread", anyio.current_time() - began))

    library, options = backend(kind)
    if (instruments := options.get("instruments")) is not None:
        assert isinstance(instruments, list)
        instruments.append(TrioWaits(waits))
    anyio.run(main, backend=library, backend_options=options)
    assert [what for what, _ in order] == ["thread", "timer"]
    assert order[0][1] < order[1][1] == 1.0


ABANDONED: dict[str, InThread] = {
    "anyio": functools.partial(anyio.to_thread.run_sync, abandon_on_cancel=True),
    "asyncio": asyncio.to_thread,
    "a plain tool": run_in_thread,
}


@pytest.mark.parametrize("name", ABANDONED)
def test_an_abandoned_thread_is_not_waited_for(name: str) -> None:
    """Time advances while the abandoned thread works, and its end is no error."""
    released, ended = threading.Event(), anyio.Event()

    async def work() -> None:
        try:
            await ABANDONED[name](released.wait)
        finally:
            ended.set()

    async def main() -> float:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert ended.is_set()
        await anyio.sleep(5)
        released.set()
        await anyio.to_thread.run_sync(lambda: None)
        return anyio.current_time()

    assert run_virtual(main) == 5


async def with_a_thread_of_its_own() -> None:
    done = asyncio.Event()
    threading.Thread(target=asyncio.get_running_loop().call_soon_threadsafe, args=(done.set,)).start()
    await done.wait()


def test_a_thread_that_cannot_be_waited_for_is_refused() -> None:
    """Otherwise its test would only fail on a busy machine, when a time limit ends too early."""
    with pytest.raises(RuntimeError, match="works for a loop with virtual time"):
        run_virtual(with_a_thread_of_its_own)
