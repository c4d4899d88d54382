"""One request of a client: the model's name, the call, and the reply as bytes.

    read      the client's wire has read the request
    asked     a turn of the engine runs; it is routed, traced and priced like any other
    answered  the first event came: status and headers are sent
    over      the turn has ended, or the client is gone and its call was cancelled

A reply is written by the client's wire. If the serving provider uses the client's own protocol, the provider's own
bytes are sent instead, see `passing`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from callboard.adapters import CallWarning, MessageComplete, MessageStart
from callboard.adapters.contract import WireRequest
from callboard.bus import CallboardError, ConfigurationError, Cost, Log, StreamReset
from callboard.bus.streams.events import (
    ProviderBlock,
    ProviderEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)

from ..conversation.turn import Turn, own
from ..generation.arguments import turn_of
from ..generation.streaming import TurnStream
from ..runtime.runtime import Runtime
from .failures import failure_of, may_retry
from .http import ClientGone, GatewayLimits, Headers, Incoming, StreamedAnswer, answer, header, retry_headers
from .passing import PassedReply
from .wire import BadRequest, ClientRequest, ClientWire, Failure, ReplyInfo, ReplyWriter

MOST_WAITING_BYTES = 8 * 1024 * 1024
"""The bytes of a stream that wait for a client that reads slowly, before its call is cancelled."""

MOST_WARNING_BYTES = 2048
"""The length of the header with warnings."""

_OF_REPLY = (
    MessageStart | TextDelta | ThinkingDelta | ToolUseStart | ToolUseInputDelta | ToolUseEnd | ProviderBlock
    | ProviderEvent | MessageComplete
)  # fmt: skip


_log = Log("gateway")


class Serving(NamedTuple):
    """What all requests of a gateway share."""

    runtime: Runtime
    limits: GatewayLimits
    cancels: bool
    """Whether the call of a client that leaves is cancelled."""


class Exchange:
    """One request and its reply.

    Args:
        serving: What all requests share.
        wire: The client's wire.
        asked: The request.
        request: The request as HTTP.
        tags: The tags of the call.
        session_id: The conversation that the request continues, for the provider's prompt cache.
    """

    def __init__(
        self,
        serving: Serving,
        wire: ClientWire,
        asked: ClientRequest,
        request: Incoming,
        *,
        tags: Mapping[str, str],
        session_id: str = "",
    ) -> None:
        runtime = serving.runtime
        self._serving = serving
        self.wire = wire
        self.asked = asked
        self.request = request
        self._runtime = runtime
        self._gone = False
        self._unread = ""
        message_id = runtime.clock.new_id("msg")
        self.id = message_id.removeprefix("msg_")
        self.request_id = f"req_{self.id}"
        is_array = asked.stream and not wire.stream_type(asked).startswith("text/event-stream")
        self._passed = PassedReply(wire.protocol, asked, self._served_model, is_array=is_array)
        models = self._models()
        canonical = msgspec.structs.replace(
            asked.request,
            request_id=self.request_id,
            message_id=message_id,
            model=models[0],
            session_id=session_id,
            wire=WireRequest(
                protocol=wire.protocol, body=asked.body, headers=asked.headers, on_event=self._passed.take_in
            ),
        )
        self.turn: Turn = turn_of(
            runtime, canonical, tags=tags, streamed=asked.stream, model=models if len(models) > 1 else None
        )

    def _models(self) -> tuple[str, ...]:
        """The models that serve the client's name. Raises BadRequest."""
        registry = self._runtime.registry
        models = registry.serving(self.asked.model)
        if models == (self.asked.model,):
            try:
                registry.resolve(models[0])
            except ConfigurationError:
                raise BadRequest(
                    f"the model {self.asked.model[:200]!r} does not exist", kind="not_found", param="model"
                ) from None
        return models

    def _served_model(self) -> str:
        """The provider's name of the model that serves now."""
        route = self.turn.route
        return "" if route is None else route.option.named.entry.wire_name

    def summary(self) -> dict[str, Any]:
        """The facts of the call, for a `ServedRequest`."""
        route = self.turn.route
        return {
            "model": self.asked.model,
            "served_by": "" if route is None else route.decision.model,
            "nano_usd": self.turn.cost.nano_usd,
            "request_id": self.request_id,
        }

    async def answer(self) -> None:
        """Answer the client."""
        await (self._stream() if self.asked.stream else self._whole())

    # --- Whole replies ---

    async def _whole(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        try:
            await own(self.turn, await self._runtime.host.start_turn(self.turn))
        except Exception as error:
            if not self._gone:
                await self._fail(error)
            return
        finally:
            watch.cancel()
        response = self.turn.steps[-1].response
        passed = self._passed
        if passed.body:
            body = passed.whole()
            warnings: Iterable[CallWarning] = response.warnings
        else:
            body = msgspec.json.encode(self.wire.write_reply(self.asked, self._info(), response))
            warnings = (*self.asked.losses, *response.warnings)
        headers = self.headers(warnings)
        headers += cost_header(self.turn.cost)
        await answer(self.request.send, 200, body, headers)

    # --- Streams ---

    async def _stream(self) -> None:
        stream = TurnStream(self._runtime, self.turn)
        task = asyncio.current_task()
        assert task is not None

        def give_up(why: str) -> None:
            self._gone, self._unread = True, why
            self.request.abort()
            task.cancel()

        writer: ReplyWriter | None = None
        out = StreamedAnswer(
            self.request.send, self._serving.limits, lambda: b"" if writer is None else writer.ping(), give_up
        )
        out.headers = [(b"content-type", self.wire.stream_type(self.asked).encode()), *_STREAM_HEADERS]
        out.headers += self.headers(())
        watch = asyncio.ensure_future(self._watch())
        passed: PassedReply | None = self._passed
        started = False
        try:
            while True:
                batch = await stream.take()
                if self._gone:
                    if batch:
                        continue  # to its end
                    return
                if not batch:
                    break
                if not started:
                    if not any(isinstance(event, MessageStart) for event in batch):
                        continue  # the end of a turn that failed before its reply
                    started = True
                    if passed is not None and not passed.seen:
                        passed = None
                    if not out.started:
                        out.headers += self._warnings_of_start(batch, passed=passed is not None)
                    if passed is None:
                        writer = self.wire.writer(self.asked, self._info())
                        data = writer.start() + self._written(writer, batch)
                    else:
                        data = passed.take()
                elif passed is not None:
                    data = passed.take()
                else:
                    assert writer is not None
                    data = self._written(writer, batch)
                if data:
                    await out.write(data)
            response = self.turn.steps[-1].response
            if passed is not None and started:
                await out.end(passed.take() + passed.end)
            else:
                if writer is None:
                    writer = self.wire.writer(self.asked, self._info())
                    await out.write(writer.start())
                await out.end(writer.finish(response))
        except asyncio.CancelledError:
            if not self._unread:
                raise
            task.uncancel()
            _log.warning("client_stopped_reading", request_id=self.request_id, why=self._unread)
        except ClientGone:
            pass
        except Exception as error:
            if self._gone:
                return
            if not out.started:
                out.close()
                await self._fail(error)
                return
            failure = failure_of(error, self.request_id)
            data = b""
            if passed is not None and started:
                data = passed.take()
            if passed is None or not passed.failed:
                if writer is None:
                    writer = self.wire.writer(self.asked, self._info())
                    if not started:
                        data += writer.start()
                data += writer.fail(failure)
            await out.end(data)
        finally:
            watch.cancel()
            out.close()
            await stream.aclose()

    def _written(self, writer: ReplyWriter, batch: Sequence[object]) -> bytes:
        """The bytes of some events. Raises ClientGone if the client is too far behind."""
        parts = []
        for event in batch:
            if isinstance(event, _OF_REPLY):
                parts.append(writer.write(event))
            elif isinstance(event, StreamReset):
                raise ClientGone
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _warnings_of_start(self, batch: Sequence[object], *, passed: bool) -> Headers:
        start = next((event for event in batch if isinstance(event, MessageStart)), None)
        warnings = () if start is None else start.warnings
        return warnings_header(warnings if passed else (*self.asked.losses, *warnings))

    # --- Both ---

    def _info(self) -> ReplyInfo:
        route = self.turn.route
        return ReplyInfo(
            id=self.id,
            model=self.asked.model,
            created=self._runtime.clock.now_us() // 1_000_000,
            input_tokens=0 if route is None else route.option.estimated_tokens or 0,
        )

    def headers(self, warnings: Iterable[CallWarning]) -> Headers:
        """The headers of a reply."""
        return [
            (b"x-callboard-call-id", self.request_id.encode()),
            *id_headers(self.request_id),
            *warnings_header(warnings),
        ]

    async def _fail(self, error: Exception) -> None:
        failure = failure_of(error, self.request_id)
        await send_failure(self.request, self.wire, failure, self.headers(()), may_retry=may_retry(error))

    async def _watch(self) -> None:
        """Cancel the call when the client leaves, or let it run to its end."""
        receive = self.request.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._serving.cancels:
            with contextlib.suppress(CallboardError):
                self.turn.cancel()


_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""So that no proxy holds a stream back."""


def id_headers(request_id: str) -> Headers:
    """The id of a request, under the names that the SDKs read."""
    return [(b"request-id", request_id.encode()), (b"x-request-id", request_id.encode())]


async def send_failure(
    request: Incoming,
    wire: ClientWire,
    failure: Failure,
    headers: Headers,
    *,
    status: int | None = None,
    may_retry: bool | None = None,
) -> None:
    """Answer with a failure, in the words of the client's wire."""
    own, body = wire.write_failure(failure)
    headers = [*headers, *retry_headers(failure, may_retry=may_retry if (status or own) >= 429 else None)]
    await answer(request.send, status or own, msgspec.json.encode(body), headers)


def cost_header(cost: Cost) -> Headers:
    """The cost of a reply in US dollars, exact to the nano-dollar; nothing if it is unknown."""
    if cost.nano_usd is None:
        return []
    return [(b"x-callboard-cost-usd", b"%d.%09d" % divmod(cost.nano_usd, 1_000_000_000))]


def warnings_header(warnings: Iterable[CallWarning]) -> Headers:
    """What was lost or changed, in one header of bounded length."""
    text = "; ".join(f"{warning.code}: {warning.message}" for warning in warnings)
    if not text:
        return []
    if len(text) > MOST_WARNING_BYTES:
        text = f"{text[: MOST_WARNING_BYTES - 3]}..."
    return [header(b"x-callboard-warnings", text)]
