"""A request for an image or a video as a form, for requests that carry files."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.operations.media_wire import input_bytes
from callboard.adapters.requests.encoding import encode_json
from callboard.adapters.transport.multipart import FormPart, write_form
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.json import Json, JsonObject


def form_call(path: str, fields: JsonObject, files: Sequence[FormPart]) -> WireCall:
    """The request of a form: its fields as text or as JSON, then the files. It is never sent twice, since it is
    paid for.
    """
    parts = [FormPart(name, _text(value).encode("utf-8", "replace")) for name, value in fields.items()]
    body, media_type = write_form([*parts, *files])
    return WireCall(path, body, headers={"content-type": media_type}, once=True)


def file_part(name: str, block: ImageBlock, filename: str) -> FormPart:
    """An image as a file of a form.

    Args:
        name: The field's name.
        block: The image.
        filename: The file's name without its suffix.
    """
    media_type, data = input_bytes(block)
    return FormPart(name, data, f"{filename}.{media_type.removeprefix('image/')}", media_type)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()
