"""What a request demands of its model and can't do without, held against what the model can do. Pure.

What the current turn itself asks must be there, or nothing is sent; older turns are fitted to the model, with a
report of what that lost (see `history`).
"""

from __future__ import annotations

from collections.abc import Iterator

from bus.errors import CapabilityError, InvalidRequestError, UnsupportedToolChoiceError
from bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from bus.values.messages import Message

from ..contract import AdapterCapabilities, CanonicalRequest
from ..requests.effort import EFFORTS
from ..requests.media import is_empty
from ..requests.text import current_turn

MEDIA = (ImageBlock, AudioBlock, DocumentBlock)
FORCING = ("required", "named")
"""The tool choices that demand a call."""


def check_demands(request: CanonicalRequest, capabilities: AdapterCapabilities | None, provider: str) -> None:
    """Hold a request against what its model can do; None can do everything.

    Raises:
        CapabilityError: The current turn demands what the model lacks.
        InvalidRequestError: The reasoning effort is none of those that there are.
    """
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
    """What of a message's media a model doesn't take, each in words that follow the model's name."""
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
        if accepted is not None and block.media_type is not None and block.media_type not in accepted:
            yield f"takes no {block.media_type} {kind}, only {', '.join(accepted)}"
