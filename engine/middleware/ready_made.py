"""Included middleware: a cache of replies, a log of calls, and a fallback for unwanted outcomes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from callboard.adapters import AdapterError, CanonicalRequest, CanonicalResponse, Message, StopReason, TokenUsage
from callboard.bus import CallboardError, Cost, CostSource, LlmCallCompleted, LlmCallFailed, StoreError
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import CancelledError
from callboard.bus.log import Log
from callboard.bus.values.messages import is_empty

from ..calls.outcome import CallEnd, CallInfo, CallOutcome
from .chain import Middleware, Next

_cache_log = Log("engine.cache")

_COMPLETE = (StopReason.END_TURN, StopReason.STOP_SEQUENCE, StopReason.TOOL_USE)

_ONLY_ABOUT_THE_CALL = {
    "request_id": "",
    "message_id": "",
    "session_id": "",
    "stream": False,
    "max_retries": None,
    "retry": None,
    "timeout_seconds": None,
    "drain_for_usage": None,
    "background": None,
    "continue_broken": None,
    "response_id": "",
}

_ONLY_ABOUT_THE_STREAM = frozenset({"stream", "stream_options"})


class ReplyStore(Protocol):
    """Stores the replies of a `Cache`. All times are microseconds since the epoch."""

    async def get(self, key: str, now_us: int) -> bytes | None:
        """The reply for a key; None if no reply is valid at `now_us`."""

    async def put(self, key: str, reply: bytes, now_us: int, until_us: int) -> None:
        """Store a reply until `until_us`. It replaces an earlier one. Replies that have expired at `now_us` may be
        removed.
        """

    async def aclose(self) -> None:
        """Release all resources. The store may be used again."""


class MemoryReplies:
    """Keeps replies in memory.

    Args:
        most: The maximum number of replies. The most recently used replies are kept.
    """

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._replies: OrderedDict[str, tuple[int, bytes]] = OrderedDict()

    async def get(self, key: str, now_us: int) -> bytes | None:
        until_us, reply = self._replies.get(key, (0, b""))
        if until_us <= now_us:
            self._replies.pop(key, None)
            return None
        self._replies.move_to_end(key)
        return reply

    async def put(self, key: str, reply: bytes, now_us: int, until_us: int) -> None:
        self._replies[key] = (until_us, reply)
        self._replies.move_to_end(key)
        while len(self._replies) > self._most:
            self._replies.popitem(last=False)

    async def aclose(self) -> None:
        """Do nothing: the replies stay in memory."""


class Cache(Middleware):
    """Answers a repeated request with the stored reply. Then there is no call and no cost.

    Two requests are the same if they have the same model and equal messages, tools, system prompt and settings.
    Only complete replies are stored. Refusals, empty replies and truncated replies are not. Replies are content,
    so a file of replies is as confidential as the conversations.

    Args:
        store: `MemoryReplies()`, the default, or `tracestore.SavedReplies(path)`.
        ttl_seconds: Seconds for which a reply is valid.
        clock: The clock for `ttl_seconds`.
    """

    def __init__(
        self, store: ReplyStore | None = None, *, ttl_seconds: float = 24 * 3600.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store: ReplyStore = MemoryReplies() if store is None else store
        self._ttl_us = int(ttl_seconds * 1_000_000)
        self._clock = clock
        self.hits = 0
        """The number of requests that were answered from the store."""
        self.misses = 0
        """The number of requests that were not in the store."""

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        key, now_us = key_of(request), self._clock.now_us()
        response = await self._cached_reply(key, now_us)
        if response is not None:
            self.hits += 1
            return CallOutcome(response=response, cost=Cost(0, CostSource.COMPUTED, reason="from the cache"))
        self.misses += 1
        outcome = await next(request)
        reply = outcome.response
        if reply.stop_reason in _COMPLETE and not is_empty(reply.content, reply.stop_reason):
            await self._keep(key, outcome.response, now_us)
        return outcome

    async def _cached_reply(self, key: str, now_us: int) -> CanonicalResponse | None:
        try:
            reply = await self._store.get(key, now_us)
            return None if reply is None else msgspec.json.decode(reply, type=CanonicalResponse)
        except (StoreError, msgspec.MsgspecError) as error:  # damaged, or of another version: call the model
            _cache_log.warning("reply_unreadable", error=str(error))
            return None

    async def _keep(self, key: str, response: CanonicalResponse, now_us: int) -> None:
        """Store a reply without its usage, because only this call used the tokens."""
        reply = msgspec.json.encode(msgspec.structs.replace(response, usage=TokenUsage(), latency_ms=0))
        try:
            await self._store.put(key, reply, now_us, now_us + self._ttl_us)
        except StoreError as error:  # an error of the cache must not fail the call
            _cache_log.warning("reply_not_kept", error=str(error))

    async def aclose(self) -> None:
        await self._store.aclose()


def key_of(request: CanonicalRequest) -> str:
    """A digest of all data that the reply depends on."""
    messages = tuple(Message(message.role, message.content) for message in request.messages)
    cache_fields = msgspec.structs.replace(request, messages=messages, **_ONLY_ABOUT_THE_CALL)
    if (wire := cache_fields.wire) is not None:  # a client's own body may lead to another reply
        body = {name: value for name, value in wire.body.items() if name not in _ONLY_ABOUT_THE_STREAM}
        cache_fields = msgspec.structs.replace(
            cache_fields, wire=msgspec.structs.replace(wire, body=body, on_event=None)
        )
    return hashlib.sha256(msgspec.json.encode(cache_fields, order="deterministic")).hexdigest()


# --- A log line for each call ---

_call_log = Log("engine.calls")


class LogCalls(Middleware):
    """Logs ``call_done`` with model, tokens, cost and milliseconds, or ``call_failed`` with the error. Content is
    never logged.

    Calls other than conversations are logged with their `operation`.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        began = self._clock.monotonic_ns()
        about: dict[str, object] = {"model": request.model, "request_id": request.request_id}
        if request.session_id:
            about["session_id"] = request.session_id
        try:
            outcome = await next(request)
        except Exception as error:
            took = self._milliseconds(began)
            _call_log.warning(
                "call_failed",
                **about,
                error=type(error).__name__,
                message=str(error)[:200],
                ms=took,
            )
            raise
        _call_log.info(
            "call_done",
            **about,
            **_amounts(outcome.usage, outcome.cost),
            stop_reason=str(outcome.response.stop_reason),
            ms=self._milliseconds(began),
        )
        return outcome

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        if call.operation == "chat":
            return  # `call` logs it, even if it was answered without a provider
        about = {"operation": call.operation, "model": call.model, "request_id": call.request_id}
        match end:
            case LlmCallFailed():
                facts = {"error": end.error_type, "message": end.message[:200], "ms": end.latency_ms}
                _call_log.warning("call_failed", **about, **facts)
            case LlmCallCompleted():
                _call_log.info("call_done", **about, **_amounts(end.usage, end.cost), ms=end.latency_ms)

    def _milliseconds(self, began: int) -> int:
        return (self._clock.monotonic_ns() - began) // 1_000_000


def _amounts(usage: TokenUsage, cost: Cost) -> dict[str, object]:
    return {
        "input_tokens": usage.total_input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if cost.usd is None else str(cost.usd),
    }


# --- Trying other models ---


class TryModels(Middleware):
    """Tries other models, in order, if a call fails or its outcome is unwanted.

    For failures of a provider, the engine's own `fallback=` is enough. This middleware also judges replies, for
    example a refusal, an empty text, or a reply that is not JSON. A streamed call is tried again only if it fails
    before its first content, because delivered text can't be taken back. Each try is a separate call with its own
    cost. If all outcomes are unwanted, the last one is returned. If all calls fail, the first error is raised.

    Args:
        models: The names of the other models, without the model of the call.
        unwanted: A function that returns whether an outcome is unwanted; None accepts every outcome.

    Raises:
        ValueError: `models` is empty, or is not a list of names.
    """

    def __init__(self, models: Sequence[str], *, unwanted: Callable[[CallOutcome], bool] | None = None) -> None:
        if isinstance(models, str) or not models:
            raise ValueError('TryModels needs a list of model names: TryModels(["openai:gpt-5.2"])')
        self._models = tuple(models)
        self._unwanted = unwanted

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        outcome: CallOutcome | None = None
        failure: CallboardError | None = None
        for model in (request.model, *self._models):
            try:
                outcome = await next(msgspec.structs.replace(request, model=model))
            except CancelledError:
                raise
            except CallboardError as error:
                if isinstance(error, AdapterError) and error.content:
                    raise  # a part of the reply has been delivered
                failure = failure or error
            else:
                if request.stream or self._unwanted is None or not self._unwanted(outcome):
                    return outcome
        if outcome is None:
            assert failure is not None
            raise failure
        return outcome
