"""Tokens for what requests are made of: data for `estimate`, written by `benchmarks/fit_estimates.py`."""

from __future__ import annotations

import msgspec


class TokenRates(msgspec.Struct, frozen=True, array_like=True):
    """Tokens for one of each; the fields are in the order of what `count` gives.

    request: once. system, tools: once, if there is a system prompt, or any tool (providers then add a prompt of
    their own). text: a character. wide: a byte beyond the first of a character. dense: a character beyond
    the eighth of each word, as in keys, addresses and code. json: a character of arguments,
    or of text that is JSON. schema: a character of a tool's name and schema. opaque: a character of signatures
    and the like. call, result: one tool call, one result, besides their text.
    image: an image, besides its pixels. pixels: a thousand of them.
    """

    request: float = 3.0
    message: float = 4.0
    system: float = 2.0
    tools: float = 10.0
    tool: float = 8.0
    property: float = 2.0
    text: float = 0.23
    wide: float = 0.25
    dense: float = 0.1
    json: float = 0.31
    schema: float = 0.2
    opaque: float = 0.1
    call: float = 3.0
    result: float = 3.0
    image: float = 30.0
    pixels: float = 1.33
    audio: float = 500.0
    document: float = 1500.0


class RateRow(msgspec.Struct, frozen=True, array_like=True):
    """Rates for a protocol (an adapter's type), and the hosts and models that these regular expressions find.

    samples: how many requests they were fitted to.
    """

    protocol: str
    host: str
    model: str
    samples: int
    rates: TokenRates


# -- written by benchmarks/fit_estimates.py; the first row that fits counts
# fmt: off
RATES: tuple[RateRow, ...] = (
    RateRow("anthropic", r"", r"opus-4-[78]|opus-5|sonnet-5", 7, TokenRates(
        0, 6.18, 1.04, 450, 69.2, 16.1, 0.27, 0.15, 0.56, 0.31, 0.08, 0.044, 3, 3, 17.9, 1.27, 500, 1500
    )),
    RateRow("anthropic", r"", r"claude", 44, TokenRates(
        1.45, 6.2, 0.1, 469, 52.3, 19.8, 0.21, 0.5, 0.58, 0.31, 0.096, 0.054, 3, 3, 17.6, 1.27, 500, 1500
    )),
    RateRow("openai", r"", r"gpt-oss|deepseek", 5, TokenRates(
        59.3, 12, 4.4, 8.27, 5.23, 0, 0.35, 0.25, 0.1, 0.2, 0.13, 0.1, 2.57, 2.58, 30, 1.33, 500, 1500
    )),
    RateRow("openai", r"api\.openai\.com", r"gpt-4", 8, TokenRates(
        3.54, 4.38, 4.63, 6.96, 3.92, 0, 0.18, 0.25, 0.1, 0.24, 0.12, 0.1, 3.89, 3.9, 30, 1.33, 500, 1500
    )),
    RateRow("openai", r"api\.openai\.com", r"gpt-5|o\d", 18, TokenRates(
        3.36, 4.7, 6.54, 8.41, 5.37, 1.14, 0.19, 0.25, 0.1, 0.2, 0.13, 0.1, 2.57, 2.58, 30, 1.33, 500, 1500
    )),
    RateRow("openai_compatible", r"openrouter\.ai|snowflake|heroku", r"claude", 19, TokenRates(
        5.15, 8.12, 0, 335, 120, 25, 0.2, 0.5, 0.34, 0.39, 0.5, 0.1, 21.9, 20.1, 112, 1.11, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"llama-4", 18, TokenRates(
        100, 12, 2.44, 433, 87.2, 0, 0.35, 0.15, 0.34, 0.2, 0.08, 0.1, 38.9, 37.1, 249, 1.35, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"gpt-oss", 7, TokenRates(
        59.3, 12, 2.48, 10.8, 0.036, 0.036, 0.25, 0.15, 0.34, 0.23, 0.2, 0.1, 1.24, 0, 112, 1.11, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"qwen", 6, TokenRates(
        5.43, 7.93, 2.44, 68.3, 57.5, 25, 0.28, 0.15, 0.34, 0.3, 0.5, 0.1, 2.34, 0.51, 83.2, 1.02, 500, 1500
    )),
    RateRow("openai_compatible", r"deepseek", r"deepseek", 3, TokenRates(
        40, 11.5, 20, 48.8, 12.8, 19, 0.28, 0.15, 0.34, 0.48, 0.28, 0.1, 13.1, 11.2, 112, 1.11, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"deepseek", 4, TokenRates(
        1.23, 4.14, 4.83, 0, 0, 0, 0.18, 0.15, 0.34, 0.3, 0.08, 0.1, 2.34, 0.51, 112, 1.11, 500, 1500
    )),
    RateRow("openai_compatible", r"api\.mistral\.ai", r"pixtral", 2, TokenRates(
        3.93, 8.28, 2.44, 12.7, 1.93, 0, 0.26, 0.15, 0.34, 0.6, 0.25, 0.1, 40, 40, 512, 2.3, 500, 1500
    )),
    RateRow("openai_compatible", r"api\.mistral\.ai", r"", 17, TokenRates(
        1.54, 3.58, 0, 16, 7.5, 5.46, 0.18, 0.15, 0.57, 0.51, 0.29, 0.1, 0, 0, 30.1, 1.3, 500, 1500
    )),
    RateRow("openai_compatible", r"openai\.(com|azure\.com)", r"gpt-4", 39, TokenRates(
        3.03, 3.83, 3.64, 18.7, 0, 1.77, 0.23, 0.15, 0.39, 0.44, 0.092, 0.1, 3.06, 1.24, 199, 1.56, 500, 1500
    )),
    RateRow("openai_compatible", r"openai\.(com|azure\.com)", r"gpt-5|o\d", 30, TokenRates(
        2.11, 3.98, 0, 92.5, 1.41, 0, 0.21, 0.15, 0, 0.22, 0.14, 0.1, 4.03, 2.2, 32, 1.19, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"gemini", 6, TokenRates(
        0, 4.56, 0, 7.57, 0, 0, 0.19, 0.15, 0.34, 0.53, 0.18, 0.1, 6.47, 4.64, 112, 1.11, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"glm", 7, TokenRates(
        3.86, 6.82, 2.44, 10.8, 0, 0, 0.18, 0.15, 0.34, 0.3, 0.23, 0.1, 2.34, 0.51, 79.3, 1.01, 500, 1500
    )),
    RateRow("gemini", r"", r"gemini-[12]", 37, TokenRates(
        0.59, 0.9, 2.55, 5.5, 4.13, 4.29, 0.19, 0.25, 0.55, 0.2, 0.2, 0, 10.2, 11.8, 395, 1.76, 500, 1500
    )),
    RateRow("gemini", r"aiplatform", r"gemini", 27, TokenRates(
        0, 0, 2.64, 0, 0, 6.81, 0.18, 0.25, 0.57, 0.28, 0.099, 0.0014, 0, 0, 394, 1.76, 500, 1500
    )),
    RateRow("gemini", r"", r"gemini", 51, TokenRates(
        0.58, 0.95, 0.46, 0.4, 3.29, 13.1, 0.23, 0.25, 0.41, 0.27, 0.16, 0.2, 3.38, 4.97, 394, 1.76, 500, 1500
    )),
    RateRow("anthropic", r"", r"", 51, TokenRates(
        0.31, 6.66, 3.79, 450, 69.2, 16.1, 0.23, 0.15, 0.56, 0.31, 0.08, 0.044, 3, 3, 17.9, 1.27, 500, 1500
    )),
    RateRow("openai", r"", r"", 33, TokenRates(
        3.54, 4.55, 4.4, 8.27, 5.23, 0, 0.19, 0.25, 0.1, 0.2, 0.13, 0.1, 2.57, 2.58, 30, 1.33, 500, 1500
    )),
    RateRow("openai_compatible", r"", r"", 172, TokenRates(
        2, 4.96, 2.44, 10.8, 0, 0, 0.23, 0.15, 0.34, 0.3, 0.23, 0.1, 2.34, 0.51, 112, 1.11, 500, 1500
    )),
    RateRow("gemini", r"", r"", 115, TokenRates(
        0.73, 0.89, 2.64, 0, 1.79, 6.81, 0.19, 0.25, 0.57, 0.2, 0.23, 0.00056, 6.94, 8.54, 394, 1.76, 500, 1500
    )),
)
# fmt: on
