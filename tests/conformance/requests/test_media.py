"""Images, sounds and documents in the words of each wire, and those that are left out."""

from __future__ import annotations

import pytest

from callboard.bus.errors import CapabilityError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import AudioBlock, ContentBlock, DocumentBlock, ImageBlock, TextBlock
from callboard.bus.values.messages import Message

from ...support.wires import ChatWire, Wire
from .cases import CHAT, CLAUDE, GEMINI, LOST, OLLAMA, PNG, PNG_64, RESPONSES, TGI, Written

PDF = b"%PDF-1.7"
PDF_64 = "JVBERi0xLjc="
AT, PDF_AT, FILES = "https://x.test/a.webp?b=c", "https://x.test/a.pdf", "https://x.test/files/abc"
DATA = f"data:image/png;base64,{PNG_64}"


def seen(wire: Wire, *parts: Json) -> JsonObject:
    """A user's message that says See, and shows these."""
    match wire.name:
        case "gemini":
            return {"role": "user", "parts": [{"text": "See"}, *parts]}
        case "ollama":
            return {"role": "user", "content": "See", **({"images": list(parts)} if parts else {})}
        case "openai":
            return {"role": "user", "content": [{"type": "input_text", "text": "See"}, *parts]}
        case _:
            return {"role": "user", "content": [{"type": "text", "text": "See"}, *parts]}


def claude(kind: str, media_type: str, data: str, *, block: str = "image") -> JsonObject:
    return {"type": block, "source": {"type": kind, "media_type": media_type, "data": data}}


def claudes_url(block: str, url: str) -> JsonObject:
    return {"type": block, "source": {"type": "url", "url": url}}


def inline(media_type: str, data: str) -> JsonObject:
    return {"inlineData": {"mimeType": media_type, "data": data}}


def file(name: str, data: str) -> JsonObject:
    return {"type": "input_file", "filename": name, "file_data": data}


SHOWN: list[tuple[Wire, str, ContentBlock, Json]] = [
    *[(CLAUDE, name, block, part) for name, block, part in [
        ("image by url", ImageBlock(url=AT), claudes_url("image", AT)),
        ("image of no stated type", ImageBlock(data=b"\xff\xd8\xffx"), claude("base64", "image/jpeg", "/9j/eA==")),
        ("image of a type misspelt", ImageBlock(data=b"x", media_type="image/jpg"),
         claude("base64", "image/jpeg", "eA==")),
        ("image as a data url", ImageBlock(url=DATA), claude("base64", "image/png", PNG_64)),
        ("image as a plain data url", ImageBlock(url="data:image/gif,%78"), claude("base64", "image/gif", "eA==")),
        ("pdf", DocumentBlock(data=PDF), claude("base64", "application/pdf", PDF_64, block="document")),
        ("pdf by url", DocumentBlock(url=PDF_AT), claudes_url("document", PDF_AT)),
        ("text", DocumentBlock(url="data:text/plain,a%20b"),
         claude("text", "text/plain", "a b", block="document")),
        ("markdown", DocumentBlock(data="a☃".encode(), media_type="text/markdown"),
         claude("text", "text/plain", "a☃", block="document")),
    ]],
    *[(RESPONSES, name, block, part) for name, block, part in [
        ("image", ImageBlock(data=PNG), {"type": "input_image", "image_url": DATA, "detail": "auto"}),
        ("image by url", ImageBlock(url=AT, detail="low"),
         {"type": "input_image", "image_url": AT, "detail": "low"}),
        ("pdf", DocumentBlock(data=PDF, name="report.pdf"),
         file("report.pdf", f"data:application/pdf;base64,{PDF_64}")),
        ("nameless", DocumentBlock(data=b"a,b", media_type="text/csv"),
         file("document.csv", "data:text/csv;base64,YSxi")),
        ("pdf by url", DocumentBlock(url=PDF_AT), {"type": "input_file", "file_url": PDF_AT}),
        ("pdf as a data url", DocumentBlock(url="data:application/pdf;base64,JVBERi0x"),
         file("document.pdf", "data:application/pdf;base64,JVBERi0x")),
    ]],
    *[(CHAT, name, block, {"type": "image_url", "image_url": sent}) for name, block, sent in [
        ("image", ImageBlock(data=PNG, detail="low"), {"url": DATA, "detail": "low"}),
        ("image by url", ImageBlock(url=AT), {"url": AT}),
    ]],
    *[(GEMINI, name, block, part) for name, block, part in [
        ("image", ImageBlock(data=PNG), inline("image/png", PNG_64)),
        ("image of a type misspelt", ImageBlock(data=b"x", media_type="image/jpg"), inline("image/jpeg", "eA==")),
        ("image as a data url", ImageBlock(url=DATA), inline("image/png", PNG_64)),
        ("image by url", ImageBlock(url=AT), {"fileData": {"mimeType": "image/webp", "fileUri": AT}}),
        ("image by a url of no type", ImageBlock(url=FILES), {"fileData": {"fileUri": FILES}}),
        ("image in a bucket", ImageBlock(url="gs://b/a", media_type="image/png"),
         {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a"}}),
        ("sound", AudioBlock(data=b"ID3"), inline("audio/mp3", "SUQz")),
        ("sound of another name", AudioBlock(data=b"x", media_type="audio/x-wav"), inline("audio/wav", "eA==")),
        ("pdf", DocumentBlock(data=PDF), inline("application/pdf", PDF_64)),
        ("json", DocumentBlock(data=b"{}", media_type="application/json"), inline("text/plain", "e30=")),
    ]],
    (OLLAMA, "image", ImageBlock(data=PNG), PNG_64),
    (OLLAMA, "image as a data url", ImageBlock(url=DATA), PNG_64),
    (OLLAMA, "image as a plain data url", ImageBlock(url="data:image/png,%89PNG%0D%0A%1A%0A"), PNG_64),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "block", "part"), [(wire, block, part) for wire, _, block, part in SHOWN],
                         ids=[f"{wire.name}-{name}" for wire, name, *_ in SHOWN])  # fmt: skip
def test_media_go_in_the_form_that_the_wire_has_for_them(wire: Wire, block: ContentBlock, part: Json) -> None:
    """A data URL is taken apart where the wire's own addresses are fetched."""
    written = Written(wire, Message.user([TextBlock("See"), block]))
    assert written.history == [seen(wire, part)]
    assert written.codes == []


LEFT_OUT: list[tuple[Wire, ContentBlock]] = [
    *[(CLAUDE, block) for block in (
        ImageBlock(url="file:///etc/passwd"), ImageBlock(url="/etc/passwd"), ImageBlock(url="data:nothing"),
        ImageBlock(url="data:image/png;base64,e"), ImageBlock(data=b"x", media_type="image/tiff"),
        DocumentBlock(data=b"PK", media_type="application/zip"),
        DocumentBlock(data=b"\xff\xfe", media_type="text/plain"),
        DocumentBlock(data=b" ", media_type="text/plain"), DocumentBlock(url="file:///etc/passwd"),
        DocumentBlock(url="https://x.test/a.csv", media_type="text/csv"))],
    *[(GEMINI, block) for block in (
        ImageBlock(data=b"GIF89a"), ImageBlock(url="data:image/gif;base64,R0lG"), ImageBlock(url="file:///etc/passwd"),
        ImageBlock(url="data:image/png;base64,x"), AudioBlock(data=b"x", media_type="audio/midi"),
        DocumentBlock(data=b"x", media_type="application/zip"))],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "block"), LEFT_OUT, ids=[f"{row[0].name}-{n}" for n, row in enumerate(LEFT_OUT)])
def test_media_that_would_spoil_the_history_are_left_out_and_reported(wire: Wire, block: ContentBlock) -> None:
    """Nothing is read from disk for a URL; a message of nothing else keeps a note."""
    written = Written(wire, Message.user([TextBlock("See"), block]))
    assert (written.history, written.codes) == ([seen(wire)], [LOST])
    alone = Written(wire, Message.user([block]), Message.assistant("What?"), Message.user("This"))
    assert "left out: it can't be shown here" in str(alone.history[0])
    assert alone.codes == [LOST]


REFUSED: list[tuple[Wire, ContentBlock]] = [
    (ChatWire("ollama"), ImageBlock(url=AT)),
    (OLLAMA, ImageBlock(url=AT)),
    (OLLAMA, ImageBlock(url="data:image/png;base64,iVBO?Rw0KGgo=")),
    (OLLAMA, ImageBlock(data=b"GIF89a")),
    (OLLAMA, AudioBlock(url="data:,x")),
    (TGI, ImageBlock(url=AT)),
]


@pytest.mark.parametrize(("wire", "block"), REFUSED, ids=[f"{row[0].name}-{n}" for n, row in enumerate(REFUSED)])
def test_media_that_can_t_be_shown_are_refused_now_and_lost_later(wire: Wire, block: ContentBlock) -> None:
    """The current turn needs them, and is refused before any network; of older ones the response tells."""
    with pytest.raises(CapabilityError):
        Written(wire, Message.user([TextBlock("See"), block]))
    past = Written(wire, Message.user([TextBlock("See"), block]), Message.assistant("So."), Message.user("And?"))
    assert past.codes == [LOST]
    assert "x.test" not in str(past.body)
