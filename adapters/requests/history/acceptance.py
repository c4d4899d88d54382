"""What a target takes of a history's blocks, and in words why it doesn't take one. Pure."""

from __future__ import annotations

from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)

from ..fitted import Target
from ..media import is_empty, media_type_of


def refusal(block: ContentBlock, target: Target) -> str | None:
    """Why a user can't show a block to the target; None if one can."""
    match block:
        case OpaqueBlock():
            reason = foreign(block, target)
            return reason if reason or target.takes_opaque else "this protocol takes no such content"
        case ImageBlock():
            kind, accepts, types = "images", target.accepts_images, target.image_types
        case AudioBlock():
            kind, accepts, types = "audio", target.accepts_audio, target.audio_types
        case DocumentBlock():
            kind, accepts, types = "documents", target.accepts_documents, target.document_types
        case _:
            return None
    if not accepts:
        return f"the model takes no {kind}"
    if is_empty(block):
        return "there is nothing in it"
    media_type = media_type_of(block, target.fetches)
    if types is None or media_type is None or media_type in types:
        return None
    return f"{media_type or 'no media type'} is none of {', '.join(types)}"


def refusal_in_result(block: ImageBlock | DocumentBlock | OpaqueBlock, target: Target) -> str | None:
    """Why a tool's result can't hold a block; None if it can."""
    if reason := refusal(block, target):
        return reason
    kind = str(type(block).__struct_config__.tag)
    what = block.kind if isinstance(block, OpaqueBlock) else kind
    return None if kind in target.results_carry else f"a tool's result can't hold any {what} here"


def foreign(block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock, target: Target) -> str | None:
    """Why reasoning, or what only its provider understands, can't go to the target; None if it can."""
    raw = block.provider_raw
    origin = raw.provider if raw is not None else None
    unsigned = isinstance(block, ThinkingBlock) and block.signature is None
    if origin is None and target.adopts_signatures and not unsigned:
        origin = target.provider
    if origin != target.provider:
        return f"it belongs to {origin or 'an unknown provider'}"
    if isinstance(block, OpaqueBlock):
        return None
    if not target.replays_thinking:
        return "this protocol takes no reasoning back"
    if raw is not None and None not in (raw.model, target.model) and raw.model != target.model:
        return f"it belongs to the model {raw.model}"
    return None


def is_own_image(block: ImageBlock, target: Target) -> bool:
    """Whether the target made an image and takes it back as its own."""
    raw = block.provider_raw
    if not target.replays_images or raw is None or not _is_own(raw, target):
        return False
    return None in (raw.model, target.model) or raw.model == target.model


def keeps_blank(block: TextBlock, target: Target) -> bool:
    """Whether the target wants a text of its own back that holds nothing but blanks."""
    return target.keeps_own_blanks and _is_own(block.provider_raw, target)


def has_fields(block: TextBlock, target: Target) -> bool:
    """Whether the host gave a text fields for the target."""
    raw = block.provider_raw
    return _is_own(raw, target) and raw is not None and bool(raw.data)


def _is_own(raw: ProviderRaw | None, target: Target) -> bool:
    return raw is not None and raw.provider == target.provider
