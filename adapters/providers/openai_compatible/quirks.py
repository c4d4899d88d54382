"""Servers of Chat Completions and their differences, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json

from ...replies.block import Meaning
from ...requests.settings import EFFORTS


def settings(*names: str, **renamed: str) -> dict[str, str]:
    """Map settings to the wire's names: positional settings keep their name, keywords give another name."""
    return {**{name: name for name in names}, **renamed}


_SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
COMMON_SETTINGS: Mapping[str, str] = settings(*_SAMPLING, "seed", "user")
OPENAI_SETTINGS: Mapping[str, str] = settings(*_SAMPLING, "seed", "user", "verbosity")
ANONYMOUS_SETTINGS: Mapping[str, str] = settings(*_SAMPLING, "seed")

EffortStyle: TypeAlias = Literal["field", "openrouter", "thinking", "none"]


class Quirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server's differences. The defaults are for an unknown server."""

    path: str = "/v1/chat/completions"
    """The path of the endpoint after the host. A part that the base URL has is not repeated."""

    auth: Literal["bearer", "api-key"] = "bearer"
    """The header of the key."""

    system_role: Literal["system", "developer", "user"] = "system"
    """The role of the first message, with all system text."""

    developer_role: bool = False
    """Whether DEVELOPER messages are kept. Otherwise they are merged into the system text."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of the limit of output tokens. Many servers ignore the newer name."""

    needs_max_tokens: bool = False
    """Whether a request must set the limit of output tokens, because the server's default is very short."""

    max_stop: int = 4
    """The largest number of stop sequences. Additional stop sequences are dropped with a warning."""

    tool_id_length: int = 40
    """The largest length of a tool call id."""

    tool_id_alphanumeric: bool = False
    """Whether tool call ids must have only letters and digits, and exactly `tool_id_length` characters."""

    tool_choices: tuple[str, ...] = ("auto", "none", "required", "named")
    """The supported modes of tool choice. If ``none`` is missing, the tools are omitted instead."""

    required_word: str = "required"
    """The server's value for "some tool must be called"."""

    parallel_tool_calls: bool = True
    """Whether the parameter `parallel_tool_calls` is supported."""

    strict: bool = False
    """Whether `strict` is supported. If so, it is always sent. It is true if a schema already fulfils the rules of
    strict mode.
    """

    top_p_of_one: bool = True
    """Whether a top_p of 1 is accepted. Otherwise it is omitted, because it changes nothing."""

    root_unions: bool = False
    """Whether a schema may have a union at its root. Otherwise the union is merged into one object."""

    schemas: Literal["any", "moonshot"] = "any"
    """The accepted form of JSON Schema. ``moonshot``: each property and alternative has a type."""

    tool_result_name: bool = False
    """Whether a tool's result has the tool's name."""

    blank_results: bool = True
    """Whether a tool's result may have no visible text. Otherwise a short text is sent."""

    null_content: bool = True
    """The content of an assistant message that has only tool calls: null if True, an empty string if False.
    """

    image_urls: bool = True
    """Whether images may be given by http address. Otherwise they are sent as data only."""

    structured: Literal["json_schema", "json_object", "json_value", "none"] = "json_schema"
    """The type of the response format for an output schema. With ``json_object``, only JSON syntax is enforced,
    and the schema is in the system text. With ``json_value``, the schema is the format's `value`.
    """

    json_objects: bool = True
    """Whether the format ``json_object`` is supported. If not, a schema that allows any object replaces it."""

    finish_reasons: bool = True
    """Whether the server reports finish reasons. Otherwise a whole body and `[DONE]` are regular ends, except at
    the token limit.
    """

    stream_usage: bool = True
    """Whether `stream_options.include_usage` is supported. Other servers report usage by default, or never."""

    streams: Literal["always", "without tools", "never"] = "always"
    """The requests that the server can stream. Other replies are requested whole."""

    effort: EffortStyle = "field"
    """How effort is sent: as `reasoning_effort`, as OpenRouter's object, or only as thinking on or off."""

    efforts: tuple[str, ...] = EFFORTS
    """The supported efforts. Another effort becomes the nearest, with a warning."""

    replays: Literal["nothing", "as_sent", "tool_loop", "reasoning_details", "extra_content"] = "nothing"
    """The reasoning to send back.

    ``as_sent``: with messages that call tools, in the field in which the server sent it. ``tool_loop``: the
    `reasoning_content` of every turn that called tools. The other values: the opaque fields with the name of the
    value. DeepSeek's service answers 400 if a later user turn misses the reasoning of a turn that called tools
    (https://api-docs.deepseek.com/guides/thinking_mode).
    """

    reasoning_stand_in: str = ""
    """The reasoning text that is added to another model's calls, if the server requires reasoning.

    Moonshot counts an empty text as missing and accepts a space (earendil-works/pi#4178).
    """

    reasoning_models: str = ""
    """A regular expression: models behind this gateway that require reasoning with every call."""

    user_after_tool: bool = True
    """Whether a user message may follow tool results. Otherwise an assistant message is put between them."""

    tool_arguments: Meaning = "either"
    """The form of argument fragments: ``pieces``, or all arguments ``so_far`` in each chunk.

    With ``either``, a fragment that starts with all earlier fragments replaces them, unless they were complete
    JSON.
    """

    think_tags: Literal["off", "paired", "open"] = "off"
    """Whether reasoning is in the text, between <think> tags. ``open``: the first tag may be missing."""

    settings: Mapping[str, str] = msgspec.field(default_factory=lambda: COMMON_SETTINGS)
    """The supported portable settings, and the wire's names for them."""

    fixed_sampling: str = ""
    """A regular expression: models that refuse `fixed_settings` while they reason."""

    fixed_without_thinking: bool = False
    """Whether models of `fixed_sampling` refuse `fixed_settings` without reasoning as well."""

    fixed_settings: tuple[str, ...] = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "stop")
    """The refused settings: portable settings, and ``stop``."""

    forced_while_thinking: bool = True
    """Whether a tool call can be required while the model reasons."""

    audio_models: str = ""
    """A regular expression: models that accept audio. Empty for none."""

    documents: Literal["text", "file", "document_url"] = "text"
    """The kind of message part for a PDF that is sent as data. With ``text``, only plain text documents are
    accepted, which are sent as text everywhere.
    """

    document_urls: bool = False
    """Whether PDFs may be given by http address."""

    empty_error_is_overflow: bool = False
    """Whether a 400 or 413 without a body means that the prompt is too long."""

    base64_vectors: bool = False
    """Whether embeddings are available as base64."""

    token_inputs: bool = False
    """Whether the inputs of embeddings can be tokens."""

    dimensions_field: str = "dimensions"
    """The field for the dimensions of an embedding."""

    batches: Literal["none", "openai", "mistral"] = "none"
    """The form of batches: OpenAI's files and batches, or Mistral's jobs."""

    beginning: Literal["none", "plain", "prefix", "partial", "final_message"] = "none"
    """How a model continues its own last message. ``plain``: the model continues it by default. ``prefix``,
    ``partial``: the message has this field. ``final_message``: by vLLM's fields. ``none``: the model would start a
    new reply.
    """

    beginning_at: str = ""
    """The end of the base URL that the continuation requires."""

    echoes_beginning: bool = False
    """Whether a reply that continues a given start repeats that start."""

    tools: Literal["native", "emulate"] = "native"
    """How tools are called. ``emulate`` is for models without tools, see `adapters.requests.emulation`."""


# --- Known servers ---

_OPENAI_REASONING = r"o\d|gpt-5(?!.*chat)"

_OPENAI = Quirks(
    developer_role=True,
    max_tokens_field="max_completion_tokens",
    strict=True,
    settings=OPENAI_SETTINGS,
    fixed_sampling=_OPENAI_REASONING,
    audio_models=r"^gpt-(?:4o-(?:mini-)?)?audio",
    documents="file",
    base64_vectors=True,
    token_inputs=True,
)

_WANT_REASONING = r"(?i)deepseek|kimi"
"""Models that need reasoning with calls, also through a gateway (danny-avila/LibreChat#13366)."""

QUIRKS: Mapping[str, Quirks] = {
    "default": Quirks(replays="as_sent", reasoning_stand_in=" ", reasoning_models=_WANT_REASONING),
    "openai": _OPENAI,
    "azure": msgspec.structs.replace(_OPENAI, path="/openai/v1/chat/completions", auth="api-key"),
    "llama.cpp": Quirks(
        settings=ANONYMOUS_SETTINGS, base64_vectors=True, token_inputs=True, replays="as_sent", root_unions=True
    ),
    "vllm": Quirks(
        null_content=False,
        settings=ANONYMOUS_SETTINGS,
        base64_vectors=True,
        token_inputs=True,
        replays="as_sent",
        beginning="final_message",
        root_unions=True,
    ),
    "sglang": Quirks(
        null_content=False, settings=ANONYMOUS_SETTINGS, token_inputs=True, replays="as_sent", root_unions=True
    ),
    "ollama": Quirks(
        tool_choices=("auto",),
        parallel_tool_calls=False,
        image_urls=False,
        replays="as_sent",
        settings=ANONYMOUS_SETTINGS,
    ),
    "lmstudio": Quirks(
        tool_choices=("auto", "none", "required"),
        parallel_tool_calls=False,
        image_urls=False,
        replays="as_sent",
        settings=ANONYMOUS_SETTINGS,
        json_objects=False,
    ),
    "cloudflare": Quirks(null_content=False, settings=ANONYMOUS_SETTINGS),
    "perplexity": Quirks(
        path="/chat/completions",
        # user and assistant must alternate, and tool results are treated as messages of the user
        user_after_tool=False,
        settings=settings("temperature", "top_p", "frequency_penalty", "presence_penalty"),
    ),
    "tgi": Quirks(  # one call per reply; some builds reject temperature 0, so it is omitted
        needs_max_tokens=True,
        parallel_tool_calls=False,
        structured="json_value",
        effort="none",
        top_p_of_one=False,
        settings=settings("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed"),
    ),
    "groq": Quirks(
        path="/openai/v1/chat/completions",
        think_tags="paired",
        settings=settings("temperature", "top_p", "seed", "user"),
        batches="openai",
        beginning="plain",
    ),
    "together": Quirks(think_tags="paired", settings=ANONYMOUS_SETTINGS, replays="as_sent"),
    "huggingface": Quirks(
        think_tags="paired",
        settings=ANONYMOUS_SETTINGS,
        replays="as_sent",
        reasoning_stand_in=" ",
        reasoning_models=_WANT_REASONING,
    ),
    "deepseek": Quirks(
        max_stop=16,
        parallel_tool_calls=False,
        null_content=False,
        structured="json_object",
        effort="thinking",
        replays="tool_loop",
        settings=settings("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        forced_while_thinking=False,
        beginning="prefix",
        beginning_at="/beta",
    ),
    "mistral": Quirks(
        tool_id_length=9,
        user_after_tool=False,
        tool_id_alphanumeric=True,
        required_word="any",
        tool_result_name=True,
        null_content=False,
        stream_usage=False,
        efforts=("none", "high"),
        settings=settings("temperature", "top_p", "frequency_penalty", "presence_penalty", seed="random_seed"),
        audio_models=r"voxtral",
        documents="document_url",
        document_urls=True,
        dimensions_field="output_dimension",
        batches="mistral",
        beginning="prefix",
        echoes_beginning=True,
    ),
    "moonshot": Quirks(
        tool_choices=("auto", "none"),
        parallel_tool_calls=False,
        null_content=False,
        image_urls=False,
        effort="none",
        replays="tool_loop",
        reasoning_stand_in=" ",
        blank_results=False,
        settings=settings("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        beginning="partial",
        schemas="moonshot",
        fixed_sampling=r"kimi-(?:k2[.-]?[5-9]|k[3-9]|for-coding)",
        fixed_without_thinking=True,
        fixed_settings=("temperature", "top_p", "frequency_penalty", "presence_penalty"),
    ),
    "xai": Quirks(
        efforts=("none", "low", "medium", "high"),
        fixed_sampling=r"grok-(?!.*non-reasoning)(?:3-mini|[4-9]|code)",
        fixed_settings=("frequency_penalty", "presence_penalty", "stop"),
    ),
    "openrouter": Quirks(
        path="/api/v1/chat/completions",
        effort="openrouter",
        replays="reasoning_details",
        reasoning_stand_in=" ",
        reasoning_models=_WANT_REASONING,
        settings=OPENAI_SETTINGS,
        audio_models=r"audio|gemini|voxtral",
        documents="file",
        document_urls=True,
    ),
    "zai": Quirks(
        path="/api/paas/v4/chat/completions",
        max_stop=1,
        tool_choices=("auto",),
        parallel_tool_calls=False,
        structured="json_object",
        effort="thinking",
        replays="as_sent",
        settings=settings("temperature", "top_p", user="user_id"),
    ),
    "cerebras": Quirks(
        max_tokens_field="max_completion_tokens",
        stream_usage=False,
        efforts=("none", "low", "medium", "high"),
        replays="as_sent",
        empty_error_is_overflow=True,
        settings=settings("temperature", "top_p", "seed", "user"),
    ),
    "snowflake": Quirks(path="/api/v2/cortex/v1/chat/completions", effort="openrouter", finish_reasons=False),
    "gemini": Quirks(
        path="/v1beta/openai/chat/completions",
        parallel_tool_calls=False,
        tool_result_name=True,
        image_urls=False,
        efforts=("none", "minimal", "low", "medium", "high"),
        replays="extra_content",
        settings=settings("temperature", "top_p"),
        audio_models=r"gemini",
    ),
}
"""Quirks by name. ``options: {quirks: NAME}`` in a configuration overrides the address."""

HOSTS: Mapping[str, str] = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "api.cloudflare.com": "cloudflare",
    "gateway.ai.cloudflare.com": "cloudflare",
    "api.groq.com": "groq",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral",
    "api.x.ai": "xai",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "openrouter.ai": "openrouter",
    "api.perplexity.ai": "perplexity",
    "api.z.ai": "zai",
    "open.bigmodel.cn": "zai",
    "api.cerebras.ai": "cerebras",
    "router.huggingface.co": "huggingface",
    "snowflakecomputing.com": "snowflake",
    "generativelanguage.googleapis.com": "gemini",
    "localhost:11434": "ollama",
    "127.0.0.1:11434": "ollama",
    "localhost:1234": "lmstudio",
    "127.0.0.1:1234": "lmstudio",
}
"""Servers by address: a host, any host below it, or a host with its port."""

_LOCAL_SERVERS = frozenset({"lmstudio"})
"""Servers on the user's own machine, with free models."""

_VERSION = re.compile(r"/v\d\w*$|/openai$")
"""Base URLs with this ending get only the endpoint's name appended."""


def choose_quirks(options: Mapping[str, Json], base_url: str) -> Quirks:
    """The quirks of a configuration.

    ``options["quirks"]`` is a name, or an object of fields that differ from its ``base`` (or else from the quirks
    of the address). ``options["tools"]`` overrides the field of that name.
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
        raise ConfigurationError(f"options.quirks: {name!r} must be one of {', '.join(sorted(QUIRKS))}")
    if "tools" in options:
        changes["tools"] = options["tools"]
    if not changes:
        return QUIRKS[name]
    try:
        quirks = msgspec.convert({**msgspec.to_builtins(QUIRKS[name]), **changes}, Quirks)
        for pattern in (quirks.fixed_sampling, quirks.audio_models, quirks.reasoning_models):
            re.compile(pattern)
    except (msgspec.ValidationError, re.error) as error:
        raise ConfigurationError(f"options.quirks: {error}") from error
    return quirks


@lru_cache(maxsize=128)  # cached, because every call uses it and there are few addresses
def quirks_name(base_url: str) -> str:
    """The name of the quirks for an address; ``default`` if unknown."""
    try:
        url = urlsplit(base_url)
        host, port = url.hostname or "", url.port
    except ValueError:
        return "default"
    if f"{host}:{port}" in HOSTS:
        return HOSTS[f"{host}:{port}"]
    for domain, name in HOSTS.items():
        if host == domain or host.endswith(f".{domain}"):
            return name
    return "default"


def vendor_of(options: Mapping[str, Json], base_url: str | None) -> str | None:
    """The vendor of a server's models in price tables; None if unknown."""
    chosen = options.get("quirks")
    name = chosen.get("base") if isinstance(chosen, dict) else chosen
    if not isinstance(name, str) or name not in QUIRKS:
        if base_url is None:
            return None
        name = quirks_name(base_url if urlsplit(base_url).scheme else f"https://{base_url}")
    return "local" if name in _LOCAL_SERVERS else None if name == "default" else name


def endpoint_path(quirks: Quirks, configured_url: str | None, base_url: str, options: Mapping[str, Json]) -> str:
    path = options.get("path")
    if isinstance(path, str):
        return path
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
