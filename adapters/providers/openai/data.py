"""OpenAI's models, error texts and quirks of servers as data, because they change monthly.

A model's list of efforts also determines other options. A model without efforts can't reason, and supports no
reasoning options or items. A reasoning model rejects sampling parameters. An unknown model gets all requested
parameters. The models are in `models.json`; see `adapters.provider`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    ConfigurationError,
    ContentFilterError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    ServerError,
)
from callboard.bus.values.base import Json

from ...http.errors import ErrorType, error_without_status, read_error_value
from ...http.repair import Refusal, RepairRules
from ...provider import ModelFile, ModelRow, ModelTable
from ...requests.history_target import ToolIdRule

OPTIONS = "openai"
"""The key of `provider_options` that is merged into the body."""


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    strict_tools: bool = False
    """Whether a tool's schema is enforced by default."""
    stateless: bool = True
    """Whether `store` and `include` are sent."""
    reasoning: bool = True
    """Whether the server accepts reasoning options, and reasoning items from earlier replies."""
    keeps_developer: bool = True
    """Whether the server supports the developer role."""
    images: bool = True
    """Whether the server accepts images."""
    documents: bool = False
    """Whether the server accepts documents."""
    tools: bool = True
    """Whether the server supports tools."""
    structured_output: bool = True
    """Whether the server obeys `text.format`."""
    completed_at_limit: bool = False
    """Whether the server reports ``completed`` for a reply that was cut off at the token limit."""
    late_ends: bool = False
    """Whether the server sends the end events of all items at the end of the reply, and never interleaves
    items.
    """
    min_output_tokens: int = 16
    """The smallest limit of output tokens that the server accepts."""
    user: str = "user"
    """The server's field for the id of an end user."""
    summaries: bool = False
    """Whether the server's known models can summarise their reasoning."""
    background: bool = False
    """Whether the server can continue a reply after its connection is lost."""
    cache_key: bool = False
    """Whether the server accepts a cache key, which directs a session's calls to the same prompt cache."""


OPENAI = Quirks(
    strict_tools=True, documents=True, user="safety_identifier", cache_key=True, background=True, summaries=True
)
COMPATIBLE = Quirks(documents=True)

QUIRKS: Mapping[str, Quirks] = {
    "openai": OPENAI,
    "compatible": COMPATIBLE,
    "llama.cpp": Quirks(
        stateless=False,
        reasoning=False,
        keeps_developer=False,
        images=False,
        tools=False,
        structured_output=False,
        completed_at_limit=True,
        late_ends=True,
        min_output_tokens=1,
    ),
}

_OWN_HOSTS = ("api.openai.com", ".api.openai.com", ".openai.azure.com")


def choose_quirks(name: Json, base_url: str) -> Quirks:
    if name is None:
        host = base_url.partition("://")[2].partition("/")[0].partition(":")[0]
        return OPENAI if host.endswith(_OWN_HOSTS) else COMPATIBLE
    if isinstance(name, str) and name in QUIRKS:
        return QUIRKS[name]
    raise ConfigurationError(f"options.quirks of an OpenAI adapter: {name!r} must be one of {', '.join(QUIRKS)}")


class Model(ModelRow, frozen=True, kw_only=True):
    """The parameters of a model that differ from the common ones."""

    efforts: tuple[str, ...] = ()
    """The efforts in increasing order; none if the model can't reason."""
    default_effort: str | None = None
    verbosity: bool = True

    @property
    def reasons(self) -> bool:
        return bool(self.efforts)


TABLE = ModelTable(__name__, ModelFile[Model])


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
"""Types of files that models can read. Images inside files are read only in PDFs."""


@functools.lru_cache(maxsize=256)
def find_model(name: str) -> Model | None:
    """The row of a model, with or without a vendor's prefix; None if unknown.

    A fine-tuned model (``ft:gpt-4o-mini:acme::7p4l``) has the row of its base.
    """
    base_name = name.rpartition("/")[2].removeprefix("openai.")
    return TABLE.resembling(base_name.split(":")[1] if base_name.startswith("ft:") else base_name)


ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""The `include` value that makes a reply's reasoning usable in requests."""

REPAIRS = RepairRules(
    # Sources: wire-facts 2.5, 2.6, 3.6, and issues of 2025 and 2026 that quote the replies
    signature_codes=frozenset({"invalid_encrypted_content"}),
    signatures=(
        r"The encrypted content .{1,200} could not be (?:verified|decrypted)\b.{0,300}",
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
            r"Encrypted content is not supported with this model\.?",
            "include",
            entry=ENCRYPTED_REASONING,
        ),
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


CODES: Mapping[str, ErrorType] = {
    "invalid_prompt": InvalidRequestError,
    "invalid_encrypted_content": InvalidRequestError,
    "invalid_json_schema": InvalidRequestError,
    "invalid_function_parameters": InvalidRequestError,
    "unsupported_parameter": InvalidRequestError,
    "unsupported_value": InvalidRequestError,
    "invalid_value": InvalidRequestError,
    "invalid_base64_image": InvalidRequestError,
    "invalid_image": InvalidRequestError,
    "invalid_image_format": InvalidRequestError,
    "invalid_image_mode": InvalidRequestError,
    "invalid_image_url": InvalidRequestError,
    "image_too_large": InvalidRequestError,
    "image_too_small": InvalidRequestError,
    "image_parse_error": InvalidRequestError,
    "image_file_too_large": InvalidRequestError,
    "image_file_not_found": InvalidRequestError,
    "empty_image_file": InvalidRequestError,
    "unsupported_image_media_type": InvalidRequestError,
    "failed_to_download_image": InvalidRequestError,
    "image_content_policy_violation": ContentFilterError,
    "bio_policy": ContentFilterError,
    "cyber_policy": ContentFilterError,
    "misalignment_policy_violation": ContentFilterError,
    "data_residency_mismatch": AccessDeniedError,
    "unsupported_country_region_territory": AccessDeniedError,
    "DeploymentNotFound": NotFoundError,
    "previous_response_not_found": NotFoundError,
    "vector_store_timeout": ServerError,
    "engine_overloaded_error": OverloadedError,
    "usage_limit_reached": QuotaExceededError,
}


def error_in_reply(value: Json, provider: str) -> AdapterError:
    return error_without_status(read_error_value(value), CODES, provider)
