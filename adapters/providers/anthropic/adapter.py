"""The wire and the adapter of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire import ChatWire, OtherWires
from callboard.adapters.http.wire_call import WireCall, get

from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo
from ...replies.assembler import Assembler
from ...replies.normaliser import StreamNormaliser
from ...requests.settings import SharedOptions
from . import response
from .batch import MessageBatches
from .data import ERROR_CODES, REPAIRS, find_model
from .messages import IMAGE_MEDIA_TYPES, PDF, TEXT_MEDIA_TYPES
from .request import write_request
from .response import read_reply
from .stream import MessagesNormaliser


class AnthropicOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``anthropic``."""

    beta_headers: str | list[str] = ""
    """Names for the `anthropic-beta` header."""
    auto_cache: bool = True
    """Whether breakpoints of the prompt cache are set; see `caching`."""
    cache_ttl: Literal["5m", "1h"] = "5m"
    """The lifetime of cached prompts."""
    thinking_back: Literal["signed", "unsigned", "with_calls"] | None = None
    """The thinking to send back: signed only, also unsigned, or with a stand-in before calls that have none.

    None: the model's name decides. Models other than Claude get it unsigned.
    """
    errors_in_words: bool = False
    """Whether a failed tool's result is marked in words, for servers that ignore `is_error` (llama.cpp, often
    LiteLLM).
    """


class MessagesWire(ChatWire):
    """Anthropic's Messages API."""

    default_name = "anthropic"
    media_fields = frozenset({"document.name"})
    options_type = AnthropicOptions
    default_base_url = "https://api.anthropic.com"
    error_codes = ERROR_CODES
    repair_rules = REPAIRS
    capabilities = AdapterCapabilities(
        supports_images=True,
        supports_documents=True,
        supports_thinking=True,
        supports_tools=True,
        supports_structured_output=True,
        supports_streaming_tool_calls=True,
        supports_parallel_tool_calls=True,
        supports_prompt_caching=True,
        max_context_tokens=200_000,
        max_output_tokens=64_000,
        accepted_image_media_types=IMAGE_MEDIA_TYPES,
        accepted_document_media_types=(PDF, *TEXT_MEDIA_TYPES),
    )

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        row = find_model(model)
        if row is None:
            return self.capabilities
        return msgspec.structs.replace(
            row.within(self.capabilities),
            supports_tool_choice=row.forced_tools,
        )

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        return write_request(request, provider=self.name, options=self.config.options, stream=stream)

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        read_reply(body, assembler)

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        return MessagesNormaliser(assembler)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {"x-api-key": key} if key else {}

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """See `ChatWire.takes_beginning`. A thinking model refuses a started reply."""
        row = find_model(request.wire_model)
        if row is None or not row.beginnings or request.reasoning_effort not in (None, "none"):
            return False
        own = (request.provider_options.get(name) for name in ("anthropic", self.name))
        return not any(isinstance(options, Mapping) and "thinking" in options for options in own)

    def health_request(self) -> WireCall:
        return get("/v1/models", {"anthropic-version": response.VERSION})

    def other_wires(self) -> OtherWires:
        return OtherWires(batches=MessageBatches())

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """The limits of requests and tokens; `reset_at` is that of the tokens (RFC 3339), or else of
        the requests.
        """
        prefix = "anthropic-ratelimit-"
        if not any(name.startswith(prefix) for name in headers):
            return None
        tokens = "tokens" if f"{prefix}tokens-limit" in headers else "input-tokens"

        def count(name: str) -> int | None:
            text = headers.get(prefix + name, "")
            return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

        return RateLimitInfo(
            requests_limit=count("requests-limit"),
            requests_remaining=count("requests-remaining"),
            tokens_limit=count(f"{tokens}-limit"),
            tokens_remaining=count(f"{tokens}-remaining"),
            reset_at=headers.get(f"{prefix}{tokens}-reset") or headers.get(f"{prefix}requests-reset"),
            requests_reset=headers.get(f"{prefix}requests-reset"),
            tokens_reset=headers.get(f"{prefix}{tokens}-reset"),
            counts_output=tokens == "tokens",
        )


class AnthropicAdapter(HttpAdapter):
    """Anthropic's Messages API, and servers that implement it, such as llama.cpp.

    `config.options`: see `AnthropicOptions`. A request's ``provider_options["anthropic"]`` (or under the adapter's
    own name) is merged into the body. Its ``beta_headers`` are added to the header, and its ``auto_cache`` and
    ``cache_ttl`` override those of the configuration.
    """

    wire_type = MessagesWire
