"""The possible differences between servers of Chat Completions, one field for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters.replies.growing import Meaning
from callboard.adapters.requests.effort import EFFORTS


def settings(*names: str, **renamed: str) -> dict[str, str]:
    """Settings that go by their own names, and others with the wire's name for each."""
    return {**{name: name for name in names}, **renamed}


_SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
COMMON_SETTINGS: Mapping[str, str] = settings(*_SAMPLING, "seed", "user")
OPENAI_SETTINGS: Mapping[str, str] = settings(*_SAMPLING, "seed", "user", "verbosity")
ANONYMOUS_SETTINGS: Mapping[str, str] = settings(*_SAMPLING, "seed")

EffortStyle: TypeAlias = Literal["field", "openrouter", "thinking", "none"]


class Quirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server's differences. The defaults are for a server that nothing is known about."""

    path: str = "/v1/chat/completions"
    """The path of the endpoint, from the host on. The part that the base URL already has is not repeated."""

    auth: Literal["bearer", "api-key"] = "bearer"
    """The header that carries the key."""

    system_role: Literal["system", "developer", "user"] = "system"
    """The role of the first message, which holds all system text."""

    developer_role: bool = False
    """Whether DEVELOPER messages stay where they are. Otherwise they are merged into the system text."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of the limit of output tokens. Many servers ignore the newer name."""

    needs_max_tokens: bool = False
    """Without a limit of output tokens the server would give a very short reply."""

    max_stop: int = 4
    """The number of stop sequences that are accepted. Further ones are left out with a warning."""

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
    """Whether `strict` is known. It is then always sent, and true if a schema already fulfils its rules."""

    top_p_of_one: bool = True
    """Whether a top_p of 1 is taken. Otherwise it is left out, for it changes nothing."""

    root_unions: bool = False
    """Whether a schema may have a union at its root. Otherwise the union is folded into one object."""

    schemas: Literal["any", "moonshot"] = "any"
    """The form of JSON Schema that the server takes. ``moonshot``: each property and alternative has a type."""

    tool_result_name: bool = False
    """A tool's result carries the tool's name as well."""

    blank_results: bool = True
    """Whether a tool's result may have no visible text. Otherwise a short text stands in for it."""

    null_content: bool = True
    """Whether the content of an assistant message that only calls tools is null. Otherwise it is an empty
    string."""

    image_urls: bool = True
    """Whether images may be given by http address. Otherwise they are sent as data only."""

    structured: Literal["json_schema", "json_object", "json_value", "none"] = "json_schema"
    """The part of an output schema that the server enforces. With ``json_object`` the schema is in the system
    text. With ``json_value`` it is the format's `value`."""

    json_objects: bool = True
    """The format ``json_object`` is known. Otherwise any object is asked for by a schema."""

    finish_reasons: bool = True
    """The server says why a reply ended. If it never does, a whole body and `[DONE]` are regular ends, unless the
    limit of output tokens was reached."""

    stream_usage: bool = True
    """Whether `stream_options.include_usage` is known. Other servers report usage unasked, or never."""

    streams: Literal["always", "without tools", "never"] = "always"
    """When the server can stream. A reply that it can't stream is asked for whole, and comes in whole pieces."""

    effort: EffortStyle = "field"
    """How effort is asked for: `reasoning_effort`, OpenRouter's object, or thinking switched on and off."""

    efforts: tuple[str, ...] = EFFORTS
    """The efforts that are known. Another effort becomes the nearest, with a warning."""

    replays: Literal["nothing", "as_sent", "tool_loop", "reasoning_details", "extra_content"] = "nothing"
    """Which reasoning goes back.

    ``as_sent``: with messages that call tools, in the field in which the server sent it. ``tool_loop``: the
    `reasoning_content` of every turn that called tools. The others: the opaque fields of that name.
    DeepSeek's service answers 400 if a later user turn misses the reasoning of a turn that called tools
    (https://api-docs.deepseek.com/guides/thinking_mode).
    """

    reasoning_stand_in: str = ""
    """The reasoning of calls that have none, because another model made them, where the server wants some.

    Moonshot counts an empty text as missing and takes a space (earendil-works/pi#4178).
    """

    reasoning_models: str = ""
    """A regular expression: models behind this gateway that want reasoning with every call."""

    user_after_tool: bool = True
    """Whether a user's message may follow tool results. Otherwise an assistant's message goes between them."""

    tool_arguments: Meaning = "either"
    """What the fragments of a call's arguments are: ``pieces``, or all of them ``so_far`` in each chunk. With
    ``either`` a fragment that begins with all that came before replaces it, unless that was complete JSON."""

    think_tags: Literal["off", "paired", "open"] = "off"
    """Reasoning stands in the text, between <think> tags. ``open``: the first tag may be missing, so the reply
    begins as reasoning."""

    settings: Mapping[str, str] = msgspec.field(default_factory=lambda: COMMON_SETTINGS)
    """The portable settings that the server knows, and the wire's names for them."""

    fixed_sampling: str = ""
    """A regular expression: models that refuse `fixed_settings` while they reason."""

    fixed_without_thinking: bool = False
    """Whether those models refuse `fixed_settings` while they do not reason as well."""

    fixed_settings: tuple[str, ...] = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "stop")
    """What such models refuse: portable settings, and ``stop``."""

    forced_while_thinking: bool = True
    """A model may be made to call a tool while it reasons."""

    audio_models: str = ""
    """A regular expression: models that hear. Empty for none."""

    documents: Literal["text", "file", "document_url"] = "text"
    """The part that carries a PDF, as data. With ``text``, only documents of plain text are taken. Those go as
    text everywhere."""

    document_urls: bool = False
    """PDFs may be given by http address as well."""

    empty_error_is_overflow: bool = False
    """A 400 or 413 without a body means that the prompt is too long."""

    base64_vectors: bool = False
    """Embeddings can be had as base64."""

    dimensions_field: str = "dimensions"
    """What the dimensions of an embedding are called."""

    batches: Literal["none", "openai", "mistral"] = "none"
    """The way in which the server takes batches: OpenAI's files and batches, or Mistral's jobs."""

    beginning: Literal["none", "plain", "prefix", "partial", "final_message"] = "none"
    """The way in which a model is told to go on with the last message, which is its own: no word, or that field of
    the message, or vLLM's fields of the body. ``none``: it would begin anew."""

    beginning_at: str = ""
    """What the base URL must end with for that."""

    echoes_beginning: bool = False
    """Whether a reply that goes on with a beginning repeats it."""

    tools: Literal["native", "emulate"] = "native"
    """The way in which tools are called. ``emulate`` is for models that can't, see
    `adapters.requests.emulation`."""
