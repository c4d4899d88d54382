"""What Gemini's models take of a history, over either of its protocols."""

from __future__ import annotations

from callboard.adapters.requests.history import Target, ToolIdRule

from .data import Model
from .media import AUDIO_TYPES, DOCUMENT_TYPES, IMAGE_TYPES, SCHEMES

TOOL_IDS = ToolIdRule(max_length=64)


def target_of(
    provider: str, model: str, row: Model, *, keeps_own_blanks: bool = False, takes_system: bool = True
) -> Target:
    """What a model takes.

    Args:
        provider: The adapter's name.
        model: The model's name on the wire.
        row: What the table says of the model.
        keeps_own_blanks: As in `Target`.
        takes_system: As in `Target`.
    """
    return Target(
        provider=provider,
        model=model,
        tool_ids=TOOL_IDS,
        accepts_images=True,
        accepts_audio=row.media,
        accepts_documents=row.media,
        image_types=IMAGE_TYPES,
        audio_types=AUDIO_TYPES,
        document_types=DOCUMENT_TYPES,
        fetches=SCHEMES,
        results_carry=("image", "document", "opaque"),
        replays_thinking=True,
        replays_images=True,
        begins_with_user=True,
        keeps_own_blanks=keeps_own_blanks,
        takes_system=takes_system,
        takes_opaque=True,
    )
