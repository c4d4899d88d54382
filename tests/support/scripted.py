"""An adapter whose replies are written down beforehand, for tests of everything above the adapters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

import anyio

from adapters import (
    AdapterCapabilities,
    AdapterConfig,
    AdapterError,
    AttemptFirstEvent,
    AttemptObserver,
    AttemptStarted,
    CancelledError,
    CanonicalRequest,
    CanonicalResponse,
    Message,
    StopReason,
    StreamEvent,
    TokenUsage,
    ToolDefinition,
)
from adapters.assembler import Assembler
from bus.clock import SYSTEM_CLOCK, Clock
from bus.json_types import JsonObject

CAPABILITIES = AdapterCapabilities(
    supports_images=True,
    supports_tools=True,
    supports_structured_output=True,
    supports_streaming_tool_calls=True,
    supports_parallel_tool_calls=True,
)


class Say:
    """A reply: text fragments, then tool calls, then perhaps a failure. pause: waited for before each step."""

    def __init__(
        self,
        *fragments: str,
        calls: Sequence[tuple[str, JsonObject]] = (),
        fails: Exception | None = None,
        pause: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.fragments = fragments
        self.calls = calls
        self.fails = fails
        self.pause = pause


class ScriptedAdapter:
    """Plays its script, one reply for each call, and keeps the requests. The script is shared over restarts."""

    script: list[Say]
    capabilities: AdapterCapabilities = CAPABILITIES

    def __init__(self, config: AdapterConfig, *, name: str = "scripted", clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self.clock = clock
        self.requests: list[CanonicalRequest] = []
        self.closed = False
        self._running: dict[str, _Stream] = {}

    def next_reply(self, request: CanonicalRequest) -> Say:
        self.requests.append(request)
        return type(self).script.pop(0)

    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        stream = self.stream(request, on_attempt=on_attempt)
        async for _ in stream:
            pass
        assert stream.response is not None
        if stream.response.stop_reason is StopReason.CANCELLED:
            raise CancelledError("cancelled")
        return stream.response

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> _Stream:
        stream = _Stream(self, request, on_attempt)
        self._running[request.request_id] = stream
        return stream

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        return 10 * len(messages)

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities

    async def cancel(self, request_id: str) -> bool:
        stream = self._running.get(request_id)
        return stream is not None and stream.cancel()

    async def close(self) -> None:
        self.closed = True


class _Stream:
    def __init__(
        self, adapter: ScriptedAdapter, request: CanonicalRequest, on_attempt: AttemptObserver | None
    ) -> None:
        self.response: CanonicalResponse | None = None
        self._adapter = adapter
        self._request = request
        self._on_attempt = on_attempt or (lambda report: None)
        self._events: list[StreamEvent] = []
        self._failure: Exception | None = None
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._step = -1
        self._done = False
        self._assembler = Assembler(
            message_id=request.message_id,
            provider=adapter.name,
            requested_model=request.wire_model,
            clock=adapter.clock,
            estimate_usage=lambda text: TokenUsage(1, len(text)),
        )

    def cancel(self) -> bool:
        if self._done:
            return False
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._events:
            if self._done:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            await self._advance()
        return self._events.pop(0)

    async def _advance(self) -> None:
        if self._step == -1:
            self._on_attempt(AttemptStarted(1))
            self._reply = self._adapter.next_reply(self._request)
        self._step += 1
        with anyio.CancelScope() as self._scope:
            if self._reply.pause is not None:
                await self._reply.pause()
        if self._cancelled:
            self._end(StopReason.CANCELLED)
        elif self._step < len(self._reply.fragments):
            if self._step == 0:
                self._on_attempt(AttemptFirstEvent(1))
            self._assembler.text("text", self._reply.fragments[self._step], implicit_end=True)
        elif self._reply.fails is not None:
            self._failure = self._reply.fails
            if isinstance(self._failure, AdapterError) and self._assembler.started:
                self._end(StopReason.ERROR)
                self._failure.content = self._assembler.final_content
                self._failure.usage = self._assembler.usage
            self._done = True
        else:
            self._call_tools()
        self._events += self._assembler.take()

    def _call_tools(self) -> None:
        for position, (name, arguments) in enumerate(self._reply.calls):
            self._assembler.tool_start(position, name, raw={"id": f"call_{position}"})
            self._assembler.tool_input(position, arguments)
            self._assembler.end(position)
        self._end(StopReason.TOOL_USE if self._reply.calls else StopReason.END_TURN)

    def _end(self, reason: StopReason) -> None:
        usage = TokenUsage(10, 5)
        self._assembler.usage = usage
        if reason in (StopReason.CANCELLED, StopReason.ERROR):
            self._assembler.abort(reason)
        else:
            self._assembler.finish(reason, str(reason), usage)
        self._done = True
        assert self._assembler.usage is not None
        if reason is not StopReason.ERROR:
            self.response = CanonicalResponse(
                request_id=self._request.request_id,
                model=f"{self._adapter.name}:{self._request.wire_model}",
                provider=self._adapter.name,
                content=self._assembler.final_content,
                stop_reason=reason,
                raw_stop_reason=str(reason),
                usage=self._assembler.usage,
            )

    async def aclose(self) -> None:
        self._done = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.aclose()


def scripted_type(
    *replies: Say,
    base: type[ScriptedAdapter] = ScriptedAdapter,
    capabilities: AdapterCapabilities = CAPABILITIES,
) -> str:
    """A type name for models.yaml or an AdapterEntry whose adapter plays these replies."""
    return adapter_type(type("Scripted", (base,), {"script": list(replies), "capabilities": capabilities}))


def adapter_type(made: Callable[..., object]) -> str:
    """A type name for an adapter's class, or for what makes one."""
    name = f"Scripted{len(_TYPES)}"
    _TYPES[name] = made
    globals()[name] = made
    return f"{__name__}:{name}"


_TYPES: dict[str, Callable[..., object]] = {}
