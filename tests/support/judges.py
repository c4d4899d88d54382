"""Checks requests with the vendors' own types: one function for each protocol.

A judge returns the faults of a request's body, each with its place. It reads the TypedDicts of the vendors' SDKs
more strictly than the SDKs do: a key that no type has is a fault, an integer is no string, and a value of a union
must be valid for one member. Reply types, which the SDKs also accept as input, are not accepted here, because
servers refuse some of their fields.
"""

from __future__ import annotations

import collections.abc
import functools
import re
import types
import typing
import warnings
from typing import Any, Union

import msgspec
import pydantic
import typing_extensions as te

from callboard.bus.values.base import Json, JsonObject

_OLDER_SAMPLING = {"temperature": float, "top_p": float, "top_k": int}
_OLDER_CLAUDES = re.compile(r"(?!claude)|claude-[23]|claude-[a-z]+-4(-[0-6])?(-\d{8})?$")
"""Models that accept fields that the SDK's types no longer list: Claude before Opus 4.7, and other models."""


def messages_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for Anthropic's Messages API. Fields of beta types are accepted."""
    from anthropic.types.beta import message_create_params as beta
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming

    value = _decoded(body)
    found: list[str] = []
    if _OLDER_CLAUDES.match(str(value.get("model"))):
        older = [(key, value.pop(key)) for key in _OLDER_SAMPLING if key in value]
        found = [fault for key, sent in older for fault in faults(sent, _OLDER_SAMPLING[key], f"$.{key}")]
    general = _judge(value, MessageCreateParamsNonStreaming, MessageCreateParamsStreaming)
    if general and "betas" not in value:  # which the types have in the body, but the SDK sends in a header
        tried = _judge(value, beta.MessageCreateParamsNonStreaming, beta.MessageCreateParamsStreaming)
        general = min(general, tried, key=len)
    return found + general


def responses_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for OpenAI's Responses API."""
    from openai.types.responses.response_create_params import (
        ResponseCreateParamsNonStreaming,
        ResponseCreateParamsStreaming,
    )

    return _judge(body, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)


def chat_faults(body: bytes | JsonObject, *, extensions: frozenset[str] = frozenset()) -> list[str]:
    """Faults of a body for Chat Completions."""
    from openai.types.chat.completion_create_params import (
        CompletionCreateParamsNonStreaming,
        CompletionCreateParamsStreaming,
    )

    value = _decoded(body)
    known: JsonObject = {key: inner for key, inner in value.items() if key not in extensions}
    return _judge(known, CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)


def contents_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for Gemini's generateContent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.genai import types as vendor
    kinds: dict[str, type[pydantic.BaseModel]] = {
        "contents": vendor.Content, "tools": vendor.Tool, "safetySettings": vendor.SafetySetting,
        "systemInstruction": vendor.Content, "toolConfig": vendor.ToolConfig,
        "generationConfig": vendor.GenerationConfig,
    }  # fmt: skip
    found: list[str] = []
    for name, value in _decoded(body).items():
        if name == "continuationToken" and isinstance(value, str):  # which the SDK moves out of its config
            continue
        if name not in kinds:
            found.append(f"$: no key {name!r}")
            continue
        if name == "generationConfig" and "imageConfig" in value:  # which the SDK puts there, but types separately
            found += _model_faults(value.pop("imageConfig"), vendor.ImageConfig, f"$.{name}.imageConfig")
        for one in value if isinstance(value, list) else [value]:
            found += _model_faults(one, kinds[name], f"$.{name}")
    return found


def interaction_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for Gemini's Interactions API."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.genai._gaos.types.interactions.createmodelinteraction import CreateModelInteraction
    return _model_faults(_decoded(body), CreateModelInteraction, "$")


def steps_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of the steps of such a body, including fields that the vendor's models accept without reading."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.genai._gaos.types.interactions import StepParam
    return faults(_decoded(body)["input"], list[StepParam], "$.input")  # type: ignore[valid-type]


_NEWER_IN_OLLAMA = frozenset({"truncate", "shift"})
"""Fields that the server accepts, but the types of its client don't have yet. Another one is a message's
`tool_call_id`.
"""


def ollama_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for Ollama's /api/chat."""
    from ollama import _types as vendor

    value = _decoded(body)
    unknown = value.keys() - vendor.ChatRequest.model_fields.keys() - _NEWER_IN_OLLAMA
    found = [f"$: no key {name!r}" for name in sorted(unknown)]
    found += _model_faults(value, vendor.ChatRequest, "$")
    found += _model_faults(value["options"], vendor.Options, "$.options", extra="forbid")
    for number, message in enumerate(value["messages"]):
        place = f"$.messages[{number}]"
        unknown = message.keys() - vendor.Message.model_fields.keys() - {"tool_call_id"}
        found += [f"{place}: no key {name!r}" for name in sorted(unknown)]
        images = [vendor.Image(value=data) for data in message.get("images", ())]
        found += _model_faults({**message, "images": images}, vendor.Message, place)
    for tool in value.get("tools", ()):
        found += _model_faults(tool, vendor.Tool, "$.tools")
    return found


def embeddings_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for OpenAI's embeddings."""
    from openai.types.embedding_create_params import EmbeddingCreateParams

    return faults(_decoded(body), EmbeddingCreateParams)


def embed_contents_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for Gemini's batchEmbedContents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.genai import types as vendor
    found: list[str] = []
    for number, one in enumerate(_decoded(body)["requests"]):
        place = f"$.requests[{number}]"
        found += _model_faults(one.pop("content"), vendor.Content, place)
        if not str(one.pop("model")).startswith("models/"):
            found.append(f"{place}.model: not in the folder of models")
        found += _model_faults(one, vendor.EmbedContentConfig, place, extra="forbid")
    return found


def images_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for OpenAI's images/generations."""
    from openai.types.image_generate_params import ImageGenerateParamsNonStreaming

    return faults(_decoded(body), ImageGenerateParamsNonStreaming)


def image_edits_faults(fields: JsonObject) -> list[str]:
    """Faults of the form fields for OpenAI's images/edits, without its files."""
    from openai.types.image_edit_params import ImageEditParamsNonStreaming

    return [fault for fault in faults(fields, ImageEditParamsNonStreaming) if "needs the key 'image'" not in fault]


def videos_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body, or of form fields, for OpenAI's videos."""
    from openai.types.video_create_params import VideoCreateParams

    return faults(_decoded(body), VideoCreateParams)


def video_parameters_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of the parameters of Google's predictLongRunning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.genai import types as vendor
    value = _decoded(body)
    found = [f"$: no key {key!r}" for key in value if key not in ("instances", "parameters")]
    return found + _model_faults(value["parameters"], vendor.GenerateVideosConfig, "$.parameters", extra="forbid")


def ollama_embed_faults(body: bytes | JsonObject) -> list[str]:
    """Faults of a body for Ollama's /api/embed."""
    from ollama import _types as vendor

    return _model_faults(_decoded(body), vendor.EmbedRequest, "$", extra="forbid")


def _model_faults(value: Json, kind: type[pydantic.BaseModel], place: str, **how: Any) -> list[str]:
    try:
        kind.model_validate(value, **how)
    except pydantic.ValidationError as error:
        return [f"{place}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return []


def _judge(body: bytes | JsonObject, whole: Any, streamed: Any) -> list[str]:
    value = _decoded(body)
    return faults(value, streamed if value.get("stream") is True else whole)


def _decoded(body: bytes | JsonObject) -> JsonObject:
    value: JsonObject = msgspec.json.decode(body if isinstance(body, bytes) else msgspec.json.encode(body))
    return value


def faults(value: Json, kind: Any, place: str = "$") -> list[str]:
    """The faults of a JSON value of a type."""
    kind = _bare(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return []
    if te.is_typeddict(kind):
        return _object_faults(value, kind, place)
    if origin is typing.Literal:
        allowed = any(value == choice and type(value) is type(choice) for choice in inner)
        return [] if allowed else [f"{place}: {value!r} is none of {', '.join(map(repr, inner))}"]
    if origin in (Union, types.UnionType):
        return _union_faults(value, inner, place)
    if _is_list(kind, origin):
        if not isinstance(value, list):
            return [f"{place}: not a list but {_short(value)}"]
        item = inner[0] if inner else object
        return [fault for n, part in enumerate(value) for fault in faults(part, item, f"{place}[{n}]")]
    if origin in (dict, collections.abc.Mapping) or kind is dict:
        if not isinstance(value, dict):
            return [f"{place}: not an object but {_short(value)}"]
        item = inner[1] if inner else object
        return [fault for key, part in value.items() for fault in faults(part, item, f"{place}.{key}")]
    return [] if _is_plain(value, kind) else [f"{place}: not {kind!r} but {_short(value)}"]


def _is_plain(value: Json, kind: Any) -> bool:
    if kind is None or kind is type(None):
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if getattr(kind, "__name__", "") == "UnrecognizedStr":  # an enumeration that the vendor keeps open
        return isinstance(value, str)
    return kind in (str, int, bool) and type(value) is kind


def _object_faults(value: Json, kind: Any, place: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{place}: not an object but {_short(value)}"]
    fields = _fields(kind)
    found = [f"{place}: no key {key!r} in {kind.__name__}" for key in value if key not in fields]
    for key, (required, inner) in fields.items():
        if key in value:
            found += faults(value[key], inner, f"{place}.{key}")
        elif required:
            found.append(f"{place}: {kind.__name__} needs the key {key!r}")
    return found


def _union_faults(value: Json, kinds: tuple[Any, ...], place: str) -> list[str]:
    """Empty if one member fits; otherwise the faults of the member whose constants (`type`, `role`) match."""
    best: tuple[bool, int, list[str]] | None = None
    for kind in kinds:
        found = faults(value, kind, place)
        if not found:
            return []
        rank = (not _is_meant(value, kind), len(found), found)
        if best is None or rank[:2] < best[:2]:
            best = rank
    assert best is not None
    return best[2]


def _is_meant(value: Json, kind: Any) -> bool:
    kind = _bare(kind)
    if isinstance(value, list):
        return _is_list(kind, typing.get_origin(kind))
    if typing.get_origin(kind) in (Union, types.UnionType):
        return any(_is_meant(value, inner) for inner in typing.get_args(kind))
    if not isinstance(value, dict) or not te.is_typeddict(kind):
        return False
    constants = {
        key: typing.get_args(_bare(inner))
        for key, (_, inner) in _fields(kind).items()
        if typing.get_origin(_bare(inner)) is typing.Literal and key in ("type", "role")
    }
    return bool(constants) and all(value.get(key) in choices for key, choices in constants.items() if key in value)


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[bool, Any]]:
    """The keys of a TypedDict: whether each is required, and its type.

    The class alone does not show which keys are required, because its annotations are strings.
    """
    found: dict[str, tuple[bool, Any]] = {}
    for name, hint in te.get_type_hints(kind, include_extras=True).items():
        required = name in kind.__required_keys__
        while te.get_origin(hint) in (te.Required, te.NotRequired, te.Annotated):
            if te.get_origin(hint) is not te.Annotated:
                required = te.get_origin(hint) is te.Required
            hint = te.get_args(hint)[0]
        found[name] = (required, hint)
    return found


def _bare(kind: Any) -> Any:
    while True:
        if isinstance(kind, te.TypeAliasType):
            kind = kind.__value__
        elif te.get_origin(kind) in (te.Required, te.NotRequired, te.Annotated):
            kind = te.get_args(kind)[0]
        else:
            return kind


def _is_list(kind: Any, origin: Any) -> bool:
    listed = (list, collections.abc.Iterable, collections.abc.Sequence)
    return origin in listed or getattr(origin, "__name__", getattr(kind, "__name__", "")) == "SequenceNotStr"


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
