"""Each wire of videos: what is sent, read and refused; and when a job is looked at, on virtual time."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AdapterError, CapabilityError, ImageBlock
from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.operations.media_wire import video_usage
from callboard.adapters.videos import PollPolicy, VideoJob, VideoTerms, is_whole_mp4, wait_for_video
from callboard.bus.errors import (
    AuthError,
    ContentFilterError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    RateLimitError,
    ServerError,
    StreamError,
)
from callboard.bus.values.base import JsonObject

from ...support.media_server import mp4, png
from .making import form, maker, reply, video_request, video_wire

pytestmark = pytest.mark.anyio

FRAME = ImageBlock(data=png())

VEO = "veo-3.1-generate-preview"


async def test_openai_s_videos_are_asked_for_in_json_and_with_a_first_frame_as_a_form() -> None:
    made = {"id": "video_1", "status": "queued", "model": "sora-2", "seconds": "8", "size": "1280x720"}
    adapter, transport = maker("openai", reply(made, x_request_id="theirs"))
    job = await adapter.create_video(video_request("openai:sora-2", seconds=8, size="1280x720"))
    assert msgspec.json.decode(transport.requests[0].body) == {
        "model": "sora-2",
        "prompt": "A red boat.",
        "seconds": "8",
        "size": "1280x720",
    }
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


@pytest.mark.parametrize(
    ("said", "status", "progress"),
    [
        ({"status": "queued", "progress": 0}, "queued", 0.0),
        ({"status": "in_progress", "progress": 42}, "in_progress", 0.42),
        ({"status": "in_progress", "progress": 400}, "in_progress", 1.0),
        ({"status": "completed"}, "completed", 1.0),
        ({"status": "thinking_it_over"}, "in_progress", None),
    ],
)
async def test_how_a_job_stands(said: JsonObject, status: str, progress: float | None) -> None:
    adapter, transport = maker("openai", reply({"id": "video_1", **said}))
    job = await adapter.retrieve_video("video_1", model="openai:sora-2")
    assert (job.status, job.progress, job.done) == (status, progress, status == "completed")
    assert (transport.requests[0].method, transport.requests[0].url) == (
        "GET",
        "https://api.openai.com/v1/videos/video_1",
    )


async def test_a_completed_job_is_billed_by_what_it_says_that_it_made() -> None:
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


@pytest.mark.parametrize(
    ("terms", "pieces"),
    [
        (VideoTerms(), {"video": 1}),
        (VideoTerms(8), {"video_second": 8}),
        (VideoTerms(8, "720x1280", True), {"video_second": 8}),
        (VideoTerms(8, "3840x2160", False), {"video_second_2160p_silent": 8}),
    ],
)
def test_the_name_of_the_rate_says_how_large_and_whether_silent(terms: VideoTerms, pieces: dict[str, int]) -> None:
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
    ],
)  # fmt: skip
async def test_why_a_job_failed(kind: str, said: JsonObject, error: type[Exception]) -> None:
    adapter, _ = maker(kind, reply(said))
    job = await adapter.retrieve_video("v", model=f"{kind}:m")
    assert (job.status, job.usage) == ("failed", None)
    assert isinstance(job.error, error)
    assert not job.error.retryable


async def test_an_operation_that_is_done_and_empty_has_failed() -> None:
    adapter, _ = maker("gemini", reply({"name": "o", "done": True}))
    assert (await adapter.retrieve_video("o", model="gemini:m")).status == "failed"


@pytest.mark.parametrize(
    ("kind", "model", "asked", "why"),
    [
        ("openai", "sora-2", {"seconds": 5}, "offers 4, 8, 12"),
        ("openai", "sora-2", {"size": "1792x1024"}, "no size"),
        ("openai", "sora-2", {"audio": False}, "without sound"),
        ("openai", "sora-2", {"first_frame": ImageBlock(data=b"x", media_type="image/gif")}, "image/gif"),
        ("gemini", "veo-2.0-generate-001", {"audio": True}, "no sound"),
        ("gemini", VEO, {"seconds": 12}, "offers 4, 6, 8"),
        ("gemini", "of-tomorrow", {"size": "500x500"}, "no name here"),
    ],
)
async def test_what_a_model_has_not_is_refused_before_anything_is_sent(
    kind: str, model: str, asked: dict[str, object], why: str
) -> None:
    adapter, transport = maker(kind)
    with pytest.raises(CapabilityError, match=why):
        await adapter.create_video(video_request(f"{kind}:{model}", **asked))
    assert transport.requests == []


async def test_deleting_says_whether_there_was_one() -> None:
    adapter, transport = maker("openai", reply({"deleted": True}), reply({"error": {"message": "?"}}, status=404))
    assert await adapter.delete_video("video_1", model="openai:sora-2") is True
    assert await adapter.delete_video("video_1", model="openai:sora-2") is False
    assert transport.requests[0].method == "DELETE"


async def test_a_question_is_asked_once_and_its_error_is_the_caller_s() -> None:
    for status, kind in ((401, AuthError), (404, NotFoundError)):
        adapter, _ = maker("openai", reply({"error": {"message": "?"}}, status=status))
        with pytest.raises(kind):
            await adapter.retrieve_video("video_1", model="openai:sora-2")


async def test_a_video_within_the_job_s_own_description_is_read_from_there() -> None:
    adapter, transport = maker("gemini")
    job = VideoJob(
        id="o",
        model="gemini:m",
        provider="gemini",
        status="completed",
        addresses={"video": "data:video/mp4;base64,AAEC"},
    )
    content = await adapter.open_video(job, start=1)
    assert (content.start, content.total, await content.chunk(), await content.chunk()) == (
        1,
        3,
        b"\x01\x02",
        None,
    )
    assert transport.requests == []


async def test_what_is_not_completed_cannot_be_downloaded() -> None:
    adapter, _ = maker("openai")
    job = VideoJob(id="v", model="openai:sora-2", provider="openai", status="in_progress")
    with pytest.raises(InvalidRequestError, match="in_progress"):
        await adapter.open_video(job)


async def test_a_download_follows_redirects_but_not_for_ever_nor_anywhere() -> None:
    def to(address: str) -> FakeReply:
        return reply({}, status=302, location=address)

    job = VideoJob(id="v", model="openai:sora-2", provider="openai", status="completed")
    adapter, transport = maker("openai", *(to("https://api.openai.com/again") for _ in range(6)))
    with pytest.raises(StreamError, match="circles"):
        await adapter.open_video(job)
    assert transport.all_closed
    adapter, _ = maker("openai", to("file:///etc/passwd"))
    with pytest.raises(StreamError, match="leads to file"):
        await adapter.open_video(job)


JOB = VideoJob(id="v", model="p:m", provider="p", status="queued")

DONE = VideoJob(id="v", model="p:m", provider="p", status="completed")

STEADY = PollPolicy(first=2.0, multiplier=2.0, longest=10.0, jitter=False, give_up_after=60.0)


class Looks:
    """Answers one look after the other, and remembers when each came."""

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


async def test_looks_come_more_and_more_rarely() -> None:
    looks = Looks(JOB, JOB, JOB, JOB, DONE)
    assert await wait(looks) is DONE
    assert looks.times == pytest.approx([2, 6, 14, 24, 34])


async def test_jitter_stretches_each_pause() -> None:
    looks = Looks(JOB, DONE)
    await wait(looks, PollPolicy(first=2.0, multiplier=2.0, longest=100.0))
    assert looks.times == pytest.approx([2.5, 7.5])


async def test_a_job_that_is_over_is_not_looked_at() -> None:
    looks = Looks()
    assert await wait_for_video(looks, DONE, random=lambda: 0.0) is DONE
    assert looks.times == []


async def test_failures_in_passing_are_waited_out_as_the_provider_says() -> None:
    looks = Looks(NetworkError("x"), RateLimitError("x", retry_after_seconds=20.0), ServerError("x"), DONE)
    assert await wait(looks) is DONE
    assert looks.times == pytest.approx([2, 6, 26, 36])


async def test_an_unbroken_row_of_failures_is_given_up() -> None:
    looks = Looks(*(NetworkError(f"number {n}") for n in range(20)))
    with pytest.raises(NetworkError, match="number 7"):
        await wait(looks)
    assert looks.times[-1] - looks.times[0] >= STEADY.give_up_after


async def test_a_look_that_succeeds_begins_the_row_anew() -> None:
    row = [*(NetworkError("x") for _ in range(5)), JOB]
    looks = Looks(*row, *row, *row, DONE)
    assert await wait(looks) is DONE


async def test_what_no_waiting_mends_is_raised_at_once() -> None:
    for error in (AuthError("x"), AdapterError("x")):
        looks = Looks(error)
        with pytest.raises(type(error)):
            await wait(looks)


async def test_a_job_is_unknown_only_for_its_first_looks() -> None:
    looks = Looks(*(NotFoundError("x") for _ in range(STEADY.not_yet)), DONE)
    assert await wait(looks) is DONE
    with pytest.raises(NotFoundError):
        await wait(Looks(*(NotFoundError("x") for _ in range(STEADY.not_yet + 1))))
    with pytest.raises(NotFoundError):
        await wait(Looks(JOB, NotFoundError("x")))


@given(cut=st.integers(0, 400))
def test_an_mp4_file_is_whole_or_it_is_not(cut: int) -> None:
    import io

    whole = mp4(300)
    assert is_whole_mp4(io.BytesIO(whole), len(whole))
    cut = min(cut, len(whole) - 1)
    assert not is_whole_mp4(io.BytesIO(whole[:cut]), cut)
