"""Messages that steer a running turn: the time of their delivery, and messages that are not delivered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import (
    CancelledError,
    CanonicalRequest,
    CapabilityError,
    ImageBlock,
    Message,
    OpaqueBlock,
    ProviderRaw,
    Role,
    ServerError,
    StopReason,
    TextBlock,
    ToolDefinition,
)
from callboard.bus import CallboardError, NoTurnRunning, SessionMessageAppended
from callboard.engine import (
    Approved,
    Budget,
    BudgetExceededError,
    Engine,
    ModelChoice,
    Pending,
    Reply,
    Session,
    Tool,
)
from callboard.engine.calls.outcome import CallOutcome
from callboard.engine.conversation.context import (
    Context,
    ContextPolicy,
    Conversation,
    LastTurns,
    Summarise,
    Truncate,
)
from callboard.engine.conversation.turn_context import SteeringQueue, provider_waits, steering_message
from callboard.engine.middleware import Middleware, Next

from ..support.engines import keeping, registry, requests_of, running, said, serving
from ..support.present import present
from ..support.scripted import CAPABILITIES, Say, scripted_type
from ..support.virtual_time import FakeClock, run_virtual

WORK = Say(calls=[("work", {})])
PIXEL = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(8), media_type="image/png")
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Stage:
    """The session of a test. Tools and replies can steer its turn."""

    session: Session

    def opened(self, engine: Engine, *, during_work: Sequence[str] = (), **options: Any) -> Session:
        """Open a session with the tool `work`. The first run of the tool steers the turn with `during_work`."""
        acts = self.steers(*during_work)
        self.session = engine.session(options.pop("model", "s:m"), tools=[self.tool(acts)], **options)
        return self.session

    def tool(self, act: Callable[[], Awaitable[object]], name: str = "work") -> Tool:
        async def work(arguments: object) -> str:
            await act()
            return "worked"

        return Tool(ToolDefinition(name), work)

    def steers(self, *texts: str) -> Callable[[], Awaitable[None]]:
        """A function that steers the turn with these texts at its first call."""
        left = list(texts)

        async def act() -> None:
            while left:
                self.session.steer(left.pop(0))

        return act


@pytest.fixture
def stage() -> Stage:
    return Stage()


def spoken(messages: Sequence[Message]) -> list[str]:
    """Each message as a pair of role and text."""
    return [f"{message.role} {message.text}".strip() for message in messages]


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


# -- Delivery of a message.


@both_ways
async def test_a_message_is_sent_after_the_tools_and_before_the_next_call(stage: Stage, streamed: bool) -> None:
    """The model gets the message with the results. The history and the bus have it at that position."""
    async with running(WORK, Say("Rome it is.")) as (engine, events):
        session = stage.opened(engine, during_work=["Only Rome."])
        await said(session, "Look.", streamed=streamed)
        expected = ["user Look.", "assistant", "tool", "user Only Rome."]
        assert spoken(requests_of(engine)[1].messages) == expected
        assert spoken(session.messages) == [*expected, "assistant Rome it is."]
        assert [message.steers for message in session.messages] == [False, False, False, True, False]
        appended = [each for each in events.take() if isinstance(each.data, SessionMessageAppended)]
        assert [each.data.message for each in appended] == list(session.messages)  # type: ignore[attr-defined]
        assert len({each.turn_id for each in appended}) == 1


@both_ways
async def test_a_message_during_the_last_reply_adds_a_step(stage: Stage, streamed: bool) -> None:
    async with running(Say("Hello.", pause=stage.steers("In French.")), Say("Bonjour.")) as (engine, events):
        session = stage.opened(engine)
        reply = await said(session, "Greet.", streamed=streamed)
        assert reply.text == "Bonjour."
        assert texts(session.messages) == ["Greet.", "Hello.", "In French.", "Bonjour."]
        ends = [each.data for each in events.take() if each.topic == "session.turn_completed"]
        assert [(each.status, each.calls) for each in ends] == [("completed", 2)]  # type: ignore[attr-defined]


async def test_a_waiting_turn_gets_the_steering_message_with_its_own_message(stage: Stage) -> None:
    """`steer` of a stream goes to the stream's turn, and `steer` of a session to the running turn."""
    async with running(WORK, Say("one"), Say("two")) as (engine, _):
        session = stage.opened(engine, during_work=["to the first"])
        async with session.stream("first") as first, session.stream("second") as second:
            second.steer("to the second")
            await first.message()
            await second.message()
        assert [text for text in texts(session.messages) if text] == [
            *("first", "to the first", "one"),
            *("second", "to the second", "two"),
        ]


async def test_a_session_with_a_cancelled_turn_steers_the_next(stage: Stage) -> None:
    """A cancelled turn accepts no message, but the waiting turn does."""
    async with running(WORK, Say("two")) as (engine, _):
        session = stage.opened(engine)

        async def act() -> None:
            await session.cancel()
            session.steer("more")
            await anyio.sleep(1)

        session.tools = [stage.tool(act)]
        async with session.stream("first") as first, session.stream("second") as second:
            with pytest.raises(CancelledError):
                await first.message()
            await second.message()
        assert first.undelivered == second.undelivered == ()
        assert texts(requests_of(engine)[1].messages)[-2:] == ["second", "more"]


async def test_a_paused_reply_continues_before_it_is_steered(stage: Stage) -> None:
    pausing = Say("Searching.", pause=stage.steers("Be quick."))
    pausing.reply = msgspec.structs.replace(pausing.reply, stop=StopReason.PAUSE_TURN)
    async with running(pausing, Say("Found."), Say("There.")) as (engine, _):
        await stage.opened(engine).send("Search.")
        assert [texts(each.messages)[-1] for each in requests_of(engine)] == ["Search.", "Searching.", "Be quick."]


def test_a_message_waits_for_the_result_of_a_provider_tool() -> None:
    """A completed search does not delay a message."""

    def reply(*kinds: str) -> Message:
        return Message.assistant([OpaqueBlock(kind, ProviderRaw("p", {"type": kind})) for kind in kinds])

    assert provider_waits(reply("server_tool_use"))
    assert provider_waits(reply("server_tool_use", "web_search_tool_result", "mcp_tool_use"))
    assert not provider_waits(reply("server_tool_use", "web_search_tool_result"))
    assert not provider_waits(reply("web_search_call"))
    assert not provider_waits(Message.assistant("Hello"))


async def test_a_message_is_not_sent_while_a_provider_tool_waits(stage: Stage) -> None:
    """The next call has only the local results. The following step has the message."""

    class Searching(Middleware):
        async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
            outcome = await next(request)
            if len(request.messages) > 1:
                return outcome
            waits = OpaqueBlock("server_tool_use", ProviderRaw("s", {"type": "server_tool_use", "id": "srv_1"}))
            response = msgspec.structs.replace(outcome.response, content=(waits, *outcome.response.content))
            return CallOutcome(response=response, cost=outcome.cost)

    async with running(WORK, WORK, Say("done"), middleware=[Searching()]) as (engine, _):
        await stage.opened(engine, during_work=["more"]).send("go", max_tool_rounds=3)
        assert [texts(each.messages).count("more") for each in requests_of(engine)] == [0, 0, 1]


async def test_a_stream_shows_the_place_of_the_message(stage: Stage) -> None:
    """The message comes between the end of a step and the next reply. The result has the message too."""
    async with running(WORK, Say("done")) as (engine, _):
        result = engine.stream("s:m", "go", tools=[stage.tool(lambda: more())])

        async def more() -> None:
            result.steer("more")

        events = [event async for event in result]
        shown = [event.type for event in events]
        place = shown.index("user.message")
        assert shown[place - 1 : place + 2] == ["step.finish", "user.message", "message.start"]
        assert [event.type async for event in engine.attach(result.stream_id)].count("user.message") == 1
        final = await result.result()
        assert texts(final.messages) == ["go", "", "", "more", "done"]
        assert final.undelivered == ()


async def test_a_submitted_turn_gets_the_results_before_the_message(stage: Stage) -> None:
    async with running(WORK, Say("done")) as (engine, _):
        session = stage.opened(engine, approve=lambda request: Pending())
        await session.send("go")
        async with session.submit_stream({session.pending_calls[0].id: Approved()}) as turn:
            turn.steer("more")
            await turn.message()
        assert spoken(session.messages) == ["user go", "assistant", "tool", "user more", "assistant done"]


async def test_an_image_goes_to_a_model_that_accepts_it(stage: Stage) -> None:
    """If the model does not accept the message, a fallback replaces it or the turn fails."""
    blind = msgspec.structs.replace(CAPABILITIES, supports_images=False)
    for others in ({"t": scripted_type(Say("A dot."))}, {}):
        models = serving(s=scripted_type(WORK, capabilities=blind), **others)
        async with Engine(models=models, trace=False) as engine:
            session = engine.session(ModelChoice(among=tuple(models.models)))

            async def act(session: Session = session) -> None:
                session.steer([PIXEL])

            session.tools = [stage.tool(act)]
            if others:
                assert (await session.send("go")).text == "A dot."
            else:
                with pytest.raises(CapabilityError) as caught:
                    await session.send("go")
                assert present(caught.value.turn).undelivered[0].content == (PIXEL,)


# -- Messages that are not delivered.


@both_ways
async def test_a_message_without_a_reply_is_returned_to_the_host(stage: Stage, streamed: bool) -> None:
    """The history ends with the results, so the turn can continue. The error has the undelivered message."""
    script = WORK, Say(fails=ServerError("no")), Say("done"), Say("yes")
    async with running(*script) as (engine, _):
        session = stage.opened(engine, during_work=["more"])
        with pytest.raises(ServerError) as caught:
            await said(session, "go", streamed=streamed)
        (undelivered,) = present(caught.value.turn).undelivered
        assert undelivered.text == "more"
        assert spoken(session.messages) == ["user go", "assistant", "tool"]
        assert (await session.submit({})).text == "done"
        assert (await session.send(undelivered.content)).text == "yes"


async def test_a_fallback_gets_the_message_once_and_a_partial_reply_counts_as_delivery(stage: Stage) -> None:
    async with running(WORK, Say(fails=ServerError("no")), t=[Say("I would", fails=ServerError("broke"))]) as (
        engine,
        _,
    ):
        session = stage.opened(engine, model=["s:m", "t:m"], during_work=["more"])
        async with session.stream("go") as turn:
            with pytest.raises(ServerError):
                await turn.message()
        sent = [requests_of(engine)[1], requests_of(engine, "t")[0]]
        assert [texts(each.messages).count("more") for each in sent] == [1, 1]
        assert turn.undelivered == ()
        assert spoken(session.messages) == ["user go", "assistant", "tool", "user more", "assistant I would"]


@pytest.mark.parametrize("how", ["cancel", "timeout", "close"])
@both_ways
async def test_a_turn_that_is_cancelled_returns_its_messages(stage: Stage, how: str, streamed: bool) -> None:
    closing: list[asyncio.Future[object]] = []
    async with running(WORK) as (engine, _):
        session = stage.opened(engine)

        async def act() -> None:
            session.steer("more")
            if how == "close":
                closing.append(asyncio.ensure_future(engine.aclose()))
            elif how == "cancel":
                await session.cancel()
                with pytest.raises(NoTurnRunning, match="was cancelled"):
                    session.steer("too late")
            await anyio.sleep(60)

        session.tools = [stage.tool(act)]
        with pytest.raises(CallboardError) as caught:
            await said(session, "go", streamed=streamed, timeout=5 if how == "timeout" else None)
        await asyncio.gather(*closing)
        assert texts(present(caught.value.turn).undelivered) == ["more"]
        assert "more" not in texts(session.messages)
        with pytest.raises(NoTurnRunning, match="send"):
            session.steer("later")


@pytest.mark.parametrize("status", ["max_tool_rounds", "stopped", "awaiting_tools"])
@both_ways
async def test_a_turn_that_stops_otherwise_returns_its_messages(stage: Stage, status: str, streamed: bool) -> None:
    """The reasons are the limit of rounds, a stop condition, and an open call."""
    script = {
        "max_tool_rounds": [WORK, Say(calls=[("work", {})], pause=stage.steers("more"))],
        "stopped": [WORK],
        "awaiting_tools": [Say(calls=[("work", {}), ("ask", {})])],
    }[status]
    async with running(*script) as (engine, _):
        session = stage.opened(engine, during_work=[] if status == "max_tool_rounds" else ["more"])
        session.tools = [*session.tools, Tool(ToolDefinition("ask"))]
        options: dict[str, Any] = {"stop_when": lambda steps: True} if status == "stopped" else {}
        reply = await said(session, "go", streamed=streamed, **options)
        assert isinstance(reply, Reply)
        assert (reply.status, texts(reply.undelivered)) == (status, ["more"])
        assert "more" not in texts(session.messages)


async def test_a_result_has_the_undelivered_messages(stage: Stage) -> None:
    async with running(WORK) as (engine, _):
        result = engine.stream("s:m", "go", tools=[stage.tool(lambda: more())], stop_when=lambda steps: True)

        async def more() -> None:
            result.steer("more")

        assert texts((await result.result()).undelivered) == texts(result.undelivered) == ["more"]


async def test_steering_without_a_running_turn_is_an_error(stage: Stage) -> None:
    """The error is raised for an idle session, an ended turn, a closed stream, and a CanonicalRequest, which has
    one reply.
    """
    async with running(Say("a"), Say("b")) as (engine, _):
        session = stage.opened(engine)
        with pytest.raises(NoTurnRunning, match=r"no turn of session 'ses_.* Use send\(\)"):
            session.steer("more")
        async with session.stream("go") as turn:
            await turn.message()
            with pytest.raises(NoTurnRunning, match="the turn has ended"):
                turn.steer("more")
        unused = session.stream("go")
        await unused.aclose()
        with pytest.raises(NoTurnRunning, match="was closed"):
            unused.steer("more")
        request = CanonicalRequest(
            request_id="", messages=(Message.user("go"),), model="s:m", max_output_tokens=64
        )
        one = engine.stream(request)
        with pytest.raises(NoTurnRunning, match="one reply"):
            one.steer("more")
        assert (await one.message()).text == "b"


# -- Stored messages.


async def test_a_resumed_forked_or_imported_session_has_the_mark(stage: Stage, tmp_path: Path) -> None:
    """The history marks the messages that steered a turn."""
    path = tmp_path / "trace.db"
    async with keeping(path, WORK, Say("done")) as engine:
        session = stage.opened(engine, during_work=["more"])
        await session.send("go")
        before, document = session.messages, session.export()
        assert session.fork().messages == before
    assert [message.steers for message in before] == [False, False, False, True, False]
    async with keeping(path) as engine:
        assert (await engine.resume(session.id)).messages == before
        assert (await engine.import_session(document, session_id="ses_copy")).messages == before


async def test_the_trace_has_the_mark_without_content(stage: Stage, tmp_path: Path) -> None:
    async with running(WORK, Say("done"), store=tmp_path / "trace.db") as (engine, _):
        await stage.opened(engine, during_work=["secret"]).send("go")
        await engine.flush()
        store = present(engine.store)
        stored = [each.data for each in await store.events(limit=None)]
        appended = [each.message for each in stored if isinstance(each, SessionMessageAppended)]
        assert [(message.steers, message.text) for message in appended][3] == (True, "")
        assert sum(message.steers for message in appended) == 1


# -- Context policies, caches and objects.


@pytest.mark.parametrize("policy", [LastTurns(1), Truncate(), Summarise(keep_turns=1)])
async def test_a_steered_turn_is_one_turn_for_a_policy(stage: Stage, policy: ContextPolicy) -> None:
    async with running(Say("0"), WORK, Say("1"), Say("2"), Say("3")) as (engine, _):
        session = stage.opened(engine, during_work=["more"], context=policy)
        await session.send("before")
        await session.send("go")
        assert texts(requests_of(engine)[2].messages)[-4:] == ["go", "", "", "more"]
        arguments: dict[str, Any] = {"messages": session.messages, "estimate": len, "ask": never_asked}
        places = Conversation(context=Context(), too_long=True, limit=None, **arguments).turns
        assert [session.messages[place].text for place in places] == ["before", "go"]


async def never_asked(text: str) -> str:
    raise AssertionError(text)


async def test_an_object_can_be_steered(stage: Stage) -> None:
    """The object comes from the reply to the last message."""
    async with running(WORK, Say('{"n": 2}')) as (engine, _):
        stream = engine.stream_object("s:m", "go", schema=dict[str, int], tools=[stage.tool(lambda: more())])

        async def more() -> None:
            stream.steer("Two.")

        assert await stream.object() == {"n": 2}
        assert texts((await stream.result()).messages)[-2] == "Two."
        with pytest.raises(NoTurnRunning):
            stream.steer("Three.")


# -- Any order.


class Plan(msgspec.Struct, frozen=True):
    """One turn: for each reply, whether it calls the tool, whether it fails, and the number of messages during
    it.
    """

    replies: tuple[tuple[bool, bool, int, int], ...]
    cancelled_at: int | None


plans = st.builds(
    Plan,
    replies=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5
    ).map(tuple),
    cancelled_at=st.none() | st.integers(0, 4),
)


@settings(max_examples=60, deadline=None)
@given(plan=plans, streamed=st.booleans())
def test_each_message_is_in_the_history_or_undelivered(plan: Plan, streamed: bool) -> None:
    """Each accepted message occurs once, either in the history, in order, or among the undelivered messages."""

    async def act_it() -> None:
        stage, taken, step = Stage(), list[str](), iter(range(100))

        def say(count: int) -> None:
            for _ in range(count):
                with contextlib.suppress(NoTurnRunning):
                    taken.append(stage.session.steer(f"message {len(taken)}").text)

        script = []
        for calls, fails, during_reply, _ in plan.replies:
            pending = [during_reply]

            async def pause(pending: list[int] = pending) -> None:
                say(pending.pop() if pending else 0)

            failure = ServerError("no") if fails else None
            script.append(Say("text", calls=[("work", {})] if calls else [], fails=failure, pause=pause))
        script += [Say(f"end {number}") for number in range(10)]

        async def work() -> None:
            number = next(step)
            say(plan.replies[number][3] if number < len(plan.replies) else 0)
            if number == plan.cancelled_at:
                await stage.session.cancel()

        async with Engine(models=registry(*script), trace=False) as engine:
            session = stage.session = engine.session("s:m", tools=[stage.tool(work)])
            try:
                reply = await said(session, "go", streamed=streamed, max_tool_rounds=3)
                undelivered = reply.undelivered  # type: ignore[attr-defined]
            except CallboardError as error:
                undelivered = present(error.turn).undelivered
            assert [message.text for message in session.messages if message.steers] + texts(undelivered) == taken

    run_virtual(act_it)


@both_ways
async def test_a_budget_that_refuses_the_next_step_returns_the_message(stage: Stage, streamed: bool) -> None:
    """The error has the undelivered message. When the budget has room, the turn continues."""
    clock = FakeClock()
    budget = Budget(max_tokens=400, window=timedelta(hours=1))
    async with running(WORK, Say("Rome."), Say("Yes."), budgets=[budget], clock=clock) as (engine, _):
        session = stage.opened(engine, during_work=["Only Rome."])
        with pytest.raises(BudgetExceededError) as caught:
            await said(session, "Look.", streamed=streamed, max_output_tokens=300)
        (undelivered,) = present(caught.value.turn).undelivered
        assert (undelivered.text, len(requests_of(engine))) == ("Only Rome.", 1)
        clock.advance(3600)
        assert (await session.submit({}, max_output_tokens=10)).text == "Rome."
        assert (await session.send(undelivered.content, max_output_tokens=10)).text == "Yes."


# The queue between a host that steers and its turn: no message is lost or repeated.

Act: TypeAlias = Literal["add", "take", "close", "close_if_empty"]
ACTS: tuple[Act, ...] = ("add", "take", "close", "close_if_empty")


@given(st.lists(st.sampled_from(ACTS)))
def test_the_queue_agrees_with_a_list_and_a_flag(acts: list[Act]) -> None:
    """The queue refuses, delivers or keeps each message like the list does, in the order of adding."""
    queue, waiting, closed = SteeringQueue(), list[Message](), False
    for number, act in enumerate(acts):
        match act:
            case "add":
                message = steering_message(f"message {number}", f"msg_{number}")
                if closed:
                    with pytest.raises(NoTurnRunning, match="why"):
                        queue.add(message)
                else:
                    queue.add(message)
                    waiting.append(message)
            case "take":
                assert queue.take() == tuple(waiting)
                waiting.clear()
            case "close":
                queue.close("why")
                closed = True
            case "close_if_empty":
                assert queue.close_if_empty("why") is (not waiting)
                closed = closed or not waiting
        assert queue.waiting == tuple(waiting)


def test_messages_of_many_threads_are_taken_once_or_refused() -> None:
    """Threads add messages while one thread takes them and closes the queue."""
    queue, refused, taken = SteeringQueue(), list[str](), list[str]()

    def add(thread: int) -> None:
        for number in range(200):
            try:
                queue.add(steering_message("more", f"{thread}.{number}"))
            except NoTurnRunning:
                refused.append(f"{thread}.{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(taken) < 100:
        taken += [str(message.id) for message in queue.take()]
    while not queue.close_if_empty("over"):
        taken += [str(message.id) for message in queue.take()]
    for thread in threads:
        thread.join()
    assert queue.waiting == ()
    assert sorted(taken + refused) == sorted(f"{thread}.{number}" for thread in range(4) for number in range(200))


def test_the_first_reason_for_closing_stays() -> None:
    """A cancelled turn keeps its reason after its end."""
    queue = SteeringQueue()
    queue.close("cancelled")
    queue.close("over")
    assert queue.close_if_empty("empty")
    with pytest.raises(NoTurnRunning, match="cancelled"):
        queue.add(steering_message("more", "msg_1"))


def test_a_queue_refuses_an_empty_message() -> None:
    """No provider accepts it. A block that is no text counts as content."""
    for content in ("", " \n", [], [TextBlock("")]):
        with pytest.raises(ValueError, match="empty"):
            steering_message(content, "msg_1")
    assert steering_message([PIXEL], "msg_1") == Message(Role.USER, (PIXEL,), id="msg_1", steers=True)
