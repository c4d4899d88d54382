"""What a call was sent with, as far as it is neither content nor tools."""

from __future__ import annotations

import msgspec


class CallSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one call; what is None was left to the provider.

    server_address: the provider's host. server_port: its port. max_output_tokens: the most that the reply may
    have. temperature, top_p, frequency_penalty, presence_penalty, seed: as they were asked for. stop_sequences:
    texts that end the reply. reasoning_effort: in the model's own words. output_type: ``json`` where a schema was
    asked for.
    """

    server_address: str | None = None
    server_port: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop_sequences: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    output_type: str | None = None
