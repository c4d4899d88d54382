"""Tokens for what requests are made of: data for `estimate`, written by `labs/estimates/fit_estimates.py`."""

from __future__ import annotations

import msgspec


class TokenRates(msgspec.Struct, frozen=True, array_like=True):
    """Tokens for one of each; the fields up to `document` are in the order of what `count` gives.

    request: once. system, tools: once, if there is a system prompt, or any tool (providers then add a prompt of
    their own). text: a token of text, as the vocabulary has it. json: such a token of a call's arguments.
    schema: such a token of a tool's name and schema, which providers write in their own way. opaque: a character
    of signatures and the like. call, result: one tool call, one result, besides their text.
    image: an image, besides its pixels. pixels: a thousand of them. vocabulary: see `vocabularies`.
    """

    request: float = 3.0
    message: float = 4.0
    system: float = 2.0
    tools: float = 10.0
    tool: float = 8.0
    property: float = 2.0
    text: float = 1.0
    json: float = 1.0
    schema: float = 0.7
    opaque: float = 0.1
    call: float = 3.0
    result: float = 3.0
    image: float = 30.0
    pixels: float = 1.33
    audio: float = 500.0
    document: float = 1500.0
    vocabulary: str = "o200k"


class RateRow(msgspec.Struct, frozen=True, array_like=True):
    """Rates for a protocol (an adapter's type), and the hosts and models that these regular expressions find.

    samples: how many requests they were fitted to.
    """

    protocol: str
    host: str
    model: str
    samples: int
    rates: TokenRates


# -- written by labs/estimates/fit_estimates.py; the first row that fits counts
# fmt: off
RATES: tuple[RateRow, ...] = (
    RateRow("anthropic", r"", r"opus-4-[78]|opus-5|sonnet-5", 7, TokenRates(
        2.23, 4.14, 0.87, 439, 80.4, 18.6, 1.21, 1, 0.2, 0, 3, 3, 17.9, 1.27, 500, 1500
    )),
    RateRow("anthropic", r"", r"claude", 44, TokenRates(
        4.84, 2.78, 0, 463, 57, 19.4, 1.05, 1, 0.38, 0, 3, 3, 17.6, 1.27, 500, 1500
    )),
    RateRow("openai", r"", r"gpt-oss|deepseek", 5, TokenRates(
        56.6, 12, 4.16, 8.21, 6.88, 0, 1.35, 0.6, 0.48, 0.1, 4.83, 4.83, 30, 1.33, 500, 1500
    )),
    RateRow("openai", r"api\.openai\.com", r"gpt-4", 8, TokenRates(
        2.42, 4.45, 4, 7.44, 6.11, 0, 0.96, 0.63, 0.45, 0.1, 5.14, 5.14, 30, 1.33, 500, 1500
    )),
    RateRow("openai", r"api\.openai\.com", r"gpt-5|o\d", 18, TokenRates(
        3.11, 3.48, 4.8, 8.02, 6.69, 0.46, 0.97, 0.6, 0.52, 0.1, 4.83, 4.83, 30, 1.33, 500, 1500
    )),
    RateRow("openai_compatible", r"openrouter\.ai|snowflake|heroku", r"claude", 19, TokenRates(
        5.07, 6.85, 0, 334, 120, 25, 0.96, 2, 2, 0.1, 21.7, 21.7, 104, 1.13, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"llama-4", 18, TokenRates(
        100, 12, 0, 438, 88, 0, 1.35, 0.6, 0.2, 0.1, 37.9, 37.9, 244, 1.36, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"gpt-oss", 7, TokenRates(
        57.1, 12, 0, 5.5, 0, 0, 1.11, 0.6, 0.95, 0.1, 0, 0, 104, 1.13, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"qwen", 6, TokenRates(
        4.32, 5.9, 0, 83.5, 69.3, 25, 1.16, 0.85, 2, 0.1, 0, 0, 77.6, 1.05, 500, 1500
    )),
    RateRow("openai_compatible", r"deepseek", r"deepseek", 3, TokenRates(
        34.1, 11.8, 20, 45.6, 13.1, 15.7, 1.24, 2, 1.49, 0.1, 12.9, 12.9, 104, 1.13, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"deepseek", 4, TokenRates(
        0.92, 2.64, 2.56, 0, 0, 0, 0.9, 0.85, 0.2, 0.1, 0, 0, 104, 1.13, 500, 1500
    )),
    RateRow("openai_compatible", r"api\.mistral\.ai", r"pixtral", 2, TokenRates(
        3.23, 6.42, 0, 14.8, 0.58, 0, 1.1, 2, 1.3, 0.1, 40, 40, 502, 2.31, 500, 1500
    )),
    RateRow("openai_compatible", r"api\.mistral\.ai", r"", 17, TokenRates(
        0.66, 2.15, 3.5, 16.5, 4.72, 3.69, 0.98, 1.82, 1.4, 0.1, 0, 0, 14.5, 1.36, 500, 1500
    )),
    RateRow("openai_compatible", r"openai\.(com|azure\.com)", r"gpt-4", 39, TokenRates(
        3.52, 3.6, 3.23, 17.4, 0, 0.37, 1.03, 1.6, 0.49, 0.1, 2.36, 2.39, 193, 1.59, 500, 1500
    )),
    RateRow("openai_compatible", r"openai\.(com|azure\.com)", r"gpt-5|o\d", 30, TokenRates(
        2.3, 3.84, 0, 89.9, 0, 0, 1.03, 1.06, 0.73, 0.1, 1.54, 1.54, 31.8, 1.17, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"gemini", 6, TokenRates(
        0, 2.9, 0, 6.57, 0, 0, 0.9, 2, 0.85, 0.1, 6.33, 6.33, 104, 1.13, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"glm", 7, TokenRates(
        4.41, 6.18, 0, 14.2, 0, 0, 0.9, 0.85, 1.26, 0.1, 0, 0, 71.7, 1.03, 500, 1500
    )),
    RateRow("gemini", r"", r"gemini-[12]", 37, TokenRates(
        0.43, 0.59, 0.31, 1.44, 9.82, 3.92, 1, 0.6, 0.59, 0, 9.39, 9.34, 396, 1.76, 500, 1500
    )),
    RateRow("gemini", r"aiplatform", r"gemini", 27, TokenRates(
        0, 0, 1.22, 0, 0, 10.3, 0.9, 1.56, 0.29, 0, 0, 0, 395, 1.76, 500, 1500
    )),
    RateRow("gemini", r"", r"gemini", 51, TokenRates(
        0, 0.7, 0.88, 0, 0.84, 11.7, 1.03, 1.22, 0.9, 0.2, 3.52, 3.55, 395, 1.76, 500, 1500
    )),
    RateRow("anthropic", r"", r"", 51, TokenRates(
        2.43, 4.68, 1.07, 439, 80.4, 18.6, 1.13, 1, 0.2, 0, 3, 3, 17.9, 1.27, 500, 1500
    )),
    RateRow("openai", r"", r"", 33, TokenRates(
        2.63, 4.18, 4.16, 8.21, 6.88, 0, 0.96, 0.6, 0.48, 0.1, 4.83, 4.83, 30, 1.33, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"", 172, TokenRates(
        2.65, 4.42, 0, 14.2, 0, 0, 1.05, 0.85, 1.26, 0.1, 0, 0, 104, 1.13, 500, 1500
    )),
    RateRow("gemini", r"", r"", 115, TokenRates(
        0.2, 0.92, 1.22, 0, 0, 10.3, 0.9, 0.61, 1.04, 0, 0, 0, 395, 1.76, 500, 1500
    )),
)
# fmt: on
