"""Portable settings, the prompt cache's key, and what is known of the models, on the Responses API."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai.data import find_model
from callboard.adapters.providers.openai.quirks import COMPATIBLE, OPENAI, Quirks
from callboard.adapters.providers.openai.request import BuiltRequest, build_request
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import Message

from ...support.fake_http import FakeReply, FakeTransport, ask, failing
from ...support.judges import responses_faults
from ...support.virtual_time import run_virtual
from ...support.wires.responses import message, response


def build(model: str = "gpt-test", quirks: Quirks = OPENAI, **changes: object) -> BuiltRequest:
    asked = ask(Message.user("Hi"), model=f"openai:{model}", **changes)
    built = build_request(asked, provider="openai", quirks=quirks, stream=False)
    assert responses_faults(built.body) == []
    return built


def test_settings_that_the_protocol_has_not_are_refused_with_a_warning_each() -> None:
    built = build(frequency_penalty=0.5, presence_penalty=0.5, seed=1, user="u_1", verbosity="low")
    assert [warning.code for warning in built.warnings] == ["parameter_dropped"] * 3
    assert {name: built.body[name] for name in ("safety_identifier", "text")} == {
        "safety_identifier": "u_1",
        "text": {"verbosity": "low"},
    }
    assert not {"frequency_penalty", "presence_penalty", "seed", "user", "verbosity"} & built.body.keys()


def test_verbosity_stands_beside_the_replys_form() -> None:
    schema: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
    text = build(verbosity="high", output_schema=schema).body["text"]
    assert isinstance(text, dict)
    assert text.keys() == {"format", "verbosity"}


@pytest.mark.parametrize(("model", "taken"), [("gpt-5.5", True), ("gpt-4.1", False), ("o3", False)])
def test_verbosity_is_sent_only_to_models_that_have_it(model: str, taken: bool) -> None:
    built = build(model, verbosity="low")
    assert ("text" in built.body) is taken
    assert len(built.warnings) == (0 if taken else 1)


@pytest.mark.parametrize(
    ("model", "effort", "summary"),
    [("gpt-5.5", "low", "auto"), ("gpt-5.5", "none", None), ("gpt-of-tomorrow", "low", None)],
)
def test_effort_asks_for_a_summary_where_the_model_is_known_to_give_one(
    model: str, effort: str, summary: str | None
) -> None:
    reasoning = build(model, reasoning_effort=effort).body["reasoning"]
    assert isinstance(reasoning, dict)
    assert reasoning.get("summary") == summary
    assert build("gpt-5.5").body.get("reasoning") is None
    assert build("gpt-5.5", COMPATIBLE, reasoning_effort="low").body["reasoning"] == {"effort": "low"}


def test_a_model_that_sums_up_for_nobody_is_asked_once() -> None:
    said = "Your organization must be verified to generate reasoning summaries. Please go to the settings."
    refusal = {"error": {"message": said, "type": "invalid_request_error", "param": "reasoning.summary"}}
    body = msgspec.json.encode(response(output=[message("Hi")]))
    replies = [failing(400, msgspec.json.encode(refusal)), FakeReply(body), FakeReply(body)]
    transport = FakeTransport(*replies)
    adapter = OpenAIAdapter(AdapterConfig(api_key="sk-test"), transport=transport)

    async def asked_twice() -> None:
        for _ in range(2):
            reply = await adapter.complete(ask(Message.user("Hi"), model="openai:gpt-5.5", reasoning_effort="low"))
            assert reply.text == "Hi"

    run_virtual(asked_twice)
    sent = [msgspec.json.decode(one.body)["reasoning"] for one in transport.requests]
    assert sent == [{"effort": "low", "summary": "auto"}, {"effort": "low"}, {"effort": "low"}]


def test_servers_that_are_only_compatible_know_the_older_name_and_no_cache_key() -> None:
    body = build(quirks=COMPATIBLE, user="u_1", session_id="ses_1").body
    assert body["user"] == "u_1"
    assert not {"safety_identifier", "prompt_cache_key"} & body.keys()


def test_the_calls_of_a_session_share_a_key_of_the_prompt_cache_which_is_not_its_id() -> None:
    first, again, other = (build(session_id=name).body["prompt_cache_key"] for name in ("ses_1", "ses_1", "ses_2"))
    assert first == again != other
    assert isinstance(first, str)
    assert len(first) <= 64
    assert "ses_1" not in first
    assert "prompt_cache_key" not in build().body


def test_the_cache_key_can_be_chosen_or_left_out() -> None:
    own = build(session_id="ses_1", provider_options={"openai": {"prompt_cache_key": "mine"}})
    assert own.body["prompt_cache_key"] == "mine"
    off = build(session_id="ses_1", provider_options={"openai": {"auto_cache": False}})
    assert not {"prompt_cache_key", "auto_cache"} & off.body.keys()


@pytest.mark.parametrize("name", ["gpt-6.3-sol", "gpt-7", "gpt-7.3-luna", "gpt-12"])
def test_a_newer_name_inherits_the_newest_row(name: str) -> None:
    assert find_model(name) is find_model("gpt-6.2-sol")


@pytest.mark.parametrize(
    ("name", "efforts"),
    [
        ("gpt-5.7", ("none", "low", "medium", "high", "xhigh", "max")),
        ("gpt-5.1-2025-11-13", ("none", "low", "medium", "high")),
        ("gpt-6.1-terra", ("none", "low", "medium", "high", "xhigh", "max")),
        ("gpt-6.1-sol", ("low", "medium", "high", "xhigh", "max")),
        ("gpt-7-chat", ("medium",)),
        ("openai/gpt-4o-mini", ()),
    ],
)
def test_a_family_is_known_by_its_names_beginning(name: str, efforts: tuple[str, ...]) -> None:
    row = find_model(name)
    assert row is not None
    assert row.efforts == efforts


def test_what_is_no_such_model_is_not_guessed_at() -> None:
    assert find_model("gpt-oss-120b") is None
    assert find_model("llama-4") is None


def adapter(base_url: str | None = None, **options: Json) -> OpenAIAdapter:
    return OpenAIAdapter(AdapterConfig(api_key="sk-secret", base_url=base_url, options=options))


def test_quirks_by_name_and_by_address() -> None:
    """OpenAI's own hosts are known; others are taken to be merely compatible; a wrong name is an error."""
    assert adapter().wire.quirks == OPENAI
    assert adapter(base_url="https://my.openai.azure.com/openai/v1/").wire.quirks == OPENAI
    assert adapter(base_url="https://openrouter.ai/api/v1").wire.quirks == COMPATIBLE
    assert not adapter(quirks="llama.cpp").capabilities.supports_structured_output
    with pytest.raises(ConfigurationError, match=r"llama\.cpp"):
        adapter(quirks="nonsense")


def test_capabilities_by_model() -> None:
    """A model that can't reason doesn't claim to, and limits come from the table."""
    openai = adapter()
    assert not openai.get_capabilities("openai:gpt-4o").supports_thinking
    assert openai.get_capabilities("o3").max_context_tokens == 200_000
    assert openai.get_capabilities("unknown") == openai.capabilities
