"""The check of a request against the capabilities of its model. Pure.

If the model lacks an ability for the current turn, nothing is sent. Older turns are fitted to the model, and
losses are reported (see `history`).
"""

from __future__ import annotations

from collections.abc import Iterator

from callboard.bus.errors import CapabilityError, InvalidRequestError, UnsupportedToolChoiceError
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.messages import Message

from ..contract import AdapterCapabilities, CanonicalRequest
from ..requests.media import is_empty, media_type_of
from ..requests.settings import EFFORTS
from ..requests.text import current_turn

MEDIA = (ImageBlock, AudioBlock, DocumentBlock)
FORCING = ("required", "named")
"""The tool choices that require a call."""


def check_demands(request: CanonicalRequest, capabilities: AdapterCapabilities | None, provider: str) -> None:
    effort = request.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequestError(
            f"reasoning_effort {effort!r} is none of {', '.join(EFFORTS)}", request_id=request.request_id
        )
    if capabilities is None:
        return
    for lack in _lacks(request, capabilities):
        raise CapabilityError(f"{request.model} {lack}", provider=provider, request_id=request.request_id)
    choice = request.tool_choice
    if choice is not None and choice.mode in FORCING and not capabilities.supports_tool_choice:
        raise UnsupportedToolChoiceError(
            f"{request.model} can't be made to call a tool (tool choice {choice.mode!r})", provider=provider
        )


def _lacks(request: CanonicalRequest, capabilities: AdapterCapabilities) -> Iterator[str]:
    for message in current_turn(request.messages):
        media = [block for block in message.content if isinstance(block, MEDIA)]
        if media:
            yield from media_lacks(message, capabilities)
        if any(map(is_empty, media)):
            yield "can't be shown media without content"
    if request.tools and not capabilities.supports_tools:
        yield "can't call tools"
    if request.output_schema is not None and not capabilities.supports_structured_output:
        yield "can't be held to a schema: it has no structured output"


def media_lacks(message: Message, capabilities: AdapterCapabilities) -> Iterator[str]:
    """The media of a message that a model lacks, in words that follow the model's name."""
    for block in message.content:
        match block:
            case ImageBlock():
                kind, supported = "images", capabilities.supports_images
                accepted = capabilities.accepted_image_media_types
            case AudioBlock():
                kind, supported = "audio", capabilities.supports_audio
                accepted = capabilities.accepted_audio_media_types
            case DocumentBlock():
                kind, supported = "documents", capabilities.supports_documents
                accepted = capabilities.accepted_document_media_types
            case _:
                continue
        if not supported:
            yield f"takes no {kind}"
        media_type = media_type_of(block)
        if accepted is not None and media_type and media_type not in accepted:
            yield f"takes no {media_type} {kind}, only {', '.join(accepted)}"
