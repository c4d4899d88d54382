"""Section 8.8, errors and retries: through the public functions, over each provider's wire, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from callboard import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    ServerError,
    StreamError,
    Tool,
    generate,
    stream,
)
from callboard.adapters.conformance import TOOLS

from ..support.fake_http import FakeReply
from ..support.wires.wire import Wire
from .providers import asking, each_provider, noting
from .rows import row

pytestmark = pytest.mark.anyio

LASTING = {"bad key": AuthError, "forbidden": AccessDeniedError, "no model": NotFoundError}


def hinting(reply: FakeReply, seconds: int) -> FakeReply:
    reply.headers = {**reply.headers, "retry-after": str(seconds)}
    return reply


@each_provider
@pytest.mark.parametrize(("hint", "waited"), [(7, 7.0), (1, 1.0), (3600, 60.0)])
@row("8.8.4")
async def test_the_providers_hint_replaces_the_computed_delay(wire: Wire, hint: int, waited: float) -> None:
    """The hint replaces a shorter or longer computed delay, up to `max_delay`."""
    async with asking(wire, hinting(wire.failing("rate limit"), hint), wire.whole("Hi"), max_retries=2) as at:
        await generate(at.model, "Hi", engine=at.engine)
        assert at.transport.waits == pytest.approx([waited])


@each_provider
@row("8.8.5")
async def test_without_retries_the_first_failure_is_raised(wire: Wire) -> None:
    """Retries can be off in the adapter's configuration or in the request."""
    for configured, asked in ((0, None), (5, 0)):
        async with asking(wire, wire.failing("server"), max_retries=configured) as at:
            with pytest.raises(ServerError):
                await generate(at.model, "Hi", engine=at.engine, max_retries=asked)
            assert len(at.transport.requests) == 1


@each_provider
@pytest.mark.parametrize("streamed", [False, True])
@row("8.8.6")
async def test_a_rate_limit_is_retried_without_a_visible_error(wire: Wire, streamed: bool) -> None:
    """The result and the events of a stream are those of the successful reply."""
    answer = wire.streamed("Hi") if streamed else wire.whole("Hi")
    async with asking(wire, wire.failing("rate limit"), wire.failing("rate limit"), answer, max_retries=2) as at:
        if streamed:
            result = stream(at.model, "Hi", engine=at.engine)
            types = [event.type async for event in result]
            assert types.count("message.start") == types.count("finish") == 1
            assert "error" not in types
            assert (await result.response()).text == "Hi"
        else:
            assert (await generate(at.model, "Hi", engine=at.engine)).text == "Hi"
        assert len(at.transport.requests) == 3


@each_provider
@row("8.9.12")
async def test_a_rate_limit_that_lasts_is_raised_after_all_retries(wire: Wire) -> None:
    """The error has the provider's status."""
    async with asking(wire, *[wire.failing("rate limit") for _ in range(3)], max_retries=2) as at:
        with pytest.raises(RateLimitError) as raised:
            await at.ask()
        assert (raised.value.provider_status, len(at.transport.requests)) == (429, 3)


@each_provider
@pytest.mark.parametrize("condition", LASTING)
@row("8.8.7")
@row("8.9.11")
async def test_permanent_errors_are_not_retried(wire: Wire, condition: str) -> None:
    """An invalid key, a forbidden model and a missing model: each fails after one request."""
    async with asking(wire, wire.failing(condition), max_retries=5) as at:
        with pytest.raises(LASTING[condition]):
            await generate(at.model, "Hi", engine=at.engine)
        assert len(at.transport.requests) == 1


@each_provider
@row("8.8.8")
async def test_each_step_has_its_own_retries(wire: Wire) -> None:
    """With two retries, two failures in each of two steps succeed. No tool is run twice."""
    ran, note = noting()

    def replies(last: FakeReply) -> list[FakeReply]:
        return [
            *(wire.failing("server"), wire.failing("server"), wire.whole("", 1, "tools")),
            *(wire.failing("server"), wire.failing("server"), last),
        ]

    given: dict[str, Any] = {"tools": [Tool(TOOLS[0], note)]}
    async with asking(wire, *replies(wire.whole("Done.")), max_retries=2) as at:
        assert (await generate(at.model, "Go", engine=at.engine, **given)).text == "Done."
        assert (len(at.transport.requests), len(ran)) == (6, 1)
        bodies = [request.body for request in at.transport.requests]
        assert bodies[0] == bodies[1] == bodies[2]
        assert bodies[3] == bodies[4] == bodies[5]
    async with asking(wire, *replies(wire.failing("server")), max_retries=2) as at:
        with pytest.raises(ServerError) as raised:
            await generate(at.model, "Go", engine=at.engine, **given)
        assert len(raised.value.turn.steps) == 1  # type: ignore[attr-defined]


@each_provider
@row("8.8.9")
async def test_a_stream_that_has_delivered_text_is_not_retried(wire: Wire) -> None:
    """The connection breaks, the provider reports an error, or the reply just ends."""
    chunks = wire.chunks("Hello")
    begun = chunks[: next(n for n, chunk in enumerate(chunks) if b"Hel" in chunk or b"He" in chunk) + 1]
    ends: list[tuple[list[Any], type[AdapterError]]] = [
        ([NetworkError("the connection broke")], NetworkError),
        ([wire.write_event(*wire.error_event())], OverloadedError),
        ([], StreamError),
    ]
    for rest, kind in ends:
        async with asking(wire, wire.stream_of(*begun, *rest), max_retries=5) as at:
            result, got = stream(at.model, "Hi", engine=at.engine), list[str]()
            with pytest.raises(kind):
                async for text in result.text_stream:
                    got.append(text)
            assert (len(at.transport.requests), "".join(got)[:2]) == (1, "He")


@each_provider
@row("8.8.9")
async def test_a_stream_that_has_delivered_nothing_is_retried(wire: Wire) -> None:
    """The caller received nothing, so the request is sent again."""
    broken = wire.stream_of(NetworkError("the connection broke"))
    async with asking(wire, broken, wire.streamed("Hello"), max_retries=1) as at:
        assert [text async for text in stream(at.model, "Hi", engine=at.engine).text_stream] == ["He", "llo"]
        assert len(at.transport.requests) == 2
