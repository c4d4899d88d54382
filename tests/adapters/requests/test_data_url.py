"""Data URLs."""

from __future__ import annotations

import pytest

from callboard.adapters.requests.media import media_bytes, media_type_of, read_data_url, write_data_url
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("data:image/png;base64,eA==", ("image/png", b"x")),
        ("DATA:Text/Plain;charset=utf-8,a%20b", ("text/plain", b"a b")),
        ("data:,x", ("", b"x")),
        ("data:image/jpeg;base64,_9j-4A==", ("image/jpeg", b"\xff\xd8\xfe\xe0")),
        ("data:image/jpeg;base64,/9j+\n4A==", ("image/jpeg", b"\xff\xd8\xfe\xe0")),
        ("data:image/png;base64,eA", None),
        ("data:image/png", None),
        ("https://x.test/a,b", None),
    ],
)
def test_reading(url: str, found: tuple[str, bytes] | None) -> None:
    """Type and bytes, or nothing."""
    assert read_data_url(url) == found


@pytest.mark.parametrize(
    ("data", "true"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(8), "image/jpeg"),
        (b"GIF89a" + bytes(8), "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"neither of them", "image/bmp"),
    ],
)
def test_the_bytes_of_an_image_decide_its_type(data: bytes, true: str) -> None:
    """The label decides only if the bytes are of no known type. A data URL is read in the same way."""
    for block in (
        ImageBlock(data=data, media_type="IMAGE/BMP"),
        ImageBlock(url=write_data_url("image/bmp", data)),
    ):
        assert media_bytes(block) == (true, data)
        assert media_type_of(block) == true


def test_media_types_are_sent_without_parameters_and_capitals() -> None:
    """Parameters of audio stay, because they tell how the samples are stored."""
    text = DocumentBlock(data=b"x", media_type="Text/Plain; charset=utf-8")
    sound = AudioBlock(data=b"x", media_type="audio/pcm;rate=16000")
    assert (media_bytes(text), media_type_of(text)) == (("text/plain", b"x"), "text/plain")
    assert (media_bytes(sound), media_type_of(sound)) == (("audio/pcm;rate=16000", b"x"), "audio/pcm;rate=16000")
