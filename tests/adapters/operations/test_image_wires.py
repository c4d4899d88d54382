"""Each wire of images: what is sent, what is read, what is refused before anything is sent."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AdapterError, CapabilityError, ImageBlock
from callboard.adapters.images import ImageRequest
from callboard.adapters.operations.media_wire import fit_image, read_ratio, size_of_ratio
from callboard.adapters.transport.bodies import FormPart, write_form
from callboard.bus.errors import ContentFilterError, InvalidRequestError, OutcomeUnknownError
from callboard.bus.values.base import JsonObject

from ...support.media_server import png
from .making import form, image_request, image_wire, maker, reply

pytestmark = pytest.mark.anyio

BOAT = ImageBlock(data=png())
BLOCKED = {"code": "moderation_blocked", "message": "no"}
PACKED = b64encode(png()).decode()


def written(kind: str, request: ImageRequest) -> JsonObject:
    wire = image_wire(kind, request.wire_model)
    body: JsonObject = msgspec.json.decode(
        wire.write(fit_image(request, wire.capabilities(request.wire_model)), kind).body
    )
    return body


def test_openai_s_images_are_asked_for_as_they_are_named_there() -> None:
    request = image_request(
        "openai:gpt-image-2", n=2, size="1536x864", quality="high", background="opaque", output_format="webp"
    )
    assert written("openai", request) == {
        "model": "gpt-image-2",
        "prompt": "A red boat.",
        "n": 2,
        "size": "1536x864",
        "quality": "high",
        "background": "opaque",
        "output_format": "webp",
    }


def test_an_edit_is_a_form_with_its_images_and_its_mask() -> None:
    wire = image_wire("openai", "gpt-image-2")
    call = wire.write(image_request("openai:gpt-image-2", images=[BOAT, BOAT], mask=BOAT, n=2), "openai")
    assert call.path == "/v1/images/edits"
    fields, files = form(call)
    assert fields == {"model": "gpt-image-2", "prompt": "A red boat.", "n": "2"}
    assert files == {
        "image[]": [("0.png", "image/png", png()), ("1.png", "image/png", png())],
        "mask": [("mask.png", "image/png", png())],
    }


def test_a_model_of_conversations_draws_with_its_tool() -> None:
    request = image_request(
        "openai:gpt-5", images=[BOAT], quality="low", provider_options={"openai": {"image_tool": {"model": "x"}}}
    )
    body = written("openai", request)
    assert body["tools"] == [{"type": "image_generation", "action": "edit", "quality": "low", "model": "x"}]
    assert body["tool_choice"] == {"type": "image_generation"}
    assert body["input"][0]["content"][1]["image_url"].startswith("data:image/png;base64,")
    assert body["store"] is False


def test_gemini_is_asked_for_images_in_its_parts() -> None:
    request = image_request("gemini:gemini-3-pro-image", images=[BOAT], size="2K", aspect_ratio="16:9")
    body = written("gemini", request)
    assert body["generationConfig"] == {
        "responseModalities": ["IMAGE"],
        "imageConfig": {"aspectRatio": "16:9", "imageSize": "2K"},
    }
    assert body["contents"][0]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": PACKED}}


@pytest.mark.parametrize(
    ("model", "aspect", "size"),
    [
        ("gpt-image-1.5", "3:2", "1536x1024"),
        ("gpt-image-1.5", "6:4", "1536x1024"),
        ("gpt-image-2", "1:1", "1024x1024"),
        ("gpt-image-2", "16:9", "1280x720"),
    ],
)
def test_an_aspect_ratio_becomes_a_size_where_there_are_only_sizes(model: str, aspect: str, size: str) -> None:
    assert written("openai", image_request(f"openai:{model}", aspect_ratio=aspect))["size"] == size


@given(width=st.integers(1, 30), height=st.integers(1, 30))
def test_the_size_of_a_ratio_has_exactly_that_ratio(width: int, height: int) -> None:
    ratio = read_ratio(f"{width}:{height}")
    assert ratio is not None
    found = size_of_ratio(ratio, 16)
    assert found[0] * height == found[1] * width
    assert found[0] % 16 == found[1] % 16 == 0


@pytest.mark.parametrize(
    ("kind", "model", "asked", "why"),
    [
        ("openai", "gpt-image-2", {"n": 11}, "at most 10"),
        ("openai", "gpt-image-2", {"size": "1000x1000"}, "multiples of 16"),
        ("openai", "gpt-image-2", {"size": "1600x160"}, "1:3 to 3:1"),
        ("openai", "gpt-image-2", {"size": "8000x4000"}, "at most 8294400 pixels"),
        ("openai", "gpt-image-1.5", {"size": "512x512"}, "no size '512x512'"),
        ("openai", "gpt-image-1.5", {"aspect_ratio": "16:9"}, "no aspect ratio"),
        ("openai", "gpt-image-2", {"aspect_ratio": "wide"}, "write it as 16:9"),
        ("openai", "gpt-image-2", {"aspect_ratio": "1:1", "size": "1024x1024"}, "not for both"),
        ("openai", "gpt-image-1.5", {"quality": "xhigh"}, "no quality 'xhigh'"),
        ("openai", "gpt-image-2", {"background": "transparent", "output_format": "jpeg"}, "JPEG"),
        ("openai", "gpt-image-2", {"images": [BOAT] * 17}, "takes 16 images"),
        ("openai", "gpt-image-2", {"images": [ImageBlock(data=b"x", media_type="image/gif")]}, "no image/gif"),
        ("openai", "gpt-image-2", {"images": [BOAT], "mask": ImageBlock(data=png(9, 9))}, "9x9"),
        ("openai", "gpt-image-2", {"prompt": "x" * 32_001}, "32000 characters"),
        ("openai", "gpt-5", {"n": 2}, "at most 1 "),
        ("gemini", "gemini-2.5-flash-image", {"n": 2}, "at most 1 "),
        ("gemini", "gemini-2.5-flash-image", {"size": "1K"}, "no size '1K'"),
        ("gemini", "gemini-2.5-flash-image", {"aspect_ratio": "7:5"}, "no aspect ratio 7:5"),
        ("gemini", "gemini-3-pro-image", {"output_format": "webp"}, "no output_format"),
        ("gemini", "gemini-3-pro-image", {"images": [BOAT], "mask": BOAT}, "can't edit-masked"),
    ],
)
async def test_what_a_model_has_not_is_refused_before_anything_is_sent(
    kind: str, model: str, asked: dict[str, object], why: str
) -> None:
    adapter, transport = maker(kind)
    with pytest.raises(CapabilityError, match=why):
        await adapter.make_images(image_request(f"{kind}:{model}", **asked))
    assert transport.requests == []


async def test_of_an_unknown_server_nothing_is_refused() -> None:
    adapter, transport = maker("openai_compatible", reply({"data": [{"url": "https://x.test/1.png"}]}))
    asked = image_request("openai_compatible:flux", n=50, size="7x7", quality="best")
    (image,) = (await adapter.make_images(asked)).images
    assert (image.url, image.data, image.width) == ("https://x.test/1.png", None, None)
    assert transport.requests[0].url == "https://api.openai.com/v1/images/generations"
    with pytest.raises(ValueError, match=r"https://x\.test/1\.png"):
        image.save("never.png")


async def test_tokens_of_text_and_of_images_come_in_buckets_of_their_own() -> None:
    usage = {
        "input_tokens": 50,
        "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
        "cached_tokens": 25,
        "cached_tokens_details": {"cached_text_tokens": 5, "cached_image_tokens": 20},
        "output_tokens": 300,
        "output_tokens_details": {"image_tokens": 272, "text_tokens": 28},
    }
    adapter, _ = maker(
        "openai", reply({"data": [{"b64_json": PACKED, "revised_prompt": "A boat"}], "usage": usage})
    )
    made = await adapter.make_images(image_request("openai:gpt-image-2"))
    found = made.usage
    assert (found.input_tokens, found.cached_input_tokens, found.output_tokens) == (25, 25, 300)
    assert found.details == {"image_input": 20, "image_cache_read": 20, "image_output": 272}
    assert (made.images[0].revised_prompt, made.images[0].height) == ("A boat", 1)


async def test_images_without_tokens_are_counted_as_images() -> None:
    adapter, _ = maker("openai_compatible", reply({"data": [{"b64_json": PACKED}, {"b64_json": PACKED}]}))
    made = await adapter.make_images(image_request("openai_compatible:flux", n=3))
    assert made.usage.details == {"image": 2}
    assert [warning.code for warning in made.warnings] == ["fewer_images"]


async def test_what_the_tool_used_is_not_billed_as_the_conversation_s_model() -> None:
    item = {"type": "image_generation_call", "result": PACKED, "output_format": "png", "revised_prompt": "Boat"}
    value = {
        "id": "resp_1",
        "model": "gpt-5",
        "output": [item],
        "usage": {"input_tokens": 30, "output_tokens": 9},
        "tool_usage": {"image_gen": {"input_tokens": 20, "output_tokens": 272}, "web_search": {"num_requests": 0}},
    }
    adapter, _ = maker("openai", reply(value))
    usage = (await adapter.make_images(image_request("openai:gpt-5"))).usage
    assert (usage.input_tokens, usage.output_tokens) == (30, 9)
    assert usage.details == {"image_tool_input": 20, "image_tool_output": 272}


async def test_a_reply_of_words_says_them_and_what_they_cost() -> None:
    value = {
        "candidates": [{"content": {"parts": [{"text": "I can't."}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3},
    }
    adapter, transport = maker("gemini", reply(value))
    with pytest.raises(InvalidRequestError, match="but words: I can't") as caught:
        await adapter.make_images(image_request("gemini:gemini-2.5-flash-image"))
    assert caught.value.usage is not None
    assert caught.value.usage.output_tokens == 3
    assert len(transport.requests) == 1


@pytest.mark.parametrize(
    ("kind", "model", "value"),
    [
        ("gemini", "gemini-2.5-flash-image", {"promptFeedback": {"blockReason": "SAFETY"}}),
        ("gemini", "gemini-2.5-flash-image", {"candidates": [{"finishReason": "IMAGE_SAFETY"}]}),
        (
            "openai",
            "gpt-5",
            {
                "output": [
                    {"type": "image_generation_call", "error": {"code": "moderation_blocked", "message": "no"}}
                ]
            },
        ),
        ("openai", "gpt-image-2", {"error": BLOCKED}),
    ],
)
async def test_what_would_not_be_drawn_is_a_content_filter_s_error(
    kind: str, model: str, value: JsonObject
) -> None:
    adapter, transport = maker(kind, reply(value))
    with pytest.raises(ContentFilterError):
        await adapter.make_images(image_request(f"{kind}:{model}"))
    assert len(transport.requests) == 1


@pytest.mark.parametrize("value", [{}, {"data": []}, {"data": [{"b64_json": "%%"}]}, {"data": 3}, []])
async def test_a_reply_without_an_image_is_an_error_and_not_asked_for_again(value: JsonObject) -> None:
    adapter, transport = maker("openai", reply(value))
    with pytest.raises(AdapterError) as caught:
        await adapter.make_images(image_request("openai:gpt-image-2"))
    assert isinstance(caught.value, InvalidRequestError | OutcomeUnknownError)
    assert len(transport.requests) == 1


def test_a_request_whose_parts_do_not_fit_together_cannot_be_made() -> None:
    for wrong in ({"n": 0}, {"mask": BOAT}, {"images": [ImageBlock(url="https://x.test/a.png")]}):
        with pytest.raises(ValueError, match=r"at least one|needs an image|given as bytes"):
            image_request("openai:gpt-image-2", **wrong)


@given(contents=st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_whatever_stands_in_a_form_is_read_as_it_was_written(contents: list[bytes]) -> None:
    parts = [FormPart(f"f{n}", data, f"{n}.bin", "application/octet-stream") for n, data in enumerate(contents)]
    body, media_type = write_form(parts)
    boundary = media_type.partition("boundary=")[2].encode()
    pieces = body.split(b"--" + boundary)
    assert [piece.partition(b"\r\n\r\n")[2][:-2] for piece in pieces[1:-1]] == contents
    assert write_form(parts) == (body, media_type)
