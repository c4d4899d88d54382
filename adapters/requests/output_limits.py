"""The largest length of a reply, out of a provider's complaint that too much was asked for. Pure.

The texts are the same behind all wires, because gateways pass on the texts of others. Some texts name the most
tokens of a reply. Others name the window and the prompt's part of it. Such a text belongs to the class of overlong
prompts, but a shorter reply would fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LEAST_OUTPUT = 256
"""A number of tokens. With less room than this for the reply, the prompt itself is too long."""

_NAME = r"[`'\"]?(?:max_tokens|max_completion_tokens|max_output_tokens|max_new_tokens)[`'\"]?"

_STATED = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # OpenAI, by Chat and by Responses
        rf"{_NAME} is too large: \d+\. This model supports at most (?P<limit>\d+) completion tokens.{{0,200}}",
        rf"Invalid {_NAME}: integer above maximum value\. Expected a value <= (?P<limit>\d+).{{0,200}}",
        # Anthropic
        r"max_tokens: \d+ > (?P<limit>\d+), which is the maximum allowed number of output tokens for .{1,200}",
        r"input length and `max_tokens` exceed context limit: (?P<used>\d+) \+ \d+ > (?P<window>\d+)\b.{0,300}",
        # Gemini
        r"Unable to submit request because it has a maxOutputTokens value of \d+ but the supported range is from "
        r"1 \(inclusive\) to (?P<beyond>\d+) \(exclusive\).{0,300}",
        # Groq, DeepSeek, Qwen, Volcengine, Bedrock
        rf"{_NAME} must be less than or equal to `?(?P<limit>\d+)`?.{{0,300}}",
        rf"Invalid {_NAME} value, the valid range of {_NAME} is \[1, (?P<limit>\d+)\].{{0,200}}",
        rf"(?:<400> )?(?:InternalError\.Algo\.InvalidParameter: )?Range of {_NAME} should be "
        r"\[1, (?P<limit>\d+)\].{0,200}",
        rf"The parameter {_NAME} specified in the request (?:is|are) not valid: integer above maximum value, "
        r"expected a value <= (?P<limit>\d+).{0,300}",
        r"The maximum tokens you requested exceeds the model limit of (?P<limit>\d+)\..{0,300}",
        # vLLM, and OpenAI's older models
        r"'max_tokens' or 'max_completion_tokens' is too large: \d+\. This model's maximum context length is "
        r"(?P<window>\d+) tokens and your request has (?P<used>\d+) input tokens\b.{0,200}",
        r"This model's maximum context length is (?P<window>\d+) tokens\. However, you requested \d+ tokens "
        r"\((?P<used>\d+) in the messages, \d+ in the completion\)\..{0,200}",
        r"(?:VLLMValidationError: )?This model's maximum context length is (?P<window>\d+) tokens\. However, you "
        r"requested \d+ output tokens and your prompt contains (?:at least )?(?P<used>\d+) input tokens\b.{0,400}",
        r"You passed (?P<used>\d+) input tokens and requested \d+ output tokens\. However, the model's context "
        r"length is only (?P<window>\d+) tokens\b.{0,400}",
        # OpenRouter: the input's kinds are counted apart, and about
        r"This endpoint's maximum context length is (?P<window>\d+) tokens\. However, you requested about \d+ "
        r"tokens \((?P<parts>\d+ of [a-z]+ input(?:, \d+ of [a-z]+ input){0,5}), \d+ in the output\)\..{0,300}",
        # TGI
        r"(?:Input validation error: )?`inputs` tokens \+ `max_new_tokens` must be <= (?P<window>\d+)\. "
        r"Given: (?P<used>\d+) `inputs` tokens and \d+ `max_new_tokens`.{0,100}",
    )
)


def stated_limit(messages: Iterable[str], asked: int) -> int | None:
    """The most tokens that the reply may have. None if the messages say no number, or a number that is not below
    the wanted one.

    Args:
        messages: The provider's messages.
        asked: The number of tokens that the request asked for.
    """
    for message in messages:
        for pattern in _STATED:
            match = pattern.fullmatch(message.strip())
            if match is not None:
                limit = _limit(match)
                return limit if LEAST_OUTPUT <= limit < asked else None
    return None


def _limit(match: re.Match[str]) -> int:
    said = match.groupdict()
    if said.get("limit"):
        return int(said["limit"])
    if said.get("beyond"):
        return int(said["beyond"]) - 1
    if said.get("parts"):
        return int(said["window"]) - sum(map(int, re.findall(r"\d+", said["parts"])))
    return int(said["window"]) - int(said["used"])
