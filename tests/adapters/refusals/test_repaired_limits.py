"""Refusals that name a limit or a parameter, as issues quote them: what is sent next is as near as can be."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai.data import find_model
from callboard.adapters.providers.tgi.adapter import TGIAdapter
from callboard.adapters.requests.settings import stated_limit
from callboard.bus.values.base import Json, JsonObject

from ...support.fake_http import FakeReply, FakeTransport, failing, request
from ...support.virtual_time import FakeClock
from ...support.wires.responses import message as said
from ...support.wires.responses import response
from .test_repair import body_after, make, refused, repair_of

pytestmark = pytest.mark.anyio

STATED = [
    (
        "anthropic",
        "max_tokens: 10000 > 4096, which is the maximum allowed number of output tokens for claude-x",
        4096,
    ),
    (
        "anthropic",
        "input length and `max_tokens` exceed context limit: 190000 + 10000 > 197000, decrease input length or "
        "`max_tokens` and try again",
        7000,
    ),
    (
        "openai",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 4096, but got 10000 "
        "instead.",
        4096,
    ),
    (
        "openai_compatible",
        "max_tokens is too large: 10000. This model supports at most 4096 completion tokens, whereas you provided "
        "10000.",
        4096,
    ),
    (
        "openai_compatible",
        "'max_tokens' or 'max_completion_tokens' is too large: 10000. This model's maximum context length is 8192 "
        "tokens and your request has 1000 input tokens (10000 > 8192 - 1000). None",
        7192,
    ),
    (
        "openai_compatible",
        "This model's maximum context length is 8192 tokens. However, you requested 10064 tokens (64 in the "
        "messages, "
        "10000 in the completion). Please reduce the length of the messages or completion.",
        8128,
    ),
    (
        "openai_compatible",
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
        8192,
    ),
    ("openai_compatible", "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    (
        "openai_compatible",
        "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
        8192,
    ),
    (
        "openai_compatible",
        "The parameter `max_tokens` specified in the request is not valid: integer above maximum value, "
        "expected a "
        "value <= 8192, but got 10000 instead. Request id: 0217724325966",
        8192,
    ),
    (
        "openai_compatible",
        "This model's maximum context length is 8192 tokens. However, you requested 10000 output tokens and your "
        "prompt contains 1192 input tokens, for a total of 11192 tokens. Please reduce the length of the input "
        "prompt or the number of requested output tokens. (parameter=input_tokens, value=1192)",
        7000,
    ),
    (
        "openai_compatible",
        "You passed 1192 input tokens and requested 10000 output tokens. However, the model's context length is "
        "only 8192 tokens, resulting in a maximum input length of 0 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=1192)",
        7000,
    ),
    (
        "openai_compatible",
        "This endpoint's maximum context length is 8192 tokens. However, you requested about 11192 tokens (1000 "
        "of text input, 192 of tool input, 10000 in the output). Please reduce the length of either one, or use "
        'the "middle-out" transform to compress your prompt automatically.',
        7000,
    ),
    (
        "gemini",
        "Unable to submit request because it has a maxOutputTokens value of 10000 but the supported range is "
        "from 1 "
        "(inclusive) to 8193 (exclusive). Update the value and try again.",
        8192,
    ),
]


def limit_in(body: JsonObject) -> Json:
    """The limit of output tokens, wherever the wire has it."""
    config = body.get("generationConfig", body)
    assert isinstance(config, dict)
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    return next(config[name] for name in names if name in config)


@pytest.mark.parametrize(("name", "message", "limit"), STATED)
def test_a_limit_that_is_stated_is_kept_to(name: str, message: str, limit: int) -> None:
    """The same request goes out again with a shorter reply, and a warning says so."""
    asked = request(model=f"{name}:test-model", max_output_tokens=10_000)
    found = repair_of(name, asked, message)
    assert found is not None
    assert (found.kind, found.warning.code) == ("output_limit", "request_repaired")
    assert str(limit) in found.warning.message
    assert limit_in(body_after(name, asked, message)) == limit


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


@pytest.mark.parametrize(("name", "message", "limit"), STATED)
def test_a_limit_that_was_kept_to_or_leaves_no_room_is_no_reason_to_try_again(
    name: str, message: str, limit: int
) -> None:
    """A prompt that fills the window is what is too long; a second refusal is final; a quotation is no refusal."""
    assert repair_of(name, request(max_output_tokens=limit), message) is None
    assert repair_of(name, request(max_output_tokens=10_000), message, done=("output_limit",)) is None
    assert repair_of(name, request(max_output_tokens=10_000), f"It said: {message}") is None


def test_next_to_no_room_is_an_overlong_prompt() -> None:
    full = (
        "This model's maximum context length is 8192 tokens. However, you requested 18100 tokens (8100 in "
        "the messages, "
        "10000 in the completion). Please reduce the length of the messages or completion."
    )
    assert stated_limit([full], 10_000) is None


@pytest.mark.parametrize(
    ("message", "sent", "left"),
    [
        (
            "Penalty is not enabled for models/gemini-2.5-flash",
            {"frequencyPenalty": 1.0, "presencePenalty": 1.0, "topK": 3},
            {"topK": 3},
        ),
        ("Penalty is not enabled for this model", {"presencePenalty": 1.0, "topK": 3}, {"topK": 3}),
        (
            "Thinking level is not supported for this model.",
            {"thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}, "topK": 3},
            {"topK": 3},
        ),
        (
            "Thinking level MINIMAL is not supported for this model.",
            {"thinkingConfig": {"thinkingLevel": "X"}},
            {},
        ),
        (
            "Unable to submit request because thinking_level MEDIUM is not supported by this model. Learn more: "
            "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini",
            {"thinkingConfig": {"thinkingLevel": "MEDIUM"}},
            {},
        ),
        ("thinking_config is not supported.", {"thinkingConfig": {"thinkingBudget": 1}}, {}),
        ("Thinking is not enabled for models/gemini-2.0-flash", {"thinkingConfig": {"thinkingBudget": 1}}, {}),
    ],
)
def test_what_gemini_does_not_take_of_the_tuning_is_left_out(
    message: str, sent: JsonObject, left: JsonObject
) -> None:
    """Both penalties at once, for the refusal names neither; the rest of the configuration stays."""
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


def test_a_model_that_encrypts_nothing_is_not_asked_to_and_the_rest_of_include_stays() -> None:
    """Its refusal has a parameter and no code."""
    mine: Json = ["web_search_call.action.sources"]
    asked = request(model="openai:my-deployment", provider_options={"openai": {"include": mine}})
    assert body_after("openai", asked, UNENCRYPTED, param="include", code=None)["include"] == mine
    bare = request(model="openai:my-deployment")
    assert "include" not in body_after("openai", bare, UNENCRYPTED, param="include", code=None)


async def test_the_refusal_is_paid_once_and_not_with_every_call() -> None:
    """The adapter knows from then on; another model of it is still asked."""
    reply = msgspec.json.encode(response(output=[said("Hello")]))
    whole = [FakeReply(reply, headers={"content-type": "application/json"}) for _ in range(3)]
    refusal = FakeReply(refused(UNENCRYPTED, param="include"), status=400)
    transport = FakeTransport(refusal, *whole)
    adapter = OpenAIAdapter(AdapterConfig(api_key="k"), transport=transport, clock=FakeClock())
    for number, model in enumerate(("openai:mine", "openai:mine", "openai:other")):
        await adapter.complete(request(model=model, request_id=f"req_{number}"))
    assert [b"encrypted_content" in sent.body for sent in transport.requests] == [True, False, False, True]


@pytest.mark.parametrize(
    ("model", "included"),
    [
        ("ft:gpt-4o-mini-2024-07-18:acme::7p4lURel", False),
        ("ft:gpt-4.1:acme:mine:7p4lURel", False),
        ("ft:o4-mini-2025-04-16:acme::7p4lURel", True),
        ("my-deployment", True),
    ],
)
def test_a_fine_tuned_model_takes_what_its_base_takes(model: str, included: bool) -> None:
    """Of a deployment whose name says nothing, nothing is known."""
    adapter, _ = make("openai")
    body: JsonObject = msgspec.json.decode(
        adapter.write_request(request(model=f"openai:{model}"), stream=False).body
    )
    assert body["model"] == model
    assert ("include" in body) is included
    assert (find_model(model) is None) is (model == "my-deployment")
