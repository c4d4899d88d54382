"""What is sent of a conversation that has grown too long. The scripted adapter counts ten tokens a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    CanonicalRequest,
    ContextOverflowError,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus import Lossless, PromptTooLongError
from callboard.engine import Engine, Session
from callboard.engine.conversation.context import (
    WHOLE,
    Context,
    ContextPolicy,
    Conversation,
    LastTurns,
    Summarise,
    Truncate,
    transcript,
)
from tests.support.engines import model, serving
from tests.support.scripted import Say, noting, scripted_type
from callboard.tracestore import PriceTable

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def small_window(
    *replies: Say, limit: int, context: ContextPolicy | None
) -> AsyncIterator[tuple[Session, list[CanonicalRequest]]]:
    """A session on a model whose prompts may have `limit` tokens, and what its adapter is sent."""
    sent: list[CanonicalRequest] = []
    window = {"max_context_tokens": limit + 10, "max_output_tokens": 10}
    models = serving(
        model("s:m", capabilities=window, max_output_tokens=10), s=scripted_type(*replies, base=noting(sent))
    )
    async with Engine(models=models, trace=False, prices=PriceTable.default()) as engine:
        yield engine.session("s:m", context=context), sent


def texts(request: CanonicalRequest) -> list[str]:
    return [message.text for message in request.messages]


async def talk(session: Session, *said: str) -> None:
    for text in said:
        await session.send(text)


async def test_without_a_policy_a_prompt_that_is_too_long_says_what_to_do() -> None:
    """The error's note names the policies; nothing is left out silently."""
    async with small_window(Say("1"), Say("2"), limit=20, context=None) as (session, _):
        await talk(session, "a", "b")
        with pytest.raises(PromptTooLongError) as caught:
            await session.send("c")
    assert "context=Truncate()" in "".join(caught.value.__notes__)


async def test_truncate_leaves_out_the_oldest_turns_and_keeps_the_history() -> None:
    """The prompt fits again; the session still has every message."""
    replies = [Say(str(number)) for number in range(4)]
    async with small_window(*replies, limit=40, context=Truncate(keep=0.8)) as (session, sent):
        await talk(session, "a", "b", "c", "d")
        assert [texts(request) for request in sent] == [
            ["a"],
            ["a", "0", "b"],
            ["a", "0", "b", "1", "c"],
            ["c", "2", "d"],
        ]
        assert len(session.messages) == 8


async def test_what_was_left_out_stays_out_until_it_is_too_long_again() -> None:
    """The beginning of the prompt stays the same from turn to turn, so that it can be cached."""
    replies = [Say(str(number)) for number in range(6)]
    async with small_window(*replies, limit=40, context=Truncate(keep=0.8)) as (session, sent):
        await talk(session, "a", "b", "c", "d", "e", "f")
    assert [texts(request)[0] for request in sent] == ["a", "a", "a", "c", "c", "e"]


async def test_a_provider_s_refusal_is_healed_like_our_own() -> None:
    """Where our estimate was too low, the provider says that the prompt is too long: then it is shortened, too."""
    replies = [Say("0"), Say("1"), Say(fails=ContextOverflowError("too long")), Say("2")]
    async with small_window(*replies, limit=900, context=Truncate()) as (
        session,
        sent,
    ):
        await talk(session, "a", "b", "c")
        assert session.messages[-1].text == "2"
    assert [texts(request) for request in sent[-2:]] == [["a", "0", "b", "1", "c"], ["b", "1", "c"]]


async def test_a_turn_that_is_too_long_by_itself_fails_clearly() -> None:
    """There is nothing to leave out; the error says that the policy could not help."""
    async with small_window(limit=-4, context=Truncate()) as (session, sent):
        with pytest.raises(PromptTooLongError) as caught:
            await session.send("a")
    assert sent == []
    assert "Truncate could not" in "".join(caught.value.__notes__)


async def test_the_last_turns_alone_are_sent() -> None:
    """With LastTurns(2) each prompt has the turn that is asked and the one before."""
    replies = [Say(str(number)) for number in range(4)]
    async with small_window(*replies, limit=900, context=LastTurns(2)) as (session, sent):
        await talk(session, "a", "b", "c", "d")
    assert [texts(request) for request in sent] == [["a"], ["a", "0", "b"], ["b", "1", "c"], ["c", "2", "d"]]


async def test_a_summary_stands_in_the_place_of_what_it_summarises() -> None:
    """One more call writes it, of what a transcript tells; the history stays whole."""
    replies = [Say("0"), Say("Alphabet."), Say("1")]
    async with small_window(*replies, limit=10, context=Summarise(keep_turns=1)) as (session, sent):
        await talk(session, "a", "b")
        assert [message.text for message in session.messages] == ["a", "0", "b", "1"]
    summary, last = sent[-2:]
    assert "user: a\nassistant: 0" in texts(summary)[0]
    assert texts(last) == ["What was said before, in short:\n\nAlphabet.", "b"]


async def test_what_a_summary_cost_is_part_of_the_turn() -> None:
    """The turn's end counts both calls."""
    replies = [Say("0"), Say("Alphabet."), Say("1")]
    async with small_window(*replies, limit=10, context=Summarise(keep_turns=1)) as (session, _):
        with session._runtime.bus.subscribe("session.turn_completed", policy=Lossless()) as ends:
            await talk(session, "a", "b")
            mine = [end for end in ends.take() if end.session_id == session.id]
            assert [end.data.calls for end in mine] == [1, 2]


async def test_a_long_past_is_summarised_in_parts() -> None:
    """No summary reads more than half of what a prompt may have; each goes on from the one before."""
    replies = [Say("0"), Say("1"), Say("ONE"), Say("TWO"), Say("2")]
    async with small_window(*replies, limit=20, context=Summarise(keep_turns=1)) as (session, sent):
        await talk(session, "a", "b", "c")
    first, second, last = sent[-3:]
    assert texts(first)[0].endswith("user: a\nassistant: 0")
    assert texts(second)[0].endswith("ONE\n\nuser: b\nassistant: 1")
    assert texts(last) == ["What was said before, in short:\n\nTWO", "c"]


async def test_a_second_summary_includes_the_first() -> None:
    """What the first one said is read again, so that nothing is forgotten at once."""
    replies = [Say("0"), Say("FIRST"), Say("1"), Say("SECOND"), Say("2")]
    async with small_window(*replies, limit=10, context=Summarise(keep_turns=1)) as (session, sent):
        await talk(session, "a", "b", "c")
    assert "FIRST" in texts(sent[-2])[0]
    assert texts(sent[-1]) == ["What was said before, in short:\n\nSECOND", "c"]


async def test_one_turn_may_have_a_policy_of_its_own() -> None:
    """`context=` of a send stands over the session's."""
    async with small_window(Say("0"), Say("1"), limit=900, context=None) as (session, sent):
        await session.send("a")
        await session.send("b", context=LastTurns(1))
    assert texts(sent[-1]) == ["b"]


def conversation(messages: Sequence[Message], limit: int | None, context: Context = WHOLE) -> Conversation:
    async def ask(text: str) -> str:
        return "short"

    estimate: Callable[[Sequence[Message]], int] = lambda some: 10 * len(some)  # noqa: E731
    return Conversation(
        messages=tuple(messages), context=context, too_long=True, limit=limit, estimate=estimate, ask=ask
    )


TURN = st.sampled_from(["plain", "tools", "twice"])


def messages_of(kinds: Sequence[str]) -> list[Message]:
    made: list[Message] = []
    for number, kind in enumerate(kinds):
        made.append(Message.user(f"u{number}"))
        if kind == "twice":
            made.append(Message.user("and"))
        if kind == "tools":
            made.append(Message.assistant([ToolUseBlock(f"tu_{number}", "t", {})]))
            made.append(Message(Role.TOOL, (ToolResultBlock(f"tu_{number}", "r"),)))
        made.append(Message.assistant(f"a{number}"))
    return made[:-1]


@given(
    st.lists(TURN, min_size=1, max_size=8),
    st.sampled_from([Truncate(), Truncate(keep=0.3), Summarise(), Summarise(keep_turns=1), LastTurns(2)]),
    st.integers(10, 300) | st.none(),
)
async def test_a_policy_cuts_where_a_user_speaks_and_always_moves_on(
    kinds: list[str], policy: ContextPolicy, limit: int | None
) -> None:
    """No call is parted from its result, the last turn is always sent, and asking again ends."""
    messages = messages_of(kinds)
    context = WHOLE
    for _ in range(len(kinds) + 2):
        after = await policy.assemble(conversation(messages, limit, context))
        assert after.start >= context.start
        sent = after.of(messages)
        assert sent[len(after.preface)].role is Role.USER
        assert sent[-1] == messages[-1]
        answered = {block.tool_use_id for m in sent for block in m.content if isinstance(block, ToolResultBlock)}
        assert answered <= {call.id for m in sent for call in m.tool_uses}
        if after == context:
            break
        context = after
    else:
        raise AssertionError("it never settles")


def test_a_transcript_has_who_said_what_and_what_tools_gave() -> None:
    """Calls, results and what is no text appear in a line each."""
    text = transcript(
        [
            Message.user([TextBlock("look")]),
            Message.assistant([ToolUseBlock("tu", "find", {"q": "x"})]),
            Message(Role.TOOL, (ToolResultBlock("tu", "found"),)),
        ]
    )
    assert text == 'user: look\ncall of find: {"q":"x"}\nresult: found'


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Truncate(keep=0),
        lambda: LastTurns(0),
        lambda: Summarise(keep_turns=0),
        lambda: Summarise(instructions=""),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: Callable[[], object]) -> None:
    """At once, by name."""
    with pytest.raises(ValueError, match=r"keep|turn|text"):
        wrong()
