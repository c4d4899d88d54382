"""The fields of TGI's text endpoints that are read here. Any of them may be missing.

A streamed reply has one such object for each token, and the last object also has the whole text and the details. A
whole reply has only the text and the details. Some gateways put a whole reply into a list.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.json import Json

WHOLE_PATH = "/generate"
STREAM_PATH = "/generate_stream"
INFO_PATH = "/info"


class WireToken(msgspec.Struct, gc=False):
    """One token."""

    text: str | None = None
    special: bool | None = None
    """Whether the token stands for no text, such as the end of the sequence."""


class WireDetails(msgspec.Struct, gc=False):
    """The details at the end of a reply."""

    finish_reason: Json = None
    generated_tokens: Json = None
    input_length: Json = None
    """The number of the prompt's tokens, which only streams of newer servers have."""
    prefill: list[Json] | None = None
    """The prompt's tokens, if they were asked for."""


class WireReply(msgspec.Struct, gc=False):
    token: WireToken | None = None
    generated_text: str | None = None
    details: WireDetails | None = None
    error: Json = None
    error_type: Json = None


decode_piece = msgspec.json.Decoder(WireReply).decode
decode_list = msgspec.json.Decoder(list[WireReply]).decode
