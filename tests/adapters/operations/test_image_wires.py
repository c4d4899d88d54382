"""Each wire of images and videos: requests, replies, and requests that are refused before they are sent."""

from __future__ import annotations

from base64 import b64encode

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AdapterError, CapabilityError, ImageBlock
from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.images import ImageRequest, fit_image, read_ratio, size_of_ratio
from callboard.adapters.operations.wires import video_usage
from callboard.adapters.transport.transport import FormPart, write_form
from callboard.adapters.videos import PollPolicy, VideoJob, VideoTerms, is_whole_mp4, wait_for_video
from callboard.bus.errors import (
    AuthError,
    ContentFilterError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OutcomeUnknownError,
    RateLimitError,
    ServerError,
    StreamError,
)
from callboard.bus.values.base import Json, JsonObject

from ...support.media_server import mp4, png
from .making import form, image_request, image_wire, maker, reply, video_request, video_wire

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


def test_images_are_requested_in_each_api_s_form() -> None:
    """The forms are OpenAI's fields, a form with a mask for an edit, a tool of a conversation, and Gemini's
    parts.
    """
    asked = {"n": 2, "size": "1536x864", "quality": "high", "background": "opaque", "output_format": "webp"}
    said = {"model": "gpt-image-2", "prompt": "A red boat.", **asked}
    assert written("openai", image_request("openai:gpt-image-2", **asked)) == said
    wire = image_wire("openai", "gpt-image-2")
    call = wire.write(image_request("openai:gpt-image-2", images=[BOAT, BOAT], mask=BOAT, n=2), "openai")
    assert call.path == "/v1/images/edits"
    fields, files = form(call)
    assert fields == {"model": "gpt-image-2", "prompt": "A red boat.", "n": "2"}
    assert files == {
        "image[]": [("0.png", "image/png", png()), ("1.png", "image/png", png())],
        "mask": [("mask.png", "image/png", png())],
    }
    options: JsonObject = {"openai": {"image_tool": {"model": "x"}}}
    body = written("openai", image_request("openai:gpt-5", images=[BOAT], quality="low", provider_options=options))
    assert body["tools"] == [{"type": "image_generation", "action": "edit", "quality": "low", "model": "x"}]
    assert (body["tool_choice"], body["store"]) == ({"type": "image_generation"}, False)
    assert body["input"][0]["content"][1]["image_url"].startswith("data:image/png;base64,")
    body = written(
        "gemini", image_request("gemini:gemini-3-pro-image", images=[BOAT], size="2K", aspect_ratio="16:9")
    )
    config = {"responseModalities": ["IMAGE"], "imageConfig": {"aspectRatio": "16:9", "imageSize": "2K"}}
    assert body["generationConfig"] == config
    assert body["contents"][0]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": PACKED}}


@pytest.mark.parametrize(("kind", "names"), [
    ("openai", ("seconds", "size", "audio", "n")),
    ("gemini", ("durationSeconds", "resolution", "generateAudio", "sampleCount")),
])  # fmt: skip
def test_the_price_depends_on_arguments_only(kind: str, names: tuple[str, ...]) -> None:
    """Budgets and costs use the arguments, so `provider_options` must not replace them."""
    for name in names:
        request = video_request(f"{kind}:m", provider_options={kind: {"seed": 1, name: 8}})
        with pytest.raises(InvalidRequestError, match=f"can't set '{name}', because the price depends on it"):
            video_wire(kind).create(request, kind)
    with pytest.raises(InvalidRequestError, match="use n="):
        written("openai", image_request("openai:gpt-image-2", provider_options={"openai": {"n": 10}}))


@pytest.mark.parametrize(("model", "aspect", "size"), [
    ("gpt-image-1.5", "3:2", "1536x1024"),
    ("gpt-image-1.5", "6:4", "1536x1024"),
    ("gpt-image-2", "1:1", "1024x1024"),
    ("gpt-image-2", "16:9", "1280x720"),
])  # fmt: skip
def test_an_aspect_ratio_becomes_a_size_where_there_are_only_sizes(model: str, aspect: str, size: str) -> None:
    assert written("openai", image_request(f"openai:{model}", aspect_ratio=aspect))["size"] == size


@given(width=st.integers(1, 30), height=st.integers(1, 30))
def test_the_size_of_a_ratio_has_exactly_that_ratio(width: int, height: int) -> None:
    ratio = read_ratio(f"{width}:{height}")
    assert ratio is not None
    found = size_of_ratio(ratio, 16)
    assert found[0] * height == found[1] * width
    assert found[0] % 16 == found[1] % 16 == 0


VEO = "veo-3.1-generate-preview"
GIF = ImageBlock(data=b"x", media_type="image/gif")
NOT_MADE: list[tuple[str, dict[str, object], str]] = [
    ("openai:gpt-image-2", {"n": 11}, "at most 10"),
    ("openai:gpt-image-2", {"size": "1000x1000"}, "multiples of 16"),
    ("openai:gpt-image-2", {"size": "1600x160"}, "1:3 to 3:1"),
    ("openai:gpt-image-2", {"size": "8000x4000"}, "at most 8294400 pixels"),
    ("openai:gpt-image-1.5", {"size": "512x512"}, "no size '512x512'"),
    ("openai:gpt-image-1.5", {"aspect_ratio": "16:9"}, "no aspect ratio"),
    ("openai:gpt-image-2", {"aspect_ratio": "wide"}, "write it as 16:9"),
    ("openai:gpt-image-2", {"aspect_ratio": "1:1", "size": "1024x1024"}, "not both"),
    ("openai:gpt-image-1.5", {"quality": "xhigh"}, "no quality 'xhigh'"),
    ("openai:gpt-image-2", {"background": "transparent", "output_format": "jpeg"}, "JPEG"),
    ("openai:gpt-image-2", {"images": [BOAT] * 17}, "accepts 16 images"),
    ("openai:gpt-image-2", {"images": [GIF]}, "not accept image/gif"),
    ("openai:gpt-image-2", {"images": [BOAT], "mask": ImageBlock(data=png(9, 9))}, "9x9"),
    ("openai:gpt-image-2", {"prompt": "x" * 32_001}, "32000 characters"),
    ("openai:gpt-5", {"n": 2}, "at most 1 "),
    ("gemini:gemini-2.5-flash-image", {"n": 2}, "at most 1 "),
    ("gemini:gemini-2.5-flash-image", {"size": "1K"}, "no size '1K'"),
    ("gemini:gemini-2.5-flash-image", {"aspect_ratio": "7:5"}, "no aspect ratio 7:5"),
    ("gemini:gemini-3-pro-image", {"output_format": "webp"}, "no output_format"),
    ("gemini:gemini-3-pro-image", {"images": [BOAT], "mask": BOAT}, "can't edit-masked"),
    ("openai:sora-2", {"seconds": 5}, "offers 4, 8, 12"),
    ("openai:sora-2", {"size": "1792x1024"}, "no size"),
    ("openai:sora-2", {"audio": False}, "without sound"),
    ("openai:sora-2", {"first_frame": GIF}, "image/gif"),
    ("gemini:veo-2.0-generate-001", {"audio": True}, "can't make sound"),
    (f"gemini:{VEO}", {"seconds": 12}, "offers 4, 6, 8"),
    ("gemini:veo-of-tomorrow", {"size": "500x500"}, "is unknown"),
]


@pytest.mark.parametrize(("model", "asked", "why"), NOT_MADE)
async def test_what_a_model_has_not_is_refused_before_anything_is_sent(
    model: str, asked: dict[str, object], why: str
) -> None:
    adapter, transport = maker(model.partition(":")[0])
    with pytest.raises(CapabilityError, match=why):
        if "sora" in model or "veo" in model:
            await adapter.create_video(video_request(model, **asked))
        else:
            await adapter.make_images(image_request(model, **asked))
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
        "input_tokens": 50, "input_tokens_details": {"text_tokens": 10, "image_tokens": 40}, "cached_tokens": 25,
        "cached_tokens_details": {"cached_text_tokens": 5, "cached_image_tokens": 20}, "output_tokens": 300,
        "output_tokens_details": {"image_tokens": 272, "text_tokens": 28},
    }  # fmt: skip
    adapter, _ = maker(
        "openai", reply({"data": [{"b64_json": PACKED, "revised_prompt": "A boat"}], "usage": usage})
    )
    made = await adapter.make_images(image_request("openai:gpt-image-2"))
    found = made.usage
    assert (found.input_tokens, found.cached_input_tokens, found.output_tokens) == (25, 25, 300)
    assert found.details == {"image_input": 20, "image_cache_read": 20, "image_output": 272}
    assert (made.images[0].revised_prompt, made.images[0].height) == ("A boat", 1)


async def test_images_without_tokens_of_the_model_are_billed() -> None:
    """Images without reported tokens are counted. The tool's tokens are not those of the conversation's model."""
    adapter, _ = maker("openai_compatible", reply({"data": [{"b64_json": PACKED}, {"b64_json": PACKED}]}))
    made = await adapter.make_images(image_request("openai_compatible:flux", n=3))
    assert made.usage.details == {"image": 2}
    assert [warning.code for warning in made.warnings] == ["fewer_images"]
    item = {"type": "image_generation_call", "result": PACKED, "output_format": "png", "revised_prompt": "Boat"}
    tools = {"image_gen": {"input_tokens": 20, "output_tokens": 272}, "web_search": {"num_requests": 0}}
    value = {"id": "resp_1", "model": "gpt-5", "output": [item], "usage": {"input_tokens": 30, "output_tokens": 9}}
    adapter, _ = maker("openai", reply({**value, "tool_usage": tools}))
    usage = (await adapter.make_images(image_request("openai:gpt-5"))).usage
    assert (usage.input_tokens, usage.output_tokens) == (30, 9)
    assert usage.details == {"image_tool_input": 20, "image_tool_output": 272}


async def test_words_instead_of_an_image_are_in_the_error_with_their_usage() -> None:
    """A refusal is a part of its own. An image has the requested type, unless the item has another."""
    said = {"content": {"parts": [{"text": "I can't."}]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 3}
    adapter, transport = maker("gemini", reply({"candidates": [said], "usageMetadata": usage}))
    with pytest.raises(InvalidRequestError, match="instead of an image: I can't") as caught:
        await adapter.make_images(image_request("gemini:gemini-2.5-flash-image"))
    assert caught.value.usage is not None
    assert (caught.value.usage.output_tokens, len(transport.requests)) == (3, 1)
    none: JsonObject = {"type": "image_generation_call", "result": None}
    words = {"type": "message", "content": [{"type": "refusal", "refusal": "I won't."}]}
    adapter, _ = maker("openai", reply({"output": [none, words]}))
    with pytest.raises(InvalidRequestError, match="instead of an image: I won't"):
        await adapter.make_images(image_request("openai:gpt-5"))
    adapter, _ = maker("openai", reply({"output": [{**none, "result": "AAAA"}]}))
    made = await adapter.make_images(image_request("openai:gpt-5", output_format="webp"))
    assert [image.media_type for image in made.images] == ["image/webp"]


@pytest.mark.parametrize(("kind", "model", "value"), [
    ("gemini", "gemini-2.5-flash-image", {"promptFeedback": {"blockReason": "SAFETY"}}),
    ("gemini", "gemini-2.5-flash-image", {"candidates": [{"finishReason": "IMAGE_SAFETY"}]}),
    ("openai", "gpt-5", {"output": [{"type": "image_generation_call",
        "error": {"code": "moderation_blocked", "message": "no"}}]}),
    ("openai", "gpt-image-2", {"error": BLOCKED}),
])  # fmt: skip
async def test_what_would_not_be_drawn_is_a_content_filter_s_error(
    kind: str, model: str, value: JsonObject
) -> None:
    adapter, transport = maker(kind, reply(value))
    with pytest.raises(ContentFilterError):
        await adapter.make_images(image_request(f"{kind}:{model}"))
    assert len(transport.requests) == 1


async def test_a_reply_without_an_image_is_an_error_and_not_asked_for_again() -> None:
    for value in ({}, {"data": []}, {"data": [{"b64_json": "%%"}]}, {"data": 3}, []):
        adapter, transport = maker("openai", reply(value))
        with pytest.raises(AdapterError) as caught:
            await adapter.make_images(image_request("openai:gpt-image-2"))
        assert isinstance(caught.value, InvalidRequestError | OutcomeUnknownError)
        assert len(transport.requests) == 1


async def test_a_chat_model_s_failed_response_is_not_asked_for_again() -> None:
    """The response gives no reason, and the provider may bill it."""
    adapter, transport = maker("openai", reply({"object": "response", "status": "failed", "output": []}))
    with pytest.raises(OutcomeUnknownError):
        await adapter.make_images(image_request("openai:gpt-5"))
    assert len(transport.requests) == 1
    drawn: JsonObject = {"type": "image_generation_call", "result": "AAAA"}
    adapter, _ = maker("openai", reply({"object": "response", "status": "failed", "output": [drawn]}))
    assert len((await adapter.make_images(image_request("openai:gpt-5"))).images) == 1


def test_a_request_whose_parts_do_not_fit_together_cannot_be_made() -> None:
    for wrong in ({"n": 0}, {"mask": BOAT}, {"images": [ImageBlock(url="https://x.test/a.png")]}):
        with pytest.raises(ValueError, match=r"at least 1|needs an image|must be bytes"):
            image_request("openai:gpt-image-2", **wrong)


@given(contents=st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_any_value_in_a_form_is_read_as_it_was_written(contents: list[bytes]) -> None:
    parts = [FormPart(f"f{n}", data, f"{n}.bin", "application/octet-stream") for n, data in enumerate(contents)]
    body, media_type = write_form(parts)
    boundary = media_type.partition("boundary=")[2].encode()
    pieces = body.split(b"--" + boundary)
    assert [piece.partition(b"\r\n\r\n")[2][:-2] for piece in pieces[1:-1]] == contents
    assert write_form(parts) == (body, media_type)


# -- Each wire of videos: requests, replies and refusals; and the times of polls, in virtual time.


FRAME = ImageBlock(data=png())


async def test_openai_s_videos_are_asked_for_in_json_and_with_a_first_frame_as_a_form() -> None:
    made = {"id": "video_1", "status": "queued", "model": "sora-2", "seconds": "8", "size": "1280x720"}
    adapter, transport = maker("openai", reply(made, x_request_id="theirs"))
    job = await adapter.create_video(video_request("openai:sora-2", seconds=8, size="1280x720"))
    asked = {"model": "sora-2", "prompt": "A red boat.", "seconds": "8", "size": "1280x720"}
    assert msgspec.json.decode(transport.requests[0].body) == asked
    assert (job.id, job.status, job.progress, job.provider_request_id) == ("video_1", "queued", None, "theirs")
    assert job.terms == VideoTerms(8, "1280x720", True)
    call = video_wire("openai").create(video_request("openai:sora-2", first_frame=FRAME), "openai")
    fields, files = form(call)
    assert fields == {"model": "sora-2", "prompt": "A red boat."}
    assert files == {"input_reference": [("first-frame.png", "image/png", png())]}
    assert transport.requests[0].once
    assert call.once


async def test_veo_is_asked_for_a_ratio_and_a_resolution() -> None:
    adapter, transport = maker("gemini", reply({"name": f"models/{VEO}/operations/o1"}))
    request = video_request(f"gemini:{VEO}", seconds=6, size="1080x1920", first_frame=FRAME)
    job = await adapter.create_video(request)
    (sent,) = transport.requests
    body = msgspec.json.decode(sent.body)
    assert sent.url.endswith(f"/v1beta/models/{VEO}:predictLongRunning")
    assert body["parameters"] == {"durationSeconds": 6, "aspectRatio": "9:16", "resolution": "1080p"}
    assert body["instances"][0]["image"]["mimeType"] == "image/png"
    assert (job.id, job.status) == (f"models/{VEO}/operations/o1", "in_progress")


@pytest.mark.parametrize(("said", "status", "progress"), [
    ({"status": "queued", "progress": 0}, "queued", 0.0),
    ({"status": "in_progress", "progress": 42}, "in_progress", 0.42),
    ({"status": "in_progress", "progress": 400}, "in_progress", 1.0),
    ({"status": "completed"}, "completed", 1.0),
    ({"status": "thinking_it_over"}, "in_progress", None),
])  # fmt: skip
async def test_the_status_of_a_job(said: JsonObject, status: str, progress: float | None) -> None:
    adapter, transport = maker("openai", reply({"id": "video_1", **said}))
    job = await adapter.retrieve_video("video_1", model="openai:sora-2")
    assert (job.status, job.progress, job.done) == (status, progress, status == "completed")
    (sent,) = transport.requests
    assert (sent.method, sent.url) == ("GET", "https://api.openai.com/v1/videos/video_1")


async def test_a_completed_job_is_billed_by_its_reported_output() -> None:
    said = {"id": "v", "status": "completed", "model": "sora-2-pro", "seconds": "12", "size": "1792x1024"}
    adapter, _ = maker("openai", reply({**said, "expires_at": 4_000_000_000}))
    job = await adapter.retrieve_video("v", model="openai:sora-2-pro")
    assert job.usage is not None
    assert job.usage.details == {"video_second_1024p": 12}
    assert job.expires_at == 4_000_000_000


async def test_of_google_s_job_the_length_is_what_was_asked_for_or_what_the_model_makes() -> None:
    done = {
        "done": True,
        "response": {"generateVideoResponse": {"generatedSamples": [{"video": {"uri": "https://f"}}]}},
    }
    adapter, _ = maker("gemini", *(reply({"name": "o", **done}) for _ in range(2)))
    asked = await adapter.retrieve_video("o", model=f"gemini:{VEO}", terms=VideoTerms(4, "1920x1080"))
    usual = await adapter.retrieve_video("o", model=f"gemini:{VEO}")
    assert asked.usage is not None
    assert usual.usage is not None
    assert (asked.usage.details, usual.usage.details) == ({"video_second_1080p": 4}, {"video_second": 8})
    assert asked.addresses == {"video": "https://f"}


@pytest.mark.parametrize(("terms", "pieces"), [
    (VideoTerms(), {"video": 1}),
    (VideoTerms(8), {"video_second": 8}),
    (VideoTerms(8, "720x1280", True), {"video_second": 8}),
    (VideoTerms(8, "3840x2160", False), {"video_second_2160p_silent": 8}),
])  # fmt: skip
def test_the_name_of_the_rate_has_the_size_and_the_sound(terms: VideoTerms, pieces: dict[str, int]) -> None:
    assert video_usage(terms).details == pieces


@pytest.mark.parametrize(
    ("kind", "said", "error"),
    [
        ("openai", {"id": "v", "status": "failed", "error": {"code": "moderation_blocked", "message": "no"}},
         ContentFilterError),
        ("gemini", {"name": "o", "done": True, "error": {
            "code": 3, "message": "no", "status": "INVALID_ARGUMENT"}}, InvalidRequestError),
        ("gemini", {"name": "o", "done": True, "response": {"generateVideoResponse": {
            "raiMediaFilteredCount": 1, "raiMediaFilteredReasons": ["no"]}}}, ContentFilterError),
        ("gemini", {"name": "o", "done": True}, AdapterError),
    ],
)  # fmt: skip
async def test_why_a_job_failed(kind: str, said: JsonObject, error: type[Exception]) -> None:
    adapter, _ = maker(kind, reply(said))
    job = await adapter.retrieve_video("v", model=f"{kind}:m")
    assert (job.status, job.usage) == ("failed", None)
    assert isinstance(job.error, error)
    assert not job.error.retryable


async def test_a_request_about_a_job_is_not_retried() -> None:
    """The caller gets its error. Deleting returns whether there was a job. Only a completed job is downloaded."""
    missing = reply({"error": {"message": "?"}}, status=404)
    adapter, transport = maker("openai", reply({"deleted": True}), missing)
    assert await adapter.delete_video("video_1", model="openai:sora-2") is True
    assert await adapter.delete_video("video_1", model="openai:sora-2") is False
    assert transport.requests[0].method == "DELETE"
    for status, kind in ((401, AuthError), (404, NotFoundError)):
        adapter, _ = maker("openai", reply({"error": {"message": "?"}}, status=status))
        with pytest.raises(kind):
            await adapter.retrieve_video("video_1", model="openai:sora-2")
    job = VideoJob(id="v", model="openai:sora-2", provider="openai", status="in_progress")
    with pytest.raises(InvalidRequestError, match="in_progress"):
        await maker("openai")[0].open_video(job)


async def test_a_video_within_the_job_s_own_description_is_read_from_there() -> None:
    adapter, transport = maker("gemini")
    where = {"video": "data:video/mp4;base64,AAEC"}
    job = VideoJob(id="o", model="gemini:m", provider="gemini", status="completed", addresses=where)
    content = await adapter.open_video(job, start=1)
    assert (content.start, content.total) == (1, 3)
    assert [await content.chunk(), await content.chunk()] == [b"\x01\x02", None]
    assert transport.requests == []


async def test_a_download_follows_redirects_but_not_for_ever_nor_anywhere() -> None:
    def to(address: str) -> FakeReply:
        return reply({}, status=302, location=address)

    job = VideoJob(id="v", model="openai:sora-2", provider="openai", status="completed")
    adapter, transport = maker("openai", *(to("https://api.openai.com/again") for _ in range(6)))
    with pytest.raises(StreamError, match="a loop"):
        await adapter.open_video(job)
    assert transport.all_closed
    adapter, _ = maker("openai", to("file:///etc/passwd"))
    with pytest.raises(StreamError, match="redirects to file"):
        await adapter.open_video(job)


JOB = VideoJob(id="v", model="p:m", provider="p", status="queued")

DONE = VideoJob(id="v", model="p:m", provider="p", status="completed")

STEADY = PollPolicy(first=2.0, multiplier=2.0, longest=10.0, jitter=False, give_up_after=60.0)


class Looks:
    """A server that replies to one poll after the other and records their times."""

    def __init__(self, *answers: VideoJob | AdapterError) -> None:
        self.answers = list(answers)
        self.began = anyio.current_time()
        self.times: list[float] = []

    async def __call__(self) -> VideoJob:
        self.times.append(anyio.current_time() - self.began)
        answer = self.answers.pop(0)
        if isinstance(answer, AdapterError):
            raise answer
        return answer


async def wait(looks: Looks, policy: PollPolicy = STEADY) -> VideoJob:
    return await wait_for_video(looks, JOB, policy=policy, random=lambda: 0.5)


JITTER = PollPolicy(first=2.0, multiplier=2.0, longest=100.0)
BUSY = RateLimitError("x", retry_after_seconds=20.0)


@pytest.mark.parametrize(("answers", "policy", "times"), [
    ([JOB, JOB, JOB, JOB, DONE], STEADY, [2, 6, 14, 24, 34]),
    ([JOB, DONE], JITTER, [2.5, 7.5]),
    ([NetworkError("x"), BUSY, ServerError("x"), DONE], STEADY, [2, 6, 26, 36]),
], ids=["more and more rarely", "jitter", "failures in passing"])  # fmt: skip
async def test_a_job_is_polled(answers: list[VideoJob | AdapterError], policy: PollPolicy, times: Json) -> None:
    """The delays grow, with jitter. After a failure, the provider's delay is used. A job that is over is not
    polled.
    """
    looks = Looks(*answers)
    assert await wait(looks, policy) is DONE
    assert looks.times == pytest.approx(times)
    looks = Looks()
    assert await wait_for_video(looks, DONE, random=lambda: 0.0) is DONE
    assert looks.times == []


async def test_too_many_failed_polls_in_a_row_raise_an_error() -> None:
    """A successful poll restarts the count."""
    looks = Looks(*(NetworkError(f"number {n}") for n in range(20)))
    with pytest.raises(NetworkError, match="number 7"):
        await wait(looks)
    assert looks.times[-1] - looks.times[0] >= STEADY.give_up_after
    row = [*(NetworkError("x") for _ in range(5)), JOB]
    assert await wait(Looks(*row, *row, *row, DONE)) is DONE


async def test_a_job_is_unknown_only_for_its_first_looks_and_permanent_errors_are_raised_at_once() -> None:
    looks = Looks(*(NotFoundError("x") for _ in range(STEADY.not_yet)), DONE)
    assert await wait(looks) is DONE
    unknown = [NotFoundError("x") for _ in range(STEADY.not_yet + 1)]
    for answers in (unknown, [JOB, NotFoundError("x")], [AuthError("x")], [AdapterError("x")]):
        with pytest.raises(type(answers[-1])):
            await wait(Looks(*answers))


@given(cut=st.integers(0, 400))
def test_an_mp4_file_is_whole_or_it_is_not(cut: int) -> None:
    import io

    whole = mp4(300)
    assert is_whole_mp4(io.BytesIO(whole), len(whole))
    cut = min(cut, len(whole) - 1)
    assert not is_whole_mp4(io.BytesIO(whole[:cut]), cut)
