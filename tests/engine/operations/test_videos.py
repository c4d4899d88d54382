"""Videos through the engine, against a server with real sockets and each kind of fault: no job is paid twice or
lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from callboard.adapters import AdapterConfig, CapabilityError, NetworkError, RetryPolicy, ServerError
from callboard.adapters.videos import PollPolicy
from callboard.bus import (
    CallboardError,
    ConfigurationError,
    JobCompleted,
    JobCreated,
    JobProgress,
    LlmCallCompleted,
    Lossless,
)
from callboard.bus.errors import (
    CancelledError,
    ContentFilterError,
    NotFoundError,
    OutcomeUnknownError,
    RequestTimeoutError,
)
from callboard.engine import AdapterEntry, Engine, ModelRegistry, VideoHandle
from callboard.tracestore import PriceRow, PriceTable

from ...support.engines import entry, model, serving
from ...support.media_server import MediaServer, media_server
from ...support.present import present
from ...support.provider_server import refusing_url
from ...support.virtual_time import runs_on

QUICKLY = RetryPolicy(base_delay=0.001, jitter=False)

OFTEN = PollPolicy(first=0.001, longest=0.002, jitter=False, give_up_after=5.0)

PRICES = PriceTable(
    [
        PriceRow(model="openai:sora-2", extra={"video_second": 10**11}),
        PriceRow(model="gemini:veo-3.1-generate-preview", extra={"video_second": 4 * 10**11}),
    ]
)

SORA, VEO = "openai:sora-2", "gemini:veo-3.1-generate-preview"


def registry(url: str, **others: str) -> ModelRegistry:
    """A registry with both providers at this address, and other adapters of OpenAI's protocol at their own
    addresses.
    """
    adapters: dict[str, AdapterEntry | str] = {}
    for name in ("openai", "gemini", *others):
        config = AdapterConfig(
            options={"download_hosts": ["127.0.0.1"]},
            api_key="a-secret-key",
            base_url=others.get(name, url),
            retry=QUICKLY,
            stream_read_timeout=5.0,
        )
        kind = name if name in ("openai", "gemini") else "openai"
        adapters[name] = entry(name, kind, config)
    names = [SORA, VEO, *(f"{name}:sora-2" for name in others)]
    return serving(*[model(name, kind="video") for name in names], **adapters)


@asynccontextmanager
async def engine_at(server: MediaServer, store: Path | None = None, **others: str) -> AsyncIterator[Engine]:
    engine = Engine(models=registry(server.url, **others), store=store, trace=store is not None, prices=PRICES)
    async with engine:
        yield engine


async def a_video(engine: Engine, model: str = SORA) -> VideoHandle:
    return await engine.create_video("A red boat.", model=model, seconds=8, polling=OFTEN)


@asynccontextmanager
async def filming(
    server: MediaServer, store: Path | None = None, *, model: str = SORA, finished: bool = False
) -> AsyncIterator[tuple[Engine, VideoHandle]]:
    """An engine, and a video that was started there. With `finished`, the video is complete."""
    async with engine_at(server, store) as engine:
        handle = await a_video(engine, model)
        if finished:
            await handle.wait()
        yield engine, handle


anyio_backend = runs_on("asyncio")


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with media_server() as running:
        yield running


async def rows(engine: Engine) -> list[tuple[str, str, int | None]]:
    """The operation, the status and the cost in nano-USD of each call."""
    await engine.flush()
    found = await present(engine.store).sql("SELECT operation, status, cost_nano FROM calls ORDER BY id")
    return [(str(one), str(two), None if cost is None else int(str(cost))) for one, two, cost in found.rows]


@pytest.mark.parametrize(("model", "nano_usd"), [(SORA, 800_000_000), (VEO, 3_200_000_000)])
async def test_a_video_is_created_and_downloaded(
    server: MediaServer, tmp_path: Path, model: str, nano_usd: int
) -> None:
    """The calls for the video are in the trace, and its seconds are priced once."""
    async with filming(server, tmp_path / "trace.db", model=model) as (engine, handle):
        assert (handle.status, handle.cost) == ("queued" if model == SORA else "in_progress", None)
        result = await handle.wait()
        assert (result.cost.nano_usd, result.usage.details) == (nano_usd, {"video_second": 8})
        assert await handle.download() == server.file
        assert await rows(engine) == [("video_create", "completed", 0), ("video", "completed", nano_usd)]
    assert server.made == {"video": 1}


LOST_LOOKS = ["drop", "lost", "500", "503", "429", "garbage", "drop", "", "502", "drop"]


@pytest.mark.parametrize("model", [SORA, VEO])
async def test_failed_polls_neither_fail_a_job_nor_make_another(server: MediaServer, model: str) -> None:
    server.faults["look"] = list(LOST_LOOKS)
    async with engine_at(server) as engine:
        result = await (await a_video(engine, model)).wait()
    assert result.job.status == "completed"
    assert server.made == {"video": 1}


async def test_polling_that_never_succeeds_ends_and_the_job_can_be_resumed(server: MediaServer) -> None:
    server.faults["look"] = ["drop"] * 200
    soon = PollPolicy(first=0.001, longest=0.001, jitter=False, give_up_after=0.02)
    async with engine_at(server) as engine:
        handle = await engine.create_video("A red boat.", model=SORA, polling=soon)
        with pytest.raises(NetworkError):
            await handle.wait()
        server.faults["look"] = []
        assert (await handle.wait()).job.status == "completed"
    assert server.made == {"video": 1}


async def test_a_key_that_is_refused_in_a_poll_is_an_error_immediately(server: MediaServer) -> None:
    server.faults["look"] = ["401"]
    async with engine_at(server) as engine:
        with pytest.raises(CallboardError) as caught:
            await (await a_video(engine)).wait()
    assert type(caught.value).__name__ == "AuthError"
    assert len(server.of("look")) == 1


async def test_a_job_that_the_provider_does_not_list_yet_is_polled_again(server: MediaServer) -> None:
    server.faults["look"] = ["404", "404"]
    async with engine_at(server) as engine:
        assert (await (await a_video(engine)).wait()).job.status == "completed"
        server.faults["look"] = ["", "404"]
        with pytest.raises(NotFoundError):  # The provider listed this job before, so it is gone.
            await (await a_video(engine)).wait()


@pytest.mark.parametrize(("model", "kind"), [(SORA, ContentFilterError), (VEO, ServerError)])
async def test_a_job_that_fails_costs_nothing_and_has_a_reason(
    server: MediaServer, tmp_path: Path, model: str, kind: type[Exception]
) -> None:
    server.ends = "failed"
    async with engine_at(server, tmp_path / "trace.db") as engine:
        with engine.bus.subscribe("job.failed", policy=Lossless()) as events:
            handle = await a_video(engine, model)
            for _ in range(2):  # Each wait raises the error, and the failure is counted once.
                with pytest.raises(kind, match="not that"):
                    await handle.wait()
            (failed,) = [envelope.data for envelope in events.take()]
        assert (failed.status, failed.error_type) == ("failed", kind.__name__)
        with pytest.raises(CallboardError, match="failed"):
            await handle.download()
        assert await rows(engine) == [("video_create", "completed", 0), ("video", "failed", None)]


# -- Creation.


async def test_a_creation_that_certainly_failed_is_retried_and_an_unreachable_provider_is_skipped(
    server: MediaServer,
) -> None:
    server.faults["create"] = ["503", "429"]
    async with engine_at(server, other=refusing_url()) as engine:
        handle = await engine.create_video("A red boat.", model=["other:sora-2", SORA], seconds=8, polling=OFTEN)
        assert (await handle.wait()).job.model == SORA
    assert (len(server.of("create")), server.made) == (3, {"video": 1})


@pytest.mark.parametrize("fault", ["lost", "done-500", "garbage"])
async def test_a_job_with_a_lost_reply_is_found_and_not_made_twice(server: MediaServer, fault: str) -> None:
    """The latest jobs without a handle are compared by prompt and parameters."""
    async with engine_at(server) as engine:
        first = await a_video(engine)
        server.faults["create"] = [fault]
        second = await a_video(engine)
        assert (first.id, second.id) == ("video_1", "video_2")
        assert [warning.code for warning in second.warnings] == ["found_again"]
        await second.wait()
    assert (len(server.of("create")), server.made) == (2, {"video": 2})


@pytest.mark.parametrize(("model", "fault"), [(SORA, "drop"), (SORA, "500"), (VEO, "lost"), (VEO, "done-500")])
async def test_a_creation_of_unknown_outcome_is_an_error_and_is_never_retried(
    server: MediaServer, model: str, fault: str
) -> None:
    """Google lists no jobs, and OpenAI lists none that fits. No fallback is called."""
    server.faults["create"] = [fault]
    async with engine_at(server, other=server.url) as engine:
        with pytest.raises(OutcomeUnknownError, match="may have been run"):
            await engine.create_video("A red boat.", model=[model, "other:sora-2"], polling=OFTEN)
    assert len(server.of("create")) == 1
    assert server.made["video"] <= 1


async def test_a_creation_that_timed_out_is_not_repeated(server: MediaServer) -> None:
    """No fallback is called, because the job may exist. No time is left to look for it."""
    server.hold.clear()
    async with engine_at(server, other=server.url) as engine:
        with pytest.raises(OutcomeUnknownError):
            await engine.create_video("A red boat.", model=[SORA, "other:sora-2"], timeout=0.2)
        server.hold.set()
    assert len(server.of("create")) == 1


async def test_an_unsupported_request_is_refused_before_it_is_sent(server: MediaServer) -> None:
    async with engine_at(server) as engine:
        for options in ({"seconds": 5}, {"size": "1x1"}, {"audio": False}):
            with pytest.raises(CapabilityError):
                await engine.create_video("A red boat.", model=SORA, **options)  # type: ignore[arg-type]
    assert server.asked == []


async def test_a_cancelled_creation_waits_for_the_id_and_stores_it(server: MediaServer, tmp_path: Path) -> None:
    """The trace has the event and the call of the job, so the job can be resumed."""
    server.hold.clear()
    async with engine_at(server, tmp_path / "trace.db") as engine:
        with engine.bus.subscribe("job.created", policy=Lossless()) as events:
            creation = asyncio.ensure_future(a_video(engine))
            await anyio.to_thread.run_sync(server.asked_for.wait, 30)
            creation.cancel()
            server.hold.set()
            await asyncio.wait([creation])
            (failed,) = [envelope.data for envelope in events.take()]
        assert await rows(engine) == [("video_create", "completed", 0)]
        handle = await engine.resume_video(failed.job_id, SORA, polling=OFTEN)
        assert (await handle.wait()).cost.nano_usd == 800_000_000


# -- Waiting for a job.


async def test_a_time_limit_ends_the_wait_and_not_the_job(server: MediaServer) -> None:
    server.steps = [10] * 100_000
    async with filming(server) as (_, handle):
        with pytest.raises(RequestTimeoutError, match=r"resume_video\('video_1', 'openai:sora-2'\)"):
            await handle.wait(timeout=0.02)
        with anyio.move_on_after(0.02):
            await handle.wait()
        server.steps = []
        assert (await handle.wait()).cost.nano_usd == 800_000_000


async def test_a_job_that_was_counted_is_not_counted_again(server: MediaServer, tmp_path: Path) -> None:
    """Several waits and resumes count the job once. In one engine each resume returns the same handle."""
    async with filming(server, tmp_path / "trace.db") as (engine, handle):
        await asyncio.gather(handle.wait(), handle.wait())
        assert [row[0] for row in await rows(engine)] == ["video_create", "video"]
        assert await engine.resume_video(handle.id, SORA) is handle
    async with engine_at(server, tmp_path / "trace.db") as engine:
        again = await engine.resume_video("video_1", SORA)
        assert (await again.wait()).cost.nano_usd == 800_000_000
        assert sum(1 for row in await rows(engine) if row[0] == "video") == 1
        with pytest.raises(NotFoundError):
            await engine.resume_video("video_9", SORA)


async def test_another_engine_resumes_a_job_with_its_parameters(server: MediaServer, tmp_path: Path) -> None:
    """Google's operation does not have the length of the video. The length comes from the trace."""
    async with engine_at(server, tmp_path / "trace.db") as engine:
        job_id = (await a_video(engine, VEO)).id
    async with engine_at(server, tmp_path / "trace.db") as engine:
        handle = await engine.resume_video(job_id, VEO, polling=OFTEN)
        assert (await handle.wait()).cost.nano_usd == 3_200_000_000
        assert await handle.download() == server.file
    assert server.made == {"video": 1}


async def test_a_job_that_is_resumed_twice_together_is_counted_once(server: MediaServer, tmp_path: Path) -> None:
    server.steps = []
    async with engine_at(server, tmp_path / "trace.db") as engine:
        job_id = (await a_video(engine)).id
    async with engine_at(server, tmp_path / "trace.db") as engine:
        handles = await asyncio.gather(*(engine.resume_video(job_id, SORA) for _ in range(2)))
        assert [handle.status for handle in handles] == ["completed", "completed"]
        assert handles[0] is handles[1]
        assert len(server.of("look")) == 1
        assert sum(1 for row in await rows(engine) if row[0] == "video") == 1


async def test_a_job_can_be_cancelled_if_the_provider_supports_it(server: MediaServer) -> None:
    async with filming(server) as (engine, handle):
        with engine.bus.subscribe("job.failed", policy=Lossless()) as events:
            assert await handle.cancel() is True
            assert await handle.cancel() is False
            assert [envelope.topic for envelope in events.take()] == ["job.failed"]
        with pytest.raises(CancelledError):
            await handle.wait()
        with pytest.raises(CapabilityError, match="continues"):
            await (await a_video(engine, VEO)).cancel()


async def test_a_wait_for_a_cancelled_job_raises(server: MediaServer) -> None:
    """The wait raises even if the provider no longer lists the job. `refresh` does not wait for the job's end."""
    server.steps = [10] * 100_000
    heard = anyio.Event()
    async with filming(server) as (_, handle):
        waiting = asyncio.ensure_future(handle.wait(on_progress=lambda job: heard.set()))
        await heard.wait()
        assert (await handle.refresh()).status == "in_progress"
        assert await handle.cancel() is True
        with pytest.raises(CancelledError):
            await waiting
        assert handle.status == "cancelled"


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_late_cancel_keeps_the_video(waiting: bool, server: MediaServer, tmp_path: Path) -> None:
    """The job has completed since the last poll. The video is counted and can be downloaded."""
    server.steps = [10] * 100_000 if waiting else []
    heard = anyio.Event()
    async with filming(server, tmp_path / "trace.db") as (engine, handle):
        if waiting:
            call = asyncio.ensure_future(handle.wait(on_progress=lambda job: heard.set()))
            await heard.wait()
            server.steps = []
        assert await handle.cancel() is False
        if waiting:
            await call
        assert server.of("delete") == []
        assert (await rows(engine))[-1] == ("video", "completed", 800_000_000)
        assert await handle.download() == server.file


async def test_a_refused_cancel_leaves_the_job_as_it_is(server: MediaServer) -> None:
    server.faults["delete"] = ["409"]
    async with filming(server) as (_, handle):
        with pytest.raises(CallboardError, match="out of order"):
            await handle.cancel()
        assert (await handle.wait()).job.status == "completed"


async def test_events_report_its_progress_and_its_end(server: MediaServer, tmp_path: Path) -> None:
    """`on_progress` is called for each poll. An event is published and stored when something has changed."""
    server.steps = [10, 10, 60]
    reported: list[float | None] = []
    async with engine_at(server, tmp_path / "trace.db") as engine:
        with engine.bus.subscribe("job.*", policy=Lossless()) as events:
            handle = await a_video(engine)
            await handle.wait(on_progress=lambda job: reported.append(job.progress))
            published = [envelope.data for envelope in events.take()]
        await engine.flush()
        stored = [envelope.data for envelope in await present(engine.store).events()]
    assert [type(event) for event in published] == [
        JobCreated,
        JobProgress,
        JobProgress,
        JobProgress,
        JobCompleted,
    ]
    assert [event.progress for event in published if isinstance(event, JobProgress)] == [0.1, 0.6, 1.0]
    assert reported == [0.1, 0.1, 0.6, 1.0]
    assert [event for event in stored if isinstance(event, JobCreated | JobProgress | JobCompleted)] == published
    (bill,) = [event for event in stored if isinstance(event, LlmCallCompleted) and event.usage.details]
    assert bill.response_id == "video_1"


# A completed video is downloaded completely, despite faults on the way.


@pytest.mark.parametrize(
    "faults",
    [
        ["cut-1000"],
        ["cut-0", "cut-99999", "drop", "503"],
        ["cut-5000", "whole"],
        ["cut-5000", "changed"],
        ["endless"],
        ["endless-cut-5000"],
        ["500", "cut-70000", "cut-1"],
    ],
    ids="+".join,
)
async def test_a_download_with_faults_is_complete_in_the_end(
    server: MediaServer, tmp_path: Path, faults: list[str]
) -> None:
    server.faults["content"] = list(faults)
    target = tmp_path / "boat.mp4"
    async with filming(server, finished=True) as (_, handle):
        assert await handle.download(to=target) == target
    assert target.read_bytes() == server.file
    assert os.listdir(tmp_path) == ["boat.mp4"]


async def test_a_download_continues_where_it_broke(server: MediaServer) -> None:
    server.faults["content"] = ["cut-60000"]
    async with filming(server, finished=True) as (_, handle):
        assert await handle.download() == server.file
    first, second = server.of("content")
    assert "range" not in first.headers
    assert 0 < int(second.headers["range"].removeprefix("bytes=").removesuffix("-")) <= 60_000
    assert second.headers["if-range"] == '"one"'


async def test_a_truncated_file_is_an_error(server: MediaServer, tmp_path: Path) -> None:
    """The previous file stays, and no other file remains."""
    target = tmp_path / "boat.mp4"
    target.write_bytes(b"an older one")
    server.faults["content"] = ["endless-cut-5000"] * 20
    async with filming(server, finished=True) as (_, handle):
        with pytest.raises(NetworkError, match="not a complete MP4"):
            await handle.download(to=target)
        assert target.read_bytes() == b"an older one"
        assert os.listdir(tmp_path) == ["boat.mp4"]
        server.faults["content"] = []
        assert len(await handle.download()) == len(server.file)


async def test_a_file_whose_checksum_is_wrong_is_fetched_again(server: MediaServer) -> None:
    server.checksum = True
    server.faults["content"] = ["wrong"]
    async with filming(server, finished=True) as (_, handle):
        assert await handle.download() == server.file
    assert len(server.of("content")) == 2


async def test_each_variant_can_be_downloaded(server: MediaServer) -> None:
    async with filming(server, finished=True) as (engine, handle):
        assert (await handle.download("thumbnail")).startswith(b"\x89PNG")
        assert (await handle.download("spritesheet")).startswith(b"\x89PNG")
        google = await a_video(engine, VEO)
        await google.wait()
        with pytest.raises(CapabilityError, match="no thumbnail"):
            await google.download("thumbnail")
    asked = [each.path.partition("?")[2] for each in server.of("content")]
    assert asked == ["variant=thumbnail", "variant=spritesheet"]


async def test_the_key_is_sent_only_to_the_provider(server: MediaServer) -> None:
    """Google's files are on another host."""
    with media_server() as elsewhere:
        async with engine_at(server) as engine:
            server.files_at = elsewhere.url
            handle = await a_video(engine, VEO)
            await handle.wait()
            assert await handle.download() == elsewhere.file
        first, second = elsewhere.asked
    assert not any("a-secret-key" in value for value in (*first.headers.values(), *second.headers.values()))


async def test_an_error_of_the_disk_is_no_fault_of_the_provider(server: MediaServer, tmp_path: Path) -> None:
    """A job of an adapter that was removed raises an error with the adapter's name."""
    async with filming(server, finished=True) as (engine, handle):
        with pytest.raises(FileNotFoundError):
            await handle.download(to=tmp_path / "nowhere" / "boat.mp4")
        assert await handle.download() == server.file
        await engine.reload(ModelRegistry({}, {}))
        with pytest.raises(ConfigurationError, match="openai"):
            await handle.download()
