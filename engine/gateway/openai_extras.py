"""Reads and writes embeddings and images for OpenAI's clients. Pure.

The reverse of `adapters.operations.openai_wires` and `adapters.operations.openai_media`.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence

import msgspec

from callboard.adapters.embeddings import (
    INPUT_TYPES,
    EmbeddingInput,
    EmbeddingRequest,
    Encoding,
    InputType,
    Vector,
)
from callboard.adapters.images import GeneratedImage, ImageRequest
from callboard.adapters.requests.content import read_data_url, write_data_url
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from .failures import BadRequest
from .http import FormField
from .wire import LossReport, a_list, a_text, an_integer, kind_of, missing, wrong_value

_PROTOCOLS = ("openai", "openai_compatible")
"""The protocols with these endpoints."""


def _model(body: JsonObject) -> str:
    model = body.get("model")
    if model is None or model == "":
        raise BadRequest("you must provide a model parameter", param="model")
    return a_text(model, "model")


def _others(body: JsonObject, known_fields: Sequence[str], losses: LossReport) -> JsonObject:
    """The fields of a body without a canonical equivalent, as provider options for these protocols."""
    fields: JsonObject = {
        name: value for name, value in body.items() if name not in known_fields and value is not None
    }
    for name in fields:
        if name not in _HARMLESS:
            losses.parameter(name)
    return {protocol: dict(fields) for protocol in _PROTOCOLS} if fields else {}


_HARMLESS = ("user", "safety_identifier")

# --- Embeddings ---

MOST_TOKEN = 2**31 - 1
"""The maximum accepted token id. No vocabulary is that large."""


class ClientEmbeddingRequest(ShortRepr, frozen=True, kw_only=True):
    """A client's request for embeddings."""

    model: str
    """The model as the client names it."""
    request: EmbeddingRequest
    """The request in the canonical form. Its id is empty."""
    encoding: Encoding = "float"
    """The encoding of the vectors in the reply."""
    losses: tuple[CallWarning, ...] = ()
    """The parts without a canonical equivalent. If another protocol serves the request, the client gets these
    warnings.
    """


def read_embeddings(body: JsonObject) -> ClientEmbeddingRequest:
    """Read the body of ``POST /v1/embeddings``.

    Raises:
        BadRequest: The request can't be read.
    """
    model, losses = _model(body), LossReport()
    dimensions = an_integer(body.get("dimensions"), "dimensions", least=1)
    encoding = body.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise wrong_value("encoding_format", encoding, ("float", "base64"))
    purpose = body.get("input_type")
    kind: InputType | None = next((each for each in INPUT_TYPES if each == purpose), None)
    read = ("model", "input", "dimensions", "encoding_format", *(("input_type",) if kind else ()))
    return ClientEmbeddingRequest(
        model=model,
        request=EmbeddingRequest(
            request_id="",
            model=model,
            inputs=_inputs(body.get("input")),
            dimensions=dimensions,
            input_type=kind,
            provider_options=_others(body, read, losses),
        ),
        encoding="base64" if encoding == "base64" else "float",
        losses=tuple(losses),
    )


def _inputs(value: Json) -> tuple[EmbeddingInput, ...]:
    """Texts, or tokens: one input, or an array of them."""
    if value is None:
        raise missing("input")
    inputs: list[Json] = [value] if isinstance(value, str) else a_list(value, "input")
    if not inputs:
        raise BadRequest("Invalid 'input': input cannot be an empty array.", param="input", code="empty_array")
    if isinstance(inputs[0], int):
        return (_input(inputs, list),)
    kind = type(inputs[0])
    return tuple(_input(each, kind) for each in inputs)


def _input(value: Json, kind: type) -> EmbeddingInput:
    match value:
        case str() if kind is str:
            if not value:
                raise BadRequest("Invalid 'input': input cannot be an empty string.", param="input")
            return value
        case list() if kind is list:
            if not value:
                raise BadRequest(
                    "Invalid 'input': input cannot be an empty array.", param="input", code="empty_array"
                )
            tokens = tuple(token for token in value if type(token) is int and 0 <= token <= MOST_TOKEN)
            if len(tokens) < len(value):
                raise BadRequest("Invalid 'input': a token is not a valid integer.", param="input")
            return tokens
        case _:
            message = (
                "Invalid type for 'input': expected a string, an array of strings, an array of tokens, or an "
                f"array of token arrays, but got {kind_of(value)}."
            )
            raise BadRequest(message, param="input", code="invalid_type")


def write_embeddings(
    client_request: ClientEmbeddingRequest, vectors: Sequence[Vector], usage: TokenUsage
) -> JsonObject:
    """The body of a reply.

    Args:
        client_request: The request.
        vectors: The vectors in the order of the inputs.
        usage: The tokens of all inputs.
    """
    tokens = usage.total_input_tokens
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": _vector(vector, client_request.encoding)}
            for place, vector in enumerate(vectors)
        ],
        "model": client_request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _vector(vector: Vector, encoding: Encoding) -> Json:
    if encoding == "float":
        numbers: list[Json] = [*vector.tolist()]
        return numbers
    if sys.byteorder == "big":  # the wire's bytes are little-endian
        vector = array("f", vector)
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()


# --- Images ---


class ClientImageRequest(ShortRepr, frozen=True, kw_only=True):
    """A client's request for images."""

    model: str
    """The model as the client names it."""
    request: ImageRequest
    """The request in the canonical form. Its id is empty."""
    stream: bool = False
    """Whether the client requested a stream."""
    as_url: bool = False
    """Whether the client requested URLs instead of base64."""
    losses: tuple[CallWarning, ...] = ()
    """The parts without a canonical equivalent. If another protocol serves the request, the client gets these
    warnings.
    """


_READ = (
    *("model", "prompt", "n", "size", "aspect_ratio", "quality", "background", "output_format"),
    *("stream", "partial_images", "response_format"),
)


def read_images(
    body: JsonObject, images: Sequence[ImageBlock] = (), mask: ImageBlock | None = None
) -> ClientImageRequest:
    """Read the body of ``POST /v1/images/generations``. The value ``auto`` means the provider's default.

    Args:
        body: The body.
        images: The images to edit.
        mask: The mask of the first image.

    Raises:
        BadRequest: The request can't be read.
    """
    model, losses = _model(body), LossReport()
    prompt = a_text(body.get("prompt"), "prompt")
    if not prompt:
        raise BadRequest("Invalid 'prompt': prompt cannot be an empty string.", param="prompt")
    form = body.get("response_format")
    if form not in (None, "url", "b64_json"):
        raise wrong_value("response_format", form, ("url", "b64_json"))
    return ClientImageRequest(
        model=model,
        request=ImageRequest(
            request_id="",
            model=model,
            prompt=prompt,
            images=tuple(images),
            mask=mask,
            n=an_integer(body.get("n"), "n", least=1) or 1,
            provider_options=_others(body, _READ, losses),
            size=_word(body, "size"),
            aspect_ratio=_word(body, "aspect_ratio"),
            quality=_word(body, "quality"),
            background=_word(body, "background"),
            output_format=_word(body, "output_format"),
        ),
        stream=body.get("stream") is True,
        as_url=form == "url",
        losses=tuple(losses),
    )


def read_image_edit(fields: Sequence[FormField]) -> ClientImageRequest:
    """Read the form of ``POST /v1/images/edits``.

    Raises:
        BadRequest: The request can't be read, or has no image.
    """
    body: JsonObject = {}
    images: list[ImageBlock] = []
    mask: ImageBlock | None = None
    for name, data, media_type in fields:
        if name in ("image", "image[]"):
            images.append(_file(name, data, media_type))
        elif name == "mask":
            mask = _file(name, data, media_type)
        else:
            body[name] = _value(data.decode("utf-8", "replace"))
    return _edited(body, images, mask)


def read_image_edit_json(body: JsonObject) -> ClientImageRequest:
    """Read the JSON of ``POST /v1/images/edits``. Images are data URLs, because nothing is fetched for a client.

    Raises:
        BadRequest: The request can't be read, or has no image.
    """
    rest = dict(body)
    entries, mask = rest.pop("images", None), rest.pop("mask", None)
    images = [_data_url(each, f"images[{at}]") for at, each in enumerate(a_list(entries or [], "images"))]
    return _edited(rest, images, None if mask is None else _data_url(mask, "mask"))


def _edited(body: JsonObject, images: Sequence[ImageBlock], mask: ImageBlock | None) -> ClientImageRequest:
    if not images:
        raise missing("image")
    return read_images(body, images, mask)


def _file(name: str, data: bytes, media_type: str | None) -> ImageBlock:
    image_media_type = media_type if media_type is not None and media_type.startswith("image/") else None
    try:
        return ImageBlock(data=data, media_type=image_media_type)
    except ValueError as error:
        raise BadRequest(f"Invalid '{name}': {error}", param=name) from None


def _data_url(value: Json, where: str) -> ImageBlock:
    url = value.get("image_url") if isinstance(value, dict) else value
    found = read_data_url(url) if isinstance(url, str) else None
    if found is None:
        raise BadRequest(f"Invalid '{where}': expected an image_url with data in base64.", param=where)
    return _file(where, found[1], found[0])


def _value(text: str) -> Json:
    """The JSON value of a form field."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text


def _word(body: JsonObject, name: str) -> str | None:
    value = body.get(name)
    return None if value is None or value == "auto" else a_text(value, name)


def write_images(
    client_request: ClientImageRequest, images: Sequence[GeneratedImage], usage: TokenUsage, *, created: int
) -> JsonObject:
    """The body of a reply.

    Args:
        client_request: The request.
        images: The images.
        usage: The tokens. If the provider bills by image, there are none.
        created: Seconds since the epoch.
    """
    body: JsonObject = {
        "created": created,
        "data": [_image(image, as_url=client_request.as_url) for image in images],
    }
    if images:
        body["output_format"] = _format(images[0])
    for name in ("size", "quality", "background"):
        value: str | None = getattr(client_request.request, name)
        if value is not None:
            body[name] = value
    return body | _image_usage(usage)


def write_image_stream(
    client_request: ClientImageRequest, images: Sequence[GeneratedImage], usage: TokenUsage, *, created: int
) -> bytes:
    """Write a streamed reply: one event for each image, without partial images. See `write_images`."""
    name = "image_edit.completed" if client_request.request.images else "image_generation.completed"
    events = []
    for image in images:
        event: JsonObject = {
            "type": name,
            "created_at": created,
            **_image(image, as_url=client_request.as_url),
            "output_format": _format(image),
            "size": client_request.request.size or "auto",
            "quality": client_request.request.quality or "auto",
            "background": client_request.request.background or "auto",
            **_image_usage(usage),
        }
        events.append(b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(event)))
    return b"".join(events)


def _image(image: GeneratedImage, *, as_url: bool) -> JsonObject:
    written: JsonObject = {}
    if image.data is None:
        written["url"] = image.url
    elif as_url:
        written["url"] = write_data_url(image.media_type, image.data)
    else:
        written["b64_json"] = b64encode(image.data).decode()
    if image.revised_prompt is not None:
        written["revised_prompt"] = image.revised_prompt
    return written


def _format(image: GeneratedImage) -> str:
    return image.media_type.removeprefix("image/").partition("+")[0]


def _image_usage(usage: TokenUsage) -> JsonObject:
    if not usage.total_tokens:
        return {}
    details = usage.details or {}
    prompt, output, cached = usage.total_input_tokens, usage.output_tokens, usage.cached_input_tokens
    cached_images = details.get("image_cache_read", 0)
    image_tokens, drawn = details.get("image_input", 0) + cached_images, details.get("image_output", 0)
    input_details: JsonObject = {"image_tokens": image_tokens, "text_tokens": prompt - image_tokens}
    written: JsonObject = {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output}
    if cached:
        input_details["cached_tokens"] = cached
        written["cached_tokens_details"] = {"cached_image_tokens": cached_images}
    written["input_tokens_details"] = input_details
    written["output_tokens_details"] = {"image_tokens": drawn, "text_tokens": output - drawn}
    return {"usage": written}
