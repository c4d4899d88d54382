"""Guardrails: held text, passed text, and the state after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    CancelledError,
    CanonicalRequest,
    ContentFilterError,
    MessageComplete,
    MessageStart,
    ServerError,
    StopReason,
    StreamEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    TokenUsage,
    ToolDefinition,
)
from callboard.bus import Envelope, GuardrailStopped, LlmCallFailed, LlmCallGuarded, Subscription
from callboard.bus.streams.events import ProviderEvent, ThinkingDelta
from callboard.engine import Session, Tool
from callboard.engine.middleware import Guardrail, Held, Judged, Stop
from callboard.engine.middleware.guardrails import MOST_CHARACTERS, TextWindow, Window

from ...support.engines import requests_of, running
from ...support.invariants import check_stream
from ...support.scripted import Say

CARD = re.compile(r"\b\d{4}(?: ?\d{4}){3}\b")


def masked(held: Held) -> str:
    return CARD.sub("****", held.text)


async def masked_later(held: Held) -> str:
    await anyio.lowlevel.checkpoint()
    return masked(held)


def no_secrets(held: Held) -> str | Stop:
    return Stop("the text has the secret") if "secret" in held.text else held.text


async def no_secrets_later(held: Held) -> str | Stop:
    await anyio.lowlevel.checkpoint()
    return no_secrets(held)


async def answer(session: Session, streamed: bool, read: list[str]) -> str:
    """Return a session's reply. `read` collects the text of the stream's reader."""
    if not streamed:
        return (await session.send("Hi")).text
    async with session.stream("Hi") as turn:
        async for text in turn.text_stream:
            read.append(text)  # noqa: PERF401  (what was read before an error counts, too)
        return (await turn.message()).text


def guarded(events: Subscription) -> list[LlmCallGuarded]:
    return [event for event in map(data_of, events.take()) if isinstance(event, LlmCallGuarded)]


def data_of(envelope: Envelope) -> object:
    return envelope.data


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("check", [masked, masked_later])
async def test_a_change_reaches_readers_reply_and_history(streamed: bool, check: Callable[[Held], str]) -> None:
    """The changed text may be spread over several deltas."""
    fragments = ("Your card is 41", "11 1111 11", "11 1111, she said.", " Bye.")
    rail = Guardrail(check, window=Window.characters(12, overlap=30))
    read: list[str] = []
    async with running(Say(*fragments), Say("Yes"), middleware=[rail]) as (engine, events):
        session = engine.session("s:m")
        assert await answer(session, streamed, read) == "Your card is ****, she said. Bye."
        assert "".join(read) in ("", "Your card is ****, she said. Bye.")
        (event,) = guarded(events)
        assert (event.guardrail, event.action, event.content_block_index) == (check.__name__, "changed", 0)
        await session.send("And?")
        assert "1111" not in str(requests_of(engine)[-1].messages)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("check", [no_secrets, no_secrets_later])
async def test_a_stop_ends_the_reply_with_the_text_that_passed(
    streamed: bool, check: Callable[[Held], str | Stop], tmp_path: Path
) -> None:
    """The error has the text and the cost. No fallback is called. The trace has the reason."""
    rail = Guardrail(check, window=Window.sentences())
    read: list[str] = []
    replies, others = (Say("Well. ", "The secret ", "is 42. ", "And more."), Say("Fine")), {"z": [Say("never")]}
    async with running(*replies, middleware=[rail], store=tmp_path / "t.db", **others) as (engine, events):  # type: ignore[arg-type]
        session = engine.session("s:m", fallback=["z:m"])
        with pytest.raises(GuardrailStopped, match="the text has the secret") as stopped:
            await answer(session, streamed, read)
        error = stopped.value
        assert isinstance(error, ContentFilterError)
        assert "secret" not in "".join(read)
        kept = "".join(block.text for block in error.content if isinstance(block, TextBlock))
        assert kept.strip() in ("Well.", "")
        assert None not in (error.usage, error.cost)
        published = [envelope.data for envelope in events.take()]
        ends = [event for event in published if isinstance(event, LlmCallFailed)]
        assert [end.error_class for end in ends] == ["cancelled"]
        rails = [event for event in published if isinstance(event, LlmCallGuarded)]
        assert [(rail.action, rail.reason) for rail in rails] == [("stopped", "the text has the secret")]
        await session.send("And now?")
        assert "secret" not in str(requests_of(engine)[-1].messages)


async def test_readers_get_a_piece_before_the_next_is_complete() -> None:
    gate = anyio.Event()
    steps = iter(range(9))

    async def wait() -> None:
        if next(steps) == 2:
            await gate.wait()

    async with running(Say("One. ", "Two", " three.", pause=wait), middleware=[Guardrail(masked)]) as (engine, _):
        async with engine.session("s:m").stream("Hi") as turn:
            reader = aiter(turn.text_stream)
            assert await anext(reader) == "One. "
            gate.set()
            assert [text async for text in reader] == ["Two three."]


@pytest.mark.parametrize("check", [masked, masked_later, no_secrets])
async def test_a_guardrail_does_not_change_the_arguments_of_tools(check: Callable[[Held], str]) -> None:
    """A tool call comes after the held text. After a stop, no tool of the reply runs."""
    ran: list[object] = []
    stops = check is no_secrets
    number = "4111 1111 1111 1111"
    tool = Tool(ToolDefinition("pay"), lambda arguments: ran.append(arguments))
    say = Say("The secret: " if stops else "I pay with ", number, calls=[("pay", {"card": number})])
    async with running(say, Say("Done."), middleware=[Guardrail(check, window=Window.block())]) as (engine, _):
        async with engine.session("s:m", tools=[tool]).stream("Pay!") as turn:
            with pytest.raises(GuardrailStopped) if stops else contextlib.nullcontext():
                assert (await turn.message()).text == "Done."
    assert ran == ([] if stops else [{"card": number}])


@pytest.mark.parametrize("check", [masked, masked_later])
async def test_a_held_reply_that_fails_falls_back_to_another_model(check: Callable[[Held], str]) -> None:
    """The held text is dropped. If text has passed, the call fails and the text stays."""
    gone = ServerError("gone", retryable=False)
    replies = Say("Half a sent", fails=gone), Say("Whole. Half a sent", fails=gone)
    async with running(*replies, middleware=[Guardrail(check)], z=[Say("Whole.")]) as (engine, _):
        async with engine.session("s:m", fallback=["z:m"]).stream("Hi") as turn:
            assert [text async for text in turn.text_stream] == ["Whole."]
        async with engine.session("s:m").stream("Hi") as turn:
            read: list[str] = []
            with pytest.raises(ServerError) as raised:
                async for text in turn.text_stream:
                    read.append(text)  # noqa: PERF401
    assert read == ["Whole. "]
    assert [block.text for block in raised.value.content if isinstance(block, TextBlock)] == ["Whole. "]


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelling_does_not_wait_for_a_guardrail(streamed: bool) -> None:
    """The text in the guardrail is dropped, and the usage of the reply is counted."""
    asked = anyio.Event()

    async def never(held: Held) -> str:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with running(Say("One. Two."), middleware=[Guardrail(never)]) as (engine, _):
        session = engine.session("s:m")
        reply = asyncio.ensure_future(answer(session, streamed, []))
        await asked.wait()
        assert await session.cancel()
        with pytest.raises(CancelledError) as cancelled:
            await reply
        assert cancelled.value.content == ()
        assert cancelled.value.usage is not None


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_exception_of_a_guardrail_ends_the_call(streamed: bool) -> None:

    def breaks(held: Held) -> str:
        raise ZeroDivisionError

    async def breaks_later(held: Held) -> str:
        raise ZeroDivisionError

    for check in (breaks, breaks_later):
        async with running(Say("Hi."), middleware=[Guardrail(check)]) as (engine, _):
            with pytest.raises(ZeroDivisionError):
                await answer(engine.session("s:m"), streamed, [])


@pytest.mark.parametrize("waits", [(False, False), (True, False), (False, True), (True, True)])
async def test_the_outer_of_two_guardrails_gets_the_output_of_the_inner(waits: tuple[bool, bool]) -> None:
    """The first guardrail in the list is the outermost."""
    seen: dict[str, list[str]] = {"outer": [], "inner": []}

    def check(name: str) -> Callable[[Held], str]:
        def look(held: Held) -> str:
            seen[name].append(held.text)
            return held.text.replace("a", "b") if name == "inner" else held.text + "!"

        return look

    def waiting(name: str) -> Callable[[Held], Awaitable[str]]:
        async def look(held: Held) -> str:
            return check(name)(held)

        return look

    rails = [
        Guardrail(waiting(name) if wait else check(name), window=Window.block())
        for name, wait in zip(("outer", "inner"), waits, strict=True)
    ]
    async with running(Say("a", "a"), middleware=rails) as (engine, _):
        assert (await engine.session("s:m").send("Hi")).text == "bb!"
    assert seen == {"outer": ["bb"], "inner": ["aa"]}


async def test_the_result_has_the_text_that_passed() -> None:
    """The event of the guardrail has its name."""
    rail = Guardrail(lambda held: held.text.replace("Ann", "***"), window=Window.block(), name="names")
    async with running(Say('{"name": "Ann"}'), middleware=[rail]) as (engine, events):
        assert (await engine.generate("s:m", "Who?")).text == '{"name": "***"}'
        assert [told.guardrail for told in guarded(events)] == ["names"]


def test_only_text_and_thinking_can_be_held() -> None:
    """Another kind is refused when the guardrail is created."""
    with pytest.raises(ValueError, match="not tools"):
        Guardrail(masked, kinds=("text", "tools"))  # type: ignore[arg-type]


REQUEST = CanonicalRequest(request_id="req", model="s:m", messages=(), max_output_tokens=9)


def through(rail: Guardrail, events: list[StreamEvent], judged: list[Judged]) -> list[StreamEvent]:
    take = rail.guarded(REQUEST, judged.append)
    return [passed for event in events for passed in take([event])]  # type: ignore[union-attr]


def message(*blocks: tuple[str, list[str]], signature: str | None = None) -> list[StreamEvent]:
    """The events of a message with texts and thinking, in these fragments."""
    events: list[StreamEvent] = [MessageStart("msg", "m", "s")]
    content: list[TextBlock | ThinkingBlock] = []
    for index, (kind, fragments) in enumerate(blocks):
        delta = TextDelta if kind == "text" else ThinkingDelta
        events += [delta(text, content_block_index=index, message_id="msg") for text in fragments if text]
        if kind == "text":
            content.append(TextBlock("".join(fragments)))
        else:
            events.append(ThinkingDelta("", signature, index, "msg"))
            content.append(ThinkingBlock("".join(fragments), signature))
    return [*events, MessageComplete(tuple(content), StopReason.END_TURN, "stop", TokenUsage(1, 1), "msg")]


BLOCK = st.sampled_from(["text", "thinking"]), st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=5)
BLOCKS = st.lists(st.tuples(*BLOCK), min_size=1, max_size=4)


@given(BLOCKS, st.integers(1, 9), st.integers(0, 9), st.sampled_from([("text",), ("text", "thinking")]))
def test_a_guardrail_without_changes_keeps_the_text(
    blocks: list[tuple[str, list[str]]], size: int, overlap: int, kinds: tuple[str, ...]
) -> None:
    """The stream keeps its invariants, no event reports a change, and the content is the same."""
    judged: list[Judged] = []
    events = message(*blocks, signature="signed")
    rail = Guardrail(lambda held: held.text, window=Window.characters(size, overlap=overlap), kinds=kinds)  # type: ignore[arg-type]
    passed = through(rail, events, judged)
    check_stream(passed)
    assert judged == []
    assert passed[-1] == events[-1]


@given(
    st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=5), min_size=1, max_size=12), st.integers(1, 6)
)
def test_a_pattern_is_found_for_every_cut_of_the_text(fragments: list[str], size: int) -> None:
    """The overlap is one character less than the length of the pattern."""
    rail = Guardrail(lambda held: held.text.replace("aba", "X"), window=Window.characters(size, overlap=2))
    passed = through(rail, message(("text", fragments)), [])
    text = "".join(event.text for event in passed if isinstance(event, TextDelta))
    assert "aba" not in text
    assert text.count("a") + 2 * text.count("X") == "".join(fragments).count("a")


def test_changed_thinking_loses_its_signature() -> None:
    """The provider would refuse changed thinking with its signature. Unchanged thinking keeps its signature."""
    events = message(("thinking", ["the plan"]), signature="signed")
    end = through(Guardrail(lambda held: "***", kinds=("thinking",), window=Window.block()), events, [])[-1]
    assert end.final_content == (ThinkingBlock("***"),)
    kept = through(Guardrail(lambda held: held.text, kinds=("thinking",)), events, [])
    assert kept[-1] == events[-1]
    assert [event.signature for event in kept if isinstance(event, ThinkingDelta)][-1] == "signed"


def test_provider_events_do_not_pass() -> None:
    start, *rest = message(("text", ["My number is 12."]))
    told = ProviderEvent("repeated", {"text": "My number is 12."}, "m")
    passed = through(Guardrail(masked), [start, told, *rest], [])
    assert not any(isinstance(event, ProviderEvent) for event in passed)


# Pieces of a text that arrives in fragments.

WINDOWS = st.one_of(
    st.builds(Window.characters, st.integers(1, 20)),
    st.builds(Window.words, st.integers(1, 4)),
    st.builds(Window.sentences, st.integers(1, 3)),
    st.just(Window.block()),
)
TEXTS = st.text(st.sampled_from("ab.!?…。！\"')」 \n\t1"), max_size=60) | st.text(max_size=40)


def pieces_of(window: Window, fragments: list[str]) -> list[str]:
    cutter = TextWindow(window)
    pieces = [piece for fragment in fragments for piece in cutter.feed(fragment)]
    return [*pieces, rest] if (rest := cutter.rest()) else pieces


@given(WINDOWS, st.lists(TEXTS, max_size=8))
def test_the_pieces_are_the_same_for_every_cut_of_the_text(window: Window, fragments: list[str]) -> None:
    text = "".join(fragments)
    pieces = pieces_of(window, [text])
    assert pieces_of(window, fragments) == pieces
    assert pieces_of(window, list(text)) == pieces
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("window", "pieces"),
    [
        (Window.sentences(), ["Is it 3.14? ", 'She said "No." ', "First line\n", "the rest"]),
        (Window.sentences(2), ['Is it 3.14? She said "No." ', "First line\nthe rest"]),
        (Window.words(3), ["Is it 3.14? ", 'She said "No." ', "First line\nthe ", "rest"]),
        (Window.characters(20), ["Is it 3.14? She said", ' "No." First line\nth', "e rest"]),
        (Window.block(), ['Is it 3.14? She said "No." First line\nthe rest']),
    ],
)
def test_the_end_of_a_piece(window: Window, pieces: list[str]) -> None:
    """A sentence ends at white space after its mark, a line at its break, and a word after its space."""
    assert pieces_of(window, ['Is it 3.14? She said "No." First line\nthe rest']) == pieces


def test_sentences_without_spaces_end_at_their_mark_and_long_lines_are_cut() -> None:
    assert pieces_of(Window.sentences(), ["你好。（再见。）好！"]) == ["你好。", "（再见。）", "好！"]
    pieces = pieces_of(Window.sentences(), ["x" * 500] * 20)
    assert [len(piece) for piece in pieces] == [MOST_CHARACTERS, MOST_CHARACTERS, 2000]
    for size, overlap in ((0, 0), (5, -1)):
        with pytest.raises(ValueError, match="at least one unit"):
            Window.characters(size, overlap=overlap)
