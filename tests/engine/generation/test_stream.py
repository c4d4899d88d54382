"""`stream`: a reply that is read, awaited, shared, cancelled and left early. Seed 2, sections 4.2, 4.4 and 8.4."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callboard.adapters import (
    CancelledError,
    CanonicalRequest,
    Message,
    ServerError,
    StopReason,
    TextDelta,
    ToolDefinition,
)
from callboard.bus import CallboardError, SessionTurnCompleted, WrongLoop
from callboard.engine import Engine, StreamAccumulator, StreamFailed, StreamResult, UsageSoFar, ViewEvent, stream
from callboard.engine.calls.outcome import CallOutcome
from callboard.engine.generation.readers import DELTAS_PER_ESTIMATE
from callboard.tracestore import PriceTable
from tests.support.engines import registry, running, topics
from tests.support.present import present
from tests.support.scripted import ADD, CALLS_ADD, Say

PRICES = """
label: test
prices:
  - {model: "s:*", input: "1", output: "10"}
"""

SHORT = ["message.start", "text.start", "text.delta", "text.delta", "text.end", "message.complete", "step.finish"]
MERGED = [kind for place, kind in enumerate(SHORT) if place != 2]


class Gate:
    """Holds back the pieces of a reply until the test calls `let`."""

    def __init__(self) -> None:
        self._open = asyncio.Semaphore(0)

    def let(self, pieces: int) -> None:
        for _ in range(pieces):
            self._open.release()

    async def __call__(self) -> None:
        await self._open.acquire()


@asynccontextmanager
async def stalled(*pieces: str, let: int) -> AsyncIterator[tuple[Engine, Gate, Callable[[], list[str]]]]:
    """An engine with a reply that stops after `let` pieces, the gate, and the statuses of the turns that have
    ended.
    """
    gate = Gate()
    gate.let(let)
    async with running(Say(*pieces, pause=gate)) as (engine, events):

        def statuses() -> list[str]:
            found = [each.data for each in events.take()]
            return [each.status for each in found if isinstance(each, SessionTurnCompleted)]

        yield engine, gate, statuses


async def settled() -> None:
    """Give every waiting task several chances to run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_loop_without_a_context_has_every_event() -> None:
    """8.4: The events go from message.start to finish, the deltas are the text, and the response is available at
    the end.
    """
    async with running(Say("Hel", "lo")) as (engine, _):
        result = stream("s:m", "Hi", engine=engine)
        events = [event async for event in result]
        response = await result.response()
    assert [event.type for event in events] == [*SHORT, "finish"]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == response.text == "Hello"
    last = events[-1]
    assert last.response == response
    assert (last.stop_reason, last.usage, last.status) == ("end_turn", response.usage, "completed")


async def test_tools_run_between_two_messages() -> None:
    """4.4: The steps are in order, with the tools between them. `result()` is the same as with `generate`."""
    async with running(CALLS_ADD, Say("3"), CALLS_ADD, Say("3")) as (engine, _):
        streamed = engine.stream("s:m", "1+2?", tools=[ADD])
        types = [event.type async for event in streamed]
        result = await streamed.result()
        plain = await engine.generate("s:m", "1+2?", tools=[ADD])
    assert types == [
        *("message.start", "text.start", "text.delta", "text.end"),
        *("tool.use_start", "tool.use_input_delta", "tool.use_end", "message.complete"),
        *("tool.started", "tool.finished", "step.finish"),
        *("message.start", "text.start", "text.delta", "text.end", "message.complete", "step.finish", "finish"),
    ]
    assert [step.text for step in result.steps] == [step.text for step in plain.steps] == ["Let me see.", "3"]
    assert (result.total_usage, result.total_cost) == (plain.total_usage, plain.total_cost)
    assert (streamed.usage, streamed.cost) == (result.total_usage, result.total_cost)


async def test_a_streamed_request_has_the_response_of_complete() -> None:
    """4.1, 4.2: A CanonicalRequest keeps its id and runs no tools."""
    request = CanonicalRequest(
        request_id="req_mine",
        messages=(Message.user("1+2?"),),
        model="s:m",
        max_output_tokens=99,
        tools=(ToolDefinition("add"),),
    )
    async with running(CALLS_ADD, CALLS_ADD) as (engine, _):
        accumulator = StreamAccumulator()
        async for event in engine.stream(request, tags={"team": "red"}):
            accumulator.process(event)
        completed = await engine.complete(request)
        with pytest.raises(TypeError, match="CanonicalRequest is complete"):
            engine.stream(request, temperature=0.5)  # type: ignore[call-overload]
    mine = accumulator.response()
    assert mine.request_id == completed.request_id == "req_mine"
    for name in ("model", "provider", "stop_reason", "usage", "warnings", "text"):
        assert getattr(mine, name) == getattr(completed, name), name
    assert [call.input for call in (*mine.tool_uses, *completed.tool_uses)] == [{"a": 1, "b": 2}] * 2


async def test_the_text_stream_has_each_piece() -> None:
    async with running(Say("a", "b", "c"), Say("d", "e")) as (engine, _):
        async with engine.stream("s:m", "Hi") as result:
            async for event in result:
                if isinstance(event, TextDelta):
                    break
            assert [piece async for piece in result.text_stream] == ["b", "c"]
        assert [piece async for piece in engine.stream("s:m", "Hi").text_stream] == ["d", "e"]


async def test_the_partial_response_can_be_read_at_any_time() -> None:
    async with stalled("Hel", "lo", let=1) as (engine, gate, _):
        async with engine.stream("s:m", "Hi") as result:
            assert result.partial_response is None
            await settled()
            partial = result.partial_response
            assert (partial.text, partial.stop_reason, partial.model) == ("Hel", StopReason.CANCELLED, "s:m")
            gate.let(9)
            response = await result.response()
            assert (partial.request_id, response.text) == (response.request_id, "Hello")
            assert result.partial_response == response


# -- Several readers.


async def test_every_reader_has_all_events() -> None:
    """Readers can read at the same time or after the end. With `coalesce`, several deltas are one event."""
    async with running(Say("Hel", "lo")) as (engine, _):
        async with engine.stream("s:m", "Hi") as result:
            concurrent = asyncio.create_task(_types(result.reader()))
            assert await _types(result) == await concurrent == [*SHORT, "finish"]
            assert await _types(result.reader(coalesce=True)) == [*MERGED, "finish"]
        assert await _types(result.reader()) == [*SHORT, "finish"]
        assert [event.type async for event in engine.attach(result.stream_id)][-1] == "turn.complete"


async def _types(reader: AsyncIterator[ViewEvent]) -> list[str]:
    return [event.type async for event in reader]


async def test_a_reader_of_a_folded_log_has_all_events() -> None:
    """A late reader gets each block in one piece. A reader in the middle gets the rest."""
    async with stalled("Hel", "lo", let=1) as (engine, gate, _):
        result = engine.stream("s:m", "Hi")
        early = result.reader()
        types = [(await anext(early)).type for _ in range(3)]
        gate.let(9)
        await result.response()
        result._run.turn.log.fold()
        assert [*types, *await _types(early)] == [*SHORT, "finish"]
        assert await _types(result.reader()) == [*MERGED, "finish"]


@pytest.mark.parametrize("kind", ["stream", "reader", "attached"])
async def test_one_reader_for_two_tasks_is_refused_with_advice(kind: str) -> None:
    """Two tasks would take events from each other."""
    async with stalled("never", let=0) as (engine, _, _):
        async with engine.stream("s:m", "Hi") as result:
            attached = engine.attach(result.stream_id, view=True)
            reader = {"stream": result, "reader": result.reader(), "attached": attached}[kind]
            waiting = asyncio.create_task(_types(reader))
            await settled()
            with pytest.raises(CallboardError, match=r"own reader: stream\.reader\(\)"):
                await anext(reader)
        await asyncio.wait([waiting])
        assert waiting.exception() is None or isinstance(waiting.exception(), CancelledError)


async def test_a_read_in_another_loop_is_refused() -> None:
    """The read would never end. The error names the right loop."""
    async with running(Say("Hello")) as (engine, _):
        result = engine.stream("s:m", "Hi")
        await result.response()

        def elsewhere() -> None:
            for ask in (result.response, result.reader().__anext__):
                with pytest.raises(WrongLoop, match="read it in the loop that started it"):
                    asyncio.run(ask())  # type: ignore[arg-type]

        await asyncio.to_thread(elsewhere)


# -- Failures.


async def test_a_failure_is_an_event_and_then_raised() -> None:
    """C22: `response()` raises the same error, and `partial_response` has the part that arrived."""
    async with running(Say("Hel", fails=ServerError("down"))) as (engine, _):
        result, events = engine.stream("s:m", "Hi"), []
        with pytest.raises(ServerError, match="down") as raised:
            async for event in result:
                events.append(event)  # noqa: PERF401 (what came before the failure counts)
        with pytest.raises(ServerError):
            await result.response()
        assert [event async for event in result] == []
        assert present(result.partial_response).text == "Hel"
    assert [event.type for event in events] == [*SHORT[:3], "text.end", "message.complete", "error"]
    last = events[-1]
    assert isinstance(last, StreamFailed)
    assert last.error is raised.value
    assert raised.value.turn.status == "failed"  # type: ignore[attr-defined]


# -- Cancellation.


async def test_cancelling_ends_the_events_in_order() -> None:
    """The segment ends, and the stream raises CancelledError with the part that arrived."""
    async with stalled("Hel", "lo", let=1) as (engine, _, statuses):
        result = engine.stream("s:m", "Hi")
        types = [(await anext(result)).type for _ in range(3)]
        assert await result.cancel()
        with pytest.raises(CancelledError) as raised:
            async for event in result:
                types.append(event.type)  # noqa: PERF401 (what came before the failure counts)
        assert not await result.cancel()
        assert statuses() == ["cancelled"]
    assert types == [*SHORT[:3], "text.end", "message.complete", "error"]
    assert [block.text for block in raised.value.content] == ["Hel"]  # type: ignore[union-attr]


async def test_leaving_the_context_cancels_unless_it_was_detached() -> None:
    async with stalled("Hel", "lo", let=1) as (engine, _, statuses):
        async with engine.stream("s:m", "Hi") as result:
            await anext(result)
        assert statuses() == ["cancelled"]
    async with stalled("Hel", "lo", let=1) as (engine, gate, statuses):
        async with engine.stream("s:m", "Hi") as result:
            result.detach()
        assert statuses() == []
        gate.let(9)
        assert (await result.response()).text == "Hello"


# -- Readers that leave without cancelling.


async def leave_a_loop(result: StreamResult) -> object:
    async for event in result:
        if isinstance(event, TextDelta):
            break
    return None


async def leave_the_text(result: StreamResult) -> object:
    async for _ in result.text_stream:
        break
    return None


async def close(result: StreamResult) -> object:
    await anext(result)
    await result.aclose()
    await result.aclose()
    return result


async def lose_a_reader(result: StreamResult) -> object:
    await anext(result.reader())
    return None


async def fail_in_a_loop(result: StreamResult) -> object:
    with pytest.raises(ZeroDivisionError):
        async for _ in result:
            1 / 0  # noqa: B018
    return None


async def cancel_who_waits(result: StreamResult, wait: Callable[[StreamResult], Awaitable[object]]) -> object:
    waiting = asyncio.ensure_future(wait(result))
    await settled()
    waiting.cancel()
    await asyncio.wait([waiting])
    return None


async def be_part_of_a_circle(result: StreamResult) -> object:
    circle: list[object] = [result]
    circle.append(circle)
    await anext(result)
    return None


LEAVES: dict[str, Callable[[StreamResult], Awaitable[object]]] = {
    **{way.__name__: way for way in (leave_a_loop, leave_the_text, close, lose_a_reader, fail_in_a_loop)},
    "be part of a circle": be_part_of_a_circle,
    "cancel a loop": lambda result: cancel_who_waits(result, _types),
    "lose a result that was asked": lambda result: cancel_who_waits(result, StreamResult.response),
}


@pytest.mark.parametrize("leave", LEAVES)
async def test_a_stream_without_a_reader_is_cancelled(leave: str) -> None:
    """No reader, task or open log remains."""
    async with stalled("Hel", "lo", let=1) as (engine, _, statuses):
        kept = await LEAVES[leave](engine.stream("s:m", "Hi"))
        gc.collect()
        await settled()
        assert statuses() == ["cancelled"]
        statistics = engine.streams.statistics()
        assert (statistics.open, statistics.readers) == (0, 0)
        assert not [task for task in asyncio.all_tasks() if "turn" in task.get_name()]
        del kept


async def test_a_stream_that_is_still_referenced_continues() -> None:
    """The end of the loop over events does not cancel the call while the program has the result."""
    async with stalled("Hel", "lo", let=1) as (engine, gate, statuses):
        result = engine.stream("s:m", "Hi")
        async for event in result:
            if isinstance(event, TextDelta):
                break
        gc.collect()
        await settled()
        assert statuses() == []
        gate.let(9)
        assert [piece async for piece in result.text_stream] == ["lo"]


async def test_a_stream_that_is_never_read_never_starts() -> None:
    """Creating a stream sends nothing. A read after `aclose` is an error."""
    async with running(Say("never")) as (engine, events):
        result: StreamResult | None = engine.stream("s:m", "Hi")
        del result
        closed = engine.stream("s:m", "Hi")
        await closed.aclose()
        with pytest.raises(CallboardError, match="closed before it started"):
            await closed.response()
        assert topics(events.take(), "session.") == []


async def test_a_stream_that_is_closed_while_the_engine_starts_is_cancelled() -> None:
    engine = Engine(models=registry(Say("never", pause=asyncio.Event().wait)), trace=False)
    result = engine.stream("s:m", "Hi")
    beginning = asyncio.create_task(result.response())
    while engine._host.life is None:  # noqa: ASYNC110 (no event reports it)
        await asyncio.sleep(0)
    await result.aclose()
    with pytest.raises(CancelledError):
        await beginning
    await engine.aclose()


async def test_an_exception_of_the_hosts_code_is_raised_once() -> None:
    """The stream has the exception as an event and then raises it. Leaving the context does not raise it again."""

    async def odd(request: CanonicalRequest, next: object) -> CallOutcome:
        raise LookupError("odd")

    async with running(Say("never"), middleware=[odd]) as (engine, _):
        async with engine.stream("s:m", "Hi") as result:
            last = await anext(result)
            assert isinstance(last, StreamFailed)
            with pytest.raises(LookupError):
                await anext(result)


# -- Usage and warnings.


async def test_usage_is_estimated_until_the_provider_reports_it(tmp_path: Path) -> None:
    """C8: Each estimate has a cost and comes after several deltas. The last figure is the reported usage."""
    estimates: list[UsageSoFar] = []
    pieces = ["word "] * (3 * DELTAS_PER_ESTIMATE)
    (tmp_path / "prices.yaml").write_text(PRICES)
    async with running(Say(*pieces), prices=PriceTable.from_yaml(tmp_path / "prices.yaml")) as (engine, _):
        result = engine.stream("s:m", "Hi", on_usage=estimates.append)
        assert result.usage_so_far.usage.total_tokens == 0
        async for _ in result:
            pass
        assert result.usage_so_far == estimates[-1]
    assert [each.estimated for each in estimates] == [True] * 4 + [False] * 2
    assert (estimates[-1].usage.output_tokens, estimates[-1].cost.nano_usd) == (5, 10 * 1000 + 5 * 10_000)
    for each in estimates:
        assert each.cost.nano_usd == each.usage.input_tokens * 1000 + each.usage.output_tokens * 10_000


async def test_the_first_event_has_the_warnings_of_the_request() -> None:
    """M08: These warnings are known before the call."""
    many = [Message.user("x")] * 13_000  # The messages have ten tokens each, and the window has 128,000.
    async with running(Say("Hello"), Say("Hello")) as (engine, _):
        result = engine.stream("s:m", messages=many)
        first = await anext(result)
        response = await result.response()
    assert [warning.code for warning in first.warnings] == ["prompt_near_window"]
    assert response.warnings == first.warnings
