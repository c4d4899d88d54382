"""What is asked for images and videos is what the vendors' own types say such a request is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import CapabilityError, ImageBlock
from callboard.adapters.operations.media_wire import check_video, fit_image
from callboard.bus.values.base import JsonObject

from ..adapters.operations.making import form, image_request, image_wire, video_request, video_wire
from ..support.judges import (
    contents_faults,
    image_edits_faults,
    images_faults,
    responses_faults,
    video_parameters_faults,
    videos_faults,
)
from ..support.media_server import png

BOAT = ImageBlock(data=png())


@pytest.mark.parametrize(
    ("kind", "model", "judge"),
    [
        ("openai", "gpt-image-2", images_faults),
        ("openai", "gpt-image-1.5", images_faults),
        ("openai_compatible", "gpt-image-2", images_faults),
        ("openai", "gpt-5", responses_faults),
        ("gemini", "gemini-3-pro-image", contents_faults),
        ("gemini", "gemini-2.5-flash-image", contents_faults),
    ],
)
@given(
    inputs=st.integers(0, 2),
    masked=st.booleans(),
    n=st.integers(1, 2),
    size=st.sampled_from([None, "1024x1024", "2K"]),
    aspect=st.sampled_from([None, "16:9", "3:2"]),
    quality=st.sampled_from([None, "low", "high"]),
    background=st.sampled_from([None, "transparent", "opaque"]),
    output_format=st.sampled_from([None, "webp", "jpeg"]),
)
@settings(max_examples=40)
def test_requests_for_images_are_such_as_the_vendor_s_types_allow(
    kind: str,
    model: str,
    judge: Callable[[bytes], list[str]],
    inputs: int,
    masked: bool,
    n: int,
    size: str | None,
    aspect: str | None,
    quality: str | None,
    background: str | None,
    output_format: str | None,
) -> None:
    wire = image_wire(kind, model)
    request = image_request(
        f"{kind}:{model}",
        images=[BOAT] * inputs,
        mask=BOAT if masked and inputs else None,
        n=n,
        size=size,
        aspect_ratio=aspect,
        quality=quality,
        background=background,
        output_format=output_format,
    )
    try:
        call = wire.write(fit_image(request, wire.capabilities(model)), kind)
    except CapabilityError:
        return
    if "content-type" not in call.headers:
        assert judge(call.body) == []
        return
    fields, files = form(call)
    typed: JsonObject = {name: int(text) if name == "n" else text for name, text in fields.items()}
    assert image_edits_faults(typed) == []
    assert set(files) <= {"image", "image[]", "mask"}


@pytest.mark.parametrize(
    ("kind", "model", "judge"),
    [
        ("openai", "sora-2", videos_faults),
        ("openai", "sora-2-pro", videos_faults),
        ("gemini", "veo-3.1-generate-preview", video_parameters_faults),
        ("gemini", "veo-2.0-generate-001", video_parameters_faults),
        ("gemini", "of-tomorrow", video_parameters_faults),
    ],
)
@given(
    seconds=st.sampled_from([None, 4, 6, 8]),
    size=st.sampled_from([None, "1280x720", "720x1280", "1080x1920", "1792x1024"]),
    audio=st.sampled_from([None, True, False]),
    frame=st.booleans(),
)
@settings(max_examples=30)
def test_requests_for_videos_are_such_as_the_vendor_s_types_allow(
    kind: str,
    model: str,
    judge: Callable[[bytes | JsonObject], list[str]],
    seconds: int | None,
    size: str | None,
    audio: bool | None,
    frame: bool,
) -> None:
    wire = video_wire(kind)
    request = video_request(
        f"{kind}:{model}", seconds=seconds, size=size, audio=audio, first_frame=BOAT if frame else None
    )
    try:
        check_video(request, wire.capabilities(model))
        call = wire.create(request, kind)
    except CapabilityError:
        return
    if "content-type" not in call.headers:
        assert judge(call.body) == []
        return
    fields, files = form(call)
    assert judge(dict(fields)) == []
    assert set(files) == {"input_reference"}


@pytest.mark.parametrize(
    ("judge", "body"),
    [
        (images_faults, {"model": "m"}),
        (images_faults, {"prompt": "p", "quality": "best"}),
        (videos_faults, {"prompt": "p", "seconds": 8}),
        (videos_faults, {"prompt": "p", "audio": True}),
        (video_parameters_faults, {"instances": [], "parameters": {"seconds": 8}}),
        (video_parameters_faults, {"instances": [], "parameters": {}, "config": {}}),
    ],
)
def test_the_judges_find_what_is_wrong(judge: Callable[[bytes], list[str]], body: JsonObject) -> None:
    assert judge(msgspec.json.encode(body))
