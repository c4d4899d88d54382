"""Conversations of the gateway: sessions, stored replies, and stored Responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from callboard.adapters import (
    CanonicalRequest,
    ContentBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.errors import StoreError
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ProviderRaw
from callboard.engine import Engine
from callboard.engine.gateway.clients import ClientRefused
from callboard.engine.gateway.conversations import Conversation, Conversations, StoredResponse
from callboard.engine.gateway.histories import fingerprint
from callboard.engine.gateway.wire import ClientRequest
from callboard.tracestore import CallFilter, Store

from ..support.scripted import Say
from ..support.virtual_time import FakeClock, runs_on
from .keeping import Stores, engine_on, stores_of

anyio_backend = runs_on("asyncio")

SIGNED = ThinkingBlock("Let me see.", signature="c2ln")
REASONING = OpaqueBlock("reasoning", ProviderRaw("openai", {"id": "rs_1", "encrypted_content": "x"}))


def called(number: int, arguments: JsonObject | None = None, *, wire_id: str = "") -> ToolUseBlock:
    """A call, as a provider's adapter reads it."""
    return ToolUseBlock(
        f"tu_01ARZ3NDEKTSV4RRFFQ69G{number:04}",
        "look",
        {"at": number} if arguments is None else arguments,
        provider_raw=ProviderRaw("openai", {"id": wire_id or f"call_of_provider_{number:04}"}),
    )


def sent_back(content: Sequence[ContentBlock], ids: Callable[[ToolUseBlock], str] | None = None) -> Message:
    """A reply, as a client of a wire with only texts and calls sends it back."""
    blocks: list[ContentBlock] = []
    for block in content:
        if isinstance(block, TextBlock):
            blocks.append(TextBlock(block.text))
        elif isinstance(block, ToolUseBlock):
            blocks.append(ToolUseBlock(ids(block) if ids else block.id, block.name, block.input))
    return Message(Role.ASSISTANT, tuple(blocks))


def asked(*messages: Message, hint: str | None = None) -> ClientRequest:
    request = CanonicalRequest(request_id="", model="s:m", messages=messages, max_output_tokens=100)
    return ClientRequest(model="s:m", request=request, session_hint=hint)


def result(call: ToolUseBlock, text: str) -> Message:
    return Message(Role.TOOL, (ToolResultBlock(call.id, text),))


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Stores:
    return stores_of(request.param, request, tmp_path, clock)


def in_memory(clock: FakeClock) -> Engine:
    """An engine without a trace, so that everything is in memory."""
    return Engine(trace=False, clock=clock)


async def kept(
    conversations: Conversations, asked_for: ClientRequest, content: Sequence[ContentBlock], client: str = "acme"
) -> Conversation:
    """Recognise a request and store its reply."""
    conversation = await conversations.recognise(client, asked_for)
    await conversations.keep(conversation, content)
    return conversation


async def history(
    conversations: Conversations, asked_for: ClientRequest, client: str = "acme"
) -> tuple[Message, ...]:
    return (await conversations.recognise(client, asked_for)).request.messages


# --- Sessions ---


async def test_a_conversation_without_a_hint_keeps_its_session(clock: FakeClock) -> None:
    """The history identifies the session. Another client or another conversation has another session."""
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        turns = [Message.user("Hi")]
        first = await kept(conversations, asked(*turns), (TextBlock("Hello!"),))
        turns += [Message.assistant("Hello! \n"), Message.user("How are you?")]
        second = await kept(conversations, asked(*turns), (SIGNED, TextBlock("Well."), called(1)))
        turns += [sent_back((TextBlock("Well."), called(1, {"at": 1.0}))), result(called(1), "a tree")]
        third = await conversations.recognise("acme", asked(*turns))
        assert first.session_id == second.session_id == third.session_id != ""
        others = [
            await conversations.recognise("acme", asked(Message.user("Hi"))),
            await conversations.recognise("zoo", asked(*turns)),
            await conversations.recognise("acme", asked(Message.user("Ho"), *turns[1:])),
        ]
        assert first.session_id not in {each.session_id for each in others}
        assert len({each.session_id for each in others}) == 3


async def test_changed_instructions_start_no_new_conversation(clock: FakeClock) -> None:
    """Agents put the time of day into their instructions."""
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        first = await kept(
            conversations, asked(Message.system("It is 8:00"), Message.user("Hi")), (TextBlock("Hello!"),)
        )
        again = await conversations.recognise(
            "acme", asked(Message.system("It is 9:00"), Message.user("Hi"), Message.assistant("Hello!"))
        )
        assert again.session_id == first.session_id


async def test_an_edited_conversation_stays_in_its_session(clock: FakeClock) -> None:
    """The longest known part of the history identifies the session."""
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        turns = [Message.user("Hi")]
        first = await kept(conversations, asked(*turns), (TextBlock("Hello!"),))
        turns += [Message.assistant("Hello!"), Message.user("One")]
        await kept(conversations, asked(*turns), (TextBlock("Two"),))
        edited = [*turns[:2], Message.user("Other"), Message.assistant("Two"), Message.user("More")]
        assert (await conversations.recognise("acme", asked(*edited))).session_id == first.session_id


async def test_a_clients_own_id_names_its_conversation(clock: FakeClock) -> None:
    """The id belongs to that client, and works in every process."""
    async with in_memory(clock) as engine, in_memory(clock) as other:
        of_acme = [
            (await Conversations(each).recognise("acme", asked(Message.user(text), hint="abc"))).session_id
            for each in (engine, other)
            for text in ("Hi", "Ho")
        ]
        of_zoo = (await Conversations(engine).recognise("zoo", asked(Message.user("Hi"), hint="abc"))).session_id
    assert len(set(of_acme)) == 1
    assert of_zoo not in of_acme
    assert "abc" not in of_zoo


async def test_a_history_that_started_elsewhere_has_one_session(clock: FakeClock) -> None:
    """After a restart without a store, the session id is derived from the first messages."""
    turns = [Message.user("Hi"), Message.assistant("Hello!"), Message.user("More")]
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        first = await conversations.recognise("acme", asked(*turns))
        turns += [Message.assistant("Much more"), Message.user("And?")]
        assert (await conversations.recognise("acme", asked(*turns))).session_id == first.session_id


async def test_calls_of_a_conversation_have_its_session_in_the_trace(stores: Stores) -> None:
    """Costs by session, the live view and the provider's prompt cache then treat the calls as one conversation."""
    async with stores() as store, engine_on(stores(), Say("Hello!"), Say("Well.")) as engine:
        conversations = Conversations(engine)
        turns: list[Message] = [Message.user("Hi")]
        for text in ("Hello!", "Well."):
            conversation = await conversations.recognise("acme", asked(*turns))
            response = await engine.complete(conversation.request, tags={"client": "acme"})
            await conversations.keep(conversation, response.content)
            turns += [Message.assistant(text), Message.user("More")]
        await engine.flush()
        calls = await store.calls(CallFilter(session_id=conversation.session_id))
        assert [call.tags for call in calls] == [{"client": "acme"}] * 2
        (cost,) = await store.costs(by=["session_id"])
        assert (cost.key, cost.calls) == ((conversation.session_id,), 2)
        (row,) = await store.sessions()
        assert (row.session_id, row.calls, row.resumable) == (conversation.session_id, 2, False)
        assert (row.model, row.tags) == ("s:m", {"client": "acme"})


# --- Stored replies ---


@pytest.mark.parametrize(
    "ids",
    [None, lambda call: call.provider_raw.data["id"], lambda call: f"own_{call.input['at']}"],
    ids=["ours", "the provider's", "the client's own"],
)
async def test_content_that_a_client_cannot_send_back_is_added_to_its_request(
    stores: Stores, ids: Callable[[ToolUseBlock], str] | None
) -> None:
    """The content is reasoning with its signature, opaque blocks, and data of calls. Calls have the client's
    ids.
    """
    content = (SIGNED, REASONING, TextBlock("I look."), called(1), called(2))
    async with engine_on(stores(), capture_content=True) as engine:
        conversations = Conversations(engine)
        await kept(conversations, asked(Message.user("Hi")), content)
        back = sent_back(content, ids)
        answers = Message(Role.TOOL, tuple(ToolResultBlock(call.id, "a tree") for call in back.tool_uses))
        question, reply, results = await history(conversations, asked(Message.user("Hi"), back, answers))
    assert (question, results) == (Message.user("Hi"), answers)
    assert reply.content[:3] == content[:3]
    for call, original, seen in zip(reply.tool_uses, content[3:], back.tool_uses, strict=True):
        assert call == msgspec.structs.replace(original, id=seen.id)


async def test_a_restarted_gateway_and_another_process_find_stored_replies(
    stores: Stores, clock: FakeClock
) -> None:
    """The session is found, too. Another client finds nothing."""
    content = (SIGNED, TextBlock("I look."), called(1))
    turns = (Message.user("Hi"), sent_back(content))
    async with engine_on(stores(), capture_content=True, clock=clock) as engine:
        first = await kept(Conversations(engine), asked(Message.user("Hi")), content)
    async with engine_on(stores(), capture_content=True, clock=clock) as engine:
        again = await Conversations(engine).recognise("acme", asked(*turns))
        assert again.session_id == first.session_id
        assert again.request.messages[1].content == content
        assert await history(Conversations(engine), asked(*turns), "zoo") == turns


@pytest.mark.parametrize("keeps", [{}, {"capture_content": True, "redact": lambda message: message}])
async def test_without_capture_no_reply_is_stored(stores: Stores, keeps: dict[str, object]) -> None:
    """With redaction, nothing is stored either. Content in memory is still used."""
    content = (SIGNED, TextBlock("I look."))
    turns = (Message.user("Hi"), sent_back(content))
    async with stores() as store, engine_on(stores(), **keeps) as engine:
        conversations = Conversations(engine)
        await kept(conversations, asked(Message.user("Hi")), content)
        await conversations.store("acme", StoredResponse(id="resp_1", body={}))
        assert (await history(conversations, asked(*turns)))[1].content == content
        assert (await store.sql("SELECT count(*) FROM gateway_kept")).rows == ((0,),)
        assert await history(Conversations(engine), asked(*turns)) == turns


@pytest.mark.parametrize("delete_it", [
    lambda store, session_id, now_us: store.delete_session(session_id),
    lambda store, session_id, now_us: store.forget_content(now_us + 1),
    lambda store, session_id, now_us: store.prune(before=now_us + 1),
], ids=["its session", "by age", "pruned"])  # fmt: skip
async def test_content_is_deleted_from_the_store_and_from_memory(
    stores: Stores, clock: FakeClock, delete_it: Callable[[Store, str, int], Awaitable[object]]
) -> None:
    """Content is deleted within a second, by any process."""
    content = (SIGNED, TextBlock("I look."))
    turns = (Message.user("Hi"), sent_back(content))
    async with stores() as store, engine_on(stores(), capture_content=True, clock=clock) as engine:
        conversations = Conversations(engine)
        conversation = await kept(conversations, asked(Message.user("Hi")), content)
        stored = StoredResponse(id="resp_1", body={}, session_id=conversation.session_id)
        await conversations.store("acme", stored)
        assert (await history(conversations, asked(*turns)))[1].content == content
        await delete_it(store, conversation.session_id, clock.now_us())
        clock.advance(1)
        assert await history(conversations, asked(*turns)) == turns
        with pytest.raises(ClientRefused):
            await conversations.stored("acme", "resp_1")


async def test_equal_replies_are_matched_by_ids_and_by_order(clock: FakeClock) -> None:
    """Each stored reply is used at most once, because a provider refuses two copies of one reasoning item."""

    def reasoned(number: int, *content: ContentBlock) -> tuple[ContentBlock, ...]:
        return OpaqueBlock("reasoning", ProviderRaw("openai", {"id": f"rs_{number}"})), *content

    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        turns: list[Message] = []
        said = [
            reasoned(1, TextBlock("Done.")),
            reasoned(2, called(7)),
            reasoned(3, TextBlock("Done.")),
            reasoned(4, called(8, {"at": 7})),
        ]
        for content in said:
            turns.append(Message.user("More"))
            await kept(conversations, asked(*turns, hint="a"), content)
            turns.append(sent_back(content))
        replies = [
            each.content
            for each in await history(conversations, asked(*turns, hint="a"))
            if each.role == "assistant"
        ]
        assert replies == said
        fewer = [turns[3], turns[5], Message.assistant("Done."), Message.assistant("Done.")]
        spaced = [each for reply in fewer for each in (Message.user("x"), reply)]
        reasons = [
            [block.provider_raw.data["id"] for block in each.content if isinstance(block, OpaqueBlock)]
            for each in await history(conversations, asked(*spaced, hint="a"))
            if each.role is Role.ASSISTANT
        ]
        assert reasons == [["rs_2"], [], ["rs_1"], ["rs_3"]]


async def test_reasoning_stays_in_its_conversation(clock: FakeClock) -> None:
    """Several users may share a key. Only random ids of calls prove that a reply belongs to the conversation."""
    short = ToolUseBlock("call_0", "look", {})
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        said: list[tuple[ContentBlock, ...]] = [(SIGNED, TextBlock("Done.")), (SIGNED, short), (SIGNED, called(1))]
        turns: list[Message] = []
        for content in said:
            turns.append(Message.user("Hi"))
            await kept(conversations, asked(*turns, hint="one"), content)
            turns.append(sent_back(content))
        found = await history(conversations, asked(*turns, hint="two"))
        assert found[:-1] == tuple(turns[:-1])
        assert found[-1].content == said[-1]


async def test_a_reply_that_a_wire_split_into_several_messages_is_one(clock: FakeClock) -> None:
    """In the Responses API, each item is a separate message."""
    content = (SIGNED, TextBlock("I look."), called(1))
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        await kept(conversations, asked(Message.user("Hi")), content)
        text, call = sent_back(content).content
        parts = (Message(Role.ASSISTANT, (text,)), Message(Role.ASSISTANT, (call,)))
        assert await history(conversations, asked(Message.user("Hi"), *parts, result(called(1), "x"))) == (
            Message.user("Hi"),
            Message(Role.ASSISTANT, content),
            result(called(1), "x"),
        )


async def test_a_cache_mark_of_the_client_stays(clock: FakeClock) -> None:
    """The mark belongs to the request, not to the reply."""
    content = (SIGNED, TextBlock("I look."))
    mark = ProviderRaw("anthropic", {"cache_control": {"type": "ephemeral"}})
    async with in_memory(clock) as engine:
        conversations = Conversations(engine)
        await kept(conversations, asked(Message.user("Hi")), content)
        marked = Message(Role.ASSISTANT, (TextBlock("I look.", provider_raw=mark),))
        (_, reply) = await history(conversations, asked(Message.user("Hi"), marked))
        assert reply.content == (SIGNED, TextBlock("I look.", provider_raw=mark))


async def test_a_long_conversation_is_restored_completely(stores: Stores) -> None:
    """The history equals that of a client without a gateway, even if the memory is too small for it."""
    async with engine_on(stores(), capture_content=True) as engine:
        conversations = Conversations(engine, max_count=4)
        turns: list[Message] = [Message.user("Hi")]
        whole = list(turns)
        for number in range(16):
            content = (ThinkingBlock("Hm.", signature=f"s{number}"), called(number))
            conversation = await kept(conversations, asked(*turns), content)
            assert conversation.request.messages == tuple(whole)
            turns += [sent_back(content), result(called(number), "a tree")]
            whole += [Message(Role.ASSISTANT, content), result(called(number), "a tree")]


async def test_memory_is_limited_and_the_oldest_replies_are_dropped(clock: FakeClock) -> None:
    """The limits are a number of replies and a number of bytes."""
    async with in_memory(clock) as engine:
        for bound in ({"max_count": 10}, {"max_bytes": 8_000}):
            conversations = Conversations(engine, **bound)
            said = [(SIGNED, TextBlock(f"Reply {number}")) for number in range(50)]
            for content in said:
                await kept(conversations, asked(Message.user("Hi"), hint="a"), content)
            found = [
                (await history(conversations, asked(sent_back(content), hint="a")))[0].content == content
                for content in said
            ]
            assert found == sorted(found)
            assert 3 < sum(found) <= 16


async def test_a_failing_store_stops_no_call(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls continue with memory alone."""
    content = (SIGNED, TextBlock("I look."))
    async with engine_on(stores(), capture_content=True) as engine:
        conversations = Conversations(engine)

        async def broken(self: object) -> None:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(Conversations, "_tables", broken)
        await kept(conversations, asked(Message.user("Hi")), content)
        turns = (Message.user("Hi"), sent_back(content))
        assert (await history(conversations, asked(*turns)))[1].content == content
        assert await history(conversations, asked(*turns), "zoo") == turns


@pytest.mark.parametrize(("one", "other", "same"), [
    ({"a": 1, "b": [1.0, {"c": 2}]}, {"b": [1, {"c": 2.0}], "a": 1.0}, True),
    ({"a": True}, {"a": 1}, False),
    ({"a": 1.5}, {"a": 1}, False),
    ({"a": None}, {}, False),
    ({"a": {"b": False}, "c": False}, {"a": {}}, True),
    ({"a": 0}, {}, False),
    ({"a": "\ud800"}, {"a": "\ud800"}, True),
])  # fmt: skip
def test_arguments_are_compared_as_json(one: JsonObject, other: JsonObject, same: bool) -> None:
    """Differences in the order of names, between 1 and 1.0 (which are equal in JavaScript), and for a default of
    false are ignored.
    """
    prints = [fingerprint([Message(Role.ASSISTANT, (ToolUseBlock("x", "look", each),))]) for each in (one, other)]
    assert (prints[0] == prints[1]) is same


# --- Stored Responses ---


def response(number: int, previous: str = "", session_id: str = "ses_1") -> StoredResponse:
    """A Response with a number, to a question with the same number."""
    return StoredResponse(
        id=f"resp_{number}",
        body={"id": f"resp_{number}", "output": [{"type": "message", "text": f"A{number}"}]},
        items=({"type": "message", "text": f"Q{number}"},),
        messages=(Message.user(f"Q{number}"), Message(Role.ASSISTANT, (SIGNED, TextBlock(f"A{number}")))),
        previous_id=previous,
        session_id=session_id,
    )


async def test_a_stored_response_is_found_only_by_its_client(stores: Stores) -> None:
    """The Response is found in another process, too. It is not found for another client or after its deletion."""
    async with (
        engine_on(stores(), capture_content=True) as engine,
        engine_on(stores(), capture_content=True) as other,
    ):
        here, there = Conversations(engine), Conversations(other)
        await here.store("acme", response(1))
        assert await here.stored("acme", "resp_1") == await there.stored("acme", "resp_1") == response(1)
        for name, wanted in (("zoo", "resp_1"), ("", "resp_1"), ("acme", "resp_2"), ("acme", "\ud800")):
            for work in (there.stored, there.delete, there.earlier):
                with pytest.raises(ClientRefused) as caught:
                    await work(name, wanted)
                assert caught.value.failure.kind == "missing"
        await here.delete("acme", "resp_1")
        for each in (here, Conversations(other)):
            with pytest.raises(ClientRefused, match="resp_1"):
                await each.stored("acme", "resp_1")


async def test_a_request_continues_a_stored_response(stores: Stores) -> None:
    """The request has all earlier messages and their session. Nothing is lost."""
    async with engine_on(stores(), capture_content=True) as engine:
        conversations = Conversations(engine)
        for number in (1, 2, 3):
            await conversations.store("acme", response(number, f"resp_{number - 1}" if number > 1 else ""))
        earlier = await Conversations(engine).earlier("acme", "resp_3")
        assert [item["text"] for item in earlier.items] == ["Q1", "A1", "Q2", "A2", "Q3", "A3"]  # type: ignore[index, call-overload]
        request = (
            await conversations.recognise("acme", asked(Message.user("Q4"), hint="x"), earlier=earlier)
        ).request
        assert request.session_id == "ses_1"
        assert request.messages == (
            *(message for number in (1, 2, 3) for message in response(number).messages),
            Message.user("Q4"),
        )
        await conversations.delete("acme", "resp_2")
        with pytest.raises(ClientRefused, match="resp_2"):
            await conversations.earlier("acme", "resp_3")
