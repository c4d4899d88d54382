"""What Gemini's models accept, as data: it changes monthly, and code must not."""

from __future__ import annotations

import re

import msgspec

from adapters.repair import Refusal, RepairRules

LEVELS = ("minimal", "low", "medium", "high")


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models. pattern: of the name's beginning, first match wins.

    levels: the thinking levels it takes, weakest first. budget: or the least and most tokens it may think with.
    A family with neither doesn't think. stops_thinking: a budget of 0 is taken.
    modern: since Gemini 3. Calls must come back signed, results may hold images, JSON goes together with tools,
    and tools of ours with the provider's.
    Limits are in tokens.
    """

    pattern: str
    levels: tuple[str, ...] = ()
    budget: tuple[int, int] | None = None
    stops_thinking: bool = False
    modern: bool = False
    tools: bool = True
    system: bool = True
    media: bool = True
    max_context_tokens: int = 1_048_576
    max_output_tokens: int = 65_536

    @property
    def thinks(self) -> bool:
        return bool(self.levels) or self.budget is not None


FAMILIES = (
    Family(
        pattern=r"gemma",
        tools=False,
        system=False,
        media=False,
        max_context_tokens=131_072,
        max_output_tokens=8_192,
    ),
    Family(pattern=r"gemini-(?:1\.|2\.0)", max_output_tokens=8_192),
    Family(pattern=r"gemini-2\.5-flash-image", tools=False, max_context_tokens=65_536, max_output_tokens=32_768),
    Family(pattern=r"gemini-2\.5-flash-lite", budget=(512, 24_576), stops_thinking=True),
    Family(pattern=r"gemini-2\.5-flash", budget=(1, 24_576), stops_thinking=True),
    Family(pattern=r"gemini-2\.5", budget=(128, 32_768)),
    Family(pattern=r"gemini-3-pro", levels=("low", "high"), modern=True),
    Family(pattern=r"gemini-3\.[78]-flash", levels=LEVELS[1:], modern=True),
    Family(pattern=r"gemini-3(?:\.\d+)?-flash", levels=LEVELS, modern=True),
    Family(pattern=r"gemini-(?:[3-9]|\d\d|flash-|pro-)", levels=LEVELS[1:], modern=True),
)

UNLISTED = Family(pattern="", levels=LEVELS[1:], modern=True)
"""A model that no row knows is taken for a newer one."""

BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 32_768}
"""Tokens to think with, for models that take no levels."""


def family(model: str) -> Family | None:
    """The family of a model, with or without the folder it stands in; None if no row matches."""
    name = model.rpartition("/")[2]
    return next((row for row in FAMILIES if re.match(row.pattern, name)), None)


_ENSURE = r"Please ensure that "
REPAIRS = RepairRules(
    # wire-facts 4.2, 4.4
    parameters=(
        Refusal(
            r"Budget 0 is invalid\. This model only works in thinking mode\..{0,200}",
            "generationConfig.thinkingConfig",
        ),
    ),
    pairs=(
        _ENSURE
        + r"function call turn comes immediately after a user turn or after a function response turn\..{0,200}",
        _ENSURE
        + r"the number of function response parts is equal to the number of function call parts of the "
        + r"function call turn\..{0,200}",
        r"Function call is missing a thought_signature in functionCall parts\..{0,800}",
    ),
    essential=frozenset(
        {
            "contents",
            "systemInstruction",
            "tools",
            "toolConfig",
            "cachedContent",
            "generationConfig.maxOutputTokens",
            "generationConfig.responseMimeType",
            "generationConfig.responseJsonSchema",
        }
    ),
)
"""Calls without the signature that a newer model wants are told in words, too."""
