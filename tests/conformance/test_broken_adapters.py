"""The conformance kit finds what is wrong with an adapter: each of these is broken in one way, and caught."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import anyio
import msgspec
import pytest

from callboard.adapters.conformance import CHECKS, KEY, HttpKit, ServedKit, run_check
from callboard.adapters.contract import AttemptObserver, CanonicalRequest, CanonicalResponse
from callboard.adapters.health import AdapterHealth
from callboard.adapters.http.stream import HttpStream
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.transport.transport import HttpReply
from callboard.bus.errors import AdapterError, InvalidRequestError, ServerError
from callboard.bus.streams.events import MessageComplete, StreamEvent, TextDelta, ToolUseInputDelta
from callboard.bus.values.messages import CallWarning, Message
from callboard.bus.values.usage import StopReason
from examples.adding_a_provider.kit import ParleyKit
from examples.adding_a_provider.parley import ParleyAdapter, ParleyNormaliser, ParleyWire


class Changed(HttpStream):
    """A stream whose events pass through the adapter's `change`, which gives any number of events for each."""

    waiting: list[StreamEvent]
    _changing: Changing

    async def __anext__(self) -> StreamEvent:
        self.waiting = getattr(self, "waiting", [])
        while not self.waiting:
            self.waiting += self._changing.change(await super().__anext__())
        return self.waiting.pop(0)


class Changing(ParleyAdapter):
    """Base of those that break their events."""

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
    """Leaves its connection open when its stream is left."""

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
    """What the host says stands in place of what the adapter says."""

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        wire = super().write_request(msgspec.structs.replace(request, provider_options={}), stream=stream)
        body = {**msgspec.json.decode(wire.body), **request.provider_options.get(self.name, {})}  # type: ignore[dict-item]
        return msgspec.structs.replace(wire, body=msgspec.json.encode(body))


class HostSaysHow(HostsFieldsOnly):
    """The same, of what the reading of the reply depends on."""


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
    ParsesFragments: "fragments_are_the_providers_own",
    HoldsTextBack: "text_arrives_as_it_comes",
    HangsOnCancel: "cancelling_at_any_event_ends_the_stream_in_order",
    DeafToCancel: "cancelling_a_read_that_waits_ends_it",
    AlwaysCancelled: "what_does_not_run_cannot_be_cancelled",
    Leaky: "leaving_early_closes_the_connection",
    NeedsAwait: "stream_is_iterated_without_await",
    LosesCalls: "stream_and_complete_agree",
    CrashesOnNews: "unknown_events_are_tolerated",
    SwallowsTruncation: "a_truncated_stream_is_an_error",
    RaisesForeign: "nonsense_is_an_adapter_error",
    LeaksTheKey: "the_key_is_in_no_text",
    KeyInTheAddress: "the_key_is_in_one_header_only",
    NeverRetries: "there_are_exactly_one_and_max_retries_attempts",
    RetriesEverything: "lasting_failures_are_raised_at_once",
    IgnoresHints: "a_retry_after_is_waited_for",
    OneError: "each_condition_has_its_exception",
    IgnoresImages: "capabilities_declared_false_are_refused_or_told",
    NewIds: "a_providers_ids_come_back_to_it",
    ForgetsTheSystemText: "the_system_text_is_sent",
    DropsTheHostsField: "a_hosts_own_field_joins_or_is_named",
    HostsFieldsOnly: "a_hosts_tools_join_or_are_named",
    HostSaysHow: "who_answers_and_how_is_not_the_hosts_to_say",
    InventsACode: "every_warning_has_a_known_code",
    TakesAnyEffort: "an_unknown_reasoning_effort_is_refused",
    CountsTwice: "usage_is_what_the_provider_said",
    HealthRaises: "lifecycle_hooks_are_optional",
    NoTimeouts: "time_limits_hold",
}


def adapter_of(kind: type[ParleyAdapter] | type[ParleyWire]) -> type[ParleyAdapter]:
    """The adapter, or the sound adapter with that wire."""
    if issubclass(kind, ParleyAdapter):
        return kind

    class Broken(ParleyAdapter):
        wire_type = kind

    return Broken


def kit_of(kind: type[ParleyAdapter] | type[ParleyWire]) -> HttpKit:
    class Broken(ParleyKit):
        adapter = adapter_of(kind)

    return Broken()


@pytest.mark.parametrize(
    "kind", [DropsADelta, Leaky, CrashesOnNews, IgnoresImages], ids=lambda kind: kind.__name__
)
def test_a_broken_adapter_is_caught_over_real_sockets(kind: type[ParleyAdapter] | type[ParleyWire]) -> None:
    """As it is over a transport."""

    class Served(ServedKit, ParleyKit):
        adapter = adapter_of(kind)

    (check,) = [check for check in CHECKS if check.name == BROKEN[kind]]
    outcome = run_check(check, Served())
    assert outcome.result == "failed", outcome


@pytest.mark.parametrize(("kind", "name"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_adapter_is_caught_by_its_check(kind: type[ParleyAdapter] | type[ParleyWire], name: str) -> None:
    """By the one that says what is wrong; the sound adapter passes that check."""
    (check,) = [check for check in CHECKS if check.name == name]
    outcome = run_check(check, kit_of(kind))
    assert outcome.result == "failed", outcome
    assert outcome.reason
    assert KEY not in outcome.reason
    assert run_check(check, kit_of(ParleyAdapter)).result == "passed"
