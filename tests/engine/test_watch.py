"""`watch`: each call of the process when it ends, for all engines and event loops, in a bounded queue."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from callboard import EndedCall, Engine, generate_sync, run_sync, watch, watch_sync
from callboard.adapters import OverloadedError, ServerError, TokenUsage
from tests.engine.operations.test_embeddings import embedder_type, small
from tests.support.engines import registry, serving
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from tests.tracestore.trace_making import Maker

anyio_backend = runs_on("asyncio")


def an_engine(*replies: Say) -> Engine:
    return Engine(models=registry(*replies), trace=False)


@pytest.fixture
def in_the_sync_thread() -> Iterator[Engine]:
    with an_engine(*[Say("Hello")] * 9) as engine:
        yield engine


async def next_of(calls: object, number: int) -> list[EndedCall]:
    """Read this number of calls within five seconds."""
    async with asyncio.timeout(5):
        return [await anext(calls) for _ in range(number)]  # type: ignore[call-overload]


async def test_watch_yields_the_calls_of_earlier_and_later_engines(in_the_sync_thread: Engine) -> None:
    """An engine on another loop is included."""
    async with an_engine(Say("a")) as before, watch() as calls, an_engine(Say("b")) as after:
        await before.generate("s:m", "Hi", tags={"team": "a"})
        session = after.session("s:m")
        await session.send("Hi")
        await asyncio.to_thread(generate_sync, "s:m", "Hi", engine=in_the_sync_thread)
        found = {call.run_id: call for call in await next_of(calls, 3)}
    assert set(found) == {each.bus.run_id for each in (before, after, in_the_sync_thread)}
    first = found[before.bus.run_id]
    assert (first.model, first.status, first.operation, first.attempts) == ("s:m", "completed", "chat", 1)
    assert (first.tags, first.session_id, first.error, first.skipped) == ({"team": "a"}, None, None, 0)
    assert found[after.bus.run_id].session_id == session.id


async def test_watch_yields_failed_and_cancelled_calls() -> None:
    started = asyncio.Event()

    async def pause() -> None:
        started.set()
        await asyncio.Event().wait()

    replies = [Say(fails=OverloadedError("busy", provider_status=529)), Say("Hello", pause=pause)]
    async with an_engine(*replies) as engine, watch() as calls:
        with pytest.raises(OverloadedError):
            await engine.generate("s:m", "Hi")
        async with engine.stream("s:m", "Hi") as stream:
            reading = asyncio.create_task(stream.take())
            await started.wait()
            reading.cancel()
        failed, cancelled = await next_of(calls, 2)
    assert (failed.status, failed.error) == ("failed", "OverloadedError: busy")
    assert (cancelled.status, cancelled.usage is not None) == ("cancelled", True)


async def test_a_call_has_its_operation() -> None:
    kind = embedder_type("Retried", faults=[ServerError("no", retryable=True)])
    async with Engine(models=serving(small("a"), a=kind), trace=False) as engine, watch() as calls:
        await engine.embed(["x"], model="a:small", max_retries=1)
        await engine.embed(["x"], model="a:small")
        once, again = await next_of(calls, 2)
    assert (once.attempts, once.status, again.attempts, again.operation) == (2, "completed", 1, "embeddings")
    assert str(again).startswith("a:small embeddings completed, 1,000 + 0 tokens, unpriced, 0.")


async def test_the_calls_of_one_engine_keep_their_order() -> None:
    async with an_engine(*[Say("x") for _ in range(50)]) as engine, watch() as calls:
        ended: list[str] = []

        async def ask() -> None:
            ended.append((await engine.generate("s:m", "Hi")).response.request_id)

        with engine.bus.subscribe("llm.call_completed") as events:
            async with asyncio.TaskGroup() as group:
                for _ in range(50):
                    group.create_task(ask())
            published = [envelope.request_id for envelope in events.take()]
        assert [call.request_id for call in await next_of(calls, 50)] == published
        assert sorted(ended) == sorted(filter(None, published))


async def test_a_slow_reader_gets_the_number_of_skipped_calls() -> None:
    """The queue is bounded. The oldest calls are dropped, and the next call has the number of dropped calls."""
    async with an_engine(*[Say("x") for _ in range(6)]) as engine, watch(capacity=2) as calls:
        for _ in range(5):
            await engine.generate("s:m", "Hi")
        await asyncio.sleep(0)
        first, second = await next_of(calls, 2)
        assert (first.skipped, second.skipped) == (3, 0)
        assert str(first).endswith("3 earlier ones were not shown")
        await engine.generate("s:m", "Hi")
        assert (await next_of(calls, 1))[0].skipped == 0
    with pytest.raises(ValueError, match="capacity=0"):
        watch(capacity=0)


async def test_no_subscription_remains_without_a_watcher() -> None:
    """A watcher that is garbage-collected ends at the next call."""
    async with an_engine(*[Say("x") for _ in range(3)]) as engine:

        def watchers() -> list[str]:
            return [each.name for each in engine.bus.statistics().subscriptions if each.name == "watch"]

        assert watchers() == []
        asking = asyncio.create_task(engine.generate("s:m", "Hi"))
        async for call in watch():
            assert call.status == "completed"
            break
        await asking
        del call
        gc.collect()
        await engine.generate("s:m", "Hi")
        await asyncio.sleep(0)
        assert watchers() == []
        calls = watch()
        assert watchers() == ["watch"]
        reading = asyncio.create_task(next_or_end(calls))
        await asyncio.sleep(0)
        await calls.aclose()
        assert await reading is None
        assert watchers() == []


async def next_or_end(calls: object) -> EndedCall | None:
    async with asyncio.timeout(5):
        return await anext(calls, None)  # type: ignore[call-overload, no-any-return]


# -- For a thread.


def test_each_passes_every_call_before_the_context_ends(in_the_sync_thread: Engine) -> None:
    """The function runs in a separate thread, so no call waits for it."""
    lines: list[EndedCall] = []
    threads: set[str] = set()

    def line(call: EndedCall) -> None:
        threads.add(threading.current_thread().name)
        lines.append(call)

    with watch_sync().each(line):
        for _ in range(3):
            generate_sync("s:m", "Hi", engine=in_the_sync_thread)
    generate_sync("s:m", "Hi", engine=in_the_sync_thread)
    assert [call.model for call in lines] == ["s:m"] * 3
    assert threads == {"callboard-watch"}


def test_a_thread_iterates_until_the_watcher_is_closed(in_the_sync_thread: Engine) -> None:
    """Waiting calls are read before the end."""
    calls = watch_sync()
    found: list[EndedCall] = []
    reader = threading.Thread(target=lambda: found.extend(calls))
    reader.start()
    generate_sync("s:m", "Hi", engine=in_the_sync_thread)
    calls.close()
    reader.join(5)
    assert [call.status for call in found] == ["completed"]
    assert list(calls) == []


def a_call(model: str) -> object:
    return Maker().completed(model=model).data


def test_a_call_that_ended_just_before_the_close_is_read(in_the_sync_thread: Engine) -> None:
    """The call was published, and the loop has not run since then."""
    bus = in_the_sync_thread.bus
    calls = watch_sync()

    async def publish_and_close() -> list[str]:
        bus.publish(a_call("s:here"))
        calls.close()
        return [call.model for call in calls]

    assert run_sync(publish_and_close()) == ["s:here"]


def test_close_waits_for_another_loop(in_the_sync_thread: Engine) -> None:
    """The other loop is busy when the watcher is closed."""
    bus = in_the_sync_thread.bus
    calls = watch_sync()
    published, released = threading.Event(), threading.Event()

    async def publish_and_work() -> None:
        bus.publish(a_call("s:there"))
        published.set()
        released.wait(5)

    found: list[EndedCall] = []

    def close() -> None:
        calls.close()
        found.extend(calls)

    loop = threading.Thread(target=lambda: run_sync(publish_and_work()))
    closing = threading.Thread(target=close)
    loop.start()
    published.wait(5)
    closing.start()
    closing.join(0.05)
    released.set()
    closing.join(5)
    loop.join(5)
    assert [call.model for call in found] == ["s:there"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_fails_affects_no_call(in_the_sync_thread: Engine) -> None:
    """The thread of the function ends with the exception."""

    def fail(call: EndedCall) -> None:
        raise ZeroDivisionError(call.model)

    with watch_sync().each(fail):
        assert generate_sync("s:m", "Hi", engine=in_the_sync_thread).text == "Hello"
        assert generate_sync("s:m", "Hi", engine=in_the_sync_thread).text == "Hello"


def test_an_engine_of_a_closed_loop_delays_no_close() -> None:
    engine = an_engine(Say("x"))

    async def ask() -> None:
        await engine.generate("s:m", "Hi")

    with watch_sync() as calls:
        asyncio.run(ask())
        assert next(calls).status == "completed"
    with watch_sync().each(print):
        pass


def test_a_call_as_text_is_one_line() -> None:
    call = EndedCall(
        run_id="r",
        request_id="q",
        operation="chat",
        provider="s",
        model="s:m",
        status="failed",
        usage=TokenUsage(1200, 34),
        cost=None,
        latency_ms=1234,
        first_token_ms=None,
        attempts=3,
        error="ServerError: " + "x\n" * 500,
        session_id=None,
        turn_id=None,
        tags={},
        ended_us=0,
    )
    assert str(call) == "s:m failed, ServerError: x, 1,200 + 34 tokens, unpriced, 1.2 s"
