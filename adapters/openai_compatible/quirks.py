"""How the servers that speak Chat Completions differ, as data.

Only requests depend on a server's name, and the few rules of reading that the wire itself can't tell. Reading is
otherwise tolerant of every server's habits at once, because gateways change what stands behind an address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from adapters.effort import EFFORTS
from bus.errors import ConfigurationError
from bus.json_types import Json

EffortStyle: TypeAlias = Literal["field", "openrouter", "thinking", "none"]


class Quirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server's differences. The defaults are for a server that nothing is known about."""

    path: str = "/v1/chat/completions"
    """Of the endpoint, from the host on; what the base URL already has of it is not repeated."""

    auth: Literal["bearer", "api-key"] = "bearer"
    """The header that carries the key."""

    system_role: Literal["system", "developer", "user"] = "system"
    """The role of the first message, which holds all system text."""

    developer_role: bool = False
    """DEVELOPER messages stay where they are; elsewhere they are merged into the system text."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the limit of output tokens is called; many servers ignore the newer name."""

    max_stop: int = 4
    """How many stop sequences are accepted; the rest is left out with a warning."""

    tool_id_length: int = 40
    """The longest tool-call id that is accepted."""

    tool_id_alphanumeric: bool = False
    """Tool-call ids have letters and digits only, and exactly `tool_id_length` of them."""

    tool_choices: tuple[str, ...] = ("auto", "none", "required", "named")
    """The modes of tool choice that the server honours. Without ``none``, the tools are left out instead."""

    required_word: str = "required"
    """The wire's word for "some tool must be called"."""

    parallel_tool_calls: bool = True
    """The parameter of that name is known."""

    strict: bool = False
    """`strict` is known; it is then always sent, and set where a schema already fulfils its rules."""

    tool_result_name: bool = False
    """A tool's result carries the tool's name as well."""

    null_content: bool = True
    """An assistant message that only calls tools has content null; otherwise an empty string."""

    image_urls: bool = True
    """Images may be given by http address; otherwise as data only."""

    structured: Literal["json_schema", "json_object", "json_value", "none"] = "json_schema"
    """What the server enforces of an output schema. With ``json_object`` the schema is in the system text; with
    ``json_value`` it is the format's `value`."""

    stream_usage: bool = True
    """`stream_options.include_usage` is known; the others report usage unasked, or never."""

    effort: EffortStyle = "field"
    """How effort is asked for: `reasoning_effort`, OpenRouter's object, or thinking switched on and off."""

    efforts: tuple[str, ...] = EFFORTS
    """The efforts that are known; another one becomes the nearest, with a warning."""

    replays: Literal["nothing", "tool_loop", "reasoning_details", "extra_content"] = "nothing"
    """Which reasoning goes back: `reasoning_content` of the running tool loop, or the opaque fields, always."""

    think_tags: Literal["off", "paired", "open"] = "off"
    """Reasoning stands in the text, between <think> tags. ``open``: the first tag may be missing, so the reply
    begins as reasoning."""

    fixed_sampling: str = ""
    """A regular expression: models that refuse temperature, top_p and stop while they reason."""

    empty_error_is_overflow: bool = False
    """A 400 or 413 without a body means that the prompt is too long."""

    tools: Literal["native", "emulate"] = "native"
    """How tools are called; ``emulate`` is for models that can't, see `adapters.emulation`."""


QUIRKS: Mapping[str, Quirks] = {
    "default": Quirks(),
    "openai": Quirks(
        developer_role=True,
        max_tokens_field="max_completion_tokens",
        strict=True,
        fixed_sampling=r"o\d|gpt-5(?!.*chat)",
    ),
    "azure": Quirks(
        path="/openai/v1/chat/completions",
        auth="api-key",
        developer_role=True,
        max_tokens_field="max_completion_tokens",
        strict=True,
        fixed_sampling=r"o\d|gpt-5(?!.*chat)",
    ),
    "llama.cpp": Quirks(),
    "vllm": Quirks(null_content=False),
    "ollama": Quirks(
        tool_choices=("auto",),
        parallel_tool_calls=False,
        image_urls=False,
    ),
    "lmstudio": Quirks(tool_choices=("auto", "none", "required"), parallel_tool_calls=False, image_urls=False),
    "tgi": Quirks(  # one call a reply; temperature 0 is refused by some builds, so leave it out there
        parallel_tool_calls=False,
        structured="json_value",
        effort="none",
    ),
    "groq": Quirks(path="/openai/v1/chat/completions", think_tags="paired"),
    "together": Quirks(think_tags="paired"),
    "huggingface": Quirks(think_tags="paired"),
    "deepseek": Quirks(
        max_stop=16,
        parallel_tool_calls=False,
        null_content=False,
        structured="json_object",
        effort="thinking",
        replays="tool_loop",
    ),
    "mistral": Quirks(
        tool_id_length=9,
        tool_id_alphanumeric=True,
        required_word="any",
        tool_result_name=True,
        null_content=False,
        stream_usage=False,
        efforts=("none", "high"),
    ),
    "xai": Quirks(efforts=("none", "low", "medium", "high")),
    "openrouter": Quirks(
        path="/api/v1/chat/completions",
        effort="openrouter",
        replays="reasoning_details",
    ),
    "zai": Quirks(
        path="/api/paas/v4/chat/completions",
        max_stop=1,
        tool_choices=("auto",),
        parallel_tool_calls=False,
        structured="json_object",
        effort="thinking",
    ),
    "cerebras": Quirks(
        max_tokens_field="max_completion_tokens",
        stream_usage=False,
        efforts=("none", "low", "medium", "high"),
        empty_error_is_overflow=True,
    ),
    "gemini": Quirks(
        path="/v1beta/openai/chat/completions",
        parallel_tool_calls=False,
        tool_result_name=True,
        image_urls=False,
        efforts=("none", "minimal", "low", "medium", "high"),
        replays="extra_content",
    ),
}
"""Quirks by name. A configuration chooses with ``options: {quirks: NAME}``; otherwise the address does."""

HOSTS: Mapping[str, str] = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "api.groq.com": "groq",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral",
    "api.x.ai": "xai",
    "openrouter.ai": "openrouter",
    "api.z.ai": "zai",
    "open.bigmodel.cn": "zai",
    "api.cerebras.ai": "cerebras",
    "router.huggingface.co": "huggingface",
    "generativelanguage.googleapis.com": "gemini",
    "localhost:11434": "ollama",
    "127.0.0.1:11434": "ollama",
    "localhost:1234": "lmstudio",
    "127.0.0.1:1234": "lmstudio",
}
"""Which server an address belongs to: a host, any host below it, or a host with its port."""

_VERSION = re.compile(r"/v\d\w*$|/openai$")
"""Where a base URL ends if only the endpoint's own name is to follow it."""


def choose_quirks(options: Mapping[str, Json], base_url: str) -> Quirks:
    """The quirks of a configuration.

    ``options["quirks"]`` is a name, or an object of single fields that differ from those of its ``base`` (else of
    the address). ``options["tools"]`` stands over the field of that name. Raises ConfigurationError.
    """
    chosen = options.get("quirks")
    changes: dict[str, Json] = {}
    name = quirks_name(base_url)
    if isinstance(chosen, dict):
        changes = dict(chosen)
        base = changes.pop("base", name)
        name = base if isinstance(base, str) else name
    elif isinstance(chosen, str):
        name = chosen
    elif chosen is not None:
        raise ConfigurationError("options.quirks: expected a name or an object")
    if name not in QUIRKS:
        raise ConfigurationError(f"options.quirks: {name!r} is none of {', '.join(sorted(QUIRKS))}")
    if "tools" in options:
        changes["tools"] = options["tools"]
    if not changes:
        return QUIRKS[name]
    try:
        quirks = msgspec.convert({**msgspec.to_builtins(QUIRKS[name]), **changes}, Quirks)
        re.compile(quirks.fixed_sampling)
    except (msgspec.ValidationError, re.error) as error:
        raise ConfigurationError(f"options.quirks: {error}") from error
    return quirks


def quirks_name(base_url: str) -> str:
    """The name of the quirks for an address; ``default`` if it is not known."""
    try:
        url = urlsplit(base_url)
        host, port = url.hostname or "", url.port
    except ValueError:
        return "default"
    if f"{host}:{port}" in HOSTS:
        return HOSTS[f"{host}:{port}"]
    for known, name in HOSTS.items():
        if host == known or host.endswith(f".{known}"):
            return name
    return "default"


def endpoint_path(quirks: Quirks, configured_url: str | None, base_url: str, options: Mapping[str, Json]) -> str:
    """What follows the base URL. ``options["path"]`` decides, if it is there.

    configured_url: as the user wrote it. base_url: the same without its version suffix.
    """
    given = options.get("path")
    if isinstance(given, str):
        return given
    configured = urlsplit(configured_url or base_url).path.rstrip("/")
    if "/deployments/" in configured:  # Azure's older addresses
        version = options.get("api_version", "2024-10-21")
        return f"/chat/completions?api-version={version}"
    base = urlsplit(base_url).path.rstrip("/")
    if quirks.path.startswith(f"{base}/"):
        return quirks.path.removeprefix(base)
    if _VERSION.search(base) and not configured.endswith("/v1"):
        return "/chat/completions"
    return quirks.path
