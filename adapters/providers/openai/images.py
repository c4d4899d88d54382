"""Images by the ``image_generation`` tool of OpenAI's Responses API.

The tool is forced, and the conversation's model writes its prompt. The tool has a model of its own:
``provider_options["openai"]["image_tool"]`` may name it and is merged into the tool. One image a request. The
tool's usage has other prices and is counted as pieces: ``image_tool_input``, ``image_tool_image_input``,
``image_tool_cached`` and ``image_tool_output`` tokens, or ``image_tool`` images. Without rates, the call is
unpriced.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.images import GeneratedImage, ImageCapabilities, ImageRequest
from callboard.adapters.operations.media_wire import ImageReply, from_base64, input_bytes
from callboard.adapters.requests.host_options import merge_options
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, details_of

from ...protocols.openai_media import OpenAIImages, read_usage
from ...refusals.classify import error_without_status, read_error_value
from ...requests.media import write_data_url
from ...requests.settings import own_options
from ...requests.text import encode_json
from .data import CODES
from .wire import drawn_with

TOOL = "image_generation"
IMAGE_TOOL = "image_tool"
"""The key of the tool's own fields in ``provider_options``."""

_COMMON = msgspec.structs.replace(OpenAIImages().capabilities("gpt-image-"), max_images=1)


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    result: str | None = None
    output_format: str | None = None
    revised_prompt: str | None = None
    error: Json = None
    content: Json = None


class _Reply(msgspec.Struct, gc=False):
    output: list[_Item] | None = None
    model: str | None = None
    id: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    tool_usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Json = None


_decode = msgspec.json.Decoder(_Reply).decode


class ResponsesImages(msgspec.Struct, frozen=True):
    """``/v1/responses`` with the one tool, and nothing stored."""

    path: str = "/v1/responses"

    def capabilities(self, model: str) -> ImageCapabilities:
        return _COMMON

    def write(self, request: ImageRequest, provider: str) -> WireCall:
        tool: JsonObject = {"type": TOOL, "action": "edit" if request.images else "generate"}
        for name in ("size", "quality", "background", "output_format"):
            value: str | None = getattr(request, name)
            if value is not None:
                tool[name] = value
        if request.mask is not None:
            tool["input_image_mask"] = {"image_url": write_data_url(*input_bytes(request.mask))}
        parts: list[Json] = [{"type": "input_text", "text": request.prompt}]
        for block in request.images:
            url = write_data_url(*input_bytes(block))
            parts.append({"type": "input_image", "image_url": url, "detail": block.detail or "auto"})
        body: JsonObject = {
            "model": request.wire_model,
            "input": [{"type": "message", "role": "user", "content": parts}],
            "tools": [tool],
            "tool_choice": {"type": TOOL},
            "store": False,
        }
        for options in own_options(request, "openai", provider):
            more = options.pop(IMAGE_TOOL, {})
            if not isinstance(more, Mapping):
                raise InvalidRequestError(f"provider_options: {IMAGE_TOOL} must be an object")
            tool.update(more)
            merge_options(body, options)
        return WireCall(self.path, encode_json(body), once=True)

    def read(self, body: bytes, request: ImageRequest) -> ImageReply:
        reply = _decode(body)
        if reply.error:
            raise error_without_status(read_error_value({"error": reply.error}), CODES, "")
        images: list[GeneratedImage] = []
        said: list[str] = []
        for item in reply.output or ():
            if item.type == f"{TOOL}_call" and item.result:
                made = item.output_format or request.output_format or "png"
                images.append(from_base64(item.result, f"image/{made}", item.revised_prompt))
            elif item.error:
                raise error_without_status(read_error_value({"error": item.error}), CODES, "")
            else:
                said += _texts(item.content)
        usage = _usage(reply, len(images))
        return ImageReply(images, usage, reply.model, reply.id, said="".join(said))


def _texts(content: Json) -> list[str]:
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def _usage(reply: _Reply, images: int) -> TokenUsage | None:
    own = read_usage(reply.usage)
    details = drawn_with(reply.tool_usage) or details_of(image_tool=images)
    if own is None:
        return TokenUsage(details=details) if details else None
    return msgspec.structs.replace(own, details=details)
