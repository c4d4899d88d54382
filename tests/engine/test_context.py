"""The context that is sent of a long conversation. The scripted adapter counts ten tokens a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from callboard.adapters import (
    AdapterConfig,
    AnthropicAdapter,
    CanonicalRequest,
    CapabilityError,
    ContextOverflowError,
    GeminiAdapter,
    ImageBlock,
    Message,
    OllamaAdapter,
    OpenAIAdapter,
    OpenAICompatibleAdapter,
    Role,
    StopReason,
    TextBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus import (
    AuthError,
    Json,
    LlmCallCompleted,
    LlmCallStarted,
    Lossless,
    NotFoundError,
    PromptTooLongError,
)
from callboard.engine import Engine, NoObjectGeneratedError, Session
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
from callboard.tracestore import PriceTable

from ..support.engines import entry, model, running, serving, topics
from ..support.fake_http import FakeReply, FakeTransport
from ..support.present import present
from ..support.scripted import Say, adapter_type, noting, scripted_type


@asynccontextmanager
async def small_window(
    *replies: Say, limit: int, context: ContextPolicy | None
) -> AsyncIterator[tuple[Session, list[CanonicalRequest]]]:
    """A session whose prompts have at most `limit` tokens, and the requests that its adapter receives."""
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


async def test_without_a_policy_the_error_of_a_long_prompt_names_the_policies() -> None:
    """No message is left out silently."""
    async with small_window(Say("1"), Say("2"), limit=20, context=None) as (session, _):
        await talk(session, "a", "b")
        with pytest.raises(PromptTooLongError) as caught:
            await session.send("c")
    assert "context=Truncate()" in "".join(caught.value.__notes__)


async def test_truncate_leaves_out_the_oldest_turns_and_keeps_the_history() -> None:
    """The start of the prompt stays the same until the prompt is too long again, so the provider can cache it."""
    replies = [Say(str(number)) for number in range(6)]
    async with small_window(*replies, limit=40, context=Truncate(keep=0.8)) as (session, sent):
        await talk(session, "a", "b", "c", "d", "e", "f")
        assert [texts(request) for request in sent[:3]] == [["a"], ["a", "0", "b"], ["a", "0", "b", "1", "c"]]
        assert [texts(request)[0] for request in sent[3:]] == ["c", "c", "e"]
        assert texts(sent[3]) == ["c", "2", "d"]
        assert len(session.messages) == 12


async def test_a_prompt_that_the_provider_refuses_as_too_long_is_shortened() -> None:
    """The engine's estimate of the prompt was too low."""
    replies = [Say("0"), Say("1"), Say(fails=ContextOverflowError("too long")), Say("2")]
    async with small_window(*replies, limit=900, context=Truncate()) as (session, sent):
        await talk(session, "a", "b", "c")
        assert session.messages[-1].text == "2"
    assert [texts(request) for request in sent[-2:]] == [["a", "0", "b", "1", "c"], ["b", "1", "c"]]


async def test_a_turn_that_is_too_long_by_itself_is_an_error() -> None:
    """The error says that the policy could not help."""
    async with small_window(limit=-4, context=Truncate()) as (session, sent):
        with pytest.raises(PromptTooLongError) as caught:
            await session.send("a")
    assert sent == []
    assert "Truncate could not" in "".join(caught.value.__notes__)


async def test_only_the_last_turns_are_sent() -> None:
    """With LastTurns(2), a prompt has the current and the previous turn."""
    replies = [Say(str(number)) for number in range(4)]
    async with small_window(*replies, limit=900, context=LastTurns(2)) as (session, sent):
        await talk(session, "a", "b", "c", "d")
    assert [texts(request) for request in sent] == [["a"], ["a", "0", "b"], ["b", "1", "c"], ["c", "2", "d"]]


async def test_a_summary_replaces_the_turns_that_it_summarises() -> None:
    """Another call writes the summary from a transcript."""
    replies = [Say("0"), Say("Alphabet."), Say("1")]
    async with small_window(*replies, limit=10, context=Summarise(keep_turns=1)) as (session, sent):
        with session._runtime.bus.subscribe("session.turn_completed", policy=Lossless()) as ends:
            await talk(session, "a", "b")
            assert [end.data.calls for end in ends.take() if end.session_id == session.id] == [1, 2]
        assert [message.text for message in session.messages] == ["a", "0", "b", "1"]
    summary, last = sent[-2:]
    assert "user: a\nassistant: 0" in texts(summary)[0]
    assert texts(last) == ["Summary of the conversation so far:\n\nAlphabet.", "b"]


async def test_a_long_past_is_summarised_in_parts() -> None:
    """Each part is at most half of a prompt. Each summary includes the previous one."""
    replies = [Say("0"), Say("1"), Say("ONE"), Say("TWO"), Say("2")]
    async with small_window(*replies, limit=20, context=Summarise(keep_turns=1)) as (session, sent):
        await talk(session, "a", "b", "c")
    first, second, last = sent[-3:]
    assert texts(first)[0].endswith("user: a\nassistant: 0")
    assert texts(second)[0].endswith("ONE\n\nuser: b\nassistant: 1")
    assert texts(last) == ["Summary of the conversation so far:\n\nTWO", "c"]


async def test_a_second_summary_includes_the_first() -> None:
    replies = [Say("0"), Say("FIRST"), Say("1"), Say("SECOND"), Say("2")]
    async with small_window(*replies, limit=10, context=Summarise(keep_turns=1)) as (session, sent):
        await talk(session, "a", "b", "c")
    assert "FIRST" in texts(sent[-2])[0]
    assert texts(sent[-1]) == ["Summary of the conversation so far:\n\nSECOND", "c"]


async def test_a_turn_can_have_its_own_policy() -> None:
    """`context=` of `send` replaces the session's policy."""
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
async def test_a_policy_cuts_at_user_messages_and_always_advances(
    kinds: list[str], policy: ContextPolicy, limit: int | None
) -> None:
    """No call is separated from its result, the last turn is always sent, and repeated shortening ends."""
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
        raise AssertionError("the context never becomes stable")


def test_a_transcript_has_roles_texts_calls_and_results() -> None:
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
def test_a_wrong_policy_is_refused_when_it_is_made(wrong: Callable[[], object]) -> None:
    """The error names the argument."""
    with pytest.raises(ValueError, match=r"keep|turn|text"):
        wrong()


# Requests to the provider: accepted limits, schemas and images.

PNG = b"\x89PNG\r\n\x1a\n"
JSON = {"content-type": "application/json"}


class Guess(BaseModel):
    """A guess."""

    number: Annotated[int, Field(ge=1, le=99)]


def said(text: str) -> FakeReply:
    """A whole reply of the Messages API."""
    content: list[Json] = [{"type": "text", "text": text}]
    usage: Json = {"input_tokens": 9, "output_tokens": 3}
    body: Json = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": usage}
    return FakeReply(msgspec.json.encode(body), headers=JSON)


WIRES: dict[str, tuple[type[HttpAdapter], str]] = {
    "anthropic": (AnthropicAdapter, "max_tokens"),
    "openai": (OpenAIAdapter, "max_output_tokens"),
    "openai_compatible": (OpenAICompatibleAdapter, "max_tokens"),
    "gemini": (GeminiAdapter, "generationConfig.maxOutputTokens"),
    "ollama": (OllamaAdapter, "options.num_predict"),
}
"""The adapter of each protocol, and the path of its limit of output tokens."""


async def limit_sent(wire: str, *, prompt: str = "Hi", asked: int | None = None, **said: object) -> Json:
    """The limit in the request. `said` are the model's settings in models.yaml, and `asked` is the caller's
    limit.
    """
    kind, path = WIRES[wire]
    transport = FakeTransport(FakeReply(b"no reply", status=401))
    options = {"discover": False} if wire == "ollama" else {}

    def make(config: AdapterConfig, **_: object) -> HttpAdapter:
        return kind(config, name="a", transport=transport)

    config = AdapterConfig(max_retries=0, base_url="https://server.test", options=options)
    models = serving(model("a:m", **said), a=entry("a", adapter_type(make), config))
    async with Engine(models=models, trace=False) as engine:
        with pytest.raises(AuthError):
            await engine.generate("a:m", prompt, max_output_tokens=asked)
    value: Json = msgspec.json.decode(transport.requests[0].body)
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


@pytest.mark.parametrize("wire", WIRES)
async def test_a_declared_window_has_room_for_prompt_and_reply(wire: str) -> None:
    """Without a requested limit, the default shrinks to the rest of the window."""
    small = {"capabilities": {"max_context_tokens": 8192}}
    brief = await limit_sent(wire, **small)
    long = await limit_sent(wire, prompt="word " * 4000, **small)
    assert (8000 < brief < 8192, 2000 < long < brief - 3000) == (True, True)
    assert await limit_sent(wire, asked=16_384) == 16_384
    assert await limit_sent(wire, max_output_tokens=3000) == 3000


@pytest.mark.parametrize(("wire", "sent"), [("openai", None), ("openai_compatible", None), ("anthropic", 16_384)])
async def test_no_limit_is_sent_without_a_request_and_a_known_window(wire: str, sent: Json) -> None:
    """A server with a window of 8,192 tokens would refuse the default. The Messages API requires a limit."""
    assert await limit_sent(wire) == sent


def on_anthropic(*replies: FakeReply, **can: bool) -> tuple[Engine, FakeTransport]:
    """An engine with Anthropic's adapter, and its network. `can` has the capabilities of the model."""
    transport = FakeTransport(*replies)

    class Wired(AnthropicAdapter):
        def __init__(self, config: AdapterConfig, **_: object) -> None:
            super().__init__(config, name="a", transport=transport)

    wired = entry("a", adapter_type(Wired), AdapterConfig(max_retries=0))
    return Engine(models=serving(model("a:m", capabilities=can), a=wired), trace=False), transport


async def test_bounds_that_anthropic_refuses_are_checked_in_the_reply() -> None:
    """A `Field(ge=1, le=99)` is not sent as a bound, and a reply outside of it is an error."""
    engine, transport = on_anthropic(said('{"number": 7}'), said('{"number": 120}'))
    async with engine:
        result = await engine.generate_object("a:m", "Guess.", schema=Guess)
        with pytest.raises(NoObjectGeneratedError) as caught:
            await engine.generate_object("a:m", "Guess.", schema=Guess)
    assert result.output == Guess(number=7)
    assert caught.value.reason == "invalid"
    sent = transport.requests[0].body
    assert b'"minimum"' not in sent
    assert b"at most 99; at least 1" in sent


async def test_capabilities_of_models_yaml_apply_to_the_history() -> None:
    """A new image is refused. An image of an earlier turn is left out with a warning."""
    engine, transport = on_anthropic(said("Text only."), supports_images=False)
    image = ImageBlock(data=PNG, media_type="image/png")
    seen = (Message.user((image,)), Message.assistant("A cat."))
    async with engine:
        result = await engine.generate("a:m", messages=[*seen, Message.user("And?")])
        with pytest.raises(CapabilityError, match="does not accept images"):
            await engine.generate("a:m", messages=[*seen, Message.user((image,))])
    assert [b'"image"' in sent.body for sent in transport.requests] == [False]
    assert (result.text, [warning.code for warning in result.warnings]) == ("Text only.", ["content_dropped"])


# `Engine.complete`: one request, one reply, no session and no tools run.


def asked(**more: object) -> CanonicalRequest:
    fields = {"request_id": "req_mine", "messages": (Message.user("Hi"),), "model": "s:m", "max_output_tokens": 99}
    return CanonicalRequest(**{**fields, **more})  # type: ignore[arg-type]


async def test_a_request_keeps_its_ids_and_belongs_to_no_session(tmp_path: Path) -> None:
    """The response, the events and the trace have the caller's ids."""
    async with running(Say("Hello"), store=tmp_path / "t.db") as (engine, events):
        response = await engine.complete(asked(message_id="msg_mine"), tags={"team": "red"})
        published = events.take()
        assert not engine._runtime.sessions.states
        await engine.flush()
        store = present(engine.store)
        (row,) = await store.calls()
        assert (row.request_id, row.session_id, row.status) == ("req_mine", None, "completed")
        assert await store.sessions() == []
    assert (response.text, response.request_id) == ("Hello", "req_mine")
    ends = [envelope for envelope in published if isinstance(envelope.data, LlmCallCompleted)]
    assert [(end.request_id, end.message_id, end.session_id) for end in ends] == [("req_mine", "msg_mine", None)]
    assert topics(published, "session.") == ["session.turn_started", "session.turn_completed"]


async def test_tool_calls_are_returned_and_not_run() -> None:
    """The request has only definitions of tools. An error of the provider is raised."""
    async with running(Say(calls=[("add", {"a": 1})]), Say(fails=NotFoundError("no such model"))) as (engine, _):
        response = await engine.complete(asked(tools=(ToolDefinition("add"),)))
        with pytest.raises(NotFoundError):
            await engine.complete(asked())
    assert [use.name for use in response.tool_uses] == ["add"]


async def test_a_paused_reply_is_returned_unchanged() -> None:
    """The caller must continue after `pause_turn`."""
    pausing = Say("Wait")
    pausing.reply = msgspec.structs.replace(pausing.reply, stop=StopReason.PAUSE_TURN)
    async with running(pausing, Say("Done")) as (engine, events):
        response = await engine.complete(asked(request_id=""))
        starts = [envelope for envelope in events.take() if isinstance(envelope.data, LlmCallStarted)]
    assert response.stop_reason is StopReason.PAUSE_TURN
    assert len(starts) == 1
    assert response.request_id.startswith("req_")
