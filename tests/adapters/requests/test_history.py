"""A history that is fitted to a target is valid for it, and all losses are reported."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.requests.history import NO_RESULT, NOT_EXECUTED, fit_history
from callboard.adapters.requests.history_target import FittedHistory, Loss, Target, ToolIdRule
from callboard.bus.errors import CapabilityError
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role
from tests.support.logs import captured_logs

PNG = ImageBlock(data=b"\x89PNG\r\n\x1a\n")
HOME = Target(provider="home", replays_thinking=True)
ABROAD = Target(provider="abroad")


def request(*messages: Message, system_prompt: str | None = None) -> CanonicalRequest:
    return CanonicalRequest(
        request_id="req_1", messages=messages, model="home:one", max_output_tokens=10,
        system_prompt=system_prompt, session_id="ses_1",
    )  # fmt: skip


def fit(*messages: Message, target: Target = HOME, system_prompt: str | None = None) -> FittedHistory:
    return fit_history(request(*messages, system_prompt=system_prompt), target)


def call(call_id: str = "tu_1", name: str = "read", wire_id: str | None = None, **more: Any) -> ToolUseBlock:
    raw = None if wire_id is None else ProviderRaw("home", {"id": wire_id})
    return ToolUseBlock(call_id, name, {}, provider_raw=raw, **more)


USER = Message.user("Hello")


def test_a_call_without_a_result_gets_an_error() -> None:
    """Providers refuse a history with an open call. A model that reads "not executed" may repeat a payment."""
    fitted = fit(USER, Message.assistant([call()]), Message.user("and?"))
    assert [message.role for message in fitted.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert fitted.messages[2].content == (ToolResultBlock("tu_1", NO_RESULT, is_error=True),)


def test_results_come_directly_after_their_calls_in_order() -> None:
    """The results may come later, in several messages, or in another order."""
    fitted = fit(
        USER,
        Message.assistant([call("tu_1"), call("tu_2"), TextBlock("wait")]),
        Message.user("yes"),
        Message.tool_result("tu_2", "two"),
        Message.tool_result("tu_1", "one"),
    )
    assert [message.role for message in fitted.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert fitted.messages[2].content == (ToolResultBlock("tu_1", "one"), ToolResultBlock("tu_2", "two"))
    assert fitted.losses == ()


def test_a_result_without_a_call_is_left_out_and_reported() -> None:
    """A second result of one call is left out, too, and a second call with the same id."""
    fitted = fit(
        USER,
        Message.assistant([call()]),
        Message(Role.TOOL, (ToolResultBlock("tu_1", "first"), ToolResultBlock("tu_1", "second"))),
        Message(Role.TOOL, (ToolResultBlock("tu_9", "orphan"),), id="msg_9"),
        Message.assistant([call()]),
    )
    assert len(fitted.messages) == 3
    assert fitted.messages[2].content == (ToolResultBlock("tu_1", "first"),)
    assert sorted((loss.message_id, loss.reason) for loss in fitted.losses) == [
        ("", "an earlier tool call has the same id"),
        ("", "its tool call already has a result"),
        ("msg_9", "its tool call is missing"),
    ]


def thinking(provider: str | None) -> ThinkingBlock:
    raw = None if provider is None else ProviderRaw(provider, {}, "one")
    return ThinkingBlock("hm", "sig", raw)


@pytest.mark.parametrize(("block", "reason"), [
    (thinking("elsewhere"), "only elsewhere accepts it"),
    (thinking(None), "its provider is unknown"),
    (RedactedThinkingBlock("x", ProviderRaw("elsewhere", {})), "only elsewhere accepts it"),
    (RedactedThinkingBlock("x"), "its provider is unknown"),
    (OpaqueBlock("citation", ProviderRaw("elsewhere", {})), "only elsewhere accepts it"),
])  # fmt: skip
def test_foreign_reasoning_is_left_out_with_all_five_fields(block: ContentBlock, reason: str) -> None:
    """Each has a warning with its place and the reason, without its content."""
    message = Message(Role.ASSISTANT, (block, TextBlock("so")), id="msg_7")
    with captured_logs() as lines:
        fitted = fit(USER, message)
        fitted.log()
    assert fitted.messages[1].content == (TextBlock("so"),)
    (loss,) = fitted.losses
    assert isinstance(loss, Loss)
    assert (loss.session_id, loss.message_id, loss.adapter) == ("ses_1", "msg_7", "home")
    assert loss.block_type == type(block).__struct_config__.tag
    assert loss.reason == reason
    assert loss.block is block
    told = {name: value for name, value in msgspec.structs.asdict(loss).items() if name != "block"}
    assert lines == [{"event": "content_dropped", "log_level": "warning", **told}]
    assert [warning.code for warning in fitted.warnings] == ["content_dropped"]


def test_own_reasoning_is_sent_back_to_a_provider_and_a_model_that_need_it() -> None:
    """The reasoning is unchanged. A protocol without reasoning gets none. Another model would refuse its
    signature. Back at its own model, the reasoning is sent again.
    """
    message = Message(Role.ASSISTANT, (thinking("home"), TextBlock("so")), id="msg_7")
    one, two = (Target(provider="home", model=model, replays_thinking=True) for model in ("one", "two"))
    for target, lost in (
        (HOME, None), (one, None), (two, "only the model one accepts it"),
        (Target(provider="home"), "this protocol does not accept reasoning"),
    ):  # fmt: skip
        fitted = fit(message, target=target)
        assert fitted.messages[0].content == (message.content if lost is None else (TextBlock("so"),))
        assert lost is not None or fitted.messages == (message,)
        assert [loss.reason for loss in fitted.losses] == ([] if lost is None else [lost])


@pytest.mark.parametrize(("form", "adopted"), [("anthropic-claude-v1", True), ("google-gemini-v1", False)])
def test_a_signature_of_unknown_origin_or_of_a_gateway_is_adopted(form: str, adopted: bool) -> None:
    """Unsigned reasoning would be refused, and so would another provider's signature from a gateway."""
    target = Target(provider="home", replays_thinking=True, adopts_signatures=True)
    signed, unsigned = ThinkingBlock("a", "sig"), ThinkingBlock("b")
    details: JsonObject = {"reasoning_details": [{"type": "reasoning.text", "signature": "sig", "format": form}]}
    routed = ThinkingBlock("a", "sig", ProviderRaw("gateway", details))
    for blocks, kept in (([signed, unsigned], (signed,)), ([routed], (routed,) if adopted else ())):
        fitted = fit(Message.assistant([*blocks, TextBlock("so")]), target=target)
        assert fitted.messages[0].content == (*kept, TextBlock("so"))


def test_neighbours_of_one_role_are_merged() -> None:
    """Neighbours of a message that was left out are merged, too."""
    fitted = fit(USER, Message.assistant([thinking("elsewhere")]), Message.user("again"), Message.user(" "))
    assert fitted.messages == (Message.user([TextBlock("Hello"), TextBlock("again")]),)


def test_half_a_surrogate_pair_does_not_break_the_history() -> None:
    """A lone half would make every later request invalid. Each replacement is reported."""
    fitted = fit(
        Message.system("\ud83d"),
        Message.user("a\ud83db"),
        Message.assistant([call(), TextBlock("ok \ude00")]),
        Message.tool_result("tu_1", "name\udce4"),
        system_prompt="\ud83d\ude00",
    )
    assert fitted.system == "😀\n\n\ufffd"
    msgspec.json.encode(fitted.messages)
    assert fitted.messages[0].text == "a\ufffdb"
    assert [loss.block_type for loss in fitted.losses] == ["text", "text", "text", "tool_result"]


def test_a_foreign_id_is_kept_if_valid_and_otherwise_derived() -> None:
    """The derived id is the same in each request. An id of the provider itself stays, even if it breaks the rule,
    but two calls never share one.
    """
    nine = Target(provider="abroad", tool_ids=ToolIdRule(9, "[A-Za-z0-9]", ""))
    message = Message.assistant([call("tu_1", wire_id="functions.read:0")])
    assert fit(USER, message).tool_ids == {"tu_1": "functions.read:0"}
    assert fit(USER, message, target=ABROAD).tool_ids == {"tu_1": "tu_1"}
    derived = fit(USER, message, target=nine).tool_ids["tu_1"]
    assert nine.tool_ids.allows(derived)
    longer = fit(Message.user("other"), message, Message.assistant([call("tu_2")]), target=nine)
    assert longer.tool_ids["tu_1"] == derived
    both = (Message.assistant([call(name, wire_id="0")]) for name in ("tu_1", "tu_2"))
    assert fit(USER, *both).tool_ids == {"tu_1": "0", "tu_2": "tu_2"}


@given(st.lists(st.text(), min_size=2, max_size=40, unique=True))
def test_different_calls_have_different_ids_for_short_rules(call_ids: list[str]) -> None:
    """All digests may begin the same. No id contains its source. A rule that its own ids break is refused."""
    tight = Target(provider="abroad", tool_ids=ToolIdRule(2, "[0-9a-f]", ""))
    found = fit(USER, Message.assistant([call(call_id) for call_id in call_ids]), target=tight).tool_ids
    assert len(set(found.values())) == len(call_ids)
    assert all(tight.tool_ids.allows(wire_id) for wire_id in found.values())
    with pytest.raises(ValueError, match="call_"):
        ToolIdRule(9, "[a-z0-9]")


def test_foreign_reasoning_can_be_sent_as_text() -> None:
    """The text names the source. The change is still reported."""
    asked = request(USER, Message.assistant([thinking("elsewhere"), TextBlock("so")]))
    asked = msgspec.structs.replace(asked, provider_options={"history": {"foreign_thinking": "text"}})
    fitted = fit_history(asked, HOME)
    assert [block.text for block in fitted.messages[1].content if isinstance(block, TextBlock)] == [
        "[Reasoning of elsewhere]\nhm",
        "so",
    ]
    assert len(fitted.losses) == 1


def test_a_request_may_forbid_every_loss() -> None:
    """The request fails before it is sent, and the error has the losses."""
    asked = request(USER, Message.assistant([thinking("elsewhere"), TextBlock("so")]))
    strict = msgspec.structs.replace(asked, provider_options={"history": {"on_loss": "error"}})
    with pytest.raises(CapabilityError, match="thinking was not sent to home: only elsewhere"):
        fit_history(strict, HOME).log()
    fit_history(asked, HOME).log()
    fit_history(msgspec.structs.replace(strict, messages=(USER,)), HOME).log()


@pytest.mark.parametrize("content", [[PNG], [TextBlock(" "), PNG]])
def test_a_message_of_unsupported_media_leaves_a_note(content: list[TextBlock | ImageBlock]) -> None:
    """Without the note, the message would be lost, and the reply to it would have no question."""
    blind = Target(provider="home", accepts_images=False)
    result = Message(Role.TOOL, (ToolResultBlock("tu_1", (PNG,)),))
    fitted = fit(Message.user(content), Message.assistant([call()]), result, target=blind)
    note = TextBlock("(image left out: not supported here)")
    assert fitted.messages[0] == Message.user([note])
    assert fitted.messages[2].content == (ToolResultBlock("tu_1", (note,)),)


def test_a_document_in_a_result_stays_if_supported() -> None:
    """A provider may support documents of users, but not documents in tool results."""
    report = DocumentBlock(data=b"%PDF-1.7")
    history = (USER, Message.assistant([call()]), Message.tool_result("tu_1", [TextBlock("see"), report]))
    everywhere = Target(provider="p", accepts_documents=True, results_carry=("image", "document"))
    assert fit(*history, target=everywhere).messages[2].content == history[2].content
    fitted = fit(*history, target=msgspec.structs.replace(everywhere, results_carry=("image",)))
    assert fitted.messages[2].content == (ToolResultBlock("tu_1", (TextBlock("see"),)),)
    assert [loss.block_type for loss in fitted.losses] == ["document"]


def test_a_users_message_comes_first_if_the_provider_requires_it() -> None:
    """A history whose first message was left out begins with a user's message, too."""
    insists = Target(provider="home", begins_with_user=True)
    fitted = fit(Message.user(" "), Message.assistant("Welcome!"), target=insists)
    assert [message.role for message in fitted.messages] == [Role.USER, Role.ASSISTANT]
    assert len(fitted.losses) == 1
    assert fit(Message.assistant("Welcome!")).messages[0].role is Role.ASSISTANT
    assert fit(USER, Message.assistant("Hi"), target=insists).losses == ()


@pytest.mark.parametrize(
    ("made_up", "legal"),
    [("multi_tool_use.parallel", "multi_tool_use_parallel"), ("2do", "_2do"), ("", "_"), ("f" * 80, "f" * 64)],
)
def test_an_invalid_name_of_a_model_is_made_valid(made_up: str, legal: str) -> None:
    """Otherwise no provider would accept the history, not even the model's own."""
    fitted = fit(USER, Message.assistant([call(name=made_up)]))
    assert [block.name for block in fitted.messages[1].tool_uses] == [legal]
    assert fitted.tool_names == {"tu_1": legal}
    assert [loss.block_type for loss in fitted.losses] == ["tool_use"]


def test_a_call_with_incomplete_arguments_reports_their_loss() -> None:
    """The call is sent without arguments, and its result is an interruption."""
    cut = call(raw_arguments='{"path": "a', incomplete=True)
    fitted = fit(USER, Message.assistant([cut]), Message.user("go on"))
    assert [(block.input, block.raw_arguments) for block in fitted.messages[1].tool_uses] == [({}, None)]
    assert fitted.messages[2].content == (ToolResultBlock("tu_1", NOT_EXECUTED, is_error=True),)
    assert ["its arguments" in loss.reason for loss in fitted.losses] == [True]


def test_a_loss_has_the_original_message_of_a_block() -> None:
    """Merged messages, a moved result and a repaired block keep the id of the original message."""
    half = TextBlock("a\ud83d")
    history = (
        Message(Role.USER, (PNG,), id="msg_1"),
        Message(Role.USER, (half,), id="msg_2"),
        Message(Role.ASSISTANT, (call(),), id="msg_3"),
        Message(Role.TOOL, (ToolResultBlock("tu_1", (PNG,)),), id="msg_4"),
    )
    fitted = fit(*history)
    (first, second), (result,) = fitted.messages[0].content, fitted.messages[2].content
    found = [fitted.loss(block, "?").message_id for block in (first, second, result)]
    assert found == ["msg_1", "msg_2", "msg_4"]


CALL_IDS = st.sampled_from(["tu_1", "tu_2", "tu_3", "call_x", "no good", "0", "ü"])
PROVIDERS = st.sampled_from([None, "home", "abroad"])
RAWS = PROVIDERS.flatmap(
    lambda name: (
        st.none()
        if name is None
        else st.builds(
            ProviderRaw, st.just(name), st.sampled_from([{}, {"id": "0"}, {"id": "tu_1"}, {"id": "call_x"}])
        )
    )
)
TEXT_BLOCKS = st.builds(TextBlock, st.sampled_from(["", " ", "a", "b\n", "\ud800"]))
IMAGES = st.just(PNG)
MEDIA = st.sampled_from([PNG, DocumentBlock(data=b"%PDF-1.7")])
ASSISTANT_BLOCKS = st.one_of(
    TEXT_BLOCKS,
    IMAGES,
    st.builds(
        ToolUseBlock,
        CALL_IDS,
        st.sampled_from(["read", "a.b"]),
        st.sampled_from([{}, {"a": "\ud83d"}]),
        st.sampled_from([None, "{"]),
        provider_raw=RAWS,
    ),
    st.builds(ThinkingBlock, st.just("hm"), st.sampled_from([None, "sig"]), RAWS),
    st.builds(RedactedThinkingBlock, st.just("x"), RAWS),
    st.builds(OpaqueBlock, st.just("k"), RAWS.filter(bool)),
)
RESULTS = st.builds(
    ToolResultBlock,
    CALL_IDS,
    st.sampled_from(["", "ok"]) | st.lists(TEXT_BLOCKS | MEDIA, max_size=2).map(tuple),
    st.booleans(),
)


def of_role(role: Role, blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.lists(blocks, max_size=3).map(lambda content: Message(role, tuple(content)))


HISTORIES = st.lists(
    st.one_of(
        of_role(Role.SYSTEM, TEXT_BLOCKS),
        of_role(Role.DEVELOPER, TEXT_BLOCKS),
        of_role(Role.USER, TEXT_BLOCKS | MEDIA),
        of_role(Role.ASSISTANT, ASSISTANT_BLOCKS),
        of_role(Role.TOOL, RESULTS),
    ),
    max_size=10,
)
TARGETS = st.builds(
    Target,
    provider=st.sampled_from(["home", "abroad"]),
    tool_ids=st.sampled_from([ToolIdRule(), ToolIdRule(9, "[A-Za-z0-9]", ""), ToolIdRule(40)]),
    accepts_images=st.booleans(),
    accepts_documents=st.booleans(),
    results_carry=st.sampled_from([(), ("image",), ("image", "document")]),
    begins_with_user=st.booleans(),
    replays_thinking=st.booleans(),
    keeps_developer=st.booleans(),
    adopts_signatures=st.booleans(),
)


@settings(max_examples=150)
@given(HISTORIES, TARGETS)
def test_any_history_is_fitted_to_a_provider(history: list[Message], target: Target) -> None:
    """Every call has one result directly after it, no message is empty, roles alternate, ids differ, and text is
    valid.
    """
    fitted = fit(*history, target=target, system_prompt=None)
    for message, following in itertools.pairwise((*fitted.messages, None)):
        assert message is not None
        assert message.content
        assert message.role is not Role.SYSTEM
        assert message.role is not Role.DEVELOPER or target.keeps_developer
        assert following is None or following.role is not message.role
        calls = [block.id for block in message.tool_uses]
        answers = []
        if following is not None and following.role is Role.TOOL:
            answers = [block.tool_use_id for block in following.content if isinstance(block, ToolResultBlock)]
        assert calls == answers
        for block in message.content:
            assert not isinstance(block, TextBlock) or block.text.strip()
            assert not isinstance(block, ImageBlock) or target.accepts_images
            assert not isinstance(block, DocumentBlock) or target.accepts_documents
            if isinstance(block, ToolResultBlock):
                media = [part for part in block.content if isinstance(part, ImageBlock | DocumentBlock)]
                assert not media or target.results_carry
            assert not isinstance(block, ToolUseBlock) or block.name != "a.b"
            if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
                assert target.replays_thinking
            raw = getattr(block, "provider_raw", None)
            if isinstance(block, OpaqueBlock | ThinkingBlock | RedactedThinkingBlock):
                assert raw is None or raw.provider == target.provider
    if fitted.messages:
        first = fitted.messages[0].role
        assert first is not Role.TOOL
        assert first is not Role.ASSISTANT or not target.begins_with_user
    wire_ids = list(fitted.tool_ids.values())
    assert len(set(wire_ids)) == len(wire_ids)
    assert list(fitted.tool_ids) == [block.id for message in fitted.messages for block in message.tool_uses]
    msgspec.json.encode((fitted.system, fitted.messages))


@given(HISTORIES, TARGETS)
def test_fitting_twice_changes_nothing_more(history: list[Message], target: Target) -> None:
    once = fit(*history, target=target)
    twice = fit(*once.messages, target=target, system_prompt=once.system)
    assert twice.messages == once.messages
    assert twice.system == once.system
    assert twice.tool_ids == once.tool_ids
    assert twice.losses == ()


@given(HISTORIES, TARGETS, HISTORIES)
def test_ids_do_not_change_as_the_history_grows(
    history: list[Message], target: Target, more: list[Message]
) -> None:
    """The provider and its cache get the same prefix every time."""
    before = fit(*history, target=target).tool_ids
    after = fit(*history, *more, target=target).tool_ids
    assert {call_id: after[call_id] for call_id in before} == before


def test_the_stored_history_is_not_changed() -> None:
    """After a swap back, the history is complete."""
    history = (USER, Message.assistant([thinking("elsewhere"), call()]))
    copy = msgspec.msgpack.encode(history)
    fit(*history)
    assert msgspec.msgpack.encode(history) == copy


def test_blank_text_is_sent_back_to_the_provider_that_marked_it() -> None:
    """Other providers don't get the text. Without a mark, or without a provider that needs it, it is dropped."""
    own = TextBlock("\n", ProviderRaw("home", {"signature": "s"}))
    said = Message.assistant([TextBlock("A"), own, TextBlock(" "), TextBlock("\n", ProviderRaw("abroad", {}))])
    for keeps, provider, kept in ((True, "home", 2), (True, "elsewhere", 1), (False, "home", 1)):
        target = Target(provider=provider, keeps_own_blanks=keeps)
        (message,) = fit(said, target=target).messages
        assert message.content == said.content[:kept]


def growing(messages: int) -> list[Message]:
    return [
        Message.user(f"question {place}") if place % 2 == 0 else Message.assistant(f"answer {place}")
        for place in range(messages)
    ]


@pytest.mark.parametrize("wire", ["openai_compatible", "anthropic", "gemini", "openai"])
def test_a_long_history_is_written_as_if_it_were_new(wire: str) -> None:
    """The cached beginning does not change the result. The history may have grown, been cut, or been forked."""
    adapter = create_adapter(wire, AdapterConfig(api_key="key", base_url="http://127.0.0.1:1/v1"), name=wire)
    assert isinstance(adapter, HttpAdapter)
    said, tool = growing(30), ToolUseBlock("toolu_1", "look", {})
    elsewhere = [*said[:12], Message.user("another question"), *said[13:20]]
    called = [*said[:17], Message.assistant((tool,)), Message.tool_result("toolu_1", "seen")]
    for messages in (said[:5], said[:9], said[:21], said, said[:11], elsewhere, said[:29], called, said):
        fresh = tuple(Message(each.role, each.content) for each in messages)
        cached, written_again = (
            adapter.write_request(
                CanonicalRequest(request_id="req", model="some", messages=each, max_output_tokens=9), stream=False
            )
            for each in (tuple(messages), fresh)
        )
        assert cached.body == written_again.body
        assert msgspec.json.decode(cached.body)
