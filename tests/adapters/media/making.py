"""Requests for images and videos, adapters whose network is a script, and forms read by the standard library."""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP

import msgspec

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.conformance.fake_http import FakeReply, FakeTransport
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.images import ImageRequest
from callboard.adapters.operations.media_wire import ImageWire, VideoWire
from callboard.adapters.videos import VideoRequest
from callboard.bus.clock import Clock
from callboard.bus.values.json import Json

from ...support.virtual_time import FakeClock


def maker(
    kind: str, *replies: FakeReply | Exception, clock: Clock | None = None, **config: object
) -> tuple[HttpAdapter, FakeTransport]:
    """An adapter of that type whose network is a script."""
    transport = FakeTransport(*replies)
    own = {"api_key_env": "OPENAI_API_KEY"} if kind == "openai_compatible" else {}
    settings = AdapterConfig(**{"api_key": "a-secret-key", **own, **config})  # type: ignore[arg-type]
    adapter = create_adapter(kind, settings, name=kind, clock=clock or FakeClock(), transport=transport)
    assert isinstance(adapter, HttpAdapter)
    return adapter, transport


def image_wire(kind: str, model: str) -> ImageWire:
    """How an adapter of that type makes images with a model."""
    wire_of = maker(kind)[0].wire.other_wires().images
    assert wire_of is not None
    return wire_of(model)


def video_wire(kind: str) -> VideoWire:
    """How an adapter of that type makes videos."""
    wire = maker(kind)[0].wire.other_wires().videos
    assert wire is not None
    return wire


def image_request(model: str, **changes: object) -> ImageRequest:
    fields = {"request_id": "req_1", "model": model, "prompt": "A red boat.", **changes}
    return ImageRequest(**fields)  # type: ignore[arg-type]


def video_request(model: str, **changes: object) -> VideoRequest:
    fields = {"request_id": "req_1", "model": model, "prompt": "A red boat.", **changes}
    return VideoRequest(**fields)  # type: ignore[arg-type]


def reply(value: Json, status: int = 200, **headers: str) -> FakeReply:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return FakeReply(
        msgspec.json.encode(value), status=status, headers={"content-type": "application/json", **named}
    )


def form(call: WireCall) -> tuple[dict[str, str], dict[str, list[tuple[str, str, bytes]]]]:
    """A form's fields, and of its files by their fields the name, the media type and the bytes."""
    head = f"content-type: {call.headers['content-type']}\r\n\r\n".encode()
    fields: dict[str, str] = {}
    files: dict[str, list[tuple[str, str, bytes]]] = {}
    message = BytesParser(policy=HTTP).parsebytes(head + call.body)
    assert message.is_multipart()
    for part in message.iter_parts():  # type: ignore[attr-defined]
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if part.get_filename() is None:
            fields[name] = content.decode()
        else:
            files.setdefault(name, []).append((part.get_filename(), part.get_content_type(), content))
    return fields, files
