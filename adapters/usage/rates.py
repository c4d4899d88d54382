"""The rates of estimates: tokens for each part of a request. The data stand in the folders of the providers.

`labs/estimates/fit_estimates.py` writes the files.
"""

from __future__ import annotations

from functools import cache, cached_property

import msgspec

from ..provider import provider_named


class TokenRates(msgspec.Struct, frozen=True, dict=True):
    """Tokens for each part of a request. The fields up to `document` are in the order of the numbers that `count`
    gives."""

    request: float = 3.0
    """Tokens of a request, whatever is in it."""
    message: float = 4.0
    """Tokens of a message, besides its content."""
    system: float = 2.0
    """Tokens that a system prompt adds, besides its text."""
    tools: float = 10.0
    """Tokens that any tools add at all: providers then add a prompt of their own."""
    tool: float = 8.0
    """Tokens of a tool, besides its text."""
    property: float = 2.0
    """Tokens of a property in a tool's schema."""
    text: float = 1.0
    """Tokens for each token of text that the vocabulary has."""
    json: float = 1.0
    """Tokens for each such token in the arguments of a call."""
    schema: float = 0.7
    """Tokens for each such token in a tool's name and schema, which providers write in their own way."""
    opaque: float = 0.1
    """Tokens of a character of signatures and the like."""
    call: float = 3.0
    """Tokens of a tool call, besides its name and arguments."""
    result: float = 3.0
    """Tokens of a tool's result, besides its text."""
    image: float = 30.0
    """Tokens of an image, besides its pixels."""
    pixels: float = 1.33
    """Tokens of a thousand pixels."""
    audio: float = 500.0
    """Tokens of an audio block."""
    document: float = 1500.0
    """Tokens of a document that is no text."""
    vocabulary: str = "o200k"
    """The vocabulary by which text is counted; see `vocabularies`."""

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The rates, in the order of what `count` gives."""
        rates: tuple[float, ...] = msgspec.structs.astuple(self)[:-1]
        return rates


class RateRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rates for some hosts and models of a protocol."""

    host: str
    """A regular expression that finds the host in an address."""
    model: str
    """A regular expression that finds the model's name."""
    samples: int
    """How many requests the rates were fitted to."""
    rates: TokenRates
    """The rates."""


@cache
def rate_rows(protocol: str) -> tuple[RateRow, ...]:
    """The rows of a protocol; the first that fits a model counts. Empty if no rates were fitted for the protocol.

    Args:
        protocol: An adapter's type.
    """
    provider = provider_named(protocol)
    if provider is None or provider.rates is None:
        return ()
    return msgspec.json.decode(provider.data(provider.rates), type=tuple[RateRow, ...])
