"""What OpenAI's models accept, as data: it changes monthly, and code must not.

Effort decides the rest: a model that can't reason takes no reasoning options and no reasoning items, and one that
is reasoning refuses sampling parameters. Models that match no row get everything that was asked for.
"""

from __future__ import annotations

import re

import msgspec

from adapters.fitted import ToolIdRule
from adapters.repair import Refusal, RepairRules


class Family(msgspec.Struct, frozen=True):
    """A family of models. pattern: of the name's beginning, first match wins.

    efforts: what it accepts, weakest first; none at all if it can't reason. default: what it does unasked.
    verbosity: it takes `text.verbosity`. Limits are in tokens.
    """

    pattern: str
    efforts: tuple[str, ...]
    default: str | None = None
    max_context_tokens: int = 400_000
    max_output_tokens: int = 128_000
    verbosity: bool = True


FAMILIES = (
    Family(r"gpt-4\.1", (), None, 1_047_576, 32_768, verbosity=False),
    Family(r"(?:gpt-4o|chatgpt-4o|gpt-5-chat)", (), None, 128_000, 16_384, verbosity=False),
    Family(r"(?:gpt-4|gpt-3\.5)", (), None, 128_000, 4_096, verbosity=False),
    Family(r"o\d", ("low", "medium", "high"), "medium", 200_000, 100_000, verbosity=False),
    Family(r"gpt-\d[\d.]*-chat", ("medium",), "medium", 128_000, 16_384, verbosity=False),
    Family(r"gpt-5-pro", ("high",), "high", 400_000, 272_000, verbosity=False),
    Family(r"gpt-\d[\d.]*-pro", ("medium", "high", "xhigh"), "medium", verbosity=False),
    Family(r"gpt-5\.\d-codex", ("low", "medium", "high", "xhigh"), "medium"),
    Family(r"gpt-5(?:-|$)", ("minimal", "low", "medium", "high"), "medium"),
    Family(r"gpt-5\.1", ("none", "low", "medium", "high"), "none"),
    Family(r"gpt-5\.[2-4]", ("none", "low", "medium", "high", "xhigh"), "none", 1_050_000),
    Family(r"gpt-5\.5", ("none", "low", "medium", "high", "xhigh"), "medium", 1_050_000),
    Family(r"gpt-5\.(?:[6-9]|\d\d)", ("none", "low", "medium", "high", "xhigh", "max"), "medium", 1_050_000),
    Family(r"(?:gpt-6-astra|gpt-6\.1-sol)", ("low", "medium", "high", "xhigh", "max"), "medium", 1_050_000),
    Family(r"gpt-(?:[6-9]|\d\d)", ("none", "low", "medium", "high", "xhigh", "max"), "medium", 1_050_000),
)
"""From wire-facts 2.5, for effort and sampling; the rest from OpenAI's pages of each model. The last rows are the
newest, and stand for what will come after them.
"""


IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

_OFFICE = "application/vnd.openxmlformats-officedocument."
TOOL_IDS = ToolIdRule(max_length=64)

DOCUMENT_TYPES = (
    "application/pdf",
    "text/plain",
    "text/markdown",
    "text/csv",
    "text/tab-separated-values",
    "text/html",
    "text/xml",
    "application/json",
    "application/xml",
    "application/yaml",
    "application/rtf",
    "application/msword",
    "application/vnd.ms-excel",
    "application/vnd.ms-powerpoint",
    "application/vnd.oasis.opendocument.text",
    f"{_OFFICE}wordprocessingml.document",
    f"{_OFFICE}spreadsheetml.sheet",
    f"{_OFFICE}presentationml.presentation",
)
"""Files that are read; pictures in them only where they are PDF."""


def family(model: str) -> Family | None:
    """The family of a model, with or without a vendor's prefix; None if no row matches."""
    name = model.rpartition("/")[2].removeprefix("openai.")
    return next((row for row in FAMILIES if re.match(row.pattern, name)), None)


REPAIRS = RepairRules(
    # wire-facts 2.5, 2.6, 3.6, and issues of 2025 and 2026 that quote the replies
    signature_codes=frozenset({"invalid_encrypted_content"}),
    signatures=(
        r"The encrypted content \S{1,40} could not be (?:verified|decrypted)\b.{0,300}",
        r"Item with id 'rs_\w+' not found\. Items are not persisted when `store` is set to false\..{0,200}",
        r"Item 'rs_\w+' of type 'reasoning' was provided without its required following item\.?",
        r"Item '\w+' of type '\w+' was provided without its required 'reasoning' item: 'rs_\w+'\.?",
    ),
    parameter_codes=frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"}),
    parameters=(
        Refusal(r"Unsupported (?:parameter|value): '(?P<name>[\w.]+)' .{0,300}"),
        Refusal(r"Unknown parameter: '(?P<name>[\w.]+)'\.?.{0,100}"),
        Refusal(r"Unrecognized request arguments? supplied: (?P<name>\w+)"),
        Refusal(
            r"Your organization must be verified to generate reasoning summaries\..{0,400}", "reasoning.summary"
        ),
    ),
    pairs=(
        r"No tool output found for (?:\w+ )*call (?P<ids>[\w.:-]+)",
        r"No tool call found for (?:\w+ )*call output with call_id (?P<ids>[\w.:-]+)",
    ),
    essential=frozenset(
        {
            "model",
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "text.format",
            "stream",
            "store",
            "max_output_tokens",
        }
    ),
    whole=frozenset({"stream_options", "metadata"}),
    anywhere=frozenset({"strict", "phase", "namespace"}),
)
