"""When a job is looked at, on virtual time: its schedule, what is waited out, and what is not."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AdapterError
from callboard.adapters.videos import PollPolicy, VideoJob, is_whole_mp4, wait_for_video
from callboard.bus.errors import AuthError, NetworkError, NotFoundError, RateLimitError, ServerError

from ...support.media_server import mp4

pytestmark = pytest.mark.anyio

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
