"""Refused signatures: a history goes without them, wherever in it they stand, and says what it said before."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.refusals.repair_history import without_reasoning
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message

from ...support.fake_http import request
from .test_repair import body_after, conversation, make, repair_of

VERTEX = (
    "Unable to submit request because Thought signature is not valid.. Learn more: "
    "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini"
)
BASE64 = (
    "Invalid value at 'contents[3].parts[0].thought_signature' (TYPE_BYTES), Base64 decoding failed for \"tu_01%\""
)
GEMINI = ["Corrupted thought signature.", "Invalid thought signature.", "Thought signature is not valid", VERTEX]
CORRUPTED_RAW = '{\n  "error": {\n    "code": 400,\n    "message": "Corrupted thought signature."\n  }\n}\n'
"""What OpenRouter quotes of an upstream, after its own "Provider returned error"."""


def signed(name: str, kind: str) -> ContentBlock:
    """A block with a provider's signature."""
    blocks: dict[str, ContentBlock] = {
        "thinking": ThinkingBlock("Hm.", "c2ln", ProviderRaw(name, {})),
        "text": TextBlock(
            "I read.", ProviderRaw(name, {"signatures": [{"start": 0, "end": 7, "signature": "c2ln"}]})
        ),
        "call": ToolUseBlock(
            "tu_1", "read", {"path": "a"}, provider_raw=ProviderRaw(name, {"id": "c1", "thoughtSignature": "c2ln"})
        ),
        "part": OpaqueBlock("thoughtSignature", ProviderRaw(name, {"text": "", "thoughtSignature": "c2ln"})),
        "code": OpaqueBlock(
            "executableCode", ProviderRaw(name, {"executableCode": {"code": "1"}, "thoughtSignature": "c2ln"})
        ),
    }
    return blocks[kind]


def history(name: str, *kinds: str) -> CanonicalRequest:
    """A conversation whose first reply has such blocks, and a call that was answered."""
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


@pytest.mark.parametrize("message", [*GEMINI, BASE64])
@pytest.mark.parametrize("kinds", [("thinking",), ("text",), ("call",), ("part", "text"), ("code",)])
def test_a_refused_thought_signature_is_left_out_wherever_it_stands(message: str, kinds: tuple[str, ...]) -> None:
    """The words, the calls and the code stay; a call that must be signed says that it has no signature."""
    asked = history("gemini", *kinds)
    before = msgspec.json.decode(make("gemini")[0].write_request(asked, stream=False).body)
    assert b"c2ln" in msgspec.json.encode(before)
    found = repair_of("gemini", asked, message)
    assert found is not None
    assert (found.kind, found.warning.code) == ("signature", "reasoning_refused")
    after = body_after("gemini", asked, message)
    assert b"c2ln" not in msgspec.json.encode(after)
    said = [
        {name: value for name, value in part.items() if name != "thoughtSignature"} for part in sent_parts(after)
    ]
    kept = [
        {name: value for name, value in part.items() if name != "thoughtSignature"}
        for part in sent_parts(before)
        if not part.get("thought") and part.get("text") != ""
    ]
    assert said == kept
    calls = [part for part in sent_parts(after) if "functionCall" in part]
    assert all(part["thoughtSignature"] for part in calls)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_refused_signature_behind_chat_completions_gives_way_to_the_one_that_says_there_is_none(
    quoted: bool,
) -> None:
    """By Google's own endpoint, and by a gateway that quotes it."""
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("anthropic", "messages.369.content.0.thinking.signature: Field required"),
        ("anthropic", "messages.3.content.0.thinking.signature.str: Input should be a valid string"),
        (
            "anthropic",
            "The model returned the following errors: messages.1.content.0.thinking.signature: Field required",
        ),
        (
            "anthropic",
            "The model returned the following errors: messages.1.content.0: Invalid `signature` in `thinking` "
            "block",
        ),
        (
            "openai",
            "The encrypted content for item rs_0a18166210d72b5e could not be verified. Reason: Encrypted content "
            "could not be decrypted or parsed.",
        ),
        (
            "openai",
            "The encrypted content - **...c90= could not be verified. Reason: Encrypted content could not be.",
        ),
    ],
)
def test_other_providers_have_more_than_one_wording(name: str, message: str) -> None:
    """As gateways and clouds in front of them put it."""
    found = repair_of(name, conversation(name), message)
    assert found is not None
    assert found.kind == "signature"


@pytest.mark.parametrize("message", GEMINI)
def test_a_text_that_only_quotes_the_refusal_is_none(message: str) -> None:
    assert repair_of("gemini", history("gemini", "text"), f"The user wrote: {message}") is None


@pytest.mark.parametrize("kind", ["thinking", "text", "call", "part", "code"])
def test_what_another_provider_signed_is_left_alone(kind: str) -> None:
    """It was not sent, so it was not refused."""
    message = Message.assistant((signed("other", kind), RedactedThinkingBlock("x", ProviderRaw("other", {}))))
    assert without_reasoning(message, "gemini") is message
    assert without_reasoning(message, "other") is not message


def test_what_has_no_signature_is_the_same_object() -> None:
    plain = Message.user((TextBlock("Hi"), ImageBlock(data=b"x", media_type="image/png")))
    assert without_reasoning(plain, "gemini") is plain
