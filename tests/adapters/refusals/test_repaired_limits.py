"""Refusals that name a limit, a parameter or a signature, quoted from issues, and the next request."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.repair import stated_limit
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai.data import find_model
from callboard.adapters.providers.tgi.adapter import TGIAdapter
from callboard.adapters.requests.content import without_reasoning
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message

from ...support.fake_http import FakeReply, FakeTransport, failing, request
from ...support.virtual_time import FakeClock
from ...support.wires.responses import message as said
from ...support.wires.responses import response
from .test_repair import body_after, conversation, make, refused, repair_of

pytestmark = pytest.mark.anyio

STATED = [
    ("anthropic", "max_tokens: 10000 > 4096, which is the maximum allowed number of output tokens for claude-x",
        4096),
    ("anthropic",
        "input length and `max_tokens` exceed context limit: 190000 + 10000 > 197000, decrease input length or "
        "`max_tokens` and try again", 7000),
    ("openai", "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 4096, but got 10000 "
        "instead.", 4096),
    ("openai_compatible",
        "max_tokens is too large: 10000. This model supports at most 4096 completion tokens, whereas you provided "
        "10000.", 4096),
    ("openai_compatible",
        "'max_tokens' or 'max_completion_tokens' is too large: 10000. This model's maximum context length is 8192 "
        "tokens and your request has 1000 input tokens (10000 > 8192 - 1000). None", 7192),
    ("openai_compatible",
        "This model's maximum context length is 8192 tokens. However, you requested 10064 tokens (64 in the "
        "messages, " "10000 in the completion). Please reduce the length of the messages or completion.", 8128),
    ("openai_compatible",
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model", 8192),
    ("openai_compatible", "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    ("openai_compatible", "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
        8192),
    ("openai_compatible",
        "The parameter `max_tokens` specified in the request is not valid: integer above maximum value, "
        "expected a " "value <= 8192, but got 10000 instead. Request id: 0217724325966", 8192),
    ("openai_compatible",
        "This model's maximum context length is 8192 tokens. However, you requested 10000 output tokens and your "
        "prompt contains 1192 input tokens, for a total of 11192 tokens. Please reduce the length of the input "
        "prompt or the number of requested output tokens. (parameter=input_tokens, value=1192)", 7000),
    ("openai_compatible",
        "You passed 1192 input tokens and requested 10000 output tokens. However, the model's context length is "
        "only 8192 tokens, resulting in a maximum input length of 0 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=1192)", 7000),
    ("openai_compatible",
        "This endpoint's maximum context length is 8192 tokens. However, you requested about 11192 tokens (1000 "
        "of text input, 192 of tool input, 10000 in the output). Please reduce the length of either one, or use "
        'the "middle-out" transform to compress your prompt automatically.', 7000),
    ("gemini",
        "Unable to submit request because it has a maxOutputTokens value of 10000 but the supported range is "
        "from 1 " "(inclusive) to 8193 (exclusive). Update the value and try again.", 8192),
]  # fmt: skip


def limit_in(body: JsonObject) -> Json:
    """The limit of output tokens, at its place on the wire."""
    config = body.get("generationConfig", body)
    assert isinstance(config, dict)
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    return next(config[name] for name in names if name in config)


@pytest.mark.parametrize(("name", "message", "limit"), STATED)
def test_a_stated_limit_is_used(name: str, message: str, limit: int) -> None:
    """The same request is sent with a shorter reply and a warning. A prompt that fills the window is too long, a
    second refusal is final, and a quotation is no refusal.
    """
    asked = request(model=f"{name}:test-model", max_output_tokens=10_000)
    found = repair_of(name, asked, message)
    assert found is not None
    assert (found.kind, found.warning.code) == ("output_limit", "request_repaired")
    assert str(limit) in found.warning.message
    assert limit_in(body_after(name, asked, message)) == limit
    assert repair_of(name, request(max_output_tokens=limit), message) is None
    assert repair_of(name, asked, message, done=("output_limit",)) is None
    assert repair_of(name, asked, f"It said: {message}") is None


def test_the_text_generation_server_states_its_window() -> None:
    adapter = TGIAdapter(AdapterConfig(), transport=FakeTransport())
    asked = request(max_output_tokens=10_000)
    message = (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 96 `inputs` "
        "tokens and "
        "10000 `max_new_tokens`"
    )
    body = msgspec.json.encode({"error": message, "error_type": "validation"})
    error = adapter.client.error_of(body, failing(422))
    found = adapter.wire.repair(asked, adapter.write_request(asked, stream=False), error, ())
    assert found is not None
    assert found.request.max_output_tokens == 4000


def test_next_to_no_room_is_an_overlong_prompt() -> None:
    full = (
        "This model's maximum context length is 8192 tokens. However, you requested 18100 tokens (8100 in "
        "the messages, "
        "10000 in the completion). Please reduce the length of the messages or completion."
    )
    assert stated_limit([full], 10_000) is None


@pytest.mark.parametrize(("message", "sent", "left"), [
    ("Penalty is not enabled for models/gemini-2.5-flash", {"frequencyPenalty": 1.0, "presencePenalty": 1.0,
        "topK": 3}, {"topK": 3}),
    ("Penalty is not enabled for this model", {"presencePenalty": 1.0, "topK": 3}, {"topK": 3}),
    ("Thinking level is not supported for this model.", {"thinkingConfig": {"thinkingLevel": "LOW",
        "includeThoughts": True}, "topK": 3}, {"topK": 3}),
    ("Thinking level MINIMAL is not supported for this model.", {"thinkingConfig": {"thinkingLevel": "X"}}, {}),
    ("Unable to submit request because thinking_level MEDIUM is not supported by this model. Learn more: "
        "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini",
        {"thinkingConfig": {"thinkingLevel": "MEDIUM"}}, {}),
    ("thinking_config is not supported.", {"thinkingConfig": {"thinkingBudget": 1}}, {}),
    ("Thinking is not enabled for models/gemini-2.0-flash", {"thinkingConfig": {"thinkingBudget": 1}}, {}),
])  # fmt: skip
def test_settings_that_gemini_refuses_are_left_out(message: str, sent: JsonObject, left: JsonObject) -> None:
    """Both penalties are removed, because the refusal names neither. The rest of the configuration stays."""
    asked = request(model="gemini:test-model", provider_options={"gemini": {"generationConfig": sent}})
    config = body_after("gemini", asked, message)["generationConfig"]
    assert config == {"maxOutputTokens": 64, **left}


def test_the_penalties_and_the_level_are_refused_behind_chat_completions_too() -> None:
    tuning: JsonObject = {"frequency_penalty": 1.0, "presence_penalty": 1.0, "reasoning_effort": "low"}
    asked = request(model="openai_compatible:m", provider_options={"openai_compatible": tuning})
    after = body_after("openai_compatible", asked, "Penalty is not enabled for models/gemini-2.5-flash")
    assert after.keys() & tuning.keys() == {"reasoning_effort"}
    after = body_after("openai_compatible", asked, "Thinking level is not supported for this model.")
    assert after.keys() & tuning.keys() == {"frequency_penalty", "presence_penalty"}


UNENCRYPTED = "Encrypted content is not supported with this model."


def test_a_model_without_encrypted_reasoning_keeps_the_rest_of_include() -> None:
    """The refusal has a parameter and no code."""
    mine: Json = ["web_search_call.action.sources"]
    asked = request(model="openai:my-deployment", provider_options={"openai": {"include": mine}})
    assert body_after("openai", asked, UNENCRYPTED, param="include", code=None)["include"] == mine
    bare = request(model="openai:my-deployment")
    assert "include" not in body_after("openai", bare, UNENCRYPTED, param="include", code=None)


async def test_the_refusal_happens_once_and_not_in_every_call() -> None:
    """The adapter remembers the refusal for this model. Other models still get the field."""
    reply = msgspec.json.encode(response(output=[said("Hello")]))
    whole = [FakeReply(reply, headers={"content-type": "application/json"}) for _ in range(3)]
    refusal = FakeReply(refused(UNENCRYPTED, param="include"), status=400)
    transport = FakeTransport(refusal, *whole)
    adapter = OpenAIAdapter(AdapterConfig(api_key="k"), transport=transport, clock=FakeClock())
    for number, model in enumerate(("openai:mine", "openai:mine", "openai:other")):
        await adapter.complete(request(model=model, request_id=f"req_{number}"))
    assert [b"encrypted_content" in sent.body for sent in transport.requests] == [True, False, False, True]


@pytest.mark.parametrize(("model", "included"), [
    ("ft:gpt-4o-mini-2024-07-18:acme::7p4lURel", False),
    ("ft:gpt-4.1:acme:mine:7p4lURel", False),
    ("ft:o4-mini-2025-04-16:acme::7p4lURel", True),
    ("my-deployment", True),
])  # fmt: skip
def test_a_fine_tuned_model_supports_the_settings_of_its_base(model: str, included: bool) -> None:
    """For a deployment whose name has no base, nothing is known."""
    adapter, _ = make("openai")
    body: JsonObject = msgspec.json.decode(
        adapter.write_request(request(model=f"openai:{model}"), stream=False).body
    )
    assert body["model"] == model
    assert ("include" in body) is included
    assert (find_model(model) is None) is (model == "my-deployment")


# -- Refused signatures: the history is sent without them, from any place, and with the same content.


VERTEX = (
    "Unable to submit request because Thought signature is not valid.. Learn more: "
    "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini"
)
BASE64 = (
    "Invalid value at 'contents[3].parts[0].thought_signature' (TYPE_BYTES), Base64 decoding failed for \"tu_01%\""
)
GEMINI = ["Corrupted thought signature.", "Invalid thought signature.", "Thought signature is not valid", VERTEX]
CORRUPTED_RAW = '{\n  "error": {\n    "code": 400,\n    "message": "Corrupted thought signature."\n  }\n}\n'
"""OpenRouter's quotation of a provider, after its own text "Provider returned error"."""


def signed(name: str, kind: str) -> ContentBlock:
    """A block with a provider's signature."""
    blocks: dict[str, ContentBlock] = {
        "thinking": ThinkingBlock("Hm.", "c2ln", ProviderRaw(name, {})),
        "text": TextBlock("I read.", ProviderRaw(name, {"signatures": [{"start": 0, "end": 7,
            "signature": "c2ln"}]})),
        "call": ToolUseBlock("tu_1", "read", {"path": "a"}, provider_raw=ProviderRaw(name,
            {"id": "c1", "thoughtSignature": "c2ln"})),
        "part": OpaqueBlock("thoughtSignature", ProviderRaw(name, {"text": "", "thoughtSignature": "c2ln"})),
        "code": OpaqueBlock("executableCode", ProviderRaw(name, {"executableCode": {"code": "1"},
            "thoughtSignature": "c2ln"})),
    }  # fmt: skip
    return blocks[kind]


def history(name: str, *kinds: str) -> CanonicalRequest:
    """A conversation whose first reply has such blocks, and a call with its result."""
    content = [signed(name, kind) for kind in kinds]
    answers = (Message.tool_result("tu_1", "the file's text"),) if "call" in kinds else ()
    messages = (Message.user("Read it."), Message.assistant(content), *answers, Message.user("And now?"))
    return request(model=f"{name}:gemini-3-pro-preview", messages=messages)


def sent_parts(body: JsonObject) -> list[JsonObject]:
    """The parts of the model's first turn."""
    contents = body["contents"]
    assert isinstance(contents, list)
    turns = [turn for turn in contents if isinstance(turn, dict) and turn["role"] == "model"]
    parts = turns[0]["parts"] if turns else []
    assert isinstance(parts, list)
    return [part for part in parts if isinstance(part, dict)]


def unsigned(parts: list[JsonObject]) -> list[JsonObject]:
    return [{name: value for name, value in part.items() if name != "thoughtSignature"} for part in parts]


@pytest.mark.parametrize(("message", "kinds"), [
    *((message, ("thinking",)) for message in (*GEMINI, BASE64)),
    *((GEMINI[0], kinds) for kinds in (("text",), ("call",), ("part", "text"), ("code",))),
])  # fmt: skip
def test_a_refused_thought_signature_is_removed_from_any_place(message: str, kinds: tuple[str, ...]) -> None:
    """Text, calls and code stay. A call that needs a signature gets the mark for a missing one."""
    asked = history("gemini", *kinds)
    before = msgspec.json.decode(make("gemini")[0].write_request(asked, stream=False).body)
    assert b"c2ln" in msgspec.json.encode(before)
    found = repair_of("gemini", asked, message)
    assert found is not None
    assert (found.kind, found.warning.code) == ("signature", "reasoning_refused")
    after = body_after("gemini", asked, message)
    assert b"c2ln" not in msgspec.json.encode(after)
    kept = [part for part in sent_parts(before) if not part.get("thought") and part.get("text") != ""]
    assert unsigned(sent_parts(after)) == unsigned(kept)
    assert all(part["thoughtSignature"] for part in sent_parts(after) if "functionCall" in part)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_refused_signature_behind_chat_completions_becomes_the_mark_for_none(quoted: bool) -> None:
    """The refusal comes from Google's own endpoint, or from a gateway that quotes it."""
    extra: Json = {"google": {"thought_signature": "c2ln"}}
    raw = ProviderRaw("openai_compatible", {"id": "call_1", "extra_content": extra})
    call = ToolUseBlock("tu_1", "read", {"path": "a"}, provider_raw=raw)
    asked = request(
        model="openai_compatible:gemini-3-pro",
        messages=(Message.user("Read."), Message.assistant((call,)), Message.tool_result("tu_1", "x")),
    )
    message = f"Provider returned error: {CORRUPTED_RAW}" if quoted else "Corrupted thought signature."
    found = repair_of("openai_compatible", asked, message)
    assert found is not None
    (bare,) = found.request.messages[1].tool_uses
    assert bare.provider_raw is not None
    assert bare.provider_raw.data == {
        "id": "call_1",
        "extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}},
    }
    assert without_reasoning(found.request.messages[1], "openai_compatible") is found.request.messages[1]


@pytest.mark.parametrize(("name", "message"), [
    ("anthropic", "messages.369.content.0.thinking.signature: Field required"),
    ("anthropic", "messages.3.content.0.thinking.signature.str: Input should be a valid string"),
    ("anthropic",
        "The model returned the following errors: messages.1.content.0.thinking.signature: Field required"),
    ("anthropic",
        "The model returned the following errors: messages.1.content.0: Invalid `signature` in `thinking` "
        "block"),
    ("openai",
        "The encrypted content for item rs_0a18166210d72b5e could not be verified. Reason: Encrypted content "
        "could not be decrypted or parsed."),
    ("openai",
        "The encrypted content - **...c90= could not be verified. Reason: Encrypted content could not be."),
])  # fmt: skip
def test_other_providers_have_several_texts(name: str, message: str) -> None:
    """Gateways and clouds in front of the providers change the text."""
    found = repair_of(name, conversation(name), message)
    assert found is not None
    assert found.kind == "signature"


@pytest.mark.parametrize("message", GEMINI)
def test_a_text_that_only_quotes_the_refusal_is_none(message: str) -> None:
    assert repair_of("gemini", history("gemini", "text"), f"The user wrote: {message}") is None


@pytest.mark.parametrize("kind", ["thinking", "text", "call", "part", "code"])
def test_signatures_of_another_provider_are_not_changed(kind: str) -> None:
    """Gemini did not get another provider's signature, so Gemini did not refuse it."""
    message = Message.assistant((signed("other", kind), RedactedThinkingBlock("x", ProviderRaw("other", {}))))
    assert without_reasoning(message, "gemini") is message
    assert without_reasoning(message, "other") is not message
