"""What some prices count apart: modalities, searches and the service tier, as each wire reports them."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.providers.anthropic.response import token_usage
from callboard.adapters.providers.gemini.wire import UsageCounts
from callboard.adapters.providers.openai.wire import read_usage as read_responses
from callboard.adapters.providers.openai_compatible.wire import read_usage as read_chat
from callboard.bus.values.base import JsonObject


def raw(value: JsonObject) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("said", "tier"),
    [
        ({"service_tier": "standard"}, None),
        ({"service_tier": "batch"}, "batch"),
        ({"service_tier": "standard", "speed": "fast"}, "fast"),
    ],
)
def test_anthropic_says_its_tier_speed_and_searches(said: JsonObject, tier: str | None) -> None:
    """The usual tier is none; fast is a tier of its own."""
    counts: JsonObject = {"input_tokens": 1, "output_tokens": 2, "server_tool_use": {"web_search_requests": 3}}
    usage = token_usage({**counts, **said})
    assert usage is not None
    assert (usage.details, usage.service_tier) == ({"web_search": 3}, tier)


def test_chat_counts_audio_within_what_it_is_a_part_of() -> None:
    """Never more than the bucket has, and nothing at all without any."""
    counts: JsonObject = {"prompt_tokens": 10, "completion_tokens": 5}
    heard: JsonObject = {"audio_tokens": 4}
    usage = read_chat(
        raw({**counts, "prompt_tokens_details": heard, "completion_tokens_details": {"audio_tokens": 9}}), "flex"
    )
    assert usage is not None
    assert (usage.details, usage.service_tier) == ({"audio_input": 4, "audio_output": 5}, "flex")
    plain = read_chat(raw({**counts, "prompt_tokens_details": {"audio_tokens": 0}}))
    assert plain is not None
    assert plain.details is None


def test_responses_takes_the_tier_that_was_served() -> None:
    """Default is the usual one."""
    counts = raw({"input_tokens": 1, "output_tokens": 1})
    tiers = [usage.service_tier for word in ("default", "priority") if (usage := read_responses(counts, word))]
    assert tiers == [None, "priority"]


def test_gemini_splits_modalities_between_fresh_and_cached() -> None:
    """A modality's cached tokens are not counted as fresh ones; later chunks keep what they don't repeat."""
    counts = UsageCounts()
    first = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 30,
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 60}, {"modality": "TEXT", "tokenCount": 40}],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 20}],
        "serviceTier": "FLEX",
    }
    for chunk in (
        first,
        {"candidatesTokenCount": 7, "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 7}]},
    ):
        counts.add(raw(chunk))
    usage = counts.total(final=True)
    assert usage is not None
    assert usage.details == {"audio_input": 40, "audio_cache_read": 20, "image_output": 7}
    assert usage.service_tier == "flex"


def test_openrouters_searches_are_counted_under_its_own_name_too() -> None:
    """Its reply says `server_tool_use_details`; without it the call would be priced as if nobody had searched."""
    counts: JsonObject = {"prompt_tokens": 10, "completion_tokens": 5}
    usage = read_chat(raw({**counts, "server_tool_use_details": {"web_search_requests": 1}}))
    assert usage is not None
    assert usage.details == {"web_search": 1}


@pytest.mark.parametrize(
    ("cached", "written", "buckets"),
    [
        (2161, 2161, (7, 2161, 0)),
        (2000, 2100, (68, 2000, 100)),
        (2000, 168, (0, 2000, 168)),
        (2161, 0, (7, 2161, 0)),
    ],
)
def test_tokens_that_were_read_and_written_are_counted_once(
    cached: int, written: int, buckets: tuple[int, int, int]
) -> None:
    """OpenRouter reports Gemini's cached tokens under both; together the buckets are the prompt."""
    details: JsonObject = {"cached_tokens": cached, "cache_write_tokens": written}
    chat = read_chat(raw({"prompt_tokens": 2168, "completion_tokens": 1, "prompt_tokens_details": details}))
    responses = read_responses(raw({"input_tokens": 2168, "output_tokens": 1, "input_tokens_details": details}))
    for usage in (chat, responses):
        assert usage is not None
        found = (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens)
        assert (found, usage.total_input_tokens) == (buckets, 2168)


def test_a_cost_is_kept_from_responses_as_well() -> None:
    """OpenRouter states it over that protocol, too."""
    usage = read_responses(raw({"input_tokens": 78, "output_tokens": 37, "cost": 0.0000113, "is_byok": False}))
    assert usage is not None
    assert usage.reported_cost_nano_usd == 11_300
