"""Errors of calls: the table of errors, quotes of the provider, and repairs of requests."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    AdapterConfig,
    AnthropicAdapter,
    CanonicalRequest,
    GeminiAdapter,
    InvalidRequestError,
    Message,
    RetryPolicy,
    Role,
    TextBlock,
    retry_delay,
)
from callboard.adapters.http.errors import COMMON_CODES, ErrorBody, build_error
from callboard.bus import AdapterError, CallboardError, LlmCallFailed, Lossless, RateLimitError, errors
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, tool
from callboard.engine.calls.outcome import WINDOW, without_quotes
from callboard.engine.routing.availability import signals_of

from ..definition_of_done.rows import row
from ..support.engines import registry
from ..support.fake_http import FakeReply, FakeTransport
from ..support.present import present
from ..support.scripted import Say, adapter_type
from ..tracestore.trace_making import Maker

# One table describes every exception of a call: the page's. The code must agree with it.

PAGE = Path(__file__).parent.parent.parent / "docs" / "errors.md"
EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CallboardError)]


class ErrorRow(NamedTuple):
    """One row of the page: an exception that a call may raise."""

    kind: type[AdapterError]
    error_class: str
    retried: str
    """Whether an adapter retries after the exception: ``yes``, ``no`` or ``depends``."""
    hint: str
    """The part of the reply that contains the wait before a retry; ``none`` means the retry schedule."""
    counts: str
    """The part of the provider that is marked as failing: a key, a model or the whole provider."""
    seen: str
    """The signs of the error, by which the adapter recognises it."""


def rows_of_the_page() -> list[ErrorRow]:
    table = PAGE.read_text(encoding="utf-8").partition("| exception | `error_class` | retried |")[2]
    lines = table.partition("\n\n")[0].splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines]
    return [ErrorRow(getattr(errors, kind.strip("`")), *cells) for kind, *cells in rows]


ERROR_TABLE = rows_of_the_page()
each_row = pytest.mark.parametrize("row", ERROR_TABLE, ids=lambda row: row.kind.__name__)
GOOGLE = ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND",
          "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "API_KEY_INVALID")  # fmt: skip


def failed(error: AdapterError) -> LlmCallFailed:
    made = Maker().failed(error_class=error.error_class, provider_status=error.provider_status).data
    return msgspec.structs.replace(made, error_type=type(error).__name__)


def test_every_exception_of_a_call_has_one_row_and_the_page_names_all() -> None:
    of_calls = [kind for kind in EVERY if issubclass(kind, AdapterError)]
    assert sorted(row.kind.__name__ for row in ERROR_TABLE) == sorted(kind.__name__ for kind in of_calls)
    page = PAGE.read_text(encoding="utf-8")
    for kind in EVERY:
        assert f"`{kind.__name__}" in page, kind


@each_row
@row("8.8.2")
def test_the_class_and_the_retries_agree_with_the_table(row: ErrorRow) -> None:
    assert row.kind.error_class == row.error_class
    assert row.kind.default_retryable is (row.retried == "yes")
    assert row.retried in {"yes", "no", "depends"}
    waits = retry_delay(row.kind("x"), 0, 2, RetryPolicy(), 0.0) is not None
    assert waits is (row.retried == "yes")
    assert retry_delay(row.kind("x"), 2, 2, RetryPolicy(), 0.0) is None, "never more retries than max_retries"
    delay = retry_delay(row.kind("x", retryable=True), 0, 2, RetryPolicy(), 0.0)
    assert delay is not None or row.retried == "no"


BLAME: dict[str, tuple[str, str]] = {
    "key": ("refused", "inconclusive"),
    "provider": ("failure", "inconclusive"),
    "provider and model": ("failure", "failure"),
    "model": ("answered", "refused"),
    "none": ("inconclusive", "inconclusive"),
}


@each_row
def test_hints_and_counted_failures_agree_with_the_table(row: ErrorRow) -> None:
    body, hint = ErrorBody(code="code"), {"retry-after": "7"}
    error = build_error(body, status=418, headers=hint, codes={"code": row.kind}, provider="p")
    assert type(error) is row.kind
    assert error.retry_after_seconds == (7.0 if row.hint == "provider's" else None)
    wanted = BLAME[row.counts] if row.kind is not RateLimitError else ("answered", "limited")
    assert signals_of(failed(row.kind("x"))) == wanted


def test_googles_status_strings_are_in_the_table() -> None:
    for name in GOOGLE:
        error = build_error(ErrorBody(type=name), provider="p")
        assert type(error) is COMMON_CODES[name]
        (row,) = [row for row in ERROR_TABLE if row.kind is type(error)]
        assert name in row.seen


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequestError),
        (401, errors.AuthError),
        (402, errors.QuotaExceededError),
        (403, errors.AccessDeniedError),
        (404, errors.NotFoundError),
        (408, errors.RequestTimeoutError),
        (413, errors.InvalidRequestError),
        (422, errors.InvalidRequestError),
        (424, errors.ServerError),
        (429, errors.RateLimitError),
        (498, errors.OverloadedError),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (529, errors.OverloadedError),
    ],
)
@row("8.8.1")
def test_a_status_is_in_the_row_of_its_exception(status: int, kind: type[AdapterError]) -> None:
    assert type(build_error(ErrorBody(), status=status, provider="p")) is kind
    (row,) = [row for row in ERROR_TABLE if row.kind is kind]
    assert str(status) in row.seen or (status >= 500 and "5xx" in row.seen)


def test_a_request_too_large_for_a_minute_is_not_repeated() -> None:
    body = ErrorBody(code="rate_limit_exceeded", message="Request too large for model on tokens per minute (TPM)")
    error = build_error(body, status=413, provider="p")
    assert (type(error), error.retryable) == (RateLimitError, False)


# A provider's error can quote the prompt. A trace without content stores no quote.

SECRET = "my number is 4711 0815, and Ada is my name"
REFUSED = f"messages.0: invalid text '{SECRET}' in this request"
BARE = "messages.0: invalid text '…' in this request"


@given(st.text("ab ", max_size=40), st.text(min_size=WINDOW * 2, max_size=80), st.text("cd ", max_size=40))
def test_a_quote_is_removed_at_any_place(before: str, quote: str, behind: str) -> None:
    """Other text stays, except for characters that continue the quote by chance."""
    bare = without_quotes(before + quote + behind, [f"start {quote} end"])
    assert quote not in bare
    assert "…" in bare
    assert bare.split("…")[0] in before + quote


def test_text_that_is_no_quote_stays() -> None:
    """A common word is no quote. A short prompt that is quoted completely is a quote."""
    assert without_quotes("the model is overloaded", ["What is the model of my car?"]) == "the model is overloaded"
    assert without_quotes("not allowed: Ada is ill", ["Ada is ill"]) == "not allowed: …"
    assert without_quotes("not allowed: No", ["No", ""]) == "not allowed: No"


HISTORY = (Message.user(SECRET), Message(Role.ASSISTANT, "Yes."), Message.user("Hi"))
ASKED = CanonicalRequest(request_id="", model="s:m", messages=HISTORY, max_output_tokens=9)
WAYS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "session": lambda engine: engine.session("s:m").send(SECRET),
    "stream of a session": lambda engine: engine.session("s:m").stream(SECRET).message(),
    "system prompt": lambda engine: engine.session("s:m", system_prompt=SECRET).send("Hi"),
    "history": lambda engine: engine.complete(ASKED),
    "generate": lambda engine: engine.generate("s:m", SECRET),
    "stream": lambda engine: engine.stream("s:m", SECRET).result(),
}


@pytest.mark.parametrize(
    ("way", "options"),
    [*[(way, {}) for way in WAYS], ("session", {"redact": lambda message: None}), ("session", {"redact": None})],
)
async def test_a_stored_error_quotes_nothing(way: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The errors of the call and of the turn quote no content. With content capture, the text is stored."""
    path, whole = tmp_path / "trace.db", options == {"redact": None}
    models = registry(Say(fails=InvalidRequestError(REFUSED)))
    async with Engine(models=models, store=path, capture_content=bool(options), **options) as engine:
        with pytest.raises(InvalidRequestError, match="4711"):
            await WAYS[way](engine)
        await engine.flush()
        store = present(engine.store)
        (call,) = await store.calls()
        assert call.error_message == (REFUSED if whole else BARE)
        ends = await store.events(topic="session.turn_completed", limit=None)
        if not whole:
            assert all(end.data.error == f"InvalidRequestError: {BARE}" for end in ends)  # type: ignore[attr-defined]
    assert whole or b"4711" not in path.read_bytes()


# A refused request that the adapter repairs is one call with two attempts.

JSON = {"content-type": "application/json"}
FOREIGN = b'{"type":"error","error":{"type":"invalid_request_error","message":"%s"}}'
BOUND = b"messages.1.content.0: Invalid `signature` in `thinking` block"
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}


def reply(*content: object) -> FakeReply:
    usage = {"input_tokens": 9, "output_tokens": 3}
    body = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": usage}
    return FakeReply(msgspec.json.encode(body), headers=JSON)


def mending(
    *replies: FakeReply, kind: type[AnthropicAdapter | GeminiAdapter] = AnthropicAdapter
) -> tuple[Engine, FakeTransport]:
    """An engine with an adapter that repairs requests, and its network. The default adapter is Anthropic's."""
    transport = FakeTransport(*replies)

    def make(config: AdapterConfig, **_: object) -> AnthropicAdapter | GeminiAdapter:
        return kind(config, name="a", transport=transport)

    adapters = {"a": AdapterEntry(name="a", type=adapter_type(make), config=AdapterConfig(max_retries=0))}
    models = {"a:m": ModelEntry(id="a:m", adapter="a", wire_name="gemini-3-pro-preview")}
    return Engine(models=ModelRegistry(adapters, models), trace=False), transport


async def test_the_session_keeps_the_content_that_the_repair_left_out() -> None:
    """Events show both attempts, and the event has the reply's warnings. The stored history does not change."""
    block = {"type": "text", "text": "Said."}
    refusal = FakeReply(FOREIGN % BOUND, status=400, headers=JSON)
    engine, transport = mending(reply(THOUGHT, block), refusal, reply(block))
    events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
    async with engine:
        session = engine.session("a:m")
        await session.send("One")
        kept: tuple[Message, ...] = session.messages
        await session.send("Two")
        assert session.messages[:2] == kept
        thought, text = kept[1].content
        assert (thought.signature, text) == ("c2ln", TextBlock("Said."))
    first, failed, second, ended = [envelope.data for envelope in events.take()][2:]
    assert (first.reason, failed.will_retry, second.reason) == ("first", True, "repair")
    assert ended.warnings == ("reasoning_refused",)
    assert [b'"thinking"' in sent.body for sent in transport.requests] == [False, True, False]


@pytest.mark.parametrize("forked", [False, True])
async def test_refused_reasoning_is_not_sent_again(forked: bool) -> None:
    block = {"type": "text", "text": "Said."}
    refusal = FakeReply(FOREIGN % BOUND, status=400, headers=JSON)
    engine, transport = mending(reply(THOUGHT, block), refusal, reply(THOUGHT, block), reply(block), reply(block))
    async with engine:
        session = engine.session("a:m", system_prompt="Brief.")
        await session.send("One")
        session.system_prompt = "Long."
        await session.send("Two")
        if forked:
            session = session.fork()
        await session.send("Three")
        await session.send("Four")
        assert [len(message.content) for message in session.messages[1:4:2]] == [2, 2]
    assert [sent.body.count(b'"thinking"') // 2 for sent in transport.requests] == [0, 1, 0, 1, 1]


CALL = {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2lnLWNhbGw="}
SAID = {"text": "Said.", "thoughtSignature": "c2lnLXRleHQ="}


def gemini_reply(*parts: object) -> FakeReply:
    """A whole reply of generateContent."""
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3}
    return FakeReply(msgspec.json.encode({"candidates": [candidate], "usageMetadata": usage}), headers=JSON)


@tool
def look() -> str:
    """Look."""
    return "A cat."


@pytest.mark.parametrize(
    "message",
    [
        "Corrupted thought signature.",
        "Invalid thought signature.",
        "Unable to submit request because Thought signature is not valid.. Learn more: https://cloud.google.com",
    ],
)
async def test_a_session_continues_after_gemini_has_refused_its_signatures(message: str) -> None:
    """Refused signatures of texts and calls are not sent again. Later signatures are sent."""
    refused = msgspec.json.encode({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})
    refusal = FakeReply(refused, status=400, headers=JSON)
    later = {"text": "Later.", "thoughtSignature": "c2lnLWxhdGVy"}
    replies = (
        gemini_reply(CALL),
        gemini_reply(SAID),
        refusal,
        gemini_reply(later),
        gemini_reply({"text": "End."}),
    )
    engine, transport = mending(*replies, kind=GeminiAdapter)
    async with engine:
        session = engine.session("a:m", tools=[look])
        for text in ("One", "Two", "Three"):
            await session.send(text)
        assert session.messages[1].tool_uses[0].provider_raw is not None, "the stored history does not change"
    call, text, newer = b"c2lnLWNhbGw=", b"c2lnLXRleHQ=", b"c2lnLWxhdGVy"
    signatures = [[name for name in (call, text, newer) if name in sent.body] for sent in transport.requests]
    assert signatures == [[], [call], [call, text], [], [newer]]
