"""Images for OpenAI's clients: read the request, run it, and write the images.

The reverse of `adapters.operations.openai_media`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence

import msgspec

from callboard.adapters.images import GeneratedImage, ImageRequest
from callboard.adapters.requests.content import read_data_url, write_data_url
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from ..engine import Engine
from ..operations.embeddings_and_images import ImageOptions
from .embeddings import OperationResult, openai_options
from .exchange import models_of
from .failures import BadRequest
from .http import JSON_TYPE, FormField
from .wire import LossReport, a_list, a_text, an_integer, missing, model_of, wrong_value


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


async def make_images(
    engine: Engine, client_request: ClientImageRequest, tags: Mapping[str, str]
) -> OperationResult:
    """Run ``POST /v1/images/generations`` and ``/v1/images/edits``."""
    request = client_request.request
    models = models_of(engine._runtime, client_request.model)
    options = ImageOptions(
        n=request.n,
        size=request.size,
        aspect_ratio=request.aspect_ratio,
        quality=request.quality,
        background=request.background,
        output_format=request.output_format,
        provider_options=request.provider_options,
        tags=tags,
    )
    if request.images:
        result = await engine.edit_image(
            request.prompt, request.images, mask=request.mask, model=models, **options
        )
    else:
        result = await engine.generate_image(request.prompt, model=models, **options)
    created = engine.clock.now_us() // 1_000_000
    if client_request.stream:
        body, kind = write_image_stream(client_request, result.images, result.usage, created=created), _EVENTS
    else:
        written = write_images(client_request, result.images, result.usage, created=created)
        body, kind = msgspec.json.encode(written), JSON_TYPE
    warnings = (*client_request.losses, *result.warnings)
    return OperationResult(body, result.usage, result.cost, result.request_id, warnings, kind)


_EVENTS = b"text/event-stream"

# --- Requests ---

_READ = (
    *("model", "prompt", "n", "size", "aspect_ratio", "quality", "background", "output_format"),
    *("stream", "partial_images", "response_format"),
)


def read_images(
    body: JsonObject, images: Sequence[ImageBlock] = (), mask: ImageBlock | None = None
) -> ClientImageRequest:
    """Read the body of ``POST /v1/images/generations``. The value ``auto`` means the provider's default.

    An edit has images, and may have a mask of the first one.
    """
    model, losses = model_of(body), LossReport()
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
            provider_options=openai_options(body, losses, *_READ),
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
    """Read the form of ``POST /v1/images/edits``."""
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
    return _edit(body, images, mask)


def read_image_edit_json(body: JsonObject) -> ClientImageRequest:
    """Read the JSON of ``POST /v1/images/edits``. Its images are data URLs, because no addresses are fetched."""
    rest = dict(body)
    entries, mask = rest.pop("images", None), rest.pop("mask", None)
    images = [_data_url(each, f"images[{at}]") for at, each in enumerate(a_list(entries or [], "images"))]
    return _edit(rest, images, None if mask is None else _data_url(mask, "mask"))


def _edit(body: JsonObject, images: Sequence[ImageBlock], mask: ImageBlock | None) -> ClientImageRequest:
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
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text


def _word(body: JsonObject, name: str) -> str | None:
    value = body.get(name)
    return None if value is None or value == "auto" else a_text(value, name)


# --- Replies ---


def write_images(
    client_request: ClientImageRequest, images: Sequence[GeneratedImage], usage: TokenUsage, *, created: int
) -> JsonObject:
    """The body of a reply. If the provider bills by image, there are no tokens. `created` is in seconds since the
    epoch.
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
