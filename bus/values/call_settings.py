"""The settings that a call was sent with, without content and tools."""

from __future__ import annotations

import msgspec


class CallSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one call. A setting that is None was left to the provider."""

    server_address: str | None = None
    """The host name of the provider's server."""
    server_port: int | None = None
    """The port of the provider's server."""
    max_output_tokens: int | None = None
    """The largest number of tokens that the reply may have."""
    temperature: float | None = None
    """The sampling temperature as it was asked for."""
    top_p: float | None = None
    """The nucleus sampling as it was asked for."""
    frequency_penalty: float | None = None
    """The frequency penalty as it was asked for."""
    presence_penalty: float | None = None
    """The presence penalty as it was asked for."""
    seed: int | None = None
    """The seed as it was asked for."""
    stop_sequences: tuple[str, ...] = ()
    """The texts that end the reply."""
    reasoning_effort: str | None = None
    """The effort for reasoning, in the model's own words."""
    output_type: str | None = None
    """``json`` where a schema was asked for."""
